"""How much of a document is read, and what is refused as too large."""

from dataclasses import dataclass, fields

from kappa.graph.errors import BadQuestion
from kappa.graph.ingest.read.errors import DocumentTooLarge

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Limits:
    """A document over one of them is refused whole: half a document would pass for all of it."""

    bytes: int = 100 * MB
    """The file as it came."""
    characters: int = 20 * MB
    """The text that comes out of it."""
    pages: int = 5_000
    """Pages of a PDF, frames of an image, documents of a book."""
    unpacked: int = 200 * MB
    """Bytes that the parts of a DOCX or EPUB may have once they are unpacked, all together."""
    entries: int = 10_000
    """Files in a DOCX or EPUB."""
    depth: int = 500
    """How deep elements of a DOCX may be nested."""
    pixels: int = 80 * MB
    """Points of one image."""
    ocr_pages: int = 200
    """Pages that are read by OCR, each of which takes seconds; 0: none."""
    markdown_characters: int = 2 * MB
    """A longer Markdown document keeps its marks: taking them out would take minutes."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 0:
                raise BadQuestion(f"a limit of {getattr(self, field.name)} {field.name}: it is 0 or more")

    def check_characters(self, count: int) -> None:
        if count > self.characters:
            raise DocumentTooLarge(f"its text has more than {self.characters:,} characters")

    def check_pages(self, count: int, what: str = "pages") -> None:
        if count > self.pages:
            raise DocumentTooLarge(f"it has {count:,} {what}, and at most {self.pages:,} are read")

    def check_ocr(self, count: int) -> None:
        if count > self.ocr_pages:
            raise DocumentTooLarge(
                f"it has {count:,} pages without text, and at most {self.ocr_pages:,} are read by OCR"
            )
