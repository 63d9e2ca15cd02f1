"""One lease for a batch: what a claim of a busy lane writes, who else may touch such jobs, and what becomes of them."""

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from kappa.engine import AsyncJobContext, Client, Engine, Executor, IllegalTransition, JobState, Lane, WorkerConfig
from kappa.engine.model import Claimed
from kappa.engine.store import insight, jobs, lanes
from kappa.engine.store.jobs import Finish, PutBack, Renewal
from kappa.engine.testing import working
from kappa.pg.ops import run
from tests.engine.hands import (
    Connection,
    every_write_of_an_owner,
    moves_wait,
    outcome,
    put,
    reap,
    renew,
    rival_with,
    row,
    see,
    take,
    wait_until_blocked,
)  # fmt: skip
from tests.engine.site import HOUR_MS, Site, seen
from tests.engine.work import LANE

BATCHES = "SELECT token, ids FROM kappa.batch_leases ORDER BY token"


@pytest.fixture(autouse=True)
def async_lane(connection: Connection) -> None:
    run(connection, lanes.edit_lane("interactive", {"executor": "async", "max_slots": 100}))


def take_light(connection: Connection, **more: Any) -> list[Claimed]:
    return take(connection, light_kinds=["ingestion", "polarity"], **more)


def batch_of(connection: Connection, count: int = 3) -> list[Claimed]:
    """New jobs under one lease."""
    for _ in range(count):
        put(connection, max_attempts=3)
    claimed = take_light(connection)
    assert len(claimed) == count
    assert all(job.light for job in claimed)
    return claimed


def held(*claimed: Claimed) -> list[tuple[int, int]]:
    return [(job.id, job.token) for job in claimed]


def batches(connection: Connection) -> list[set[int]]:
    return [set(ids) for _, ids in connection.execute(BATCHES).fetchall()]


# In the store


def test_a_batch_is_one_row_and_its_jobs_rows_are_not_written(connection: Connection) -> None:
    made = [put(connection, max_attempts=3) for _ in range(3)]
    before = [row(connection, job, "xmin", "ctid") for job in made]
    claimed = take_light(connection)
    assert [row(connection, job, "xmin", "ctid") for job in made] == before
    assert len({job.token for job in claimed}) == 1
    assert batches(connection) == [set(made)]
    assert {see(connection, job).state for job in made} == {JobState.RUNNING}


def test_a_batch_that_is_settled_leaves_nothing_behind(connection: Connection) -> None:
    claimed = batch_of(connection)
    assert run(connection, jobs.settle_succeeded(held(*claimed))) == {job.id for job in claimed}
    assert batches(connection) == []
    ended = [see(connection, job.id) for job in claimed]
    assert {(job.state, job.attempt) for job in ended} == {(JobState.SUCCEEDED, 1)}
    assert all(job.started_at is not None for job in ended)


@pytest.mark.parametrize("priorities", [(0, 0, 0, 0), (0, 5, -3, 5)])
def test_a_whole_batch_and_a_part_of_one_are_settled_alike(connection: Connection, priorities: tuple[int, ...]) -> None:
    ended: list[set[tuple[Any, ...]]] = []
    for settle in (lambda batch: [batch], lambda batch: [batch[:1], batch[1:]]):
        for priority in priorities:
            put(connection, max_attempts=3, priority=priority)
        claimed = take_light(connection)
        for part in settle(claimed):
            assert run(connection, jobs.settle_succeeded(held(*part))) == {job.id for job in part}
        assert batches(connection) == []
        assert run(connection, jobs.settle_succeeded(held(*claimed))) == set()
        found = [see(connection, job.id) for job in claimed]
        ended.append({(job.state, job.attempt, job.priority, job.started_at == job.finished_at) for job in found})
    assert ended[0] == ended[1] == {(JobState.SUCCEEDED, 1, priority, True) for priority in priorities}


def test_a_whole_batch_is_settled_with_the_one_that_was_told_to_stop(connection: Connection, client: Client) -> None:
    claimed = batch_of(connection)
    client.cancel(claimed[1].id, "enough")
    assert run(connection, jobs.settle_succeeded(held(*claimed))) == {job.id for job in claimed}
    assert {see(connection, job.id).state for job in claimed} == {JobState.SUCCEEDED}
    assert batches(connection) == []


def test_of_a_whole_batch_the_job_that_is_not_there_is_told_of_as_lost(connection: Connection) -> None:
    claimed = batch_of(connection)
    connection.execute("DELETE FROM kappa.jobs WHERE id = %s", [claimed[1].id])
    assert run(connection, jobs.settle_succeeded(held(*claimed))) == {claimed[0].id, claimed[2].id}


def test_a_whole_batch_of_children_tells_its_parents(url: str, connection: Connection) -> None:
    parents = [put(connection, kind="tool_run") for _ in range(3)]
    for parent in parents:
        put(connection, max_attempts=3, parent_id=parent, spawn_key="child")
    claimed = take_light(connection)
    assert len(claimed) == 3
    with psycopg.connect(url, autocommit=True) as listening:
        listening.execute("LISTEN kappa_job")
        run(connection, jobs.settle_succeeded(held(*claimed)))
        told = {notify.payload for notify in listening.notifies(timeout=10, stop_after=3)}
    assert told == {f"child {parent}" for parent in parents}


def test_each_job_of_a_batch_ends_in_its_own_way(connection: Connection) -> None:
    good, bad, back, still = batch_of(connection, 4)
    run(connection, jobs.settle_succeeded(held(good)))
    run(connection, jobs.settle([Finish(bad.id, bad.token, JobState.FAILED, summary="no")]))
    run(connection, jobs.put_back([PutBack(back.id, back.token, summary="again")]))
    assert batches(connection) == [{still.id}]
    states = [see(connection, job.id).state for job in (good, bad, back, still)]
    assert states == [JobState.SUCCEEDED, JobState.FAILED, JobState.QUEUED, JobState.RUNNING]
    assert [job.id for job in take(connection, owner="two")] == [back.id]


@pytest.mark.parametrize("light", [True, False])
def test_nobody_claims_what_a_batch_holds(connection: Connection, light: bool) -> None:
    batch_of(connection)
    free = put(connection, max_attempts=3)
    claimed = take_light(connection, owner="two") if light else take(connection, owner="two")
    assert [job.id for job in claimed] == [free]


def test_a_batch_takes_its_slots(connection: Connection) -> None:
    run(connection, lanes.edit_lane("interactive", {"max_slots": 4}))
    first, *_ = batch_of(connection, 3)
    for _ in range(3):
        put(connection, max_attempts=3)
    assert len(take_light(connection, owner="two")) == 1
    run(connection, jobs.mark_started(held(first)))
    assert take_light(connection, owner="two") == []
    run(connection, jobs.settle_succeeded(held(first)))
    assert len(take_light(connection, owner="two")) == 1


def test_the_last_attempt_of_a_job_has_its_own_row(connection: Connection) -> None:
    put(connection, max_attempts=3)
    put(connection, max_attempts=1)
    assert [job.light for job in take_light(connection)] == [False, False]
    assert batches(connection) == []


def test_a_job_that_vanished_with_a_claim_is_in_no_batch_again(connection: Connection) -> None:
    (job,) = batch_of(connection, 1)
    reap(connection)
    (adopted,) = take(connection)
    run(connection, jobs.put_back([PutBack(adopted.id, adopted.token, started=False)]))
    assert [(again.id, again.light) for again in take_light(connection)] == [(job.id, False)]


def test_a_job_that_is_tried_again_may_be_in_a_batch_again_and_its_claims_are_counted(connection: Connection) -> None:
    (job,) = batch_of(connection, 1)
    run(connection, jobs.put_back([PutBack(job.id, job.token)]))
    assert row(connection, job.id, "attempt", "claims") == (1, 1)
    assert [again.light for again in take_light(connection)] == [True]


def test_a_batch_has_only_jobs_of_the_kinds_that_may_share_a_lease(connection: Connection) -> None:
    put(connection, max_attempts=3)
    put(connection, "ingest_image", max_attempts=3)
    assert [job.light for job in take_light(connection)] == [False, False]


def test_a_lane_that_is_not_on_the_loop_has_no_batches(connection: Connection) -> None:
    run(connection, lanes.edit_lane("interactive", {"executor": "thread", "max_slots": 10}))
    put(connection, max_attempts=3)
    assert [job.light for job in take_light(connection)] == [False]


def test_whatever_is_written_of_a_job_gives_it_its_own_row_first(connection: Connection) -> None:
    marked, renewed, told, kept, freed = batch_of(connection, 5)
    assert run(connection, jobs.mark_started(held(marked))) == {marked.id}
    assert renew(connection, held(renewed)) == {renewed.id: None}
    assert run(connection, jobs.progress([(told.id, told.token, 1.0, 2.0, "half")])) == {told.id}
    run(connection, jobs.write_down(kept.id, kept.token))
    assert run(connection, jobs.checkpoint(kept.id, kept.token, "1"))
    assert run(connection, jobs.release(held(freed))) == {freed.id}
    assert batches(connection) == []
    tokens = [row(connection, job.id, "state", "lease_token", "claims") for job in (marked, renewed, told, kept, freed)]
    assert tokens == [("running", marked.token, 1)] * 4 + [("running", None, 1)]


def test_a_batch_whose_lease_ran_out_is_adopted_and_its_owner_can_write_nothing(connection: Connection) -> None:
    claimed = batch_of(connection)
    assert reap(connection) == 3
    assert batches(connection) == []
    for job in claimed:
        for verb, write in every_write_of_an_owner(job.id, job.token).items():
            assert not run(connection, write), verb
    adopted = take(connection, owner="two")
    assert {job.id for job in adopted if job.adopted} == {job.id for job in claimed}
    assert {job.claims for job in adopted} == {2}


def test_an_owner_that_lost_its_batch_can_not_settle_what_was_queued_again_since(connection: Connection) -> None:
    (job,) = batch_of(connection, 1)
    reap(connection)
    (adopted,) = take(connection, owner="two")
    run(connection, jobs.put_back([PutBack(adopted.id, adopted.token, started=False)]))
    assert see(connection, job.id).state is JobState.QUEUED
    for verb, write in every_write_of_an_owner(job.id, job.token).items():
        assert not run(connection, write), verb
    assert see(connection, job.id).state is JobState.QUEUED


def test_a_settlement_that_is_repeated_leaves_the_rest_of_the_batch_alone(connection: Connection) -> None:
    one, two, three = batch_of(connection)
    run(connection, jobs.settle_succeeded(held(one, two)))
    assert run(connection, jobs.settle_succeeded(held(one, two))) == set()
    assert batches(connection) == [{three.id}]
    assert run(connection, jobs.settle_succeeded(held(three))) == {three.id}


def test_a_batch_that_lives_on_gives_no_right_to_what_has_left_it(connection: Connection) -> None:
    left, _ = batch_of(connection, 2)
    run(connection, jobs.put_back([PutBack(left.id, left.token, started=False)]))
    for verb, write in every_write_of_an_owner(left.id, left.token).items():
        assert not run(connection, write), verb
    assert see(connection, left.id).state is JobState.QUEUED


def test_a_rejection_that_is_refused_changes_nothing(connection: Connection, client: Client) -> None:
    (job,) = batch_of(connection, 1)
    with pytest.raises(IllegalTransition, match="is running"):
        client.reject(job.id, connection=connection)
    assert batches(connection) == [{job.id}]
    assert row(connection, job.id, "state") == ("queued",)


def test_the_counts_of_a_lane_say_that_a_batch_runs(connection: Connection) -> None:
    batch_of(connection)
    put(connection)
    counts = {(depth[0], depth[1]): depth[2] for depth in connection.execute("SELECT * FROM kappa.depths(100)")}
    assert counts["interactive", "running"] == 3
    assert counts["interactive", "queued"] == 1
    assert run(connection, insight.depths(100))


def test_live_jobs_are_counted_as_they_are_also_those_of_a_batch_that_have_a_row_by_now(
    connection: Connection, client: Client
) -> None:
    first, *_ = batch_of(connection)
    put(connection)
    client.cancel(first.id)
    assert client.counts() == {("interactive", JobState.RUNNING): 3, ("interactive", JobState.QUEUED): 1}


def test_slots_are_taken_by_what_runs_in_a_batch_or_not_and_not_by_a_parent_that_waits(
    connection: Connection, client: Client
) -> None:
    parent, first, *_ = batch_of(connection, 4)
    run(connection, jobs.write_down(parent.id, parent.token))
    assert run(connection, jobs.release_slot(parent.id, parent.token))
    client.cancel(first.id)
    put(connection)
    take(connection, owner="two")
    assert client.slots_used()["interactive"] == 4
    assert client.counts()["interactive", JobState.RUNNING] == 5


def test_the_priority_of_what_a_batch_holds_stays(connection: Connection, client: Client) -> None:
    (job,) = batch_of(connection, 1)
    with pytest.raises(IllegalTransition, match="is running and can't be re-prioritised"):
        client.prioritise(job.id, 9)
    assert see(connection, job.id).priority == 0


# Against each other


@pytest.mark.parametrize("commits", [True, False])
def test_a_cancellation_that_meets_a_claim_sees_how_it_ended(
    url: str, connection: Connection, client: Client, commits: bool
) -> None:
    job = put(connection, max_attempts=3)
    with psycopg.connect(url) as claimer:
        (claimed,) = take_light(claimer)
        with rival_with(lambda own: client.cancel(job, "enough", connection=own), url) as cancelling:
            wait_until_blocked(connection)
            claimer.commit() if commits else claimer.rollback()
            assert outcome(cancelling) is (JobState.RUNNING if commits else JobState.CANCELLED)
    if commits:
        assert renew(connection, held(claimed)) == {job: "enough"}
        assert run(connection, jobs.settle_succeeded(held(claimed))) == {job}
        assert batches(connection) == []


@pytest.mark.parametrize("commits", [True, False])
def test_a_change_of_priority_that_meets_a_claim_sees_how_it_ended(
    url: str, connection: Connection, commits: bool
) -> None:
    job = put(connection, max_attempts=3)
    with psycopg.connect(url) as claimer:
        assert [claimed.light for claimed in take_light(claimer)] == [True]
        with rival_with(lambda own: run(own, jobs.prioritise(job, 9)), url) as changing:
            wait_until_blocked(connection)
            claimer.commit() if commits else claimer.rollback()
            assert outcome(changing) is not commits
    assert see(connection, job).priority == (0 if commits else 9)


def test_a_claim_leaves_alone_what_is_being_cancelled(url: str, connection: Connection, client: Client) -> None:
    first, second = put(connection, max_attempts=3), put(connection, max_attempts=3)
    with psycopg.connect(url) as canceller:
        client.cancel(first, connection=canceller)
        assert [job.id for job in take_light(connection)] == [second]
        canceller.commit()
    assert see(connection, first).state is JobState.CANCELLED


def test_a_cancellation_that_meets_a_settlement_comes_too_late(
    url: str, connection: Connection, client: Client
) -> None:
    (job,) = batch_of(connection, 1)
    with psycopg.connect(url) as owner:
        run(owner, jobs.settle_succeeded(held(job)))
        with (
            rival_with(lambda own: client.cancel(job.id, connection=own), url) as cancelling,
            pytest.raises(IllegalTransition, match="is succeeded and can't be cancelled"),
        ):
            wait_until_blocked(connection)
            owner.commit()
            outcome(cancelling)


def test_a_settlement_that_meets_a_cancellation_waits_and_wins(
    url: str, connection: Connection, client: Client
) -> None:
    claimed = batch_of(connection)
    with psycopg.connect(url) as canceller:
        assert client.cancel(claimed[0].id, connection=canceller) is JobState.RUNNING
        with rival_with(lambda own: run(own, jobs.settle_succeeded(held(*claimed))), url) as settling:
            wait_until_blocked(connection)
            canceller.commit()
            assert outcome(settling) == {job.id for job in claimed}
    assert batches(connection) == []


def test_the_reaper_passes_by_a_batch_that_is_being_settled(url: str, connection: Connection) -> None:
    claimed = batch_of(connection)
    with psycopg.connect(url) as owner:
        run(owner, jobs.settle_succeeded(held(claimed[0])))
        assert reap(connection) == 0
        owner.commit()
    assert reap(connection) == 2


def test_what_the_reaper_finds_locked_stays_in_its_batch_until_it_can_be_reaped(
    url: str, connection: Connection
) -> None:
    locked, cancelled, free = batch_of(connection)
    cut_off_while_cancelling(connection, cancelled)
    with psycopg.connect(url) as somebody:
        somebody.execute("SELECT FROM kappa.jobs WHERE id = ANY (%s) FOR UPDATE", [[locked.id, cancelled.id]])
        assert reap(connection) == 1
        assert batches(connection) == [{locked.id, cancelled.id}]
        (adopted,) = take(connection, owner="two")
        assert (adopted.id, adopted.adopted) == (free.id, True)
        assert run(connection, jobs.settle_succeeded(held(adopted))) == {free.id}
        somebody.rollback()
    assert take(connection, owner="two") == []
    assert reap(connection) == 2
    assert batches(connection) == []
    assert {(job.id, job.adopted) for job in take(connection, owner="two")} == {(locked.id, True), (cancelled.id, True)}
    for verb, write in every_write_of_an_owner(locked.id, locked.token).items():
        assert not run(connection, write), verb


def test_a_batch_of_which_nothing_is_left_but_what_is_gone_goes_with_it(url: str, connection: Connection) -> None:
    deleted, free = batch_of(connection, 2)
    with psycopg.connect(url) as somebody:
        somebody.execute("DELETE FROM kappa.jobs WHERE id = %s", [deleted.id])
        assert reap(connection) == 1
        assert batches(connection) == [{deleted.id}]
        somebody.commit()
    assert reap(connection) == 0
    assert batches(connection) == []
    assert [job.id for job in take(connection, owner="two")] == [free.id]


def test_what_was_written_down_is_reaped_together_with_its_batch(connection: Connection) -> None:
    job, _ = batch_of(connection, 2)
    cut_off_while_cancelling(connection, job)
    assert reap(connection) == 2
    assert batches(connection) == []
    assert row(connection, job.id, "state", "lease_owner", "lease_token", "claims") == ("running", None, None, 1)


def test_while_the_reaper_passes_a_batch_by_nobody_else_gets_what_was_written_down(
    url: str, connection: Connection
) -> None:
    stale, settled = batch_of(connection, 2)
    cut_off_while_cancelling(connection, stale)
    with psycopg.connect(url) as owner:
        run(owner, jobs.settle_succeeded(held(settled)))
        reap(connection)
        owner.commit()
    assert batches(connection) == [{stale.id}]
    # Adopted and put back now, it would be queued, and the pair in the old batch would settle it.
    assert take(connection, owner="two") == []
    assert reap(connection) == 1
    (adopted,) = take(connection, owner="two")
    run(connection, jobs.put_back([PutBack(adopted.id, adopted.token, started=False)]))
    for verb, write in every_write_of_an_owner(stale.id, stale.token).items():
        assert not run(connection, write), verb


def cut_off_while_cancelling(connection: Connection, job: Claimed) -> None:
    """Its lease was written down, and nobody came to ask it to stop."""
    assert not run(connection, jobs.cancel_before_start(job.id, [JobState.QUEUED], "enough"))
    assert row(connection, job.id, "state", "lease_token") == ("running", job.token)


def test_a_settlement_that_meets_the_reaper_is_refused(url: str, connection: Connection) -> None:
    claimed = batch_of(connection)
    with psycopg.connect(url) as reaper:
        assert reap(reaper) == 3
        with rival_with(lambda own: run(own, jobs.settle_succeeded(held(*claimed))), url) as settling:
            wait_until_blocked(connection)
            reaper.commit()
            assert outcome(settling) == set()


def test_two_batches_of_one_owner_are_settled_crosswise_without_a_deadlock(url: str, connection: Connection) -> None:
    first, second = batch_of(connection), batch_of(connection)
    with psycopg.connect(url) as one:
        run(one, jobs.settle_succeeded(held(second[0], first[0])))
        with rival_with(lambda own: run(own, jobs.settle_succeeded(held(first[1], second[1]))), url) as other:
            wait_until_blocked(connection)
            run(one, jobs.settle_succeeded(held(second[2], first[2])))
            one.commit()
            assert outcome(other) == {first[1].id, second[1].id}
    assert batches(connection) == []


def move_kind(connection: Connection) -> None:
    with connection.transaction():
        connection.execute("UPDATE kappa.lanes SET kinds = array_remove(kinds, 'ingestion') WHERE name = 'interactive'")
        connection.execute("UPDATE kappa.lanes SET kinds = kinds || '{ingestion}'::text[] WHERE name = 'tools'")


def test_a_kind_that_moves_leaves_behind_what_a_batch_holds(connection: Connection) -> None:
    first, second = batch_of(connection, 2)
    free = put(connection, max_attempts=3)
    move_kind(connection)
    assert [job.id for job in take(connection, "tools", owner="two")] == [free]
    run(connection, jobs.put_back([PutBack(first.id, first.token, started=False)]))
    assert run(connection, jobs.settle_succeeded(held(second))) == {second.id}
    assert see(connection, first.id).lane == "tools"


def test_a_kind_that_moves_waits_for_a_claim_and_sees_its_batch(url: str, connection: Connection) -> None:
    moves_wait(connection)
    job = put(connection, max_attempts=3)

    with psycopg.connect(url) as claimer:
        (claimed,) = take_light(claimer)
        with rival_with(move_kind, url) as moving:
            wait_until_blocked(connection)
            claimer.commit()
            outcome(moving)
    assert take(connection, "tools", owner="two") == []
    assert run(connection, jobs.settle_succeeded(held(claimed))) == {job}


def test_a_lane_that_becomes_the_fleets_has_no_batches_jobs_left_to_take(connection: Connection) -> None:
    claimed = batch_of(connection)
    run(connection, lanes.edit_lane("interactive", {"executor": "fleet"}))
    assert [row(connection, job.id, "state", "lease_token") for job in claimed] == [("running", claimed[0].token)] * 3
    assert run(connection, jobs.settle_succeeded(held(*claimed))) == {job.id for job in claimed}
    assert batches(connection) == []


def test_a_kind_that_moves_in_the_transaction_that_ends_its_lanes_batches_waits_as_well(
    url: str, connection: Connection
) -> None:
    moves_wait(connection)
    put(connection, max_attempts=3)

    def edit(own: Connection) -> None:
        with own.transaction():
            run(own, lanes.edit_lane("interactive", {"executor": "thread", "max_slots": 10, "kinds": ["polarity"]}))
            run(own, lanes.edit_lane("tools", {"kinds": ["tool_run", "ingestion"]}))

    with psycopg.connect(url) as claimer:
        (claimed,) = take_light(claimer)
        with rival_with(edit, url) as editing:
            wait_until_blocked(connection)
            claimer.commit()
            outcome(editing)
    assert take(connection, "tools", owner="two") == []
    assert run(connection, jobs.settle_succeeded(held(claimed))) == {claimed.id}


def test_an_edit_that_moves_no_kind_waits_for_no_claim(url: str, connection: Connection) -> None:
    with psycopg.connect(url) as claimer:
        run(claimer, jobs.lock_lane("interactive"))
        connection.execute("SET lock_timeout = '1ms'")
        edited = run(connection, lanes.edit_lane("tools", {"max_slots": 3}))
    assert edited is not None
    assert edited.max_slots == 3


def test_the_fleet_takes_nothing_that_a_batch_still_holds(url: str, connection: Connection) -> None:
    locked, written = batch_of(connection, 2)
    with psycopg.connect(url) as somebody:
        somebody.execute("SELECT FROM kappa.jobs WHERE id = %s FOR UPDATE", [locked.id])
        run(connection, lanes.edit_lane("interactive", {"executor": "fleet"}))
    assert row(connection, written.id, "state") == ("running",)
    assert row(connection, locked.id, "state") == ("queued",)
    assert batches(connection) == [{locked.id, written.id}]
    free = put(connection, max_attempts=3)
    taken = connection.execute(
        "SELECT id FROM kappa.fleet_claim('{w}', '{r}', '{5}', '{4}', '{4000}', ARRAY['{}'], '{ingestion}')"
    ).fetchall()
    assert taken == [(free,)]
    assert run(connection, jobs.settle_succeeded(held(locked, written))) == {locked.id, written.id}


def test_a_renewal_waits_for_no_batch_that_is_being_settled(url: str, connection: Connection) -> None:
    """An exchange that waits for its lane holds its batch's row; the renewal is for jobs of other lanes too."""
    settled, still = batch_of(connection, 2)
    other = put(connection, "tool_run")
    (elsewhere,) = take(connection, "tools")
    mine = held(still, elsewhere)
    with psycopg.connect(url) as settling:
        run(settling, jobs.settle_succeeded(held(settled)))
        connection.execute("SET lock_timeout = '1ms'")
        passed_by, renewed = Renewal(None, renewed=False), Renewal(None, renewed=True)
        assert run(connection, jobs.renew(mine)) == {still.id: passed_by, other: renewed}
        connection.execute("RESET lock_timeout")
    assert batches(connection) == [{still.id}]
    assert renew(connection, mine) == {still.id: None, other: None}
    assert batches(connection) == []


def test_a_renewal_that_passes_a_batch_by_still_tells_of_a_cancellation(
    url: str, connection: Connection, client: Client
) -> None:
    settled, still = batch_of(connection, 2)
    assert client.cancel(still.id, "enough") is JobState.RUNNING
    with psycopg.connect(url) as settling:
        run(settling, jobs.settle_succeeded(held(settled)))
        assert run(connection, jobs.renew(held(still)))[still.id].cancel_reason == "enough"


def test_who_has_a_row_of_its_own_settles_while_its_batch_is_locked(url: str, connection: Connection) -> None:
    """A handler's transaction may have locked a row that whoever has the batch waits for."""
    mine, other = batch_of(connection, 2)
    run(connection, jobs.write_down(mine.id, mine.token))
    with psycopg.connect(url) as settling:
        run(settling, jobs.settle_succeeded(held(other)))
        connection.execute("SET lock_timeout = '1ms'")
        assert run(connection, jobs.settle([Finish(mine.id, mine.token, JobState.SUCCEEDED, "1")])) == {mine.id}


def test_what_happens_to_a_batchs_job_is_in_its_history(connection: Connection, client: Client) -> None:
    back, lost = batch_of(connection, 2)
    run(connection, jobs.put_back([PutBack(back.id, back.token, 1.0, summary="again")]))
    reap(connection)
    events = [(event.event, event.attempt, event.detail) for event in client.history(back.id)[0]]
    assert events == [("put_back", 1, "again")]
    events = [(event.event, event.attempt, event.owner) for event in client.history(lost.id)[0]]
    assert events == [("lease_ran_out", 0, "one")]


def test_a_long_queue_is_counted_to_its_limit_whatever_batches_hold(connection: Connection) -> None:
    batch_of(connection, 15)
    for _ in range(30):
        put(connection)
    found = run(connection, insight.depths(20))
    assert found[("interactive", JobState.QUEUED)] == 20
    assert found[("interactive", JobState.RUNNING)] == 15


def test_what_was_cancelled_while_a_batch_held_it_is_counted_once(connection: Connection, client: Client) -> None:
    first, _ = batch_of(connection, 2)
    client.cancel(first.id)
    assert run(connection, insight.depths(20))[("interactive", JobState.RUNNING)] == 2


def test_a_snapshot_that_can_not_see_batches_cancels_nothing(url: str, connection: Connection, client: Client) -> None:
    put(connection, max_attempts=3)
    with psycopg.connect(url) as old:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM kappa.jobs")
        (claimed,) = take_light(connection)
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="READ COMMITTED"):
            client.cancel(claimed.id, connection=old)
    assert run(connection, jobs.settle_succeeded(held(claimed))) == {claimed.id}


# In a worker


SLOTS = 20
AT_WORK = """
    SELECT pid FROM pg_stat_activity
     WHERE datname = current_database() AND application_name = 'kappa queue' AND state <> 'idle'
"""
QUICK = WorkerConfig(lead=False, grace=timedelta(seconds=5), claim_batch=SLOTS, start_mark_after=timedelta(hours=1))


def loop_lane(engine: Engine) -> None:
    engine.lane(Lane(LANE, kinds=("step",), max_slots=SLOTS, poll_interval_ms=HOUR_MS, executor=Executor.ASYNC))
    engine.install()


async def test_a_busy_lane_claims_batches_and_a_quiet_one_rows(engine: Engine, client: Client, site: Site) -> None:
    gate = asyncio.Event()
    began: list[int] = []
    light: list[bool] = []

    @engine.job("step", idempotent=True)
    async def step(ctx: AsyncJobContext, wait: bool) -> None:
        if wait:
            light.append(ctx._running.claimed.light)
            began.append(ctx.job_id)
            await gate.wait()

    loop_lane(engine)
    client.enqueue_many("step", [False] * SLOTS + [True] * SLOTS)
    async with working(engine, QUICK):
        await seen(lambda: len(began) == SLOTS)
        assert light == [True] * SLOTS  # as claimed: a worker that begins to listen renews, and writes leases down
        assert {client.show(job).state for job in began} == {JobState.RUNNING}
        gate.set()
        await seen(lambda: site.rows("SELECT count(*) FROM kappa.finished_jobs") == [2 * SLOTS])
        gate.clear()
        began.clear()
        client.enqueue("step", True)
        await seen(lambda: began)
        assert light[SLOTS:] == [False]
        gate.set()
    assert site.rows("SELECT count(*) FROM kappa.batch_leases") == [0]


async def test_jobs_that_last_get_rows_of_their_own_and_so_do_the_next(
    engine: Engine, client: Client, site: Site
) -> None:
    gate = asyncio.Event()

    @engine.job("step", idempotent=True)
    async def step(ctx: AsyncJobContext, wait: bool) -> None:
        if wait:
            await gate.wait()

    loop_lane(engine)
    client.enqueue_many("step", [False] * SLOTS + [True] * SLOTS)
    config = WorkerConfig(lead=False, claim_batch=SLOTS, start_mark_after=timedelta(milliseconds=1))
    started = (
        "SELECT count(*) FROM kappa.jobs WHERE state = 'running' AND attempt = 1 AND attempt_started_at IS NOT NULL"
    )
    async with working(engine, config) as worker:
        await seen(lambda: site.rows(started) == [SLOTS])
        assert site.rows("SELECT count(*) FROM kappa.batch_leases") == [0]
        assert worker._lanes[LANE]._light_kinds(SLOTS) is None
        gate.set()
    assert site.rows("SELECT count(*) FROM kappa.finished_jobs WHERE state = 'succeeded'") == [2 * SLOTS]


async def test_a_job_of_a_batch_can_do_all_that_any_other_can(engine: Engine, client: Client, site: Site) -> None:
    @engine.job("child", idempotent=True)
    async def child(ctx: AsyncJobContext) -> int:
        return 7

    light: list[bool] = []

    @engine.job("step", idempotent=True)
    async def step(ctx: AsyncJobContext, what: str) -> Any:
        light.append(ctx._running.claimed.light)
        match what:
            case "checkpoint":
                await ctx.checkpoint({"at": 3})
                return await ctx.last_checkpoint()
            case "children":
                await ctx.spawn("child", key="only")
                return await ctx.gather("only")
            case "transaction":
                async with ctx.transaction() as connection:
                    await connection.execute("INSERT INTO written (line) VALUES ('by a batch')")
            case "progress":
                ctx.progress(1, 2, "half")
            case _:
                pass
        return None

    engine.lane(Lane("children", kinds=("child",), max_slots=2, poll_interval_ms=HOUR_MS, executor=Executor.ASYNC))
    loop_lane(engine)
    client.enqueue_many("step", ["nothing"] * SLOTS + ["checkpoint", "children", "transaction", "progress"] * 5)
    async with working(engine, QUICK):
        await seen(lambda: site.rows("SELECT count(*) FROM kappa.finished_jobs WHERE kind = 'step'") == [2 * SLOTS])
    assert light.count(True) == SLOTS
    found = site.rows("SELECT state::text, count(*) FROM kappa.finished_jobs WHERE kind = 'step' GROUP BY state")
    assert found == [("succeeded", 2 * SLOTS)]
    assert site.written == ["by a batch"] * 5
    assert site.rows("SELECT count(*) FROM kappa.batch_leases") == [0]


async def test_a_job_of_a_batch_hears_that_it_is_cancelled(engine: Engine, client: Client) -> None:
    began: list[int] = []

    @engine.job("step", idempotent=True)
    async def step(ctx: AsyncJobContext, wait: bool) -> None:
        if wait:
            began.append(ctx.job_id)
            while True:
                ctx.raise_if_cancelled()
                await asyncio.sleep(0.01)

    loop_lane(engine)
    client.enqueue_many("step", [False] * SLOTS + [True] * SLOTS)
    async with working(engine, QUICK):
        await seen(lambda: len(began) == SLOTS)
        for job in began:
            assert client.cancel(job) is JobState.RUNNING
        await seen(lambda: {client.show(job).state for job in began} == {JobState.CANCELLED})


async def test_a_worker_that_ends_gives_its_batch_to_others(engine: Engine, client: Client, site: Site) -> None:
    gate = asyncio.Event()
    began: list[int] = []

    @engine.job("step", idempotent=True)
    async def step(ctx: AsyncJobContext, wait: bool) -> None:
        if wait:
            began.append(ctx.job_id)
            await gate.wait()

    loop_lane(engine)
    client.enqueue_many("step", [False] * SLOTS + [True] * SLOTS)
    impatient = WorkerConfig(lead=False, grace=timedelta(0), claim_batch=SLOTS, start_mark_after=timedelta(hours=1))
    async with working(engine, impatient):
        await seen(lambda: len(began) == SLOTS)
        # A claim that is cut off may still have the batch locked, and then it keeps its lease.
        await seen(lambda: site.rows(AT_WORK) == [])
    orphans = "SELECT count(*) FROM kappa.jobs WHERE state = 'running' AND lease_token IS NULL"
    assert site.rows(orphans) == [SLOTS]
    assert site.rows("SELECT count(*) FROM kappa.batch_leases") == [0]
    gate.set()
    async with working(engine, QUICK):
        await seen(lambda: site.rows("SELECT count(*) FROM kappa.finished_jobs") == [2 * SLOTS])


async def test_what_ends_while_a_claim_finds_the_lane_full_is_settled(
    engine: Engine, client: Client, site: Site, url: str, connection: Connection
) -> None:
    gates = {1: asyncio.Event(), 2: asyncio.Event()}
    began: list[int] = []

    @engine.job("step")
    async def step(_: AsyncJobContext, number: int) -> int | None:
        began.append(number)
        if number in gates:
            await gates[number].wait()
        return number if number == 1 else None

    engine.lane(Lane(LANE, kinds=("step",), max_slots=2, poll_interval_ms=HOUR_MS, executor=Executor.ASYNC))
    engine.install()
    one, two = (client.enqueue("step", number).id for number in (1, 2))
    async with working(engine, WorkerConfig(lead=False)) as worker:
        await seen(lambda: sorted(began) == [1, 2])
        with psycopg.connect(url) as rival:
            run(rival, jobs.lock_lane(LANE))
            gates[1].set()  # it has a result, which is settled by itself: its slot makes the lane claim
            await seen(lambda: site.state(one) == "succeeded")
            await asyncio.to_thread(wait_until_blocked, connection)
            gates[2].set()  # it has none, and is kept for the next claim
            await seen(lambda: worker._lanes[LANE]._to_carry)
            client.enqueue("step", 3)
            assert len(run(rival, jobs.claim(LANE, "rival", 1))) == 1  # now the lane is full for the claim that waits
        await seen(lambda: site.state(two) == "succeeded")


async def test_a_worker_that_found_its_lane_full_is_woken_by_the_next_job(
    engine: Engine, client: Client, site: Site, connection: Connection
) -> None:
    ran: list[int] = []

    @engine.job("step", idempotent=True)
    async def step(_: AsyncJobContext, number: int) -> None:
        ran.append(number)

    engine.lane(Lane(LANE, kinds=("step",), max_slots=1, poll_interval_ms=HOUR_MS, executor=Executor.ASYNC))
    engine.install()
    client.enqueue("step", 1)
    theirs = run(connection, jobs.claim(LANE, "another worker", 1))
    async with working(engine, WorkerConfig(lead=False)):
        await seen(lambda: site.rows("SELECT count(*) FROM kappa.sleepers") == [1])
        run(connection, jobs.settle_succeeded(held(*theirs)))
        client.enqueue("step", 2)
        await seen(lambda: ran == [2])
