"""What the readers give: a document in parts, so that its caller can count, stop and tell how far it is."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Picture = NDArray[np.uint8]

See = Callable[[bytes, str], str]
"""A model that looks at a picture (bytes, media type) and writes down what it says."""

Ocr = Callable[["Picture"], str]
"""What reads the text of a picture where no model does."""


class Part(NamedTuple):
    """A stretch of text; parts are joined by blank lines. `number` of `total` tells how far the reader is."""

    text: str
    number: int = 1
    total: int = 1


@dataclass(slots=True)
class About:
    """What a reader finds out about the document on its way."""

    media_type: str
    ocr: Ocr
    title: str = ""
    paged: bool = False
    """Whether the parts are pages that people would quote by number."""
    ocr_pages: int = 0
    unread_pages: int = 0
    """Pages that show something and have no text, and that OCR was not to read."""
    see: See | None = None
    """Reads pictures in place of OCR."""
    notes: list[str] = field(default_factory=list[str])
    """What went otherwise than it was asked for, each in one line."""
