"""Busy lanes: tasks that short handlers share, and settlements that go along with the next claim."""

import asyncio
from contextvars import ContextVar
from dataclasses import replace
from datetime import timedelta
from typing import Any, NoReturn

import psycopg
import pytest

from kappa.engine import AsyncJobContext, Client, Engine, Executor, JobContext, JobFailed, JobState, Lane, WorkerConfig
from kappa.engine.store import jobs
from kappa.engine.store.jobs import Finish, PutBack
from kappa.engine.testing import Heard, drain, working
from kappa.pg.ops import run
from tests.engine.hands import Connection, put, see, take
from tests.engine.site import HOUR_MS, Site, seen
from tests.engine.work import LANE

FOLLOWER = WorkerConfig(lead=False, grace=timedelta(seconds=5), start_mark_after=timedelta(hours=1))
WAITING_FOR_LANE = """SELECT pid FROM pg_locks JOIN pg_database AS d ON d.oid = database
 WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted"""


def lane(engine: Engine, *kinds: str, slots: int) -> None:
    engine.lane(Lane(LANE, kinds=kinds, max_slots=slots, poll_interval_ms=HOUR_MS, executor=Executor.ASYNC))
    engine.install()


# In the store


def test_what_is_done_leaves_its_slots_to_what_is_claimed_with_it(connection: Connection) -> None:
    for _ in range(3):
        put(connection)
    done = take(connection)
    assert len(done) == 2
    held = [(job.id, job.token) for job in done]
    claimed, lost, _ = run(connection, jobs.exchange(held, "interactive", "one", 10))
    assert (len(claimed), lost) == (1, set())
    assert {see(connection, job.id).state for job in done} == {JobState.SUCCEEDED}


def test_an_exchange_tells_what_was_no_longer_the_callers_and_claims_all_the_same(connection: Connection) -> None:
    put(connection, max_attempts=3)
    put(connection)
    stale, mine = take(connection, capacity=2)
    run(connection, jobs.release([(stale.id, stale.token)]))
    (adopted,) = take(connection, owner="two", capacity=1)
    assert adopted.id == stale.id
    queued = put(connection)
    held = [(stale.id, stale.token), (mine.id, mine.token)]
    claimed, lost, _ = run(connection, jobs.exchange(held, "interactive", "one", 10))
    assert lost == {stale.id}
    assert [job.id for job in claimed] == [queued]
    assert see(connection, stale.id).state is JobState.RUNNING
    assert see(connection, mine.id).state is JobState.SUCCEEDED


def test_an_exchange_of_nothing_but_lost_jobs_claims_nothing_where_nothing_waits(connection: Connection) -> None:
    claimed, lost, _ = run(connection, jobs.exchange([(7, 7), (8, 8)], "interactive", "one", 10))
    assert (claimed, lost) == ([], {7, 8})


def test_a_claim_says_that_the_slots_are_full_and_only_then(connection: Connection) -> None:
    put(connection)
    assert not run(connection, jobs.exchange([], "interactive", "one", 1)).full
    assert not run(connection, jobs.exchange([], "interactive", "one", 10)).full
    put(connection)
    put(connection)
    first = run(connection, jobs.exchange([], "interactive", "one", 10))
    assert (len(first.claimed), first.full) == (1, True)
    assert run(connection, jobs.exchange([], "interactive", "two", 10)) == ([], set(), True)
    held = [(job.id, job.token) for job in first.claimed]
    second = run(connection, jobs.exchange(held, "interactive", "one", 1))
    assert (len(second.claimed), second.full) == (1, True)  # as many as were asked for, and none is left
    last = run(connection, jobs.exchange([(job.id, job.token) for job in second.claimed], "interactive", "one", 1))
    assert (len(last.claimed), last.full) == (0, False)


# In a worker


async def test_two_workers_of_a_full_lane_go_on_without_waiting_for_the_poll(
    engine: Engine, client: Client, site: Site
) -> None:
    """Each finds the slots taken by the other again and again; what it ends itself is what it claims for."""

    @engine.job("step", idempotent=True)
    async def step(ctx: AsyncJobContext) -> None:
        await asyncio.sleep(0)

    lane(engine, "step", slots=40)
    client.enqueue_many("step", [None] * 4000)
    greedy = replace(FOLLOWER, claim_batch=30)
    async with working(engine, greedy), working(engine, greedy):
        await seen(lambda: site.rows("SELECT count(*) FROM kappa.finished_jobs") == [4000])


async def test_a_success_that_the_database_refuses_fails_alone_and_the_lane_goes_on(
    engine: Engine, client: Client, site: Site
) -> None:
    @engine.job("step", idempotent=True)
    async def step(ctx: AsyncJobContext, number: int) -> None:
        await asyncio.sleep(0)

    lane(engine, "step", slots=40)
    site.do("""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON kappa.finished_jobs FOR EACH ROW
            WHEN (NEW.payload = '100' AND NEW.state = 'succeeded') EXECUTE FUNCTION refuse();
    """)
    client.enqueue_many("step", range(1000))
    async with working(engine, replace(FOLLOWER, claim_batch=30)):
        await seen(lambda: site.rows("SELECT count(*) FROM kappa.finished_jobs") == [1000])
    assert site.rows("SELECT payload FROM kappa.finished_jobs WHERE state <> 'succeeded'") == [100]


async def test_a_busy_lane_settles_and_claims_in_one_commit(engine: Engine, client: Client, site: Site) -> None:
    go = asyncio.Event()
    began = asyncio.Event()

    @engine.job("step", idempotent=True)
    async def step(ctx: AsyncJobContext, last: bool) -> None:
        if last:
            began.set()
            await go.wait()

    lane(engine, "step", slots=1)
    # Not the row's own: a renewal may write it again.
    site.do("""
        CREATE TABLE claimed (job bigint, by text);
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN INSERT INTO claimed VALUES (NEW.id, pg_current_xact_id()::xid::text); RETURN NULL; END $$;
        CREATE TRIGGER note AFTER UPDATE OF state ON kappa.jobs FOR EACH ROW EXECUTE FUNCTION note();
    """)
    first, second = client.enqueue("step", False), client.enqueue("step", True)
    async with working(engine, FOLLOWER):
        await asyncio.wait_for(began.wait(), 30)
        settled_by = site.rows("SELECT xmin::text FROM kappa.finished_jobs WHERE id = %s", first.id)
        assert site.rows("SELECT by FROM claimed WHERE job = %s", second.id) == settled_by
        go.set()
    assert client.show(second.id).state is JobState.SUCCEEDED


async def test_what_is_done_in_a_lane_that_has_too_few_slots_now_is_settled_at_once(
    engine: Engine, client: Client
) -> None:
    gates = {"first": asyncio.Event(), "second": asyncio.Event()}
    began: list[str] = []

    @engine.job("step", idempotent=True)
    async def step(ctx: AsyncJobContext, gate: str) -> None:
        began.append(gate)
        await gates[gate].wait()

    lane(engine, "step", slots=2)
    first, second, third = (client.enqueue("step", gate).id for gate in ("first", "second", "second"))
    async with working(engine, FOLLOWER) as worker:
        await seen(lambda: len(began) == 2)
        client.edit_lane(LANE, max_slots=1)
        await seen(lambda: worker._lanes[LANE].lane.max_slots == 1)
        gates["first"].set()
        await seen(lambda: client.show(first).state is JobState.SUCCEEDED, what="the first job's end")
        assert client.show(second).state is JobState.RUNNING
        gates["second"].set()
        await seen(lambda: client.show(third).state is JobState.SUCCEEDED)


async def test_what_is_done_while_the_next_claim_fails_is_settled_once(
    engine: Engine, client: Client, heard: Heard, site: Site
) -> None:
    ran: list[int] = []
    gate = asyncio.Event()

    @engine.job("step", idempotent=True)
    async def step(ctx: AsyncJobContext) -> None:
        ran.append(ctx.job_id)
        await gate.wait()

    lane(engine, "step", slots=1)
    made = [client.enqueue("step").id for _ in range(3)]
    async with working(engine, FOLLOWER):
        await seen(lambda: ran == made[:1])
        site.do("SELECT pg_advisory_lock(1262568289, hashtext(%s))", LANE)
        gate.set()
        # The first job is done; its settlement is under way together with the claim of the second.
        await seen(lambda: site.rows(WAITING_FOR_LANE), what="an exchange that waits for the lane")
        site.do(f"SELECT pg_terminate_backend(pid) FROM ({WAITING_FOR_LANE})")
        await seen(lambda: client.show(made[0]).state is JobState.SUCCEEDED, what="the settlement by itself")
        site.do("SELECT pg_advisory_unlock(1262568289, hashtext(%s))", LANE)
        await heard.until("settled", 3)
    assert ran == made
    assert heard.all("lease_lost") == []


async def test_a_worker_that_is_stopped_in_the_middle_of_a_rush_leaves_nothing_unsettled(
    engine: Engine, client: Client, site: Site
) -> None:
    ran = 0

    @engine.job("step", idempotent=True)
    async def step(ctx: AsyncJobContext) -> None:
        nonlocal ran
        ran += 1
        if ran == 500:
            worker.stop()

    lane(engine, "step", slots=100)
    client.enqueue_many("step", [None] * 2000)
    async with working(engine, replace(FOLLOWER, claim_batch=50)) as worker:
        await seen(lambda: ran >= 500)
    assert site.rows("SELECT count(*) FROM kappa.jobs WHERE state = 'running'") == [0]
    assert site.rows("SELECT count(*) FROM kappa.finished_jobs") == [ran]


@pytest.mark.parametrize("executor", [Executor.THREAD, Executor.ASYNC])
async def test_a_handler_that_fails_after_its_transaction_broke_is_settled_all_the_same(
    engine: Engine, client: Client, site: Site, executor: Executor
) -> None:
    def cut(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> NoReturn:
        site.do("SELECT pg_terminate_backend(%s, 5000)", connection.info.backend_pid)
        raise JobFailed("the line was cut", retry=False)

    if executor is Executor.THREAD:

        @engine.job("step")
        def in_thread(ctx: JobContext) -> None:
            with ctx.transaction() as connection:
                cut(connection)
    else:

        @engine.job("step")
        async def on_loop(ctx: AsyncJobContext) -> None:
            async with ctx.transaction() as connection:
                cut(connection)

    engine.lane(Lane(LANE, kinds=("step",), max_slots=1, poll_interval_ms=HOUR_MS, executor=executor))
    engine.install()
    made = [client.enqueue("step").id for _ in range(2)]
    async with working(engine, FOLLOWER):
        await seen(lambda: all(client.show(job).state is JobState.FAILED for job in made), what="both jobs' ends")


def test_batches_of_one_worker_lock_their_rows_in_one_order() -> None:
    held = [(3, 30), (1, 10), (2, 20)]
    for op in (
        jobs.settle_succeeded(held),
        jobs.mark_started(held),
        jobs.renew(held),
        jobs.release(held),
        jobs.exchange(held, LANE, "me", 1),
        jobs.settle([Finish(*one, JobState.FAILED) for one in held]),
        jobs.put_back([PutBack(*one) for one in held]),
    ):
        assert (op.params["ids"], op.params["tokens"]) == ("{1,2,3}", "{10,20,30}")
    assert jobs.progress([(*one, 1, 2, "") for one in held]).params["ids"] == [1, 2, 3]


# Tasks


async def test_short_handlers_share_a_task_and_nothing_else(engine: Engine, client: Client) -> None:
    colour: ContextVar[str] = ContextVar("colour", default="none")
    saw: list[tuple[str, object]] = []

    @engine.job("paint", idempotent=True)
    async def paint(ctx: AsyncJobContext, new: str) -> None:
        saw.append((colour.get(), asyncio.current_task()))
        if new:
            colour.set(new)

    lane(engine, "paint", slots=100)
    client.enqueue_many("paint", ["", "", "red", "", ""])
    await drain(engine, FOLLOWER)
    assert [before for before, _ in saw] == ["none"] * 5
    tasks = [task for _, task in saw]
    assert tasks[0] is tasks[1] is tasks[2]
    assert tasks[3] is tasks[4]
    assert tasks[2] is not tasks[3]


async def test_a_handler_that_waits_holds_up_none_of_those_behind_it(engine: Engine, client: Client) -> None:
    last_ran = asyncio.Event()
    order: list[int] = []

    @engine.job("wait", idempotent=True)
    async def wait(ctx: AsyncJobContext, number: int) -> None:
        if number == 4:
            last_ran.set()
        elif number < 3:
            await last_ran.wait()
        order.append(number)

    lane(engine, "wait", slots=100)
    client.enqueue_many("wait", range(5))
    await drain(engine, FOLLOWER)
    assert order[:2] == [3, 4]
    assert sorted(order) == [0, 1, 2, 3, 4]


async def test_a_handler_that_ran_out_of_time_takes_no_other_with_it(engine: Engine, client: Client) -> None:
    @engine.job("hang")
    async def hang(ctx: AsyncJobContext, long: bool) -> None:
        if long:
            await asyncio.Event().wait()

    lane(engine, "hang", slots=100)
    short, enough = timedelta(milliseconds=50), timedelta(minutes=1)
    made = [
        client.enqueue("hang", long, timeout=short if long else enough).id for long in (False, True, False, True, False)
    ]
    await drain(engine, FOLLOWER)
    states = [client.show(job).state.value for job in made]
    assert states == ["succeeded", "timed_out", "succeeded", "timed_out", "succeeded"]
