"""`kg up` as a process: it drains, it is killed, it stands by, it has children."""

import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import psutil
import psycopg
import pytest

from kappa.app import serve, wiring
from kappa.app.settings import BadSetting, Settings
from kappa.pg import Database
from kappa.pg.errors import PgError
from tests.app import gated
from tests.app.conftest import Up
from tests.ground import PATIENCE, eventually, kg

Start = Callable[..., Up]
Connection = psycopg.Connection[tuple[Any, ...]]
GATED = {"KAPPA_HANDLERS": gated.PLACE}


def status(up: Up) -> dict[str, Any]:
    with up.client() as client:
        return client.get("/admin/workers/status").json()


def put_gate(up: Up, gate: Path) -> int:
    """A job that runs until the gate is there, when it runs."""
    with up.client() as client:
        made = client.post("/jobs", json={"kind": "gate", "payload": str(gate), "max_attempts": 3})
        assert made.status_code == 201, made.text
        job = made.json()["id"]
        eventually(lambda: client.get(f"/jobs/{job}").json()["state"] == "running", what="the job runs")
        return job


def ended_state(connection: Connection, job: int) -> str | None:
    row = connection.execute("SELECT state::text FROM kappa.finished_jobs WHERE id = %s", [job]).fetchone()
    return row[0] if row else None


def test_a_server_that_drains_says_so_and_lets_what_runs_finish(
    start_up: Start, connection: Connection, tmp_path: Path
) -> None:
    up, gate = start_up(env=GATED), tmp_path / "gate"
    headers = {"Authorization": f"Bearer {up.token}"}
    job = put_gate(up, gate)
    with up.client() as before, before.stream("GET", f"/jobs/{job}/events") as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: job"
        up.process.send_signal(signal.SIGTERM)

        def turned_away() -> httpx2.Response | None:
            # A new connection each time: the listener must be open.
            answer = httpx2.get(f"{up.url}/jobs", headers=headers, timeout=PATIENCE)
            return answer if answer.status_code == 503 else None

        refused = eventually(turned_away, what="new work is turned away")
        assert (refused.json()["code"], int(refused.headers["retry-after"]) > 0) == ("draining", True)
        assert (
            httpx2.post(f"{up.url}/jobs", headers=headers, json={"kind": "self_test"}, timeout=PATIENCE).status_code
            == 503
        )
        assert httpx2.get(f"{up.url}/healthz", timeout=PATIENCE).status_code == 200
        assert httpx2.get(f"{up.url}/readyz", timeout=PATIENCE).status_code == 503
        assert "event: draining" in list(lines)
        assert up.process.poll() is None, "a job still runs"
        gate.touch()
    assert up.process.wait(PATIENCE) == 0, up.said
    assert ended_state(connection, job) == "succeeded"
    assert "Traceback" not in up.said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once_and_harms_nothing(
    start_up: Start, connection: Connection, tmp_path: Path, number: signal.Signals
) -> None:
    first, gate = start_up(env=GATED), tmp_path / "gate"
    job = put_gate(first, gate)
    first.process.send_signal(number)
    eventually(lambda: httpx2.get(f"{first.url}/readyz", timeout=PATIENCE).status_code == 503, what="it drains")
    first.process.send_signal(number)
    assert first.process.wait(PATIENCE) == -number
    second = start_up(env=GATED)
    gate.touch()
    eventually(lambda: ended_state(connection, job) == "succeeded", what=f"another finishes it: {second.said}")
    assert second.stop() == 0, second.said


def test_a_standby_takes_over_from_one_that_was_killed(start_up: Start, connection: Connection, tmp_path: Path) -> None:
    first, gate = start_up(env=GATED), tmp_path / "gate"
    eventually(lambda: status(first)["leader"], what="the first leads")
    job = put_gate(first, gate)
    second = start_up(env=GATED)
    both = eventually(lambda: len((now := status(second))["workers"]) == 2 and now, what="both are seen")
    leaders = [worker["pid"] for worker in both["workers"] if worker["leads"]]
    assert leaders == [first.process.pid]
    first.kill()
    gate.touch()
    eventually(
        lambda: [w["pid"] for w in status(second)["workers"] if w["leads"]][-1:] == [second.process.pid],
        what="the second leads",
    )
    eventually(lambda: ended_state(connection, job) == "succeeded", what="the job of the dead is finished")
    assert second.stop() == 0, second.said


def test_an_api_alone_does_no_jobs_and_no_lanes_still_leads(start_up: Start) -> None:
    api = start_up("--api-only")
    with api.client() as client:
        later = client.post("/jobs", json={"kind": "self_test", "delay": 0.01}).json()["id"]
        assert (status(api)["leader"], status(api)["workers"]) == (None, [])
        leading = start_up("--no-lanes")
        eventually(lambda: client.get(f"/jobs/{later}").json()["state"] == "queued", what="the leader promotes")
        (worker,) = status(api)["workers"]
        assert (worker["pid"], worker["leads"], worker["lanes"]) == (leading.process.pid, True, [])
        assert client.get(f"/jobs/{later}").json()["state"] == "queued"
    assert (leading.stop(), api.stop()) == (0, 0), api.said + leading.said


def workers_of(up: Up) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for child in psutil.Process(up.process.pid).children():
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            if "--with-parent" in child.cmdline():
                found.append(child)
    return found


def has_ended(process: psutil.Process) -> bool:
    """Also when nobody has asked for its exit code yet, as where the first process of a container never does."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_worker_process_that_is_killed_is_replaced_and_all_stop_in_peace(start_up: Start) -> None:
    up = start_up("--workers", "2")
    eventually(lambda: len(status(up)["workers"]) == 2, what="two workers are seen")
    first, _ = workers_of(up)
    first.kill()

    def replaced() -> bool:
        return len(now := workers_of(up)) == 2 and first.pid not in {one.pid for one in now}

    eventually(replaced, what="another one is there")
    with up.client() as client:
        job = client.post("/jobs", json={"kind": "self_test"}).json()["id"]
        eventually(lambda: client.get(f"/jobs/{job}").json()["state"] == "succeeded", what="a job is done")
    children = workers_of(up)
    eventually(
        lambda: {one.pid for one in children} <= {w["pid"] for w in status(up)["workers"]}, what="both have begun"
    )
    assert up.stop() == 0, up.said
    assert all(map(has_ended, children))
    assert "Fatal Python error" not in up.said, up.said


def test_worker_processes_end_when_their_parent_is_killed(start_up: Start) -> None:
    up = start_up("--workers", "2")
    eventually(lambda: len(status(up)["workers"]) == 2, what="two workers are seen")
    children = workers_of(up)
    up.kill()
    try:
        eventually(lambda: all(map(has_ended, children)), what="the workers end")
    finally:
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
    assert "Fatal Python error" not in up.said, up.said


def test_an_embedded_server_that_is_killed_comes_back_while_its_database_is_open(home: Path) -> None:
    settings = Settings(home=home)
    with wiring.open_database(settings, "a test", lambda _: None) as database:
        killed = wiring.embedded_server(settings, lambda _: None).status().pid
        assert killed is not None
        psutil.Process(killed).kill()

        def answers() -> bool:
            with suppress(psycopg.OperationalError, PgError), database.connect() as connection:
                return connection.execute("SELECT 42").fetchone() == (42,)
            return False

        eventually(lambda: not psutil.pid_exists(killed) or psutil.Process(killed).status() == psutil.STATUS_ZOMBIE)
        eventually(answers, what="the server answers at its address")


def test_a_port_that_is_taken_is_said(url: str, home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = kg("up", "--port", port, home=home, env={"KAPPA_DATABASE_URL": url})
    assert said.returncode == 1
    assert f"can't listen on 127.0.0.1:{port}" in said.stderr
    assert "Traceback" not in said.stderr


def test_what_jobs_get_of_a_worker_follows_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    def given() -> tuple[int, timedelta]:
        config = serve.worker_config(Settings(), serve.Options(), beside_api=True)
        return config.job_threads, config.grace

    assert given() == (32, timedelta(seconds=30))
    monkeypatch.setenv("KAPPA_MAX_CONCURRENT_THREADS", "5")
    monkeypatch.setenv("KAPPA_GRACE", "7")
    assert given() == (5, timedelta(seconds=7))


def test_a_port_that_nobody_asked_for_may_be_the_next_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said: list[str] = []
        with serve.listener("127.0.0.1", port, said.append, any_port=True) as listening:
            assert listening.getsockname()[1] != port
            assert said == [f"port {port} is taken; this server has {listening.getsockname()[1]}"]
        with pytest.raises(serve.CannotListen), serve.listener("127.0.0.1", port, said.append, any_port=False):
            pass


@pytest.mark.parametrize("options", [[], ["--workers", "1"]], ids=["one process", "a worker process"])
def test_a_server_ends_in_order_although_a_handler_is_still_within_a_library(
    start_up: Callable[..., Up], options: list[str]
) -> None:
    up = start_up(*options, env={"KAPPA_HANDLERS": gated.PLACE, "KAPPA_GRACE": "0.2"})
    with up.client() as client:
        job = client.post("/jobs", json={"kind": "in_a_library"}).raise_for_status().json()["id"]
        eventually(lambda: client.get(f"/jobs/{job}").json()["progress"], what="it is in the library")
    assert up.stop() == 0
    assert "ended with" not in up.said


@pytest.mark.parametrize("options", [["--no-api", "--workers", "2"], ["--api-only", "--workers", "2"], ["--port", "x"]])
def test_options_that_make_no_sense_together_are_refused(home: Path, options: list[str]) -> None:
    assert kg("up", *options, home=home).returncode == 2


@pytest.mark.parametrize(
    "place", ["nowhere.to_be_found:declare", "tests.app.gated:nothing", "tests.app.gated:NO_FUNCTION", "no_colon", ":x"]
)
def test_handlers_that_are_not_there_are_said(url: str, place: str) -> None:
    with pytest.raises(BadSetting, match="KAPPA_HANDLERS"):
        wiring.build_engine(Settings(handlers=place), Database(url))


def test_handlers_that_are_not_there_stop_the_start(url: str, home: Path) -> None:
    env = {"KAPPA_DATABASE_URL": url, "KAPPA_HANDLERS": "nowhere.to_be_found:declare", "KAPPA_PORT": "0"}
    said = kg("up", home=home, env=env)
    assert said.returncode == 1
    assert "KAPPA_HANDLERS" in said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize(
    ("name", "value"), [("KAPPA_PROVIDER", "opnai"), ("KAPPA_EMBEDDER", "opnai"), ("KAPPA_CHUNK_MOST", "5")]
)
def test_a_model_or_a_chunk_that_there_cannot_be_stops_the_start(url: str, home: Path, name: str, value: str) -> None:
    said = kg("up", home=home, env={"KAPPA_DATABASE_URL": url, name: value, "KAPPA_PORT": "0"})
    assert said.returncode == 1
    assert said.stderr.startswith(f"kg: {name[:12]}")
    assert said.stderr.count("\n") == 1


def test_the_operators_token_is_kept_and_only_for_its_owner(start_up: Start, connection: Connection) -> None:
    first = start_up("--api-only")
    token = first.token
    file = first.home / "operator.token"
    assert file.stat().st_mode & 0o077 == 0
    assert token not in first.said
    assert first.stop() == 0
    second = start_up("--api-only")
    assert second.token == token
    with second.client() as client:
        assert client.get("/me").json()["name"] == "operator"
    row = connection.execute("SELECT count(*) FROM kappa.tokens").fetchone()
    assert row == (1,)
