"""The benchmark of the fleet runs, and what it judges by finds planted faults."""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from benchmarks.fleet_parts.caller import Timers, Worker
from benchmarks.fleet_parts.ledger import End, Entry, Ledger, compare
from benchmarks.fleet_parts.load import Bottleneck, Load
from benchmarks.fleet_parts.records import Records, summary
from benchmarks.fleet_parts.scenarios import OURS, Bench, timers
from benchmarks.fleet_parts.simulator import UNANSWERED, Simulator
from tests.engine.fleet.floor import until

ROOT = Path(__file__).parents[1]
LEDGER_BARS = {
    "steady": ["differences between ledger and tables"],
    "burst": ["burst: acknowledged and not stored once", "burst: workers that got no task"],
    "kills": [
        "kills: acknowledged and not stored once",
        "SIGTERM of the server: workers that were not heard again",
        "SIGKILL of the server: workers that were not heard again",
        "SIGKILL of PostgreSQL: workers that were not heard again",
    ],
}
"""Of the scenarios that a tiny run does; bars that depend on how quick this machine is are not among them."""
TIMERS = Timers(**timers(beat=100))
JOB = "INSERT INTO kappa.jobs (id, lane, kind, state, claims, lease_owner, lease_token, lease_until, progress_done)"
DONE = (
    "INSERT INTO kappa.finished_jobs (id, lane, kind, state, priority, payload, created_at, max_attempts, attempt,"
    " finished_at, keep_until, result)"
)


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Some scenarios with a few workers, in one run. What takes more than some seconds at any size is left out."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("a core for the server and one for the simulator")
    path = tmp_path_factory.mktemp("bench") / "fleet.json"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("KAPPA_")}
    running = subprocess.Popen(
        [
            sys.executable, "-m", "benchmarks.fleet", "--quick", "--workers", "8", "--window", "2",
            "--minutes", "0.01", "--beat", "0.5", "--dense-beat", "0.5", "--compress", "300", "--json", str(path),
            *(part for name in ("throughput", *LEDGER_BARS) for part in ("--scenario", name)),
        ],
        cwd=ROOT, env=clean, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        text, _ = running.communicate(timeout=240)
    except subprocess.TimeoutExpired:
        running.terminate()  # not killed: it ends the servers that it started
        text, _ = running.communicate(timeout=60)
    assert running.returncode == 0, text
    written = json.loads(path.read_text())
    assert set(written) == {"bars", "figures"}
    assert all(set(bar) == {"value", "bar", "ok"} for bar in written["bars"].values())
    return written


@pytest.mark.timeout(330)  # seconds of work, but of five processes that may have to share their cores with many others
def test_a_tiny_run_writes_bars_and_figures(tiny_run: dict[str, Any]) -> None:
    for name in ("beats/s at 8 connections / plain design", "database statements per beat under load"):
        assert name in tiny_run["bars"]
    assert tiny_run["figures"]["throughput: kappa, beats/s"] > 0
    assert tiny_run["figures"]["throughput: plain, beats/s"] > 0


@pytest.mark.timeout(330)
@pytest.mark.parametrize("scenario", LEDGER_BARS)
def test_a_tiny_scenario_judges_what_was_acknowledged_and_all_of_it_is_stored(
    tiny_run: dict[str, Any], scenario: str
) -> None:
    assert tiny_run["figures"][f"{scenario}: kappa, settlements and updates acknowledged"] > 0
    for name in LEDGER_BARS[scenario]:
        assert tiny_run["bars"][name]["ok"], (name, tiny_run)


def entry(task: int, end: End = End.HELD, **more: Any) -> Entry:
    return Entry(task, 7, "w1", f"mark {task}", 0.0, end=end, **more)


def said(*entries: Entry) -> dict[str, Any]:
    ledger = Ledger()
    ledger.entries = {(one.task, one.token): one for one in entries}
    return ledger.dump()


@pytest.fixture
def tables(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """Tasks 1 and 2 are under way, 3 succeeded, 4 went back into the queue."""
    held = "(%s, 'x', 'x', 'running', 1, 'fleet:1:w1', 7, now(), 5)"
    for task in (1, 2):
        connection.execute(f"{JOB} VALUES {held}", [task])
    connection.execute(f"{JOB} VALUES (4, 'x', 'x', 'queued', 1, NULL, NULL, NULL, NULL)")
    connection.execute(
        f"{DONE} VALUES (3, 'x', 'x', 'succeeded', 0, 'null', now(), 1, 1, now(), now(), %s)",
        [json.dumps({"mark": "mark 3"})],
    )


@pytest.mark.usefixtures("tables")
def test_a_ledger_that_fits_has_no_fault(url: str) -> None:
    found = compare(
        url,
        said(entry(1, sent=5.0, acknowledged=5.0), entry(2), entry(3, End.SETTLED), entry(4, End.DEAD)),
    )
    assert not found.faults
    assert (found.tasks, found.settled, found.updated) == (4, 1, 1)


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        (entry(1, sent=9.0, acknowledged=6.0), "update not stored"),
        (entry(1, sent=4.0, acknowledged=4.0), "update not stored"),
        (entry(1, End.SETTLED), "settlement not stored"),
        (entry(3, End.HELD), "false death"),
        (entry(4, End.HELD), "false death"),
        (entry(1, End.LOST), "false death"),
    ],
)
def test_a_planted_difference_is_found(url: str, wrong: Entry, fault: str) -> None:
    right = {1: entry(1), 2: entry(2), 3: entry(3, End.SETTLED), 4: entry(4, End.DEAD)}
    found = compare(url, said(*{**right, wrong.task: wrong}.values()))
    assert set(found.faults) == {fault}


@pytest.mark.usefixtures("tables")
def test_a_task_that_nobody_was_told_of_is_found(url: str) -> None:
    found = compare(url, said(entry(1), entry(3, End.SETTLED), entry(4, End.DEAD)))
    assert set(found.faults) == {"orphan"}


def test_a_word_that_was_accepted_after_another_had_the_task_is_found() -> None:
    ledger = Ledger()
    first = ledger.assigned(1, 7, "w1", now=1.0)
    ledger.heard(first, sent_at=2.0)
    ledger.assigned(1, 8, "w2", now=3.0)
    ledger.heard(first, sent_at=2.5)
    assert ledger.two_owners == []
    ledger.heard(first, sent_at=4.0)
    assert len(ledger.two_owners) == 1


def test_a_simulator_that_was_the_bottleneck_reports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Load(None)  # type: ignore[arg-type]
    monkeypatch.setattr(load, "tell", lambda *_, **__: {"cpu": 0.71})
    with pytest.raises(Bottleneck, match="71%"):
        load.read(0, 1)


async def test_only_who_holds_a_task_is_counted_and_who_exchanges_one_is_not_without() -> None:
    fleet = Simulator(TIMERS, ["x"], 0)
    fleet.workers = [Worker(name, "127.0.0.1", "token", 1) for name in ("holds", "exchanges", "asks")]
    for worker in fleet.workers:
        worker.alive = True
        worker.tasks[1] = entry(1)
    begun = time.monotonic()
    fleet.workers[2].tasks.clear()
    fleet.workers[2].asking = True
    fleet.count_held()
    fleet.workers[1].tasks.clear()
    fleet.count_held()
    read = await fleet.read(begun, time.monotonic(), 0, "beat")
    assert read["held"] == 2
    fleet.workers[1].tasks[2] = entry(2)
    counted = time.monotonic()
    fleet.count_held()
    fleet.workers[2].tasks[3] = entry(3)
    fleet.count_held()
    fleet.count_held()
    read = await fleet.read(begun, time.monotonic(), 0, "beat")
    assert 0 < read["held_seconds"] <= time.monotonic() - counted, "only since all of them had one"


@pytest.mark.parametrize("answer", [b"HTTP/1.1 503 \r\nretry-after: 0.01\r\ncontent-length: 0\r\n\r\n", b""])
async def test_a_look_that_is_put_off_or_skipped_is_not_answered(answer: bytes) -> None:
    looks = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal looks
        while await reader.readuntil(b"\r\n\r\n"):
            looks += 1
            writer.write(answer if looks <= 3 or not answer else b"HTTP/1.1 200 \r\ncontent-length: 0\r\n\r\n")

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        fleet = Simulator(TIMERS, ["x"], 10)
        await fleet.watch(server.sockets[0].getsockname()[1], "token", 1, every=0.001)
        await until(lambda: fleet.records.counts[UNANSWERED] >= 2)
        await fleet.hang_up()


@pytest.mark.parametrize("left", [0, 3])
def test_workers_without_a_task_fail_a_bar(monkeypatch: pytest.MonkeyPatch, left: int) -> None:
    load = Load(None)  # type: ignore[arg-type]
    monkeypatch.setattr(load, "tell", lambda *_, **__: {"unserved": left})
    bench = Bench(None, load, None)  # type: ignore[arg-type]
    bench.await_served("storm", OURS, patience=1)
    assert bench.report.bars["storm: workers that got no task"].ok is not bool(left)


def test_a_window_counts_what_was_due_in_it() -> None:
    records = Records()
    for due in range(100):
        records.add("beat", due, due + 0.001 * due)
    assert summary(records.series["beat"].between(10, 20)) == pytest.approx(
        {"count": 10, "p50": 15, "p99": 19, "p999": 19, "max": 19}
    )
    begun = time.monotonic()
    records.sample()
    while time.monotonic() < begun + 0.05:
        pass
    assert records.cpu(begun, time.monotonic()) > 0
