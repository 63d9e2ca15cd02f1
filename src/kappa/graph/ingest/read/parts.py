"""What the readers give: a document in parts, so that its caller can count, stop and tell how far it is."""

from dataclasses import dataclass
from typing import NamedTuple


class Part(NamedTuple):
    """A stretch of text; parts are joined by blank lines. `number` of `total` tells how far the reader is."""

    text: str
    number: int = 1
    total: int = 1


@dataclass(slots=True)
class About:
    """What a reader finds out about the document on its way."""

    media_type: str
    title: str = ""
    paged: bool = False
    """Whether the parts are pages that people would quote by number."""
    ocr_pages: int = 0
    unread_pages: int = 0
    """Pages that show something and have no text, and that OCR was not to read."""
