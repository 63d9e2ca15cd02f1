"""Another session has a job's row locked for as long as it likes, and nothing but that job waits for it."""

import asyncio
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from kappa.engine import AsyncJobContext, Client, Engine, Executor, JobState, Lane, WorkerConfig, lane_runner
from kappa.engine.fleet import store
from kappa.engine.fleet.store import Ending, Update
from kappa.engine.store import jobs, lanes, leadership, maintenance
from kappa.engine.store.jobs import Finish, PutBack, Renewal
from kappa.engine.testing import Heard, working
from kappa.engine.tools import store as tools
from kappa.pg.ops import run
from tests.engine.fleet.floor import held as held_task
from tests.engine.fleet.floor import open_lane, server, started
from tests.engine.fleet.floor import put as put_task
from tests.engine.fleet.floor import take as take_task
from tests.engine.hands import Connection, later, put, see, start, take, wait_until_blocked
from tests.engine.site import HOUR_MS, Site, place, seen, time_is_up
from tests.engine.work import LANE

FOLLOWER = WorkerConfig(lead=False)


@pytest.fixture(params=list(Executor)[:3], ids=lambda executor: executor.value)
def executor(request: pytest.FixtureRequest) -> Executor:
    return request.param


@contextmanager
def locked(url: str, job_id: int) -> Generator[Connection, None, None]:
    """The job's row in the hands of another session."""
    with psycopg.connect(url) as other:
        other.execute("SELECT FROM kappa.jobs WHERE id = %s FOR UPDATE", [job_id])
        yield other


def lease_until(site: Site, job_id: int) -> datetime:
    return site.rows("SELECT lease_until FROM kappa.jobs WHERE id = %s", job_id)[0]


def starts_wait_at_gate(site: Site) -> None:
    """No start of an attempt is written until gate 77 is opened."""
    site.do("""
        CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM pg_advisory_xact_lock_shared(4242, 77);
            RETURN NEW;
        END $$""")
    site.do("""CREATE TRIGGER wait_at_gate BEFORE UPDATE ON kappa.jobs FOR EACH ROW
                WHEN (NEW.attempt_started_at IS NOT NULL AND OLD.attempt_started_at IS NULL)
                EXECUTE FUNCTION wait_at_gate()""")
    site.shut(77)


# Renewals


@pytest.mark.parametrize("why", ["locked", "cancelled"])
def test_a_renewal_passes_a_locked_row_by_and_does_not_take_its_lease_for_lost(
    url: str, connection: Connection, why: str
) -> None:
    for _ in range(2):
        put(connection)
    one, two = take(connection)
    both = [(one.id, one.token), (two.id, two.token)]
    connection.execute("SET lock_timeout = '20s'")
    with psycopg.connect(url) as other:
        if why == "locked":
            other.execute("SELECT FROM kappa.jobs WHERE id = %s FOR UPDATE", [one.id])
        else:
            assert run(other, jobs.request_cancel(one.id, "enough"))
        found = run(connection, jobs.renew([*both, (one.id, one.token - 1)]))
    assert found == {one.id: Renewal(None, renewed=False), two.id: Renewal(None, renewed=True)}
    assert run(connection, jobs.renew(both))[one.id].renewed


async def test_a_locked_row_costs_no_other_job_of_the_worker_its_lease(
    engine: Engine, client: Client, site: Site, executor: Executor
) -> None:
    place(engine, executor, "hold", ttl=2)
    site.shut(1)
    watched, other = (client.enqueue("hold", site.task(gate=1, text=name)).id for name in ("one", "two"))
    async with working(engine, FOLLOWER):
        for name in ("one", "two"):
            await asyncio.to_thread(site.until_said, f"began {name} 1")
        await seen(lambda: client.show(watched).attempt == 1)
        with locked(site.url, other):
            until = lease_until(site, watched)
            await seen(lambda: lease_until(site, watched) > until + timedelta(seconds=4), what="renewals")
        until = lease_until(site, other)
        await seen(lambda: lease_until(site, other) > until, what="the lease of the row that is free again")
        site.open(1)
        await seen(lambda: {client.show(job).state for job in (watched, other)} == {JobState.SUCCEEDED})


async def test_a_worker_whose_own_row_is_locked_keeps_its_leases(
    engine: Engine, client: Client, site: Site, executor: Executor
) -> None:
    place(engine, executor, "hold", ttl=2)
    site.shut(1)
    job = client.enqueue("hold", site.task(gate=1, text="one")).id
    async with working(engine, FOLLOWER):
        await seen(lambda: client.show(job).attempt == 1)
        with psycopg.connect(site.url) as other:
            other.execute("SELECT FROM kappa.workers FOR UPDATE")
            until = lease_until(site, job)
            await seen(lambda: lease_until(site, job) > until + timedelta(seconds=4), what="renewals")
        site.open(1)
        await seen(lambda: client.show(job).state is JobState.SUCCEEDED)


async def test_a_session_that_the_server_does_not_serve_costs_no_lease(
    engine: Engine, client: Client, site: Site, heard: Heard
) -> None:
    """The server's process of the session that renews leases is frozen, while it has nothing locked."""

    def freeze() -> int | None:
        for pid in site.rows(RESTING.replace("1", "pid", 1)):
            os.kill(pid, signal.SIGSTOP)
            if site.rows("SELECT 1 FROM kappa.jobs WHERE id = %s FOR UPDATE SKIP LOCKED", job):
                return pid
            os.kill(pid, signal.SIGCONT)
        return None

    def held_for(seconds: int) -> bool:
        assert site.rows("SELECT 1 FROM kappa.jobs WHERE id = %s AND lease_until > clock_timestamp()", job)
        return lease_until(site, job) > until + timedelta(seconds=seconds)

    place(engine, Executor.ASYNC, "hold", ttl=4)
    site.shut(1)
    job = client.enqueue("hold", site.task(gate=1, text="one")).id
    async with working(engine, FOLLOWER):
        await seen(lambda: client.show(job).attempt == 1)
        frozen = await seen(freeze)
        try:
            until = lease_until(site, job)
            await seen(lambda: held_for(8), what="renewals")
        finally:
            os.kill(frozen, signal.SIGCONT)
        site.open(1)
        await seen(lambda: client.show(job).state is JobState.SUCCEEDED)


async def test_a_row_that_is_locked_when_its_job_ends_keeps_no_other_outcome_waiting(
    engine: Engine, client: Client, site: Site, heard: Heard
) -> None:
    """The locked job is settled when its row is free, and its lease is kept until then."""
    go = asyncio.Event()

    @engine.job("wait")
    async def wait(ctx: AsyncJobContext) -> str:
        await go.wait()
        return "done"

    engine.lane(Lane(LANE, kinds=("wait",), max_slots=8, executor=Executor.ASYNC, poll_interval_ms=HOUR_MS))
    engine.install()
    ids = [client.enqueue("wait").id for _ in range(4)]
    async with working(engine, FOLLOWER):
        for job in ids:
            await seen(lambda job=job: client.show(job).attempt == 1)
        with locked(site.url, ids[1]):
            go.set()
            for job in (ids[0], ids[2], ids[3]):
                await seen(lambda job=job: client.show(job).state is JobState.SUCCEEDED)
            after = client.enqueue("wait").id
            await seen(lambda: client.show(after).state is JobState.SUCCEEDED)
            assert client.show(ids[1]).state is JobState.RUNNING
        await seen(lambda: client.show(ids[1]).state is JobState.SUCCEEDED)
    assert not heard.all("lease_lost")


async def test_a_row_that_is_locked_when_its_job_starts_keeps_no_other_job_from_starting(
    engine: Engine, client: Client, site: Site
) -> None:
    """A last attempt begins when its start is written. Here the write waits until the row of one job is locked."""
    place(engine, Executor.ASYNC, "hold")
    starts_wait_at_gate(site)
    first, second = (client.enqueue("hold", site.task(text=name)).id for name in ("one", "two"))
    async with working(engine, FOLLOWER):
        await seen(lambda: {client.show(job).state for job in (first, second)} == {JobState.RUNNING})
        with locked(site.url, first):
            site.open(77)
            await asyncio.to_thread(site.until_said, "began two 1")
            assert "began one 1" not in site.said
        await asyncio.to_thread(site.until_said, "began one 1")


async def test_the_time_of_a_job_does_not_run_before_it_begins(engine: Engine, client: Client, site: Site) -> None:
    """Here it waits for its start to be written."""
    place(engine, Executor.ASYNC, "hold", timeout=timedelta(hours=1))
    starts_wait_at_gate(site)
    made = client.enqueue("hold", site.task(text="one")).id
    async with working(engine, FOLLOWER) as worker:
        await seen(lambda: client.show(made).state is JobState.RUNNING)
        await seen(lambda: worker._desk.find(made))  # pyright: ignore[reportPrivateUsage]
        time_is_up(worker, made)
        await seen(lambda: not worker._deadline_nears.is_set())  # pyright: ignore[reportPrivateUsage]
        site.open(77)
        await seen(lambda: client.show(made).state.terminal)
    assert (client.show(made).state, client.show(made).result) == (JobState.SUCCEEDED, "one 1")


# Slots of parents


async def test_a_parent_whose_row_is_locked_keeps_no_claim_of_its_lane_waiting(
    engine: Engine, client: Client, site: Site, connection: Connection
) -> None:
    place(engine, Executor.ASYNC, "parent", "child", slots=2)
    site.shut(1)
    made = client.enqueue("parent", site.task(gate=1)).id
    async with working(engine, WorkerConfig(lead=False, lanes=(LANE,))):
        await asyncio.to_thread(site.until_said, "child 0 began")
        await seen(lambda: site.rows("SELECT waiting FROM kappa.jobs WHERE id = %s", made) == [True])
        with locked(site.url, made):
            site.open(1)
            await asyncio.to_thread(wait_until_blocked, connection)  # it wants its slot again
            later = client.enqueue("child", site.task(count=9)).id
            await seen(lambda: client.show(later).state is JobState.SUCCEEDED, what="a claim of the lane")
            assert client.show(made).state is JobState.RUNNING
        await seen(lambda: client.show(made).state is JobState.SUCCEEDED)


# The fleet


@pytest.fixture
def fleet_lane(connection: Connection) -> None:
    open_lane(connection)


@pytest.mark.usefixtures("fleet_lane")
def test_beats_pass_a_locked_row_by_and_do_not_take_its_lease_for_lost(url: str, connection: Connection) -> None:
    one, two = started(connection), started(connection)
    connection.execute("UPDATE kappa.jobs SET lease_until = now() WHERE state = 'running'")
    connection.execute("SET lock_timeout = '20s'")
    with locked(url, one.id):
        told = run(connection, store.beat([held_task(one), held_task(two)]))
    assert told == [(0, store.LOCKED, None)]
    left = dict(connection.execute("SELECT id, lease_until > now() FROM kappa.jobs").fetchall())
    assert left == {one.id: False, two.id: True}


@pytest.mark.usefixtures("fleet_lane")
async def test_a_beat_that_found_the_row_locked_is_repeated_by_the_server(url: str, connection: Connection) -> None:
    one = started(connection)
    connection.execute("UPDATE kappa.jobs SET lease_until = now() WHERE state = 'running'")
    over = "SELECT lease_until > now() FROM kappa.jobs"
    async with server(url) as fleet:
        with locked(url, one.id):
            assert await fleet.beats([held_task(one)]) == []
        await seen(lambda: connection.execute(over).fetchone() == (True,))


@pytest.mark.usefixtures("fleet_lane")
async def test_a_locked_row_keeps_no_other_update_or_settlement_of_the_fleet_waiting(
    url: str, connection: Connection
) -> None:
    one, two, three = (started(connection) for _ in range(3))
    async with server(url) as fleet:
        with locked(url, one.id):
            answers = await asyncio.gather(
                fleet.updates(Update(held_task(one), True, 1.0, None, None, None)),
                fleet.updates(Update(held_task(two), True, 2.0, None, None, None)),
                fleet.settlements(Ending(held_task(one), "succeeded", None)),
                fleet.settlements(Ending(held_task(three), "succeeded", None)),
                return_exceptions=True,
            )
        assert [str(answers[0]), str(answers[2])] == ["another session has locked what this call needs: try again"] * 2
        assert answers[1] == (None,)
        assert see(connection, three.id).state is JobState.SUCCEEDED
        assert await fleet.settlements(Ending(held_task(one), "succeeded", None)) is not None


@pytest.mark.usefixtures("fleet_lane")
def test_a_repeated_request_for_a_task_whose_row_is_locked_gets_it_and_keeps_no_claim_waiting(
    url: str, connection: Connection
) -> None:
    put_task(connection)
    (first,) = take_task(connection)
    connection.execute("SET lock_timeout = '20s'")
    with locked(url, first.id):
        (again,) = take_task(connection)
    assert (again.id, again.token) == (first.id, first.token)


# Tool runs


def tool_run(connection: Connection, **fields: Any) -> int:
    """The job of a new run."""
    run(connection, tools.put_tool("wc", "1", "", None, ["wc"], "{}", timedelta(minutes=1), None))
    run_id, made = run(connection, tools.make_run("wc", "1", None, "null")), put(connection, "tool_run", **fields)
    run(connection, tools.tie_run(run_id, made))
    return made


def run_of(connection: Connection, job_id: int) -> tools.ToolRun:
    (found,) = [one for one in run(connection, tools.read_runs()) if one.job_id == job_id]
    return found


def test_nothing_that_becomes_of_a_job_waits_for_the_row_of_its_tool_run(url: str, connection: Connection) -> None:
    job = tool_run(connection, max_attempts=2)
    expiring = tool_run(connection, approval=True)
    cancelled = tool_run(connection)
    with psycopg.connect(url) as other:
        other.execute("SELECT FROM kappa.tool_runs FOR UPDATE")
        connection.execute("SET lock_timeout = '5s'")
        assert run(connection, jobs.cancel_before_start(cancelled, [JobState.QUEUED], "enough"))
        assert run(connection, maintenance.expire(later(connection, days=2))) == 1
        for attempt in (1, 2):
            (claimed,) = take(connection, "tools")
            assert run(connection, jobs.mark_started([(job, claimed.token)])) == {job}
            found = run_of(connection, job)
            assert (found.status, found.attempt, found.started_at is None) == ("running", attempt, False)
            if attempt == 1:
                assert run(connection, jobs.put_back([PutBack(job, claimed.token, 60.0, summary="once")])) == {job}
                found = run_of(connection, job)
                assert (found.status, found.available_at is None, found.error_summary) == ("queued", False, "once")
                assert run(connection, maintenance.promote(later(connection, hours=1))) == 1
        failed = Finish(job, claimed.token, JobState.FAILED, summary="twice")
        assert run(connection, jobs.settle([failed])) == {job}
    found = run_of(connection, job)
    assert (found.status, found.attempt, found.error_summary) == ("failed", 2, "twice")
    assert found.finished_at == see(connection, job).finished_at is not None
    assert [run_of(connection, one).reason for one in (expiring, cancelled)] == ["expired", "enough"]


def test_the_tool_runs_of_a_fleet_keep_no_beat_or_settlement_waiting_while_a_row_is_locked(
    url: str, connection: Connection
) -> None:
    run(connection, lanes.edit_lane("tools", {"executor": Executor.FLEET, "max_slots": 10}))
    ids = [tool_run(connection) for _ in range(3)]
    given = take_task(connection, most=3, kinds=("tool_run",))
    one, two, three = (held_task(task) for task in given)
    with psycopg.connect(url) as other:
        other.execute("SELECT FROM kappa.tool_runs WHERE job_id = %s FOR UPDATE", [ids[0]])
        connection.execute("SET lock_timeout = '5s'")
        assert run(connection, store.update([Update(one, True, 1.0, None, None, None)])) == {0: None}
        assert run(connection, store.beat([one, two, three])) == []
        assert len(run(connection, store.settle([Ending(one, "failed"), Ending(two, "failed")]))) == 2
        run(connection, maintenance.reap(later(connection, hours=1)))
        assert run(connection, maintenance.bury()) == 1
    assert [run_of(connection, job).status for job in ids] == ["failed"] * 3


# Starts


def test_a_start_whose_reply_was_lost_is_reported_again_and_counts_once(connection: Connection) -> None:
    claimed = start(connection)
    before = see(connection, claimed.id)
    assert run(connection, jobs.mark_started([(claimed.id, claimed.token)])) == {claimed.id}
    assert see(connection, claimed.id) == before
    assert run(connection, jobs.mark_started([(claimed.id, claimed.token - 1)])) == set()


# Owners that stop in the middle


def test_an_owner_that_stops_before_its_commit_keeps_its_job_no_longer_than_its_lease(
    url: str, connection: Connection
) -> None:
    run(connection, lanes.edit_lane("interactive", {"lease_ttl": timedelta(seconds=1)}))
    claimed = start(connection)
    with psycopg.connect(url) as stopped:
        assert run(stopped, jobs.settle_own(Finish(claimed.id, claimed.token, JobState.SUCCEEDED), 0.0))
        connection.execute("SET lock_timeout = '60s'")
        # Waits until the session is ended, as an adopter would.
        connection.execute("SELECT FROM kappa.jobs WHERE id = %s FOR UPDATE", [claimed.id])
        stopped.close()
    assert see(connection, claimed.id).state is JobState.RUNNING


def test_a_lease_may_be_longer_than_any_time_out_of_the_server(connection: Connection) -> None:
    run(connection, lanes.edit_lane("interactive", {"lease_ttl": timedelta(days=30)}))
    claimed = start(connection)
    with connection.transaction():
        assert run(connection, jobs.settle_own(Finish(claimed.id, claimed.token, JobState.SUCCEEDED), 0.0))
    term, _ = run(connection, leadership.try_lead("test", timedelta(days=30)))
    assert term is not None
    assert run(connection, leadership.share_term(term))


async def test_an_answer_to_a_claim_that_comes_when_the_lease_is_over_begins_no_work(
    engine: Engine, client: Client, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker can't know whether another has the job by now; here one has."""
    monkeypatch.setattr(lane_runner, "LATE", 0.0)
    place(engine, Executor.ASYNC, "hold", idempotent=True)
    starts_wait_at_gate(site)
    made = client.enqueue("hold", site.task(text="one")).id
    async with working(engine, FOLLOWER):
        await seen(lambda: client.show(made).state is JobState.RUNNING)
        site.do("UPDATE kappa.jobs SET lease_owner = 'another', lease_token = lease_token + 1000 WHERE id = %s", made)
        site.open(77)
        after = client.enqueue("hold", site.task(text="two")).id
        await seen(lambda: client.show(after).state is JobState.SUCCEEDED)
    assert site.said == ["began two 1"]


async def test_a_handlers_own_transaction_waits_for_locks_as_long_as_it_takes(
    engine: Engine, client: Client, site: Site, executor: Executor
) -> None:
    """Giving up would undo what it wrote, and this was its only attempt."""
    place(engine, executor, "write")
    site.shut(1)
    made = client.enqueue("write", site.task(gate=1, text="kept")).id
    waits = """SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
                  AND query LIKE '%%settle_own%%' AND query_start < now() - interval '0.5 s'"""
    async with working(engine, FOLLOWER):
        await asyncio.to_thread(site.until_said, "wrote 1")
        with psycopg.connect(site.url) as other:
            other.execute("LOCK TABLE kappa.finished_jobs")
            site.open(1)
            await seen(lambda: site.rows(waits), what="a commit that waits")
        await seen(lambda: client.show(made).state.terminal)
    assert (client.show(made).state, site.written) == (JobState.SUCCEEDED, ["kept 1"])


RESTING = """SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle'
                AND application_name = 'kappa heartbeat'"""


async def test_only_the_lease_whose_row_was_locked_is_tried_again_before_the_next_round(
    engine: Engine, client: Client, site: Site
) -> None:
    place(engine, Executor.ASYNC, "hold")
    site.shut(1)
    first, second = (client.enqueue("hold", site.task(gate=1, text=name)).id for name in ("one", "two"))
    async with working(engine, FOLLOWER) as worker:
        for job in (first, second):
            await seen(lambda job=job: client.show(job).attempt == 1)
        heartbeat = worker._heartbeat  # pyright: ignore[reportPrivateUsage]
        # When it begins to listen it asks for a round of all leases, which must not come after the one below.
        await seen(worker._leader._nudged.is_set, what="what it does when it begins to listen")  # pyright: ignore[reportPrivateUsage]
        heartbeat.beat_soon()
        await seen(
            lambda: heartbeat._asked == heartbeat._answered and site.rows(RESTING), what="a heartbeat that rests"
        )  # pyright: ignore[reportPrivateUsage]
        site.do("UPDATE kappa.jobs SET lease_until = now() + interval '30 s'")
        until = lease_until(site, first)
        with locked(site.url, first):
            heartbeat.beat_soon()
            await seen(lambda: lease_until(site, second) > until, what="the round of all leases")
            renewed = lease_until(site, second)
        await seen(lambda: lease_until(site, first) > until, what="the lease whose row is free again")
        assert lease_until(site, second) == renewed
        site.open(1)
