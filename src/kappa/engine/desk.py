"""Where a worker's attempts hand in what they have: starts, progress, outcomes.

Each goes out as one statement for all that is there. What a statement doesn't give back was no longer this worker's:
its attempt is told that the lease is lost, and nothing of it was written.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from kappa.engine.batch import Batch
from kappa.engine.config import WorkerConfig
from kappa.engine.context import Running
from kappa.engine.model import JobState
from kappa.engine.signals import Signals
from kappa.engine.store import jobs
from kappa.engine.store.jobs import Ages, Finish, PutBack, Renewal
from kappa.pg import AsyncPool
from kappa.pg.ops import Op, run_async

T = TypeVar("T")

log = logging.getLogger(__name__)

OVERDUE = 5.0
"""Seconds for which an attempt whose time is up keeps its lease while nobody has stopped it."""


class Desk:
    """Batches of everything that attempts write."""

    def __init__(
        self,
        pool: AsyncPool,
        config: WorkerConfig,
        signals: Signals,
        done: Callable[[Running], None],
        carry: Callable[[Running], bool],
        outlasted: Callable[[Running], None],
    ) -> None:
        self._pool = pool
        self._signals = signals
        self._done = done
        self._carry = carry
        self._outlasted = outlasted
        self._quick = Batch("settle", self._settle_quick, refused=self._unwritable, locked=self._locked)
        self._finish = Batch(
            "settle", self._settle, refused=lambda item, error: self._unwritable(item[0], error), locked=self._locked_of
        )
        self._back = Batch(
            "put back",
            self._put_back,
            refused=lambda item, error: self._unwritable(item[0], error),
            locked=self._locked_of,
        )
        self._starts = Batch("start", self._mark, refused=self._ignored, locked=self._locked)
        self._mark_after = config.start_mark_after.total_seconds()
        self._young: deque[Running] = deque()
        self._some_young = asyncio.Event()
        self._careful_starts = Batch(
            "start",
            self._mark_and_start,
            refused=lambda item, error: self._unwritable(item[0], error),
            locked=self._locked_of,
        )
        self._reports = Batch(
            "progress",
            self._report,
            refused=self._ignored,
            locked=self._locked,
            pause=config.progress_every.total_seconds(),
        )
        self._running: dict[int, Running] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for batch in (self._quick, self._finish, self._back, self._starts, self._careful_starts, self._reports):
                group.create_task(batch.run())
            group.create_task(self._watch_young())

    async def begun(self) -> None:
        """Until every attempt that waits for its start to be written has begun."""
        await self._careful_starts.empty()

    async def empty(self) -> None:
        """Until every outcome that was handed in is written."""
        for batch in (self._quick, self._finish, self._back):
            await batch.empty()

    @property
    def running(self) -> Iterable[Running]:
        return self._running.values()

    def find(self, job_id: int) -> Running | None:
        return self._running.get(job_id)

    def begin(self, running: Running, start: Callable[[Running], None], *, is_late: bool = False) -> None:
        """An attempt is under way, with a lease to renew and a start to count.

        The last attempt that a job may have begins only when its start is written: it must not be run twice because
        its worker was lost in between. So does every attempt of a job that vanished once without a start that anybody
        saw: there may have been one, and there won't be another. And so does one whose claim was answered so late that
        the lease may be over.
        """
        if running.claimed.id in self._running:
            self.supersede(running.claimed.id)
        self._running[running.claimed.id] = running
        if running.started:
            start(running)
        elif is_late or running.attempt >= running.claimed.max_attempts or running.claimed.claims > running.attempt:
            self._careful_starts.add((running, start))
        else:
            start(running)  # first: whoever watches the young ones has time
            if not self._young:
                self._some_young.set()
            self._young.append(running)

    def supersede(self, job_id: int) -> None:
        """A new lease of a job means that an attempt which still runs here lost its own."""
        if (earlier := self._running.get(job_id)) is not None and not (earlier.finished or earlier.lost):
            self.lose(earlier)

    def report(self, running: Running) -> None:
        self._reports.add(running)

    def succeed(self, running: Running) -> None:
        """Hand in a success that has nothing to say. A lane that is about to claim again takes it along."""
        running.finished = True
        if running.progress is not None or not self._carry(running):
            self._quick.add(running)

    def succeeded(self, batch: Iterable[Running], lost: set[int]) -> None:
        """What became of successes that were taken along."""
        if lost or self._signals.heard:
            for running in batch:
                self._close(running, running.claimed.id not in lost, JobState.SUCCEEDED)
        else:
            for running in batch:
                self.forget(running)

    def settle(self, running: Running, outcome: Finish | PutBack) -> None:
        """Hand in an outcome. The slot is free when it is written."""
        running.finished = True
        if isinstance(outcome, PutBack):
            self._back.add((running, outcome))
        elif outcome.state is JobState.SUCCEEDED and outcome.result is None:
            self.succeed(running)
        else:
            self._finish.add((running, outcome))

    def committed(self, running: Running) -> None:
        """The handler's own transaction settled the job."""
        self._say_settled(running, JobState.SUCCEEDED)
        self.forget(running)

    def forget(self, running: Running) -> None:
        """The attempt is over, by whatever way."""
        running.finished = True
        running.task = None  # or the two would refer to each other until the collector comes
        if self._running.get(running.claimed.id) is running:  # not a later attempt of the same job
            del self._running[running.claimed.id]
        self._done(running)

    async def write_down(self, running: Running) -> None:
        """Before anything is written of a job by its row: the lease that it shares with its batch gets there first."""
        if running.light:
            self._outlasted(running)
            await self._do(jobs.write_down(*running.held))
            running.light = False

    def leases(self) -> list[Running]:
        """The leases to renew; also for the heartbeat's thread. An outcome that is not written yet needs its lease.

        Time-outs are the event loop's work. Should the loop stand still, the lease of an attempt that is over its time
        runs out: another worker will find out about it.
        """
        overdue = time.monotonic() - OVERDUE
        return [
            running
            for running in list(self._running.values())
            if not running.lost and (running.finished or running.deadline > overdue)
        ]

    def renewed(self, leases: Iterable[Running], found: Mapping[int, Renewal]) -> None:
        """What the heartbeat heard: lost leases and cancelled jobs."""
        for running in leases:
            if running.finished or running.ending:
                continue  # its row may be gone because its own outcome is written
            renewal = found.get(running.claimed.id)
            if renewal is None:
                self.lose(running)
            elif renewal.cancel_reason is not None:
                running.cancel_reason = renewal.cancel_reason

    def lose(self, running: Running) -> None:
        running.lost = True
        if running.lost_told:
            return
        running.lost_told = True
        seconds = time.monotonic() - running.begun
        self._signals.emit("lease_lost", **running.facts, seconds=seconds)
        log.warning("job %d: the lease is lost", running.claimed.id, extra=running.facts)

    async def release(self) -> None:
        """Give up every lease that is still held, so that others adopt the jobs at once."""
        held = [running for running in self._running.values() if not running.finished and not running.lost]
        if held:
            await self._do(jobs.release([running.held for running in held]))
            for running in held:
                running.lost = True

    async def _locked(self, batch: list[Running]) -> list[Running]:
        ids = await self._do(jobs.locked(running.claimed.id for running in batch))
        return [running for running in batch if running.claimed.id in ids]

    async def _locked_of(self, batch: list[tuple[Running, T]]) -> list[tuple[Running, T]]:
        locked = await self._locked([running for running, _ in batch])
        return [item for item in batch if item[0] in locked]

    async def _do(self, op: Op[T]) -> T:
        async with self._pool.connection(who="desk") as connection:
            return await run_async(connection, op)

    async def _do_aged(self, begun: list[Running], op: Callable[[Ages], Op[T]]) -> T:
        async with self._pool.connection(who="desk") as connection:
            # Only now: to wait for a connection makes no start later.
            return await run_async(connection, op({running.claimed.id: running.age for running in begun}))

    async def _settle_quick(self, batch: list[Running]) -> None:
        await self._write_progress(batch)  # the last word, which would have been written a little later
        written = await self._do(jobs.settle_succeeded([running.held for running in batch]))
        self.succeeded(batch, {running.claimed.id for running in batch} - written)

    async def _settle(self, batch: list[tuple[Running, Finish]]) -> None:
        await self._write_progress([running for running, _ in batch])
        begun = [running for running, _ in batch]
        written = await self._do_aged(begun, lambda ages: jobs.settle([outcome for _, outcome in batch], ages))
        for running, outcome in batch:
            self._close(running, outcome.id in written, outcome.state)

    async def _put_back(self, batch: list[tuple[Running, PutBack]]) -> None:
        await self._write_progress([running for running, _ in batch])
        begun = [running for running, _ in batch]
        written = await self._do_aged(begun, lambda ages: jobs.put_back([outcome for _, outcome in batch], ages))
        for running, outcome in batch:
            self._close(running, outcome.id in written, JobState.SCHEDULED if outcome.delay > 0 else JobState.QUEUED)

    def _unwritable(self, running: Running, error: Exception) -> None:
        """An outcome that the database refuses: the job fails, and the others of its batch are none the worse."""
        if running.unwritable:
            log.error("job %d: its outcome can't be written: %s", running.claimed.id, error, extra=running.facts)
            return self.forget(running)
        running.unwritable = True
        running.progress = None
        log.warning("job %d: the database refuses its outcome: %s", running.claimed.id, error, extra=running.facts)
        summary = "what the handler gave can't be kept"
        return self.settle(running, Finish(*running.held, JobState.FAILED, summary=summary))

    def _ignored(self, running: Running, error: Exception) -> None:
        log.warning("job %d: the database refuses a report: %s", running.claimed.id, error, extra=running.facts)

    def _close(self, running: Running, written: bool, state: JobState) -> None:
        if written:
            self._say_settled(running, state)
        else:
            self.lose(running)
        self.forget(running)

    def _say_settled(self, running: Running, state: JobState) -> None:
        if self._signals.heard:
            claimed, seconds = running.claimed, time.monotonic() - running.begun
            self._signals.emit(
                "settled", job=claimed.id, kind=claimed.kind, lane=running.lane, state=state, seconds=seconds,
                attempt=running.attempt, adopted=claimed.adopted,
            )  # fmt: skip

    async def _watch_young(self) -> None:
        """Attempts in the order in which they began: most end soon, and those that don't are marked as started."""
        while True:
            self._some_young.clear()
            if not self._young:
                await self._some_young.wait()
            await asyncio.sleep(self._young[0].begun + self._mark_after - time.monotonic())
            due = time.monotonic() - self._mark_after
            while self._young and (self._young[0].finished or self._young[0].begun <= due):
                running = self._young.popleft()
                if running.task is None and not (running.finished or running.lost):
                    running.begins()  # its turn has not come
                    self._young.append(running)
                elif not (running.finished or running.lost):
                    if running.light:
                        self._outlasted(running)
                    self._starts.add(running)

    async def _mark(self, batch: list[Running]) -> None:
        if young := [running for running in batch if not running.finished and not running.lost]:
            held = [running.held for running in young]
            self._marked(young, await self._do_aged(young, lambda ages: jobs.mark_started(held, ages)))

    def _marked(self, batch: list[Running], marked: set[int]) -> None:
        for running in batch:
            running.started = running.claimed.id in marked
            running.light = False

    async def _mark_and_start(self, batch: list[tuple[Running, Callable[[Running], None]]]) -> None:
        wanted = [running for running, _ in batch if not running.finished and not running.lost]
        self._marked(wanted, await self._do(jobs.mark_started([running.held for running in wanted])))
        for running, start in batch:
            if running.finished:
                continue  # its time was up before it began
            if running.started and not running.lost:
                start(running)
            else:
                if not running.lost:
                    self.lose(running)
                self.forget(running)

    async def _report(self, batch: list[Running]) -> None:
        await self._write_progress([running for running in batch if not running.finished])

    async def _write_progress(self, batch: list[Running]) -> None:
        latest = {running.held: running.progress for running in batch if running.progress is not None}
        if not latest:
            return
        await self._do(jobs.progress([(*held, *progress) for held, progress in latest.items()]))
        for running in batch:
            if running.light and not running.finished:
                self._outlasted(running)
                running.light = False
            if running.progress is latest.get(running.held):
                running.progress = None
