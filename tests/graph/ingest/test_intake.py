"""Files are looked at when they come in: what can be said of them without OCR, and what they will cost."""

import io
from decimal import Decimal

import pytest

from kappa.graph.ingest.chunk import ChunkRule
from kappa.graph.ingest.intake import Estimate, check_size, estimate, take_in
from kappa.graph.ingest.read import DocumentTooLarge, EmptyDocument, Limits, read, survey
from tests.graph.ingest import made

RULE = ChunkRule(target=10, least=8, most=12, overlap=2)


def scanned() -> bytes:
    """A PDF of one page that is a picture."""
    buffer = io.BytesIO()
    made.drawn(["Otters eat fish."]).save(buffer, "PDF")
    return buffer.getvalue()


def test_a_text_is_counted_as_it_will_be_cut() -> None:
    text = "One two three four five. " * 20
    taken = take_in(text.encode(), "counted.txt", "ann", rule=RULE)
    assert taken.upload.chunks > 8
    assert taken.upload.words > len(text.split()), "what chunks repeat is sent again"
    assert taken.upload.ocr_pages == 0
    assert not taken.warnings
    assert taken == take_in(text.encode(), "counted.txt", "ann", rule=RULE)
    assert taken.upload.key != take_in(text.encode(), "counted.txt", "bob", rule=RULE).upload.key


def test_a_scanned_page_is_counted_and_not_read() -> None:
    looked_at = survey(scanned(), "scan.pdf")
    assert (looked_at.text.strip(), looked_at.pages, looked_at.ocr_pages) == ("", 1, 1)
    taken = take_in(scanned(), "scan.pdf", "ann")
    assert (taken.upload.ocr_pages, taken.upload.chunks) == (1, 1)
    assert len(taken.warnings) == 1
    assert read(scanned(), "scan.pdf").ocr_pages == 1, "the job will read it"


def test_what_ocr_may_not_read_is_refused_when_it_comes_in() -> None:
    with pytest.raises(EmptyDocument, match=r"scan\.pdf: there is no text in it"):
        survey(scanned(), "scan.pdf", Limits(ocr_pages=0))
    with pytest.raises(DocumentTooLarge, match="OCR would have to read 1 pages"):
        survey(made.picture(["Otter"]), "otter.png", Limits(ocr_pages=0))
    with pytest.raises(DocumentTooLarge, match="points"):
        survey(made.picture(["Otter"]), "otter.png", Limits(pixels=1000))


def test_a_huge_file_is_refused_before_it_is_in_memory() -> None:
    check_size(100, "fits.txt", Limits(bytes=100))
    with pytest.raises(DocumentTooLarge, match=r"huge\.txt: it has 101 bytes, and at most 100 are read"):
        check_size(101, "huge.txt", Limits(bytes=100))


def test_markdown_that_keeps_its_marks_is_told_of() -> None:
    taken = take_in(b"# Head\n\n*text* and more\n" * 10, "long.md", "ann", limits=Limits(markdown_characters=50))
    assert taken.warnings == ("it is so long that its Markdown is taken as plain text, marks and all",)


def test_an_estimate_is_of_all_files_together_and_asks_for_the_price() -> None:
    uploads = [take_in(b"One two three. " * n, f"{n}.txt", "ann", rule=RULE).upload for n in (10, 50)]
    asked: list[tuple[int, int]] = []

    def price(tokens_in: int, tokens_out: int) -> Decimal | None:
        asked.append((tokens_in, tokens_out))
        return Decimal("0.25")

    whole = estimate(uploads, price)
    parts = [estimate([one], lambda a, b: None) for one in uploads]
    assert whole.price == Decimal("0.25")
    assert asked == [(whole.tokens_in, whole.tokens_out)]
    assert (whole.documents, whole.chunks) == (2, sum(one.chunks for one in parts))
    assert parts[0].price is None
    assert estimate([], price) == Estimate(price=Decimal("0.25"))
