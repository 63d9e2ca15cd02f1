"""A frontier in SQL by one worker and by several: beside the server, and from some milliseconds away.

The way between is a proxy in a process of its own that hands on every byte so much later, in both directions.
"""

import asyncio
import multiprocessing
import statistics
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from itertools import cycle, islice
from multiprocessing.connection import Connection

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from benchmarks.graph_parts.data import World
from benchmarks.report import Report, console
from kappa.graph import Budget, Graph, GraphConfig

WORKERS = (1, 4, 8)
DELAYS = (0.0, 1.0, 5.0, 20.0)
"""Milliseconds one way."""
CROWD = 8
EACH = 3
"""Questions that each of the crowd asks."""


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    loop = asyncio.get_running_loop()
    try:
        while data := await reader.read(1 << 16):
            loop.call_later(delay, writer.write, data)
    except ConnectionError:
        pass
    loop.call_later(delay, writer.close)


def _proxy(host: str, port: int, delay: float, tell: Connection) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, port)
        await asyncio.gather(_pump(reader, back, delay), _pump(there, writer, delay))

    async def serve() -> None:
        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        tell.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


@contextmanager
def away(url: str, milliseconds: float) -> Generator[str]:
    """The same database, so far away."""
    known = conninfo_to_dict(url)
    told, tell = multiprocessing.Pipe(duplex=False)
    arguments = (str(known.get("host") or "127.0.0.1"), int(known.get("port") or 5432), milliseconds / 1000, tell)
    process = multiprocessing.get_context("spawn").Process(target=_proxy, args=arguments, daemon=True)
    process.start()
    try:
        yield make_conninfo(url, host="127.0.0.1", port=told.recv())
    finally:
        process.terminate()
        process.join()


def run(report: Report, url: str, world: World, rounds: int, chunk: int) -> None:
    """`url` leads to the server by TCP."""
    seeds = world.seeds(rounds)
    for delay in DELAYS:
        console.print(f"[bold]SQL in parallel, {delay:g} ms away, chunks of {chunk:,}[/]")
        with away(url, delay) as there:
            took: dict[int, float] = {}
            for workers in WORKERS:
                config = GraphConfig(snapshot=False, workers=workers, chunk=chunk)
                graph = Graph(there, config, budget=Budget(workers)).open(listen=False)
                try:
                    graph.neighbors([seeds[0]], 3)  # opens connections, and remembers degrees
                    times = [_seconds(graph, seed) for seed in seeds]
                finally:
                    graph.close()
                took[workers] = statistics.median(times)
                report.figure(f"3 hops in SQL, {delay:g} ms away, {workers} workers, ms", 1000 * took[workers])
            for workers in WORKERS[1:]:
                report.figure(f"3 hops in SQL, {delay:g} ms away, 1 / {workers} workers", took[1] / took[workers])
            if delay:
                name = f"3 hops in SQL, {delay:g} ms away: sequential / parallel"
                report.bar(name, took[1] / took[8], 2)
    with away(url, 1.0) as there:
        _adaptive(report, there, seeds, chunk)


def _seconds(graph: Graph, seed: int) -> float:
    began = time.perf_counter()
    answer = graph.neighbors([seed], 3)
    assert answer.complete, answer.skipped
    return time.perf_counter() - began


def asked_by(number: int, seeds: list[int]) -> list[int]:
    """Seeds of one of the crowd, who begins where its number says."""
    return list(islice(cycle(seeds), number, number + EACH))


def _adaptive(report: Report, url: str, seeds: list[int], chunk: int) -> None:
    """Workers that a question has: alone, and as one of eight."""
    budget = Budget(8)
    graph = Graph(url, GraphConfig(snapshot=False, workers=8, chunk=chunk), budget=budget).open(listen=False)
    try:
        graph.neighbors([seeds[0]], 3)
        for crowd in (1, CROWD):
            busy, over = list[int](), threading.Event()

            def sample(busy: list[int] = busy, over: threading.Event = over) -> None:
                while not over.wait(0.002):
                    busy.append(budget.use.busy)

            def ask(number: int) -> None:
                for seed in asked_by(number, seeds):
                    _seconds(graph, seed)

            watching = threading.Thread(target=sample)
            asking = [threading.Thread(target=ask, args=(number,)) for number in range(crowd)]
            began = time.perf_counter()
            for thread in (watching, *asking):
                thread.start()
            for thread in asking:
                thread.join()
            seconds = time.perf_counter() - began
            over.set()
            watching.join()
            report.figure(f"{crowd} at once, 1 ms away: workers of all, at most", max(busy))
            report.figure(f"{crowd} at once, 1 ms away: questions/s", EACH * crowd / seconds)
    finally:
        graph.close()
