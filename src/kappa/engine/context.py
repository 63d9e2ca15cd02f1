"""What a handler sees of its job.

Everything written through a context is guarded by the job's lease. Once the lease is lost the context says so and
refuses: a handler that was paused for too long can change nothing that its successor relies on.

`AsyncJobContext` is for handlers on the event loop, `JobContext` for those in threads; the second asks the first.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import wraps
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from psycopg import AsyncConnection, Connection
from pydantic_core import to_json

from kappa.engine.errors import JobCancelled, JobFailed, LeaseLost
from kappa.engine.model import Claimed, JobState
from kappa.engine.registry import Handler
from kappa.engine.threads import BoundedThreads
from kappa.pg.queries import Row

T = TypeVar("T")
P = ParamSpec("P")


TIME_TO_LOOK = 10.0
"""Seconds that an adopted attempt gets at least, to find out what became of it."""


class Running:
    """One attempt of one job while it runs here. Touched by the loop only, but for the flags that handlers read."""

    __slots__ = (
        "begun",
        "cancel_reason",
        "claimed",
        "connection",
        "deadline",
        "ending",
        "finished",
        "gathers",
        "handler",
        "heard_at",
        "held",
        "lane",
        "light",
        "lost",
        "lost_told",
        "progress",
        "slot",
        "spawned",
        "stack",
        "started",
        "stopped",
        "task",
        "unawaited",
        "unwritable",
        "waiting",
    )  # fmt: skip

    def __init__(self, claimed: Claimed, handler: Handler, lane: str) -> None:
        self.claimed = claimed
        self.held = (claimed.id, claimed.token)
        self.handler = handler
        self.lane = lane
        self.light = claimed.light
        self.lost = False
        self.lost_told = False
        self.stopped = False
        """Whether the worker stopped it, for a time-out or for want of progress. Then its outcome is settled."""
        self.finished = False
        self.started = claimed.started
        self.waiting = False
        self.gathers = 0
        """How many `gather` calls of this handler wait for children. While one does, the slot belongs to others."""
        self.slot: asyncio.Lock | None = None
        """One `gather` at a time releases or reacquires the slot."""
        self.unwritable = False
        self.ending = False
        """Whether its own transaction is about to commit: the job's row may be gone before the worker knows why."""
        self.cancel_reason = claimed.cancel_reason
        self.begun = self.heard_at = time.monotonic()
        self.deadline = self.begun + claimed.seconds_left
        self.task: asyncio.Task[None] | None = None
        self.progress: tuple[float | None, float | None, str | None] | None = None
        self.spawned = 0
        self.unawaited: dict[Coroutine[Any, Any, Any], str] | None = None
        """Calls of the context's methods that have not begun, and the methods' names."""
        self.connection: AsyncConnection[Row] | Connection[Row] | None = None
        """The handler's own transaction, which settling will commit."""
        self.stack: ExitStack | AsyncExitStack | None = None
        """What ends it."""

    @property
    def attempt(self) -> int:
        return self.claimed.attempt if self.claimed.started else self.claimed.attempt + 1

    @property
    def age(self) -> float:
        """Seconds since it began here."""
        return time.monotonic() - self.begun

    def begins(self) -> None:
        """Its turn has come: its time counts from now. That of an adopted attempt counts from its own start."""
        self.heard_at = time.monotonic()
        if not self.claimed.started:
            self.begun = self.heard_at
            self.deadline = self.begun + self.claimed.seconds_left

    def heard(self) -> None:
        """Its handler showed that the work goes on."""
        self.heard_at = time.monotonic()

    def look_for_it(self) -> None:
        """Adopted: even if its time is over, there is time to see how it ended."""
        self.deadline = max(self.deadline, self.begun + TIME_TO_LOOK)

    def never_awaited(self) -> list[str]:
        """The context's methods that the handler called without awaiting them. They won't run any more."""
        calls, self.unawaited = self.unawaited or {}, None
        found = [name for call, name in calls.items() if getcoroutinestate(call) == CORO_CREATED]
        for call in calls:
            call.close()
        return found

    @property
    def facts(self) -> dict[str, int | str]:
        """What a line of a log says of the attempt it is about."""
        return {"job": self.claimed.id, "attempt": self.attempt, "lane": self.lane, "kind": self.claimed.kind}


class _HasFacts(Protocol):
    @property
    def facts(self) -> dict[str, int | str]: ...


current: ContextVar[_HasFacts | None] = ContextVar("kappa_current_attempt", default=None)
"""The attempt whose handler runs here: in its thread, in its task on the loop and those it begins, in its process."""


def current_facts() -> dict[str, int | str]:
    """The job, attempt, lane and kind whose handler calls this; nothing where no handler does."""
    found = current.get()
    return {} if found is None else found.facts


class Office(Protocol):
    """What contexts ask of the worker they run in."""

    threads: BoundedThreads

    def report_progress(self, running: Running) -> None: ...
    async def save_checkpoint(self, running: Running, value: str) -> bool: ...
    async def read_checkpoint(self, running: Running) -> list[Any]: ...
    async def spawn(self, running: Running, kind: str, payload: Any, key: str, priority: int) -> int: ...
    async def gather(self, running: Running, keys: list[str]) -> dict[str, tuple[int, JobState, Any, str | None]]: ...
    async def open_transaction(self, running: Running) -> AsyncConnection[Row]: ...
    def open_blocking_transaction(self, running: Running) -> Connection[Row]: ...


class _Facts:
    """What both contexts tell without asking anybody."""

    _running: Running
    _office: Office

    @property
    def threads(self) -> BoundedThreads:
        """An executor for what a handler does beside itself. All jobs of a worker share its threads (32)."""
        return self._office.threads

    @property
    def job_id(self) -> int:
        return self._running.claimed.id

    @property
    def kind(self) -> str:
        return self._running.claimed.kind

    @property
    def lane(self) -> str:
        return self._running.lane

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._running.attempt

    @property
    def adopted(self) -> bool:
        """Whether an earlier owner began this very attempt. Only for handlers that are `adoptable`."""
        return self._running.claimed.adopted

    @property
    def seconds_left(self) -> float:
        """Until this attempt's time is up, counted from its original start."""
        return self._running.deadline - time.monotonic()

    @property
    def held(self) -> tuple[int, int]:
        """The job's id and the lease's token, to guard writes of one's own with.

        In `transaction()` the token stands in the job's row; before, a handler on the loop may share a batch's lease.
        """
        return self._running.held

    @property
    def max_attempts(self) -> int:
        return self._running.claimed.max_attempts

    @property
    def lease_lost(self) -> bool:
        """Whether another owner may have the job by now. Nothing more can be written."""
        return self._running.lost

    @property
    def cancelled(self) -> bool:
        """Whether the handler should stop at the next good place."""
        running = self._running
        return running.cancel_reason is not None or running.lost or running.stopped

    def raise_if_cancelled(self) -> None:
        """Leave the handler here if the job was cancelled, ran out of time, or is no longer ours."""
        self._refuse_if_lost()
        if self.cancelled:
            raise JobCancelled(self._running.cancel_reason or "the time is up")

    def _refuse_if_lost(self) -> None:
        if self._running.lost:
            raise LeaseLost(f"the lease of job {self.job_id} is lost: nothing more can be written")


def _must_be_awaited(
    method: "Callable[Concatenate[AsyncJobContext, P], Coroutine[Any, Any, T]]",
) -> "Callable[Concatenate[AsyncJobContext, P], Coroutine[Any, Any, T]]":
    """Let the attempt know of each call until it begins: one that nobody awaits does nothing, silently."""

    @wraps(method)
    def call(self: "AsyncJobContext", *args: P.args, **named: P.kwargs) -> Coroutine[Any, Any, T]:
        running = self._running  # pyright: ignore[reportPrivateUsage]
        if running.unawaited is None:
            running.unawaited = {}
        unawaited = running.unawaited

        async def begin() -> T:
            unawaited.pop(coroutine, None)
            return await method(self, *args, **named)

        coroutine = begin()
        unawaited[coroutine] = method.__name__
        return coroutine

    return call


class AsyncJobContext(_Facts):
    """The context of a handler on the event loop."""

    def __init__(self, running: Running, office: Office) -> None:
        self._running = running
        self._office = office

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Say how far the work is. Costs nothing: the latest word is written a few times a second."""
        self._refuse_if_lost()
        self._running.heard()
        self._running.progress = (float(done), None if total is None else float(total), message)
        self._office.report_progress(self._running)

    @_must_be_awaited
    async def checkpoint(self, value: Any) -> None:
        """Keep a JSON value for whoever runs this job next, should this attempt not live to its end."""
        self._refuse_if_lost()
        self._running.heard()
        if not await self._office.save_checkpoint(self._running, to_json(value).decode()):
            self._lose()

    @_must_be_awaited
    async def last_checkpoint(self) -> Any:
        """What the last `checkpoint` kept, in this attempt or an earlier one; None if nothing."""
        self._refuse_if_lost()
        found = await self._office.read_checkpoint(self._running)
        if not found:
            self._lose()
        return found[0]

    @_must_be_awaited
    async def spawn(self, kind: str, payload: Any = None, *, key: str | None = None, priority: int = 0) -> str:
        """Enqueue a child job, once however often this handler runs, and give its key for `gather`.

        Children are told apart by their keys; without one they are numbered, so a handler that spawns in the same
        order finds the same children again.
        """
        self._refuse_if_lost()
        self._running.heard()
        if key is None:
            self._running.spawned += 1
            key = f"#{self._running.spawned}"
        await self._office.spawn(self._running, kind, payload, key, priority)
        return key

    @_must_be_awaited
    async def gather(self, *keys: str) -> list[Any]:
        """Wait for children and give their results in order. Meanwhile the slot belongs to others.

        Where several `gather` of one handler wait at the same time, the slot is taken again when the last one is done.
        """
        self._refuse_if_lost()
        found = await self._office.gather(self._running, list(keys))
        self._running.heard()
        for key in keys:
            child, state, _, summary = found[key]
            if state is not JobState.SUCCEEDED:
                raise JobFailed(
                    f"child {child} ({key}) {state.value.replace('_', ' ')}: {summary or 'no reason given'}"
                )
        return [found[key][2] for key in keys]

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[AsyncConnection[Row]]:
        """A connection in a transaction that commits together with the job's success, or not at all.

        It stays open when the block ends; the commit comes when the handler returns. So do this last.
        """
        self._refuse_if_lost()
        connection = self._running.connection
        if connection is None:
            connection = await self._office.open_transaction(self._running)
        assert isinstance(connection, AsyncConnection)
        async with connection.transaction():
            yield connection

    def _lose(self) -> None:
        self._running.lost = True
        self._refuse_if_lost()


class JobContext(_Facts):
    """The context of a handler in a thread."""

    def __init__(self, running: Running, office: Office, loop: asyncio.AbstractEventLoop) -> None:
        self._running = running
        self._office = office
        self._loop = loop
        self._inner = AsyncJobContext(running, office)

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Say how far the work is. Costs nothing: the latest word is written a few times a second."""
        self._refuse_if_lost()
        self._running.heard()
        self._running.progress = (float(done), None if total is None else float(total), message)
        self._loop.call_soon_threadsafe(self._office.report_progress, self._running)

    def checkpoint(self, value: Any) -> None:
        """Keep a JSON value for whoever runs this job next, should this attempt not live to its end."""
        self._ask(self._inner.checkpoint(value))

    def last_checkpoint(self) -> Any:
        """What the last `checkpoint` kept, in this attempt or an earlier one; None if nothing."""
        return self._ask(self._inner.last_checkpoint())

    def spawn(self, kind: str, payload: Any = None, *, key: str | None = None, priority: int = 0) -> str:
        """Enqueue a child job, once however often this handler runs; see `AsyncJobContext.spawn`."""
        return self._ask(self._inner.spawn(kind, payload, key=key, priority=priority))

    def gather(self, *keys: str) -> list[Any]:
        """Wait for children and give their results in order. Meanwhile the slot belongs to others."""
        return self._ask(self._inner.gather(*keys))

    @contextmanager
    def transaction(self) -> Generator[Connection[Row]]:
        """A connection in a transaction that commits together with the job's success, or not at all.

        It stays open when the block ends; the commit comes when the handler returns. So do this last.
        """
        self._refuse_if_lost()
        connection = self._running.connection
        if connection is None:
            connection = self._office.open_blocking_transaction(self._running)
        assert isinstance(connection, Connection)
        with connection.transaction():
            yield connection

    def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(question, self._loop).result()
