"""Leases: one owner at a time, stale owners change nothing, and what becomes of jobs whose owner is gone."""

import math
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from kappa.engine import Cancel, Engine, JobState, Retry, Snooze, attempt
from kappa.engine.store import jobs, lanes, maintenance
from kappa.engine.store.jobs import Claimed, Finish, NewJob, PutBack
from kappa.engine.testing import maintain
from kappa.pg.ops import run
from tests.engine.hands import (
    TERMINAL,
    Connection,
    every_write_of_an_owner,
    later,
    orphan,
    outcome,
    put,
    reap,
    renew,
    rival_with,
    row,
    running_here,
    see,
    start,
    take,
    wait_until_blocked,
)

WRITES = sorted(every_write_of_an_owner(0, 0))

LEASE = ("state", "lease_owner", "lease_token", "lease_until")


def held(*claimed: Claimed) -> list[tuple[int, int]]:
    return [(job.id, job.token) for job in claimed]


def whole_row(connection: Connection, job_id: int) -> tuple[Any, ...]:
    """Everything of a live job, and its version, which changes with any write."""
    found = connection.execute("SELECT xmin, j.* FROM kappa.jobs AS j WHERE id = %s", [job_id]).fetchone()
    assert found is not None
    return found


# Tokens and times


def test_every_claim_has_a_token_that_was_never_there_before(connection: Connection) -> None:
    seen: set[int] = set()
    put(connection, max_attempts=3)
    for _ in range(5):
        (claimed,) = take(connection)
        assert claimed.token not in seen
        seen.add(claimed.token)
        run(connection, jobs.put_back([PutBack(claimed.id, claimed.token, started=False)]))


def test_an_adoption_has_a_new_token_too(connection: Connection) -> None:
    first = start(connection)
    reap(connection)
    (second,) = take(connection, owner="two")
    assert second.token > first.token
    assert row(connection, first.id, *LEASE[:3]) == ("running", "two", second.token)


def test_the_lease_lasts_as_long_as_its_lane_says_by_the_databases_clock(connection: Connection) -> None:
    run(connection, lanes.edit_lane("tools", {"lease_ttl": timedelta(seconds=7)}))
    for kind, lane, ttl in [("ingestion", "interactive", 60), ("tool_run", "tools", 7)]:
        put(connection, kind=kind)
        with connection.transaction():
            (claimed,) = take(connection, lane)
            (left,) = connection.execute(
                "SELECT lease_until - now() FROM kappa.jobs WHERE id = %s", [claimed.id]
            ).fetchone() or (None,)
        assert left == timedelta(seconds=ttl)


def test_one_statement_renews_all_jobs_of_an_owner_and_no_others(connection: Connection) -> None:
    run(connection, lanes.edit_lane("interactive", {"max_slots": 5}))
    run(connection, lanes.edit_lane("tools", {"lease_ttl": timedelta(seconds=7)}))
    for kind in ("ingestion", "ingestion", "polarity", "tool_run"):
        put(connection, kind=kind)
    stranger, *mine = take(connection)
    mine += take(connection, "tools")
    with connection.transaction():
        connection.execute("UPDATE kappa.jobs SET lease_until = now() - interval '1 hour'")
        assert renew(connection, held(*mine)) == {job.id: None for job in mine}
        rows = connection.execute("SELECT id, lease_until - now() FROM kappa.jobs").fetchall()
    assert dict(rows) == {
        stranger.id: timedelta(hours=-1),
        **{job.id: timedelta(seconds=7 if job.kind == "tool_run" else 60) for job in mine},
    }


def test_a_renewal_tells_which_leases_are_gone_and_keeps_the_rest(connection: Connection) -> None:
    for _ in range(2):
        put(connection)
    kept, lost = take(connection)
    run(connection, jobs.release(held(lost)))
    assert renew(connection, held(kept, lost)) == {kept.id: None}


def test_a_renewal_changes_neither_owner_nor_token(connection: Connection) -> None:
    claimed = start(connection)
    before = row(connection, claimed.id, *LEASE[:3], "attempt", "claims")
    renew(connection, held(claimed))
    assert row(connection, claimed.id, *LEASE[:3], "attempt", "claims") == before


# Stale owners


@pytest.mark.parametrize("write", WRITES)
def test_a_stale_owner_can_write_nothing_of_a_job_that_another_has(connection: Connection, write: str) -> None:
    stale = start(connection, max_attempts=3)
    reap(connection)
    (owner,) = take(connection, owner="two")
    before = whole_row(connection, owner.id)
    assert not run(connection, every_write_of_an_owner(stale.id, stale.token)[write])
    assert whole_row(connection, owner.id) == before


@pytest.mark.parametrize("write", WRITES)
def test_a_stale_owner_can_write_nothing_of_a_job_that_nobody_has(connection: Connection, write: str) -> None:
    stale = start(connection, max_attempts=3)
    reap(connection)
    before = whole_row(connection, stale.id)
    assert not run(connection, every_write_of_an_owner(stale.id, stale.token)[write])
    assert whole_row(connection, stale.id) == before


@pytest.mark.parametrize("write", WRITES)
def test_a_stale_owner_can_write_nothing_of_a_job_that_waits_again(connection: Connection, write: str) -> None:
    stale = start(connection, max_attempts=3)
    run(connection, jobs.put_back([PutBack(stale.id, stale.token)]))
    before = whole_row(connection, stale.id)
    assert not run(connection, every_write_of_an_owner(stale.id, stale.token)[write])
    assert whole_row(connection, stale.id) == before


@pytest.mark.parametrize("write", WRITES)
def test_a_token_of_one_job_is_none_for_another(connection: Connection, write: str) -> None:
    mine = start(connection)
    other = start(connection)
    before = whole_row(connection, other.id)
    assert not run(connection, every_write_of_an_owner(other.id, mine.token)[write])
    assert whole_row(connection, other.id) == before


def test_a_stale_owner_reads_no_checkpoint_and_holds_nothing(connection: Connection) -> None:
    stale = start(connection)
    assert run(connection, jobs.checkpoint(stale.id, stale.token, '{"page": 3}'))
    assert run(connection, jobs.read_checkpoint(stale.id, stale.token)) == [{"page": 3}]
    reap(connection)
    assert run(connection, jobs.read_checkpoint(stale.id, stale.token)) == []
    assert run(connection, jobs.spawn((stale.id, stale.token), "a", NewJob("ingestion", "null"))) == (False, None)


def test_a_batch_writes_what_is_still_its_own_and_nothing_else(connection: Connection) -> None:
    for _ in range(2):
        put(connection)
    mine, lost = take(connection)
    run(connection, jobs.release(held(lost)))
    assert run(connection, jobs.settle_succeeded(held(mine, lost))) == {mine.id}
    assert see(connection, lost.id).state is JobState.RUNNING


def test_what_an_owner_saved_is_there_for_the_next_one(connection: Connection) -> None:
    first = start(connection)
    run(connection, jobs.checkpoint(first.id, first.token, '{"page": 3}'))
    reap(connection)
    (second,) = take(connection)
    assert run(connection, jobs.read_checkpoint(second.id, second.token)) == [{"page": 3}]


# The reaper


def test_the_reaper_clears_leases_that_ran_out_and_the_state_stays_running(connection: Connection) -> None:
    claimed = start(connection)
    before = see(connection, claimed.id)
    assert run(connection, maintenance.reap(later(connection, seconds=61))) == 1
    assert row(connection, claimed.id, *LEASE) == ("running", None, None, None)
    after = see(connection, claimed.id)
    assert (after.attempt, after.started_at) == (before.attempt, before.started_at)


def test_the_reaper_leaves_leases_that_still_last(connection: Connection) -> None:
    claimed = start(connection)
    assert run(connection, maintenance.reap()) == 0
    assert run(connection, maintenance.reap(later(connection, seconds=55))) == 0
    assert renew(connection, held(claimed)) == {claimed.id: None}


def test_the_reaper_takes_one_batch_at_a_time(connection: Connection) -> None:
    for _ in range(2):
        put(connection)
    take(connection)
    now = later(connection, hours=1)
    assert [run(connection, maintenance.reap(now, limit=1)) for _ in range(3)] == [1, 1, 0]


async def test_the_reaper_is_a_service_that_needs_no_worker(engine: Engine, connection: Connection) -> None:
    claimed = start(connection)
    await maintain(engine, later=timedelta(seconds=61), only=lambda name: name == "reaper")
    assert row(connection, claimed.id, *LEASE) == ("running", None, None, None)


def test_a_released_job_is_an_orphan_at_once(connection: Connection) -> None:
    claimed = start(connection)
    assert run(connection, jobs.release(held(claimed))) == {claimed.id}
    assert row(connection, claimed.id, *LEASE) == ("running", None, None, None)
    (adopted,) = take(connection, owner="two")
    assert (adopted.id, adopted.adopted) == (claimed.id, True)


@pytest.mark.parametrize("how", ["settle", "settle_succeeded", "put_back", "mark_started"])
def test_a_write_that_waits_for_the_reaper_finds_the_lease_gone(url: str, connection: Connection, how: str) -> None:
    put(connection, max_attempts=3)
    (claimed,) = take(connection)
    operation = every_write_of_an_owner(claimed.id, claimed.token)[how]
    with psycopg.connect(url) as reaper:
        assert reap(reaper) == 1
        with rival_with(lambda own: run(own, operation), url) as owner:
            wait_until_blocked(connection)
            reaper.commit()
            assert not outcome(owner)
    assert row(connection, claimed.id, *LEASE, "attempt") == ("running", None, None, None, 0)


def test_a_write_that_waits_for_a_reaper_that_fails_still_counts(url: str, connection: Connection) -> None:
    claimed = start(connection)
    with psycopg.connect(url) as reaper:
        assert reap(reaper) == 1
        with rival_with(lambda own: run(own, jobs.settle_succeeded(held(claimed))), url) as owner:
            wait_until_blocked(connection)
            reaper.rollback()
            assert outcome(owner) == {claimed.id}
    assert see(connection, claimed.id).state is JobState.SUCCEEDED


def test_the_reaper_passes_over_a_lease_that_is_being_renewed(url: str, connection: Connection) -> None:
    connection.execute("SET lock_timeout = '5s'")
    claimed = start(connection)
    connection.execute("UPDATE kappa.jobs SET lease_until = now() - interval '1 second'")
    with psycopg.connect(url) as owner:
        assert renew(owner, held(claimed)) == {claimed.id: None}
        assert run(connection, maintenance.reap()) == 0
        owner.commit()
    assert run(connection, maintenance.reap()) == 0
    assert run(connection, jobs.settle_succeeded(held(claimed))) == {claimed.id}


def test_the_reaper_passes_over_a_job_that_is_being_settled(url: str, connection: Connection) -> None:
    connection.execute("SET lock_timeout = '5s'")
    claimed = start(connection)
    with psycopg.connect(url) as owner:
        assert run(owner, jobs.settle_succeeded(held(claimed))) == {claimed.id}
        assert reap(connection) == 0
        owner.commit()
    assert reap(connection) == 0
    assert see(connection, claimed.id).state is JobState.SUCCEEDED


# Adoption


def test_orphans_are_adopted_before_queued_work(connection: Connection) -> None:
    lost = orphan(connection, priority=-10)
    put(connection, priority=10)
    (adopted,) = take(connection, capacity=1)
    assert (adopted.id, adopted.adopted, adopted.started) == (lost, True, True)


def test_one_claim_adopts_and_then_fills_the_rest_of_its_slots(connection: Connection) -> None:
    lost = orphan(connection)
    fresh = put(connection)
    put(connection)
    assert {(job.id, job.adopted) for job in take(connection)} == {(lost, True), (fresh, False)}


def test_an_orphan_is_adopted_even_when_every_slot_is_taken(connection: Connection) -> None:
    lost = orphan(connection)
    put(connection)
    run(connection, lanes.edit_lane("interactive", {"max_slots": 1}))
    assert [job.id for job in take(connection)] == [lost]


def test_two_adopters_of_one_orphan_one_gets_it(url: str, connection: Connection) -> None:
    lost = orphan(connection)
    with psycopg.connect(url) as one:
        assert [job.id for job in take(one, owner="one")] == [lost]
        with rival_with(lambda own: take(own, owner="two"), url) as two:
            wait_until_blocked(connection)
            one.commit()
            assert outcome(two) == []
    assert see(connection, lost).lease_owner == "one"


def test_a_start_that_is_written_late_is_when_it_was(connection: Connection) -> None:
    marked, settled, back, committed = (put(connection, max_attempts=3) for _ in range(4))
    run(connection, lanes.edit_lane("interactive", {"max_slots": 4}))
    leases = {job.id: job.token for job in take(connection)}
    ages = dict.fromkeys(leases, 3600.0)
    begun = later(connection, hours=-1)
    run(connection, jobs.mark_started([(marked, leases[marked])], ages))
    run(connection, jobs.settle([Finish(settled, leases[settled], JobState.FAILED)], ages))
    run(connection, jobs.put_back([PutBack(back, leases[back], 1.0)], ages))
    with connection.transaction():
        connection.execute("SELECT 1")
        run(connection, jobs.settle([Finish(committed, leases[committed], JobState.SUCCEEDED)], ages))
    ended = later(connection, hours=-1)
    for job in (marked, settled, back, committed):
        started = see(connection, job).started_at
        assert started is not None
        assert begun <= started <= ended
    assert row(connection, marked, "attempt_started_at") == (see(connection, marked).started_at,)


def test_an_adopter_has_what_is_left_of_the_original_time_out(connection: Connection) -> None:
    lost = orphan(connection, timeout=timedelta(minutes=10))
    connection.execute("UPDATE kappa.jobs SET attempt_started_at = now() - interval '4 minutes'")
    (adopted,) = take(connection)
    assert adopted.id == lost
    assert 355 < adopted.seconds_left <= 360


def test_a_job_without_a_time_out_has_endless_time(connection: Connection) -> None:
    put(connection)
    put(connection, timeout=timedelta(seconds=5))
    assert sorted(job.seconds_left for job in take(connection)) == [5, math.inf]


# Attempts


def test_a_claim_counts_no_attempt(connection: Connection) -> None:
    job_id = put(connection, max_attempts=2)
    for _ in range(4):
        (claimed,) = take(connection)
        assert claimed.attempt == 0
        run(connection, jobs.put_back([PutBack(job_id, claimed.token, started=False)]))
    job = see(connection, job_id)
    assert (job.state, job.attempt, job.started_at) == (JobState.QUEUED, 0, None)


def test_a_start_counts_once_however_often_it_is_marked(connection: Connection) -> None:
    put(connection, max_attempts=3)
    (claimed,) = take(connection)
    assert run(connection, jobs.mark_started(held(claimed))) == {claimed.id}
    assert run(connection, jobs.mark_started(held(claimed))) == {claimed.id}
    assert see(connection, claimed.id).attempt == 1


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("state", TERMINAL)
def test_an_attempt_that_ends_is_counted_once_marked_or_not(
    connection: Connection, state: JobState, marked: bool
) -> None:
    put(connection, max_attempts=3)
    (claimed,) = take(connection)
    if marked:
        run(connection, jobs.mark_started(held(claimed)))
    run(connection, jobs.settle([Finish(claimed.id, claimed.token, state)]))
    job = see(connection, claimed.id)
    assert (job.state, job.attempt) == (state, 1)
    assert job.started_at is not None


@pytest.mark.parametrize("marked", [True, False])
def test_a_success_with_nothing_to_say_is_counted_once_marked_or_not(connection: Connection, marked: bool) -> None:
    put(connection, max_attempts=3)
    (claimed,) = take(connection)
    if marked:
        run(connection, jobs.mark_started(held(claimed)))
    run(connection, jobs.settle_succeeded(held(claimed)))
    assert see(connection, claimed.id).attempt == 1


@pytest.mark.parametrize("marked", [True, False])
def test_an_attempt_that_goes_back_is_counted_once_marked_or_not(connection: Connection, marked: bool) -> None:
    put(connection, max_attempts=3)
    (claimed,) = take(connection)
    if marked:
        run(connection, jobs.mark_started(held(claimed)))
    run(connection, jobs.put_back([PutBack(claimed.id, claimed.token, 5.0)]))
    assert see(connection, claimed.id).attempt == 1


def test_a_job_that_ends_before_it_ever_started_has_no_attempt(connection: Connection) -> None:
    put(connection)
    (claimed,) = take(connection)
    run(connection, jobs.settle([Finish(claimed.id, claimed.token, JobState.FAILED, started=False)]))
    job = see(connection, claimed.id)
    assert (job.attempt, job.started_at) == (0, None)


def test_a_snooze_uses_up_no_attempt(connection: Connection) -> None:
    put(connection, max_attempts=1)
    for _ in range(3):
        (claimed,) = take(connection)
        assert claimed.attempt < claimed.max_attempts
        run(connection, jobs.put_back([PutBack(claimed.id, claimed.token, 60.0, snoozed=True)]))
        run(connection, maintenance.promote(later(connection, minutes=2)))


@pytest.mark.parametrize(("idempotent", "attempts"), [(False, 1), (True, 3)])
def test_only_handlers_that_are_declared_idempotent_get_three_attempts(
    engine: Engine, idempotent: bool, attempts: int
) -> None:
    engine.job("tool_run", idempotent=idempotent)(lambda ctx: None)
    with engine.client() as client:
        assert client.show(client.enqueue("tool_run").id).max_attempts == attempts


def test_a_job_that_is_put_back_with_a_delay_is_scheduled_for_then(connection: Connection) -> None:
    claimed = start(connection, max_attempts=3)
    with connection.transaction():
        run(connection, jobs.put_back([PutBack(claimed.id, claimed.token, 90.5, summary="busy", detail="trace")]))
        (left,) = connection.execute("SELECT run_at - now() FROM kappa.jobs").fetchone() or (None,)
    job = see(connection, claimed.id)
    assert left == timedelta(seconds=90.5)
    assert (job.state, job.error_summary, job.error_detail) == (JobState.SCHEDULED, "busy", "trace")
    assert take(connection) == []
    assert run(connection, maintenance.promote(later(connection, seconds=80))) == 0
    assert run(connection, maintenance.promote(later(connection, seconds=91))) == 1
    (again,) = take(connection)
    assert (again.attempt, again.started) == (1, False)


# Backoff


@pytest.mark.parametrize(("attempts", "seconds"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 32)])
def test_backoff_doubles_from_one_second_with_a_fifth_of_jitter(attempts: int, seconds: int) -> None:
    waits = [attempt.backoff(attempts) for _ in range(2000)]
    assert 0.8 * seconds <= min(waits) < 0.85 * seconds
    assert 1.15 * seconds < max(waits) <= 1.2 * seconds


@pytest.mark.parametrize("attempts", [7, 8, 100])
def test_backoff_is_never_longer_than_its_cap(attempts: int) -> None:
    waits = [attempt.backoff(attempts) for _ in range(2000)]
    assert 0.8 * 60 <= min(waits) < 0.85 * 60
    assert max(waits) <= 60


@pytest.mark.parametrize("attempts", [1024, 1025, 32767])
def test_backoff_has_an_answer_after_any_number_of_failures(attempts: int) -> None:
    assert attempt.backoff(attempts) > 40


@pytest.mark.parametrize("attempts", [0, 1, 2, 6, 7, 8, 100, 32767])
def test_the_databases_backoff_which_the_fleet_has_is_the_same(connection: Connection, attempts: int) -> None:
    """Also at the cap: many that failed for the same reason don't all come back in the same second."""
    statement = "SELECT kappa.backoff(%s) FROM generate_series(1, 2000)"
    theirs = [wait for (wait,) in connection.execute(statement, [attempts])]
    seconds = min(60, 2 ** max(0, attempts - 1))
    assert 0.8 * seconds <= min(theirs) < 0.85 * seconds
    assert min(60, 1.15 * seconds) <= max(theirs) <= min(60, 1.2 * seconds)


# Lost attempts


def adopt(connection: Connection) -> Claimed:
    reap(connection)
    (adopted,) = take(connection, owner="two")
    assert adopted.adopted
    return adopted


def settle(connection: Connection, settlement: Finish | PutBack) -> None:
    operation = jobs.settle([settlement]) if isinstance(settlement, Finish) else jobs.put_back([settlement])
    assert run(connection, operation) == {settlement.id}


def test_a_lost_attempt_is_scheduled_again_with_backoff_and_stays_counted(
    engine: Engine, connection: Connection
) -> None:
    start(connection, max_attempts=3)
    lost = attempt.lost(running_here(engine, adopt(connection)))
    assert isinstance(lost, PutBack)
    assert 0.8 <= lost.delay <= 1.2
    settle(connection, lost)
    job = see(connection, lost.id)
    assert (job.state, job.attempt, job.error_summary) == (JobState.SCHEDULED, 1, "the worker that ran it was lost")
    run(connection, maintenance.promote(later(connection, minutes=1)))
    (again,) = take(connection)
    run(connection, jobs.mark_started(held(again)))
    assert see(connection, lost.id).attempt == 2


def test_a_lost_attempt_that_was_the_last_one_fails_the_job_with_a_safe_summary(
    engine: Engine, connection: Connection
) -> None:
    start(connection, max_attempts=1)
    settle(connection, attempt.lost(running_here(engine, adopt(connection))))
    (job,) = run(connection, jobs.list_jobs())
    assert (job.state, job.attempt) == (JobState.FAILED, 1)
    assert (job.error_summary, job.error_detail) == ("the worker that ran it was lost", None)


def test_a_lost_attempt_whose_time_was_up_ends_as_timed_out(engine: Engine, connection: Connection) -> None:
    start(connection, max_attempts=3, timeout=timedelta(minutes=1))
    connection.execute("UPDATE kappa.jobs SET attempt_started_at = now() - interval '2 minutes'")
    settle(connection, attempt.lost(running_here(engine, adopt(connection))))
    (job,) = run(connection, jobs.list_jobs())
    assert (job.state, job.attempt) == (JobState.TIMED_OUT, 1)


def test_a_job_that_was_claimed_and_never_started_is_queued_again_at_once(
    engine: Engine, connection: Connection
) -> None:
    job_id = put(connection)
    take(connection)
    settle(connection, attempt.lost(running_here(engine, adopt(connection))))
    job = see(connection, job_id)
    assert (job.state, job.attempt, job.started_at) == (JobState.QUEUED, 0, None)


def test_a_job_that_is_claimed_over_and_over_and_never_starts_ends_as_failed(
    engine: Engine, connection: Connection
) -> None:
    job_id = put(connection, max_attempts=2)
    for _ in range(20):
        take(connection)
        settle(connection, attempt.lost(running_here(engine, adopt(connection))))
        if see(connection, job_id).state is not JobState.QUEUED:
            break
    job = see(connection, job_id)
    assert (job.state, job.attempt, job.started_at) == (JobState.FAILED, 0, None)
    assert "claimed 12 times" in (job.error_summary or "")


@pytest.mark.parametrize("started", [True, False])
def test_a_job_that_was_cancelled_and_then_lost_does_not_run_again(
    engine: Engine, connection: Connection, started: bool
) -> None:
    job_id = put(connection, max_attempts=3)
    (claimed,) = take(connection)
    if started:
        run(connection, jobs.mark_started(held(claimed)))
    run(connection, jobs.request_cancel(job_id, "enough"))
    settle(connection, attempt.lost(running_here(engine, adopt(connection))))
    job = see(connection, job_id)
    assert (job.state, job.reason) == (JobState.CANCELLED, "enough")


@pytest.mark.parametrize("value", [Retry(), Retry(timedelta(seconds=5)), Snooze(timedelta(seconds=5))])
def test_a_job_that_was_cancelled_and_asks_to_run_again_does_not(
    engine: Engine, connection: Connection, value: Retry | Snooze
) -> None:
    claimed = start(connection, max_attempts=3)
    running = running_here(engine, claimed)
    running.cancel_reason = "enough"
    settle(connection, attempt.of_value(running, value))
    job = see(connection, claimed.id)
    assert (job.state, job.reason) == (JobState.CANCELLED, "enough")


def test_a_handler_may_cancel_its_own_job(engine: Engine, connection: Connection) -> None:
    claimed = start(connection)
    settle(connection, attempt.of_value(running_here(engine, claimed), Cancel("nothing to do")))
    job = see(connection, claimed.id)
    assert (job.state, job.reason) == (JobState.CANCELLED, "nothing to do")


def test_an_unknown_errors_text_is_for_operators_only(engine: Engine, connection: Connection) -> None:
    claimed = start(connection, max_attempts=1)
    settle(connection, attempt.of_error(running_here(engine, claimed), ValueError("password=hunter2")))
    job = see(connection, claimed.id)
    assert (job.state, job.error_summary) == (JobState.FAILED, "the handler failed with ValueError")
    assert "password=hunter2" in (job.error_detail or "")
