"""What a worker does: lanes, slots, waking up, renewing, stopping."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

import psycopg
import pytest
from psycopg import sql

from kappa.engine import (
    AsyncJobContext,
    Client,
    Engine,
    Executor,
    JobContext,
    JobState,
    Lane,
    WorkerConfig,
    executors,
    waiting,
)
from kappa.engine import worker as worker_module
from kappa.engine.config import kept_threads
from kappa.engine.maintenance.services import Promoter, Reaper
from kappa.engine.model import MAX_LANE_SLOTS
from kappa.engine.signals import Signals
from kappa.engine.testing import Heard, drain, maintain, working
from tests.conftest import Server
from tests.engine.site import HOUR_MS, Site, place, seen
from tests.engine.work import LANE
from tests.ground import PATIENCE, eventually

FOLLOWER = WorkerConfig(lead=False, grace=timedelta(seconds=5))
"""Time moves only when the test says so."""

RENEWALS = """
CREATE TABLE renewals (id serial PRIMARY KEY, jobs int NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE FUNCTION count_renewals() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO renewals (jobs)
    SELECT count(*) FROM before JOIN after USING (id, lease_token) WHERE after.lease_until > before.lease_until
    HAVING count(*) > 0;
    RETURN NULL;
END $$;
CREATE TRIGGER count_renewals AFTER UPDATE ON kappa.jobs REFERENCING OLD TABLE AS before NEW TABLE AS after
    FOR EACH STATEMENT EXECUTE FUNCTION count_renewals();
"""


class Crowd:
    """Async handlers that stay until they are let go, and how many of them there were at once."""

    def __init__(self, engine: Engine, *kinds: str) -> None:
        self.inside: list[str] = []
        self.most = 0
        self._go = asyncio.Event()
        self._changed = asyncio.Event()
        for kind in kinds:
            engine.job(kind)(self._handler(kind))

    def _handler(self, kind: str) -> Callable[[AsyncJobContext], Awaitable[None]]:
        async def stay(ctx: AsyncJobContext) -> None:
            self.inside.append(kind)
            self.most = max(self.most, len(self.inside))
            self._changed.set()
            await self._go.wait()
            self.inside.remove(kind)
            self._changed.set()

        return stay

    async def until(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.inside) != count:
                self._changed.clear()
                await self._changed.wait()

    def let_go(self) -> None:
        self._go.set()


def lane(engine: Engine, name: str, *kinds: str, slots: int = 4, poll_ms: int = HOUR_MS, ttl: float = 60) -> None:
    engine.lane(
        Lane(
            name, kinds=kinds, max_slots=slots, poll_interval_ms=poll_ms, executor=Executor.ASYNC,
            lease_ttl=timedelta(seconds=ttl),
        )
    )  # fmt: skip
    engine.install()


def test_a_worker_has_the_numbers_of_the_specification() -> None:
    config = WorkerConfig()
    assert (config.grace, config.lead_every) == (timedelta(seconds=30), timedelta(seconds=2))
    assert config.leader_ttl == timedelta(seconds=8)
    assert (config.job_threads, config.floor_for) == (32, timedelta(milliseconds=250))
    assert (Lane("any").lease_ttl, Reaper(Signals()).every) == (timedelta(seconds=60), 15.0)


# Starts


async def test_a_start_that_is_marked_later_is_no_later_than_the_time_that_the_handler_saw(
    engine: Engine, client: Client, url: str
) -> None:
    seen_by_handler: list[datetime] = []
    go = asyncio.Event()

    @engine.job("look", idempotent=True)
    async def look(ctx: AsyncJobContext) -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            cursor = await connection.execute("SELECT clock_timestamp()")
            seen_by_handler.extend(row[0] for row in await cursor.fetchall())
        await go.wait()

    lane(engine, LANE, "look")
    made = client.enqueue("look")
    async with working(engine, replace(FOLLOWER, start_mark_after=timedelta(seconds=3))):
        started = await seen(lambda: client.show(made.id).started_at)
        go.set()
    # It was written three seconds later; the way to the database is not counted.
    assert [started < at + timedelta(seconds=2) for at in seen_by_handler] == [True]
    assert client.show(made.id).started_at == started


# Slots


async def test_a_long_job_in_one_lane_takes_no_slot_of_another(engine: Engine, client: Client, heard: Heard) -> None:
    crowd = Crowd(engine, "long")

    @engine.job("short")
    async def short(ctx: AsyncJobContext) -> None: ...

    lane(engine, "slow", "long", slots=1)
    lane(engine, "quick", "short", slots=1)
    client.enqueue("long")
    async with working(engine, FOLLOWER):
        await crowd.until(1)
        for _ in range(5):
            client.enqueue("short")
        await heard.until("settled", 5, kind="short")
        assert crowd.inside == ["long"]
        crowd.let_go()


async def test_slots_hold_for_all_workers_together(engine: Engine, client: Client, heard: Heard) -> None:
    most = now = 0
    all_slots = asyncio.Barrier(3)

    @engine.job("step")
    async def step(ctx: AsyncJobContext) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await all_slots.wait()
        now -= 1

    lane(engine, LANE, "step", slots=3)
    client.enqueue_many("step", [None] * 99)
    async with working(engine, FOLLOWER) as one, working(engine, FOLLOWER) as other:
        assert one.owner != other.owner
        await heard.until("settled", 99)
    assert most == 3


async def test_more_slots_take_effect_with_no_restart(engine: Engine, client: Client) -> None:
    crowd = Crowd(engine, "stay")
    lane(engine, LANE, "stay", slots=1, poll_ms=50)
    client.enqueue_many("stay", [None] * 4)
    async with working(engine, FOLLOWER):
        await crowd.until(1)
        client.edit_lane(LANE, max_slots=3)
        await crowd.until(3)
        crowd.let_go()
    assert crowd.most == 3


async def test_a_lanes_row_is_read_with_every_poll_also_if_nobody_tells_of_an_edit(
    engine: Engine, client: Client, site: Site
) -> None:
    crowd = Crowd(engine, "stay")
    lane(engine, LANE, "stay", slots=1, poll_ms=20)
    client.enqueue_many("stay", [None] * 4)
    async with working(engine, FOLLOWER):
        await crowd.until(1)
        with site.listening("kappa_lane") as told:
            site.do("UPDATE kappa.lanes SET max_slots = 3 WHERE name = %s", LANE)
            await crowd.until(3)
            assert told() == []
        crowd.let_go()
    assert crowd.most == 3


async def test_two_full_lanes_of_threads_run_side_by_side(engine: Engine, client: Client) -> None:
    together = threading.Barrier(2 * MAX_LANE_SLOTS)

    def meet(ctx: JobContext) -> None:
        together.wait(PATIENCE)

    for name in ("left", "right"):
        engine.job(name)(meet)
        engine.lane(Lane(name, kinds=(name,), max_slots=MAX_LANE_SLOTS, poll_interval_ms=HOUR_MS))
    engine.install()
    for name in ("left", "right"):
        client.enqueue_many(name, [None] * MAX_LANE_SLOTS)
    await drain(engine, FOLLOWER)
    jobs = client.list_jobs(limit=100)
    assert [job.state for job in jobs] == [JobState.SUCCEEDED] * 2 * MAX_LANE_SLOTS


def test_as_many_threads_stay_as_all_lanes_can_use_at_once() -> None:
    assert [kept_threads(lanes) for lanes in (0, 1, 2)] == [4, 16, 32]


async def test_threads_stay_for_the_next_jobs_and_those_beyond_the_pool_go(engine: Engine, client: Client) -> None:
    """Parents that wait for their children keep their threads, so that there may be more of them than the pool has."""
    together = threading.Barrier(MAX_LANE_SLOTS)
    used: set[threading.Thread] = set()

    @engine.job("child")
    def child(ctx: JobContext) -> None:
        used.add(threading.current_thread())
        together.wait(PATIENCE)

    @engine.job("parent")
    def parent(ctx: JobContext) -> None:
        used.add(threading.current_thread())
        ctx.gather(ctx.spawn("child"))

    engine.lane(Lane(LANE, kinds=("parent", "child"), max_slots=MAX_LANE_SLOTS, poll_interval_ms=HOUR_MS))
    engine.install()
    async with working(engine, FOLLOWER):
        for _ in range(2):
            made = [client.enqueue("parent").id for _ in range(MAX_LANE_SLOTS)]
            await seen(lambda made=made: all(client.show(job).state.terminal for job in made))
            assert len(used) == 2 * MAX_LANE_SLOTS
            # Every thread is idle by now or about to be; who finds the pool full goes.
            await seen(lambda: sum(thread.is_alive() for thread in used) == MAX_LANE_SLOTS, what="the rest to go")
            used.difference_update([thread for thread in used if not thread.is_alive()])
    await seen(lambda: not any(thread.is_alive() for thread in used), what="all to go with their worker")


async def test_a_job_that_is_more_urgent_overtakes_those_that_a_busy_lane_has_before_it(
    engine: Engine, client: Client
) -> None:
    order: list[str] = []
    began, go = asyncio.Event(), asyncio.Event()

    @engine.job("step")
    async def step(ctx: AsyncJobContext, name: str) -> None:
        order.append(name)
        began.set()
        await go.wait()

    lane(engine, LANE, "step", slots=1)
    client.enqueue_many("step", ["first", "second", "third"])
    async with working(engine, replace(FOLLOWER, floor_for=timedelta(0))):
        await began.wait()
        await asyncio.to_thread(client.enqueue, "step", "urgent", priority=1)
        go.set()
        await seen(lambda: len(order) == 4)
    assert order == ["first", "urgent", "second", "third"]


@pytest.mark.parametrize("idempotent", [False, True], ids=["start written first", "start written later"])
async def test_the_jobs_of_one_claim_begin_by_priority_and_then_by_age(
    engine: Engine, client: Client, idempotent: bool
) -> None:
    order: list[str] = []

    @engine.job("step", idempotent=idempotent)
    async def step(ctx: AsyncJobContext, name: str) -> None:
        order.append(name)

    lane(engine, LANE, "step", slots=10)
    first = client.enqueue("step", "first", priority=-1)
    client.enqueue_many("step", ["second", "third"])
    client.enqueue("step", "last", priority=-9)
    client.enqueue("step", "urgent", priority=9)
    client.prioritise(first.id, 0)  # which puts its row behind all others in the table
    await drain(engine, FOLLOWER)
    assert order == ["urgent", "first", "second", "third", "last"]


async def test_of_one_claim_what_is_adopted_comes_before_what_is_more_urgent(
    engine: Engine, client: Client, heard: Heard, site: Site
) -> None:
    engine.job("step")(lambda ctx: None)
    lane(engine, LANE, "step", slots=10)
    left = client.enqueue("step", priority=-9)
    site.do("UPDATE kappa.jobs SET state = 'running', claims = 1")  # as the reaper leaves it
    urgent = client.enqueue("step", priority=9)
    async with working(engine, FOLLOWER):
        await heard.until("settled", job=urgent.id)
    came = [facts["job"] for name, facts in heard.facts if name in ("adopted", "claimed")]
    assert came[:2] == [left.id, urgent.id]


async def test_fewer_slots_take_effect_with_no_restart(engine: Engine, client: Client, heard: Heard) -> None:
    crowd = Crowd(engine, "stay")
    lane(engine, LANE, "stay", slots=3, poll_ms=50)
    client.enqueue_many("stay", [None] * 3)
    async with working(engine, FOLLOWER):
        await crowd.until(3)
        client.edit_lane(LANE, max_slots=1)
        client.enqueue_many("stay", [None] * 3)
        crowd.most = 0
        crowd.let_go()
        await heard.until("settled", 6)
    assert crowd.most == 1


async def test_a_lane_that_is_switched_off_finishes_what_runs_and_claims_nothing(
    engine: Engine, client: Client, heard: Heard
) -> None:
    crowd = Crowd(engine, "stay")
    lane(engine, LANE, "stay", slots=1, poll_ms=20)
    first = client.enqueue("stay")
    async with working(engine, FOLLOWER):
        await crowd.until(1)
        client.edit_lane(LANE, enabled=False)
        second = client.enqueue("stay")
        crowd.let_go()
        await heard.until("settled", job=first.id)
        # Another lane goes round meanwhile: the worker had every chance to claim.
        await asyncio.to_thread(eventually, lambda: client.show(first.id).state is JobState.SUCCEEDED)
        assert client.show(second.id).state is JobState.QUEUED
        client.edit_lane(LANE, enabled=True)
        await heard.until("settled", job=second.id)


async def test_a_kind_that_moves_to_a_lane_that_nobody_served_is_served_there_with_no_restart(
    engine: Engine, client: Client, heard: Heard
) -> None:
    crowd = Crowd(engine, "stay", "other")
    crowd.let_go()
    lane(engine, "first", "stay", "other", poll_ms=50)
    others = ("second", "third", "fourth")  # the look that comes with the first word from the server may find one
    for name in others:
        lane(engine, name, poll_ms=50)
    async with working(engine, FOLLOWER):
        await heard.until("asleep", lane="first")
        for name in others:
            client.move_kind("stay", name)
            made = client.enqueue("stay")
            await heard.until("settled", job=made.id, lane=name)


async def test_a_lane_that_is_made_later_is_served_with_no_restart(
    engine: Engine, client: Client, heard: Heard
) -> None:
    later = ("second", "third", "fourth")
    crowd = Crowd(engine, "stay", *later)
    crowd.let_go()
    lane(engine, "first", "stay", poll_ms=50)
    async with working(engine, FOLLOWER):
        await heard.until("asleep", lane="first")
        for name in later:
            client.declare_lane(Lane(name, kinds=(name,), executor=Executor.ASYNC))
            made = client.enqueue(name)
            await heard.until("settled", job=made.id)


async def test_a_lane_that_is_made_without_a_word_is_found_after_a_while(
    engine: Engine, client: Client, heard: Heard, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "FIND_LANES_EVERY", 0.05)
    later = ("second", "third", "fourth")
    crowd = Crowd(engine, "stay", *later)
    crowd.let_go()
    lane(engine, "first", "stay")
    async with working(engine, FOLLOWER):
        await heard.until("asleep", lane="first")
        for name in later:
            site.do("INSERT INTO kappa.lanes (name, kinds, executor) VALUES (%s, %s, 'async')", name, [name])
            made = client.enqueue(name)
            await heard.until("settled", job=made.id)


# Kinds


async def test_a_kind_without_a_handler_here_is_left_for_others(
    engine: Engine, client: Client, heard: Heard, url: str
) -> None:
    Crowd(engine, "known").let_go()
    lane(engine, LANE, "known", "unknown")
    left = client.enqueue("unknown", priority=9)
    done = client.enqueue("known")
    async with working(engine, FOLLOWER):
        await heard.until("settled", job=done.id)
    assert client.show(left.id).state is JobState.QUEUED

    other = Engine(url)
    Crowd(other, "unknown").let_go()
    await drain(other, FOLLOWER)
    assert client.show(left.id).state is JobState.SUCCEEDED


async def test_a_kind_that_a_lane_gets_while_it_is_served_does_not_end_a_worker_that_has_no_handler_for_it(
    engine: Engine, client: Client, heard: Heard
) -> None:
    Crowd(engine, "known").let_go()
    lane(engine, LANE, "known")
    async with working(engine, FOLLOWER):
        await heard.until("asleep", lane=LANE)
        client.edit_lane(LANE, kinds=("known", "unknown"))
        left = client.enqueue("unknown", priority=9)
        done = client.enqueue("known")
        await heard.until("settled", job=done.id)
    assert client.show(left.id).state is JobState.QUEUED


# Waking up


@pytest.fixture
async def idle(engine: Engine, heard: Heard) -> AsyncIterator[Crowd]:
    """A worker whose one lane sleeps, and polls once an hour."""
    crowd = Crowd(engine, "stay")
    crowd.let_go()
    lane(engine, LANE, "stay", slots=1)
    async with working(engine, FOLLOWER):
        await heard.until("asleep", lane=LANE)
        yield crowd


@pytest.mark.usefixtures("idle")
async def test_an_idle_lane_is_woken_by_an_enqueue(client: Client, heard: Heard) -> None:
    for _ in range(5):  # two could be found by the looks after it fell asleep
        made = client.enqueue("stay")
        await heard.until("settled", job=made.id)


@pytest.mark.usefixtures("idle")
async def test_an_idle_lane_is_woken_by_many_in_one_go_and_by_the_commit_of_a_callers_transaction(
    client: Client, heard: Heard, site: Site
) -> None:
    with site.listening("kappa_wake") as woken:
        client.enqueue_many("stay", [None] * 50)
        await heard.until("settled", 50)
        assert woken() == [LANE]
    with psycopg.connect(site.url) as connection:
        made = client.enqueue("stay", connection=connection)
    await heard.until("settled", job=made.id)


async def test_a_job_is_found_though_its_lane_falls_asleep_between_the_callers_statement_and_its_commit(
    engine: Engine, client: Client, heard: Heard, site: Site
) -> None:
    Crowd(engine, "stay").let_go()
    lane(engine, LANE, "stay", slots=4)  # with one, it would claim once more whenever a job ends
    with psycopg.connect(site.url) as caller:
        made = client.enqueue("stay", connection=caller)
        async with working(engine, FOLLOWER):
            await site.listened_to()
            await heard.until("asleep", lane=LANE)
            for _ in range(6):  # until it looks no more by itself, as it does when it fell asleep
                other = client.enqueue("stay")
                await heard.until("settled", job=other.id)
            caller.commit()
            await heard.until("settled", job=made.id)


@pytest.mark.usefixtures("idle")
async def test_an_idle_lane_is_woken_also_after_the_leader_tidied_up(
    engine: Engine, client: Client, heard: Heard, site: Site
) -> None:
    await maintain(engine)
    await seen(lambda: site.rows("SELECT lane FROM kappa.sleepers") == [LANE], what="the sleeper came back")
    made = client.enqueue("stay")
    await heard.until("settled", job=made.id)


async def test_a_worker_that_leads_wakes_at_once_too(
    engine: Engine, client: Client, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Promoter, "every", 3600.0)  # only what is said of a due time can bring the promoter
    Crowd(engine, "stay").let_go()
    lane(engine, LANE, "stay", slots=1)
    async with working(engine):
        await heard.until("asleep", lane=LANE)
        await heard.until("leading")
        for _ in range(3):
            made = client.enqueue("stay", delay=timedelta(milliseconds=1))
            await heard.until("settled", job=made.id)


async def test_an_idle_lane_is_woken_by_an_approval(engine: Engine, client: Client, heard: Heard) -> None:
    @engine.job("import", approval=True)
    async def run_import(ctx: AsyncJobContext) -> None: ...

    lane(engine, LANE, "import")
    made = [client.enqueue("import").id for _ in range(5)]
    async with working(engine, FOLLOWER):
        await heard.until("asleep", lane=LANE)
        # The looks that a lane has after it fell asleep find the first of them; only the wake-up finds the rest.
        for job in made:
            client.approve(job, by="ada")
            await heard.until("settled", job=job)


async def test_what_was_said_while_a_worker_could_not_listen_is_found_when_it_can(
    engine: Engine, client: Client, heard: Heard, site: Site, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job, a cancellation, a due time and an edit, none of which the poll or the promoter would find within the hour.

    Nor is the lane among the sleepers any more, as after a crash of the server: it has to say again that it sleeps.
    """
    monkeypatch.setattr(Promoter, "every", 3600.0)
    crowd = Crowd(engine, "stay")

    @engine.job("stop")
    async def stop(ctx: AsyncJobContext) -> None:
        while not ctx.cancelled:
            await asyncio.sleep(0.001)
        ctx.raise_if_cancelled()

    lane(engine, LANE, "stay", slots=1, ttl=3600)
    lane(engine, "second", "stop", ttl=3600)
    name = sql.Identifier(site.rows("SELECT current_database()")[0])
    cancelled = client.enqueue("stop")
    async with working(engine) as worker:
        await heard.until("leading")
        await heard.until("asleep", lane=LANE)
        await seen(lambda: client.show(cancelled.id).attempt == 1)
        # Else the promoter's first round, which comes by itself, could find what is due. The expiry comes after it.
        await seen(lambda: worker._leader._due["expiry"] > 0, what="a leader that has had its round")
        await site.listened_to()
        server.admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
        try:
            listening = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s"
            (pid,) = site.rows(listening, "kappa listen")
            site.do("SELECT pg_terminate_backend(%s, 5000)", pid)
            site.do("DELETE FROM kappa.sleepers")
            client.edit_lane(LANE, max_slots=2)
            client.enqueue("stay")
            client.enqueue("stay", delay=timedelta(milliseconds=1))
            client.cancel(cancelled.id, "not needed")
        finally:
            server.admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name))
        await crowd.until(2)
        await heard.until("settled", job=cancelled.id, state=JobState.CANCELLED)
        crowd.let_go()
        await seen(lambda: LANE in site.rows("SELECT lane FROM kappa.sleepers"), what="a lane that sleeps again")


async def test_the_poll_alone_finds_what_nobody_was_told_of(engine: Engine, heard: Heard, site: Site) -> None:
    Crowd(engine, "stay").let_go()
    lane(engine, LANE, "stay", poll_ms=20)
    async with working(engine, FOLLOWER):
        await heard.until("asleep", lane=LANE)
        # One by one: a lane that falls asleep looks twice more by itself, and could find the first two that way.
        for found in range(1, 6):
            site.do("INSERT INTO kappa.jobs (lane, kind, state) VALUES (%s, 'stay', 'queued')", LANE)
            await heard.until("settled", found, kind="stay")


@pytest.mark.usefixtures("idle")
async def test_an_idle_lane_stands_among_the_sleepers_until_its_worker_ends(engine: Engine, site: Site) -> None:
    assert site.rows("SELECT lane FROM kappa.sleepers") == [LANE]
    async with working(engine, FOLLOWER) as second:
        await seen(lambda: second.owner in site.rows("SELECT owner FROM kappa.sleepers"))
    assert second.owner not in site.rows("SELECT owner FROM kappa.sleepers")


async def test_an_enqueue_into_a_busy_lane_tells_nobody(
    engine: Engine, client: Client, heard: Heard, site: Site
) -> None:
    crowd = Crowd(engine, "stay")

    @engine.job("pass")
    async def go_past(ctx: AsyncJobContext) -> None: ...

    lane(engine, LANE, "stay", "pass", slots=1)
    client.enqueue_many("pass", [None] * 10)
    client.enqueue("stay")
    async with working(engine, FOLLOWER):
        await crowd.until(1)
        assert site.rows("SELECT lane FROM kappa.sleepers") == []
        with site.listening("kappa_wake") as woken:
            client.enqueue("pass")
            client.enqueue_many("pass", [None] * 3)
            assert woken() == []
        crowd.let_go()
        await heard.until("settled", 15)


# Leases


async def test_every_lease_of_a_worker_is_renewed_in_one_statement_before_it_runs_out(
    engine: Engine, client: Client, site: Site
) -> None:
    crowd = Crowd(engine, "stay", "other")
    lane(engine, LANE, "stay", slots=2, ttl=1)
    lane(engine, "second", "other", slots=1, ttl=1)
    client.enqueue_many("stay", [None] * 2)
    client.enqueue("other")
    async with working(engine, FOLLOWER):
        await crowd.until(3)
        # A renewal passes the row by of a job whose start is being written.
        await seen(lambda: site.rows("SELECT count(*) FROM kappa.jobs WHERE attempt = 1") == [3])
        site.do(RENEWALS)
        renewed = await seen(lambda: rows if len(rows := site.rows("SELECT jobs FROM renewals ORDER BY id")) > 4 else 0)
        crowd.let_go()
    assert renewed == [3] * len(renewed)


async def test_leases_are_renewed_when_a_quarter_of_the_shortest_is_over(engine: Engine, client: Client) -> None:
    Crowd(engine, "stay", "other")
    lane(engine, LANE, "stay")
    lane(engine, "second", "other", ttl=8)
    async with working(engine, replace(FOLLOWER, lanes=(LANE,))) as one, working(engine, FOLLOWER) as both:
        await seen(lambda: len(client.workers()) == 2)
        assert (one.renews_every, both.renews_every) == (15.0, 2.0)


async def test_a_shorter_lease_is_renewed_sooner_with_no_restart(engine: Engine, client: Client, site: Site) -> None:
    crowd = Crowd(engine, "stay")
    lane(engine, LANE, "stay", poll_ms=50, ttl=240)
    async with working(engine, FOLLOWER):
        first = client.enqueue("stay")
        await crowd.until(1)
        client.edit_lane(LANE, lease_ttl=timedelta(seconds=1))
        second = client.enqueue("stay")
        await crowd.until(2)
        # A claim that began before the edit may have given the longer lease still.
        short = "SELECT lease_until FROM kappa.jobs WHERE id = %s AND lease_until < now() + '2 seconds'"
        [began] = await seen(lambda: site.rows(short, second.id), what="a shorter lease")
        await seen(lambda: (now := client.show(second.id).lease_until) and now > began, what="a renewal")
        crowd.let_go()
    assert client.show(first.id).state is JobState.SUCCEEDED


async def test_handlers_that_keep_transactions_open_do_not_keep_the_worker_from_renewing(
    engine: Engine, client: Client, site: Site
) -> None:
    count = 5
    opened, go = asyncio.Semaphore(0), asyncio.Event()

    @engine.job("write")
    async def write(ctx: AsyncJobContext) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("INSERT INTO written (line) VALUES ('kept')")
            opened.release()
            await go.wait()

    lane(engine, LANE, "write", slots=count, ttl=1)
    jobs = [client.enqueue("write").id for _ in range(count)]
    async with working(engine, FOLLOWER):
        async with asyncio.timeout(30):
            for _ in range(count):
                await opened.acquire()
        before = client.show(jobs[0]).lease_until
        assert before is not None
        await seen(lambda: (now := client.show(jobs[0]).lease_until) and now > before, what="a renewal")
        go.set()
    assert site.written == ["kept"] * count


async def test_the_reaper_leaves_alone_what_is_renewed(engine: Engine, client: Client, site: Site) -> None:
    crowd = Crowd(engine, "stay")
    lane(engine, LANE, "stay", ttl=4)
    site.do(RENEWALS)
    made = client.enqueue("stay")
    async with working(engine, FOLLOWER):
        await crowd.until(1)
        for n in range(2, 6):
            await seen(lambda n=n: len(site.rows("SELECT 1 FROM renewals")) >= n)
            await maintain(engine, only=lambda name: name == "reaper")
        crowd.let_go()
    done = client.show(made.id)
    assert (done.state, done.attempt) == (JobState.SUCCEEDED, 1)


# Stopping


async def test_a_worker_that_is_told_to_stop_claims_no_more_and_lets_running_jobs_finish(
    engine: Engine, client: Client
) -> None:
    crowd = Crowd(engine, "stay")
    lane(engine, LANE, "stay", slots=1)
    first = client.enqueue("stay")
    async with working(engine, FOLLOWER) as worker:
        await crowd.until(1)
        worker.stop()
        second = client.enqueue("stay")
        crowd.let_go()
    assert client.show(first.id).state is JobState.SUCCEEDED
    assert client.show(second.id).state is JobState.QUEUED


@pytest.mark.parametrize("executor", [Executor.THREAD, Executor.ASYNC, Executor.PROCESS])
async def test_what_outlasts_the_grace_is_released_and_adopted_at_once(
    engine: Engine, client: Client, heard: Heard, site: Site, executor: Executor
) -> None:
    place(engine, executor, "hold", idempotent=True)
    site.shut(1)
    made = client.enqueue("hold", site.task(gate=1))
    impatient = WorkerConfig(lead=False, grace=timedelta(milliseconds=50))
    async with working(engine, impatient):
        await asyncio.to_thread(site.until_said, "began 1")
        await seen(lambda: client.show(made.id).attempt == 1)
    assert (site.state(made.id), site.owner(made.id)) == ("running", None)
    async with working(engine, FOLLOWER):
        await heard.until("adopted", job=made.id)
        await seen(lambda: site.state(made.id) == "scheduled")
        site.open(1)
    assert client.show(made.id).attempt == 1


async def test_a_handler_that_swallows_its_cancellation_does_not_keep_the_worker(
    engine: Engine, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "CANCEL_AGAIN", 0.01)
    began, stop = asyncio.Event(), asyncio.Event()

    @engine.job("stubborn")
    async def stubborn(ctx: AsyncJobContext) -> None:
        began.set()
        while not stop.is_set():
            with suppress(asyncio.CancelledError):
                await stop.wait()

    lane(engine, LANE, "stubborn")
    made = client.enqueue("stubborn").id
    async with working(engine, replace(FOLLOWER, grace=timedelta(0))):
        await began.wait()
    stop.set()
    assert client.show(made).state is JobState.RUNNING


async def test_a_worker_ends_though_the_database_does_not_take_its_leases_back(
    engine: Engine, client: Client, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "LAST_WRITES", 0.1)
    place(engine, Executor.ASYNC, "hold")
    site.shut(1)
    made = client.enqueue("hold", site.task(gate=1)).id
    with psycopg.connect(site.url) as other:
        async with working(engine, replace(FOLLOWER, grace=timedelta(0))):
            await asyncio.to_thread(site.until_said, "began 1")
            await seen(lambda: client.show(made).attempt == 1)
            other.execute("LOCK TABLE kappa.lane_kinds IN ACCESS EXCLUSIVE MODE")  # a release reads it
    assert site.owner(made) is not None


WAITS = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()"
"""Sessions that wait for a lane, or at a gate."""

STARTS = """
CREATE FUNCTION wait_at_start() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(4242, 9);
    RETURN NEW;
END $$;
CREATE TRIGGER wait_at_start BEFORE UPDATE ON kappa.jobs FOR EACH ROW
    WHEN (OLD.attempt_started_at IS NULL AND NEW.attempt_started_at IS NOT NULL) EXECUTE FUNCTION wait_at_start();
"""
"""Holds who writes that an attempt started at gate 9."""


async def gone_on() -> None:
    """Whatever could go on in this loop without an answer of the database has done so."""
    for _ in range(200):
        await asyncio.sleep(0)


@pytest.mark.parametrize("executor", [Executor.THREAD, Executor.ASYNC])
async def test_a_job_whose_start_is_being_written_when_the_worker_is_told_to_stop_has_its_grace(
    engine: Engine, client: Client, site: Site, executor: Executor
) -> None:
    place(engine, executor, "hold")
    site.do(STARTS)
    site.shut(9)
    site.shut(1)
    made = client.enqueue("hold", site.task(gate=1))
    async with working(engine, replace(FOLLOWER, grace=timedelta(seconds=PATIENCE))) as worker:
        await seen(lambda: site.rows(WAITS), what="a start that is being written")
        worker.stop()
        await gone_on()  # who would not wait for the start has given the job back by now
        site.open(9)
        await asyncio.to_thread(site.until_said, "began 1")
        site.open(1)
    assert client.show(made.id).state is JobState.SUCCEEDED


async def test_a_job_that_is_lost_before_its_start_was_written_leaves_its_slot_and_does_not_begin(
    engine: Engine, client: Client, heard: Heard, site: Site
) -> None:
    crowd = Crowd(engine, "stay")
    lane(engine, LANE, "stay", slots=3)
    site.do(STARTS)
    site.shut(9)
    client.enqueue("stay")
    async with working(engine, FOLLOWER):
        await seen(lambda: site.rows(WAITS), what="a start that is being written")
        lost = client.enqueue("stay").id
        await heard.until("claimed", job=lost)  # its own start waits for the first
        site.do("UPDATE kappa.jobs SET lease_owner = NULL, lease_token = NULL, lease_until = NULL WHERE id = %s", lost)
        site.do("SELECT pg_notify('kappa_wake', %s)", LANE)
        await heard.until("claimed", 2, job=lost)  # after it was adopted and put back
        client.enqueue("stay")
        site.open(9)
        await crowd.until(3)
        crowd.let_go()
    assert crowd.most == 3


@pytest.mark.parametrize("idempotent", [False, True], ids=["start written first", "start written later"])
async def test_what_a_claim_brings_after_the_worker_was_told_to_stop_is_left_to_others(
    engine: Engine, client: Client, heard: Heard, site: Site, idempotent: bool
) -> None:
    begun: list[int] = []

    @engine.job("step", idempotent=idempotent)
    async def step(ctx: AsyncJobContext) -> None:
        begun.append(ctx.job_id)

    lane(engine, LANE, "step")
    async with working(engine, FOLLOWER) as worker:
        await heard.until("asleep", lane=LANE)
        site.do("SELECT pg_advisory_lock(1262568289, hashtext(%s))", LANE)
        made = client.enqueue("step")
        await seen(lambda: site.rows(WAITS), what="a claim that waits for the lane")
        worker.stop()
        await gone_on()  # who would not wait for the claim has cut it off by now
        site.do("SELECT pg_advisory_unlock(1262568289, hashtext(%s))", LANE)
    job = client.show(made.id)
    assert (begun, job.state, job.attempt) == ([], JobState.QUEUED, 0)
    assert [event.event for event in client.history(made.id)[0]] == ["put_back"]
    await drain(engine, FOLLOWER)
    assert (begun, client.show(made.id).attempt) == ([made.id], 1)


async def test_what_is_done_is_settled_though_the_claim_that_it_goes_with_hangs_when_the_worker_is_told_to_stop(
    engine: Engine, client: Client, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "CANCEL_AGAIN", PATIENCE)  # one that is cancelled twice gives its connection up
    began, go = asyncio.Event(), asyncio.Event()

    @engine.job("step")
    async def step(ctx: AsyncJobContext) -> None:
        began.set()
        await go.wait()

    lane(engine, LANE, "step", slots=1)
    first, second = client.enqueue("step"), client.enqueue("step")
    async with working(engine, replace(FOLLOWER, grace=timedelta(milliseconds=50))) as worker:
        await began.wait()
        site.do("SELECT pg_advisory_lock(1262568289, hashtext(%s))", LANE)
        go.set()
        await seen(lambda: site.rows(WAITS), what="a claim that waits for the lane")
        worker.stop()
    assert (client.show(first.id).state, client.show(second.id).state) == (JobState.SUCCEEDED, JobState.QUEUED)


async def test_a_claim_that_is_under_way_when_the_worker_is_told_to_stop_leaves_no_job_behind_its_lease(
    engine: Engine, client: Client, heard: Heard, site: Site
) -> None:
    Crowd(engine, "stay").let_go()
    lane(engine, LANE, "stay")
    async with working(engine, FOLLOWER) as worker:
        await heard.until("asleep", lane=LANE)
        site.do("SELECT pg_advisory_lock(1262568289, hashtext(%s))", LANE)
        made = client.enqueue("stay")
        await seen(lambda: site.rows(WAITS), what="a claim that waits for the lane")
        # From here to the stop the loop stands still: the claim is written and its answer not yet read.
        site.do("SELECT pg_advisory_unlock(1262568289, hashtext(%s))", LANE)
        site.until_state(made.id, "running")
        worker.stop()
    assert site.owner(made.id) is None


async def test_a_worker_ends_also_in_a_rain_of_notifications(engine: Engine, heard: Heard, site: Site) -> None:
    Crowd(engine, "stay").let_go()
    lane(engine, LANE, "stay")
    ended = threading.Event()

    def rain() -> None:
        with psycopg.connect(site.url, autocommit=True) as connection:
            while not ended.is_set():
                connection.execute("SELECT pg_notify('kappa_lane', 'here')")

    raining = asyncio.create_task(asyncio.to_thread(rain))
    try:
        for round_number in range(1, 21):
            async with asyncio.timeout(30), working(engine, FOLLOWER):
                await heard.until("asleep", round_number, lane=LANE)
    finally:
        ended.set()
        await raining
