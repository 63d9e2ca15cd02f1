"""Where a worker's attempts hand in what they have: starts, progress, outcomes, signs of life.

Each goes out as one statement for all that is there. What a statement doesn't give back was no longer this worker's:
its attempt is told that the lease is lost, and nothing of it was written.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

import psycopg

from kappa.engine.batch import Batch
from kappa.engine.config import WorkerConfig
from kappa.engine.context import Running
from kappa.engine.model import JobState
from kappa.engine.signals import Signals
from kappa.engine.store import jobs
from kappa.engine.store.jobs import Finish, PutBack
from kappa.pg import AsyncPool
from kappa.pg.ops import Op, run_async

T = TypeVar("T")

log = logging.getLogger(__name__)


class Desk:
    """Batches of everything that attempts write."""

    def __init__(
        self, pool: AsyncPool, config: WorkerConfig, signals: Signals, done: Callable[[Running], None]
    ) -> None:
        self._pool = pool
        self._signals = signals
        self._done = done
        self._quick = Batch("settle", self._settle_quick)
        self._finish = Batch("settle", self._settle, self._refused)
        self._back = Batch("put back", self._put_back, self._refused)
        self._starts = Batch("start", self._mark, pause=config.start_mark_after.total_seconds())
        self._reports = Batch("progress", self._report, pause=config.progress_every.total_seconds())
        self._running: dict[int, Running] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for batch in (self._quick, self._finish, self._back, self._starts, self._reports):
                group.create_task(batch.run())

    async def empty(self) -> None:
        """Until every outcome that was handed in is written."""
        for batch in (self._quick, self._finish, self._back):
            await batch.empty()

    @property
    def running(self) -> Iterable[Running]:
        return self._running.values()

    def find(self, job_id: int) -> Running | None:
        return self._running.get(job_id)

    def begin(self, running: Running) -> None:
        """An attempt is under way, with a lease to renew and a start to count."""
        self._running[running.claimed.id] = running
        if not running.started:
            self._starts.add(running)

    def report(self, running: Running) -> None:
        self._reports.add(running)

    def succeed(self, running: Running) -> None:
        """Hand in a success that has nothing to say."""
        running.finished = True
        self._quick.add(running)

    def settle(self, running: Running, outcome: Finish | PutBack) -> None:
        """Hand in an outcome. The slot is free when it is written."""
        running.finished = True
        if isinstance(outcome, PutBack):
            self._back.add((running, outcome))
        elif outcome.state is JobState.SUCCEEDED and outcome.result is None:
            self._quick.add(running)
        else:
            self._finish.add((running, outcome))

    def committed(self, running: Running) -> None:
        """The handler's own transaction settled the job."""
        self._signals.emit("settled", job=running.claimed.id, kind=running.claimed.kind, state=JobState.SUCCEEDED)
        self.forget(running)

    def forget(self, running: Running) -> None:
        """The attempt is over, by whatever way."""
        running.finished = True
        running.task = None  # or the two would refer to each other until the collector comes
        self._running.pop(running.claimed.id, None)
        self._done(running)

    async def renew(self) -> None:
        """Renew every lease in one statement; lost ones and cancelled ones are told."""
        held = [running for running in self._running.values() if not running.finished and not running.lost]
        if not held:
            return
        kept = await self._do(jobs.renew([running.held for running in held]))
        for running in held:
            if running.finished:
                continue
            if running.claimed.id not in kept:
                self.lose(running)
            elif (reason := kept[running.claimed.id]) is not None:
                running.cancel_reason = reason

    def lose(self, running: Running) -> None:
        running.lost = True
        self._signals.emit("lease_lost", job=running.claimed.id, kind=running.claimed.kind, lane=running.lane)
        log.warning("job %d: the lease is lost", running.claimed.id)

    async def release(self) -> None:
        """Give up every lease that is still held, so that others adopt the jobs at once."""
        held = [running for running in self._running.values() if not running.finished and not running.lost]
        if held:
            await self._do(jobs.release([running.held for running in held]))
            for running in held:
                running.lost = True

    async def _do(self, op: Op[T]) -> T:
        async with self._pool.connection(who="desk") as connection:
            return await run_async(connection, op)

    async def _settle_quick(self, batch: list[Running]) -> None:
        written = await self._do(jobs.settle_succeeded([running.held for running in batch]))
        for running in batch:
            self._close(running, written, JobState.SUCCEEDED)

    async def _settle(self, batch: list[tuple[Running, Finish]]) -> None:
        written = await self._do(jobs.settle([outcome for _, outcome in batch]))
        for running, outcome in batch:
            self._close(running, written, outcome.state)

    async def _put_back(self, batch: list[tuple[Running, PutBack]]) -> None:
        written = await self._do(jobs.put_back([outcome for _, outcome in batch]))
        for running, outcome in batch:
            self._close(running, written, JobState.SCHEDULED if outcome.delay > 0 else JobState.QUEUED)

    def _refused(self, handed_in: tuple[Running, Finish | PutBack], error: psycopg.Error) -> None:
        """The outcome can't be written as it is; that it can't is an outcome too."""
        running, outcome = handed_in
        summary = f"its outcome could not be kept ({type(error).__name__})"
        plain = Finish(*running.held, JobState.FAILED, summary=summary)
        if outcome == plain:
            self.lose(running)
            self.forget(running)
        else:
            self._finish.add((running, plain))

    def _close(self, running: Running, written: set[int], state: JobState) -> None:
        if running.claimed.id in written:
            if self._signals.heard:
                self._signals.emit("settled", job=running.claimed.id, kind=running.claimed.kind, state=state)
        else:
            self.lose(running)
        self.forget(running)

    async def _mark(self, batch: list[Running]) -> None:
        young = [running for running in batch if not running.finished and not running.lost]
        if young:
            marked = await self._do(jobs.mark_started([running.held for running in young]))
            for running in young:
                running.started = running.claimed.id in marked

    async def _report(self, batch: list[Running]) -> None:
        latest = {running.claimed.id: running for running in batch if not running.finished}
        reports = [(*running.held, *running.progress) for running in latest.values() if running.progress is not None]
        if reports:
            await self._do(jobs.progress(reports))
