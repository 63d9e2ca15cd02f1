"""The text of a Markdown document: what its reader sees. Code stays as it is, links lose their targets."""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kappa.graph.errors import MissingExtra
from kappa.graph.ingest.read.html import html_text

if TYPE_CHECKING:
    from markdown_it.token import Token

_HEADING = re.compile(r"(?m)^ {0,3}#{1,6} +\S|^\S.*\n(?:={3,}|-{3,}) *$")
_OTHER = re.compile(
    r"(?m)^ {0,3}(?:```|~~~)|\[[^\]\n]{1,200}\]\([^)\s]{1,500}\)|\*\*\S[^*\n]{0,200}\*\*|^\|? *:?-{3,}:? *\|"
)
_SAMPLE = 100_000


def looks_like_markdown(text: str) -> bool:
    """A heading, and one other mark that other texts don't have: a `#` alone may be a comment."""
    sample = text[:_SAMPLE]
    return bool(_HEADING.search(sample) and _OTHER.search(sample))


def markdown_text(source: str) -> tuple[str, str]:
    """The text and the first heading."""
    try:
        from markdown_it import MarkdownIt
    except ImportError as fault:
        raise MissingExtra("Markdown needs markdown-it-py, which the extra kappa[ingest] brings") from fault
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(_without_front_matter(source))
    blocks: list[_Block] = []
    title = ""
    before = ""
    lists = group = 0
    for token in tokens:
        match token.type:
            case "bullet_list_open" | "ordered_list_open":
                group += not lists
                lists += 1
            case "bullet_list_close" | "ordered_list_close":
                lists -= 1
            case "table_open":
                group += 1
            case "tr_open":
                blocks.append(_Block("", group))
            case "inline":
                text = "".join(_inline(token.children or []))
                if before in ("td_open", "th_open"):
                    row = blocks[-1]
                    blocks[-1] = _Block(f"{row.text}\t{text}" if row.text else text, row.group)
                else:
                    blocks.append(_Block(text, group if lists else 0))
                if before == "heading_open":
                    title = title or text
            case "fence" | "code_block":
                blocks.append(_Block(token.content.rstrip("\n")))
            case "html_block":
                blocks.append(_Block(html_text(token.content)[0]))
            case _:
                pass
        before = token.type
    return _joined(blocks), title


class _Block(NamedTuple):
    """A paragraph, or a line of a list or table, which has a number."""

    text: str
    group: int = 0


def _inline(children: "Sequence[Token]") -> Iterator[str]:
    for token in children:
        if token.type in ("text", "code_inline", "image"):
            yield token.content
        elif token.type in ("softbreak", "hardbreak"):
            yield "\n"


def _joined(blocks: list[_Block]) -> str:
    out: list[str] = []
    before = 0
    for text, group in blocks:
        if not text.strip():
            continue
        if out:
            out.append("\n" if group and group == before else "\n\n")
        out.append(text)
        before = group
    return "".join(out)


def _without_front_matter(source: str) -> str:
    """A block of settings between two lines of `---` at the very beginning is not part of the text."""
    if source.startswith("---\n") and (end := source.find("\n---\n", 3, 20_000)) > 0:
        return source[end + 5 :]
    return source
