"""The tutorials' commands run as printed, in order, and say what is printed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reader import ROOT, Reader, blocks, fits


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    one = Reader(tmp_path)
    yield one
    one.leaves()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("document", ["tutorial.md", "tutorial-graph.md"])
def test_every_command_of_a_tutorial_does_what_is_printed(reader: Reader, document: str) -> None:
    page = blocks((ROOT / "docs" / document).read_text())
    assert any(block.kind == "text" for block in page)
    reader.follows(page)
    reader.interrupts()


@pytest.mark.parametrize(
    ("said", "wanted", "fit"),
    [
        ("one\ntwo  three\n", "one\ntwo three", True),
        ("one\ntwo\n", "one", False),
        ("a\nb\nc\n", "…\nc", True),
        ("a\nb\nc\n", "a\n…", True),
        ("job 7 ran\n", "job … ran", True),
        ("job 7 failed\n", "job … ran", False),
        ("a\nb\n", "…\nb\nc", False),
    ],
)
def test_what_is_said_is_held_against_what_is_printed(said: str, wanted: str, fit: bool) -> None:
    assert fits(said, wanted) is fit
