"""`artifact_cleanup`: expired artifacts go, and bytes and rows never disagree, whenever it is killed."""

import asyncio
import random
from pathlib import Path

import psycopg
import pytest

from kappa.engine import Client, Engine, JobState, WorkerConfig
from kappa.engine.testing import Heard, drain, working
from kappa.pg.queries import Row
from tests.app.restoring import DoomedWorker
from tests.app.shelf import Shelf
from tests.app.test_kinds import Interrupted

Session = psycopg.Connection[Row]

FOLLOWER = WorkerConfig(lanes=("system",), lead=False)


@pytest.fixture
def shelf(home: Path, connection: Session, engine: Engine) -> Shelf:
    return Shelf(home, connection)


def hand_in(connection: Session, count: int) -> set[str]:
    """Documents that nobody submitted, whose time is over."""
    rows = connection.execute(
        "INSERT INTO kappa_graph.uploads"
        " (key, owner, name, sha256, size, media_type, bytes, words, chunks, expires_at) "
        "SELECT gen_random_uuid(), 'ann', 'a.txt', sha256('a'), 5, 'text/plain', 'bytes', 1, 1,"
        " now() - interval '1 hour' FROM generate_series(1, %s) RETURNING key::text",
        [count],
    )
    return {row[0] for row in rows}


def uploads_left(connection: Session) -> set[str]:
    return {row[0] for row in connection.execute("SELECT key::text FROM kappa_graph.uploads WHERE bytes = 'bytes'")}


def clean(engine: Engine, client: Client, **asked: float) -> dict[str, object]:
    job = client.enqueue("artifact_cleanup", asked, auto_approve="ada").id
    asyncio.run(drain(engine, FOLLOWER))
    done = client.show(job)
    assert done.state is JobState.SUCCEEDED, done.error_summary
    return done.result


def test_what_has_expired_goes_and_the_rest_stays(
    engine: Engine, client: Client, shelf: Shelf, connection: Session
) -> None:
    connection.execute(
        "INSERT INTO kappa_graph.artifacts (key, kind, as_of_epoch, bytes, expires_at) "
        "SELECT gen_random_uuid(), 'map', 0, 'x', now() + make_interval(days => n) FROM generate_series(-3, 2) AS n"
    )
    connection.execute(
        "INSERT INTO kappa_graph.artifacts (key, kind, as_of_epoch) VALUES (gen_random_uuid(), 'map', 0)"
    )
    connection.execute(
        "INSERT INTO kappa.restore_files (uploaded_by, uploaded_at) "
        "VALUES ('x', now() - interval '2 days'), ('y', now())"
    )
    old, new = shelf.put(b"old", days=40), shelf.put(b"new", days=3)
    both = shelf.put(b"both", days=40)
    assert shelf.put(b"both", days=3) == both
    stray, fresh = shelf.put(b"stray", days=None), shelf.put(b"fresh", days=None, fresh=True)
    first = clean(engine, client, tool_artifacts_days=30)
    assert (first["graph_artifacts"], first["tool_artifacts"], first["files"], first["uploads"]) == (4, 2, 2, 1)
    assert shelf.files == {new, both, fresh}
    assert shelf.rows == {new, both}
    assert old not in shelf.files
    assert stray not in shelf.files
    assert connection.execute("SELECT count(*) FROM kappa_graph.artifacts").fetchone() == (3,)
    assert clean(engine, client, tool_artifacts_days=30)["skipped"] == "nothing has expired"


def test_without_a_limit_what_runs_left_is_kept(engine: Engine, client: Client, shelf: Shelf) -> None:
    kept = shelf.put(b"old", days=4000)
    assert clean(engine, client)["skipped"] == "nothing has expired"
    assert shelf.files == shelf.rows == {kept}


def test_content_that_comes_again_while_it_is_removed_stays(engine: Engine, client: Client, shelf: Shelf) -> None:
    """The note was made; then another run left the same bytes, and its row."""
    sha256 = shelf.put(b"again", days=None)
    shelf.connection.execute("INSERT INTO kappa.artifact_removals (sha256) VALUES (%s)", [sha256])
    assert shelf.put(b"again", days=1) == sha256
    aside = shelf.store.aside(sha256)
    aside.parent.mkdir()
    aside.write_bytes(b"again")  # as one leaves it who is killed after the move
    clean(engine, client)
    assert shelf.files == shelf.rows == {sha256}
    assert shelf.notes == set()
    assert not aside.exists()


@pytest.mark.timeout(240)
def test_kills_leave_no_row_without_bytes_and_no_bytes_that_nobody_knows(
    engine: Engine, client: Client, shelf: Shelf, home: Path, url: str, connection: Session
) -> None:
    chance = random.Random(4)
    with DoomedWorker(url, home) as first:
        client.enqueue("artifact_cleanup", {"tool_artifacts_days": 30}, auto_approve="ada")
        least = first.work()
    assert least is not None
    for _ in range(10):
        for n in range(4):
            shelf.put(chance.randbytes(20), days=40 if n % 2 else 1)
        handed_in = hand_in(connection, 150)
        job = client.enqueue("artifact_cleanup", {"tool_artifacts_days": 30}, auto_approve="ada").id
        with DoomedWorker(url, home) as worker:
            worker.work(chance.randint(1, least + 8))
        connection.execute("DELETE FROM kappa.jobs WHERE id = %s", [job])
        put_aside = {path.name for path in shelf.store.aside("x").parent.glob("*")}
        assert shelf.rows <= shelf.files
        assert shelf.files | put_aside == shelf.rows | shelf.notes & (shelf.files | put_aside)
        assert put_aside <= shelf.notes
        left = uploads_left(connection)
        assert left <= handed_in
        assert len(handed_in - left) in (0, 100, 150), "batches, each wholly or not at all"
        connection.execute("DELETE FROM kappa_graph.uploads")
    clean(engine, client, tool_artifacts_days=30)
    assert shelf.files == shelf.rows
    assert shelf.notes == set()
    assert not list(shelf.store.aside("x").parent.glob("*"))


async def test_a_cancel_in_the_middle_leaves_whole_artifacts_and_the_next_run_does_the_rest(
    engine: Engine, connection: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.execute(
        "INSERT INTO kappa_graph.artifacts (key, kind, as_of_epoch, content, bytes, expires_at)"
        " SELECT gen_random_uuid(), 'polarity', 0, '{}', '<svg/>', now() - interval '1 day' FROM generate_series(1,250)"
    )
    left = "SELECT count(*) FROM kappa_graph.artifacts WHERE content IS NOT NULL AND bytes IS NOT NULL"
    with monkeypatch.context() as patched:
        interrupted = Interrupted(engine, patched, 2)
        async with engine.async_client() as client, working(engine, FOLLOWER):
            made = await client.enqueue("artifact_cleanup", {}, auto_approve="ada")
            heard = Heard(engine)
            async with asyncio.timeout(30):
                await interrupted.reached.wait()
            await client.cancel(made.id, "enough")
            await heard.until("settled", job=made.id)
            assert (await client.show(made.id)).state is JobState.CANCELLED
    assert connection.execute(left).fetchone() == (50,)  # two batches of a hundred had gone
    async with engine.async_client() as client:
        again = await client.enqueue("artifact_cleanup", {}, auto_approve="ada")
        await drain(engine, FOLLOWER)
        assert (await client.show(again.id)).state is JobState.SUCCEEDED
    assert connection.execute(left).fetchone() == (0,)


def test_what_a_person_asks_for_is_approved_first(client: Client) -> None:
    job = client.enqueue("artifact_cleanup", {"tool_artifacts_days": 1}).id
    assert client.show(job).state is JobState.AWAITING_APPROVAL
