"""What a document is, by its bytes. Its name is asked for one thing only: whether a text is Markdown."""

import re
from dataclasses import dataclass
from typing import Literal

from kappa.graph.ingest.read.archive import Archive
from kappa.graph.ingest.read.decode import decode
from kappa.graph.ingest.read.docx import main_part
from kappa.graph.ingest.read.epub import CONTAINER
from kappa.graph.ingest.read.errors import EncryptedDocument, UnknownFormat
from kappa.graph.ingest.read.limits import Limits
from kappa.graph.ingest.read.markdown import looks_like_markdown

Kind = Literal["text", "markdown", "html", "pdf", "docx", "epub", "image"]

DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
EPUB = "application/epub+zip"
_IMAGES = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"II\*\0|MM\0\*"), "image/tiff"),
    (re.compile(rb"(?s)RIFF.{4}WEBP"), "image/webp"),
    (re.compile(rb"(?s)BM.{12}[\x0c\x28\x34\x38\x40\x6c\x7c]\0\0\0"), "image/bmp"),
)
_OTHERS = (
    (b"\x1f\x8b", "a gzip file: unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it first"),
    (b"Rar!\x1a\x07", "a RAR archive: unpack it first"),
    (b"BZh", "a bzip2 file: unpack it first"),
    (b"\xfd7zXZ\0", "an xz file: unpack it first"),
    (b"{\\rtf", "an RTF document: save it as DOCX"),
    (b"%!PS", "a PostScript file: convert it to PDF"),
    (b"\x7fELF", "a program"),
    (b"MZ", "a program"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"ID3", "a sound recording"),
    (b"OggS", "a sound recording"),
    (b"fLaC", "a sound recording"),
)
_COMPOUND = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_ENCRYPTED_PACKAGE = "EncryptedPackage".encode("utf-16-le")
_PAGE = re.compile(r"(?is)(?:\s++|(?><!--.*?-->)|<\?xml[^>]*+>)*+<(?:!doctype\s+html|html|head|body)[\s>]")
_FRAGMENT = re.compile(
    r"(?i)\s*<(?:a|article|b|blockquote|br|center|div|font|h[1-6]|header|i|img|link|main|meta|nav|ol|p|script|section|span|strong|style|"
    r"table|title|ul)[\s>/]"
)
_SNIFFED = 4096
_MARKDOWN_NAMES = (".md", ".markdown", ".mdown", ".mkd")


@dataclass(frozen=True, slots=True)
class Detected:
    """A kind, its media type, and the characters of what is a text."""

    kind: Kind
    media_type: str
    text: str = ""


def detect(data: bytes, name: str, limits: Limits) -> Detected:
    head = data[:_SNIFFED]
    at = data.find(b"%PDF-", 0, 1024)
    if at >= 0 and (not data[:at].strip(b"\xef\xbb\xbf \t\r\n") or b"startxref" in data[-2048:]):
        return Detected("pdf", "application/pdf")
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _zip(data, limits)
    for magic, media_type in _IMAGES:
        if magic.match(head):
            return Detected("image", media_type)
    if head.startswith(_COMPOUND):
        if _ENCRYPTED_PACKAGE in data:
            raise EncryptedDocument("it is an Office document that is encrypted, and needs a password")
        raise UnknownFormat("it is a document of an older Office: save it as DOCX")
    if head[4:8] == b"ftyp":
        raise UnknownFormat("it is a film or a sound recording, which is not read here")
    for magic, what in _OTHERS:
        # A text may begin with these letters; what they stand for has bytes that no text has.
        if head.startswith(magic) and (magic[:1] in b"{%" or b"\0" in head or not head.isascii()):
            raise UnknownFormat(f"it is {what}")
    return _text(decode(data), name)


def _zip(data: bytes, limits: Limits) -> Detected:
    archive = Archive(data, limits)
    if "mimetype" in archive:
        declared = archive.read("mimetype")[:100].strip()
        if declared.startswith(b"application/vnd.oasis.opendocument"):
            raise UnknownFormat("it is an OpenDocument file: save it as DOCX")
        if declared == EPUB.encode():
            return Detected("epub", EPUB)
    if CONTAINER in archive:
        return Detected("epub", EPUB)
    if "[Content_Types].xml" in archive:
        if main_part(archive, limits):
            return Detected("docx", DOCX)
        for folder, what in (("xl/", "an Excel workbook"), ("ppt/", "a PowerPoint presentation")):
            if any(entry.startswith(folder) for entry in archive.names):
                raise UnknownFormat(f"it is {what}, which is not read here")
    raise UnknownFormat("it is a zip archive: unpack it first")


def _text(text: str, name: str) -> Detected:
    if _PAGE.match(text[:_SNIFFED]):
        return Detected("html", "text/html", text)
    if name.lower().endswith(_MARKDOWN_NAMES) or looks_like_markdown(text):
        return Detected("markdown", "text/markdown", text)
    if _FRAGMENT.match(text[:_SNIFFED]):
        return Detected("html", "text/html", text)
    return Detected("text", "text/plain", text)
