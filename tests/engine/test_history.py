"""What is remembered of a job's way, for people who look on; and that the usual job leaves nothing to remember."""

from kappa.engine import Client, JobState
from kappa.engine.store import insight, jobs
from kappa.engine.store.jobs import PutBack
from kappa.pg.ops import run
from tests.engine.hands import Connection, finish, orphan, put, reap, start, take


def told(connection: Connection, job_id: int) -> list[tuple[str, int, str | None, str | None]]:
    return [(one.event, one.attempt, one.owner, one.detail) for one in run(connection, insight.events(job_id))]


def test_a_job_that_simply_runs_writes_no_event(connection: Connection) -> None:
    for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.TIMED_OUT):
        finish(connection, state)
    held = start(connection)
    run(connection, jobs.renew([(held.id, held.token)]))
    run(connection, jobs.progress([(held.id, held.token, 1.0, 2.0, "half")]))
    assert connection.execute("SELECT count(*) FROM kappa.job_events").fetchone() == (0,)


def test_a_lost_worker_and_its_heir_are_remembered(connection: Connection) -> None:
    lost = start(connection)
    connection.execute("UPDATE kappa.jobs SET lease_until = now() - interval '1 second' WHERE id = %s", [lost.id])
    assert reap(connection) == 1
    take(connection, owner="two")
    assert told(connection, lost.id) == [("lease_ran_out", 1, "one", None), ("adopted", 1, "two", None)]


def test_who_lets_go_is_told_apart_from_who_vanished(connection: Connection) -> None:
    let_go = orphan(connection)
    assert told(connection, let_go) == [("released", 1, "one", None)]


def test_an_attempt_that_is_followed_by_another_is_remembered_with_its_reason(connection: Connection) -> None:
    first = start(connection, max_attempts=3)
    run(
        connection,
        jobs.put_back([PutBack(first.id, first.token, delay=60.0, summary="the well was dry", started=True)]),
    )
    assert told(connection, first.id) == [("put_back", 1, "one", "the well was dry")]


def test_what_happened_to_jobs_that_are_gone_is_forgotten(connection: Connection) -> None:
    kept, gone = orphan(connection), orphan(connection)
    connection.execute("DELETE FROM kappa.jobs WHERE id = %s", [gone])
    run(connection, insight.forget_events())
    assert told(connection, kept)
    assert told(connection, gone) == []


def test_relatives_are_found_in_both_directions(connection: Connection, client: Client) -> None:
    origin = finish(connection, JobState.FAILED)
    parent = start(connection)
    child = put(connection, "polarity", parent_id=parent.id, spawn_key="a")
    again = client.retry(origin)
    assert [(one.id, one.bond) for one in client.history(parent.id)[1]] == [(child, "child")]
    assert [(one.id, one.bond) for one in client.history(origin)[1]] == [(again.id, "retry")]


def test_depths_are_counted_up_to_a_limit(connection: Connection, client: Client) -> None:
    for _ in range(5):
        put(connection, "tool_run")
    take(connection, "tools", capacity=1)
    orphan(connection)
    depths = client.depths(3)
    assert (depths["tools", JobState.QUEUED], depths["tools", JobState.RUNNING]) == (3, 1)
    assert client.depths(100)["tools", JobState.QUEUED] == 4
    assert client.orphans(10) == 1
