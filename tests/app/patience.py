"""Waiting on the event loop for a condition, without stopping what is waited for."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import psycopg

from kappa.engine import AsyncClient, Worker
from tests.ground import PATIENCE

T = TypeVar("T")


async def becomes(look: Callable[[], T | Awaitable[T]], *, what: str = "") -> T:
    """Look again and again until there is something to see, and give it back."""
    until = time.monotonic() + PATIENCE
    while True:
        seen: Any = look()
        if asyncio.iscoroutine(seen):
            seen = await seen
        if seen:
            return seen
        if time.monotonic() > until:
            raise AssertionError(f"not within {PATIENCE:g} s: {what or look}")
        await asyncio.sleep(0.01)


def waiting(connection: psycopg.Connection[Any]) -> int:
    """How many sessions of this database wait for a lock."""
    # Inside of a transaction the first look would be repeated for ever.
    connection.execute("SELECT pg_stat_clear_snapshot()")
    row = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    ).fetchone()
    assert row is not None
    return row[0]


async def blocked(connection: psycopg.Connection[Any], count: int) -> None:
    """Until so many sessions of this database wait for a lock."""
    await becomes(lambda: waiting(connection) >= count, what=f"{count} sessions wait for a lock")


async def begun(client: AsyncClient, job: int) -> None:
    """Until its start is on record: before, a job that is lost is put back as if nobody had taken it."""

    async def on_record() -> bool:
        return (await client.show(job)).attempt == 1

    await becomes(on_record, what="a job that has begun")


async def told_to_stop(worker: Worker, job: int) -> None:
    """Until the worker that runs it knows that it is cancelled."""

    def known() -> bool:
        running = worker._desk.find(job)  # pyright: ignore[reportPrivateUsage]
        return running is None or running.cancel_reason is not None

    await becomes(known, what="a job that is told to stop")
