"""The health check beside large answers: `python -m benchmarks.answers [--quick] [--json FILE]`.

A hundred questions at once, each for 3,000 concepts out of memory, from a process of their own. Meanwhile `/healthz` is
asked again and again, and so is a bare application on the same cores: what the machine lacks shows in both.
"""

import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import psycopg

from benchmarks.api import HELLO, Connection, Up, p, server_url, started
from benchmarks.databases import create_database
from benchmarks.graph_parts import data
from benchmarks.report import Report, console
from kappa.app import home
from kappa.engine.loops import loop_factory
from kappa.pg.embedded import EmbeddedServer

QUESTIONS = 100
LIMIT = 3_000
PAUSE = 0.002


async def _ask(port: int, token: str, path: str, bodies: list[dict[str, object]]) -> list[int]:
    """All at once, each on a connection of its own; the bytes of each answer."""

    async def one(body: dict[str, object]) -> int:
        with closing(Connection(port, token)) as connection:
            status, answer = await connection.ask("POST", path, body)
        assert status == 200, answer[:500]
        # 3,000 rows are parsed afterwards, when nobody is measured any more.
        return len(answer)

    return await asyncio.gather(*map(one, bodies))


def _crowd(port: int, token: str, path: str, bodies: list[dict[str, object]]) -> tuple[float, int]:
    """In a process of its own: seconds until all are answered, and bytes of all answers."""
    began = time.perf_counter()
    sizes = asyncio.run(_ask(port, token, path, bodies))
    return time.perf_counter() - began, sum(sizes)


async def _probe(connection: Connection, done: asyncio.Event) -> list[float]:
    """Milliseconds of each health check, one after the other until it is over."""
    took: list[float] = []
    while not done.is_set():
        began = time.perf_counter()
        status, _ = await connection.ask("GET", "/healthz")
        took.append(1000 * (time.perf_counter() - began))
        assert status == 200
        await asyncio.sleep(PAUSE)
    return took


class Bench:
    """One run."""

    def __init__(self, up: Up, hello: int, rounds: int, seeds: list[str]) -> None:
        self.up = up
        self.hello = hello
        self.rounds = rounds
        self.report = Report("bars of large answers")
        self._seeds = itertools.cycle(seeds)

    async def run(self) -> None:
        await self._warm()
        for name in ("neighbors", "related", "subgraph"):
            console.print(f"[bold]{QUESTIONS} times {name}, limit {LIMIT}, at once[/]")
            rounds = [await self._round(name) for _ in range(self.rounds)]
            for what in ("healthz, longest", "healthz p99", "bare app, longest", "until all are answered"):
                values = [one[what] for one in rounds]
                self.report.figure(f"{name}: {what}, ms, median of {self.rounds}", statistics.median(values))
            longest = max(one["healthz, longest"] for one in rounds)
            self.report.figure(f"{name}: healthz, longest of all rounds, ms", longest)
            self.report.figure(f"{name}: megabytes answered", rounds[0]["megabytes"])
            median = statistics.median(one["healthz, longest"] for one in rounds)
            self.report.bar(f"{name}: longest health check, ms", median, 250, at_most=True)
        self.report.show()

    async def _warm(self) -> None:
        """Until the graph is in memory."""
        with closing(self.up.connection()) as connection:
            for _ in range(600):
                body = {"seeds": [next(self._seeds)], "max_hops": 2, "limit": LIMIT}
                status, answer = await connection.ask("POST", "/query/neighbors", body)
                assert status == 200, answer[:500]
                if (found := json.loads(answer))["served_by"] == "snapshot":
                    assert len(found["items"]) == LIMIT, len(found["items"])
                    return
                await asyncio.sleep(0.1)
        raise RuntimeError("the graph never came into memory")

    async def _round(self, name: str) -> dict[str, float]:
        bodies: list[dict[str, object]] = []
        for seed in itertools.islice(self._seeds, QUESTIONS):
            asked = {"concept": seed} if name == "related" else {"seeds": [seed]}
            bodies.append({**asked, "max_hops": 2, "limit": LIMIT, "deadline": 100})
        done = asyncio.Event()
        with closing(self.up.connection()) as ours, closing(Connection(self.hello)) as bare:
            probes = [asyncio.create_task(_probe(one, done)) for one in (ours, bare)]
            with multiprocessing.get_context("spawn").Pool(1) as process:
                process.apply(int)  # it has started
                asked = process.apply_async(_crowd, (self.up.port, self.up.token, f"/query/{name}", bodies))
                seconds, size = await asyncio.to_thread(asked.get, 300)
            done.set()
            healthz, hello = await asyncio.gather(*probes)
        return {
            "healthz, longest": max(healthz), "healthz p99": p(healthz, 0.99), "bare app, longest": max(hello),
            "until all are answered": 1000 * seconds, "megabytes": size / 1e6,
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer rounds: about a minute")
    parser.add_argument("--json", type=Path, help="write bars and figures to this file")
    arguments = parser.parse_args()
    world = data.make(20_000, 200_000)
    with tempfile.TemporaryDirectory(prefix="kappa-bench-") as place:
        server = EmbeddedServer(Path(place), settings={"max_connections": "200"}, say=console.print)
        with server.hold("the benchmark"):
            url = create_database(server, "bench_answers")
            clean = {name: value for name, value in os.environ.items() if not name.startswith("KAPPA_")}
            at = Path(place) / "up"
            env = {
                **clean, "KAPPA_HOME": str(at), "KAPPA_DATABASE_URL": url, "KAPPA_PORT": "0", "KAPPA_GRACE": "1",
            }  # fmt: skip
            quiet = subprocess.DEVNULL
            _install(env)
            data.fill(url, world)
            with closing(psycopg.connect(url)) as connection:
                keys = connection.execute(
                    "SELECT key FROM kappa_graph.concepts WHERE id = ANY (%s)", [world.seeds(40)]
                ).fetchall()
            up = started([sys.executable, "-m", "kappa.app.cli.entry", "up"], env, stdout=quiet, stderr=quiet)
            bare = started([sys.executable, "-c", HELLO], clean, stdout=subprocess.PIPE, text=True)
            with up as kappa, bare as hello:
                port = int(hello.stdout.readline())
                address = server_url(kappa, at)
                token = home.token_file(at).read_text().strip()
                rounds = 3 if arguments.quick else 7
                bench = Bench(Up(kappa, address, token), port, rounds, [str(key) for (key,) in keys])
                with asyncio.Runner(loop_factory=loop_factory()) as runner:
                    runner.run(bench.run())
    if arguments.json:
        bench.report.write(arguments.json)


def _install(env: dict[str, str]) -> None:
    subprocess.run(
        [sys.executable, "-m", "kappa.app.cli.entry", "db", "migrate"], env=env, check=True, stdout=subprocess.DEVNULL
    )


if __name__ == "__main__":
    main()
