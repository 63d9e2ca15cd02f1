"""Submitters take turns in every lane; without several of them, jobs keep their order."""

import asyncio

import psycopg
import pytest

from kappa.engine import Engine, Executor, JobContext, Lane, WorkerConfig
from kappa.engine.model import Claimed
from kappa.engine.store import jobs
from kappa.engine.store.jobs import NewJob
from kappa.pg.ops import run
from tests.engine.hands import Connection, put, see, start, take
from tests.ground import PATIENCE

LANE, KINDS = "interactive", ["ingestion"]


@pytest.fixture(params=["claim", "claim at rest", "batch lease"])
def how(request: pytest.FixtureRequest) -> str:
    return request.param


def claim(connection: Connection, how: str, capacity: int = 1) -> list[Claimed]:
    if how == "claim at rest":
        return run(connection, jobs.claim_at_rest(LANE, "one", capacity, KINDS)).claimed
    return take(connection, capacity=capacity, light_kinds=KINDS if how == "batch lease" else None)


@pytest.fixture
def wide(connection: Connection) -> Connection:
    """A lane of 1,000 slots."""
    connection.execute("UPDATE kappa.lanes SET executor = 'async', max_slots = 1000 WHERE name = %s", [LANE])
    return connection


def submit(connection: Connection, who: str | None, count: int, **more: int) -> list[int]:
    return [put(connection, submitted_by=who, **more) for _ in range(count)]


def submitters(connection: Connection, claimed: list[Claimed]) -> list[str | None]:
    return [see(connection, job.id).submitted_by for job in claimed]


def one_by_one(connection: Connection, how: str, count: int) -> list[str | None]:
    return [who for _ in range(count) for who in submitters(connection, claim(connection, how))]


def test_who_comes_after_a_long_queue_has_the_next_turn(wide: Connection, how: str) -> None:
    submit(wide, "ada", 50)
    assert one_by_one(wide, how, 3) == ["ada"] * 3
    submit(wide, "bob", 2)
    submit(wide, "eve", 1)
    assert sorted(map(str, one_by_one(wide, how, 3))) == ["ada", "bob", "eve"]
    assert sorted(map(str, one_by_one(wide, how, 2))) == ["ada", "bob"]
    assert one_by_one(wide, how, 2) == ["ada"] * 2


def test_a_claim_of_many_is_shared_and_full(wide: Connection, how: str) -> None:
    submit(wide, "ada", 100)
    submit(wide, "bob", 5)
    submit(wide, "eve", 100)
    claimed = submitters(wide, claim(wide, how, 30))
    assert len(claimed) == 30
    assert claimed.count("bob") == 5
    assert {claimed.count("ada"), claimed.count("eve")} <= {12, 13}


def test_the_priority_comes_before_the_turn(wide: Connection, how: str) -> None:
    submit(wide, "ada", 10)
    submit(wide, "bob", 3, priority=2)
    submit(wide, "eve", 1, priority=1)
    assert one_by_one(wide, how, 4) == ["bob", "bob", "bob", "eve"]
    assert submitters(wide, claim(wide, how, 3)) == ["ada"] * 3


def test_one_claim_goes_through_several_priorities(wide: Connection, how: str) -> None:
    submit(wide, "ada", 10)
    submit(wide, "bob", 3, priority=2)
    submit(wide, "eve", 4)
    claimed = submitters(wide, claim(wide, how, 8))
    assert (claimed.count("bob"), len(claimed)) == (3, 8)
    assert {claimed.count("ada"), claimed.count("eve")} <= {2, 3}


def test_each_submitters_jobs_keep_their_order(wide: Connection, how: str) -> None:
    first, second = submit(wide, "ada", 6), submit(wide, "bob", 6)
    claimed = [job.id for _ in range(12) for job in claim(wide, how)]
    assert [job for job in claimed if job in first] == first
    assert [job for job in claimed if job in second] == second


def test_jobs_without_a_submitter_keep_the_order_of_their_ids(wide: Connection, how: str) -> None:
    put_in = submit(wide, None, 20)
    assert [job.id for _ in range(20) for job in claim(wide, how)] == put_in


def test_jobs_of_one_submitter_keep_the_order_of_their_ids(wide: Connection, how: str) -> None:
    put_in = submit(wide, "ada", 20)
    assert [job.id for _ in range(20) for job in claim(wide, how)] == put_in


def test_whoever_gave_no_name_and_who_did_take_turns(wide: Connection, how: str) -> None:
    submit(wide, None, 20)
    submit(wide, "ada", 3)
    assert one_by_one(wide, how, 6).count("ada") == 3


def test_a_locked_job_doesnt_keep_its_submitter_or_others_waiting(wide: Connection, url: str, how: str) -> None:
    locked, *rest = submit(wide, "ada", 3)
    submit(wide, "bob", 2)
    with psycopg.connect(url) as other:
        other.execute("SELECT FROM kappa.jobs WHERE id = %s FOR UPDATE", [locked])
        claimed = claim(wide, how, 4)
        assert len(claimed) == 4
        assert {job.id for job in claimed} > set(rest)
    assert [job.id for job in claim(wide, how, 4)] == [locked]


def test_a_crowd_of_names_is_served_to_the_last(wide: Connection, how: str) -> None:
    """More names than one claim looks at."""
    wide.execute(
        """INSERT INTO kappa.jobs (lane, kind, state, submitted_by)
           SELECT 'interactive', 'ingestion', 'queued', 'name ' || n FROM generate_series(1, 1500) AS n"""
    )
    submit(wide, "zoe", 1, priority=1)
    seen: set[int] = set()
    while claimed := claim(wide, how, 250):
        assert not seen & {job.id for job in claimed}
        seen |= {job.id for job in claimed}
        run(wide, jobs.settle_succeeded([(job.id, job.token) for job in claimed]))
    assert len(seen) == 1501


def test_a_claim_in_turn_leaves_the_scan_cursor_where_it_is(wide: Connection, how: str) -> None:
    submit(wide, "ada", 10)
    submit(wide, "bob", 1)
    assert {job.token_floor for job in claim(wide, how, 4)} == {None}


def test_a_child_has_its_parents_submitter(connection: Connection) -> None:
    parent = start(connection, submitted_by="ada")
    _, child = run(connection, jobs.spawn((parent.id, parent.token), "first", NewJob("ingestion", "null")))
    assert child is not None
    assert see(connection, child).submitted_by == "ada"


async def test_a_worker_runs_a_latecomers_job_long_before_the_end_of_a_queue(engine: Engine) -> None:
    """Also where it claims batch after batch, each behind the end of the one before."""
    order: list[str] = []

    @engine.job("turn")
    async def turn(ctx: JobContext, payload: str) -> None:
        order.append(payload)

    engine.lane(Lane("turns", kinds=("turn",), max_slots=1, executor=Executor.ASYNC))
    await asyncio.to_thread(engine.install)
    async with engine.async_client() as client:
        await client.enqueue_many("turn", ["ada"] * 500, submitted_by="ada")
        for who in ("bob", "eve"):
            await client.enqueue_many("turn", [who] * 3, submitted_by=who)
        worker = engine.worker(WorkerConfig(lanes=("turns",)))
        running = asyncio.create_task(worker.run())
        try:
            async with asyncio.timeout(PATIENCE):
                while len(order) < 506:
                    await asyncio.sleep(0.01)
        finally:
            worker.stop()
            await running
    assert len(order) == 506
    places = [place for place, who in enumerate(order) if who != "ada"]
    assert places[-1] < 20, places
