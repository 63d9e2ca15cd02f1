"""Bytes into characters.

What says its encoding is believed: a byte order mark, valid UTF-8, a page's `<meta charset>`. The rest is guessed, from
its first part, always in the same way.
"""

import codecs
import re

from kappa.graph.errors import MissingExtra
from kappa.graph.ingest.read.errors import UnknownFormat

# UTF-32 first: its mark begins with that of UTF-16.
_MARKED = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_META = re.compile(rb"(?i)<(?:meta\s[^>]{0,500}?charset|\?xml[^>]{0,200}?encoding)\s*=\s*[\"']?\s*([a-z0-9_:.-]{2,40})")
# Codecs of Python that no page is written in, and that would change what they decode.
_NO_CHARSET = frozenset(
    {"utf-7", "idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined", "mbcs", "oem"}
)
_CONTROL = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_SAMPLE = 200_000
_PARITY_SAMPLE = 4_000
# Of all characters, those that may be control characters in what passes for a text.
_MOST_CONTROL = 0.01
_ASCII = bytes(range(128))
_FEW_ACCENTS = 20


def decode(data: bytes) -> str:
    """The characters of a text file; raises `UnknownFormat` if it is none."""
    for mark, encoding in _MARKED:
        if data.startswith(mark):
            return _as_text(data[len(mark) :].decode(encoding, "replace"))
    if encoding := _utf16_without_mark(data):
        return _as_text(data.decode(encoding, "replace"))
    try:
        return _as_text(data.decode())
    except UnicodeDecodeError as fault:
        # A text that was cut off in the middle of a character is one nevertheless.
        if fault.start >= len(data) - 3 and fault.start > 0 and fault.reason == "unexpected end of data":
            return _as_text(data[: fault.start].decode())
    # Bytes that no character has come out as controls in every encoding below, so binary data is told from them here.
    _as_text(data[:_SAMPLE].decode("latin-1"))
    if (named := _META.search(data[:4096])) and (encoding := _charset(named[1].decode("ascii"))):
        return _as_text(data.decode(encoding, "replace"))
    return _as_text(data.decode(_guess(data), "replace"))


def _utf16_without_mark(data: bytes) -> str | None:
    """Letters of most scripts of Europe have a zero in every second byte."""
    sample = data[:_PARITY_SAMPLE]
    if len(sample) < 4 or len(data) % 2:
        return None
    half, even, odd = len(sample) // 2, sample[::2].count(0), sample[1::2].count(0)
    if odd > half * 0.7 and even == 0:
        return "utf-16-le"
    if even > half * 0.7 and odd == 0:
        return "utf-16-be"
    return None


def _charset(label: str) -> str | None:
    try:
        name = codecs.lookup(label).name
        b"".decode(name)
    except (LookupError, UnicodeError):
        return None
    if name in _NO_CHARSET or name.startswith(("utf-16", "utf-32", "utf-8")):
        # A page whose label could be read is not in UTF-16, and it is not in UTF-8: that was tried.
        return None
    return "cp1252" if name in {"iso8859-1", "ascii"} else name


def _guess(data: bytes) -> str:
    sample = data[:_SAMPLE]
    if len(data) > _SAMPLE and (end := sample.rfind(b"\n")) > 0:
        sample = sample[:end]
    accents = len(sample.translate(None, _ASCII))
    if accents < _FEW_ACCENTS and accents < len(sample) / 4:
        # Too few to tell an encoding by; what remains is mostly Latin, and this is what it mostly is in.
        return "cp1252"
    try:
        from charset_normalizer import from_bytes
    except ImportError as fault:
        raise MissingExtra(
            "a text that is not in UTF-8 needs charset-normalizer, which the extra kappa[ingest] brings"
        ) from fault
    best = from_bytes(sample).best()
    return best.encoding if best else "cp1252"


def _as_text(text: str) -> str:
    sample = text[:_SAMPLE]
    if len(_CONTROL.findall(sample)) > max(len(sample) * _MOST_CONTROL, 2):
        raise UnknownFormat("it is binary data of no format that is read here")
    if sample.count("\ufffd") > max(len(sample) * 0.1, 1):
        raise UnknownFormat("it is a text in an encoding that can't be told")
    return text
