"""Reads a document: bytes in, one text out, whose characters are what offsets count.

The same bytes give the same text. What a document is, is seen from its bytes. Nothing is read that is over the limits,
and whatever is wrong with a document comes out as one `ReadError` with one line.
"""

from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from kappa.graph.errors import GraphError
from kappa.graph.ingest.read.characters import one_line, uniform
from kappa.graph.ingest.read.detect import Detected, detect
from kappa.graph.ingest.read.docx import docx_parts
from kappa.graph.ingest.read.epub import epub_parts
from kappa.graph.ingest.read.errors import (
    BrokenDocument,
    DocumentTooLarge,
    EmptyDocument,
    EncryptedDocument,
    ReadError,
    ReaderUnavailable,
    UnknownFormat,
)
from kappa.graph.ingest.read.html import html_text
from kappa.graph.ingest.read.image import image_pages, image_parts
from kappa.graph.ingest.read.limits import Limits
from kappa.graph.ingest.read.markdown import markdown_text
from kappa.graph.ingest.read.ocr import picture_text
from kappa.graph.ingest.read.parts import About, Ocr, Part, See
from kappa.graph.ingest.read.pdf import pdf_parts

__all__ = [
    "BrokenDocument",
    "DocumentTooLarge",
    "EmptyDocument",
    "EncryptedDocument",
    "Limits",
    "ReadDocument",
    "ReadError",
    "ReaderUnavailable",
    "Survey",
    "UnknownFormat",
    "read",
    "survey",
]

_T = TypeVar("_T")
_ENDS = (".", "!", "?", ":", "…", '"', "”", ")", "。", "！", "？")
_READERS = {"pdf": pdf_parts, "docx": docx_parts, "epub": epub_parts, "image": image_parts}


@dataclass(frozen=True, slots=True)
class ReadDocument:
    """A document's text, as every offset counts it."""

    text: str
    media_type: str
    title: str | None = None
    pages: tuple[int, ...] = ()
    """Where each page begins in the text, if the document has pages."""
    ocr_pages: int = 0
    """How many pages were read by OCR."""
    notes: tuple[str, ...] = ()
    """What went otherwise than it was asked for, each in one line."""


def read(
    data: bytes,
    name: str = "",
    limits: Limits | None = None,
    on_part: Callable[[int, int], None] | None = None,
    see: See | None = None,
    ocr: Ocr | None = None,
) -> ReadDocument:
    """The text of a document, read in this process: for documents of strangers there is `reader_pool`.

    `on_part(done, total)` is called after each page or part; what it raises ends the reading. The name stands in
    messages, and helps to tell Markdown from other texts. A picture is read by `see`, if it is given; what that raises
    ends the reading, but for a `BadExtraction`, after which OCR reads the page. `ocr` reads pages in place of ours.
    """
    limits = limits or Limits()
    with _named(name):
        found = _detected(data, name, limits)
        about, text, pages = _text_of(data, found, limits, on_part, see, ocr)
        if not text.strip():
            raise EmptyDocument("there is no text in it")
    return ReadDocument(
        text, about.media_type, one_line(about.title) or None, pages if about.paged else (), about.ocr_pages,
        tuple(about.notes),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Survey:
    """What can be said of a document without OCR."""

    media_type: str
    text: str
    """Of the pages that have one."""
    pages: int
    """0 where there are none."""
    ocr_pages: int
    """Pages that show something, and have no text: OCR would have to read them."""
    marks_kept: bool
    """Whether it is Markdown so long that its marks are part of the text."""


def survey(data: bytes, name: str = "", limits: Limits | None = None) -> Survey:
    """Look at a document as `read` would, but leave OCR out. What `read` would refuse without it is refused."""
    limits = limits or Limits()
    with _named(name):
        found = _detected(data, name, limits)
        if found.kind == "image":
            frames = _guarded(lambda: image_pages(data, found.media_type, limits))
            return Survey(found.media_type, "", frames, frames, marks_kept=False)
        about, text, pages = _text_of(data, found, replace(limits, ocr_pages=0))
        if not text.strip() and not (about.unread_pages and limits.ocr_pages):
            raise EmptyDocument("there is no text in it")
        if limits.ocr_pages:
            limits.check_ocr(about.unread_pages)
    long = found.kind == "markdown" and len(found.text) > limits.markdown_characters
    unread = about.unread_pages if limits.ocr_pages else 0
    return Survey(about.media_type, text, len(pages) if about.paged else 0, unread, marks_kept=long)


@contextmanager
def _named(name: str) -> Generator[None]:
    """Whatever is wrong, the line about it begins with the document's name."""
    try:
        yield
    except ReadError as fault:
        raise type(fault)(f"{one_line(name, 200) or 'the document'}: {fault}") from fault


def _detected(data: bytes, name: str, limits: Limits) -> Detected:
    if not data:
        raise EmptyDocument("it is empty: it has no bytes")
    if len(data) > limits.bytes:
        raise DocumentTooLarge(f"it has {len(data):,} bytes, and at most {limits.bytes:,} are read")
    return _guarded(lambda: detect(data, name, limits))


def _text_of(
    data: bytes,
    found: Detected,
    limits: Limits,
    on_part: Callable[[int, int], None] | None = None,
    see: See | None = None,
    ocr: Ocr | None = None,
) -> tuple[About, str, tuple[int, ...]]:
    about = About(found.media_type, ocr or picture_text, see=see)
    texts: list[str] = []
    size = 0
    with closing(_parts(data, found, limits, about)) as parts:
        while part := _guarded(lambda: next(parts, None)):
            text = uniform(part.text)
            size += len(text)
            limits.check_characters(size)
            texts.append(text)
            if on_part:
                on_part(part.number, part.total)
    text, pages = (texts[0], ()) if found.kind == "text" else _joined(texts)
    return about, text, pages


def _parts(data: bytes, found: Detected, limits: Limits, about: About) -> Generator[Part, None, None]:
    if reader := _READERS.get(found.kind):
        yield from reader(data, limits, about)
        return
    limits.check_characters(len(found.text))
    text = found.text
    if found.kind == "html":
        text, about.title = html_text(text)
    elif found.kind == "markdown" and len(text) <= limits.markdown_characters:
        text, about.title = markdown_text(uniform(text))
    yield Part(text)


def _guarded(step: Callable[[], _T]) -> _T:
    """Libraries raise what they like on bytes that they don't expect; that is a broken document, and nothing else."""
    try:
        return step()
    except (GraphError, MemoryError):  # of a reader, or of a model that sees; or too much for this process
        raise
    except Exception as fault:
        raise BrokenDocument(f"it is damaged, and can't be read ({type(fault).__name__})") from fault


def _joined(texts: list[str]) -> tuple[str, tuple[int, ...]]:
    """Parts follow each other after a blank line; after a line's end alone if a sentence seems to go on."""
    out: list[str] = []
    pages: list[int] = []
    size = 0
    for text in texts:
        core = text.strip("\n")
        if core and out:
            joint = "\n\n" if out[-1].rstrip().endswith(_ENDS) or not core[0].islower() else "\n"
            out.append(joint)
            size += len(joint)
        pages.append(size)
        if core:
            out.append(core)
            size += len(core)
    return "".join(out), tuple(pages)
