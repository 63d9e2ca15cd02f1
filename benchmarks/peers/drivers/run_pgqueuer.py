"""PgQueuer, driven as its documentation says to for throughput: asyncpg, list enqueue, a large batch size."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from datetime import timedelta

import asyncpg
import psycopg
import uvloop
from pgqueuer import AsyncpgDriver, AsyncpgPoolDriver, PgQueuer, Queries
from pgqueuer.db import SyncPsycopgDriver
from pgqueuer.models import Job
from pgqueuer.queries import SyncQueries
from protocol import Tally, attend, crowd, pulse, say


async def install(url: str) -> None:
    await Queries(AsyncpgDriver(await asyncpg.connect(url))).install()  # fully logged tables are the default


async def one(url: str, seconds: float) -> None:
    queries = Queries(AsyncpgDriver(await asyncpg.connect(url)))
    await queries.enqueue("noop", None)
    jobs, began = 0, time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        await queries.enqueue("noop", None)
        jobs += 1
    say(jobs=jobs, seconds=passed)


async def many_callers(url: str, seconds: float, callers: int, connections: int) -> None:
    async with asyncpg.create_pool(url, min_size=connections, max_size=connections) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))
        await crowd(lambda: queries.enqueue("noop", None), seconds, callers)


async def batch(url: str, jobs: int, size: int) -> None:
    queries = Queries(AsyncpgDriver(await asyncpg.connect(url)))
    began = time.monotonic()
    for at in range(0, jobs, size):
        n = min(size, jobs - at)
        await queries.enqueue(["noop"] * n, [None] * n, [0] * n)
    say(jobs=jobs, seconds=time.monotonic() - began)


async def work(url: str, options: dict[str, int]) -> None:
    async def run(tally: Tally, stop: asyncio.Event) -> None:
        queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(url)))

        @queuer.entrypoint("noop")
        async def noop(_: Job) -> None:
            tally.started()

        async def until_told() -> None:
            await stop.wait()
            queuer.shutdown.set()

        watcher = asyncio.create_task(until_told())
        await queuer.qm.run(dequeue_timeout=timedelta(seconds=30), batch_size=options["batch"])
        await watcher

    await attend(run)


def main() -> None:
    command, url, *rest = sys.argv[1:]
    match command:
        case "install":
            asyncio.run(install(url))
        case "one":
            uvloop.run(one(url, float(rest[0])))
        case "crowd":
            uvloop.run(many_callers(url, float(rest[0]), int(rest[1]), int(rest[2])))
        case "batch":
            uvloop.run(batch(url, int(rest[0]), int(rest[1])))
        case "pulse":
            connection = psycopg.connect(url, autocommit=True)
            queries = SyncQueries(SyncPsycopgDriver(connection))
            pulse(connection, lambda: queries.enqueue("noop", None))
        case "work":
            uvloop.run(work(url, json.loads(rest[0])))
        case _:
            sys.exit(f"unknown command {command}")


main()
