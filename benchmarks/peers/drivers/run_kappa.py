"""Kappa behind the same line protocol as its peers, run by its own interpreter."""

import asyncio
import json
import os
import sys
import time
from datetime import timedelta

import psycopg
from protocol import Tally, attend, crowd, pulse, say

from kappa.engine import Engine, Executor, JobContext, Lane, WorkerConfig
from kappa.engine.loops import loop_factory
from kappa.pg import Bounds

KIND = os.environ.get("KAPPA_BENCH_KIND", "noop")
SLOTS = 1000
THREAD_SLOTS = 16


def engine_at(url: str, tally: "Tally | None" = None) -> Engine:
    engine = Engine(url)
    engine.lane(
        Lane("bench", kinds=("noop", "noop_once"), max_slots=SLOTS, poll_interval_ms=2000, executor=Executor.ASYNC)
    )
    engine.lane(Lane("bench-threads", kinds=("noop_thread",), max_slots=THREAD_SLOTS))

    @engine.job("noop", idempotent=True)
    async def noop(_: JobContext) -> None:
        if tally is not None:
            tally.started()

    @engine.job("noop_once")
    async def noop_once(_: JobContext) -> None:
        if tally is not None:
            tally.started()

    @engine.job("noop_thread", idempotent=True)
    def noop_thread(_: JobContext) -> None:
        if tally is not None:
            tally.started()

    return engine


def one(url: str, seconds: float) -> None:
    with engine_at(url).client() as client:
        client.enqueue("noop")
        jobs, began = 0, time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            client.enqueue("noop")
            jobs += 1
    say(jobs=jobs, seconds=passed)


async def many_callers(url: str, seconds: float, callers: int, connections: int) -> None:
    async with engine_at(url).async_client(bounds=Bounds(0, connections)) as client:
        await crowd(lambda: client.enqueue("noop"), seconds, callers)


def batch(url: str, jobs: int, size: int) -> None:
    with engine_at(url).client() as client:
        client.enqueue_many(KIND, [])
        began = time.monotonic()
        for at in range(0, jobs, size):
            client.enqueue_many(KIND, [None] * min(size, jobs - at))
    say(jobs=jobs, seconds=time.monotonic() - began)


async def work(url: str, options: dict[str, int]) -> None:
    async def run(tally: Tally, stop: asyncio.Event) -> None:
        config = WorkerConfig(claim_batch=options["batch"], grace=timedelta(seconds=5))
        worker = engine_at(url, tally).worker(config)
        running = asyncio.create_task(worker.run())
        await stop.wait()
        worker.stop()
        await running

    await attend(run)


def main() -> None:
    command, url, *rest = sys.argv[1:]
    match command:
        case "install":
            engine_at(url).install()
        case "one":
            one(url, float(rest[0]))
        case "crowd":
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(many_callers(url, float(rest[0]), int(rest[1]), int(rest[2])))
        case "batch":
            batch(url, int(rest[0]), int(rest[1]))
        case "pulse":
            connection = psycopg.connect(url, autocommit=True)
            with engine_at(url).client() as client:
                pulse(connection, lambda: client.enqueue(KIND, connection=connection))
        case "work":
            with asyncio.Runner(loop_factory=loop_factory()) as runner:  # as Engine.run does
                runner.run(work(url, json.loads(rest[0])))
        case _:
            sys.exit(f"unknown command {command}")


main()
