"""The text of a PDF, page by page; a page without text is rendered and read by OCR.

PDFium knows no threads: every call into it is made under one lock of the process, and what it gave is closed under it
as well. The lock is free between pages and while OCR works.
"""

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kappa.graph.errors import MissingExtra
from kappa.graph.ingest.read.errors import BrokenDocument, DocumentTooLarge, EncryptedDocument
from kappa.graph.ingest.read.limits import Limits
from kappa.graph.ingest.read.parts import About, Part

if TYPE_CHECKING:
    from kappa.graph.ingest.read.parts import Picture

_pdfium = threading.Lock()
_DPI = 200
_MOST_POINTS = 10_000_000
# A word that was hyphenated at the end of its line: PDFium marks the hyphen.
_HYPHENS = ("\ufffe\r\n", "\x02\r\n", "\ufffe\n", "\x02\n", "\ufffe", "\x02")
_PASSWORD, _SECURITY = 4, 5


def pdf_parts(data: bytes, limits: Limits, about: About) -> Iterator[Part]:
    try:
        import pypdfium2  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as fault:
        raise MissingExtra("PDF needs pypdfium2, which the extra kappa[ingest] brings") from fault
    about.paged = True
    with _pdfium:
        try:
            document: Any = pypdfium2.PdfDocument(data)
        except pypdfium2.PdfiumError as fault:
            if getattr(fault, "err_code", None) in (_PASSWORD, _SECURITY):
                raise EncryptedDocument("it is encrypted, and needs a password") from fault
            raise BrokenDocument("it is no valid PDF, or cut off") from fault
    try:
        with _pdfium:
            total = len(document)
            about.title = document.get_metadata_value("Title")
        limits.check_pages(total)
        if not total:
            raise BrokenDocument("it has no pages")
        for number in range(total):
            with _pdfium:
                text, picture, unread = _page(document, number, limits)
            about.unread_pages += unread
            if picture is not None:
                about.ocr_pages += 1
                if about.ocr_pages > limits.ocr_pages:
                    raise DocumentTooLarge(
                        f"it has more than {limits.ocr_pages:,} pages without text, and no more are read by OCR"
                    )
                text = about.ocr(picture)
            yield Part(text, number + 1, total)
    finally:
        with _pdfium:
            document.close()


def _page(document: Any, number: int, limits: Limits) -> "tuple[str, Picture | None, bool]":
    """The text of a page, or a picture of it if it has none but shows something, or that there should be one."""
    page = document[number]
    try:
        words = page.get_textpage()
        try:
            limits.check_characters(words.count_chars())
            text: str = words.get_text_range()
        finally:
            words.close()
        for hyphen in _HYPHENS:
            text = text.replace(hyphen, "")
        if text.strip() or not any(True for _ in page.get_objects(max_depth=2)):
            return text, None, False
        if not limits.ocr_pages:
            return text, None, True
        width, height = page.get_size()
        scale = min(_DPI / 72, (_MOST_POINTS / max(width * height, 1)) ** 0.5)
        bitmap = page.render(scale=scale)
        try:
            picture = bitmap.to_numpy()[:, :, :3].copy()
        finally:
            bitmap.close()
        return text, picture, False
    finally:
        page.close()
