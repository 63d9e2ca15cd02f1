"""Lanes and claims: who gets which jobs, how many at once, and in what order."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from kappa.engine import Client, Engine, EngineError, Executor, JobContext, JobState, Lane, LaneError, UnknownKind
from kappa.engine.store import jobs, lanes, maintenance
from kappa.engine.store.jobs import PutBack
from kappa.engine.testing import Heard, maintain, working
from kappa.pg.ops import run
from tests.engine.hands import (
    BLOCKED,
    Connection,
    in_state,
    later,
    moves_wait,
    orphan,
    outcome,
    put,
    reap,
    renew,
    rival,
    rival_with,
    row,
    see,
    start,
    take,
    wait_until_blocked,
)
from tests.ground import eventually


def ids(claimed: list[jobs.Claimed]) -> list[int]:
    return [job.id for job in claimed]


# The table of lanes


def test_the_default_lanes_are_seeded(client: Client) -> None:
    def lane(name: str, slots: int, poll: int, stale: int, kinds: tuple[str, ...]) -> Lane:
        return Lane(
            name, kinds, slots, poll * 1000, timedelta(seconds=60), timedelta(minutes=stale), True, Executor.THREAD
        )

    maintenance_kinds = (
        "projection",
        "vocab_refresh",
        "epistemic_remeasurement",
        "ontology_annealing",
        "proposal_execution",
    )
    assert client.lanes() == [
        lane("interactive", 2, 2, 30, ("ingestion", "ingest_image", "polarity")),
        lane("maintenance", 1, 15, 60, maintenance_kinds),
        lane("system", 1, 30, 120, ("restore", "vocab_consolidate", "artifact_cleanup", "source_embedding")),
        lane("tools", 2, 1, 10, ("tool_run",)),
    ]


@pytest.mark.parametrize(
    ("executor", "slots"),
    [("thread", 1), ("thread", 16), ("async", 1), ("async", 1000), ("process", 64), ("fleet", 100_000)],
)
def test_a_lane_may_have_as_many_slots_as_its_executor_allows(client: Client, executor: str, slots: int) -> None:
    edited = client.edit_lane("tools", executor=executor, max_slots=slots)
    assert (edited.executor, edited.max_slots) == (executor, slots)


@pytest.mark.parametrize(("executor", "slots"), [("thread", 0), ("thread", 17), ("async", 0), ("async", 1001)])
def test_a_lane_with_more_or_fewer_slots_is_refused(client: Client, executor: str, slots: int) -> None:
    before = client.lanes()
    with pytest.raises(LaneError, match="a thread lane has 1 to 16 slots, an async lane 1 to 1,000"):
        client.edit_lane("tools", executor=executor, max_slots=slots)
    with pytest.raises(LaneError, match="'new'"):
        client.declare_lane(Lane("new", ("new",), slots, executor=Executor(executor)))
    assert client.lanes() == before


@pytest.mark.parametrize(
    "change",
    [{"executor": "steam"}, {"poll_interval_ms": 0}, {"lease_ttl": timedelta(0)}, {"stale_timeout": timedelta(0)}],
)
def test_a_lane_that_can_not_work_is_refused(client: Client, change: dict[str, Any]) -> None:
    with pytest.raises(LaneError, match="'tools'"):
        client.edit_lane("tools", **change)


def test_an_edit_of_what_is_not_there_is_refused(client: Client) -> None:
    with pytest.raises(LaneError, match="there is no lane 'nowhere'"):
        client.edit_lane("nowhere", max_slots=2)
    with pytest.raises(LaneError, match="a lane has no 'slots'"):
        client.edit_lane("tools", slots=2)
    with pytest.raises(LaneError, match="there is no lane 'nowhere'"):
        client.move_kind("tool_run", "nowhere")


def test_a_declared_lane_that_exists_only_learns_the_kinds_that_it_lacks(client: Client) -> None:
    client.edit_lane("tools", max_slots=5)
    client.declare_lane(Lane("tools", ("hammer",), max_slots=1, enabled=False))
    (lane,) = [lane for lane in client.lanes() if lane.name == "tools"]
    assert (set(lane.kinds), lane.max_slots, lane.enabled) == ({"tool_run", "hammer"}, 5, True)


# Kinds


def test_a_kind_in_no_lane_is_refused_at_enqueue(client: Client) -> None:
    with pytest.raises(UnknownKind, match="kind 'nothing' is in no lane"):
        client.enqueue("nothing")
    with pytest.raises(UnknownKind, match="kind 'nothing' is in no lane"):
        client.enqueue("nothing", dedup_key="once")
    with pytest.raises(UnknownKind, match="kind 'nothing' is in no lane"):
        client.enqueue_many("nothing", [1, 2])
    assert client.list_jobs() == []


def test_a_kind_in_two_lanes_is_refused_at_the_edit(client: Client) -> None:
    before = client.lanes()
    with pytest.raises(LaneError, match='kind "ingestion" belongs to lane "interactive" already'):
        client.edit_lane("tools", kinds=["tool_run", "ingestion"])
    with pytest.raises(LaneError, match='kind "ingestion" belongs to lane "interactive" already'):
        client.declare_lane(Lane("new", ("ingestion",)))
    assert client.lanes() == before


def test_two_edits_at_once_can_not_put_a_kind_in_two_lanes(url: str, client: Client, connection: Connection) -> None:
    moves_wait(connection)
    with psycopg.connect(url) as first:
        run(first, lanes.edit_lane("tools", {"kinds": ["tool_run", "hammer"]}))
        with rival(lambda: client.edit_lane("system", kinds=["restore", "hammer"]), url) as second:
            wait_until_blocked(connection)
            first.commit()
            with pytest.raises(LaneError, match="hammer"):
                outcome(second)
    assert [lane.name for lane in client.lanes() if "hammer" in lane.kinds] == ["tools"]


def test_a_kind_that_another_transaction_is_at_for_long_is_not_moved_and_that_is_said(
    url: str, client: Client, connection: Connection
) -> None:
    connection.execute("ALTER FUNCTION kappa.place_kinds() SET lock_timeout = '10ms'")
    put(connection)
    before = client.lanes()
    with psycopg.connect(url) as other:
        other.execute("SELECT FROM kappa.jobs FOR UPDATE")
        with pytest.raises(LaneError, match=r"^lane 'tools' can't have its kinds changed now: .*; try again$"):
            client.move_kind("ingestion", "tools")
        run(other, lanes.edit_lane("tools", {"kinds": ["tool_run", "hammer"]}))
        with pytest.raises(LaneError, match=r"^lane 'system' can't have its kinds changed now: .*; try again$"):
            client.edit_lane("system", kinds=["restore", "hammer"])
        other.rollback()
    assert client.lanes() == before


def test_two_moves_at_once_lose_no_kind(url: str, client: Client, connection: Connection) -> None:
    with psycopg.connect(url) as holder:
        holder.execute("SELECT FROM kappa.lanes WHERE name = 'tools' FOR UPDATE")
        with (
            rival(lambda: client.move_kind("polarity", "tools"), url) as one,
            rival(lambda: client.move_kind("projection", "tools"), url) as two,
        ):
            wait_until_blocked(connection, 2)
            holder.commit()
            outcome(one)
            outcome(two)
    placed = connection.execute("SELECT kind FROM kappa.lane_kinds WHERE lane = 'tools' ORDER BY kind").fetchall()
    assert [kind for (kind,) in placed] == ["polarity", "projection", "tool_run"]
    assert {kind for lane in client.lanes() if lane.name == "tools" for kind in lane.kinds} == {k for (k,) in placed}


@pytest.mark.parametrize("state", [JobState.AWAITING_APPROVAL, JobState.SCHEDULED, JobState.QUEUED])
def test_a_kind_that_moves_takes_its_waiting_jobs_with_it(
    client: Client, connection: Connection, state: JobState
) -> None:
    job_id, _ = in_state(connection, state)
    client.move_kind("ingestion", "tools")
    assert (see(connection, job_id).lane, see(connection, job_id).state) == ("tools", state)


def test_a_moved_kind_is_claimed_in_its_new_lane_only(client: Client, connection: Connection) -> None:
    job_id = put(connection)
    client.move_kind("ingestion", "tools")
    assert take(connection, "interactive") == []
    assert ids(take(connection, "tools")) == [job_id]
    assert see(connection, put(connection)).lane == "tools"


def test_a_job_that_runs_keeps_its_slot_when_its_kind_moves(client: Client, connection: Connection) -> None:
    claimed = start(connection)
    client.move_kind("ingestion", "tools")
    assert see(connection, claimed.id).lane == "interactive"
    assert renew(connection, [(claimed.id, claimed.token)]) == {claimed.id: None}


def test_a_job_that_is_put_back_after_its_kind_moved_goes_to_the_new_lane(
    client: Client, connection: Connection
) -> None:
    claimed = start(connection, max_attempts=3)
    client.move_kind("ingestion", "tools")
    run(connection, jobs.put_back([PutBack(claimed.id, claimed.token)]))
    assert see(connection, claimed.id).lane == "tools"


def test_an_orphan_is_adopted_in_the_lane_that_its_kind_has_moved_to(client: Client, connection: Connection) -> None:
    claimed = start(connection)
    before = orphan(connection)
    client.move_kind("ingestion", "tools")
    run(connection, jobs.release([(claimed.id, claimed.token)]))
    assert set(ids(take(connection, "tools", kinds=["ingestion"]))) == {before, claimed.id}


async def test_a_job_that_is_enqueued_while_its_kind_moves_is_not_left_behind(
    url: str, engine: Engine, client: Client, connection: Connection
) -> None:
    moves_wait(connection)
    with psycopg.connect(url) as caller:
        job_id = client.enqueue("ingestion", connection=caller).id
        with rival(lambda: client.move_kind("ingestion", "tools"), url) as move:
            eventually(
                lambda: move.done() or connection.execute(BLOCKED).fetchall(), what="a move that waits, or ended"
            )
            caller.commit()
            outcome(move)
    await maintain(engine)
    assert see(connection, job_id).lane == "tools"


def test_a_kind_that_has_jobs_can_not_be_taken_out_of_its_lane(client: Client, connection: Connection) -> None:
    job_id = put(connection, kind="tool_run")
    with pytest.raises(LaneError, match='kind "tool_run" still has jobs and would be in no lane'):
        client.edit_lane("tools", kinds=[])
    with pytest.raises(psycopg.errors.RestrictViolation):
        connection.execute("DELETE FROM kappa.lanes WHERE name = 'tools'")
    client.cancel(job_id)
    assert client.edit_lane("tools", kinds=[]).kinds == ()
    with pytest.raises(UnknownKind):
        client.enqueue("tool_run")


@pytest.mark.parametrize("many", [True, False])
def test_a_kind_that_was_taken_out_of_its_lane_is_refused_at_once(
    client: Client, connection: Connection, many: bool
) -> None:
    client.enqueue_many("tool_run", [1])
    client.cancel(client.list_jobs()[0].id)
    client.edit_lane("tools", kinds=[])
    with pytest.raises(UnknownKind, match="kind 'tool_run' is in no lane"):
        client.enqueue_many("tool_run", [1]) if many else client.enqueue("tool_run")
    assert client.counts() == {}


def test_a_lane_in_which_jobs_run_can_not_be_deleted_after_its_kinds_moved_away(
    client: Client, connection: Connection
) -> None:
    (claimed,) = [take(connection, "tools")[0] for _ in [put(connection, kind="tool_run")]]
    client.move_kind("tool_run", "system")
    with pytest.raises(psycopg.errors.RestrictViolation):
        connection.execute("DELETE FROM kappa.lanes WHERE name = 'tools'")
    assert renew(connection, [(claimed.id, claimed.token)]) == {claimed.id: None}


async def test_a_kind_that_is_new_in_a_lane_does_not_disturb_a_worker_that_has_no_handler_for_it(
    engine: Engine, client: Client, heard: Heard
) -> None:
    engine.lane(Lane("mixed", ("known",), max_slots=4, poll_interval_ms=3_600_000))

    @engine.job("known")
    def known(ctx: JobContext) -> None: ...

    engine.install()
    async with working(engine):
        await heard.until("asleep", lane="mixed")
        client.edit_lane("mixed", kinds=["known", "unknown"])
        stranger = client.enqueue("unknown").id
        job_id = client.enqueue("known").id
        await heard.until("settled", job=job_id)
    assert client.show(job_id).state is JobState.SUCCEEDED
    assert client.show(stranger).state is JobState.QUEUED


# Slots


def test_a_claim_takes_as_many_as_there_are_free_slots_in_one_statement(connection: Connection) -> None:
    run(connection, lanes.edit_lane("interactive", {"max_slots": 5}))
    made = [put(connection) for _ in range(7)]
    assert sorted(ids(take(connection, capacity=100))) == made[:5]
    assert take(connection) == []


def test_a_claim_never_takes_more_than_its_claimer_can_run(connection: Connection) -> None:
    made = [put(connection) for _ in range(3)]
    assert ids(take(connection, capacity=1)) == made[:1]
    assert take(connection, capacity=0) == []


def test_slots_count_for_the_whole_cluster(connection: Connection) -> None:
    made = [put(connection) for _ in range(4)]
    assert ids(take(connection, owner="one", capacity=1)) == made[:1]
    assert ids(take(connection, owner="two", capacity=16)) == made[1:2]
    assert take(connection, owner="three", capacity=16) == []


def test_an_orphan_keeps_its_slot_from_those_who_do_not_know_its_kind(connection: Connection) -> None:
    orphan(connection, kind="polarity")
    made = [put(connection) for _ in range(3)]
    assert ids(take(connection, kinds=["ingestion"])) == made[:1]


def test_two_claimers_on_one_slot_one_gets_it(url: str, connection: Connection) -> None:
    run(connection, lanes.edit_lane("interactive", {"max_slots": 1}))
    first, _ = put(connection), put(connection)
    with psycopg.connect(url) as one:
        assert ids(take(one, owner="one")) == [first]
        with rival_with(lambda own: take(own, owner="two"), url) as two:
            wait_until_blocked(connection)
            one.commit()
            assert outcome(two) == []
    assert see(connection, first).lease_owner == "one"


def test_a_slot_that_a_claimer_did_not_commit_goes_to_the_other(url: str, connection: Connection) -> None:
    run(connection, lanes.edit_lane("interactive", {"max_slots": 1}))
    first = put(connection)
    with psycopg.connect(url) as one:
        assert ids(take(one, owner="one")) == [first]
        with rival_with(lambda own: take(own, owner="two"), url) as two:
            wait_until_blocked(connection)
            one.rollback()
            assert ids(outcome(two)) == [first]
    assert see(connection, first).lease_owner == "two"


def test_claimers_of_different_lanes_do_not_wait_for_each_other(url: str, connection: Connection) -> None:
    connection.execute("SET lock_timeout = '5s'")
    put(connection)
    tool = put(connection, kind="tool_run")
    with psycopg.connect(url) as one:
        assert len(take(one, "interactive")) == 1
        assert ids(take(connection, "tools")) == [tool]


def test_a_full_lane_takes_no_slot_of_another(connection: Connection) -> None:
    for _ in range(3):
        put(connection)
    tools = [put(connection, kind="tool_run") for _ in range(2)]
    assert len(take(connection, "interactive")) == 2
    assert sorted(ids(take(connection, "tools"))) == tools


def test_a_settled_job_frees_its_slot(connection: Connection) -> None:
    made = [put(connection) for _ in range(3)]
    first, _ = take(connection)
    assert take(connection) == []
    run(connection, jobs.settle_succeeded([(first.id, first.token)]))
    assert ids(take(connection)) == made[2:]


def test_a_parent_that_waits_gives_its_slot_to_others(connection: Connection) -> None:
    run(connection, lanes.edit_lane("interactive", {"max_slots": 1}))
    parent = start(connection)
    child = put(connection)
    assert take(connection) == []
    assert run(connection, jobs.release_slot(parent.id, parent.token))
    assert ids(take(connection)) == [child]
    assert not run(connection, jobs.reacquire_slot(parent.id, parent.token))


def test_a_parent_that_waited_is_counted_again_by_a_claimer_with_a_floor(connection: Connection) -> None:
    parent = start(connection)
    run(connection, jobs.release_slot(parent.id, parent.token))
    for _ in range(3):
        put(connection)
    (child,) = take(connection, capacity=1)
    assert run(connection, jobs.reacquire_slot(parent.id, parent.token))
    assert take(connection, capacity=1, floor_token=child.token_floor or 0) == []


def test_a_floor_skips_no_running_job(connection: Connection) -> None:
    for _ in range(4):
        put(connection)
    (first,) = take(connection, capacity=1)
    (second,) = take(connection, capacity=1, floor_token=first.token_floor or 0)
    assert second.token_floor == first.token
    assert take(connection, capacity=1, floor_token=second.token_floor or 0) == []


# Live edits


def test_more_slots_count_from_the_next_claim_on(client: Client, connection: Connection) -> None:
    for _ in range(4):
        put(connection)
    assert len(take(connection)) == 2
    client.edit_lane("interactive", max_slots=3)
    assert len(take(connection)) == 1


def test_fewer_slots_stop_no_job_and_let_none_in(client: Client, connection: Connection) -> None:
    made = [put(connection) for _ in range(3)]
    first, second = sorted(take(connection), key=lambda job: job.id)
    client.edit_lane("interactive", max_slots=1)
    assert set(renew(connection, [(first.id, first.token), (second.id, second.token)])) == set(made[:2])
    run(connection, jobs.settle_succeeded([(first.id, first.token)]))
    assert take(connection) == []
    run(connection, jobs.settle_succeeded([(second.id, second.token)]))
    assert ids(take(connection)) == made[2:]


def test_a_disabled_lane_drains(client: Client, connection: Connection) -> None:
    running = start(connection, max_attempts=3)
    waiting = put(connection)
    client.edit_lane("interactive", enabled=False)
    assert take(connection) == []
    assert renew(connection, [(running.id, running.token)]) == {running.id: None}
    assert run(connection, jobs.settle_succeeded([(running.id, running.token)])) == {running.id}
    assert take(connection) == []
    assert see(connection, put(connection)).state is JobState.QUEUED
    client.edit_lane("interactive", enabled=True)
    assert waiting in ids(take(connection))


def test_an_orphan_of_a_disabled_lane_is_still_brought_to_an_end(client: Client, connection: Connection) -> None:
    lost = orphan(connection)
    put(connection)
    client.edit_lane("interactive", enabled=False)
    (adopted,) = take(connection)
    assert (adopted.id, adopted.adopted) == (lost, True)


def test_a_look_reads_every_row_and_says_where_there_is_work(connection: Connection) -> None:
    put(connection)
    run(connection, lanes.edit_lane("tools", {"max_slots": 7}))
    seen = {lane.name: (lane.max_slots, work) for lane, work in run(connection, lanes.look(["interactive", "tools"]))}
    assert seen == {"interactive": (2, True), "tools": (7, False)}
    run(connection, lanes.edit_lane("interactive", {"enabled": False}))
    ((lane, work),) = run(connection, lanes.look(["interactive"]))
    assert (lane.enabled, work) == (False, False)


def test_an_edit_wakes_the_lane(url: str, client: Client) -> None:
    with listening(url, "kappa_wake") as ear:
        client.edit_lane("tools", max_slots=3)
        assert heard_by(ear) == "tools"


# Order


def test_jobs_are_claimed_by_priority_and_then_by_age(connection: Connection) -> None:
    run(connection, lanes.edit_lane("interactive", {"max_slots": 10}))
    made = {name: put(connection, priority=p) for name, p in [("a", 0), ("b", 5), ("c", -5), ("d", 5), ("e", 0)]}
    order = [take(connection, capacity=1)[0].id for _ in made]
    assert order == [made[name] for name in "bdaec"]


def test_a_batch_takes_the_first_in_order(connection: Connection) -> None:
    low = [put(connection, priority=-1) for _ in range(2)]
    high = [put(connection, priority=1) for _ in range(2)]
    assert sorted(ids(take(connection))) == high
    assert low


def test_a_claim_passes_over_a_row_that_another_holds(url: str, connection: Connection) -> None:
    held, free = put(connection), put(connection)
    connection.execute("SET lock_timeout = '5s'")
    with psycopg.connect(url) as holder:
        holder.execute("SELECT FROM kappa.jobs WHERE id = %s FOR UPDATE", [held])
        assert ids(take(connection)) == [free]
    assert ids(take(connection)) == [held]


def test_only_kinds_that_the_claimer_knows_are_claimed(connection: Connection) -> None:
    put(connection, kind="ingestion")
    known = put(connection, kind="polarity")
    assert take(connection, kinds=[]) == []
    assert ids(take(connection, kinds=["polarity"])) == [known]


def test_a_claimer_that_begins_at_a_floor_finds_what_is_behind_it_when_it_drops_the_floor(
    connection: Connection,
) -> None:
    first, second = put(connection), put(connection)
    assert ids(take(connection, capacity=1, floor=(0, first))) == [second]
    assert ids(take(connection, capacity=1)) == [first]


def test_a_lane_that_is_not_there_gives_nothing(connection: Connection) -> None:
    assert take(connection, "nowhere") == []


def test_a_job_that_was_claimed_very_often_stops_no_lane(connection: Connection) -> None:
    snoozed, other = put(connection), put(connection)
    connection.execute("UPDATE kappa.jobs SET claims = 32767 WHERE id = %s", [snoozed])
    assert sorted(ids(take(connection))) == [snoozed, other]


# Claims and cancels


def test_a_cancel_that_waits_for_a_claim_finds_the_job_running(
    url: str, client: Client, connection: Connection
) -> None:
    job_id = put(connection)
    with psycopg.connect(url) as claimer:
        assert ids(take(claimer)) == [job_id]
        with rival_with(lambda own: client.cancel(job_id, "enough", connection=own), url) as cancel:
            wait_until_blocked(connection)
            claimer.commit()
            assert outcome(cancel) is JobState.RUNNING
    assert (see(connection, job_id).state, row(connection, job_id, "cancel_reason")) == (
        JobState.RUNNING,
        ("enough",),
    )


def test_a_claim_passes_over_a_job_that_is_being_cancelled(url: str, client: Client, connection: Connection) -> None:
    job_id = put(connection)
    connection.execute("SET lock_timeout = '5s'")
    with psycopg.connect(url) as canceller:
        assert client.cancel(job_id, "enough", connection=canceller) is JobState.CANCELLED
        assert take(connection) == []
        canceller.commit()
    assert take(connection) == []
    assert see(connection, job_id).state is JobState.CANCELLED


# Wake-ups


@contextmanager
def listening(url: str, channel: str) -> Iterator[Connection]:
    with psycopg.connect(url, autocommit=True) as ear:
        ear.execute(f"LISTEN {channel}")
        yield ear


def heard_by(ear: Connection) -> str | None:
    for notification in ear.notifies(timeout=10, stop_after=1):
        return notification.payload
    return None


def test_nobody_is_told_when_nobody_sleeps_and_one_is_told_for_many_jobs(
    url: str, client: Client, connection: Connection
) -> None:
    with listening(url, "kappa_wake") as ear:
        client.enqueue("ingestion")
        client.enqueue_many("ingestion", range(50))
        run(connection, lanes.fall_asleep("interactive", "one"))
        client.enqueue_many("ingestion", range(50))
        connection.execute("SELECT pg_notify('kappa_wake', 'the end')")
        heard = [said.payload for said in ear.notifies(timeout=10, stop_after=2)]
    assert heard == ["interactive", "the end"]


@pytest.mark.parametrize("many", [0, 2, 2_001], ids=["one", "some", "thousands"])
def test_a_lane_that_falls_asleep_before_the_caller_commits_is_told(
    url: str, client: Client, connection: Connection, many: int
) -> None:
    with listening(url, "kappa_wake") as ear, psycopg.connect(url) as caller:
        if many:
            client.enqueue_many("ingestion", [1] * many, connection=caller)
        else:
            client.enqueue("ingestion", connection=caller)
        run(connection, lanes.fall_asleep("interactive", "one"))
        caller.commit()
        connection.execute("SELECT pg_notify('kappa_wake', 'the end')")
        assert heard_by(ear) == "interactive"


@pytest.mark.parametrize("many", [0, 2, 2_001], ids=["one", "some", "thousands"])
def test_nobody_is_told_before_the_caller_commits_nor_if_it_rolls_back(
    url: str, client: Client, connection: Connection, many: int
) -> None:
    run(connection, lanes.fall_asleep("interactive", "one"))
    with listening(url, "kappa_wake") as ear, psycopg.connect(url) as caller:
        for end in (caller.rollback, caller.commit):
            if many:
                client.enqueue_many("ingestion", [1] * many, connection=caller)
            else:
                client.enqueue("ingestion", connection=caller)
            connection.execute("SELECT pg_notify('kappa_wake', 'before its end')")
            end()
        heard = [said.payload for said in ear.notifies(timeout=10, stop_after=3)]
    assert heard == ["before its end", "before its end", "interactive"]


@pytest.mark.parametrize("how", ["approve", "release", "put back", "reap", "promote", "wait for children"])
def test_whatever_leaves_something_to_claim_tells_its_lane_once(
    url: str, client: Client, connection: Connection, how: str
) -> None:
    unapproved = put(connection, approval=True)
    for _ in range(2):
        put(connection, delay=timedelta(hours=1))
    held = [(job.id, job.token) for job in (start(connection, max_attempts=3), start(connection, max_attempts=3))]
    with listening(url, "kappa_wake") as ear:
        match how:
            case "approve":
                client.approve(unapproved, by="ada")
            case "release":
                run(connection, jobs.release(held))
            case "put back":
                run(connection, jobs.put_back([PutBack(*lease, started=False) for lease in held]))
            case "reap":
                assert reap(connection) == 2
            case "promote":
                assert run(connection, maintenance.promote(later(connection, hours=2))) == 2
            case _:
                run(connection, jobs.release_slot(*held[0]))
        connection.execute("SELECT pg_notify('kappa_wake', 'the end')")
        heard = [said.payload for said in ear.notifies(timeout=10, stop_after=2)]
    assert heard == ["interactive", "the end"]


def test_the_time_of_a_claim_is_the_databases(connection: Connection) -> None:
    put(connection)
    with connection.transaction():
        (claimed,) = take(connection)
        (until,) = row(connection, claimed.id, "lease_until")
        (now,) = connection.execute("SELECT now()").fetchone() or (None,)
    assert until - now == timedelta(seconds=60)
    assert later(connection) > now


def test_a_kind_that_needs_approval_can_not_have_a_time_as_well(engine: Engine, client: Client) -> None:
    engine.job("ingestion", approval=True)(lambda ctx: None)
    with pytest.raises(EngineError, match="asks for approval"):
        client.enqueue("ingestion", delay=timedelta(hours=1))
