"""The API's event loop is never kept: no blocking call runs on it, and no callback computes for long.

Two detectors, since neither sees everything: blockbuster finds calls that wait in the kernel, and the CPU time of each
callback finds what computes. Wall time would find other tests on the same cores. Each is shown a planted fault.
"""

import asyncio
import gc
import re
import time
import traceback
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import blockbuster.blockbuster
import httpx2
import psycopg
import pytest
from anyio._backends._asyncio import AsyncIOBackend
from blockbuster import BlockingError, blockbuster_ctx
from fastapi.routing import APIRoute
from starlette.types import ASGIApp

from kappa.app.api import application
from kappa.app.api.ingest_schemas import UPLOADS
from kappa.app.api.middleware import RequestId
from kappa.app.web import site as web
from tests.app import worlds
from tests.app.conftest import Site
from tests.app.test_web import visitor

LONGEST = 0.1
"""Seconds of CPU in one callback."""
AT_ONCE = 40
PASSWORD = "a password for nobody else"
MAP = Path(__file__).parents[2] / "docs" / "threading.md"
ASKED: ContextVar[tuple[str, str]] = ContextVar("asked")
"""The route that this task asks, also where the application does something for it."""


@dataclass
class Watch:
    """What was found on the loop."""

    blocked: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)
    callbacks: int = 0
    in_threads: set[tuple[str, str]] = field(default_factory=set)
    """Routes that gave something to a thread."""

    @property
    def faults(self) -> list[str]:
        return self.blocked + self.slow


@asynccontextmanager
async def watched(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Watch]:
    """Look at everything that the loop of this test does."""
    watch = Watch()
    run = asyncio.events.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        begun = time.thread_time()
        run(handle)
        took = time.thread_time() - begun
        watch.callbacks += 1
        if took > LONGEST:
            watch.slow.append(f"{took:.3f} s of CPU in {handle!r}")

    def in_thread(of: Any, name: str) -> Any:
        """As it is, and noted for the route that is asked."""
        inner = getattr(of, name)

        def noted(*args: Any, **options: Any) -> Any:
            if (asked := ASKED.get(None)) is not None:
                watch.in_threads.add(asked)
            return inner(*args, **options)

        return staticmethod(noted) if of is AsyncIOBackend else noted

    class Noted(BlockingError):
        """Also found when somebody swallows it."""

        def __init__(self, func: str) -> None:
            super().__init__(func)
            watch.blocked.append(f"{self}\n{''.join(traceback.format_stack(limit=12))}")

    # As a server does at its start: else a look for garbage among all that tests brought would be the slowest callback.
    gc.collect()
    gc.freeze()
    with monkeypatch.context() as patch, blockbuster_ctx() as buster:
        patch.setattr(asyncio.events.Handle, "_run", timed)
        patch.setattr(blockbuster.blockbuster, "BlockingError", Noted)
        patch.setattr(ThreadPoolExecutor, "submit", in_thread(ThreadPoolExecutor, "submit"))
        patch.setattr(
            AsyncIOBackend, "run_sync_in_worker_thread", in_thread(AsyncIOBackend, "run_sync_in_worker_thread")
        )
        for function in ("os.stat", "io.BufferedReader.read", "io.TextIOWrapper.read"):
            # FastAPI notes each route's source file and line for its error messages, once a route.
            buster.functions[function].can_block_in("fastapi/routing.py", "_extract_endpoint_context")
        await asyncio.sleep(0)  # what runs from here on is a callback that is timed
        yield watch
        await asyncio.sleep(0)
    gc.unfreeze()


class Everything:
    """Every route, asked rightly."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client
        self.asked: set[tuple[str, str]] = set()

    def note(self, method: str, path: str) -> None:
        self.asked.add((method, path))
        ASKED.set((method, path))

    async def ask(self, method: str, path: str, status: int, body: Any = None, **values: object) -> httpx2.Response:
        self.note(method, path)
        options = {} if body is None else {"json": body}
        answer = await self.client.request(
            method, path.replace("{path:path}", "a/b").replace(":path}", "}").format(**values), **options
        )
        assert answer.status_code == status, (method, path, answer.text)
        return answer

    async def job(self, **more: Any) -> int:
        made = await self.ask("POST", "/jobs", 201, {"kind": "self_test", "payload": {"steps": 2}, **more})
        return made.json()["id"]

    async def read(self) -> None:
        job = await self.job()
        for path in (
            "/healthz",
            "/readyz",
            "/metrics",
            "/openapi.json",
            "/jobs",
            "/me",
            "/permissions",
            "/tokens",
            "/users",
        ):
            await self.ask("GET", path, 200)
        for path in ("/roles", "/audit", "/admin/workers/status", "/admin/workers/lanes", "/admin/fleet/workers"):
            await self.ask("GET", path, 200)
        await self.ask("GET", "/jobs/{job_id}", 200, job_id=job)

    async def change(self, number: int) -> None:
        job, other = await self.job(), await self.job(delay=1000)
        await self.ask("PATCH", "/jobs/{job_id}/priority", 200, {"priority": 5}, job_id=job)
        await self.ask("PATCH", "/admin/workers/jobs/{job_id}/priority", 200, {"priority": 6}, job_id=job)
        await self.ask("POST", "/jobs/{job_id}/approve", 409, job_id=job)
        await self.ask("POST", "/jobs/{job_id}/reject", 409, job_id=job)
        following = asyncio.create_task(self.ask("GET", "/jobs/{job_id}/events", 200, job_id=job))
        await self.ask("POST", "/jobs/{job_id}/cancel", 200, {"reason": "enough"}, job_id=job)
        assert '"state":"cancelled"' in (await following).text
        await self.ask("POST", "/admin/workers/jobs/{job_id}/cancel", 200, job_id=other)
        await self.ask("POST", "/jobs/{job_id}/retry", 201, job_id=job)
        await self.ask("PATCH", "/admin/workers/lanes/{name}", 200, {"max_slots": 1 + number % 16}, name="checks")

    async def schedules(self, number: int) -> None:
        name = f"schedule-{number}"
        made = {"name": name, "cron": "0 3 * * *", "kind": "self_test", "payload": {"steps": 1}}
        await self.ask("POST", "/schedules", 201, made)
        await self.ask("GET", "/schedules", 200)
        await self.ask("GET", "/schedules/{name}", 200, name=name)
        await self.ask("PATCH", "/schedules/{name}", 200, {"cron": "0 4 * * *"}, name=name)
        for verb, status in (("pause", 200), ("resume", 200), ("run", 201)):
            await self.ask("POST", f"/schedules/{{name}}/{verb}", status, name=name)
        await self.ask("DELETE", "/schedules/{name}", 204, name=name)

    async def people(self, number: int) -> None:
        name, role = f"user-{number}", f"role-{number}"
        await self.ask("PUT", "/roles/{name}", 200, {"permissions": ["jobs:view", "account:use"]}, name=role)
        await self.ask("POST", "/users", 201, {"name": name, "password": PASSWORD, "roles": [role]})
        await self.ask("GET", "/users/{name}", 200, name=name)
        token = await self.ask("POST", "/users/{name}/tokens", 201, {"name": "one"}, name=name)
        await self.ask("GET", "/users/{name}/tokens", 200, name=name)
        await self.ask("DELETE", "/tokens/{token_id}", 204, token_id=token.json()["id"])
        await self.ask("POST", "/tokens", 201, {"name": "mine"})
        await self.ask("PUT", "/me/password", 204, {"password": PASSWORD})
        await self.ask("POST", "/sessions", 401, {"name": name, "password": "not this one"})
        await self.ask("POST", "/sessions", 201, {"name": name, "password": PASSWORD})
        await self.ask("DELETE", "/sessions/current", 204)
        self.client.cookies.clear()
        await self.ask("PATCH", "/users/{name}", 200, {"password": PASSWORD[::-1], "roles": []}, name=name)
        await self.ask("DELETE", "/users/{name}", 204, name=name)
        await self.ask("DELETE", "/roles/{name}", 204, name=role)

    async def tools(self, number: int) -> None:
        name = f"tool-{number}"
        await self.ask("POST", "/tools", 201, {"name": name, "version": "1", "argv": ["true"]})
        await self.ask("GET", "/tools", 200)
        await self.ask("GET", "/tools/{name}", 200, name=name)
        run = (await self.ask("POST", "/tools/{name}/runs", 201, {"files": {"a": "YQ=="}}, name=name)).json()["id"]
        await self.ask("GET", "/tool-runs", 200)
        for path in ("/tool-runs/{run_id}", "/tool-runs/{run_id}/logs", "/tool-runs/{run_id}/artifacts"):
            await self.ask("GET", path, 200, run_id=run)
        await self.ask("GET", "/tool-runs/{run_id}/artifacts/{path:path}", 404, run_id=run)
        await self.ask("POST", "/tool-runs/{run_id}/cancel", 200, run_id=run)
        await self.ask("PATCH", "/tools/{name}", 204, {"enabled": False}, name=name)

    async def graph(self) -> None:
        """What is written, and every question: the second time from memory."""
        ids, _ = await worlds.populate(self.client)
        self.asked |= {("POST", "/graph/concepts"), ("POST", "/graph/relations")}
        for path in ("/graph/status", "/graph/ontologies", "/graph/relation-types", "/admin/graph/settings"):
            await self.ask("GET", path, 200)
        await self.ask("PATCH", "/admin/graph/settings", 200, {"workers": 5})
        await self.ask("GET", "/graph/concepts/{concept:path}", 200, concept=ids["Otter"])
        for question, body in worlds.QUESTIONS.items():
            await self.ask("POST", f"/query/{question}", 200, body)

    async def curation(self, number: int) -> None:
        """Ontologies, the vocabulary, what is kept and what is proposed; the whole graph out, and something in."""
        name = f"parts {number}"
        concepts = [{"label": "Lock"}, {"label": "Weir"}]
        await self.ask("POST", "/graph/concepts", 200, {"ontology": name, "concepts": concepts})
        types = (f"HOLDS_{number}", f"KEEPS_{number}")
        links = [{"from": "Lock", "to": "Weir", "type": one} for one in types]
        await self.ask("POST", "/graph/relations", 200, {"ontology": name, "relations": links})
        for path in (
            "/artifacts",
            "/graph/masses",
            "/graph/proposals",
            "/graph/vocabulary",
            "/graph/vocabulary/merges",
        ):
            await self.ask("GET", path, 200)
        merge = await self.ask("POST", "/graph/vocabulary/merges", 201, {"merged": types[0], "survivor": types[1]})
        await self.ask("POST", "/graph/vocabulary/merges/{merge_id}/undo", 200, merge_id=merge.json()["id"])
        await self.ask("GET", "/graph/ontologies/{name:path}", 200, name=name)
        await self.ask("PATCH", "/graph/ontologies/{name:path}", 200, {"name": f"{name} anew"}, name=name)
        await self.ask("DELETE", "/graph/ontologies/{name:path}", 204, name=f"{name} anew")
        for path in ("/artifacts/{artifact_id}", "/artifacts/{artifact_id}/content", "/artifacts/{artifact_id}/data"):
            await self.ask("GET", path, 404, artifact_id=UUID(int=0))
        await self.ask("GET", "/graph/proposals/{proposal_id}", 404, proposal_id=4711)
        for act in ("approve", "reject", "execute", "undo"):
            await self.ask("POST", f"/graph/proposals/{{proposal_id}}/{act}", 404, proposal_id=4711)
        await self.ask("POST", "/graph/annealing", 201)
        kept = await self.ask("POST", "/backup", 200)
        self.note("POST", "/restore")
        sent = await self.client.post("/restore", params={"mode": "merge"}, content=_pieces(kept.content))
        assert sent.status_code == 201, sent.text

    async def documents(self, number: int) -> None:
        """One in a stream, that is more than a piece and takes a while to read, and one in a request."""
        text = f"Otter {number} eats fish.\n\n".encode() * 20_000
        self.note("POST", UPLOADS)
        sent = await self.client.post(UPLOADS, params={"name": "otters.txt"}, content=_pieces(text))
        assert sent.status_code == 201, sent.text
        await self.ask("POST", "/ingest", 201, {"ontology": f"place {number}", "uploads": [sent.json()["key"]]})
        await self.ask("POST", "/ingest", 201, {"ontology": f"place {number}", "text": "Whales eat krill."})


async def _pieces(content: bytes) -> AsyncGenerator[bytes]:
    for start in range(0, len(content), 1 << 16):
        yield content[start : start + (1 << 16)]


def _routes() -> set[tuple[str, str]]:
    routes = [route for group in application.GROUPS for route in group.router.routes]
    return {(method, route.path) for route in routes if isinstance(route, APIRoute) for method in route.methods}


async def test_no_route_keeps_the_loop(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = Everything(await site.client("platform_admin"))
    async with watched(monkeypatch) as watch:
        await everything.read()
        await everything.change(0)
        await everything.schedules(0)
        await everything.people(0)
        await everything.tools(0)
        await everything.graph()
        await everything.curation(0)
        await everything.documents(0)
        # And with much to do: more than there are connections, and more passwords than are hashed at once.
        await asyncio.gather(*(everything.read() for _ in range(AT_ONCE)))
        await asyncio.gather(*(everything.change(number) for number in range(1, 9)))
        await asyncio.gather(*(everything.schedules(number) for number in range(1, 5)))
        await asyncio.gather(*(everything.people(number) for number in range(1, 5)))
        await asyncio.gather(*(everything.graph() for _ in range(AT_ONCE)))
        await asyncio.gather(*(everything.curation(number) for number in range(1, 5)))
        await asyncio.gather(*(everything.documents(number) for number in range(1, 9)))
    assert not watch.faults, "\n".join(watch.faults)
    assert watch.callbacks > 1000
    assert everything.asked == _routes(), everything.asked ^ _routes()
    # Nobody ran a tool here, so that there need be no artifact to look for.
    assert _groups(watch.in_threads) | {"app.api.tools"} == _marked("[THREAD]", _groups(_routes()))


def _marked(mark: str, groups: set[str]) -> set[str]:
    """Those of these groups that the map says this of."""
    marks = dict(re.findall(r"^\| `([\w.]+)` \| ([^|]*) \|", MAP.read_text(), re.MULTILINE))
    return {group for group in groups if mark in marks[group]}


def _groups(asked: set[tuple[str, str]]) -> set[str]:
    """The groups that these routes or pages are of."""
    routes = [route for group in application.GROUPS for route in group.router.routes if isinstance(route, APIRoute)]
    known = {(method, route.path): route.endpoint for route in routes for method in route.methods}
    known |= {(page.method, f"/ui{page.path}"): page.handler or page.open for page in web.pages()}
    return {known[one].__module__.removeprefix("kappa.") for one in asked}


async def test_no_page_keeps_the_loop(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every page that is looked at; what their forms do is done by the use cases of the routes."""
    admin = await site.client("platform_admin")
    ids, epoch = await worlds.populate(admin)
    await worlds.in_memory(site, epoch)
    sent = {"ontology": "notes", "text": "Otters eat fish.", "name": "notes.md"}
    job = (await admin.post("/ingest", json=sent)).raise_for_status().json()["job"]
    (await admin.post("/tools", json={"name": "quick", "version": "1", "argv": ["true"]})).raise_for_status()
    run = (await admin.post("/tools/quick/runs", json={})).raise_for_status().json()["id"]
    browser = await visitor(site, "platform_admin", "ada")
    web.compile_templates()  # as a server does at its start
    values = {"job_id:int": job, "run_id:int": run, "concept": ids["Otter"], "document": UUID(int=0)}
    named = {"/lanes/{name}": "system", "/tools/{name}": "quick", "/people/{name}": "ada"}
    named["/schedules/{name}"] = (await admin.get("/schedules")).json()["items"][0]["name"]
    words = {
        "/graph": {"q": "otter"},
        "/graph/suggest": {"from": "ott"},
        "/graph/around.json": {"seed": ids["Otter"]},
        "/graph/path": {"from": ids["Otter"], "to": ids["Whale"]},
        "/graph/path.json": {"from": ids["Otter"], "to": ids["Whale"]},
        "/graph/polarity": {"positive": ids["River"], "negative": ids["Sea"]},
    }

    async def look(path: str) -> None:
        ASKED.set(("GET", f"/ui{path}"))
        filled = path.replace("{name}", named.get(path, ""))
        for name, value in values.items():
            filled = filled.replace(f"{{{name}}}", str(value))
        answer = await browser.client.get(f"/ui{filled}", params=words.get(path, {}))
        assert answer.status_code == (404 if "{document}" in path else 200), (path, answer.status_code, answer.text)

    paths = [page.path for page in web.pages() if page.method == "GET"]
    async with watched(monkeypatch) as watch:
        for path in paths:
            await look(path)
        await asyncio.gather(*(look(path) for path in paths for _ in range(4)))
    assert not watch.faults, "\n".join(watch.faults)
    seen, there = _groups(watch.in_threads), _groups({("GET", f"/ui{path}") for path in paths})
    # Passwords are what forms send.
    assert seen == _marked("[THREAD]", there) - {"app.web.sign_in", "app.web.people"}


async def test_hundreds_of_schedules_that_are_rarely_due_keep_nobody(
    site: Site, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next times of one take milliseconds to find."""
    connection.execute(
        "INSERT INTO kappa.schedules (name, cron, kind, payload, next_at)"
        " SELECT format('rare-%s', n), '0 0 29 2 */7', 'self_test', '{}', now() + interval '1 year'"
        " FROM generate_series(100, 499) n"
    )
    admin = await site.client("platform_admin")
    browser = await visitor(site, "platform_admin", "ada")
    web.compile_templates()
    async with watched(monkeypatch) as watch:
        for path in ("/schedules", "/schedules?limit=500", "/schedules/rare-100"):
            (await admin.get(path)).raise_for_status()
        for path in ("/ui/schedules", "/ui/schedules/rare-100"):
            assert (await browser.get(path)).status_code == 200
    assert not watch.faults, "\n".join(watch.faults)


async def test_a_route_that_takes_a_thread_is_noted(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = Everything(await site.client("platform_admin"))
    async with watched(monkeypatch) as watch:
        await everything.ask("GET", "/healthz", 200)
        await everything.ask("GET", "/metrics", 200)
        await everything.graph()
    assert ("GET", "/healthz") not in watch.in_threads
    assert {("GET", "/metrics"), ("POST", "/query/search"), ("PATCH", "/admin/graph/settings")} <= watch.in_threads


async def _asked(path: str, route: Any, monkeypatch: pytest.MonkeyPatch) -> Watch:
    api = application.api()
    api.add_api_route(path, route)
    app: ASGIApp = RequestId(api)
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    client = httpx2.AsyncClient(transport=transport, base_url="http://kappa.test")
    async with client:
        await client.get("/nothing")  # with the first request the application puts its routes together
        async with watched(monkeypatch) as watch:
            await client.get(path)
    return watch


async def test_a_route_that_sleeps_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sleeps() -> None:
        time.sleep(0.01)  # noqa: ASYNC251

    watch = await _asked("/sleeps", sleeps, monkeypatch)
    assert "time.sleep" in watch.blocked[0]


async def test_a_route_that_sleeps_is_found_although_it_swallows_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sleeps() -> None:
        try:
            time.sleep(0.01)  # noqa: ASYNC251
        except Exception:
            return

    assert (await _asked("/sleeps", sleeps, monkeypatch)).blocked


async def test_a_route_that_computes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def computes() -> None:
        begun = time.thread_time()
        while time.thread_time() < begun + 2 * LONGEST:
            pass

    watch = await _asked("/computes", computes, monkeypatch)
    assert len(watch.slow) == 1
    assert not watch.blocked


async def test_a_blocking_call_in_a_thread_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    def sleeps() -> None:
        time.sleep(0.01)

    watch = await _asked("/sleeps", sleeps, monkeypatch)
    assert not watch.faults, "\n".join(watch.faults)
