"""The leader's services. Each is a `run_once` on a connection of the leader's; the leader brings the loop.

`run_once` gives the seconds until it is due again, if it knows better than its usual interval; `AT_ONCE` where there is
more to do.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol

import psycopg
from psycopg import AsyncConnection, sql

from kappa.engine import attempt
from kappa.engine.errors import EngineError
from kappa.engine.maintenance.term import TermOver
from kappa.engine.model import Schedule
from kappa.engine.registry import Registry
from kappa.engine.schedule import last_due, next_due
from kappa.engine.signals import Signals
from kappa.engine.store import holds, insight, jobs, maintenance
from kappa.engine.store.jobs import NewJob
from kappa.engine.store.maintenance import BATCH
from kappa.pg.ops import Op, run_async
from kappa.pg.queries import Row

log = logging.getLogger(__name__)

AT_ONCE = 0.0
LOCKED_AGAIN = 1.0
"""Seconds until a lease that ran out, but whose row somebody has locked, is looked at again."""
BRIEFLY = 0.02
"""Seconds added to the time until a lease runs out, as two clocks never run alike."""
TURN = 20
"""Batches that a service does before others have their turn."""
PARTITION_DAYS = 15
LATE = timedelta(minutes=1)
"""A due time that is further back counts as missed."""


class Service(Protocol):
    """Something that the leader does now and then."""

    name: str
    every: float
    aside: bool
    """Whether it may take long, by itself or by code of others, and so runs where the prompt ones don't wait for it."""

    async def run_once(self, connection: AsyncConnection[Row], now: datetime | None = None) -> float | None: ...


class Reaper:
    """Clears leases that ran out, so that their jobs are adopted; those of the fleet nobody can adopt.

    Lanes that such a lease held are held no more. It comes back when the next lease runs out: the first that there
    is now, or the shortest that may be given until then.

    A lease whose row somebody has locked can't be renewed either. When the row is free again, its owner has until the
    next look to renew it.
    """

    name = "reaper"
    aside = False

    def __init__(self, signals: Signals, every: float = 15.0) -> None:
        self.every = every
        self._signals = signals
        self._locked: set[int] = set()

    async def run_once(self, connection: AsyncConnection[Row], now: datetime | None = None) -> float | None:
        reaped, left = await self._reap(connection, now)
        while reaped:
            self._signals.emit("reaped", count=reaped)
            reaped, left = await self._reap(connection, now)
        if freed := await run_async(connection, holds.free()):
            log.warning("lanes that a lost job held are free again: %s", ", ".join(freed))
        for pid, ended in (await run_async(connection, maintenance.end_lost_transactions())).items():
            if ended:
                log.warning("ended session %d: it was in the transaction of a job whose lease is lost", pid)
            else:
                log.error("session %d is in the transaction of a job whose lease is lost; not allowed to end it", pid)
        while buried := await run_async(connection, maintenance.bury()):
            self._signals.emit("buried", count=buried)
        if left is None or left > 0:
            self._locked = set()
            return None if left is None else left + BRIEFLY
        self._locked = await run_async(connection, jobs.locked(await run_async(connection, maintenance.over(now))))
        return LOCKED_AGAIN

    async def _reap(self, connection: AsyncConnection[Row], now: datetime | None) -> tuple[int, float | None]:
        """How many, and the seconds until the next. One transaction: a leader that has nothing to do costs little."""
        async with connection.transaction():
            reaped = await run_async(connection, maintenance.reap(now, spared=self._locked))
            return reaped, await run_async(connection, maintenance.next_lease_end(now))


class Promoter:
    """Queues what was scheduled for a time that has come."""

    name = "promoter"
    every = 10.0
    aside = False

    def __init__(self, signals: Signals) -> None:
        self._signals = signals

    async def run_once(self, connection: AsyncConnection[Row], now: datetime | None = None) -> float | None:
        for _ in range(TURN):
            async with connection.transaction():
                promoted = await run_async(connection, maintenance.promote(now))
                due = await run_async(connection, maintenance.next_due(now))
            if promoted:
                self._signals.emit("promoted", count=promoted)
            if promoted < BATCH:
                return due
        return AT_ONCE


class Expiry:
    """Cancels what nobody approved in time."""

    name = "expiry"
    every = 60.0
    aside = False

    async def run_once(self, connection: AsyncConnection[Row], now: datetime | None = None) -> float | None:
        for _ in range(TURN):
            if await run_async(connection, maintenance.expire(now)) < BATCH:
                return None
        return AT_ONCE


class Retention:
    """Deletes finished jobs whose time is over: whole days at once, the day in progress row by row.

    So many at a time. While there are more of something, it comes back for that alone.
    """

    name = "retention"
    every = 300.0
    aside = True

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._left: list[Callable[[AsyncConnection[Row], datetime | None], Awaitable[bool]]] = []

    async def run_once(self, connection: AsyncConnection[Row], now: datetime | None = None) -> float | None:
        if not self._left:
            await self._begin(connection, now)
            self._left = [self._expired, *(partial(_some_of, old) for old in self._registry.forgetting)]
        left, self._left = self._left, []  # a fault begins it all anew
        self._left = [some for some in left if await some(connection, now)]
        return AT_ONCE if self._left else None

    async def _begin(self, connection: AsyncConnection[Row], now: datetime | None) -> None:
        try:
            async with self._briefly(connection):
                await run_async(connection, maintenance.make_partitions(now, PARTITION_DAYS))
            await self._keep_referred(connection, now)
            for table in await run_async(connection, maintenance.past_partitions(now)):
                await self._drop(connection, table, now)
        except psycopg.errors.LockNotAvailable:
            log.warning("somebody reads the history for long: its days are made and dropped next time")
        await run_async(connection, maintenance.forget_sleepers())
        await run_async(connection, maintenance.forget_workers())
        await run_async(connection, maintenance.forget_fleet())
        await run_async(connection, insight.forget_events())

    async def _expired(self, connection: AsyncConnection[Row], now: datetime | None) -> bool:
        async with connection.transaction():
            over = await run_async(connection, maintenance.lock_expired(now))
            await self._keep_referred(connection, now)
            await run_async(connection, maintenance.delete_expired(over, now))
        return bool(over)

    async def _keep_referred(self, connection: AsyncConnection[Row], now: datetime | None) -> None:
        while await run_async(connection, maintenance.keep_referred(now)):
            pass

    async def _drop(self, connection: AsyncConnection[Row], table: str, now: datetime | None) -> None:
        name = sql.Identifier(table)
        async with self._briefly(connection):
            await connection.execute(sql.SQL("LOCK TABLE ONLY kappa.finished_jobs, ONLY kappa.{}").format(name))
            # Nobody can begin to refer to a row of it now; whoever did before has committed.
            await self._keep_referred(connection, now)
            await connection.execute(sql.SQL("DROP TABLE kappa.{}").format(name))

    @asynccontextmanager
    async def _briefly(self, connection: AsyncConnection[Row]) -> AsyncGenerator[None]:
        """A transaction that gives up rather than wait: all settling queues up behind a lock that it waits for."""
        async with connection.transaction():
            await connection.execute("SET LOCAL lock_timeout = '200ms'")
            yield


async def _some_of(
    old: Callable[[datetime | None], Op[int]], connection: AsyncConnection[Row], now: datetime | None
) -> bool:
    return bool(await run_async(connection, old(now)))


class Cron:
    """Enqueues what schedules are due. A due time and its job are written in one transaction: it fires once.

    Whether a job is needed may take a program long to say. No transaction is open and no schedule is locked meanwhile;
    one that was edited by then waits for the next round.
    """

    name = "cron"
    every = 30.0
    aside = True

    def __init__(self, registry: Registry, signals: Signals) -> None:
        self._registry = registry
        self._signals = signals

    async def run_once(self, connection: AsyncConnection[Row], now: datetime | None = None) -> float | None:
        for schedule, at, since in await run_async(connection, maintenance.due_schedules(now)):
            first = schedule.next_at
            try:
                if first is None:  # new, or changed
                    first = next_due(schedule.cron, schedule.timezone, since)
                if first <= at:
                    await self._fire(connection, schedule, since, first, now)
                else:
                    async with connection.transaction():
                        if await run_async(connection, maintenance.lock_due_schedule(schedule, since, now)):
                            await run_async(connection, maintenance.advance_schedule(schedule.name, first))
            except (psycopg.OperationalError, TermOver):
                raise
            except Exception as error:
                # Payload types and `needed` run code of others: what it raises is the failure of this schedule only.
                delay = attempt.backoff(schedule.failures + 1)
                log.error("schedule %s did not fire, next try in %.0f s", schedule.name, delay, exc_info=error)
                said = str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
                await run_async(connection, maintenance.fail_schedule(schedule.name, since, said, delay, now))
        return await run_async(connection, maintenance.next_schedule(now))

    async def _fire(
        self,
        connection: AsyncConnection[Row],
        schedule: Schedule,
        since: datetime,
        first: datetime,
        now: datetime | None,
    ) -> None:
        handler = self._registry.find(schedule.kind)
        text = self._registry.dump_payload(schedule.kind, schedule.payload)
        needed: Op[bool] | None = None
        if handler is not None and handler.needed is not None:
            # In a thread: it may do anything, and other services run on this loop.
            needed = await asyncio.to_thread(handler.needed, handler.load_payload(text))
        new = NewJob(
            schedule.kind,
            text,
            schedule.priority,
            submitted_by=f"schedule {schedule.name}",
            approved_by=f"schedule {schedule.name}",
            timeout=handler.timeout if handler else None,
            max_attempts=handler.max_attempts if handler else 1,
        )
        job: int | None = None
        async with connection.transaction():
            at = await run_async(connection, maintenance.lock_due_schedule(schedule, since, now))
            if at is None:
                return
            due = last_due(schedule.cron, schedule.timezone, first, at)
            upcoming = next_due(schedule.cron, schedule.timezone, at)
            if schedule.missed == "skip" and at - due > LATE:
                await run_async(connection, maintenance.advance_schedule(schedule.name, upcoming))
                return
            if needed is None or await run_async(connection, needed):
                job = await run_async(connection, jobs.enqueue(new))
                if job is None:
                    raise EngineError(f"kind {schedule.kind!r} is in no lane")
            await run_async(connection, maintenance.advance_schedule(schedule.name, upcoming, due, job))
        if job is None:
            self._signals.emit("not_needed", schedule=schedule.name, due=due)
        else:
            self._signals.emit("fired", schedule=schedule.name, due=due, job=job)


def all_services(registry: Registry, signals: Signals) -> Sequence[Service]:
    return (Reaper(signals), Promoter(signals), Expiry(), Cron(registry, signals), Retention(registry))
