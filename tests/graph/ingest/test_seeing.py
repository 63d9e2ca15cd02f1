"""Pictures that a model looks at, in place of OCR."""

import io

import pytest
from PIL import Image

from kappa.graph.ingest.extraction import BadExtraction, ProviderDown
from kappa.graph.ingest.intake import TOKENS_OF_A_PICTURE, estimate, take_in
from kappa.graph.ingest.read import EmptyDocument, read
from kappa.graph.ingest.read.image import MOST_BYTES, MOST_SIDE
from tests.graph.ingest import made


class Eyes:
    """Says what it was told to say, and keeps what it was shown."""

    def __init__(self, *says: str | Exception) -> None:
        self.says = list(says)
        self.shown: list[tuple[bytes, str]] = []

    def __call__(self, picture: bytes, media_type: str) -> str:
        self.shown.append((picture, media_type))
        said = self.says.pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    def image(self) -> Image.Image:
        return Image.open(io.BytesIO(self.shown[0][0]))


def pages(*lines: str) -> bytes:
    """A TIFF with a page for each."""
    out = io.BytesIO()
    first, *rest = (made.drawn([line]) for line in lines)
    first.save(out, "TIFF", save_all=True, append_images=rest)
    return out.getvalue()


def test_what_it_says_is_the_text_page_by_page() -> None:
    eyes = Eyes("An otter.", "A fish.")
    found = read(pages("Leaf", "Stone"), "scan.tiff", see=eyes)
    assert found.text == "An otter.\n\nA fish."
    assert found.pages == (0, 11)
    assert (found.ocr_pages, found.notes) == (0, ())
    assert [kind for _, kind in eyes.shown] == ["image/png"] * 2


def test_where_it_cant_say_ocr_reads_and_a_note_tells() -> None:
    found = read(pages("Otters eat fish.", "Leaf"), "scan.tiff", see=Eyes(BadExtraction("m declined"), "A fish."))
    assert found.text == "Otters eat fish.\n\nA fish."
    assert found.ocr_pages == 1
    assert found.notes == ("page 1 was read by OCR: m declined",)


def test_a_model_that_is_away_is_no_broken_document() -> None:
    with pytest.raises(ProviderDown, match="nobody answers"):
        read(made.picture(["Leaf"]), "leaf.png", see=Eyes(ProviderDown("nobody answers", 3.0)))


def test_a_picture_of_which_it_says_nothing_is_empty() -> None:
    with pytest.raises(EmptyDocument):
        read(made.picture(["Leaf"]), "leaf.png", see=Eyes(" \n"))


def test_only_pictures_are_shown() -> None:
    assert read(b"Otters eat fish.", "otters.txt", see=Eyes()).text == "Otters eat fish."


def test_a_wide_picture_is_made_smaller_and_keeps_its_form() -> None:
    eyes = Eyes("wide")
    read(made.picture(["Leaf"], size=(4 * MOST_SIDE, MOST_SIDE)), "wide.png", see=eyes)
    assert eyes.image().size == (MOST_SIDE, MOST_SIDE // 4)


def test_what_would_be_too_long_is_packed_harder() -> None:
    noise = io.BytesIO()
    Image.effect_noise((2000, 2000), 100).convert("RGB").save(noise, "PNG")
    assert len(noise.getvalue()) > MOST_BYTES
    eyes = Eyes("noise")
    read(noise.getvalue(), "noise.png", see=eyes)
    ((sent, kind),) = eyes.shown
    assert kind == "image/jpeg"
    assert len(sent) <= MOST_BYTES
    assert eyes.image().size == (2000, 2000)


def test_what_it_costs_to_look_is_estimated() -> None:
    uploads = [take_in(pages("Leaf", "Stone"), "scan.tiff", "ann").upload]
    blind, seeing = estimate(uploads, lambda a, b: None), estimate(uploads, lambda a, b: None, sees=True)
    assert seeing.tokens_in - blind.tokens_in == 2 * TOKENS_OF_A_PICTURE
    assert seeing.tokens_out > blind.tokens_out
    text = [take_in(b"Otters eat fish.", "otters.txt", "ann").upload]
    assert estimate(text, lambda a, b: None) == estimate(text, lambda a, b: None, sees=True)
