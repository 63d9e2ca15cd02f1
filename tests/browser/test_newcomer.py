"""The README's way from a clone to a picture of one's own documents, typed as printed, then walked in a browser."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser import river
from tests.browser.conftest import DESK, Visitor, drop
from tests.reader import ROOT, Reader, blocks

HEADING = "## From a clone to a picture of your documents\n"


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    one = Reader(tmp_path)
    yield one
    one.leaves()


@pytest.mark.timeout(300)
def test_the_readme_leads_to_a_picture_of_ones_own_documents(reader: Reader, chromium: Browser) -> None:
    notes = reader.place / "notes"
    notes.mkdir()
    title, _, rest = river.TEXT.partition("\n\n")
    (notes / "rivers.md").write_text(f"# {title}\n\n{rest}\n")
    (notes / "more.txt").write_text("Frogs eat flies. Herons eat frogs, and storks eat frogs too.\n")
    _, _, section = (ROOT / "README.md").read_text().partition(HEADING)
    page_of_readme = blocks(re.split(r"^## ", section, flags=re.MULTILINE)[0])
    token = reader.follows(page_of_readme).strip()
    assert ">fish<" in (reader.place / "map.svg").read_text().lower()

    context = chromium.new_context(viewport=DESK, reduced_motion="reduce")  # pyright: ignore[reportArgumentType]
    visitor = Visitor(f"http://127.0.0.1:{reader.port}", context)
    page = visitor.go("/")
    page.get_by_text("With a token instead").click()
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in with the token").click()
    page.get_by_role("link", name="Graph", exact=True).click()
    expect(page.get_by_role("heading", name="Where to begin in mine")).to_be_visible()
    nodes = page.locator(".drawing .node")
    expect(nodes.filter(has_text=re.compile("fish", re.IGNORECASE)).first).to_be_visible()
    before = nodes.count()
    nodes.filter(has_text=re.compile("^heron", re.IGNORECASE)).first.click()
    expect(nodes.filter(has_text=re.compile("frog", re.IGNORECASE)).first).to_be_visible()
    assert nodes.count() > before

    page.get_by_role("link", name=re.compile("^Open “heron", re.IGNORECASE)).click()
    expect(page.locator("blockquote").first).to_be_visible()
    page.locator(".quotes").get_by_role("link", name="more.txt").click()
    expect(page.locator("mark")).to_contain_text("Herons eat frogs")

    page.get_by_role("link", name="Map", exact=True).click()
    picture = page.locator("img.map")
    expect(picture).to_have_js_property("complete", True)
    assert picture.evaluate("image => image.naturalWidth") > 100

    page.get_by_role("link", name="Ingest", exact=True).click()
    page.get_by_label("Ontology").fill("mine")
    drop(page, {"fens.txt": "Cranes eat snails. Fish eat snails too, and cranes live in wetlands."})
    page.get_by_role("button", name="Read them").click()
    page.get_by_role("button", name="Submit and approve").click()
    expect(page.locator(".title .badge")).to_have_text("succeeded", timeout=90_000)
    page.get_by_role("link", name="See what was read").click()
    page.get_by_role("searchbox").press_sequentially("crane")
    expect(page.locator("#found").get_by_role("link", name=re.compile("^crane", re.IGNORECASE))).to_be_visible()
    assert visitor.wrong == []
    context.close()
    reader.interrupts()
