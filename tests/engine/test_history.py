"""What is remembered of a job's way, for people who look on; and that the usual job leaves nothing to remember."""

from typing import Any

import pytest

from kappa.engine import Client, JobState
from kappa.engine.store import insight, jobs
from kappa.engine.store.jobs import PutBack
from kappa.pg.ops import run
from tests.engine.hands import Connection, finish, orphan, put, reap, renew, start, take


def told(connection: Connection, job_id: int) -> list[tuple[str, int, str | None, str | None]]:
    return [(one.event, one.attempt, one.owner, one.detail) for one in run(connection, insight.events(job_id, 200))]


def test_a_job_that_simply_runs_writes_no_event(connection: Connection) -> None:
    for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.TIMED_OUT):
        finish(connection, state)
    held = start(connection)
    renew(connection, [(held.id, held.token)])
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
    other = put(connection, "polarity", parent_id=parent.id, spawn_key="b")
    assert [one.id for one in client.history(parent.id)[1]] == [child, other]
    assert [one.id for one in client.history(parent.id, 1)[1]] == [child]
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


@pytest.mark.parametrize("rare", [{"kinds": ["polarity"]}, {"lane": "interactive"}], ids=["kind", "lane"])
def test_a_rare_sort_of_job_is_looked_for_a_stretch_at_a_time(
    connection: Connection, client: Client, rare: dict[str, Any]
) -> None:
    old = finish(connection, kind="polarity")
    connection.execute("SELECT setval('kappa.jobs_id_seq', %s)", [old + 1_000_000])
    first = put(connection, "polarity")
    for _ in range(24):
        put(connection, "tool_run")
    last = put(connection, "polarity")

    pages = [client.page_jobs(**rare, look_through=10)]
    while (before := pages[-1].next) is not None:
        pages.append(client.page_jobs(**rare, before=before, look_through=10))
    # A gap between the ids, however wide, is stepped over at once.
    assert [[job.id for job in page.jobs] for page in pages] == [[last], [], [first], [old]]
    assert [job.id for job in client.page_jobs(**rare, limit=2).jobs] == [last, first]


def test_a_page_says_whether_there_is_another(connection: Connection, client: Client) -> None:
    ids = [put(connection, "tool_run", submitted_by="ada") for _ in range(4)]
    for asked in ({}, {"submitted_by": "ada"}, {"kinds": ["tool_run"]}, {"states": [JobState.QUEUED]}):
        page = client.page_jobs(**asked, limit=2)
        rest = client.page_jobs(**asked, limit=2, before=page.next)
        assert [job.id for job in [*page.jobs, *rest.jobs]] == ids[::-1]
        assert (page.next, rest.next) == (ids[2], None)
    assert client.page_jobs(kinds=["restore"], limit=2).next is None
    assert client.page_jobs(submitted_by="nobody").jobs == []
