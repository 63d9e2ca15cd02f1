"""Handlers for tests: each once for threads and child processes, and once, with `_async`, for the event loop.

They talk to their test through the database: `say` writes a line that it can read, a gate keeps a handler where it is
until the test opens it.
"""

import asyncio
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
from pydantic import BaseModel

from kappa.engine import (
    AsyncJobContext,
    Cancel,
    Engine,
    Executor,
    JobContext,
    JobFailed,
    Lane,
    LeaseLost,
    Retry,
    Snooze,
)

GATES = 4242
LANE = "here"


class Task(BaseModel):
    """What to do, and where the test listens."""

    url: str
    gate: int = 0
    text: str = ""
    count: int = 1


class Pair(BaseModel):
    left: int
    right: int


@dataclass
class Total:
    total: int


class Particular(Exception):
    """An exception that pickle can't make again."""

    def __init__(self, what: str, *, code: int) -> None:
        super().__init__(f"{what} {code}")


def say(url: str, text: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("INSERT INTO said (line) VALUES (%s)", [text])


def pass_gate(url: str, gate: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_xact_lock_shared(%s, %s)", [GATES, gate])


async def pass_gate_async(url: str, gate: int) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("SELECT pg_advisory_xact_lock_shared(%s, %s)", [GATES, gate])


def add(ctx: JobContext, pair: Pair) -> Total:
    assert isinstance(pair, Pair)
    return Total(pair.left + pair.right)


async def add_async(ctx: AsyncJobContext, pair: Pair) -> Total:
    assert isinstance(pair, Pair)
    return Total(pair.left + pair.right)


def give(ctx: JobContext, value: Any) -> int:
    return value


async def give_async(ctx: AsyncJobContext, value: Any) -> int:
    return value


def where(ctx: JobContext) -> list[int]:
    return [os.getpid(), threading.get_ident()]


async def where_async(ctx: AsyncJobContext) -> list[int]:
    return [os.getpid(), threading.get_ident()]


def facts(ctx: JobContext) -> list[Any]:
    return [ctx.job_id, ctx.kind, ctx.lane, ctx.attempt, ctx.max_attempts, ctx.cancelled, ctx.lease_lost]


async def facts_async(ctx: AsyncJobContext) -> list[Any]:
    return [ctx.job_id, ctx.kind, ctx.lane, ctx.attempt, ctx.max_attempts, ctx.cancelled, ctx.lease_lost]


def hold(ctx: JobContext, task: Task) -> str:
    """Say that it began, and stay at the gate."""
    say(task.url, f"began {task.text} {ctx.attempt}".replace("  ", " "))
    pass_gate(task.url, task.gate)
    return f"{task.text} {ctx.attempt}"


async def hold_async(ctx: AsyncJobContext, task: Task) -> str:
    say(task.url, f"began {task.text} {ctx.attempt}".replace("  ", " "))
    await pass_gate_async(task.url, task.gate)
    return f"{task.text} {ctx.attempt}"


def report(ctx: JobContext, task: Task) -> None:
    ctx.progress(3, 10, "reading")
    pass_gate(task.url, task.gate)
    ctx.progress(10, 10, "done")


async def report_async(ctx: AsyncJobContext, task: Task) -> None:
    ctx.progress(3, 10, "reading")
    await pass_gate_async(task.url, task.gate)
    ctx.progress(10, 10, "done")


def resume(ctx: JobContext) -> Any:
    found = ctx.last_checkpoint()
    if found is None:
        ctx.checkpoint({"page": 7})
        raise RuntimeError("gone")
    return found


async def resume_async(ctx: AsyncJobContext) -> Any:
    found = await ctx.last_checkpoint()
    if found is None:
        await ctx.checkpoint({"page": 7})
        raise RuntimeError("gone")
    return found


def until_cancelled(ctx: JobContext, task: Task) -> None:
    say(task.url, "began")
    while True:
        ctx.raise_if_cancelled()
        time.sleep(0.002)


async def until_cancelled_async(ctx: AsyncJobContext, task: Task) -> None:
    say(task.url, "began")
    while True:
        ctx.raise_if_cancelled()
        await asyncio.sleep(0.002)


def write(ctx: JobContext, task: Task) -> str:
    """Write in the job's transaction, leave the block, and stay at the gate."""
    with ctx.transaction() as connection:
        connection.execute("INSERT INTO written (line) VALUES (%s)", [f"{task.text} {ctx.attempt}"])
    say(task.url, f"wrote {ctx.attempt}")
    pass_gate(task.url, task.gate)
    if task.text == "raise":
        raise RuntimeError("after the write")
    return task.text


async def write_async(ctx: AsyncJobContext, task: Task) -> str:
    async with ctx.transaction() as connection:
        await connection.execute("INSERT INTO written (line) VALUES (%s)", [f"{task.text} {ctx.attempt}"])
    say(task.url, f"wrote {ctx.attempt}")
    await pass_gate_async(task.url, task.gate)
    if task.text == "raise":
        raise RuntimeError("after the write")
    return task.text


def write_twice(ctx: JobContext) -> None:
    """Two blocks, one transaction; what fails inside a block is undone alone."""
    with ctx.transaction() as connection:
        connection.execute("INSERT INTO written (line) VALUES ('first')")
    try:
        with ctx.transaction() as connection:
            connection.execute("INSERT INTO written (line) VALUES ('undone')")
            raise ValueError
    except ValueError:
        pass
    with ctx.transaction() as connection:
        connection.execute("INSERT INTO written (line) VALUES ('second')")


async def write_twice_async(ctx: AsyncJobContext) -> None:
    async with ctx.transaction() as connection:
        await connection.execute("INSERT INTO written (line) VALUES ('first')")
    try:
        async with ctx.transaction() as connection:
            await connection.execute("INSERT INTO written (line) VALUES ('undone')")
            raise ValueError
    except ValueError:
        pass
    async with ctx.transaction() as connection:
        await connection.execute("INSERT INTO written (line) VALUES ('second')")


def write_and_retry(ctx: JobContext) -> Retry | None:
    with ctx.transaction() as connection:
        connection.execute("INSERT INTO written (line) VALUES ('no')")
    return Retry(after=timedelta(hours=1))


async def write_and_retry_async(ctx: AsyncJobContext) -> Retry | None:
    async with ctx.transaction() as connection:
        await connection.execute("INSERT INTO written (line) VALUES ('no')")
    return Retry(after=timedelta(hours=1))


def write_badly(ctx: JobContext) -> None:
    """A write that the database refuses only at the commit."""
    with ctx.transaction() as connection:
        connection.execute("INSERT INTO written (line, belongs_to) VALUES ('no', 1000)")


async def write_badly_async(ctx: AsyncJobContext) -> None:
    async with ctx.transaction() as connection:
        await connection.execute("INSERT INTO written (line, belongs_to) VALUES ('no', 1000)")


def outcome(ctx: JobContext, name: str) -> str | Retry | Snooze | Cancel:
    return _outcome(name, ctx.attempt)


async def outcome_async(ctx: AsyncJobContext, name: str) -> str | Retry | Snooze | Cancel:
    return _outcome(name, ctx.attempt)


def _outcome(name: str, attempt: int) -> str | Retry | Snooze | Cancel:
    match name:
        case "retry later":
            return Retry(after=timedelta(hours=2))
        case "retry":
            return Retry()
        case "snooze":
            return "awake" if attempt > 3 else Snooze(timedelta(hours=3))
        case "cancel":
            return Cancel("nothing to do")
        case "raise":
            raise RuntimeError("the password is swordfish")
        case "fail":
            raise JobFailed("the file is empty")
        case "fail for good":
            raise JobFailed("there is no such file", retry=False)
        case "exit":
            sys.exit(3)
        case "raise bytes":
            raise RuntimeError("a nul \x00 and half a pair \ud800")
        case "give bytes":
            return "a nul \x00"
        case "raise particular":
            raise Particular("the answer is", code=42)
        case "end the process":
            os.kill(os.getpid(), signal.SIGKILL)
    return name


class Unreadable:
    """What pickle takes and can't make again."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def ask_badly(ctx: JobContext) -> None:
    """Ask for something that can't arrive at the worker."""
    ctx.checkpoint(Unreadable())


def lose(ctx: JobContext, task: Task) -> None:
    """Wait until the lease is lost, then try every way to write."""
    say(task.url, "began")
    while not ctx.lease_lost:
        time.sleep(0.002)
    for name in ("progress", "checkpoint", "spawn", "transaction", "last_checkpoint", "gather", "raise_if_cancelled"):
        try:
            match name:
                case "progress":
                    ctx.progress(1)
                case "checkpoint":
                    ctx.checkpoint(1)
                case "spawn":
                    ctx.spawn("lose")
                case "gather":
                    ctx.gather()
                case "last_checkpoint":
                    ctx.last_checkpoint()
                case "raise_if_cancelled":
                    ctx.raise_if_cancelled()
                case _:
                    with ctx.transaction() as connection:
                        connection.execute("INSERT INTO written (line) VALUES ('no')")
            say(task.url, f"allowed {name}")
        except LeaseLost:
            pass
    say(task.url, "tried")


async def lose_async(ctx: AsyncJobContext, task: Task) -> None:
    say(task.url, "began")
    while not ctx.lease_lost:
        await asyncio.sleep(0.002)
    for name in ("progress", "checkpoint", "spawn", "transaction", "last_checkpoint", "gather", "raise_if_cancelled"):
        try:
            match name:
                case "progress":
                    ctx.progress(1)
                case "checkpoint":
                    await ctx.checkpoint(1)
                case "spawn":
                    await ctx.spawn("lose")
                case "gather":
                    await ctx.gather()
                case "last_checkpoint":
                    await ctx.last_checkpoint()
                case "raise_if_cancelled":
                    ctx.raise_if_cancelled()
                case _:
                    async with ctx.transaction() as connection:
                        await connection.execute("INSERT INTO written (line) VALUES ('no')")
            say(task.url, f"allowed {name}")
        except LeaseLost:
            pass
    say(task.url, "tried")


def parent(ctx: JobContext, task: Task) -> list[Any]:
    """Spawn so many children, wait for them; an attempt that says `again` fails after that, once."""
    keys = [ctx.spawn("child", task.model_copy(update={"count": n})) for n in range(task.count)]
    try:
        results = ctx.gather(*reversed(keys))
    finally:
        if task.text == "tell":
            say(task.url, "the parent waits no more")
    if task.text == "again" and ctx.attempt == 1:
        raise RuntimeError("again")
    return results


async def parent_async(ctx: AsyncJobContext, task: Task) -> list[Any]:
    keys = [await ctx.spawn("child", task.model_copy(update={"count": n})) for n in range(task.count)]
    try:
        results = await ctx.gather(*reversed(keys))
    finally:
        if task.text == "tell":
            say(task.url, "the parent waits no more")
    if task.text == "again" and ctx.attempt == 1:
        raise RuntimeError("again")
    return results


def child(ctx: JobContext, task: Task) -> int:
    say(task.url, f"child {task.count} began")
    if task.text == "fail":
        raise JobFailed("a page is missing")
    pass_gate(task.url, task.gate)
    say(task.url, f"child {task.count} ended")
    return task.count * 10


async def child_async(ctx: AsyncJobContext, task: Task) -> int:
    say(task.url, f"child {task.count} began")
    if task.text == "fail":
        raise JobFailed("a page is missing")
    await pass_gate_async(task.url, task.gate)
    say(task.url, f"child {task.count} ended")
    return task.count * 10


def gather_unknown(ctx: JobContext) -> None:
    ctx.gather("nobody")


async def gather_unknown_async(ctx: AsyncJobContext) -> None:
    await ctx.gather("nobody")


def overrun(ctx: JobContext, task: Task) -> None:
    """Work until told to stop; in a child process, for ever."""
    say(task.url, f"pid {os.getpid()}")
    while task.text == "deaf" or not ctx.cancelled:
        time.sleep(0.002)
    say(task.url, "stopped")


async def overrun_async(ctx: AsyncJobContext, task: Task) -> None:
    say(task.url, f"pid {os.getpid()}")
    try:
        await asyncio.Event().wait()
    finally:
        say(task.url, "stopped")


def carry_on(ctx: JobContext, task: Task) -> Any:
    """Keep a checkpoint and stay at the gate; the next attempt gives what it finds."""
    if ctx.attempt > 1:
        return [ctx.attempt, ctx.last_checkpoint()]
    ctx.checkpoint({"page": 7})
    say(task.url, "began")
    pass_gate(task.url, task.gate)
    return None


def die_at_once(ctx: JobContext, task: Task) -> str:
    if task.text == "":
        os.kill(os.getpid(), signal.SIGKILL)
    say(task.url, "it ran again")
    return "survived"


def count_and_die(ctx: JobContext, task: Task) -> None:
    """Leave a byte in a file, as nothing else is quick enough, and take the worker along."""
    with Path(task.text).open("ab", buffering=0) as starts:
        starts.write(b".")
    os.kill(os.getpid(), signal.SIGKILL)


async def count_and_die_async(ctx: AsyncJobContext, task: Task) -> None:
    count_and_die(None, task)  # type: ignore[arg-type]


async def block_loop(ctx: AsyncJobContext, task: Task) -> str:
    """Stay at the gate, and let nothing else run on the loop meanwhile."""
    say(task.url, "blocks")
    pass_gate(task.url, task.gate)
    return f"{ctx.attempt}"


def build(url: str, executor: str, ttl: float, slots: int) -> Engine:
    """The engine of a worker process: one lane that knows every kind here."""
    engine = Engine(url)
    kinds = ("hold", "hold_again", "carry_on", "write", "overrun", "die_at_once", "count_and_die", "block_loop")
    engine.lane(
        Lane(
            LANE, kinds=kinds, max_slots=slots, poll_interval_ms=3_600_000, lease_ttl=timedelta(seconds=ttl),
            executor=Executor(executor),
        )
    )  # fmt: skip
    engine.job("hold")(hold_async if executor == "async" else hold)
    engine.job("hold_again", idempotent=True)(hold_async if executor == "async" else hold)
    engine.job("carry_on", idempotent=True)(carry_on)
    engine.job("write", idempotent=True)(write_async if executor == "async" else write)
    engine.job("overrun")(overrun_async if executor == "async" else overrun)
    engine.job("die_at_once")(die_at_once)
    if executor == "async":
        engine.job("block_loop", idempotent=True)(block_loop)
    engine.job("count_and_die", idempotent=True)(count_and_die_async if executor == "async" else count_and_die)
    engine.install()
    return engine
