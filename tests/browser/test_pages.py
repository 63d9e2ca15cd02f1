"""What holds on every page: it can be used by everybody, by day and by night, on a desk and on a phone."""

from typing import Literal

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import DESK, PHONE, Town, Visit
from tests.ground import eventually

Scheme = Literal["light", "dark"]


def every_page(town: Town) -> list[str]:
    """One of each, with something on it."""
    if not town.people & {"prepared"}:
        town.hire("prepared", "contributor")
        for steps in (1, 3):
            town.enqueue("self_test", {"steps": steps})
        fails = {"kind": "self_test", "payload": {"steps": 1, "fail": True}, "max_attempts": 1}
        town.failed = town.ask("POST", "/jobs", fails)["id"]
        limits = {"name": "laboratory", "kinds": ["self_test"], "machines": 40, "requests_per_minute": 6000}
        town.ask("POST", "/users/prepared/tokens", {"name": "laptop", "scopes": ["graph:read", "account:use"]})
        town.ask("POST", "/users/a-platform-admin/tokens", limits)
        town.ask("POST", "/tools", {"name": "quick", "version": "1", "argv": ["sh", "-c", "echo hello"]})
        town.ask("POST", "/tools/quick/runs", {})
        drawn = town.enqueue("projection", {"way": "pca"})
        eventually(lambda: town.ask("GET", f"/jobs/{drawn}")["state"] == "succeeded", what="the map is drawn")
    job, unapproved = town.gated(f"page-{len(list(town.gates.iterdir()))}", 1), town.enqueue("costly", {"pages": 12})
    otter = town.concepts["Otter"]
    document = town.ask("GET", f"/graph/concepts/{otter}?evidence=1")["evidence"][0]
    return [
        "/ui/", "/ui/jobs", f"/ui/jobs/{job}", f"/ui/jobs/{unapproved}", f"/ui/jobs/{town.failed}", "/ui/schedules",
        "/ui/schedules/artifact_cleanup", "/ui/lanes",
        "/ui/lanes/interactive",
        "/ui/graph", "/ui/graph?q=river", f"/ui/graph/concepts/{otter}", "/ui/graph/path?from=Otter&to=Krill",
        "/ui/graph/polarity?positive=River&negative=Sea",
        f"/ui/graph/documents/{document['document']}?start={document['start']}&end={document['end']}",
        "/ui/graph/map", "/ui/graph/vocabulary", "/ui/ontologies", "/ui/ingest",
        "/ui/tools", "/ui/tools/quick", "/ui/tools/new", "/ui/runs/1", "/ui/fleet", "/ui/people", "/ui/people/prepared",
        "/ui/roles", "/ui/audit", "/ui/account",
    ]  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_every_page_can_be_used_by_everybody(visit: Visit, town: Town, size: dict[str, int], scheme: Scheme) -> None:
    visitor = visit(size=size, scheme=scheme)
    found: list[str] = []
    for path in every_page(town):
        page = visitor.go(path)
        expect(page.get_by_role("heading", level=1)).to_have_count(1)
        found += [f"{path}: {fault}" for fault in visitor.serious()]
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if wide > 0:
            found.append(f"{path}: {wide} pixels stand out to the side")
        # A table may go on beyond the edge, but nobody looks for a button there.
        beyond = "all => all.filter(o => o.getBoundingClientRect().right > innerWidth).map(o => o.textContent)"
        found += [f"{path}: {name} is beyond the edge" for name in page.locator(".scroll button").evaluate_all(beyond)]
    assert found == []


def test_a_name_of_hundreds_of_letters_makes_no_page_wider(visit: Visit, town: Town) -> None:
    name = "Longword" * 40
    town.ask("POST", "/users/a-platform-admin/tokens", {"name": name, "scopes": ["graph:read"]})
    visitor = visit(size=PHONE)
    found: list[str] = []
    for path in ("/ui/account", "/ui/people/a-platform-admin", f"/ui/graph?q={name}", f"/ui/ingest?ontology={name}"):
        wide = visitor.go(path).evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        found += [f"{path}: {wide} pixels stand out to the side"] if wide > 0 else []
    assert found == []


@pytest.mark.parametrize(("size", "scheme"), [(DESK, "light"), (PHONE, "dark")], ids=["desk", "phone"])
def test_what_documents_come_to_can_be_seen_by_everybody(visit: Visit, size: dict[str, int], scheme: Scheme) -> None:
    visitor = visit(size=size, scheme=scheme)
    page = visitor.go("/ui/ingest")
    page.get_by_label("Ontology").fill("notes")
    page.locator("input[type=file]").set_input_files(
        {"name": "lakes.md", "mimeType": "text/markdown", "buffer": b"Glaciers feed lakes."}
    )
    page.get_by_role("button", name="Read them").click()
    expect(page.get_by_label("Estimate")).to_be_visible()
    assert visitor.serious() == []
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_way_in_can_be_used_by_everybody(visit: Visit, scheme: Scheme) -> None:
    visitor = visit(None, size=PHONE, scheme=scheme)
    page = visitor.go("/ui/sign-in")
    page.get_by_text("With a token instead").click()
    assert visitor.serious() == []
    visitor.expected.add(404)
    visitor.go("/ui/nowhere")
    assert visitor.serious() == []


def test_keys_alone_lead_through_a_page(visit: Visit) -> None:
    page = visit().go("/ui/jobs")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the page")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_label("State")).to_be_focused()


def test_a_poll_leaves_the_focus_where_it_was(visit: Visit, town: Town) -> None:
    town.enqueue("costly", {"pages": 1})
    page = visit().go("/ui/jobs?state=awaiting_approval")
    button = page.get_by_role("button", name="Approve job").first
    button.focus()
    page.locator("#live").evaluate("live => { live.dataset.before = 'yes' }")
    expect(page.locator("#live[data-before]")).to_have_count(0)
    expect(button).to_be_focused()
