"""Takes the pictures of all pages, or of some: `python tools/screenshots.py [--docs] [PAGE…]`, into build/screenshots.

A server of its own reads the pages that come with Kappa; each page is then seen on a desk and on a phone, by day and by
night, and the four stand on one sheet. With `--docs` the documentation's pictures are made of the same: the desk by
day, and beside it the phone by night.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx2
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from kappa.app import home as app_home  # noqa: E402
from kappa.app.cli.demo import CORPUS, ONTOLOGY  # noqa: E402
from tests.browser.conftest import DESK, FLAGS, PASSWORD, PHONE  # noqa: E402

OUT = ROOT / "build" / "screenshots"
DOCS = ROOT / "docs" / "screenshots"
TALLEST = 2200
"""Pixels of a page that a picture shows."""
LOCAL = {"job-failed", "no-such-page"}
"""What shows where it was taken, or nothing, is for looking at only."""
LOOKS = {
    f"{place}-{scheme}": (size, scheme)
    for place, size in {"desk": DESK, "phone": PHONE}.items()
    for scheme in ("light", "dark")
}


@dataclass
class Server:
    url: str
    client: httpx2.Client

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.client.request(method, path, json=body)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def ended(self, job: int) -> Any:
        while (seen := self.ask("GET", f"/jobs/{job}"))["state"] in ("queued", "running", "scheduled"):
            time.sleep(0.1)
        return seen

    def concept(self, label: str) -> str:
        return self.ask("GET", f"/graph/concepts/{label}")["concept"]["id"]


@contextmanager
def served(home: Path) -> Iterator[Server]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("KAPPA_")}
    env = {**clean, "KAPPA_HOME": str(home), "KAPPA_PORT": "0", "KAPPA_GRACE": "0", "PYTHONPATH": str(ROOT / "src")}
    kg = [sys.executable, "-m", "kappa.app.cli.entry"]
    process = subprocess.Popen([*kg, "up"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not (running := app_home.running(home)):
            assert process.poll() is None, "kg up ended"
            time.sleep(0.1)
        token = app_home.token_file(home).read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        with httpx2.Client(base_url=running[0].url, headers=headers, timeout=60, trust_env=False) as client:
            yield Server(running[0].url, client)
    finally:
        process.terminate()
        process.wait()
        subprocess.run([*kg, "db", "stop", "--force"], env=env, check=False, stdout=subprocess.DEVNULL)


def furnish(server: Server) -> dict[str, str]:
    """Something on every page, and where each is."""
    for _ in range(40):
        server.ask("POST", "/jobs", {"kind": "self_test", "payload": {"steps": 1}})
    uploads = [
        server.client.post("/ingest/uploads", params={"name": path.name}, content=path.read_bytes()).json()["key"]
        for path in sorted(CORPUS.iterdir())
    ]
    read = server.ask("POST", "/ingest", {"ontology": ONTOLOGY, "uploads": uploads, "auto_approve": True})["job"]
    assert server.ended(read)["state"] == "succeeded"
    note = {"ontology": "notes", "text": "Glaciers feed lakes. Warm summers cause floods.", "name": "glaciers.md"}
    unapproved = server.ask("POST", "/ingest", note)["job"]
    fails = {"kind": "self_test", "payload": {"steps": 1, "fail": True}, "max_attempts": 1}
    failed = server.ask("POST", "/jobs", fails)["id"]
    map_job = server.ask("POST", "/jobs", {"kind": "projection", "payload": {"way": "tsne"}})["id"]
    said = '{"contract_version": 1, "status": "succeeded", "outputs": {"words": 3}, "artifacts": [{"path": "a.txt"}]}'
    command = f"echo three words here; printf kept >output/a.txt; echo '{said}' >result.json"
    tool = {"name": "word-count", "version": "1.0", "argv": ["sh", "-c", command], "description": "Counts the words"}
    server.ask("POST", "/tools", tool)
    run = server.ask("POST", "/tools/word-count/runs", {"inputs": {"text": "three words here"}})
    for job in (failed, map_job, run["job_id"]):
        server.ended(job)
    people = {"ada": "platform_admin", "bo": "contributor", "cleo": "read_only"}
    for name, role in people.items():
        server.ask("POST", "/users", {"name": name, "password": PASSWORD, "roles": [role]})
    server.ask("POST", "/users/bo/tokens", {"name": "laptop", "scopes": ["graph:read", "account:use"]})
    server.ask("POST", "/users/ada/tokens", {"name": "scripts", "scopes": ["graph:ingest"]})
    hire(server)
    server.ask("POST", "/graph/concepts", {"ontology": "drafts", "concepts": [{"label": "moka pot"}]})
    server.ended(server.ask("POST", "/graph/annealing")["id"])
    long = {"kind": "self_test", "payload": {"steps": 100, "seconds": 300}}
    running = server.ask("POST", "/jobs", long)["id"]
    while server.ask("GET", f"/jobs/{running}")["progress"] is None:
        time.sleep(0.05)
    sleep = server.concept("deep sleep")
    cited = server.ask("GET", f"/graph/concepts/{sleep}?evidence=1")["evidence"][0]
    return {
        "sign-in": "/ui/sign-in", "jobs": "/ui/jobs", "job": f"/ui/jobs/{read}",
        "job-running": f"/ui/jobs/{running}", "job-failed": f"/ui/jobs/{failed}", "approval": f"/ui/jobs/{unapproved}",
        "lanes": "/ui/lanes", "lane": "/ui/lanes/interactive",
        "graph": f"/ui/graph?ontology={ONTOLOGY}", "search": "/ui/graph?q=sleep",
        "concept": f"/ui/graph/concepts/{sleep}", "path": "/ui/graph/path?from=physical+exercise&to=memory",
        "polarity": "/ui/graph/polarity?positive=deep%20sleep&negative=insomnia",
        "document": f"/ui/graph/documents/{cited['document']}?start={cited['start']}&end={cited['end']}",
        "map": "/ui/graph/map", "vocabulary": "/ui/graph/vocabulary", "ontologies": "/ui/ontologies",
        "ingest": "/ui/ingest", "estimate": "/ui/ingest", "tools": "/ui/tools", "tool": "/ui/tools/word-count",
        "tool-new": "/ui/tools/new", "run": f"/ui/runs/{run['id']}", "fleet": "/ui/fleet", "people": "/ui/people",
        "person": "/ui/people/bo", "roles": "/ui/roles", "audit": "/ui/audit", "account": "/ui/account",
        "no-such-page": "/ui/nowhere", "home": "/ui/",
    }  # fmt: skip


def hire(server: Server) -> None:
    """Remote workers that gave a sign of life."""
    limits = {"name": "laboratory", "kinds": ["self_test"], "machines": 40, "requests_per_minute": 6000}
    headers = {"Authorization": f"Bearer {server.ask('POST', '/users/ada/tokens', limits)['token']}"}
    for number, labels in enumerate((["gpu"], ["gpu", "zone=a"], ["zone=b"]), 1):
        told = {
            "worker": f"lab-{number}", "kinds": ["self_test"], "cores": 8 * number, "memory_mb": 32_000,
            "labels": labels, "slots": 4, "version": version("kappa"),
        }  # fmt: skip
        server.client.post("/fleet/v1/hello", json=told, headers=headers).raise_for_status()


def arrange(page: Page, name: str) -> None:
    """What a page is best seen with."""
    if name == "concept":
        page.locator(".drawing .node").nth(1).wait_for()
        page.locator(".drawing .node", has_text="sleep pressure").first.press("Enter")
        page.locator(".drawing .node", has_text="physical exercise").first.wait_for()
    elif name in ("path", "graph"):
        page.locator(".drawing .node").nth(1).wait_for()
    elif name == "estimate":
        page.get_by_label("Ontology").fill(ONTOLOGY)
        page.locator("input[type=file]").set_input_files(sorted(CORPUS.iterdir()))
        page.get_by_role("button", name="Read them").click()
        page.get_by_label("Estimate").wait_for()
    elif name == "home":
        # Throughput is a difference: it takes three looks, 15 seconds apart.
        page.locator(".spark").wait_for(timeout=60_000)
    page.wait_for_load_state("networkidle")


def take(browser: Browser, server: Server, pages: dict[str, str]) -> None:
    for look, (size, scheme) in LOOKS.items():
        context = browser.new_context(
            viewport=size, color_scheme=scheme, reduced_motion="reduce", has_touch=size is PHONE
        )  # pyright: ignore[reportArgumentType]
        page = context.new_page()
        for name, path in pages.items():
            page.goto(server.url + path)
            arrange(page, name)
            tall = page.evaluate("document.documentElement.scrollHeight")
            clip = {"x": 0, "y": 0, "width": size["width"], "height": min(max(tall, size["height"]), TALLEST)}
            page.screenshot(path=OUT / f"{name}-{look}.png", full_page=True, clip=clip)
            if name == "sign-in":
                page.get_by_label("Name").fill("ada")
                page.get_by_label("Password").fill(PASSWORD)
                page.get_by_role("button", name="Sign in", exact=True).click()
                page.wait_for_url("**/ui/")
        context.close()


def beside(parts: list[Image.Image], height: int) -> Image.Image:
    """Pictures in a row, cut at this height."""
    cut = [part.crop((0, 0, part.width, min(part.height, height))) for part in parts]
    gap = 20
    sheet = Image.new("RGB", (sum(p.width + gap for p in cut) - gap, max(p.height for p in cut)), (128, 128, 128))
    left = 0
    for part in cut:
        sheet.paste(part, (left, 0))
        left += part.width + gap
    return sheet


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kappa-pictures-") as made:
        # As root, the database runs as somebody else, who has to get there.
        Path(made).chmod(0o755)
        with served(Path(made) / "home") as server, sync_playwright() as playwright:
            pages = furnish(server)
            chosen = set(sys.argv[1:]) - {"--docs"}
            assert chosen <= pages.keys(), f"there is no {chosen - pages.keys()}"
            if chosen:
                pages = {name: path for name, path in pages.items() if name in {"sign-in", *chosen}}
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            take(browser, server, pages)
            browser.close()
    for name in pages:
        parts = {look: Image.open(OUT / f"{name}-{look}.png").convert("RGB") for look in LOOKS}
        beside(list(parts.values()), TALLEST).save(OUT / f"sheet-{name}.png")
        if "--docs" in sys.argv and name not in LOCAL:
            both = beside([parts["desk-light"], parts["phone-dark"]], DESK["height"])
            both.resize((both.width * 3 // 4, both.height * 3 // 4)).save(DOCS / f"{name}.webp", quality=70, method=6)


if __name__ == "__main__":
    main()
