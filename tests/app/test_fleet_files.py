"""Tool runs of remote workers: their files on the way, and the same records as of a run that is done here."""

import asyncio
import hashlib
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kappa.engine import WorkerConfig, tools
from kappa.engine.fleet.transfers import INPUT_PIECE
from tests.app.conftest import Site
from tests.app.remote import Remote, Request
from tests.ground import eventually

BLOCKED = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0"
)

Connection = psycopg.Connection[tuple[Any, ...]]

LOG_LIMIT = 200_000
NAME = "100%41 sure?.txt"
TOOL = {"name": "echo", "version": "1", "argv": ["true"], "limits": {"output_mb": 1}}


@pytest.fixture
async def remote(site: Site, connection: Connection) -> Remote:
    connection.execute("UPDATE kappa.lanes SET executor = 'fleet', max_slots = 50 WHERE name = 'tools'")
    connection.execute("SELECT pg_notify('kappa_lane', 'tools')")
    client = await site.client("platform_admin")
    assert (await client.post("/tools", json=TOOL)).status_code == 201
    return Remote(site, await site.token("platform_admin"))


async def begun(site: Site, remote: Remote, connection: Connection, request: str = "r1") -> dict[str, Any]:
    """A run that the worker has, as it was given."""
    client = await site.client("platform_admin")
    asked = await client.post("/tools/echo/runs", json={"inputs": {"n": 1}})
    assert asked.status_code == 201, asked.text
    connection.execute(
        "INSERT INTO kappa.tool_inputs (run_id, name, content) VALUES (%s, %s, 'abc')", [asked.json()["id"], NAME]
    )
    (given,) = (await remote.ask(request, kinds=("tool_run",))).json()["tasks"]
    held = {"task": given["task"], "token": given["token"]}
    assert (await remote.call("update_task", **held, started=True)).status == 200
    return given


async def artifact(
    remote: Remote, given: dict[str, Any], path: str, content: bytes | list[bytes], size: int
) -> Request:
    where = f"tasks/{given['task']}/artifacts/{path}"
    return await remote.file("PUT", where, content, token=given["token"], size=size)


async def log(remote: Remote, given: dict[str, Any], at: int, piece: bytes, stream: str = "stdout") -> Request:
    return await remote.file("PUT", f"tasks/{given['task']}/logs/{stream}", piece, token=given["token"], at=at)


def found(site: Site, pattern: str) -> list[Path]:
    return list(site.services.settings.home.rglob(pattern))


def kept_logs(connection: Connection, stream: str = "stdout") -> bytes:
    pieces = connection.execute("SELECT content FROM kappa.tool_logs WHERE stream = %s ORDER BY position", [stream])
    return b"".join(content for (content,) in pieces)


async def test_a_task_says_what_the_run_is_and_its_inputs_are_fetched(
    site: Site, remote: Remote, connection: Connection
) -> None:
    given = await begun(site, remote, connection)
    tool = given["tool"]
    assert (tool["tool"], tool["argv"], tool["inputs"], tool["input_files"]) == ("echo", ["true"], {"n": 1}, [NAME])
    where = f"tasks/{given['task']}/inputs"
    fetched = await remote.file("GET", f"{where}/100%2541%20sure%3F.txt", token=given["token"])
    assert (fetched.status, fetched.body) == (200, b"abc")
    for name in ("other", "a%00b", "..%2Fx", "%ff", "²"):
        missing = await remote.file("GET", f"{where}/{name}", token=given["token"])
        assert missing.status in (400, 404), name
        assert "retry-after" not in missing.headers
    thief = Remote(site, remote.token, "thief")
    for worker, token in (
        (thief, given["token"]),
        (remote, given["token"] + 1),
        (Remote(site, remote.token, "%00"), 1),
    ):
        stolen = await worker.file("GET", f"{where}/{NAME}", token=token)
        assert stolen.status in (400, 409)


async def test_an_input_goes_in_pieces_and_a_slow_reader_keeps_nobody_waiting(
    site: Site, remote: Remote, connection: Connection
) -> None:
    given = await begun(site, remote, connection)
    content = b"".join(b"%d," % number for number in range(500_000))
    connection.execute("UPDATE kappa.tool_inputs SET content = %s", [content])
    where = {"call": f"tasks/{given['task']}/inputs/100%2541%20sure%3F.txt", "worker": "w", "token": given["token"]}
    slow = remote.begin(method="GET", **where, patience=(patience := asyncio.Event())).send(b"")
    await asyncio.to_thread(eventually, lambda: slow.pieces)
    assert (await Remote(site, remote.token, "new").call("hello", kinds=["tool_run"])).status == 200
    assert slow.under_way
    patience.set()
    await slow.answer()
    assert (slow.status, slow.headers["content-length"]) == (200, str(len(content)))
    assert slow.body == content
    assert len(slow.pieces) > 3
    assert max(slow.pieces) <= INPUT_PIECE
    head = await remote.begin(method="HEAD", **where).send(b"").answer()
    assert (head.headers["content-length"], head.body) == (str(len(content)), b"")


async def test_an_input_that_vanishes_on_the_way_is_cut_off(site: Site, remote: Remote, connection: Connection) -> None:
    given = await begun(site, remote, connection)
    connection.execute("UPDATE kappa.tool_inputs SET content = %s", [bytes(3 * INPUT_PIECE)])
    where = f"tasks/{given['task']}/inputs/100%2541%20sure%3F.txt"
    patience = asyncio.Event()
    slow = remote.begin(where, "GET", worker="w", token=given["token"], patience=patience).send(b"")
    await asyncio.to_thread(eventually, lambda: slow.pieces)
    connection.execute("DELETE FROM kappa.tool_inputs")
    patience.set()
    await slow.answer()
    assert slow.pieces == [INPUT_PIECE], "and no end: the connection is broken, and the worker knows"


async def test_an_input_ends_when_its_token_is_revoked(site: Site, remote: Remote, connection: Connection) -> None:
    given = await begun(site, remote, connection)
    connection.execute("UPDATE kappa.tool_inputs SET content = %s", [bytes(3 * INPUT_PIECE)])
    where = f"tasks/{given['task']}/inputs/100%2541%20sure%3F.txt"
    patience = asyncio.Event()
    slow = remote.begin(where, "GET", worker="w", token=given["token"], patience=patience).send(b"")
    await asyncio.to_thread(eventually, lambda: slow.pieces)
    connection.execute("UPDATE kappa.tokens SET revoked_at = now()")
    bearer = f"Bearer {remote.token}".encode()
    await asyncio.to_thread(eventually, lambda: site.services.fleet._doorman.known(bearer) is None)
    patience.set()
    await slow.answer()
    assert slow.pieces == [INPUT_PIECE]


async def test_logs_are_kept_once_by_their_place_and_no_more_than_the_limit(
    site: Site, remote: Remote, connection: Connection
) -> None:
    given = await begun(site, remote, connection)
    for at, piece, length in ((0, b"abc", 3), (0, b"abc", 3), (1, b"bcd", 4), (4, b"", 4), (4, b"ef", 6)):
        assert (await log(remote, given, at, piece)).json() == {"length": length}
    beyond = await log(remote, given, 7, b"x")
    assert (beyond.status, beyond.json()["code"]) == (400, "bad_request")
    assert kept_logs(connection) == b"abcdef"
    said = await asyncio.gather(*(log(remote, given, 0, b"same", "stderr") for _ in range(5)))
    assert {one.json()["length"] for one in said} == {4}
    assert kept_logs(connection, "stderr") == b"same"
    at = 6
    while at < LOG_LIMIT:
        at = (await log(remote, given, at, b"x" * 60_000)).json()["length"]
    assert (at, len(kept_logs(connection))) == (LOG_LIMIT, LOG_LIMIT)
    assert (await log(remote, given, LOG_LIMIT, b"more")).json() == {"length": LOG_LIMIT}
    assert (await log(remote, given, 0, b"x" * 70_000)).status == 413
    assert (await log(remote, given, 0, b"x", "stdin")).status == 404
    assert (await log(Remote(site, remote.token, "thief"), given, 4, b"x", "stderr")).status == 409


async def test_an_artifact_is_whole_or_nothing(site: Site, remote: Remote, connection: Connection) -> None:
    given = await begun(site, remote, connection)
    whole = await artifact(remote, given, "a/b.bin", [b"12", b"34", b""], 4)
    assert whole.json() == {"path": "a/b.bin", "size": 4, "sha256": hashlib.sha256(b"1234").hexdigest()}
    for path, content, size, status in (
        ("few", b"123", 4, 400),
        ("many", [b"12345", b"6"], 4, 400),
        ("..%2Fout", b"1", 1, 400),
        ("a/..%2F..%2Fout", b"1", 1, 400),
        ("%252e%252e", b"1", 1, 200),  # which is no way out, but a name
        ("large", b"", 1024 * 1024 + 1, 413),
        ("a%00", b"1", 1, 400),
    ):
        said = await artifact(remote, given, path, content, size)
        assert said.status == status, path
        assert "retry-after" not in said.headers
    breaks = remote.begin(f"tasks/{given['task']}/artifacts/x", "PUT", worker="w", token=given["token"], size=4)
    breaks.send(b"12", more=True).hang_up()
    assert (await breaks.answer()).status == 400
    assert found(site, "drafts/*") == []
    stolen = await artifact(Remote(site, remote.token, "thief"), given, "x", b"1", 1)
    assert stolen.status == 409


async def test_a_disk_that_takes_nothing_is_no_ones_fault(site: Site, remote: Remote, connection: Connection) -> None:
    given = await begun(site, remote, connection)
    stored = (await artifact(remote, given, "a", b"1", 1)).json()["sha256"]
    (place,) = found(site, stored)
    drafts = place.parents[1] / "drafts"
    drafts.rmdir()
    drafts.write_text("in the way")
    said = await artifact(remote, given, "b", b"2", 1)
    assert (said.status, said.json()["code"], "retry-after" in said.headers) == (503, "unavailable", True)


async def test_a_run_is_completed_with_what_was_uploaded_and_nothing_else(
    site: Site, remote: Remote, connection: Connection
) -> None:
    given = await begun(site, remote, connection)
    stored = (await artifact(remote, given, "out/a.txt", b"1234", 4)).json()
    good = {"path": "out/a.txt", "size": 4, "sha256": stored["sha256"], "media_type": "text/plain"}
    held = {"task": given["task"], "token": given["token"]}
    wrong: list[Any] = [
        None,
        {"artifacts": [good | {"sha256": "0" * 64}]},
        {"artifacts": [good | {"size": 5}]},
        {"artifacts": [good | {"path": "../a.txt"}]},
        {"artifacts": [good | {"media_type": "a\0b"}]},
        {"artifacts": [good] * 1001},
        {"outputs": {"a": "\0"}},
        {"outputs": {}, "exit_code": 2**40},
        {"surplus": 1},
    ]
    for result in wrong:
        said = await remote.call("complete_task", **held, result=result)
        assert (said.status, said.json()["code"]) == (400, "bad_request"), result
        assert "retry-after" not in said.headers
    assert connection.execute("SELECT count(*) FROM kappa.tool_artifacts").fetchall() == [(0,)]
    result = {"outputs": {"n": 2}, "exit_code": 0, "artifacts": [good]}
    # Lost replies: the same words again, also at the same moment.
    said = await asyncio.gather(*(remote.call("complete_task", **held, result=result) for _ in range(4)))
    said.append(await remote.call("complete_task", **held, result=result))
    assert [(one.status, one.json()) for one in said] == [(200, {"state": "succeeded"})] * 5
    rows = connection.execute("SELECT status::text, outputs, exit_code, attempt FROM kappa.all_tool_runs").fetchall()
    assert rows == [("succeeded", {"n": 2}, 0, 1)]
    thief = Remote(site, remote.token, "thief")
    assert (await thief.call("complete_task", **held, result=result)).status == 409


async def test_a_repeat_that_meets_the_first_in_the_middle_hears_the_same(
    site: Site, remote: Remote, connection: Connection, url: str
) -> None:
    given = await begun(site, remote, connection)
    held = {"task": given["task"], "token": given["token"]}
    result = {"outputs": {}, "exit_code": 0}
    with psycopg.connect(url) as other:
        other.execute("SELECT FROM kappa.jobs WHERE id = %s FOR UPDATE", [given["task"]])
        first = remote.says("complete_task", **held, result=result)
        again = remote.says("complete_task", **held, result=result)
        await asyncio.to_thread(eventually, lambda: connection.execute(BLOCKED.encode()).fetchall())
        other.rollback()
    answers = [(await one.answer()).json() for one in (first, again)]
    assert answers == [{"state": "succeeded"}] * 2


async def test_crowds_that_complete_runs_keep_no_beat_waiting(
    site: Site, remote: Remote, connection: Connection, url: str
) -> None:
    runs = [await begun(site, remote, connection, f"r{n}") for n in range(8)]
    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE kappa.tool_artifacts, kappa.tool_inputs")  # held_run reads neither
        other.execute("SELECT FROM kappa.tool_runs FOR UPDATE")
        under_way = [
            remote.says("complete_task", task=one["task"], token=one["token"], result={"outputs": {}}) for one in runs
        ]
        pool = site.services.fleet.fleet.pool
        await asyncio.to_thread(eventually, lambda: connection.execute(BLOCKED.encode()).fetchall())
        assert (await remote.call("beat", tasks=[{"task": 1, "token": 1}])).status == 200
        assert pool.use().waiting == 0
        other.rollback()
    for one, said in zip(runs, under_way, strict=True):
        if (await said.answer()).status == 503:  # it waits for others for a moment only
            held = {"task": one["task"], "token": one["token"]}
            assert (await remote.call("complete_task", **held, result={"outputs": {}})).json() == {"state": "succeeded"}
        else:
            assert (await said.answer()).json() == {"state": "succeeded"}


async def test_a_locked_tool_run_keeps_no_other_call_of_the_fleet_waiting(
    site: Site, remote: Remote, connection: Connection, url: str
) -> None:
    locked, fine = [await begun(site, remote, connection, f"r{n}") for n in range(2)]
    held = {"task": locked["task"], "token": locked["token"]}
    with psycopg.connect(url) as other:
        other.execute("SELECT FROM kappa.tool_runs WHERE job_id = %s FOR UPDATE", [locked["task"]])
        said = await asyncio.gather(
            remote.call("complete_task", **held, result={"outputs": {}}),
            log(remote, locked, 0, b"said\n"),
            log(remote, fine, 0, b"said\n"),
            remote.call("complete_task", task=fine["task"], token=fine["token"], result={"outputs": {}}),
        )
        assert [one.status for one in said] == [503, 503, 200, 200]
    assert (await remote.call("complete_task", **held, result={"outputs": {}})).json() == {"state": "succeeded"}


SAME = """SELECT r.status::text, r.attempt, r.outputs, r.exit_code, r.reason, r.error_summary, r.started_at IS NULL,
                 r.finished_at IS NULL, j.state::text, j.attempt, j.result - 'run_id', j.error_summary
            FROM kappa.all_tool_runs AS r JOIN kappa.finished_jobs AS j ON j.id = r.job_id WHERE r.id = %s"""
ARTIFACTS = "SELECT path, media_type, size, sha256 FROM kappa.tool_artifacts WHERE run_id = %s ORDER BY path"
LOGS = "SELECT attempt, stream, position, content FROM kappa.tool_logs WHERE run_id = %s ORDER BY stream, position"
SCRIPT = """
mkdir -p output/d
printf 1234 > output/d/a.txt
echo said
printf '{"contract_version": 1, "status": "succeeded", "outputs": {"n": 2},
         "artifacts": [{"path": "d/a.txt", "media_type": "text/plain"}]}' > result.json
"""


async def test_a_run_that_was_done_elsewhere_leaves_the_same_rows_as_one_that_was_done_here(
    site: Site, remote: Remote, connection: Connection
) -> None:
    client = await site.client("platform_admin")
    tool = {**TOOL, "name": "script", "argv": ["sh", "-c", SCRIPT]}
    assert (await client.post("/tools", json=tool)).status_code == 201
    elsewhere = (await client.post("/tools/script/runs", json={})).json()["id"]
    (given,) = (await remote.ask(kinds=("tool_run",))).json()["tasks"]
    held = {"task": given["task"], "token": given["token"]}
    assert (await remote.call("update_task", **held, started=True)).status == 200
    assert (await log(remote, given, 0, b"said\n")).status == 200
    stored = (await artifact(remote, given, "d/a.txt", b"1234", 4)).json()
    result = {"outputs": {"n": 2}, "exit_code": 0, "artifacts": [{**stored, "media_type": "text/plain"}]}
    assert (await remote.call("complete_task", **held, result=result)).json() == {"state": "succeeded"}

    connection.execute("UPDATE kappa.lanes SET executor = 'thread', max_slots = 2 WHERE name = 'tools'")
    here = (await client.post("/tools/script/runs", json={})).json()["id"]
    with closing(tools.install(site.engine, site.services.settings.home)):
        worker = site.engine.worker(WorkerConfig(lanes=("tools",), lead=False))
        working = asyncio.create_task(worker.run())
        done = "SELECT 1 FROM kappa.all_tool_runs WHERE id = %s AND finished_at IS NOT NULL"
        await asyncio.to_thread(eventually, lambda: connection.execute(done, [here]).fetchall())
        worker.stop()
        await working
    for query in (SAME, ARTIFACTS, LOGS):
        assert connection.execute(query, [elsewhere]).fetchall() == connection.execute(query, [here]).fetchall() != []
