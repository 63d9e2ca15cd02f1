"""What computes longest on the API's loop, and with how much: `python -m benchmarks.loop [--quick] [--json FILE]`.

A `kg up` in this process, on the loop of the standard library, whose callbacks are timed: seconds of CPU of its own
thread, so that neither other threads nor other programs count. It is asked over HTTP, one request after another, with
as much as a request or an answer may have. A callback is what all other requests have to wait for.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psycopg
from pydantic import SecretStr

from benchmarks import pages
from benchmarks.databases import create_database
from benchmarks.report import Report
from kappa.app import serve, wiring
from kappa.app.settings import LogLevel, Settings
from kappa.pg import Database
from kappa.pg.embedded import EmbeddedServer

BAR = 100.0
"""Milliseconds, as in `tests/app/test_event_loop.py`."""
LARGE = "x" * 900_000
"""Almost as much as a body may have."""
PATIENCE = 60.0
SCHEDULES = """INSERT INTO kappa.schedules (name, cron, kind, payload, next_at)
               SELECT 'rare-' || n, '0 0 29 2 */7', 'self_test', '{}', now() + interval '1 year'
                 FROM generate_series(1, 500) AS n"""
"""Due on leap days that are Sundays: what takes longest to find."""
AGENT = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}


class Callbacks:
    """The longest one since the last look."""

    def __init__(self) -> None:
        self.longest = 0.0
        run = asyncio.events.Handle._run
        server = threading.get_ident()

        def timed(handle: asyncio.Handle) -> None:
            if threading.get_ident() != server:
                return run(handle)
            begun = time.thread_time()
            try:
                return run(handle)
            finally:
                self.longest = max(self.longest, time.thread_time() - begun)

        asyncio.events.Handle._run = timed


@dataclass(frozen=True, slots=True)
class Spot:
    """A request of the largest sort."""

    method: str
    path: str
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict[str, str])


def spots(client: httpx2.Client, where: dict[str, str]) -> dict[str, Spot]:
    """By what each is called in the table."""
    many = [{"label": f"a rather long label of concept {n}", "description": "d" * 600} for n in range(1000)]
    client.post("/graph/concepts", json={"ontology": "many", "concepts": many}).raise_for_status()
    links = [
        {"from": one["label"], "to": many[0]["label"], "type": "HAS", "confidence": 0.5} for one in many[1:]
    ]  # fmt: skip
    tool = {"name": "says", "version": "1", "argv": ["sh", "-c", "yes | head -c 300000; yes | head -c 300000 >&2"]}
    client.post("/tools", json=tool).raise_for_status()
    run = client.post("/tools/says/runs", json={}).raise_for_status().json()["id"]
    while client.get(f"/tool-runs/{run}").json()["status"] in ("queued", "running"):
        time.sleep(0.1)
    job = {"kind": "self_test", "payload": {"steps": 1}}
    hub = where["a concept"].rsplit("/", 1)[-1]
    called = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    named = {"name": "related", "arguments": {"concept": hub, "max_hops": 2, "limit": 200}}
    found = {
        "a request of nothing": Spot("GET", "/healthz"),
        "500 jobs": Spot("GET", "/jobs?limit=500"),
        "500 entries of the audit log": Spot("GET", "/audit?limit=500"),
        "500 users": Spot("GET", "/users"),
        "500 schedules": Spot("GET", "/schedules?limit=500"),
        "a page of schedules": Spot("GET", "/ui/schedules"),
        "a schedule that is rarely due": Spot("GET", "/schedules/rare-1"),
        "a job with a large payload, refused": Spot("POST", "/jobs", {**job, "payload": {"x": LARGE}}),
        "a body of many faults, refused": Spot("POST", "/graph/concepts", {"ontology": "x", "concepts": [0] * 1000}),
        "1,000 concepts written": Spot("POST", "/graph/concepts", {"ontology": "many", "concepts": many}),
        "1,000 relations written": Spot("POST", "/graph/relations", {"ontology": "many", "relations": links}),
        "a document of 900 kB": Spot("POST", "/ingest", {"ontology": "texts", "text": "Otters eat fish. " * 50_000}),
        "logs of a run": Spot("GET", f"/tool-runs/{run}/logs"),
        "input files of a run": Spot("POST", "/tools/says/runs", {"files": {"a": "QUFB" * 200_000}}),
        "relation types": Spot("GET", "/graph/relation-types"),
        "ontologies": Spot("GET", "/graph/ontologies"),
        "vocabulary": Spot("GET", "/graph/vocabulary"),
        "this API, described": Spot("GET", "/openapi.json"),
        "metrics": Spot("GET", "/metrics"),
        "an agent's question, 200 concepts": Spot("POST", "/mcp", {**called, "params": named}, AGENT),
    }  # fmt: skip
    for limit in (100, 3000, 10_000):
        for question, body in {
            "neighbors": {"seeds": [hub], "max_hops": 3}, "related": {"concept": hub, "max_hops": 3},
            "subgraph": {"seeds": [hub], "max_hops": 3}, "search": {"text": "cold"},
        }.items():  # fmt: skip
            found[f"{question}, {limit:,}"] = Spot("POST", f"/query/{question}", {**body, "limit": limit})
    # The jobs that fill the tables have no payload that a page of theirs could show.
    found.update((f"page: {name}", Spot("GET", path)) for name, path in where.items() if name != "a job")
    return found


def measure(report: Report, up: serve.Up, url: str, callbacks: Callbacks, times: int) -> None:
    assert up.token_file is not None
    token = {"Authorization": f"Bearer {up.token_file.read_text().strip()}"}
    transport = httpx2.HTTPTransport(retries=10)  # it is greeted a moment before it listens
    with httpx2.Client(
        base_url=up.url, timeout=PATIENCE, trust_env=False, headers=token, transport=transport
    ) as client:
        signed = client.post("/ui/sign-in", data={"token": token["Authorization"].removeprefix("Bearer ")})
        assert signed.status_code == 303, signed.text
        while client.get("/graph/status").json()["snapshot"]["state"] != "ready":
            time.sleep(0.1)
        for name, spot in spots(client, pages.pages(url)).items():
            sent = None if spot.body is None else json.dumps(spot.body).encode()
            headers = {**({} if sent is None else {"Content-Type": "application/json"}), **spot.headers}
            took: list[float] = []
            for turn in range(times + 1):
                callbacks.longest = 0.0
                # A cookie asks for a CSRF token where something is changed.
                answer = client.request(spot.method, spot.path, content=sent, headers=headers)
                assert answer.status_code < 500, f"{name}: {answer.status_code} {answer.text[:300]}"
                if turn:  # the first one compiles templates and opens connections
                    took.append(1000 * callbacks.longest)
            size = f"{len(sent or b'') / 1000:,.0f} kB in, {len(answer.content) / 1000:,.0f} kB out"
            if spot.headers:
                assert '"isError":true' not in answer.text, answer.text[:300]
            what = f"{name} ({answer.status_code}; {size})"
            report.bar(what, report.figure(f"{what}, ms", statistics.median(took)), BAR, at_most=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="three times each")
    parser.add_argument("--json", type=Path, help="write bars and figures here")
    arguments = parser.parse_args()
    report = Report("the longest callback on the API's loop, medians in milliseconds of CPU")
    serve.loop_factory = lambda: asyncio.new_event_loop
    failed: list[BaseException] = []
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kappa-loop-")))
        # As root, the database runs as somebody else, who has to get there.
        place.chmod(0o755)
        server = EmbeddedServer(place / "database", say=lambda _: None)
        stack.enter_context(server.hold("benchmarks.loop"))
        url = create_database(server, "loop")
        settings = Settings(home=place / "up", database_url=SecretStr(url), port=0, grace=1, log_level=LogLevel.WARNING)
        with closing(wiring.build_engine(settings, Database(url, bounds=settings.bounds))) as engine:
            wiring.install(engine)
        pages.fill(url, pages.SMALL)
        with closing(psycopg.connect(url, autocommit=True)) as connection:
            connection.execute(SCHEDULES)
        callbacks = Callbacks()

        def greet(up: serve.Up) -> None:
            def ask() -> None:
                try:
                    measure(report, up, url, callbacks, 3 if arguments.quick else 10)
                except BaseException as error:
                    failed.append(error)
                finally:
                    up.stop()

            threading.Thread(target=ask, name="client").start()

        serve.up(settings, serve.Options(), lambda _: None, greet, any_port=True)
    if failed:
        raise failed[0]
    report.show()
    if arguments.json:
        report.write(arguments.json)


if __name__ == "__main__":
    sys.exit(main())
