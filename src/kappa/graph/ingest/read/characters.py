"""The one place where characters are made uniform. Every offset counts the text that leaves here.

Lines end with one "\\n". NUL and the other control characters are gone, except tab; so are byte order marks, halves of
characters and non-characters. What remains is in Unicode's composed form (NFC): an é is one character whether the
document wrote it as one or as two, and a quote that somebody else repeats is found again.
"""

import re
import unicodedata
from functools import cache

_LINE_ENDS = re.compile("\r\n|[\r\v\f\x85\u2028\u2029]")
_DROPPED = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\ufeff\ufdd0-\ufdef\ufffe\uffff\ud800-\udfff]")
_MARKS = 30
_JOINER = "\u034f"


def uniform(text: str) -> str:
    """The text as offsets count it. A second time changes nothing."""
    text = _DROPPED.sub("", _LINE_ENDS.sub("\n", text))
    if text.isascii():
        return text
    # Composing sorts the marks on a letter in quadratic time; no real letter has thirty. So UAX 15, "stream-safe".
    # A longer run has a mark at one of every 31 places.
    if not _marks().isdisjoint(text[:: _MARKS + 1]):
        text = _long_runs().sub(lambda run: _JOINER.join(re.findall(f"(?s).{{1,{_MARKS}}}", run[0])), text)
    return unicodedata.normalize("NFC", text)


def one_line(text: str, longest: int = 300) -> str:
    """A title or a name, fit for a line of a message."""
    return " ".join(uniform(text[: longest * 4]).split())[:longest]


@cache
def _marks() -> frozenset[str]:
    return frozenset(chr(code) for code in range(0x300, 0x1F000) if unicodedata.combining(chr(code)))


@cache
def _long_runs() -> re.Pattern[str]:
    return re.compile(f"[{''.join(sorted(_marks()))}]{{{_MARKS + 1},}}")
