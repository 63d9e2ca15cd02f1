"""How tasks of the fleet end: what is said twice, the policy of retries, time-outs, cancellations and the dead."""

from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from kappa.engine import JobState
from kappa.engine.fleet import store
from kappa.engine.fleet.store import Ending, Update
from kappa.engine.maintenance.services import Reaper
from kappa.engine.signals import Signals
from kappa.engine.store import jobs, maintenance
from kappa.pg.ops import run
from tests.engine.fleet.floor import Connection, beat, claim, held, open_lane, put, running, settle, started, take
from tests.engine.hands import later, outcome, rival_with, row, see, wait_until_blocked


@pytest.fixture(autouse=True)
def lane(connection: Connection) -> None:
    open_lane(connection)


def state_of(connection: Connection, *endings: Ending) -> list[str | None]:
    return [None if ended is None else ended.state for ended in settle(connection, *endings)]


# Repeats

OUTCOMES = [
    ("succeeded", "succeeded"),
    ("failed", "scheduled"),
    ("lost", "scheduled"),
    ("fatal", "failed"),
    ("cancelled", "cancelled"),
    ("timed_out", "timed_out"),
    ("snooze", "scheduled"),
    ("released", "queued"),
]


@pytest.mark.parametrize(("said", "state"), OUTCOMES)
def test_a_settlement_that_is_repeated_is_answered_as_before_and_changes_nothing(
    connection: Connection, said: str, state: str
) -> None:
    other = started(connection)
    put(connection, max_attempts=3)
    (given,) = take(connection)
    ending = Ending(held(given), said, "1", "words")
    assert state_of(connection, ending) == [state]
    before = see(connection, given.id)
    # Also when something else is said of it now, and in a batch with others.
    again = Ending(held(given), "succeeded" if said != "succeeded" else "fatal", "2")
    assert state_of(connection, ending) == [state]
    assert state_of(connection, Ending(held(other), "succeeded"), again) == ["succeeded", state]
    assert see(connection, given.id) == before


@pytest.mark.parametrize("commits", [True, False])
def test_a_settlement_that_races_with_itself_happens_once(url: str, connection: Connection, commits: bool) -> None:
    given = started(connection)
    ending = Ending(held(given), "succeeded", '{"n": 1}')
    with psycopg.connect(url) as one:
        assert state_of(one, ending) == ["succeeded"]
        with rival_with(lambda own: state_of(own, ending), url) as two:
            wait_until_blocked(connection)
            one.commit() if commits else one.rollback()
            assert outcome(two) == ["succeeded"]
    found = connection.execute("SELECT count(*) FROM kappa.finished_jobs WHERE id = %s", [given.id]).fetchall()
    assert found == [(1,)]


def test_an_old_settlement_is_remembered_beside_a_new_one_of_the_same_job(connection: Connection) -> None:
    """The tokens of a claim are shared: that of the old task is also that of another one in the batch."""
    put(connection, max_attempts=3)
    put(connection)
    first, second = sorted(take(connection, most=2), key=lambda one: one.id)
    assert state_of(connection, Ending(held(first), "released")) == ["queued"]
    (again,) = take(connection, request="r2")
    assert again.id == first.id
    endings = [Ending(held(first), "released"), Ending(held(again), "succeeded"), Ending(held(second), "succeeded")]
    assert state_of(connection, *endings) == ["queued", "succeeded", "succeeded"]


def test_updates_are_totals_and_may_be_repeated(connection: Connection) -> None:
    given = started(connection)
    said = Update(held(given), True, 3.0, 9.0, "three", '{"at": 3}')
    for _ in range(2):
        assert run(connection, store.update([said])) == {0: None}
        shown = see(connection, given.id)
        assert (shown.progress_done, shown.progress_total, shown.progress_message) == (3.0, 9.0, "three")
        assert (shown.checkpoint, shown.attempt) == ({"at": 3}, 1)
    # What is not said stays as it was.
    run(connection, store.update([Update(held(given), False, 4.0, None, None, None)]))
    shown = see(connection, given.id)
    assert (shown.progress_done, shown.progress_total, shown.checkpoint) == (4.0, 9.0, {"at": 3})


# Retries


def is_due(connection: Connection, job: int, since: datetime, least: float, most: float) -> bool:
    """Whether it is so many seconds after something that happened since then."""
    (found,) = row(connection, job, "run_at")
    return since + timedelta(seconds=least) <= found <= later(connection) + timedelta(seconds=most)


def run_again(connection: Connection, turn: int) -> Any:
    run(connection, maintenance.promote(later(connection, hours=1)))
    (given,) = take(connection, request=f"again-{turn}")
    beat(connection, held(given))
    return given


def test_what_failed_comes_back_with_a_backoff_until_its_attempts_are_used_up(connection: Connection) -> None:
    given = started(connection, max_attempts=4)
    for turn, base in enumerate((1, 2, 4), start=1):
        before = later(connection)
        assert state_of(connection, Ending(held(given), "failed", None, "no luck", "trace")) == ["scheduled"]
        assert is_due(connection, given.id, before, 0.8 * base, 1.2 * base)
        assert see(connection, given.id).error_summary == "no luck"
        given = run_again(connection, turn)
        assert given.attempt == turn + 1
    assert state_of(connection, Ending(held(given), "failed", None, "no luck", "trace")) == ["failed"]
    shown = see(connection, given.id)
    assert (shown.state, shown.attempt, shown.error_summary) == (JobState.FAILED, 4, "no luck")


def test_who_says_when_is_believed(connection: Connection) -> None:
    given, before = started(connection, max_attempts=2), later(connection)
    assert state_of(connection, Ending(held(given), "failed", None, "later", None, 500.0)) == ["scheduled"]
    assert is_due(connection, given.id, before, 500, 500)


def test_a_snooze_uses_no_attempt_up(connection: Connection) -> None:
    given = started(connection, max_attempts=1)
    for turn in range(3):
        before = later(connection)
        assert state_of(connection, Ending(held(given), "snooze", None, None, None, 60.0)) == ["scheduled"]
        assert is_due(connection, given.id, before, 60, 60)
        given = run_again(connection, turn)
    assert state_of(connection, Ending(held(given), "succeeded", "1")) == ["succeeded"]


def test_a_fatal_failure_is_not_tried_again(connection: Connection) -> None:
    given = started(connection, max_attempts=9)
    assert state_of(connection, Ending(held(given), "fatal", None, "never")) == ["failed"]
    assert see(connection, given.id).attempt == 1


def test_what_was_never_begun_goes_back_at_once_and_is_no_attempt(connection: Connection) -> None:
    put(connection, max_attempts=1)
    for turn in range(3):
        (given,) = take(connection, request=f"r{turn}")
        assert state_of(connection, Ending(held(given), "released")) == ["queued"]
    assert row(connection, given.id, "attempt", "started_at", "claims") == (0, None, 3)


def test_what_was_begun_and_is_given_back_is_an_attempt_whatever_is_said(connection: Connection) -> None:
    given = started(connection, max_attempts=1)
    assert state_of(connection, Ending(held(given), "released")) == ["failed"]


# Cancellation and time


def test_a_cancellation_reaches_beats_and_updates_and_beats_a_retry(connection: Connection) -> None:
    given = started(connection, max_attempts=3)
    other = started(connection)
    run(connection, jobs.request_cancel(given.id, "no longer wanted"))
    assert beat(connection, held(other), held(given)) == [(1, "cancel", "no longer wanted")]
    said = [Update(held(one), False, 1.0, None, None, None) for one in (other, given)]
    assert run(connection, store.update(said)) == {0: None, 1: "no longer wanted"}
    assert state_of(connection, Ending(held(given), "failed", None, "stopped")) == ["cancelled"]
    assert see(connection, given.id).reason == "no longer wanted"


def test_a_task_over_its_time_is_ended_by_the_beat_and_its_worker_told(connection: Connection) -> None:
    given = started(connection, max_attempts=3, timeout=timedelta(minutes=1))
    usual = started(connection)
    connection.execute("UPDATE kappa.jobs SET attempt_started_at = now() - interval '2 minutes'")
    assert beat(connection, held(usual), held(given)) == [(1, "timed_out", None)]
    shown = see(connection, given.id)
    assert (shown.state, shown.error_summary) == (JobState.TIMED_OUT, "the time-out was reached")
    assert beat(connection, held(given)) == [(0, "lost", None)]
    assert state_of(connection, Ending(held(given), "succeeded", "1")) == ["timed_out"]


def test_a_task_without_progress_for_as_long_as_its_lane_says_is_tried_again(connection: Connection) -> None:
    reports, silent, last = (started(connection, max_attempts=most) for most in (3, 3, 1))
    connection.execute("UPDATE kappa.jobs SET attempt_started_at = now() - interval '1 hour'")
    run(connection, store.update([Update(held(reports), False, 1.0, None, None, None)]))
    assert beat(connection, held(reports), held(silent), held(last)) == [(1, "lost", None), (2, "lost", None)]
    shown = [see(connection, one.id) for one in (reports, silent, last)]
    assert [one.state for one in shown] == [JobState.RUNNING, JobState.SCHEDULED, JobState.FAILED]
    assert [one.error_summary for one in shown[1:]] == ["no progress for 1800 s"] * 2


# The dead


async def reap(url: str, connection: Connection) -> None:
    """What the leader's reaper does once every lease has run out."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as leader:
        await Reaper(Signals()).run_once(leader, later(connection, hours=1))


async def test_the_tasks_of_a_dead_worker_are_lost_attempts(url: str, connection: Connection) -> None:
    again, last = started(connection, max_attempts=2), started(connection, max_attempts=1)
    cancelled, over = started(connection, max_attempts=2), started(connection, max_attempts=2, timeout=timedelta(1))
    run(connection, jobs.request_cancel(cancelled.id, "enough"))
    connection.execute("UPDATE kappa.jobs SET attempt_started_at = now() - interval '2 days' WHERE id = %s", [over.id])
    put(connection)
    (unbegun,) = take(connection, request="unbegun")
    before = later(connection)
    await reap(url, connection)
    shown = {one.id: see(connection, one.id) for one in (again, last, cancelled, over, unbegun)}
    assert {job: (one.state, one.attempt) for job, one in shown.items()} == {
        again.id: (JobState.SCHEDULED, 1),
        last.id: (JobState.FAILED, 1),
        cancelled.id: (JobState.CANCELLED, 1),
        over.id: (JobState.TIMED_OUT, 1),
        unbegun.id: (JobState.QUEUED, 0),
    }
    assert shown[last.id].error_summary == "the worker that ran it was lost"
    assert is_due(connection, again.id, before, 0.8, 1.2)
    assert running(connection) == 0


async def test_a_task_that_nobody_lives_to_begin_is_given_up_in_the_end(url: str, connection: Connection) -> None:
    made = put(connection, max_attempts=1)
    for turn in range(11):
        assert see(connection, made).state is JobState.QUEUED, turn
        assert len(take(connection, request=f"r{turn}")) == 1
        await reap(url, connection)
    shown = see(connection, made)
    assert (shown.state, shown.attempt, shown.started_at) == (JobState.FAILED, 0, None)
    assert shown.error_summary is not None
    assert "claimed 11 times" in shown.error_summary


async def test_orphans_of_other_lanes_are_left_for_adoption(url: str, connection: Connection) -> None:
    put(connection, kind="ingestion", max_attempts=3)
    (local,) = run(connection, jobs.claim("interactive", "here", 1))
    run(connection, jobs.mark_started([(local.id, local.token)]))
    mine = started(connection)
    await reap(url, connection)
    assert row(connection, local.id, "state", "lease_token", "attempt") == ("running", None, 1)
    assert see(connection, mine.id).state is JobState.FAILED
    assert [one.id for one in run(connection, jobs.claim("interactive", "there", 1))] == [local.id]


def test_a_burial_takes_no_more_than_it_was_told(connection: Connection) -> None:
    for _ in range(7):
        started(connection)
    run(connection, maintenance.reap(later(connection, hours=1)))
    assert [run(connection, maintenance.bury(3)) for _ in range(4)] == [3, 3, 1, 0]


def test_a_task_that_is_reported_while_it_is_buried_has_one_end(url: str, connection: Connection) -> None:
    given = started(connection, max_attempts=3)
    run(connection, maintenance.reap(later(connection, hours=1)))
    with psycopg.connect(url) as one:
        assert run(one, maintenance.bury()) == 1
        # It waits for nothing: the token is gone since the reaping.
        assert state_of(connection, Ending(held(given), "succeeded", "1")) == [None]
        one.commit()
    assert see(connection, given.id).state is JobState.SCHEDULED


def test_retention_forgets_old_claims_but_not_those_that_are_held(connection: Connection) -> None:
    done, kept = started(connection), started(connection)
    settle(connection, Ending(held(done), "succeeded"))
    put(connection, needs={"cores": 1})
    connection.execute("INSERT INTO kappa.job_needs (job_id) VALUES (999999)")
    connection.execute("UPDATE kappa.fleet_tasks SET claimed_at = now() - interval '2 days'")
    run(connection, maintenance.forget_fleet())
    found = connection.execute("SELECT job_id FROM kappa.fleet_tasks").fetchall()
    assert found == [(kept.id,)]
    assert connection.execute("SELECT count(*) FROM kappa.job_needs").fetchall() == [(1,)]
    assert claim(connection) != []


# Silence


def test_a_kinds_own_stale_timeout_counts_before_the_lanes_and_an_edit_of_the_lane_for_all_others(
    connection: Connection,
) -> None:
    patient, hasty, usual = (started(connection, max_attempts=3) for _ in range(3))
    for given, seconds in ((patient, 1e9), (hasty, 5.0)):
        assert run(connection, store.update([Update(held(given), True, None, None, None, None, seconds)]))
    connection.execute("UPDATE kappa.lanes SET stale_timeout = '1 minute' WHERE name = 'far'")

    def silent_for(seconds: int) -> list[tuple[int, str, str | None]]:
        connection.execute(
            """UPDATE kappa.jobs SET attempt_started_at = now() - %(for)s, progress_at = now() - %(for)s
                WHERE state = 'running'""",
            {"for": timedelta(seconds=seconds)},
        )
        return beat(connection, held(patient), held(hasty), held(usual))

    assert silent_for(3) == []
    assert silent_for(30) == [(1, "lost", None)]
    assert (see(connection, hasty.id).state, see(connection, hasty.id).error_summary) == (
        JobState.SCHEDULED, "no progress for 5 s",
    )  # fmt: skip
    assert sorted(silent_for(90)) == [(1, "lost", None), (2, "lost", None)]
    assert see(connection, patient.id).state is JobState.RUNNING


def test_a_later_word_without_a_stale_timeout_leaves_it_as_it_is(connection: Connection) -> None:
    given = started(connection)
    for seconds in (7.0, None):
        run(connection, store.update([Update(held(given), True, None, None, None, None, seconds)]))
    assert row(connection, given.id, "stale_timeout") == (timedelta(seconds=7),)
