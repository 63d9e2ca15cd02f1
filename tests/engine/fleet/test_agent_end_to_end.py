"""`kg worker` and `kg up`, two processes with nothing between them but HTTP; either is killed on the way."""

import base64
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kappa.engine.tools import Identity
from kappa.engine.tools.run import RunDirectory
from tests.app.conftest import Up
from tests.engine.fleet.gates import PLACE
from tests.engine.tools.shop import WAITS, shell
from tests.ground import PATIENCE, eventually, lacking, require_program

ROOT = Path(__file__).parents[3]
BESIDES = [path for path in [os.environ.get("PYTHONPATH")] if path]
HANDLERS = {"KAPPA_HANDLERS": PLACE, "PYTHONPATH": os.pathsep.join([str(ROOT), *BESIDES])}
Connection = psycopg.Connection[tuple[Any, ...]]
Start = Callable[..., Up]


class Work:
    """`kg worker` in a process and a home of its own."""

    def __init__(self, up: Up, home: Path, *args: str, within: Sequence[str] = ()) -> None:
        self.home = home
        clean = {name: value for name, value in os.environ.items() if not name.startswith("KAPPA_")}
        env = {**clean, **HANDLERS, "KAPPA_HOME": str(home), "KAPPA_TOKEN": up.token, "COLUMNS": "200"}
        self.log = home.with_name(f"{home.name}-{os.urandom(3).hex()}.log")
        with self.log.open("wb") as said:
            self.process = subprocess.Popen(
                [*within, sys.executable, "-m", "kappa.app.cli.entry", "worker", "--server", up.url, *args],
                env=env, stdout=said, stderr=subprocess.STDOUT,
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self.log.read_text()

    @property
    def entries(self) -> list[Path]:
        return sorted((self.home / "worker" / "tasks").glob("*.json"))

    def run(self, job: int, attempt: int = 1) -> RunDirectory:
        return RunDirectory(self.home / "worker" / "runs", Identity(job, attempt))

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.fixture
def start_server(url: str, home: Path, connection: Connection, port: int) -> Iterator[Start]:
    """Starts `kg up` whose tool runs and gates are the fleet's, always at the same address."""
    connection.execute("UPDATE kappa.lanes SET executor = 'fleet', lease_ttl = '30 s' WHERE 'tool_run' = ANY (kinds)")
    begun: list[Up] = []

    def start(*args: str) -> Up:
        begun.append(Up(url, home, "--port", str(port), *args, env=HANDLERS))
        return begun[-1]

    yield start
    for one in begun:
        one.kill()


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[Callable[..., Work]]:
    begun: list[Work] = []

    def start(up: Up, *args: str, within: Sequence[str] = ()) -> Work:
        begun.append(Work(up, tmp_path / "far", *args, within=within))
        return begun[-1]

    yield start
    for one in begun:
        one.kill()


Hire = Callable[..., Work]


class Desk:
    """Somebody who asks for runs and looks at what became of them, whether or not the server is there."""

    def __init__(self, up: Up, connection: Connection) -> None:
        self._up = up
        self._connection = connection

    def ask(self, argv: list[str], *, attempts: int = 1, **files: bytes) -> tuple[int, int]:
        """A run of a new tool: its id and its job's."""
        with self._up.client() as client:
            name = f"tool-{os.urandom(3).hex()}"
            made = client.post("/tools", json={"name": name, "version": "1", "argv": argv, "timeout": 300})
            assert made.is_success, made.text
            given = {file: base64.b64encode(content).decode() for file, content in files.items()}
            asked = {"inputs": {"say": "so"}, "files": given, "max_attempts": attempts}
            run = client.post(f"/tools/{name}/runs", json=asked)
            assert run.is_success, run.text
            return run.json()["id"], run.json()["job_id"]

    def state(self, job: int) -> str:
        row = self._connection.execute("SELECT state::text FROM kappa.all_jobs WHERE id = %s", [job]).fetchone()
        assert row is not None
        return row[0]

    def ends(self, job: int, state: str, work: Work) -> None:
        eventually(
            lambda: self.state(job) in ("succeeded", "failed", "timed_out", "cancelled"), what=f"it ends: {work.said}"
        )
        assert self.state(job) == state, work.said

    def run(self, run: int) -> dict[str, Any]:
        with self._up.client() as client:
            return client.get(f"/tool-runs/{run}").json()

    def logs(self, run: int) -> tuple[str, str]:
        with self._up.client() as client:
            said = client.get(f"/tool-runs/{run}/logs").json()
        return said["stdout"], said["stderr"]

    def artifact(self, run: int, path: str) -> bytes:
        with self._up.client() as client:
            return client.get(f"/tool-runs/{run}/artifacts/{path}").content

    def put_gate(self, gate: Path) -> int:
        with self._up.client() as client:
            made = client.post("/jobs", json={"kind": "far_gate", "payload": str(gate)})
        assert made.is_success, made.text
        return made.json()["id"]

    def begins(self, job: int, work: Work) -> None:
        """Until the handler has said its first word."""
        query = "SELECT checkpoint = '\"begun\"' FROM kappa.jobs WHERE id = %s"
        eventually(lambda: self._connection.execute(query, [job]).fetchone() == (True,), what=f"it begins: {work.said}")


@pytest.fixture
def up(start_server: Start) -> Up:
    return start_server()


@pytest.fixture
def desk(up: Up, connection: Connection) -> Desk:
    return Desk(up, connection)


READS = """
echo "reading"
echo "nothing wrong" >&2
wc -c <input/notes.txt >output/size
printf '{"contract_version": 1, "status": "succeeded", "outputs": {"said": %s},
         "artifacts": [{"path": "size", "media_type": "text/plain"}]}' "$(grep -c so request.json)" >result.json
"""


def test_a_tool_run_gets_its_inputs_and_leaves_everything_with_the_server(
    up: Up, desk: Desk, start_worker: Hire
) -> None:
    notes = os.urandom(300_000)
    run, job = desk.ask(shell(READS), **{"notes.txt": notes})
    work = start_worker(up)
    desk.ends(job, "succeeded", work)
    shown = desk.run(run)
    assert (shown["status"], shown["exit_code"], shown["outputs"]) == ("succeeded", 0, {"said": 1})
    assert desk.logs(run) == ("reading\n", "nothing wrong\n")
    assert desk.artifact(run, "size").strip() == b"300000"
    eventually(lambda: not work.entries and not work.run(job).private.exists(), what="nothing is left here")
    assert up.token not in work.said
    assert work.stop() == 0, work.said
    assert "Traceback" not in work.said


def test_a_worker_offers_only_what_it_can_do_without_a_database(
    up: Up, start_worker: Hire, connection: Connection
) -> None:
    connection.execute("UPDATE kappa.lanes SET executor = 'fleet'")
    work = start_worker(up)
    with up.client() as client:
        (seen,) = eventually(
            lambda: client.get("/admin/fleet/workers").json()["items"], what=f"it is seen: {work.said}"
        )
        assert seen["kinds"] == ["far_gate", "self_test", "tool_run"]
        text = {"ontology": "tales", "text": "A lease ends.", "auto_approve": True}
        left_alone = client.post("/ingest", json=text).json()["job"]
        job = client.post("/jobs", json={"kind": "self_test"}).json()["id"]
        eventually(lambda: client.get(f"/jobs/{job}").json()["state"] == "succeeded", what=f"it works: {work.said}")
        assert client.get(f"/jobs/{left_alone}").json()["state"] == "queued"


@pytest.mark.parametrize(
    ("source", "summary"),
    [
        ("exit 3", "the tool exited with code 3, and the tool left no result.json"),
        ("exec sleep 1000", "the time-out was reached"),
        ("echo nonsense >result.json", "result.json is not valid"),
    ],
)
def test_a_run_that_fails_says_why(
    up: Up, desk: Desk, start_worker: Hire, connection: Connection, source: str, summary: str
) -> None:
    run, job = desk.ask(shell(source))
    timed_out = summary == "the time-out was reached"
    if timed_out:
        connection.execute("UPDATE kappa.jobs SET timeout = '1 s' WHERE id = %s", [job])
    work = start_worker(up)
    desk.ends(job, "timed_out" if timed_out else "failed", work)
    assert summary in desk.run(run)["error_summary"]
    eventually(lambda: not work.run(job).private.exists(), what="nothing is left here")


def test_a_run_outlives_its_agent_and_is_followed_by_the_next(up: Up, desk: Desk, start_worker: Hire) -> None:
    run, job = desk.ask(shell(WAITS))
    first = start_worker(up)
    eventually(lambda: all(desk.logs(run)), what=f"it has begun: {first.said}")
    token = desk.logs(run)[0]
    first.kill()
    second = start_worker(up)
    eventually(lambda: "it is followed to its end" in second.said, what=second.said)
    (second.run(job).path / "go").touch()
    desk.ends(job, "succeeded", second)
    shown = desk.run(run)
    assert (f"token {shown['outputs']['token']}\n", shown["attempt"]) == (token, 1)
    assert desk.logs(run)[0] == token + "went on\n"
    assert len(desk.artifact(run, "zeros")) == 3_000_000
    eventually(lambda: not second.entries, what="the journal is empty")


@pytest.mark.parametrize("crashed", [False, True], ids=["alive", "crashed"])
def test_a_run_whose_lease_is_gone_is_stopped(
    up: Up, desk: Desk, start_worker: Hire, connection: Connection, crashed: bool
) -> None:
    run, job = desk.ask(shell(WAITS))
    work = start_worker(up)
    eventually(lambda: desk.logs(run)[1], what=f"it has begun: {work.said}")
    if crashed:
        work.kill()
    connection.execute(
        """UPDATE kappa.jobs SET lease_token = nextval('kappa.lease_tokens'), lease_until = now() + interval '1 hour'
            WHERE id = %s""",
        [job],
    )
    if crashed:
        work = start_worker(up)
    eventually(lambda: not work.run(job).private.exists() and not work.entries, what="nothing is left here")
    assert desk.state(job) == "running", "it is another's"
    assert work.stop() == 0, work.said


@dataclass
class Elsewhere:
    """A network of its own, and one cable to it."""

    near: str
    far: str
    within: list[str]


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    ip = require_program("ip")
    number = int.from_bytes(os.urandom(2)) % (1 << 13)
    name, subnet = f"kappa{number}", f"10.{200 + (number >> 8)}.{number & 255}"

    def run(*words: str, within: Sequence[str] = ()) -> bool:
        return subprocess.run([*within, ip, *words], capture_output=True, check=False).returncode == 0

    if not run("netns", "add", name):
        lacking("the right to make a network namespace")
    made = Elsewhere(f"{subnet}.1", f"{subnet}.2", [ip, "netns", "exec", name])
    try:
        assert run("link", "add", f"{name}n", "type", "veth", "peer", "name", f"{name}f", "netns", name)
        assert run("addr", "add", f"{made.near}/30", "dev", f"{name}n")
        assert run("link", "set", f"{name}n", "up")
        assert run("addr", "add", f"{made.far}/30", "dev", f"{name}f", within=made.within)
        assert run("link", "set", f"{name}f", "up", within=made.within)
        yield made
    finally:
        run("link", "del", f"{name}n")
        run("netns", "del", name)


def test_a_worker_in_another_network_does_tool_runs_killed_and_restarted_on_the_way(
    start_server: Start, start_worker: Hire, elsewhere: Elsewhere, connection: Connection
) -> None:
    up = start_server("--host", elsewhere.near)
    desk = Desk(up, connection)
    run, job = desk.ask(shell(WAITS))
    first = start_worker(up, within=elsewhere.within)
    eventually(lambda: desk.logs(run)[1] == "so far so good\n", what=f"it has begun: {first.said}")
    first.kill()
    second = start_worker(up, within=elsewhere.within)
    eventually(lambda: "it is followed to its end" in second.said, what=second.said)
    (second.run(job).path / "go").touch()
    desk.ends(job, "succeeded", second)
    assert (desk.run(run)["attempt"], len(desk.artifact(run, "zeros"))) == (1, 3_000_000)
    assert second.stop() == 0, second.said


def test_a_handlers_task_is_given_back_after_a_crash(
    up: Up, desk: Desk, start_worker: Hire, tmp_path: Path, connection: Connection
) -> None:
    gate = tmp_path / "gate"
    job = desk.put_gate(gate)
    first = start_worker(up)
    desk.begins(job, first)
    first.kill()
    gate.touch()
    second = start_worker(up)
    desk.ends(job, "succeeded", second)
    row = connection.execute("SELECT attempt FROM kappa.all_jobs WHERE id = %s", [job]).fetchone()
    assert row == (2,)


def test_a_server_that_is_killed_gets_the_result_when_it_is_back(
    up: Up, desk: Desk, start_server: Start, start_worker: Hire, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    work = start_worker(up, "--slots", "2")
    run, tool_job = desk.ask(shell(WAITS))
    job = desk.put_gate(gate)
    desk.begins(job, work)
    eventually(lambda: desk.logs(run)[1], what=f"the tool has begun: {work.said}")
    up.kill()
    gate.touch()
    (work.run(tool_job).path / "go").touch()
    eventually(lambda: any('undelivered":{' in one.read_text() for one in work.entries), what="the result is kept")
    start_server()
    desk.ends(job, "succeeded", work)
    desk.ends(tool_job, "succeeded", work)
    assert desk.run(run)["attempt"] == 1
    eventually(lambda: "the server answers again" in work.said, what=work.said)
    assert work.stop() == 0, work.said


def test_a_cancelled_run_is_stopped_with_all_that_it_started(
    up: Up, desk: Desk, start_worker: Hire, connection: Connection
) -> None:
    connection.execute("UPDATE kappa.lanes SET lease_ttl = '12 s' WHERE 'tool_run' = ANY (kinds)")
    run, job = desk.ask(shell("echo $$; sleep 1000 & sleep 1000"))
    work = start_worker(up)
    eventually(lambda: desk.logs(run)[0], what=f"it has begun: {work.said}")
    with up.client() as client:
        assert client.post(f"/tool-runs/{run}/cancel", json={"reason": "enough"}).is_success
    desk.ends(job, "cancelled", work)
    assert desk.run(run)["reason"] == "enough"
    eventually(lambda: not work.run(job).private.exists(), what="nothing is left here")


def test_a_signal_drains_and_a_second_one_ends_it_at_once(
    up: Up, desk: Desk, start_worker: Hire, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    job = desk.put_gate(gate)
    first = start_worker(up)
    desk.begins(job, first)
    first.process.send_signal(signal.SIGTERM)
    eventually(lambda: "draining: 1 tasks have" in first.said, what=first.said)
    gate.touch()
    assert first.process.wait(PATIENCE) == 0, first.said
    assert desk.state(job) == "succeeded"
    other = desk.put_gate(tmp_path / "never")
    second = start_worker(up)
    desk.begins(other, second)
    for _ in range(2):
        second.process.send_signal(signal.SIGTERM)
        eventually(lambda: "draining: 1 tasks have" in second.said, what=second.said)
    assert second.process.wait(PATIENCE) == -signal.SIGTERM
    assert len(second.entries) == 1


def test_what_does_not_end_is_stopped_and_given_back(up: Up, desk: Desk, start_worker: Hire, tmp_path: Path) -> None:
    run, tool_job = desk.ask(shell(WAITS), attempts=3)
    job = desk.put_gate(tmp_path / "never")
    work = start_worker(up, "--slots", "2", "--grace", "0")
    desk.begins(job, work)
    eventually(lambda: desk.logs(run)[1], what=f"the tool has begun: {work.said}")
    assert work.stop() == 0, work.said
    assert {desk.state(job), desk.state(tool_job)} <= {"scheduled", "queued"}
    assert not work.entries
    assert not work.run(tool_job).private.exists()
    assert "Traceback" not in work.said


def test_a_token_that_is_none_and_a_second_worker_in_the_same_place_are_refused(
    up: Up, desk: Desk, start_worker: Hire
) -> None:
    stranger = start_worker(up, "--token", "kappa_" + "x" * 43)
    assert stranger.process.wait(PATIENCE) == 4, stranger.said
    assert "the token is unknown, expired or revoked" in stranger.said
    first = start_worker(up)
    eventually(lambda: "Worker" in first.said, what=first.said)
    second = start_worker(up)
    assert second.process.wait(PATIENCE) == 1, second.said
    assert f"a worker with process id {first.process.pid} has" in second.said
    assert first.stop() == 0, first.said
