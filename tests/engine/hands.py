"""Jobs by hand: the store's operations on plain connections, and rivals that are made to wait."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

import psycopg

from kappa.engine import Engine
from kappa.engine.context import Running
from kappa.engine.model import Claimed, Job, JobState
from kappa.engine.store import jobs, maintenance
from kappa.engine.store.jobs import Finish, NewJob, PutBack
from kappa.pg.ops import run
from tests.ground import eventually

T = TypeVar("T")

Connection = psycopg.Connection[tuple[Any, ...]]

TERMINAL = (JobState.SUCCEEDED, JobState.FAILED, JobState.TIMED_OUT, JobState.CANCELLED)

BLOCKED = """
    SELECT pid FROM pg_stat_activity
     WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0
"""


WRITES_WAIT = """
DO $$
DECLARE
    hasty regprocedure;
BEGIN
    FOR hasty IN SELECT oid FROM pg_proc WHERE 'lock_timeout=200ms' = ANY (proconfig) LOOP
        EXECUTE format('ALTER FUNCTION %s SET lock_timeout = 60000', hasty);
    END LOOP;
END $$
"""


def put(connection: Connection, kind: str = "ingestion", payload: str = "null", **fields: Any) -> int:
    """A new job; `ingestion` belongs to the lane `interactive`, which has 2 slots."""
    made = run(connection, jobs.enqueue(NewJob(kind, payload, **fields)))
    assert made is not None
    return made


def take(
    connection: Connection, lane: str = "interactive", *, owner: str = "one", capacity: int = 100, **more: Any
) -> list[Claimed]:
    return run(connection, jobs.claim(lane, owner, capacity, **more))


def start(connection: Connection, **fields: Any) -> Claimed:
    """A new job that runs and was seen to start."""
    made = put(connection, **fields)
    claimed = next(job for job in take(connection) if job.id == made)
    assert run(connection, jobs.mark_started([(claimed.id, claimed.token)])) == {made}
    return claimed


def finish(connection: Connection, state: JobState = JobState.SUCCEEDED, **fields: Any) -> int:
    """A new job that ended."""
    claimed = start(connection, **fields)
    assert run(connection, jobs.settle([Finish(claimed.id, claimed.token, state)])) == {claimed.id}
    return claimed.id


def renew(connection: Connection, held: list[tuple[int, int]]) -> dict[int, str | None]:
    """The jobs whose lease was renewed, each with the reason if it should be cancelled."""
    found = run(connection, jobs.renew(held))
    return {job: renewal.cancel_reason for job, renewal in found.items() if renewal.renewed}


def in_state(connection: Connection, state: JobState) -> tuple[int, int]:
    """A new job in that state, and the token of its lease, or one that nobody has."""
    if state is JobState.AWAITING_APPROVAL:
        return put(connection, approval=True), -1
    if state is JobState.SCHEDULED:
        return put(connection, delay=timedelta(hours=1)), -1
    if state is JobState.QUEUED:
        return put(connection), -1
    claimed = start(connection, max_attempts=3)
    if state in TERMINAL:
        run(connection, jobs.settle([Finish(claimed.id, claimed.token, state)]))
    return claimed.id, claimed.token


def reap(connection: Connection) -> int:
    """What the reaper does when every lease that there is has run out."""
    return run(connection, maintenance.reap(later(connection, hours=1)))


def orphan(connection: Connection, **fields: Any) -> int:
    """A new job that was started by an owner who is gone."""
    claimed = start(connection, **fields)
    run(connection, jobs.release([(claimed.id, claimed.token)]))
    return claimed.id


def see(connection: Connection, job_id: int) -> Job:
    found = run(connection, jobs.show(job_id))
    assert found is not None
    return found


def row(connection: Connection, job_id: int, *columns: str) -> tuple[Any, ...]:
    """Columns of a live job that no `Job` shows."""
    names = psycopg.sql.SQL(", ").join(map(psycopg.sql.Identifier, columns))
    statement = psycopg.sql.SQL("SELECT {} FROM kappa.jobs WHERE id = %s").format(names)
    found = connection.execute(statement, [job_id]).fetchone()
    assert found is not None
    return found


def later(connection: Connection, **span: float) -> datetime:
    """The database's time after a while."""
    found = connection.execute("SELECT clock_timestamp() + %s", [timedelta(**span)]).fetchone()
    assert found is not None
    return found[0]


def running_here(engine: Engine, claimed: Claimed) -> Running:
    """An attempt as its worker knows it, of a handler that takes and gives anything."""
    if engine.registry.find(claimed.kind) is None:
        engine.registry.add(claimed.kind, lambda ctx, payload: payload)
    return Running(claimed, engine.registry.get(claimed.kind), "interactive")


def every_write_of_an_owner(job_id: int, token: int) -> dict[str, jobs.Op[Any]]:
    """All that an owner can write of a job, by the name of the verb."""
    held = [(job_id, token)]
    return {
        "settle": jobs.settle([Finish(job_id, token, JobState.FAILED, summary="stale")]),
        "settle_succeeded": jobs.settle_succeeded(held),
        "put_back": jobs.put_back([PutBack(job_id, token, 1.0)]),
        "progress": jobs.progress([(job_id, token, 1.0, 2.0, "stale")]),
        "checkpoint": jobs.checkpoint(job_id, token, '"stale"'),
        "mark_started": jobs.mark_started(held),
        "renew": jobs.renew(held),
        "release": jobs.release(held),
        "release_slot": jobs.release_slot(job_id, token),
        "reacquire_slot": jobs.reacquire_slot(job_id, token),
    }


@contextmanager
def rival(act: Callable[[], T], url: str) -> Iterator["Future[T]"]:
    """Do something in a thread; whatever still waits for a lock at the end is cancelled."""
    with ThreadPoolExecutor(1) as threads:
        begun = threads.submit(act)
        try:
            yield begun
        finally:
            if not begun.done():
                with psycopg.connect(url, autocommit=True) as admin:
                    for (pid,) in admin.execute(BLOCKED).fetchall():
                        admin.execute("SELECT pg_cancel_backend(%s)", [pid])


@contextmanager
def rival_with(act: Callable[[Connection], T], url: str) -> Iterator["Future[T]"]:
    """The same on a connection of its own. Writes of workers, which give up soon where a row is locked, wait here."""
    with psycopg.connect(url, autocommit=True) as own:
        own.execute(WRITES_WAIT)
    with psycopg.connect(url, autocommit=True) as own, rival(lambda: act(own), url) as begun:
        yield begun


def moves_wait(connection: Connection) -> None:
    """An edit that moves a kind gives up after two seconds, and a test may be held up for longer."""
    connection.execute("ALTER FUNCTION kappa.place_kinds() SET lock_timeout = '60s'")


def wait_until_blocked(witness: Connection, count: int = 1) -> None:
    """Until so many sessions of this database wait for a lock that another one holds."""
    eventually(lambda: len(witness.execute(BLOCKED).fetchall()) >= count, what=f"{count} sessions that wait for a lock")


def outcome(begun: "Future[T]") -> T:
    return begun.result(timeout=30)
