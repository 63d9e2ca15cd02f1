"""A text as paragraphs that a parser can read, each character with its place in the text.

Markdown's marks, links' addresses, code and tables' rules are left out; a heading, a list's item and a table's cell is
a paragraph of its own. What is said of a paragraph's characters is so said of the text's.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Block:
    """Clean text; `at[i]` is where character i stands in the source."""

    text: str
    at: list[int]

    def place(self, start: int, end: int) -> tuple[int, int]:
        """The source's characters from the first to the last of a stretch."""
        return self.at[start], self.at[end - 1] + 1


_FENCE = re.compile(r"\s*(```|~~~)")
_ALONE = re.compile(r"\s{0,3}(?:#{1,6}\s+)")
_ITEM = re.compile(r"\s*(?:[-*+•‣]|\(?\d{1,3}[.)])\s+")
_RULE = re.compile(r"[\s|:=\-*_+]*$")
_QUOTE = re.compile(r"\s*(?:>\s?)+")
_LEFT_OUT = re.compile(
    r"!\[[^\]\n]*\]\([^)\n]*\)"  # an image
    r"|\]\([^)\n]*\)|\]\[[^\]\n]*\]"  # a link's address
    r"|\[\d+(?:\s*[,–-]\s*\d+)*\]|\[\^[^\]\n]*\]"  # a citation, a footnote
    r"|https?://[^\s)>]+"
    r"|</?[A-Za-z][^<>\n]*>"
    r"|\*{1,3}|`+|~~|\[|(?<!\w)_{1,3}(?=\w)|(?<=\w)_{1,3}(?!\w)"
)


def blocks(text: str) -> Iterator[Block]:
    """The paragraphs of a text, in order."""
    lines: list[tuple[int, int]] = []
    fenced = False
    start = 0
    for line in text.splitlines(keepends=True):
        end = start + len(line)
        if _FENCE.match(line):
            fenced = not fenced
            yield from _made(text, lines)
            lines = []
        elif not fenced:
            opening = _QUOTE.match(line)
            first = start + (opening.end() if opening else 0)
            rest = text[first:end]
            mark = _ALONE.match(rest) or _ITEM.match(rest)
            if _RULE.match(rest) or mark or rest.lstrip().startswith("|"):
                yield from _made(text, lines)
                lines = []
            if rest.lstrip().startswith("|") and not _RULE.match(rest):
                for cell in re.finditer(r"[^|\n]+", rest):
                    yield from _made(text, [(first + cell.start(), first + cell.end())])
            elif _ALONE.match(rest):
                yield from _made(text, [(first + (mark.end() if mark else 0), end)])
            elif not _RULE.match(rest):
                lines.append((first + (mark.end() if mark else 0), end))
        start = end
    yield from _made(text, lines)


def _made(text: str, lines: list[tuple[int, int]]) -> Iterator[Block]:
    kept: list[str] = []
    at: list[int] = []
    for start, end in lines:
        place = start
        for out in (*_LEFT_OUT.finditer(text, start, end), None):
            until = out.start() if out else end
            for here in range(place, until):
                character = text[here]
                if character.isspace():
                    if not kept or kept[-1] == " ":
                        continue
                    character = " "
                kept.append(character)
                at.append(here)
            place = out.end() if out else end
    while kept and kept[-1] == " ":
        kept.pop()
        at.pop()
    if kept:
        yield Block("".join(kept), at)
