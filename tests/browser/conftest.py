"""A real server, and Debian's chromium with somebody in front of it who tells of everything that goes wrong."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, Request, expect, sync_playwright

from tests.app.conftest import Up
from tests.app.person import WITH_GATES
from tests.browser import river
from tests.conftest import Server
from tests.ground import require_program

expect.set_options(timeout=20_000)
PASSWORD = "correct horse battery"
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 900}


@dataclass
class Town:
    """A server with a graph in it and people who may use it."""

    up: Up
    concepts: dict[str, str]
    gates: Path
    people: set[str] = field(default_factory=set[str])
    failed: int = 0
    """A job that did."""

    def hire(self, name: str, role: str) -> None:
        if name not in self.people:
            body = {"name": name, "password": PASSWORD, "roles": [role]}
            self.ask("POST", "/users", body)
            self.people.add(name)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        with self.up.client() as client:
            answer = client.request(method, path, json=body)
            assert answer.is_success, answer.text
            return answer.json() if answer.content else None

    def enqueue(self, kind: str, payload: Any = None) -> int:
        return self.ask("POST", "/jobs", {"kind": kind, "payload": payload})["id"]

    def open_gate(self, name: str, step: int) -> None:
        (self.gates / name / str(step)).touch()

    def gated(self, name: str, steps: int) -> int:
        """A job that goes on when its gates are opened."""
        (self.gates / name).mkdir()
        return self.enqueue("gated", {"gates": str(self.gates / name), "steps": steps})


@pytest.fixture(scope="module")
def town(server: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    url = server.create(template)
    concepts = river.pour(url)
    up = Up(url, tmp_path_factory.mktemp("up") / "home", env=WITH_GATES)
    try:
        yield Town(up, concepts, tmp_path_factory.mktemp("gates"))
    finally:
        up.kill()
        server.drop(url)


# While it is open an event loop runs in this thread; no test of another module may find it there.
@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as running:
        yield running


@pytest.fixture(scope="module")
def chromium(playwright: Playwright) -> Iterator[Browser]:
    program = require_program("chromium")
    running = playwright.chromium.launch(executable_path=program, args=FLAGS)
    yield running
    running.close()


class Visitor:
    """Somebody in front of a browser. At the end nothing may have gone wrong unseen."""

    def __init__(self, url: str, context: BrowserContext) -> None:
        self.url = url
        self.context = context
        self.page: Page = context.new_page()
        self.wrong: list[str] = []
        self.expected: set[int] = set()
        self.page.on("console", lambda said: said.type in ("error", "warning") and self._heard(said.text))
        self.page.on("pageerror", lambda error: self.wrong.append(f"script: {error}"))
        context.on("request", self._asked)

    def _heard(self, text: str) -> None:
        # A page that is refused on purpose says so in the console as well.
        if not any(f"status of {status}" in text for status in self.expected):
            self.wrong.append(f"console: {text}")

    def _asked(self, request: Request) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.url).netloc:
            self.wrong.append(f"a request left the server: {request.url}")

    def go(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page

    def sign_in(self, name: str) -> Page:
        page = self.go("/ui/sign-in")
        page.get_by_label("Name").fill(name)
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in", exact=True).click()
        page.wait_for_url("**/ui/")
        return page

    def serious(self) -> list[str]:
        """What axe-core finds on the page that keeps people from using it."""
        # By the debugger, not by a tag: the pages' policy lets no script in.
        self.page.evaluate(AXE)
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{one['id']} ({one['impact']}): {node['html'][:200]} {node['failureSummary'][:300]}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]


def drop(page: Page, files: Mapping[str, str]) -> None:
    """Files, by name and text, onto the page's field for them."""
    dropped = page.evaluate_handle(
        """files => {
             const all = new DataTransfer();
             for (const [name, text] of files) all.items.add(new File([text], name));
             return all;
           }""",
        list(files.items()),
    )
    page.dispatch_event(".drop", "drop", {"dataTransfer": dropped})


Visit = Callable[..., Visitor]


@pytest.fixture
def visit(town: Town, chromium: Browser) -> Iterator[Visit]:
    """Somebody with a role, signed in, on a desk or a phone, by day or by night."""
    opened: list[Visitor] = []

    def begin(
        role: str | None = "platform_admin", *, size: dict[str, int] = DESK, scheme: Literal["light", "dark"] = "light",
        **options: Any,
    ) -> Visitor:  # fmt: skip
        context = chromium.new_context(
            viewport=size, color_scheme=scheme, reduced_motion="reduce", has_touch=size is PHONE, **options
        )  # pyright: ignore[reportArgumentType]
        context.set_default_timeout(20_000)
        made = Visitor(town.up.url, context)
        opened.append(made)
        if role is not None:
            name = f"a-{role.replace('_', '-')}"
            town.hire(name, role)
            made.sign_in(name)
        return made

    yield begin
    wrong = [text for one in opened for text in one.wrong]
    for one in opened:
        one.context.close()
    assert wrong == []
