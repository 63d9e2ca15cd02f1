"""What the leader does for everybody: promotion, expiry, retention and reaping, with time moved by `now`."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, Connection, sql

from kappa.engine import Client, Engine, JobContext, JobNotFound, JobState, Lane, Schedule, WorkerConfig
from kappa.engine.maintenance.services import AT_ONCE, LOCKED_AGAIN, PARTITION_DAYS, Expiry, Promoter, Reaper, Retention
from kappa.engine.registry import Registry
from kappa.engine.store import jobs, lanes, leadership, maintenance
from kappa.engine.store.jobs import Finish, NewJob, PutBack
from kappa.engine.store.maintenance import BATCH
from kappa.engine.testing import Heard, maintain, working
from kappa.pg.ops import Op, run
from kappa.pg.queries import Query, Row
from tests.engine.hands import renew
from tests.ground import eventually

Session = Connection[Row]

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@pytest.fixture
async def leader(url: str) -> AsyncIterator[AsyncConnection[Row]]:
    """A connection such as the leader has."""
    async with await AsyncConnection.connect(url, autocommit=True) as opened:
        yield opened


@pytest.fixture
def other(url: str) -> Any:
    """A second session, for whoever is in the way."""
    with psycopg.connect(url, autocommit=True) as opened:
        yield opened


def only(name: str) -> Any:
    return lambda service: service == name


def clock(session: Session) -> datetime:
    found = session.execute("SELECT now()").fetchone()
    assert found is not None
    return found[0]


def value(session: Session, query: str, *params: object) -> Any:
    found = session.execute(query.encode(), params).fetchone()
    return found[0] if found else None


def last_expiry(session: Session) -> datetime:
    """When the last of the finished jobs may be deleted."""
    return value(session, "SELECT max(keep_until) FROM kappa.finished_jobs")


def finished(session: Session, state: JobState = JobState.SUCCEEDED, **new: Any) -> int:
    """A job that ended just now."""
    job = run(session, jobs.enqueue(NewJob("polarity", "null", **new)))
    assert job is not None
    (claimed,) = run(session, jobs.claim("interactive", "me", 1))
    assert claimed.id == job
    assert run(session, jobs.settle([Finish(job, claimed.token, state)])) == {job}
    return job


def orphan_to_be(session: Session, kind: str = "polarity", lane: str = "interactive") -> int:
    """A job under the lease of an owner that nobody hears of again."""
    job = run(session, jobs.enqueue(NewJob(kind, "null", max_attempts=3)))
    claimed = run(session, jobs.claim(lane, "gone", 1))
    assert [one.id for one in claimed] == [job]
    run(session, jobs.mark_started([(claimed[0].id, claimed[0].token)]))
    assert job is not None
    return job


def partitions(session: Session) -> list[str]:
    rows = session.execute(
        """SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
            WHERE inhparent = 'kappa.finished_jobs'::regclass"""
    )
    return sorted(row[0] for row in rows)


def homes(session: Session, job: int) -> list[str]:
    """The partitions that hold a finished job."""
    rows = session.execute(
        "SELECT relname FROM kappa.finished_jobs AS f JOIN pg_class AS c ON c.oid = f.tableoid WHERE id = %s", [job]
    )
    return [row[0] for row in rows]


def day_name(day: datetime) -> str:
    return f"finished_jobs_{day.astimezone(UTC):%Y%m%d}"


def is_there(client: Client, job: int) -> bool:
    try:
        client.show(job)
    except JobNotFound:
        return False
    return True


async def test_a_scheduled_job_is_queued_when_its_time_has_come_and_not_before(engine: Engine, client: Client) -> None:
    job = client.enqueue("polarity", delay=HOUR).id
    await maintain(engine, later=timedelta(minutes=59), only=only("promoter"))
    assert client.show(job).state is JobState.SCHEDULED
    await maintain(engine, later=timedelta(minutes=61), only=only("promoter"))
    promoted = client.show(job)
    assert (promoted.state, promoted.run_at) == (JobState.QUEUED, None)


async def test_promotion_goes_in_batches_until_nothing_is_due(
    engine: Engine, client: Client, connection: Session, leader: AsyncConnection[Row], heard: Heard
) -> None:
    due = clock(connection) + HOUR
    client.enqueue_many("polarity", range(2 * BATCH + 7), at=due)
    client.enqueue_many("polarity", range(5), at=due + HOUR)
    wait = await Promoter(engine.signals).run_once(leader, due + timedelta(minutes=30))
    assert [facts["count"] for facts in heard.all("promoted")] == [BATCH, BATCH, 7]
    assert client.counts() == {
        ("interactive", JobState.QUEUED): 2 * BATCH + 7,
        ("interactive", JobState.SCHEDULED): 5,
    }
    assert wait == pytest.approx(30 * 60, abs=1)


async def test_the_jobs_that_are_due_first_are_promoted_first(client: Client, connection: Session) -> None:
    due = clock(connection) + HOUR
    late, early = (client.enqueue("polarity", at=due + timedelta(minutes=m)).id for m in (5, 1))
    assert run(connection, maintenance.promote(due + HOUR, limit=1)) == 1
    assert (client.show(early).state, client.show(late).state) == (JobState.QUEUED, JobState.SCHEDULED)


async def test_promotion_tells_each_lane_once_however_many_jobs_it_got(
    engine: Engine, client: Client, connection: Session, other: Session
) -> None:
    due = clock(connection) + HOUR
    client.enqueue_many("polarity", range(50), at=due)
    client.enqueue_many("tool_run", range(50), at=due)
    other.execute("LISTEN kappa_wake")
    await maintain(engine, later=2 * HOUR, only=only("promoter"))
    other.execute("SELECT 1")
    told = [note.payload for note in other.notifies(timeout=0)]
    assert sorted(told) == ["interactive", "tools"]


async def test_a_sleeping_worker_runs_a_scheduled_job_when_it_is_due(engine: Engine, heard: Heard) -> None:
    # Much longer than the test waits: only the promotion's NOTIFY can wake the lane in time.
    engine.lane(Lane("naps", kinds=("nap",), poll_interval_ms=3_600_000))

    @engine.job("nap")
    def nap(ctx: JobContext) -> None: ...

    engine.install()
    async with working(engine), engine.async_client() as client:
        await heard.until("leading")
        await heard.until("asleep")
        job = (await client.enqueue("nap", delay=timedelta(milliseconds=150))).id
        await heard.until("promoted")
        assert (await heard.until("settled"))["job"] == job


async def test_a_job_that_nobody_approves_for_a_day_is_cancelled_as_expired(engine: Engine, client: Client) -> None:
    @engine.job("restore", approval=True)
    def restore(ctx: JobContext) -> None: ...

    job = client.enqueue("restore").id
    await maintain(engine, later=DAY - timedelta(minutes=1), only=only("expiry"))
    assert client.show(job).state is JobState.AWAITING_APPROVAL
    await maintain(engine, later=DAY + timedelta(minutes=1), only=only("expiry"))
    ended = client.show(job)
    assert (ended.state, ended.reason, ended.attempt) == (JobState.CANCELLED, "expired", 0)
    assert ended.finished_at is not None
    assert (ended.started_at, ended.approved_by) == (None, None)


async def test_an_approved_job_does_not_expire(engine: Engine, client: Client) -> None:
    @engine.job("restore", approval=True)
    def restore(ctx: JobContext) -> None: ...

    job = client.enqueue("restore").id
    client.approve(job, by="anna")
    await maintain(engine, later=30 * DAY, only=only("expiry"))
    assert client.show(job).state is JobState.QUEUED


async def test_how_long_a_job_waits_for_approval_is_a_setting(connection: Session, client: Client) -> None:
    connection.execute("UPDATE kappa.engine_settings SET approval_wait = '1 hour'")
    job = run(connection, jobs.enqueue(NewJob("restore", "null", approval=True)))
    assert job is not None
    assert run(connection, maintenance.expire(clock(connection) + timedelta(minutes=61))) == 1
    assert client.show(job).reason == "expired"


async def test_expiry_goes_in_batches_until_nothing_is_over(
    connection: Session, leader: AsyncConnection[Row], client: Client
) -> None:
    connection.execute(
        """INSERT INTO kappa.jobs (lane, kind, state, expires_at)
           SELECT 'system', 'restore', 'awaiting_approval', now() FROM generate_series(1, %s)""",
        [BATCH + 3],
    )
    await Expiry().run_once(leader, clock(connection) + HOUR)
    assert client.counts() == {}
    assert value(connection, "SELECT count(*) FROM kappa.finished_jobs WHERE reason = 'expired'") == BATCH + 3


@pytest.mark.parametrize(
    ("state", "kept"),
    [
        (JobState.SUCCEEDED, timedelta(hours=48)),
        (JobState.CANCELLED, timedelta(hours=48)),
        (JobState.FAILED, timedelta(days=7)),
        (JobState.TIMED_OUT, timedelta(days=7)),
    ],
)
async def test_a_finished_job_is_deleted_after_its_states_retention_and_not_before(
    engine: Engine, client: Client, connection: Session, state: JobState, kept: timedelta
) -> None:
    job = finished(connection, state)
    await maintain(engine, later=kept - timedelta(minutes=1), only=only("retention"))
    assert client.show(job).state is state
    await maintain(engine, later=kept + timedelta(minutes=1), only=only("retention"))
    assert not is_there(client, job)


async def test_retention_follows_the_settings(engine: Engine, client: Client, connection: Session) -> None:
    connection.execute("UPDATE kappa.engine_settings SET keep_done = '1 hour', keep_failed = '2 hours'")
    done, failed = finished(connection), finished(connection, JobState.FAILED)
    await maintain(engine, later=timedelta(minutes=90), only=only("retention"))
    assert (is_there(client, done), is_there(client, failed)) == (False, True)
    await maintain(engine, later=timedelta(minutes=150), only=only("retention"))
    assert not is_there(client, failed)


async def test_live_jobs_are_never_deleted(engine: Engine, client: Client) -> None:
    job = client.enqueue("polarity").id
    await maintain(engine, later=365 * DAY, only=only("retention"))
    assert client.show(job).state is JobState.QUEUED


async def test_a_child_is_kept_while_its_parent_lives(engine: Engine, client: Client, connection: Session) -> None:
    parent = client.enqueue("tool_run").id
    child = finished(connection, parent_id=parent, spawn_key="a")
    for days in (3, 5, 9):
        await maintain(engine, later=days * DAY, only=only("retention"))
        assert client.show(child).parent_id == parent
    client.cancel(parent)
    await maintain(engine, later=11 * DAY, only=only("retention"))
    assert not is_there(client, child)


async def test_the_origin_of_a_retry_is_kept_while_the_retry_lives(
    engine: Engine, client: Client, connection: Session
) -> None:
    origin = finished(connection, JobState.FAILED)
    retry = client.retry(origin).id
    for days in (8, 10, 14):
        await maintain(engine, later=days * DAY, only=only("retention"))
        assert client.show(origin).state is JobState.FAILED
    client.cancel(retry)
    await maintain(engine, later=16 * DAY, only=only("retention"))
    assert not is_there(client, origin)


async def test_a_parent_is_kept_while_its_child_lives(engine: Engine, client: Client, connection: Session) -> None:
    parent = finished(connection)
    child = run(connection, jobs.enqueue(NewJob("tool_run", "null", parent_id=parent, spawn_key="a")))
    assert child is not None
    for days in (3, 5, 9):
        await maintain(engine, later=days * DAY, only=only("retention"))
        assert client.show(parent).state is JobState.SUCCEEDED
    client.cancel(child)
    await maintain(engine, later=11 * DAY, only=only("retention"))
    assert not is_there(client, parent)


async def test_the_origins_of_a_retry_are_kept_as_long_as_the_retry_is(
    engine: Engine, client: Client, connection: Session
) -> None:
    connection.execute("UPDATE kappa.engine_settings SET keep_failed = '2 days'")
    first = finished(connection, JobState.FAILED)
    second = finished(connection, JobState.FAILED, retry_of=first)
    connection.execute("UPDATE kappa.engine_settings SET keep_failed = '10 days'")
    third = finished(connection, JobState.FAILED, retry_of=second)
    for days in (3, 5, 9):
        await maintain(engine, later=days * DAY, only=only("retention"))
        assert [is_there(client, job) for job in (first, second, third)] == [True] * 3
    for days in (11, 13):
        await maintain(engine, later=days * DAY, only=only("retention"))
    assert [is_there(client, job) for job in (first, second, third)] == [False] * 3


async def test_origins_of_origins_are_kept_however_many_there_are(
    engine: Engine, client: Client, connection: Session
) -> None:
    connection.execute("UPDATE kappa.engine_settings SET keep_failed = '2 days'")
    chain = [finished(connection, JobState.FAILED)]
    for _ in range(20):
        chain.append(finished(connection, JobState.FAILED, retry_of=chain[-1]))
    retry = client.retry(chain[-1]).id
    for days in (3, 5):
        await maintain(engine, later=days * DAY, only=only("retention"))
        assert all(is_there(client, job) for job in chain)
    client.cancel(retry)
    await maintain(engine, later=12 * DAY, only=only("retention"))
    assert not any(is_there(client, job) for job in chain)


async def test_what_something_refers_to_since_retention_began_its_round_is_kept(
    client: Client, connection: Session, leader: AsyncConnection[Row]
) -> None:
    retention = Retention(Registry())
    gone = finished(connection)
    # The day is not over yet, whatever time it is: the row is deleted by itself, not with its day.
    assert await retention.run_once(leader, last_expiry(connection)) == AT_ONCE  # it comes back for more
    origin, other = finished(connection), finished(connection)
    client.retry(origin)
    await retention.run_once(leader, last_expiry(connection))
    assert [is_there(client, job) for job in (gone, origin, other)] == [False, True, False]


async def test_what_a_schedule_enqueued_last_is_kept(engine: Engine, client: Client, connection: Session) -> None:
    before, last = finished(connection), finished(connection)
    client.put_schedule(Schedule("yearly", "0 0 1 1 *", "polarity"))
    connection.execute("UPDATE kappa.schedules SET last_job = %s", [last])
    for days in (3, 5, 9):
        await maintain(engine, later=days * DAY, only=only("retention"))
        assert (is_there(client, before), is_there(client, last)) == (False, True)
    client.drop_schedule("yearly")
    await maintain(engine, later=11 * DAY, only=only("retention"))
    assert not is_there(client, last)


@pytest.mark.parametrize("later", [49 * HOUR, 4 * DAY], ids=["row by row", "with its whole day"])
async def test_a_retry_that_is_being_made_keeps_its_origin(
    client: Client, connection: Session, other: Session, leader: AsyncConnection[Row], later: timedelta
) -> None:
    now = clock(connection) + later
    run(connection, maintenance.make_partitions(now, 2 * PARTITION_DAYS))
    if later < 3 * DAY:  # no day is left to be dropped, for the lock of which the other would be waited for
        await Retention(Registry()).run_once(leader, now)
    origin = finished(connection)
    with other.transaction():
        retry = client.retry(origin, connection=other)
        cleaning = asyncio.create_task(Retention(Registry()).run_once(leader, now))
        pid = leader.info.backend_pid
        await asyncio.to_thread(eventually, lambda: cleaning.done() or is_blocked(connection, pid))
    await cleaning
    await Retention(Registry()).run_once(leader, now)
    assert client.show(retry.id).retry_of == origin
    assert is_there(client, origin)


async def test_somebody_who_reads_the_history_for_long_holds_no_settling_up(
    connection: Session, other: Session, leader: AsyncConnection[Row]
) -> None:
    connection.execute("SET lock_timeout = '10s'")
    other.execute("BEGIN")
    other.execute("SELECT count(*) FROM kappa.finished_jobs")
    now = clock(connection) + 3 * DAY
    cleaning = asyncio.create_task(Retention(Registry()).run_once(leader, now))
    pid = leader.info.backend_pid
    await asyncio.to_thread(eventually, lambda: cleaning.done() or is_blocked(connection, pid))
    try:
        await asyncio.to_thread(finished, connection)
        await cleaning
    finally:
        other.execute("ROLLBACK")
    await Retention(Registry()).run_once(leader, now)
    assert day_name(now - DAY) not in partitions(connection)
    assert day_name(now + 14 * DAY) in partitions(connection)


def is_blocked(session: Session, pid: int) -> bool:
    return bool(value(session, "SELECT cardinality(pg_blocking_pids(%s))", pid))


async def test_days_are_made_ahead_and_past_days_are_dropped_whole(engine: Engine, connection: Session) -> None:
    today = clock(connection)
    assert set(partitions(connection)) >= {day_name(today + n * DAY) for n in range(PARTITION_DAYS - 1)}
    await maintain(engine, later=5 * DAY, only=only("retention"))
    later = today + 5 * DAY
    wanted = {day_name(later + n * DAY) for n in range(PARTITION_DAYS)} | {"finished_jobs_rest"}
    assert set(partitions(connection)) == wanted


async def test_a_dropped_day_takes_all_its_rows_at_once(engine: Engine, client: Client, connection: Session) -> None:
    many = 30_000
    connection.execute(
        """INSERT INTO kappa.finished_jobs
               (id, lane, kind, state, priority, payload, created_at, max_attempts, attempt, finished_at, keep_until)
           SELECT n, 'tools', 'tool_run', 'succeeded', 0, 'null', now(), 1, 1, now(), now() + interval '1 day'
             FROM generate_series(1, %s) AS n""",
        [many],
    )
    await maintain(engine, later=3 * DAY, only=only("retention"))
    assert value(connection, "SELECT count(*) FROM kappa.finished_jobs") == 0


async def test_rows_that_only_the_default_partition_took_are_deleted_too(
    engine: Engine, client: Client, connection: Session
) -> None:
    connection.execute("UPDATE kappa.engine_settings SET keep_done = '60 days'")
    job = finished(connection)
    assert homes(connection, job) == ["finished_jobs_rest"]
    await maintain(engine, later=59 * DAY, only=only("retention"))
    assert is_there(client, job)
    await maintain(engine, later=61 * DAY, only=only("retention"))
    assert not is_there(client, job)


async def test_a_day_that_the_default_partition_took_rows_of_does_not_stop_maintenance(
    engine: Engine, client: Client, connection: Session
) -> None:
    connection.execute("UPDATE kappa.engine_settings SET keep_done = '20 days'")
    job = finished(connection)
    await maintain(engine, later=10 * DAY, only=only("retention"))
    taken = day_name(clock(connection) + 20 * DAY)
    assert taken not in partitions(connection)
    assert day_name(clock(connection) + 21 * DAY) in partitions(connection)
    assert is_there(client, job)
    await maintain(engine, later=21 * DAY, only=only("retention"))
    assert not is_there(client, job)


async def test_what_a_program_forgets_goes_bit_by_bit_and_others_have_their_turn_in_between(
    connection: Session, leader: AsyncConnection[Row]
) -> None:
    connection.execute("CREATE TABLE old AS SELECT generate_series(1, 3) AS id")
    some = Query("some", Path(__file__), b"DELETE FROM old WHERE id = (SELECT min(id) FROM old) RETURNING id", ())
    registry = Registry()
    registry.forgetting.append(lambda now: Op(some, {}, len))
    retention = Retention(registry)
    left = []
    while await retention.run_once(leader) == AT_ONCE:
        left.append(value(connection, "SELECT count(*) FROM old"))
    assert left == [2, 1, 0]


async def test_a_longer_retention_still_gets_days_of_its_own(engine: Engine, connection: Session) -> None:
    connection.execute("UPDATE kappa.engine_settings SET keep_failed = '30 days'")
    await maintain(engine, only=only("retention"))
    job = finished(connection, JobState.FAILED)
    assert homes(connection, job) == [day_name(clock(connection) + 30 * DAY)]


async def test_a_finished_job_lies_in_the_day_on_which_it_may_go(connection: Session) -> None:
    job = finished(connection)
    assert homes(connection, job) == [day_name(clock(connection) + 2 * DAY)]


async def test_sleepers_that_never_left_are_forgotten(engine: Engine, connection: Session) -> None:
    run(connection, lanes.fall_asleep("tools", "a worker that was killed"))
    await maintain(engine, only=only("retention"))
    assert value(connection, "SELECT count(*) FROM kappa.sleepers") == 0


async def test_a_lease_that_ran_out_is_cleared_and_the_job_stays_running(
    engine: Engine, client: Client, connection: Session, heard: Heard
) -> None:
    job = orphan_to_be(connection)
    await maintain(engine, later=timedelta(seconds=30), only=only("reaper"))
    assert client.show(job).lease_owner == "gone"
    await maintain(engine, later=timedelta(seconds=61), only=only("reaper"))
    reaped = client.show(job)
    assert (reaped.state, reaped.lease_owner, reaped.lease_until) == (JobState.RUNNING, None, None)
    assert (reaped.attempt, reaped.started_at is not None) == (1, True)
    assert [facts["count"] for facts in heard.all("reaped")] == [1]


async def test_a_lease_that_is_renewed_while_the_reaper_looks_is_left_alone(
    engine: Engine, client: Client, connection: Session, other: Session, leader: AsyncConnection[Row]
) -> None:
    job = orphan_to_be(connection)
    connection.execute("UPDATE kappa.jobs SET lease_until = now() - interval '1 second'")
    token = value(connection, "SELECT lease_token FROM kappa.jobs WHERE id = %s", job)
    with other.transaction():
        assert set(renew(other, [(job, token)])) == {job}
        # Its row is locked by the renewal: the reaper goes on without waiting for it.
        await Reaper(engine.signals).run_once(leader)
    await Reaper(engine.signals).run_once(leader)
    assert client.show(job).lease_owner == "gone"


async def test_reaping_goes_in_batches_and_tells_each_lane_once_a_batch(
    engine: Engine, connection: Session, other: Session, leader: AsyncConnection[Row], heard: Heard
) -> None:
    connection.execute(
        """INSERT INTO kappa.jobs (lane, kind, state, lease_owner, lease_token, lease_until)
           SELECT 'tools', 'tool_run', 'running', 'gone', n, now() FROM generate_series(1, %s) AS n""",
        [BATCH + 5],
    )
    other.execute("LISTEN kappa_wake")
    await Reaper(engine.signals).run_once(leader, clock(connection) + HOUR)
    assert [facts["count"] for facts in heard.all("reaped")] == [BATCH, 5]
    other.execute("SELECT 1")
    assert [note.payload for note in other.notifies(timeout=0)] == ["tools", "tools"]


@pytest.mark.parametrize("light", [False, True], ids=["of a job", "of a batch"])
async def test_the_reaper_looks_again_when_the_next_lease_runs_out(
    engine: Engine, client: Client, connection: Session, leader: AsyncConnection[Row], *, light: bool
) -> None:
    run(connection, lanes.edit_lane("interactive", {"executor": "async", "max_slots": 10}))
    for owner in ("first", "second"):
        run(connection, jobs.enqueue(NewJob("polarity", "null", max_attempts=3)))
        (claimed,) = run(connection, jobs.claim("interactive", owner, 1, light_kinds=["polarity"] if light else None))
        assert claimed.light is light
    now = clock(connection)
    table = sql.Identifier("kappa", "batch_leases" if light else "jobs")
    until = sql.SQL("UPDATE {} SET lease_until = %s WHERE {} = %s")
    for owner, seconds in (("first", 7), ("second", 30)):
        own = sql.Identifier("owner" if light else "lease_owner")
        connection.execute(until.format(table, own), [now + timedelta(seconds=seconds), owner])
    reaper = Reaper(engine.signals)
    assert await reaper.run_once(leader, now) == pytest.approx(7, abs=0.1)
    # Those that are given from now on count as well: the shortest that there can be.
    later = now + timedelta(seconds=31)
    run(connection, lanes.edit_lane("tools", {"lease_ttl": timedelta(seconds=9)}))
    assert await reaper.run_once(leader, later) == pytest.approx(9, abs=0.1)
    assert value(connection, "SELECT count(*) FROM kappa.jobs WHERE state = 'running' AND lease_token IS NULL") == 2


async def test_the_reaper_looks_again_soon_for_a_lease_that_somebody_has_locked(
    engine: Engine, connection: Session, other: Session, leader: AsyncConnection[Row]
) -> None:
    job = orphan_to_be(connection)
    later, reaper = clock(connection) + HOUR, Reaper(engine.signals)
    with other.transaction():
        other.execute("SELECT FROM kappa.jobs WHERE id = %s FOR UPDATE", [job])
        for _ in range(2):
            assert await reaper.run_once(leader, later) == LOCKED_AGAIN
    # Its owner, who could not renew it, has until the look after this one.
    assert await reaper.run_once(leader, later) == LOCKED_AGAIN
    assert value(connection, "SELECT lease_token FROM kappa.jobs WHERE id = %s", job) is not None
    assert (await reaper.run_once(leader, later) or 0) > LOCKED_AGAIN
    assert value(connection, "SELECT lease_token FROM kappa.jobs WHERE id = %s", job) is None


async def test_a_shorter_lease_of_a_lane_wakes_the_reaper(engine: Engine, client: Client, heard: Heard) -> None:
    async with working(engine) as worker:
        await heard.until("leading")
        leader = worker._leader
        await asyncio.to_thread(eventually, lambda: leader._due["cron"] > 0, what="a first round")
        far = leader._due["reaper"] = time.monotonic() + 3600
        client.edit_lane("interactive", lease_ttl=timedelta(seconds=1))
        await asyncio.to_thread(eventually, lambda: leader._due["reaper"] < far, what="an earlier look")


async def test_orphans_are_reaped_while_every_slot_of_every_worker_is_busy(
    engine: Engine, connection: Session, other: Session, heard: Heard
) -> None:
    go_on = threading.Event()
    engine.lane(Lane("long", kinds=("long",), max_slots=2))

    @engine.job("long")
    def long(ctx: JobContext) -> None:
        go_on.wait(30)

    engine.install()
    # Nobody leads before the slots are taken: the test does.
    run(other, leadership.try_lead("test", HOUR))
    try:
        async with working(engine, WorkerConfig(lead_every=timedelta(milliseconds=50))):
            for _ in range(2):
                run(connection, jobs.enqueue(NewJob("long", "null")))
            await heard.until("claimed", count=2)
            orphan = orphan_to_be(connection)
            connection.execute("UPDATE kappa.jobs SET lease_until = now() WHERE id = %s", [orphan])
            other.close()
            await heard.until("reaped")
            assert value(connection, "SELECT lease_owner FROM kappa.jobs WHERE id = %s", orphan) is None
            assert value(connection, "SELECT count(*) FROM kappa.jobs WHERE lane = 'long'") == 2
            go_on.set()
    finally:
        go_on.set()


async def test_an_orphan_is_adopted_before_queued_work(engine: Engine, client: Client, connection: Session) -> None:
    job = orphan_to_be(connection)
    client.enqueue("polarity", priority=100)
    await maintain(engine, later=timedelta(minutes=2), only=only("reaper"))
    (claimed,) = run(connection, jobs.claim("interactive", "next", 1))
    assert (claimed.id, claimed.adopted, claimed.started, claimed.attempt) == (job, True, True, 1)


def test_a_job_that_was_claimed_very_often_does_not_stop_its_lane(client: Client, connection: Session) -> None:
    weary = client.enqueue("polarity").id
    fresh = client.enqueue("polarity").id
    connection.execute("UPDATE kappa.jobs SET claims = 32767 WHERE id = %s", [weary])
    assert {claimed.id for claimed in run(connection, jobs.claim("interactive", "me", 2))} == {weary, fresh}


def test_a_parent_that_ends_its_wait_counts_for_a_claimer_that_remembers_a_floor(
    client: Client, connection: Session
) -> None:
    for _ in range(3):
        client.enqueue("polarity")
    (parent,) = run(connection, jobs.claim("interactive", "a", 1))
    assert run(connection, jobs.release_slot(parent.id, parent.token))
    (second,) = run(connection, jobs.claim("interactive", "b", 1))
    assert run(connection, jobs.reacquire_slot(parent.id, parent.token))
    # Two run and two may: what `b` learned from its last claim mustn't hide the first of them.
    assert run(connection, jobs.claim("interactive", "b", 1, floor_token=second.token_floor or 0)) == []


def test_only_a_day_that_is_over_counts_as_past(connection: Session) -> None:
    noon = clock(connection).astimezone(UTC).replace(hour=12)
    # A run that crosses midnight has yesterday's partition as well.
    assert day_name(noon) not in run(connection, maintenance.past_partitions(noon))
    assert run(connection, maintenance.past_partitions(noon + DAY))[-1] == day_name(noon)


@pytest.mark.parametrize("how", ["put back", "released", "reaped"])
def test_a_job_whose_kind_moved_while_it_ran_is_found_in_its_new_lane(
    client: Client, connection: Session, how: str
) -> None:
    job = client.enqueue("polarity").id
    (claimed,) = run(connection, jobs.claim("interactive", "a", 1))
    client.move_kind("polarity", "tools")
    if how == "put back":
        run(connection, jobs.put_back([PutBack(job, claimed.token, started=False)]))
    elif how == "released":
        run(connection, jobs.release([(job, claimed.token)]))
    else:
        run(connection, maintenance.reap(clock(connection) + HOUR))
    (again,) = run(connection, jobs.claim("tools", "b", 1, kinds=["tool_run", "polarity"]))
    assert again.id == job


@pytest.mark.parametrize("inside", [False, True], ids=["by itself", "in a transaction"])
def test_a_connection_that_rolled_back_still_takes_jobs(client: Client, connection: Session, inside: bool) -> None:
    client.enqueue("polarity", connection=connection)
    for _ in range(10):  # often enough for psycopg to prepare it, and so to deallocate all at the rollback
        run(connection, jobs.show(1))
    with connection.transaction(force_rollback=True):
        connection.execute("SELECT 1")
    with connection.transaction() if inside else nullcontext():
        client.enqueue("polarity", connection=connection)
    assert client.counts() == {("interactive", JobState.QUEUED): 2}
