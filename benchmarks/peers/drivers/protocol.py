"""What every Python driver of a peer has in common: the line protocol spoken with `benchmarks.peers`.

A driver is run by the peers' own interpreter as `driver.py COMMAND URL [ARGUMENT…]` and answers with one
JSON object a line on stdout. Commands: `install`, `one SECONDS`, `crowd SECONDS CALLERS CONNECTIONS`,
`batch JOBS BATCH`, `pulse` (one job a line of stdin) and `work OPTIONS` (`start` and `stop` on stdin, any number of
times). All stamps are CLOCK_MONOTONIC in nanoseconds, which is one clock for every process of the machine.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import psycopg

REPORT_EVERY = 0.005  # seconds; what a worker has done is told in bulk, so that telling costs the peer nothing


def say(**message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class Tally:
    """Counts handler starts; the handlers of the peers do nothing else."""

    def __init__(self) -> None:
        self.count = 0
        self.first = 0
        self.last = 0

    def started(self) -> None:
        self.last = time.monotonic_ns()
        if not self.count:
            self.first = self.last
        self.count += 1

    async def report(self) -> None:
        told = 0
        while True:
            await asyncio.sleep(REPORT_EVERY)
            if self.count != told:
                told = self.count
                say(event="ran", count=told, first=self.first, last=self.last)


def pulse(connection: psycopg.Connection, enqueue: Callable[[], object]) -> None:
    """Enqueue one job for every line read and stamp the moment its commit was acknowledged.

    The commit is a statement of its own, so that nothing the peer does after enqueueing delays the stamp.
    """
    while True:
        connection.execute("begin")
        enqueue()
        connection.execute("commit")
        say(event="committed", at=time.monotonic_ns())
        if not sys.stdin.readline():
            return


async def crowd(enqueue: Callable[[], Awaitable[object]], seconds: float, callers: int) -> None:
    """So many callers at once, each with one job after the other."""
    jobs = 0

    async def call() -> None:
        nonlocal jobs
        while time.monotonic() < until:
            await enqueue()
            jobs += 1

    await enqueue()
    began = time.monotonic()
    until = began + seconds
    await asyncio.gather(*(call() for _ in range(callers)))
    say(jobs=jobs, seconds=time.monotonic() - began)


async def attend(run: Callable[[Tally, asyncio.Event], Awaitable[None]]) -> None:
    """Run the worker between `start` and `stop`; the process and its connections stay warm in between."""
    loop = asyncio.get_running_loop()
    stdin = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    say(event="ready")
    stop, worker, reporter = asyncio.Event(), None, None
    while line := (await stdin.readline()).decode().strip():
        if line == "start":
            tally, stop = Tally(), asyncio.Event()
            reporter = asyncio.create_task(tally.report())
            worker = asyncio.ensure_future(run(tally, stop))
        elif line == "stop" and worker and reporter:
            stop.set()
            await worker
            reporter.cancel()
            with suppress(asyncio.CancelledError):
                await reporter
            say(event="stopped")
