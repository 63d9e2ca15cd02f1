"""What a worker does for its handlers' contexts: checkpoints, children, transactions of their own."""

import asyncio
from contextlib import AsyncExitStack, ExitStack, suppress
from typing import Any

import psycopg
from psycopg import AsyncConnection, Connection

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

LOOK_AT_CHILDREN = 1.0
TRY_FOR_SLOT = 0.1


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
        self._children: dict[int, asyncio.Event] = {}
        self.slot_given_up = asyncio.Event()

    def report_progress(self, running: Running) -> None:
        self._desk.report(running)

    async def save_checkpoint(self, running: Running, value: str) -> bool:
        await self._desk.write_down(running)
        async with self._pool.connection(who="checkpoint") as connection:
            return await run_async(connection, jobs.checkpoint(*running.held, value))

    async def read_checkpoint(self, running: Running) -> list[Any]:
        await self._desk.write_down(running)
        async with self._pool.connection(who="checkpoint") as connection:
            return await run_async(connection, jobs.read_checkpoint(*running.held))

    async def spawn(self, running: Running, kind: str, payload: Any, key: str, priority: int) -> int:
        text = self._registry.dump_payload(kind, payload)
        handler = self._registry.find(kind)
        new = NewJob(
            kind, text, priority, parent_id=running.claimed.id, spawn_key=key,
            approved_by=f"job {running.claimed.id}", timeout=handler.timeout if handler else None,
            max_attempts=handler.max_attempts if handler else 1, always_notify=True,
        )  # fmt: skip
        await self._desk.write_down(running)
        async with self._pool.transaction(who="spawn") as connection:
            # The parent's row, locked: a stale parent can't have children.
            if not await run_async(connection, jobs.hold(*running.held)):
                running.lost = True
                raise LeaseLost(f"the lease of job {running.claimed.id} is lost: it can have no more children")
            found = await run_async(connection, jobs.child(running.claimed.id, key))
            if found is None:
                found = await run_async(connection, jobs.enqueue(new))
            if found is None:
                raise UnknownKind(f"kind {kind!r} is in no lane: add it to one before you spawn it")
            return found

    async def gather(self, running: Running, keys: list[str]) -> dict[str, tuple[int, JobState, Any, str | None]]:
        parent = running.claimed.id
        changed = self._children[parent] = asyncio.Event()
        try:
            found = await self._look(parent, keys)
            if unknown := [key for key in keys if key not in found]:
                raise EngineError(f"job {parent} has no child {unknown[0]!r} to wait for: spawn it first")
            if not _all_ended(found, keys):
                await self._give_slot_up(running)
                while not _all_ended(found, keys):
                    changed.clear()
                    found = await self._look(parent, keys)
                    if not _all_ended(found, keys) and not await happens(changed, LOOK_AT_CHILDREN):
                        self._refuse_if_over(running)
                await self._take_slot_again(running)
            return found
        finally:
            self._children.pop(parent, None)

    def child_ended(self, parent: int) -> None:
        if (event := self._children.get(parent)) is not None:
            event.set()

    async def open_transaction(self, running: Running) -> AsyncConnection[Row]:
        # Else its settlement, which comes last, would need the batch's row after whatever the handler has locked.
        await self._desk.write_down(running)
        stack = AsyncExitStack()
        connection = await stack.enter_async_context(self._handlers.connection(who=f"job {running.claimed.id}"))
        await stack.enter_async_context(connection.transaction())
        running.stack, running.connection = stack, connection
        return connection

    def open_blocking_transaction(self, running: Running) -> Connection[Row]:
        stack = ExitStack()
        connection = stack.enter_context(self._blocking.connection(who=f"job {running.claimed.id}"))
        stack.enter_context(connection.transaction())
        running.stack, running.connection = stack, connection
        return connection

    def end_blocking_transaction(self, running: Running, outcome: Finish | None) -> bool:
        """In the handler's thread: commit its writes with the outcome, or undo them. True if they were committed."""
        stack, connection = running.stack, running.connection
        running.stack = None
        assert isinstance(stack, ExitStack)
        assert isinstance(connection, Connection)
        # A connection that broke can't undo anything, nor need it: psycopg then lets the wish for it through.
        with suppress(psycopg.Rollback), stack:
            if outcome is not None and not running.lost and run(connection, _settle(running, outcome)):
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
                if outcome is not None and not running.lost and await run_async(connection, _settle(running, outcome)):
                    return True
                raise psycopg.Rollback
        return False

    def has_transaction(self, running: Running) -> bool:
        return running.stack is not None

    async def _look(self, parent: int, keys: list[str]) -> dict[str, tuple[int, JobState, Any, str | None]]:
        async with self._pool.connection(who="gather") as connection:
            return await run_async(connection, jobs.children(parent, keys))

    async def _give_slot_up(self, running: Running) -> None:
        await self._desk.write_down(running)
        async with self._pool.connection(who="gather") as connection:
            if not await run_async(connection, jobs.begin_waiting(*running.held)):
                running.lost = True
        self._refuse_if_lost(running)
        running.waiting = True
        self.slot_given_up.set()

    async def _take_slot_again(self, running: Running) -> None:
        while True:
            async with self._pool.transaction(who="gather") as connection:
                await run_async(connection, jobs.lock_lane(running.lane))
                if await run_async(connection, jobs.end_waiting(*running.held)):
                    running.waiting = False
                    return
                if not await run_async(connection, jobs.holds(*running.held)):
                    running.lost = True
            self._refuse_if_lost(running)
            await asyncio.sleep(TRY_FOR_SLOT)

    def _refuse_if_over(self, running: Running) -> None:
        self._refuse_if_lost(running)
        if running.cancel_reason is not None or running.timed_out:
            raise JobCancelled(running.cancel_reason or "the time is up")

    def _refuse_if_lost(self, running: Running) -> None:
        if running.lost:
            raise LeaseLost(f"the lease of job {running.claimed.id} is lost while it waited for its children")


def _settle(running: Running, outcome: Finish) -> Op[set[int]]:
    return jobs.settle([outcome], {outcome.id: running.age})


def _all_ended(found: dict[str, tuple[int, JobState, Any, str | None]], keys: list[str]) -> bool:
    return all(key in found and found[key][1].terminal for key in keys)
