"""What an agent writes down, and what the next one makes of it."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kappa.engine import JobContext
from kappa.engine.fleet import wire
from kappa.engine.fleet.journal import Entry, Journal, Undelivered, WorkDirUnusable
from kappa.engine.registry import Registry
from tests.app.patience import becomes
from tests.engine.fleet.camp import NAME, Camp
from tests.engine.fleet.sham import Sham, sham
from tests.ground import PATIENCE

BEGUN_AT = 1_000_000_000.0


@pytest.fixture
async def server() -> AsyncIterator[Sham]:
    async with sham() as made:
        yield made


@pytest.fixture
def camp(server: Sham, tmp_path: Path) -> Camp:
    made = Camp(server, tmp_path / "work", Registry())

    @made.handler("note")
    def note(ctx: JobContext, payload: str) -> str:
        return payload

    return made


def left(camp: Camp, task: wire.Task, **more: object) -> Entry:
    """A task that the server gave and an agent that is gone wrote down."""
    server = camp.server
    server.queue.remove(task)
    server.held[task.task, task.token] = task
    entry = Entry.of(server.url, NAME, task).model_copy(update=more)
    with Journal(camp.work_dir) as journal:
        journal.write(entry)
    return entry


def test_what_is_written_is_read_again_without_what_is_large(tmp_path: Path) -> None:
    tool = wire.Tool(
        run_id=5, tool="wc", version="1", image=None, argv=["wc"], limits={}, timeout_seconds=9, inputs={"a": "much"},
        input_files=["x"],
    )  # fmt: skip
    task = wire.Task(
        task=7, token=8, kind="tool_run", lane="tools", payload={"much": 1}, attempt=1, max_attempts=1,
        seconds_left=60, lease_seconds=60, checkpoint=["much"], tool=tool,
    )  # fmt: skip
    entry = Entry.of("http://server", "me", task)
    with Journal(tmp_path / "work") as journal:
        journal.write(entry)
        (path,) = (tmp_path / "work" / "tasks").iterdir()
        assert "much" not in path.read_text()
        assert path.parent.stat().st_mode & 0o077 == 0
        assert journal.read() == [entry]
        journal.remove(entry)
        assert journal.read() == []


def test_a_file_that_is_no_entry_is_left_alone(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        (tmp_path / "tasks" / "1-2.json").write_text('{"version": "of tomorrow"}')
        assert journal.read() == []
        assert (tmp_path / "tasks" / "1-2.json").exists()


def test_a_name_is_made_once(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        name = journal.name()
    with Journal(tmp_path) as journal:
        assert journal.name() == name
    wire.Beat(worker=name)


def test_two_agents_do_not_share_a_work_directory(tmp_path: Path) -> None:
    with Journal(tmp_path), pytest.raises(WorkDirUnusable, match=rf"process id {os.getpid()} has {tmp_path}"):
        Journal(tmp_path).__enter__()
    with Journal(tmp_path):
        pass


def test_the_lock_ends_with_its_process_and_is_no_childs(tmp_path: Path) -> None:
    source = f"""
import os, subprocess, sys
from pathlib import Path
from kappa.engine.fleet.journal import Journal
Journal(Path({str(tmp_path)!r})).__enter__()
child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(child.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run(
        [sys.executable, "-c", source], check=False, timeout=PATIENCE, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    try:
        with Journal(tmp_path):
            pass
    finally:
        os.kill(int(done.stdout), signal.SIGKILL)


def test_a_directory_that_can_not_be_one_is_said() -> None:
    with pytest.raises(WorkDirUnusable, match="/dev/null/work can't be used"):
        Journal(Path("/dev/null/work")).__enter__()


@pytest.mark.parametrize("begun_at", [None, BEGUN_AT])
async def test_what_can_not_be_followed_is_given_back(camp: Camp, server: Sham, begun_at: float | None) -> None:
    task = server.put("note", "anew")
    left(camp, task, begun_at=begun_at)
    async with camp.agent_at_work():
        settled = await server.settlement(task)
        await becomes(lambda: camp.entries == [], what="the journal is empty")
    assert (settled.call, settled.body["started"]) == ("release_task", begun_at is not None)
    assert settled.body["worker"] == NAME


async def test_a_result_that_was_not_delivered_is_delivered(camp: Camp, server: Sham) -> None:
    task = server.put("note", "kept")
    body = {"worker": NAME, "task": task.task, "token": task.token, "result": "kept"}
    left(camp, task, begun_at=BEGUN_AT, undelivered=Undelivered(call="complete_task", body=body))
    async with camp.agent_at_work():
        assert (await server.settlement(task)).body == body
        await becomes(lambda: camp.entries == [], what="the journal is empty")
    assert server.heard("release_task") == []


async def test_what_is_somebody_elses_by_now_is_forgotten(camp: Camp, server: Sham) -> None:
    task = server.put("note", "old")
    left(camp, task, begun_at=BEGUN_AT)
    server.held.clear()
    async with camp.agent_at_work():
        await becomes(lambda: camp.entries == [], what="the journal is empty")
    assert [one.call for one in server.said if one.body.get("task") == task.task] == []


@pytest.mark.parametrize("other", [{"server": "http://elsewhere"}, {"worker": "another"}])
async def test_of_what_another_held_nothing_is_said(camp: Camp, server: Sham, other: dict[str, str]) -> None:
    task = server.put("note", "old")
    left(camp, task, begun_at=BEGUN_AT, **other)
    async with camp.agent_at_work():
        await becomes(lambda: camp.entries == [], what="the journal is empty")
    assert (task.task, task.token) in server.held


async def test_a_task_is_on_the_disk_before_it_begins(camp: Camp, server: Sham) -> None:
    seen: list[str] = []
    gate = threading.Event()

    @camp.handler("look")
    def look(ctx: JobContext) -> None:
        seen.extend(path.read_text() for path in camp.entries)
        gate.set()

    task = server.put("look")
    async with camp.agent_at_work():
        await server.settlement(task)
    (text,) = seen
    entry = Entry.model_validate_json(text)
    assert (entry.held.task, entry.held.token, entry.worker) == (task.task, task.token, NAME)
    assert entry.begun_at is not None
