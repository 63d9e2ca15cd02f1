"""The blocking client. Generated from async_client.py by `make generate`; edit that one."""

import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain, islice
from types import TracebackType
from typing import Any, Self, TypeVar

import psycopg
from psycopg import Connection

from kappa.engine import orders
from kappa.engine.errors import EngineError, IllegalTransition, JobNotFound, LaneError, ScheduleExists
from kappa.engine.model import Enqueued, Job, JobEvent, JobPage, JobState, Lane, Needs, Relative, Schedule, WorkerSeen
from kappa.engine.registry import Registry, dump_untyped
from kappa.engine.schedule import check_changes, first_fault, next_due, no_schedule
from kappa.engine.store import copy_rows, insight, jobs, lanes, maintenance
from kappa.engine.store.jobs import NewJob
from kappa.engine.together import Together
from kappa.pg import Bounds, Database, Pool, PoolUse
from kappa.pg.ops import Op, run
from kappa.pg.queries import Row

T = TypeVar("T")

BEFORE_START = (JobState.AWAITING_APPROVAL, JobState.SCHEDULED, JobState.QUEUED)
SOME, SOME_CHARACTERS = 2_000, 4_000_000
"""Jobs, and characters of their payloads, that go into one statement."""
LOOK_FIRST = 0.02
LOOK_LAST = 0.5


class Client:
    """Jobs, from outside. Use as a context manager, or `open` and `close`."""

    def __init__(self, database: Database, registry: Registry | None = None, *, bounds: Bounds | None = None) -> None:
        self._registry = registry or Registry()
        bounds = bounds or Bounds(0, 4)
        self._pool = Pool(database.url, "queue", bounds, behind_pooler=database.behind_pooler)
        self._together = Together(self._pool)

    def open(self) -> Self:
        self._pool.open()
        return self

    def close(self) -> None:
        self._pool.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def enqueue(
        self,
        kind: str,
        payload: Any = None,
        *,
        priority: int = 0,
        at: datetime | None = None,
        delay: timedelta | None = None,
        dedup_key: str | None = None,
        timeout: timedelta | None = None,
        max_attempts: int | None = None,
        auto_approve: str | None = None,
        submitted_by: str | None = None,
        retry_of: int | None = None,
        needs: Needs | None = None,
        estimate: Any = None,
        connection: Connection[Row] | None = None,
    ) -> Enqueued:
        """Put one job in. With a `dedup_key` that a live job has, that job is given back as `existing`.

        A kind that asks for approval waits for it, unless `auto_approve` says who approved beforehand or `submitted_by`
        is among those whose jobs need none. `needs` says which remote workers can do it, in a fleet lane. `estimate` is
        for whoever approves it, in place of what the kind itself makes of the payload.
        """
        orders.check_needs(needs)
        new = orders.order(
            self._registry, kind, payload, priority, dedup_key, timeout, max_attempts, auto_approve, submitted_by,
            retry_of,
        )  # fmt: skip
        if at is not None or delay is not None:
            orders.set_time(new, at, delay)
        if estimate is not None:
            new.estimate = dump_untyped(kind, estimate)
        batched = connection is None and needs is None and jobs.is_usual(new)
        if batched and (made := self._together.enqueue(new)) is not None:
            return Enqueued(made, created=True)
        with self._session(connection) as session:
            if needs is None:
                return self._put_in(session, new)
            with session.transaction():
                done = self._put_in(session, new)
                if done.created:
                    run(session, jobs.need(done.id, needs))
                return done

    def _put_in(self, session: Connection[Row], new: NewJob) -> Enqueued:
        for _ in range(5):
            made = run(session, jobs.enqueue(new))
            if made is not None:
                return Enqueued(made, created=True)
            if new.dedup_key is not None:
                found = run(session, jobs.enqueued_before(new))
                if found is not None:
                    return Enqueued(found, created=False)
            if run(session, jobs.lane_of_kind(new.kind)) is None:
                raise orders.in_no_lane(new.kind)
        raise EngineError(f"a job with dedup_key {new.dedup_key!r} came and went while this one was enqueued")

    def enqueue_many(
        self,
        kind: str,
        payloads: Iterable[Any],
        *,
        priority: int = 0,
        at: datetime | None = None,
        timeout: timedelta | None = None,
        submitted_by: str | None = None,
        connection: Connection[Row] | None = None,
    ) -> int:
        """Put many jobs of one kind in, all or none, and say how many: some in one statement, thousands by COPY."""
        new = orders.order_of_many(self._registry, kind, priority, at, timeout, submitted_by)
        texts = map(self._registry.dumper(kind), payloads)
        some = list(islice(texts, SOME + 1))
        if len(some) <= SOME and sum(map(len, some)) <= SOME_CHARACTERS:
            with self._session(connection) as session:
                made = run(session, jobs.enqueue_some(new, some))
            if made is None:
                raise orders.in_no_lane(kind)
            return made
        texts = chain(some, texts)
        if connection is not None:
            # All of them first: one that is refused must not spoil the caller's transaction.
            return self._copy(connection, new, list(texts))
        with self._pool.connection(who="client") as own, own.transaction():
            return self._copy(own, new, texts)

    def _copy(self, connection: Connection[Row], new: NewJob, texts: Iterable[str]) -> int:
        lane = run(connection, jobs.lane_of_kind(new.kind))
        if lane is None:
            raise orders.in_no_lane(new.kind)
        cursor = connection.cursor()
        with cursor.copy(jobs.COPY_IN.sql) as copy:
            for piece in copy_rows.rows(lane, new, texts):
                copy.write(piece)
        at = new.run_at
        told = jobs.wake(lane) if at is None else jobs.announce_due(at)
        run(connection, told)
        return cursor.rowcount

    def approve(self, job_id: int, by: str, *, connection: Connection[Row] | None = None) -> None:
        """Let a job that awaits approval be queued."""
        if by == "":
            raise EngineError("an approval says who gave it: `by` is empty")
        orders.check_text("by", by)
        with self._session(connection) as session:
            if not run(session, jobs.approve(job_id, by)):
                self._refuse(session, job_id, "queued by an approval")

    def auto_approve(self, submitter: str, *, enabled: bool = True) -> None:
        """Let what somebody submits from now on need no approval by others, or need it again."""
        if not submitter:
            raise EngineError("a submitter has a name: an empty one can't approve its own jobs")
        self._do(jobs.auto_approve(submitter, enabled=enabled))

    def auto_approved(self) -> list[str]:
        """Whose jobs need no approval by others."""
        return self._do(jobs.auto_approved())

    def reject(self, job_id: int, *, connection: Connection[Row] | None = None) -> None:
        """End a job that awaits approval as cancelled, with the reason `rejected`."""
        with self._session(connection) as session:
            states = [JobState.AWAITING_APPROVAL]
            if not run(session, jobs.cancel_before_start(job_id, states, "rejected")):
                self._refuse(session, job_id, "cancelled by a rejection")

    def cancel(self, job_id: int, reason: str = "cancelled", *, connection: Connection[Row] | None = None) -> JobState:
        """Cancel a job, and its children. One that runs is told to stop and stays `running` until it did."""
        with self._session(connection) as session:
            for _ in range(5):
                if run(session, jobs.cancel_before_start(job_id, BEFORE_START, reason)):
                    self._cancel_children(session, job_id)
                    return JobState.CANCELLED
                if run(session, jobs.request_cancel(job_id, reason)):
                    self._cancel_children(session, job_id)
                    return JobState.RUNNING
                job = run(session, jobs.show(job_id))
                if job is None or job.state.terminal:
                    break
            self._refuse(session, job_id, "cancelled")
            raise AssertionError

    def _cancel_children(self, session: Connection[Row], job_id: int) -> None:
        for child in run(session, jobs.live_children(job_id)):
            with suppress(IllegalTransition):  # it has ended meanwhile
                self.cancel(child, f"job {job_id}, which began it, was cancelled", connection=session)

    def retry(self, job_id: int, *, approved: bool = True, connection: Connection[Row] | None = None) -> Enqueued:
        """Enqueue a finished job anew. Terminal states never change: it is a new job that knows its origin.

        An approval counts for it as well, unless `approved` says that it should be asked for again.
        """
        if connection is None:
            with self._pool.connection(who="client") as own, own.transaction():
                return self.retry(job_id, approved=approved, connection=own)
        with self._session(connection) as session:
            run(session, jobs.keep(job_id))
            job = self._find(session, job_id)
            if not job.state.terminal:
                raise IllegalTransition(job_id, job.state, "queued again before it ended")
            snoozes = run(session, jobs.snoozes(job_id))
            done = self.enqueue(
                job.kind, job.payload, priority=job.priority, timeout=job.timeout,
                max_attempts=job.max_attempts - snoozes, auto_approve=job.approved_by if approved else None,
                submitted_by=job.submitted_by,
                retry_of=job_id, connection=session,
            )  # fmt: skip
            run(session, jobs.need_the_same(done.id, job_id))
            return done

    def prioritise(self, job_id: int, priority: int, *, connection: Connection[Row] | None = None) -> None:
        """Change the priority of a job that doesn't run yet."""
        orders.check_priority(priority)
        with self._session(connection) as session:
            if not run(session, jobs.prioritise(job_id, priority)):
                self._refuse(session, job_id, "re-prioritised")

    def show(self, job_id: int) -> Job:
        with self._session(None) as session:
            return self._find(session, job_id)

    def list_jobs(
        self,
        *,
        states: Sequence[JobState | str] | None = None,
        kinds: Sequence[str] | None = None,
        lane: str | None = None,
        submitted_by: str | None = None,
        before: int | None = None,
        limit: int = 50,
        connection: Connection[Row] | None = None,
    ) -> list[Job]:
        """Jobs, the newest first; `before` continues after the last id of a page."""
        op = jobs.list_jobs(
            states=_states(states), kinds=kinds, lane=lane, submitted_by=submitted_by, before=before, limit=limit
        )
        with self._session(connection) as session:
            return run(session, op)

    def page_jobs(
        self,
        *,
        states: Sequence[JobState | str] | None = None,
        kinds: Sequence[str] | None = None,
        lane: str | None = None,
        submitted_by: str | None = None,
        before: int | None = None,
        limit: int = 50,
        look_through: int = 300_000,
    ) -> JobPage:
        """A page for somebody who waits: of a kind or lane, no more than so many ids are looked through for it.

        History has no index of either, as one would cost every job that ends. Few that fit are a short page, with a
        `next` to look further.
        """
        first, below, wanted = 0, None, _states(states)
        with self._session(None) as session:
            if jobs.lacks_index(wanted, kinds, lane, submitted_by):
                first, below = run(session, jobs.stretch(before, look_through))
            op = jobs.list_jobs(
                states=wanted, kinds=kinds, lane=lane, submitted_by=submitted_by, first=first, before=before,
                limit=limit + 1,
            )  # fmt: skip
            found = run(session, op)
        return JobPage(found[:limit], found[limit - 1].id if len(found) > limit else below)

    def show_many(self, job_ids: Sequence[int]) -> list[Job]:
        """Those of the jobs that there are, by id, in one statement."""
        return self._do(jobs.show_many(job_ids))

    def workers(self) -> list[WorkerSeen]:
        """The workers that gave a sign of life within the last minute."""
        return self._do(lanes.read_workers())

    def pool_use(self) -> PoolUse:
        return self._pool.use()

    def watch(self, job_id: int) -> Generator[Job]:
        """The job each time that something of it changed, until it has ended."""
        wait, last = LOOK_FIRST, None
        while True:
            job = self.show(job_id)
            if job != last:
                wait, last = LOOK_FIRST, job
                yield job
                if job.state.terminal:
                    return
            time.sleep(wait)
            wait = min(wait * 1.5, LOOK_LAST)

    def wait(self, job_id: int) -> Job:
        """The job when it has ended."""
        for job in self.watch(job_id):
            if job.state.terminal:
                return job
        raise AssertionError

    def counts(self) -> Mapping[tuple[str, JobState], int]:
        """How many live jobs there are, by lane and state."""
        return self._do(jobs.count_by_state())

    def depths(self, limit: int) -> Mapping[tuple[str, JobState], int]:
        """The same, each counted no further than the limit: quick, however long the queues are."""
        return self._do(insight.depths(limit))

    def slots_used(self) -> Mapping[str, int]:
        """How many of each lane's slots are taken in the cluster; a parent that waits for its children has none."""
        return self._do(insight.slots_used())

    def orphans(self, limit: int) -> int:
        """Running jobs that wait to be adopted, counted up to the limit."""
        return self._do(insight.orphans(limit))

    def unoffered(self, limit: int) -> Mapping[tuple[str, str], int]:
        """Jobs of fleet lanes that wait for a kind which no live remote worker offers, by lane and kind."""
        return self._do(insight.unoffered(limit))

    def finished_so_far(self) -> int:
        """A number that grows with every job that ends; only the difference of two looks means something."""
        return self._do(insight.finished_so_far())

    def history(self, job_id: int, limit: int = 200) -> tuple[list[JobEvent], list[Relative]]:
        """What happened to a job on its way, and the jobs that came of it; the first of each where there are many."""
        with self._session(None) as session:
            events = run(session, insight.events(job_id, limit))
            return events, run(session, insight.relatives(job_id, limit))

    def lanes(self) -> list[Lane]:
        return self._do(lanes.read_lanes())

    def declare_lane(self, lane: Lane) -> None:
        """Make a lane if there is none of that name; one that exists only learns the kinds that it lacks."""
        self._lane_op(lane.name, lanes.declare_lane(lane))

    def edit_lane(self, name: str, *, connection: Connection[Row] | None = None, **changes: Any) -> Lane:
        """Change columns of a lane; every worker follows in its next cycle."""
        unknown = [column for column in changes if column not in lanes.COLUMNS]
        if unknown:
            raise LaneError(f"a lane has no {unknown[0]!r} (it has: {', '.join(lanes.COLUMNS)})")
        edited = self._lane_op(name, lanes.edit_lane(name, changes), connection)
        if edited is None:
            raise LaneError(f"there is no lane {name!r}")
        return edited

    def move_kind(self, kind: str, to_lane: str) -> None:
        """Move a kind, and its jobs that don't run, to another lane."""
        try:
            with self._session(None) as session, session.transaction():
                run(session, lanes.lock_lanes())
                known = {lane.name: lane for lane in run(session, lanes.read_lanes())}
                if to_lane not in known:
                    raise LaneError(f"there is no lane {to_lane!r}")
                for lane in known.values():
                    if kind in lane.kinds and lane.name != to_lane:
                        left = [name for name in lane.kinds if name != kind]
                        run(session, lanes.edit_lane(lane.name, {"kinds": left}))
                kinds = [*known[to_lane].kinds, kind]
                run(session, lanes.edit_lane(to_lane, {"kinds": list(dict.fromkeys(kinds))}))
        except psycopg.errors.LockNotAvailable as error:
            raise lanes.refused(to_lane, error) from None

    def put_schedule(self, schedule: Schedule, *, connection: Connection[Row] | None = None) -> Schedule:
        """Make or change a schedule. It fires from its next due time on, which the answer has."""
        return self._write_schedule(maintenance.put_schedule(schedule, self._checked(schedule)), connection)

    def add_schedule(self, schedule: Schedule, *, connection: Connection[Row] | None = None) -> Schedule:
        """Make a schedule, unless there is one of its name."""
        return self._write_schedule(maintenance.declare_schedule(schedule, self._checked(schedule)), connection)

    def edit_schedule(self, name: str, *, connection: Connection[Row] | None = None, **changes: Any) -> Schedule:
        """Change columns of a schedule. Another cron expression or time zone moves its next time at once."""
        check_changes(changes)
        with self._session(connection) as session, session.transaction():
            now = run(session, maintenance.lock_schedule(name))
            if now is None:
                raise no_schedule(name)
            wanted = replace(now, **changes)
            # One that can't fire any more can still be paused.
            pauses = changes == {"enabled": False}
            payload = dump_untyped(wanted.kind, wanted.payload) if pauses else self._checked(wanted)
            return self._write_schedule(maintenance.put_schedule(wanted, payload), session)

    def run_schedule(
        self,
        name: str,
        *,
        submitted_by: str | None = None,
        approved: bool = True,
        connection: Connection[Row] | None = None,
    ) -> Enqueued:
        """Enqueue a schedule's job now; when it is due next doesn't change.

        A kind that asks for approval waits for it if `approved` says so.
        """
        by = submitted_by or f"schedule {name}"
        with self._session(connection) as session, session.transaction():
            schedule = run(session, maintenance.read_schedule(name))
            if schedule is None:
                raise no_schedule(name)
            return self.enqueue(
                schedule.kind, schedule.payload, priority=schedule.priority, submitted_by=by,
                auto_approve=by if approved else None, connection=session,
            )  # fmt: skip

    def drop_schedule(self, name: str, *, connection: Connection[Row] | None = None) -> bool:
        with self._session(connection) as session:
            return run(session, maintenance.drop_schedule(name))

    def schedules(self) -> list[Schedule]:
        return self._do(maintenance.read_schedules())

    def show_schedule(self, name: str) -> Schedule:
        schedule = self._do(maintenance.read_schedule(name))
        if schedule is None:
            raise no_schedule(name)
        return schedule

    def _checked(self, schedule: Schedule) -> str:
        """The payload as JSON text, of a schedule that can fire."""
        fault = first_fault(schedule)
        if fault is not None:
            raise fault
        return self._registry.dump_payload(schedule.kind, schedule.payload)

    def _write_schedule(
        self, write: Op[tuple[Schedule, datetime] | None], connection: Connection[Row] | None
    ) -> Schedule:
        with self._session(connection) as session, session.transaction():
            written = run(session, write)
            if written is None:
                raise ScheduleExists(
                    f"there is a schedule {write.params['name']!r} already: edit it, or take another name"
                )
            schedule, since = written
            if not schedule.enabled or schedule.next_at is not None:
                return schedule
            next_at = next_due(schedule.cron, schedule.timezone, since)
            run(session, maintenance.set_next_at(schedule.name, next_at))
            return replace(schedule, next_at=next_at)

    @contextmanager
    def transaction(self) -> Generator[Connection[Row]]:
        """A transaction of the client's own, for several calls with `connection=` that belong together."""
        with self._pool.transaction(who="client") as own:
            yield own

    def _session(self, connection: Connection[Row] | None) -> AbstractContextManager[Connection[Row], None]:
        return nullcontext(connection) if connection is not None else self._pool.connection(who="client")

    def _do(self, op: Op[T]) -> T:
        with self._pool.connection(who="client") as session:
            return run(session, op)

    def _lane_op(self, name: str, op: Op[T], connection: Connection[Row] | None = None) -> T:
        try:
            with self._session(connection) as session, session.transaction():
                done = run(session, op)
                # Not at the end of the caller's transaction: what is wrong is said here.
                run(session, lanes.check_kinds())
                return done
        except (psycopg.IntegrityError, psycopg.errors.LockNotAvailable) as error:
            raise lanes.refused(name, error) from None

    def _find(self, session: Connection[Row], job_id: int) -> Job:
        job = run(session, jobs.show(job_id))
        if job is None:
            raise JobNotFound(f"there is no job {job_id}")
        return job

    def _refuse(self, session: Connection[Row], job_id: int, wanted: str) -> None:
        job = self._find(session, job_id)
        raise IllegalTransition(job_id, job.state, wanted)


def _states(given: Sequence[JobState | str] | None) -> list[JobState] | None:
    return None if given is None else [JobState(state) for state in given]
