"""A job that holds the other lanes: nothing runs beside it, and the lanes are let go whatever becomes of it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta

import psycopg
import pytest
from psycopg import AsyncConnection, Connection

from kappa.engine import Client, Engine, Job, JobContext, JobState, Lane, LanesHeld, LeaseLost, WorkerConfig
from kappa.engine.holding import let_go, other_lanes_drained
from kappa.engine.maintenance.services import Reaper
from kappa.engine.store import holds, jobs, lanes
from kappa.engine.testing import maintain, working
from kappa.pg.ops import run
from kappa.pg.queries import Row
from tests.engine.hands import outcome, rival_with, wait_until_blocked
from tests.ground import eventually

Session = Connection[Row]


class Scene:
    """A lane of its own for the holder, another one for somebody else."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.inside = threading.Event()
        self.leave = threading.Event()
        self.told: list[int] = []
        self.work_began = threading.Event()
        self.work_ends = threading.Event()
        self.fail = False
        engine.lane(Lane("alone", kinds=("hold",), max_slots=2))
        engine.lane(Lane("others", kinds=("work",)))
        engine.lane(Lane("off", kinds=("never",), enabled=False))
        engine.job("hold", timeout=timedelta(minutes=1))(self.hold)
        engine.job("work", timeout=timedelta(minutes=1))(self.work)
        engine.install()

    def hold(self, ctx: JobContext) -> None:
        with other_lanes_drained(ctx, self.engine.database, self.told.append):
            self.inside.set()
            assert self.leave.wait(30)
            if self.fail:
                raise RuntimeError("something went wrong")
            with ctx.transaction() as connection:
                let_go(connection, ctx)

    def work(self, ctx: JobContext) -> None:
        self.work_began.set()
        assert self.work_ends.wait(30)


@pytest.fixture
def scene(engine: Engine) -> Iterator[Scene]:
    made = Scene(engine)
    yield made
    made.leave.set()
    made.work_ends.set()


@pytest.fixture
async def leader(url: str) -> AsyncIterator[AsyncConnection[Row]]:
    async with await AsyncConnection.connect(url, autocommit=True) as opened:
        yield opened


def enabled(session: Session) -> dict[str, bool]:
    return dict(session.execute("SELECT name, enabled FROM kappa.lanes").fetchall())


def opened(session: Session) -> dict[str, bool]:
    return dict(session.execute("SELECT name, is_open FROM kappa.lanes").fetchall())


async def in_thread(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 30)


async def seen(look: Callable[[], object]) -> None:
    await asyncio.to_thread(eventually, look)


async def ended(client: Client, kind_or_id: str | int) -> Job:
    job = client.enqueue(kind_or_id).id if isinstance(kind_or_id, str) else kind_or_id
    return await asyncio.to_thread(client.wait, job)


async def test_what_runs_ends_first_and_nothing_begins_meanwhile(
    scene: Scene, client: Client, connection: Session
) -> None:
    before = opened(connection)
    async with working(scene.engine):
        first = client.enqueue("work").id
        await in_thread(scene.work_began)
        holder = client.enqueue("hold").id
        await seen(lambda: scene.told)
        assert not scene.inside.is_set()
        second = client.enqueue("work").id
        scene.work_ends.set()
        await in_thread(scene.inside)
        assert client.show(first).state is JobState.SUCCEEDED
        assert client.show(second).state is JobState.QUEUED
        assert opened(connection) == before | {name: False for name in before if name != "alone"}
        scene.leave.set()
        assert (await ended(client, holder)).state is JobState.SUCCEEDED
        assert (await ended(client, second)).state is JobState.SUCCEEDED
    assert opened(connection) == before
    assert before["off"] is False


@pytest.mark.parametrize("how", ["succeeds", "fails", "is lost"])
async def test_a_lane_that_is_switched_off_or_on_while_it_is_held_stays_so(
    scene: Scene, client: Client, connection: Session, how: str
) -> None:
    scene.fail = how == "fails"
    async with working(scene.engine, WorkerConfig(lead=False)):
        holder = client.enqueue("hold").id
        await in_thread(scene.inside)
        assert client.edit_lane("others", enabled=False).enabled is False
        assert client.edit_lane("off", enabled=True).enabled is True
        waiting = [client.enqueue(kind).id for kind in ("work", "never")]
        assert run(connection, jobs.claim("off", "me", 1)) == []
        if how == "is lost":
            connection.execute(
                "UPDATE kappa.jobs SET lease_until = now() - interval '1 minute' WHERE id = %s", [holder]
            )
            await maintain(scene.engine, only=lambda name: name == "reaper")
        scene.leave.set()
        await seen(lambda: client.show(holder).state.terminal or how == "is lost")
        assert (enabled(connection)["others"], enabled(connection)["off"]) == (False, True)
        assert [len(run(connection, jobs.claim(lane, "me", 1))) for lane in ("others", "off")] == [0, 1]
        assert client.show(waiting[0]).state is JobState.QUEUED


@pytest.mark.parametrize("how", ["claim", "claim at rest", "fleet claim"])
def test_nothing_is_claimed_from_a_lane_that_is_held(
    scene: Scene, client: Client, connection: Session, how: str
) -> None:
    client.enqueue("hold")
    job, token = claim(connection, "alone")
    client.enqueue("work")
    if how == "fleet claim":
        client.edit_lane("others", executor="fleet")
    kinds = ["work"]

    def claimed() -> int:
        if how == "claim":
            return len(run(connection, jobs.claim("others", "me", 1, kinds=kinds)))
        if how == "claim at rest":
            return len(run(connection, jobs.claim_at_rest("others", "me", 1, kinds))[0])
        asked = ["me"], ["1"], [1], [1.0], [1000], ["{}"], kinds
        rows = connection.execute("SELECT * FROM kappa.fleet_claim(%s, %s, %s, %s, %s, %s, %s)", asked)
        return len(rows.fetchall())

    assert "others" in (run(connection, holds.hold(job, token)) or [])
    assert claimed() == 0
    run(connection, holds.let_go(job, token))
    assert claimed() == 1


def test_a_lane_that_is_made_while_a_job_holds_the_others_is_held_too(
    scene: Scene, client: Client, connection: Session, url: str
) -> None:
    client.enqueue("hold")
    job, token = claim(connection, "alone")
    with psycopg.connect(url) as maker:
        run(maker, lanes.declare_lane(Lane("early")))
        with rival_with(lambda own: hold(own, job, token), url) as holding:
            wait_until_blocked(connection)
            maker.commit()
            assert "early" in outcome(holding)
    run(connection, lanes.declare_lane(Lane("new")))
    assert (opened(connection)["early"], opened(connection)["new"]) == (False, False)
    assert "new" in run(connection, holds.let_go(job, token))
    assert opened(connection)["new"]


def hold(session: Session, job: int, token: int) -> list[str]:
    with session.transaction():
        run(session, holds.lock())
        return run(session, holds.hold(job, token)) or []


async def test_a_holder_that_fails_lets_go(scene: Scene, client: Client, connection: Session) -> None:
    before = opened(connection)
    scene.fail = True
    scene.leave.set()
    async with working(scene.engine):
        assert (await ended(client, "hold")).state is JobState.FAILED
    assert opened(connection) == before


async def test_a_second_holder_is_refused(scene: Scene, client: Client, connection: Session) -> None:
    async with working(scene.engine):
        first = client.enqueue("hold").id
        await in_thread(scene.inside)
        second = await ended(client, "hold")
        assert second.state is JobState.FAILED
        assert second.error_summary == f"job {first} holds the lanes"
        assert issubclass(LanesHeld, Exception)
        scene.leave.set()
        assert (await ended(client, first)).state is JobState.SUCCEEDED
    assert all(on for name, on in opened(connection).items() if name != "off")


def claim(session: Session, lane: str) -> tuple[int, int]:
    found = session.execute(
        "UPDATE kappa.jobs SET state = 'running', lease_owner = 'me', lease_token = nextval('kappa.lease_tokens'), "
        "lease_until = now() + interval '1 minute' WHERE lane = %s RETURNING id, lease_token",
        [lane],
    ).fetchone()
    assert found is not None
    return found


async def test_the_lanes_of_a_lost_lease_are_let_go_by_the_reaper(
    scene: Scene, client: Client, connection: Session, leader: AsyncConnection[Row]
) -> None:
    before = opened(connection)
    client.enqueue("hold")
    job, token = claim(connection, "alone")
    assert "others" in (run(connection, holds.hold(job, token)) or [])
    reaper = Reaper(scene.engine.signals)
    await reaper.run_once(leader)
    assert opened(connection)["others"] is False
    connection.execute("UPDATE kappa.jobs SET lease_until = now() - interval '1 second'")
    await reaper.run_once(leader)
    assert opened(connection) == before
    assert run(connection, holds.hold(job, token)) is None  # who lost its lease holds nothing


async def test_who_has_lost_its_lease_unknowingly_is_refused(scene: Scene, client: Client, connection: Session) -> None:
    """Its renewal has not told it yet."""
    crowded = threading.Event()

    def late(ctx: JobContext) -> None:
        connection.execute("UPDATE kappa.jobs SET lease_token = lease_token + 1000 WHERE id = %s", [ctx.job_id])
        try:
            with other_lanes_drained(ctx, scene.engine.database):
                crowded.set()
        except LeaseLost:
            scene.inside.set()

    scene.engine.lane(Lane("late", kinds=("late",)))
    scene.engine.job("late")(late)
    scene.engine.install()
    client.enqueue("late")
    async with working(scene.engine, WorkerConfig(lead=False, grace=timedelta(0))):
        await in_thread(scene.inside)
    assert not crowded.is_set()


async def test_the_lanes_of_a_job_that_is_gone_are_let_go(scene: Scene, client: Client, connection: Session) -> None:
    before = opened(connection)
    client.enqueue("hold")
    job, token = claim(connection, "alone")
    run(connection, holds.hold(job, token))
    run(connection, jobs.settle([jobs.Finish(job, token, JobState.FAILED)]))
    await maintain(scene.engine, only=lambda name: name == "reaper")
    assert opened(connection) == before


def test_a_parent_that_waits_for_its_children_is_not_waited_for(
    scene: Scene, client: Client, connection: Session
) -> None:
    client.enqueue("hold")
    client.enqueue("work")
    job, token = claim(connection, "alone")
    claim(connection, "others")
    run(connection, holds.hold(job, token))
    assert run(connection, holds.still_running(job)) == 1
    connection.execute("UPDATE kappa.jobs SET waiting = true WHERE lane = 'others'")
    assert run(connection, holds.still_running(job)) == 0


async def test_a_claim_that_was_under_way_is_waited_for(
    scene: Scene, client: Client, connection: Session, url: str
) -> None:
    """A claim that has seen its lane open commits after the lane was held."""
    client.enqueue("work")
    with psycopg.connect(url) as claimer:
        claimer.execute("SELECT pg_advisory_xact_lock(1262568289, hashtext('others'))")
        assert claimer.execute("SELECT is_open FROM kappa.lanes WHERE name = 'others'").fetchone() == (True,)
        async with working(scene.engine, None):
            holder = client.enqueue("hold").id
            await seen(lambda: not opened(connection)["others"])
            claim(claimer, "others")
            assert not scene.inside.is_set()
            claimer.commit()
            await seen(lambda: scene.told)
            assert not scene.inside.is_set()
            connection.execute("UPDATE kappa.jobs SET lease_until = now() - interval '1 second' WHERE lane = 'others'")
            await in_thread(scene.inside)
            scene.leave.set()
            assert (await ended(client, holder)).state is JobState.SUCCEEDED
