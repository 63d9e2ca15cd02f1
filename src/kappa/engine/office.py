"""What a worker does for its handlers' contexts: checkpoints, children, transactions of their own."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.errors import LockNotAvailable

from kappa.engine.context import Running
from kappa.engine.desk import Desk
from kappa.engine.errors import EngineError, JobCancelled, LeaseLost, UnknownKind
from kappa.engine.model import JobState
from kappa.engine.registry import Registry
from kappa.engine.store import jobs
from kappa.engine.store.jobs import Finish, NewJob
from kappa.engine.threads import BoundedThreads
from kappa.engine.waiting import happens
from kappa.pg import AsyncPool, Pool
from kappa.pg.ops import Op, run, run_async
from kappa.pg.queries import Row

T = TypeVar("T")

LOOK_AT_CHILDREN = 1.0
TRY_FOR_SLOT = 0.1
LOCKED_RETRY = 0.1
"""Seconds until a statement is repeated that found the job's row locked."""


class WorkerOffice:
    """The office of one worker."""

    def __init__(
        self,
        pool: AsyncPool,
        handlers: AsyncPool,
        blocking: Pool,
        registry: Registry,
        desk: Desk,
        threads: BoundedThreads,
    ) -> None:
        self.threads = threads
        self._pool = pool
        self._handlers = handlers
        self._blocking = blocking
        self._registry = registry
        self._desk = desk
        self._gathers: dict[int, set[asyncio.Event]] = {}
        self.slot_given_up = asyncio.Event()

    def report_progress(self, running: Running) -> None:
        self._desk.report(running)

    async def save_checkpoint(self, running: Running, value: str) -> bool:
        return await self._of_row(running, jobs.checkpoint(*running.held, value))

    async def read_checkpoint(self, running: Running) -> list[Any]:
        return await self._of_row(running, jobs.read_checkpoint(*running.held))

    async def spawn(self, running: Running, kind: str, payload: Any, key: str, priority: int) -> int:
        text = self._registry.dump_payload(kind, payload)
        handler = self._registry.find(kind)
        new = NewJob(
            kind, text, priority, timeout=handler.timeout if handler else None,
            max_attempts=handler.max_attempts if handler else 1,
        )  # fmt: skip
        is_held, child = await self._of_row(running, jobs.spawn(running.held, key, new))
        if not is_held:
            running.lost = True
            raise LeaseLost(f"the lease of job {running.claimed.id} is lost: it can have no more children")
        if child is None:
            raise UnknownKind(f"kind {kind!r} is in no lane: add it to one before you spawn it")
        return child

    async def gather(self, running: Running, keys: list[str]) -> dict[str, tuple[int, JobState, Any, str | None]]:
        parent, changed = running.claimed.id, asyncio.Event()
        self._gathers.setdefault(parent, set()).add(changed)
        try:
            found = await self._look(parent, keys)
            if unknown := [key for key in keys if key not in found]:
                raise EngineError(f"job {parent} has no child {unknown[0]!r} to wait for: spawn it first")
            if not _all_ended(found, keys):
                running.gathers += 1
                try:
                    await self._release_slot(running)
                    while not _all_ended(found, keys):
                        changed.clear()
                        found = await self._look(parent, keys)
                        if not _all_ended(found, keys) and not await happens(changed, LOOK_AT_CHILDREN):
                            self._refuse_if_over(running)
                finally:
                    running.gathers -= 1
                    # Also where the handler gives up waiting and goes on; not where its attempt is over.
                    if not (running.lost or running.stopped or running.cancel_reason):
                        await self._reacquire_slot(running)
            return found
        finally:
            self._gathers[parent].discard(changed)
            if not self._gathers[parent]:
                del self._gathers[parent]

    def child_ended(self, parent: int) -> None:
        for event in self._gathers.get(parent, ()):
            event.set()

    async def open_transaction(self, running: Running) -> AsyncConnection[Row]:
        # Else its settlement, which comes last, would need the batch's row after whatever the handler has locked.
        await self._when_unlocked(lambda: self._desk.write_down(running))
        async with AsyncExitStack() as stack:
            connection = await stack.enter_async_context(self._handlers.connection(who=f"job {running.claimed.id}"))
            await stack.enter_async_context(connection.transaction())
            await run_async(connection, jobs.share_lease(running.claimed.token))
            running.stack, running.connection = stack.pop_all(), connection
        return connection

    def open_blocking_transaction(self, running: Running) -> Connection[Row]:
        with ExitStack() as stack:
            connection = stack.enter_context(self._blocking.connection(who=f"job {running.claimed.id}"))
            stack.enter_context(connection.transaction())
            run(connection, jobs.share_lease(running.claimed.token))
            running.stack, running.connection = stack.pop_all(), connection
        return connection

    def end_blocking_transaction(self, running: Running, outcome: Finish | None) -> bool:
        """In the handler's thread: commit its writes with the outcome, or undo them. True if they were committed."""
        stack, connection = running.stack, running.connection
        running.stack = None
        assert isinstance(stack, ExitStack)
        assert isinstance(connection, Connection)
        # A connection that broke can't undo anything, nor need it: psycopg then lets the wish for it through.
        with suppress(psycopg.Rollback), stack:
            running.ending = outcome is not None
            if outcome is not None and not running.lost and run(connection, jobs.settle_own(outcome, running.age)):
                return True
            raise psycopg.Rollback
        return False

    async def end_transaction(self, running: Running, outcome: Finish | None) -> bool:
        """On the loop: the same for a handler there."""
        stack, connection = running.stack, running.connection
        running.stack = None
        assert isinstance(stack, AsyncExitStack)
        assert isinstance(connection, AsyncConnection)
        with suppress(psycopg.Rollback):
            async with stack:
                settling = outcome and not running.lost and jobs.settle_own(outcome, running.age)
                if settling and await run_async(connection, settling):
                    return True
                raise psycopg.Rollback
        return False

    def has_transaction(self, running: Running) -> bool:
        return running.stack is not None

    async def _look(self, parent: int, keys: list[str]) -> dict[str, tuple[int, JobState, Any, str | None]]:
        async with self._pool.connection(who="gather") as connection:
            return await run_async(connection, jobs.children(parent, keys))

    async def _release_slot(self, running: Running) -> None:
        async with _slot(running):
            if running.waiting:
                return
            # Before it is: a handler that is cancelled while the reply is on its way has to reacquire the slot.
            running.waiting = True
            if not await self._of_row(running, jobs.release_slot(*running.held)):
                running.lost = True
            self._refuse_if_lost(running)
            self.slot_given_up.set()

    async def _reacquire_slot(self, running: Running) -> None:
        """Where another gather of the same handler still waits, the slot stays released until that one is done: its
        children may need the slot."""
        async with _slot(running):
            while running.waiting and not running.gathers:
                has_slot = await self._of_row(running, jobs.reacquire_slot(*running.held))
                if has_slot is None:
                    running.lost = True
                self._refuse_if_lost(running)
                if has_slot:
                    running.waiting = False
                else:
                    await asyncio.sleep(TRY_FOR_SLOT)

    async def _of_row(self, running: Running, op: Op[T]) -> T:
        """A statement about the job's own row, where the lease is written down."""

        async def once() -> T:
            await self._desk.write_down(running)
            async with self._pool.connection(who=f"job {running.claimed.id}") as connection:
                return await run_async(connection, op)

        return await self._when_unlocked(once)

    async def _when_unlocked(self, act: Callable[[], Awaitable[T]]) -> T:
        """Another session may have the job's row locked for long. Meanwhile no connection is held: the worker has few,
        and other jobs need them."""
        while True:
            try:
                return await act()
            except LockNotAvailable:
                await asyncio.sleep(LOCKED_RETRY)

    def _refuse_if_over(self, running: Running) -> None:
        self._refuse_if_lost(running)
        if running.cancel_reason is not None or running.stopped:
            raise JobCancelled(running.cancel_reason or "the time is up")

    def _refuse_if_lost(self, running: Running) -> None:
        if running.lost:
            raise LeaseLost(f"the lease of job {running.claimed.id} is lost while it waited for its children")


def _slot(running: Running) -> asyncio.Lock:
    if running.slot is None:
        running.slot = asyncio.Lock()
    return running.slot


def _all_ended(found: dict[str, tuple[int, JobState, Any, str | None]], keys: list[str]) -> bool:
    return all(key in found and found[key][1].terminal for key in keys)
