"""Cuts a text into chunks that overlap, by words.

The chunks cover every character: the first begins at 0, the last ends with the text, and none begins after the end of
the one before it. A cut is made where a paragraph ends, as near to the target as may be between the least and the
most; where none ends there, at a sentence; then at a line; then at the target itself. The next chunk begins `overlap`
words before the cut, or with the first sentence after that point if half of them are left.

A word is what stands between blanks. Scripts without blanks count as well: a Chinese or Japanese character is a word,
four of Thai, Lao, Burmese or Khmer are one, and so are a hundred characters of anything that has no end.
"""

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from kappa.graph.errors import BadQuestion

LONGEST_WORD = 100

_ALONE = "\u2e80-\u2fdf\u3001-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff01-\uff9f\U00020000-\U0003ffff"
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_WORD = re.compile(rf"[^\s{_ALONE}{_UNSPACED}]{{1,{LONGEST_WORD}}}|[{_ALONE}]|[{_UNSPACED}]{{1,4}}")

_PARAGRAPH = re.compile(r"\n[^\S\n]*\n\s*")
# Looked for by its first sign, which is no later one of several; a script without blanks needs none after it.
_SENTENCE = re.compile(
    r"[.!?…。！？](?<![.!?…。！？]{2})[.!?…。！？]*+[\"'”’»)\]」』）]*+(?:\s+|(?<=[。！？」』）]))(?=\S)"
)
_LINE = re.compile(r"\n\s*")
# What a full stop after it doesn't end. Nor does it a single letter: "J. Smith", "e.g.".
_SHORT = re.compile(
    r"(?i)al|approx|art|ca|cf|ch|dr|eds?|eqs?|est|etc|figs?|gen|gov|inc|jr|ltd|mrs?|ms|nos?|op|pp?|prof|rev|sec|sr|st|vol|vs"
)
_LAST_WORD = re.compile(r"(\w+)\.$")
# A step back that holds any word of the list.
_LOOK_BACK = 12


@dataclass(frozen=True, slots=True)
class ChunkRule:
    """How long chunks are, in words. No chunk has more than `most`, and only the last may have fewer than `least`."""

    target: int = 1000
    least: int = 800
    most: int = 1500
    overlap: int = 200
    """What a chunk repeats of the one before it; less than `least`, so that every chunk goes on."""

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.target <= self.most:
            raise BadQuestion(
                f"chunks of {self.least} to {self.most} words with a target of {self.target}: "
                "the target lies between the least and the most, and the least is 1 or more"
            )
        if not 0 <= self.overlap < self.least:
            raise BadQuestion(
                f"an overlap of {self.overlap} words: it is 0 or more, and less than the least chunk's {self.least}"
            )


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """One chunk: `text[start:end]`."""

    ordinal: int
    start: int
    end: int
    words: int


def chunk(text: str, rule: ChunkRule | None = None) -> list[ChunkSpan]:
    """The chunks of a text, in order; an empty text has none."""
    rule = rule or ChunkRule()
    return list(_spans(text, rule)) if text else []


def _spans(text: str, rule: ChunkRule) -> Iterator[ChunkSpan]:
    words = array("q", map(re.Match[str].start, _WORD.finditer(text)))
    ordinal = first = 0
    while len(words) - first > rule.most:
        cut = _cut(text, words, first, rule)
        yield ChunkSpan(ordinal, words[first] if first else 0, words[cut], cut - first)
        ordinal, first = ordinal + 1, _begin(text, words, cut, rule.overlap)
    yield ChunkSpan(ordinal, words[first] if first else 0, len(text), len(words) - first)


def _cut(text: str, words: "array[int]", first: int, rule: ChunkRule) -> int:
    """The word before which the chunk that begins with `first` ends. There are more than `most` from there on."""
    least, target, most = first + rule.least, first + rule.target, first + rule.most
    for ends in (_paragraphs, _sentences, _lines):
        places = [bisect_left(words, place) for place in ends(text, words[least - 1], words[most])]
        if fitting := [place for place in places if least <= place <= most]:
            return min(fitting, key=lambda place: abs(place - target))
    return target


def _begin(text: str, words: "array[int]", cut: int, overlap: int) -> int:
    """The word with which the chunk after a cut begins."""
    earliest, latest = cut - overlap, cut - (overlap + 1) // 2
    if earliest < latest:
        for place in _sentences(text, words[earliest - 1], words[latest]):
            if earliest <= (begin := bisect_left(words, place)) <= latest:
                return begin
    return earliest


def _paragraphs(text: str, start: int, end: int) -> Iterator[int]:
    """Where paragraphs begin in a stretch of the text; so with sentences and lines."""
    return (found.end() for found in _PARAGRAPH.finditer(text, start, end))


def _lines(text: str, start: int, end: int) -> Iterator[int]:
    return (found.end() for found in _LINE.finditer(text, start, end))


def _sentences(text: str, start: int, end: int) -> Iterator[int]:
    # The first letter of the next sentence is looked at, so the stretch is one longer than the places asked for.
    for found in _SENTENCE.finditer(text, start, end + 1):
        place = found.end()
        if text[place].islower():
            continue
        if text[found.start()] == "." and (
            word := _LAST_WORD.search(text, found.start() - _LOOK_BACK, found.start() + 1)
        ):
            last = word[1]
            if _SHORT.fullmatch(last) or (len(last) == 1 and last.isalpha()):
                continue
        yield place
