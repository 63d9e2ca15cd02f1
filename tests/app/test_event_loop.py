"""The API's event loop is never kept: no blocking call runs on it, and no callback computes for long.

Two detectors, since neither sees everything: blockbuster finds calls that wait in the kernel, and the CPU time of each
callback finds what computes. Wall time would find other tests on the same cores. Each is shown a planted fault.
"""

import asyncio
import gc
import time
import traceback
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import blockbuster.blockbuster
import httpx2
import pytest
from blockbuster import BlockingError, blockbuster_ctx
from fastapi.routing import APIRoute
from starlette.types import ASGIApp

from kappa.app.api import application
from kappa.app.api.ingest_schemas import UPLOADS
from kappa.app.api.middleware import RequestId
from tests.app import worlds
from tests.app.conftest import Site

LONGEST = 0.1
"""Seconds of CPU in one callback."""
AT_ONCE = 40
PASSWORD = "a password for nobody else"


@dataclass
class Watch:
    """What was found on the loop."""

    blocked: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)
    callbacks: int = 0

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

    async def ask(self, method: str, path: str, status: int, body: Any = None, **values: object) -> httpx2.Response:
        self.asked.add((method, path))
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
        sent = await self.client.post("/restore", params={"mode": "merge"}, content=_pieces(kept.content))
        assert sent.status_code == 201, sent.text
        self.asked.add(("POST", "/restore"))

    async def documents(self, number: int) -> None:
        """One in a stream, that is more than a piece and takes a while to read, and one in a request."""
        text = f"Otter {number} eats fish.\n\n".encode() * 20_000
        sent = await self.client.post(UPLOADS, params={"name": "otters.txt"}, content=_pieces(text))
        assert sent.status_code == 201, sent.text
        self.asked.add(("POST", UPLOADS))
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
        await everything.people(0)
        await everything.tools(0)
        await everything.graph()
        await everything.curation(0)
        await everything.documents(0)
        # And with much to do: more than there are connections, and more passwords than are hashed at once.
        await asyncio.gather(*(everything.read() for _ in range(AT_ONCE)))
        await asyncio.gather(*(everything.change(number) for number in range(1, 9)))
        await asyncio.gather(*(everything.people(number) for number in range(1, 5)))
        await asyncio.gather(*(everything.graph() for _ in range(AT_ONCE)))
        await asyncio.gather(*(everything.curation(number) for number in range(1, 5)))
        await asyncio.gather(*(everything.documents(number) for number in range(1, 9)))
    assert not watch.faults, "\n".join(watch.faults)
    assert watch.callbacks > 1000
    assert everything.asked == _routes(), everything.asked ^ _routes()


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
