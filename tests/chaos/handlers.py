"""What the workers of a run do: handlers that have effects, fail, ask for more time, and have children.

A payload says how each attempt ends, so that a job behaves the same wherever it runs. Effects are written inside of the
job's transaction, outside of it on a connection of the handler's own, or both. Artifacts are written as files.
"""

import asyncio
import os
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from pydantic import BaseModel

from kappa.engine import (
    AsyncJobContext,
    Engine,
    Executor,
    JobContext,
    JobFailed,
    Lane,
    Retry,
    Snooze,
)
from kappa.engine.holding import let_go, other_lanes_drained
from kappa.pg import Database
from tests.chaos import artifacts, journal

URL = "CHAOS_URL"
GATES = 4243

INSERT = "INSERT INTO chaos_effects (job, attempt, sort) VALUES (%s, %s, %s)"

ASYNC, THREADS, PROCESSES, QUICK, FAMILY = "loop", "threads", "processes", "quick", "family"
BLOCKER = "blocker"
ALONE = "alone"
"""A kind and its lane: its handler has all others drained."""
KINDS = {
    "loop_once": (ASYNC, 1),
    "loop_again": (ASYNC, 3),
    "loop_parent": (ASYNC, 3),
    "tick": (ASYNC, 3),
    "thread_once": (THREADS, 1),
    "thread_again": (THREADS, 3),
    "thread_parent": (THREADS, 3),
    artifacts.KIND: (THREADS, 5),
    "process_once": (PROCESSES, 1),
    "process_again": (PROCESSES, 3),
    QUICK: (QUICK, 4),
    "family_parent": (FAMILY, 3),
    "family_child": (FAMILY, 3),
    BLOCKER: (ASYNC, 3),
    ALONE: (ALONE, 5),
}
SLOTS = {ASYNC: 32, THREADS: 8, PROCESSES: 2, QUICK: 64, FAMILY: 4, ALONE: 1}

_own = threading.local()


class Plan(BaseModel):
    """What a job is to do. `ends` has how each attempt ends; those beyond it end well."""

    key: str
    effects: str = "none"
    ends: list[str] = []
    seconds: float = 0.0
    children: int = 0
    gate: int = 0
    """Attempt n stays here until nobody holds the advisory lock (GATES, gate + n)."""
    child_gate: int = 0

    def end(self, attempt: int) -> str:
        return self.ends[attempt - 1] if attempt <= len(self.ends) else "ok"


def declare(database: Database | str, lease: float, slots: dict[str, int] | None = None) -> Engine:
    """An engine with the lanes and handlers of a run."""
    engine = Engine(database)
    executors = {
        ASYNC: Executor.ASYNC, THREADS: Executor.THREAD, PROCESSES: Executor.PROCESS, QUICK: Executor.ASYNC,
        FAMILY: Executor.ASYNC, ALONE: Executor.THREAD,
    }  # fmt: skip
    for lane, most in (slots or SLOTS).items():
        kinds = tuple(kind for kind, (home, _) in KINDS.items() if home == lane)
        engine.lane(
            Lane(
                lane, kinds, most, poll_interval_ms=500, lease_ttl=timedelta(seconds=lease), executor=executors[lane],
                stale_timeout=timedelta(minutes=5),
            )
        )  # fmt: skip
    for kind, (_, attempts) in KINDS.items():
        engine.job(kind, max_attempts=attempts)(_function(kind))
    return engine


def _function(kind: str) -> Any:
    named = {
        "loop_parent": parent_on_loop, "tick": on_loop, QUICK: on_loop, "thread_parent": parent_in_thread,
        "family_parent": parent_of_two_groups, "family_child": on_loop, BLOCKER: blocker, ALONE: alone,
        artifacts.KIND: artifact,
    }  # fmt: skip
    return named.get(kind, on_loop if kind.startswith("loop") else in_thread)


def write_outside(job: int, attempt: int) -> None:
    """On a connection that each thread keeps for itself; one that broke is made anew by the next."""
    connection: psycopg.Connection[Any] | None = getattr(_own, "connection", None)
    if connection is None or connection.closed:
        connection = _own.connection = psycopg.connect(
            os.environ[URL], autocommit=True, application_name="chaos effects", prepare_threshold=None,
            connect_timeout=5,
        )  # fmt: skip
    try:
        connection.execute(INSERT, [job, attempt, "outside"])
    except psycopg.Error:
        connection.close()
        raise


def pass_gate(gate: int) -> None:
    with psycopg.connect(os.environ[URL], autocommit=True, application_name="chaos gate") as connection:
        connection.execute("SELECT pg_advisory_lock_shared(%s, %s)", [GATES, gate])


def in_thread(ctx: JobContext, plan: Plan) -> Any:
    journal.write("run", ctx.job_id, ctx.attempt)
    return _work_in_thread(ctx, plan)


def _work_in_thread(ctx: JobContext, plan: Plan) -> Any:
    if plan.effects in ("outside", "both"):
        write_outside(ctx.job_id, ctx.attempt)
    if plan.gate:
        pass_gate(plan.gate + ctx.attempt)
    if plan.seconds:
        threading.Event().wait(plan.seconds)
    if plan.effects in ("inside", "both"):
        with ctx.transaction() as connection:
            connection.execute(INSERT, [ctx.job_id, ctx.attempt, "inside"])
    return conclude(plan.end(ctx.attempt))


def artifact(ctx: JobContext, plan: Plan) -> None:
    """A file, and nothing else: a full disk is an error like any other, and the engine tries again."""
    journal.write("run", ctx.job_id, ctx.attempt)
    artifacts.write(Path(os.environ[artifacts.DIRECTORY]), ctx.job_id, ctx.attempt, plan.seconds)


async def on_loop(ctx: AsyncJobContext, plan: Plan) -> Any:
    journal.write("run", ctx.job_id, ctx.attempt)
    return await _work_on_loop(ctx, plan)


async def _work_on_loop(ctx: AsyncJobContext, plan: Plan) -> Any:
    if plan.effects in ("outside", "both"):
        await asyncio.to_thread(write_outside, ctx.job_id, ctx.attempt)
    if plan.gate:
        await asyncio.to_thread(pass_gate, plan.gate + ctx.attempt)
    if plan.seconds:
        await asyncio.sleep(plan.seconds)
    if plan.effects in ("inside", "both"):
        async with ctx.transaction() as connection:
            await connection.execute(INSERT, [ctx.job_id, ctx.attempt, "inside"])
    return conclude(plan.end(ctx.attempt))


async def parent_on_loop(ctx: AsyncJobContext, plan: Plan) -> Any:
    journal.write("run", ctx.job_id, ctx.attempt)
    await ctx.checkpoint({"attempt": ctx.attempt})
    keys = [await ctx.spawn("loop_again", child(plan, number)) for number in range(plan.children)]
    await ctx.gather(*keys)
    return await _work_on_loop(ctx, plan)


def parent_in_thread(ctx: JobContext, plan: Plan) -> Any:
    journal.write("run", ctx.job_id, ctx.attempt)
    ctx.checkpoint({"attempt": ctx.attempt})
    kinds = ("thread_again", "loop_again")
    keys = [ctx.spawn(kinds[number % 2], child(plan, number)) for number in range(plan.children)]
    ctx.gather(*keys)
    return _work_in_thread(ctx, plan)


async def parent_of_two_groups(ctx: AsyncJobContext, plan: Plan) -> Any:
    """In a lane with few slots, which its children need as well; and it waits for both groups at once."""
    journal.write("run", ctx.job_id, ctx.attempt)
    keys = [await ctx.spawn("family_child", child(plan, number)) for number in range(max(2, plan.children))]
    await asyncio.gather(ctx.gather(*keys[::2]), ctx.gather(*keys[1::2]))
    return await _work_on_loop(ctx, plan)


async def blocker(ctx: AsyncJobContext, plan: Plan) -> None:
    """Its first run keeps its worker's loop from everything else, as a handler does that calls what blocks."""
    journal.write("run", ctx.job_id, ctx.attempt)
    begin = time.monotonic()
    try:
        threading.Event().wait(plan.seconds if journal.is_first(ctx.job_id) else 0)
    finally:
        journal.write("blocked", begin)


def alone(ctx: JobContext, plan: Plan) -> None:
    """Works while no other lane does."""
    journal.write("run", ctx.job_id, ctx.attempt)
    with other_lanes_drained(ctx, Database(os.environ[URL])):
        if plan.gate:
            pass_gate(plan.gate + ctx.attempt)
        threading.Event().wait(plan.seconds)
        with ctx.transaction() as connection:
            let_go(connection, ctx)


def child(plan: Plan, number: int) -> Plan:
    return Plan(key=f"{plan.key}/{number}", effects="both", seconds=0.02, gate=plan.child_gate)


def conclude(end: str) -> Any:
    match end:
        case "raise":
            raise RuntimeError("as planned")
        case "fail":
            raise JobFailed("as planned", retry=False)
        case "retry":
            return Retry(after=timedelta(milliseconds=200))
        case "snooze":
            return Snooze(timedelta(milliseconds=300))
        case _:
            return None


def hold_gate(connection: psycopg.Connection[Any], gate: int) -> None:
    connection.execute(sql.SQL("SELECT pg_advisory_lock({}, {})").format(GATES, gate))


def open_gate(connection: psycopg.Connection[Any], gate: int) -> None:
    connection.execute(sql.SQL("SELECT pg_advisory_unlock({}, {})").format(GATES, gate))
