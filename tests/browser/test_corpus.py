"""The pages that come with Kappa, walked with a browser: dropped, approved, read, and asked."""

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Locator, Page, expect

from kappa.app.cli.demo import CORPUS
from tests.browser.conftest import Town, Visit, drop

ONTOLOGY = "coffee and sleep"
LONG = 90_000


def drawn(page: Page, label: str) -> Locator:
    return page.locator(".drawing .node", has=page.locator("text", has_text=re.compile(f"^{label}$", re.IGNORECASE)))


def badge(page: Page, text: str) -> None:
    expect(page.locator(".title .badge")).to_have_text(text, timeout=LONG)


@pytest.fixture
def lanes_as_before(town: Town) -> Iterator[None]:
    yield
    town.ask("PATCH", "/admin/workers/lanes/interactive", {"max_slots": 2, "enabled": True})


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("lanes_as_before")
def test_the_corpus_from_the_drop_to_the_answers(visit: Visit, town: Town) -> None:
    contributor, curator = visit("contributor"), visit("curator")
    pages = {path.name: path.read_text() for path in sorted(CORPUS.iterdir())}
    assert len(pages) == 12
    # One after the other: which of two labels of one thing is the concept's depends on which is read first.
    town.ask("PATCH", "/admin/workers/lanes/interactive", {"max_slots": 1})

    page = contributor.go("/ui/ingest")
    page.get_by_label("Ontology").fill(ONTOLOGY)
    drop(page, pages)
    expect(page.locator("[data-dropped]")).to_have_text(", ".join(pages))
    page.get_by_role("button", name="Read them").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"12 documents for {ONTOLOGY}")
    expect(page.get_by_label("Estimate")).to_contain_text(re.compile(r"Chunks\s*12.*Price\s*nothing", re.DOTALL))
    page.get_by_role("button", name="Submit for approval").click()
    badge(page, "awaiting approval")
    expect(page.locator(".ask")).to_contain_text(re.compile(r"documents\s*12"))
    assert page.get_by_role("button", name="Approve").count() == 0

    # Whoever approves it sees the same; whoever waits sees it go on, on the page that was open before.
    page.evaluate("window.still = true")
    deciding = curator.go(urlsplit(page.url).path)
    expect(deciding.locator(".ask")).to_contain_text(re.compile(r"documents\s*12"))
    deciding.get_by_role("button", name="Approve").click()
    expect(page.locator("main progress")).to_be_visible(timeout=LONG)
    badge(page, "succeeded")
    assert page.evaluate("window.still") is True

    page.get_by_role("link", name="See what was read").click()
    page.get_by_role("searchbox").press_sequentially("adenosine")
    page.locator("#found").get_by_role("link", name=re.compile("^adenosine$", re.IGNORECASE)).click()
    expect(page.locator("blockquote").first).to_be_visible()
    expect(drawn(page, "sleep pressure")).to_be_visible()
    before = page.locator(".drawing .node").count()
    expect(drawn(page, "physical exercise")).to_have_count(0)
    drawn(page, "sleep pressure").click()
    expect(drawn(page, "physical exercise")).to_be_visible()
    assert page.locator(".drawing .node").count() > before
    page.get_by_role("link", name="01-how-caffeine-works.md").first.click()
    expect(page.locator("mark")).to_contain_text(re.compile("adenosine", re.IGNORECASE))

    page.goto(town.up.url + "/ui/graph/path")
    page.get_by_label("From").fill("physical exercise")
    page.get_by_label("To").fill("memory")
    page.get_by_role("button", name="Find").click()
    # Deep sleep lessens the pressure that causes it: each relation has its own arrow.
    way = r"physical exercise\s+increases →\s+sleep pressure\s+causes →, ← reduces\s+deep sleep\s+increases →\s+memory"
    expect(page.locator(".paths")).to_contain_text(re.compile(way))
    expect(page.locator(".drawing .node.on", has_text="deep sleep")).to_be_visible()

    page.goto(town.up.url + "/ui/graph/polarity")
    page.get_by_label("Negative pole").fill("sleepiness")
    page.get_by_label("Positive pole").fill("alertness")
    page.get_by_role("button", name="Draw").click()
    page.wait_for_url("**/polarity?*")  # and until all of it is there
    place = {
        str(group.locator("text").text_content()).lower(): float(group.locator("circle").get_attribute("cx") or "nan")
        for group in page.locator(".axis.wide g").all()
    }
    assert place["sleep pressure"] < place["caffeine"] < place["adrenaline"]


@pytest.mark.usefixtures("lanes_as_before")
def test_a_lane_is_edited_and_drained_and_what_waits_in_it_cancelled(visit: Visit) -> None:
    visitor = visit()
    page = visitor.go("/ui/lanes")
    page.get_by_role("link", name="interactive", exact=True).click()
    page.locator("[name=max_slots]").fill("3")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("0 of 3 slots")).to_be_visible()
    page.get_by_role("button", name="Drain").click()
    badge(page, "drained")

    page = visitor.go("/ui/ingest")
    page.get_by_label("Ontology").fill("notes")
    drop(page, {"notes.txt": "Glaciers feed lakes. Warm summers cause floods, and floods damage bridges."})
    page.get_by_role("button", name="Read them").click()
    page.get_by_role("button", name="Submit and approve").click()
    badge(page, "queued")
    expect(page.get_by_text("waits for a slot of the lane interactive")).to_be_visible()
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Cancel job").click()
    badge(page, "cancelled")
