"""The kind `restore`: the old graph or the new one, never a mix, and the lanes are always switched on again."""

import asyncio
import random
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from kappa.engine import Client, Engine, JobState, WorkerConfig
from kappa.engine.testing import drain, maintain
from kappa.graph import Budget, Graph, GraphConfig
from kappa.graph.backup import make
from kappa.pg import Database
from tests.app.restoring import DoomedWorker, put_restore
from tests.graph.dump import Lines, dump, whole
from tests.graph.libraries import write_beside, write_document, write_library

KILLS = 30
SEED = 20261116


def taken(url: str) -> bytes:
    with Database(url).connect() as connection:
        return b"".join(make(connection))


@pytest.fixture
def versions(url: str, engine: Engine) -> list[tuple[bytes, Lines]]:
    """Two graphs, as backups and as dumps; the second is there."""
    with Graph(url, GraphConfig(), budget=Budget()) as graph:
        write_library(graph, whales=False)
        first = taken(url), dump(url)
        write_library(graph)
        graph.delete_ontology("rivers")
        write_document(graph, "night", "bats.txt", "Bats eat moths.", [("bats", "EATS", "moths")])
    write_beside(url)
    return [first, (taken(url), dump(url))]


def lanes(url: str) -> dict[str, bool]:
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM kappa.lanes WHERE held_by IS NOT NULL").fetchone() == (0,)
        return dict(connection.execute("SELECT name, enabled FROM kappa.lanes").fetchall())


def leader(engine: Engine, service: str) -> None:
    """What the leader does once the lease has run out, or the backoff is over."""
    asyncio.run(maintain(engine, later=timedelta(minutes=5), only=lambda name: name == service))


def test_a_restore_puts_the_graph_back_and_says_what_it_did(
    url: str, home: Path, client: Client, versions: list[tuple[bytes, Lines]]
) -> None:
    content, wanted = versions[0]
    job = put_restore(url, content)
    with DoomedWorker(url, home) as worker:
        assert worker.work() is not None
    done = client.show(job)
    assert done.state is JobState.SUCCEEDED, done.error_summary
    assert done.result["rows"]["ontologies"] == 1
    assert dump(url) == wanted
    assert all(lanes(url).values())
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM kappa.restore_files").fetchone() == (0,)


@pytest.mark.timeout(300)
def test_thirty_kills_leave_the_old_graph_or_the_new_one(
    url: str, home: Path, engine: Engine, client: Client, versions: list[tuple[bytes, Lines]]
) -> None:
    chance = random.Random(SEED)
    job = put_restore(url, versions[0][0])
    with DoomedWorker(url, home) as first:
        statements = first.work()
    assert statements is not None
    now, wanted = versions[0][1], versions[1]
    assert dump(url) == now
    ready = [DoomedWorker(url, home) for _ in range(2)]
    kills, changed, unchanged = 0, 0, 0
    job = put_restore(url, wanted[0])
    try:
        while kills < KILLS:
            ready.append(DoomedWorker(url, home))
            with ready.pop(0) as worker:
                # Anywhere in the handler, up to its last statement, and a little behind each.
                killed = worker.work(chance.randint(1, statements), chance.choice([0, 0, 0.001, 0.003])) is None
            kills += killed
            leader(engine, "reaper")
            assert all(lanes(url).values())
            whole(url)
            found = dump(url)
            ended = client.show(job).state is JobState.SUCCEEDED
            assert found == (wanted[1] if ended else now)
            if not ended:
                asyncio.run(drain(engine, WorkerConfig(lanes=("system",), lead=False)))  # adopts it, and puts it back
                leader(engine, "promoter")
                ended = client.show(job).state is JobState.SUCCEEDED
            changed, unchanged = changed + ended, unchanged + (killed and not ended)
            if ended:
                now, wanted = wanted[1], versions[0] if wanted is versions[1] else versions[1]
                job = put_restore(url, wanted[0])
    finally:
        for worker in ready:
            worker.kill()
            worker.__exit__()
    assert unchanged > KILLS // 2
    with DoomedWorker(url, home) as last:
        assert last.work() is not None
    assert dump(url) == wanted[1]
    assert changed + unchanged >= KILLS


def test_a_broken_file_changes_nothing_and_is_not_tried_again(
    url: str, home: Path, client: Client, versions: list[tuple[bytes, Lines]]
) -> None:
    content = versions[0][0]
    cut = put_restore(url, content[:-1])
    flipped = put_restore(url, content[:900] + bytes([content[900] ^ 1]) + content[901:])
    foreign = put_restore(url, b"\x1f\x8b no backup")
    with DoomedWorker(url, home) as worker:
        worker.work()
    for job in (cut, flipped, foreign):
        done = client.show(job)
        assert (done.state, done.attempt) == (JobState.FAILED, 1)
        assert "backup" in (done.error_summary or "")
    assert dump(url) == versions[1][1]
    assert all(lanes(url).values())


def test_a_job_that_is_not_the_files_own_can_not_use_it(
    url: str, home: Path, client: Client, versions: list[tuple[bytes, Lines]]
) -> None:
    put_restore(url, versions[0][0])
    with psycopg.connect(url) as connection:
        connection.execute("DELETE FROM kappa.jobs")
        row = connection.execute("SELECT id FROM kappa.restore_files").fetchone()
    assert row is not None
    other = client.enqueue("restore", {"file": row[0], "mode": "replace"}).id
    with DoomedWorker(url, home) as worker:
        worker.work()
    assert client.show(other).state is JobState.FAILED
    assert dump(url) == versions[1][1]


def test_a_restore_that_is_cancelled_leaves_the_graph_as_it_was(
    url: str, home: Path, client: Client, versions: list[tuple[bytes, Lines]]
) -> None:
    """It waits for a job of another lane when it is cancelled."""
    busy = client.enqueue("polarity", {"positive": "a", "negative": "b"}).id
    with psycopg.connect(url) as connection:
        connection.execute(
            "UPDATE kappa.jobs SET state = 'running', lease_owner = 'x', lease_token = 1, "
            "lease_until = now() + interval '1 hour' WHERE id = %s",
            [busy],
        )
    job = put_restore(url, versions[0][0])
    with DoomedWorker(url, home) as worker:
        assert worker.line() == "ready"
        worker.tell("[0, 0]")
        with psycopg.connect(url, autocommit=True) as connection:
            while connection.execute("SELECT count(*) FROM kappa.lanes WHERE held_by IS NOT NULL").fetchone() == (0,):
                pass
        client.cancel(job, "no")
        assert client.wait(job).state is JobState.CANCELLED
        worker.process.communicate(timeout=30)
    assert dump(url) == versions[1][1]
    assert all(lanes(url).values())
