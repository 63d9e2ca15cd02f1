"""Tools as people use them: `kg tool` and the API, with the queue and without it."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import psycopg
import pytest

from tests import ground
from tests.app.conftest import Up
from tests.app.person import Person, hired, served
from tests.conftest import Server
from tests.ground import eventually, path_without

ROOT = Path(__file__).parents[2]
COUNTS = ("/usr/bin/python3", "-c", (ROOT / "examples" / "word_count.py").read_text())
GOOD = 'echo "{\\"contract_version\\": 1, \\"status\\": \\"succeeded\\"}" > result.json'


@pytest.fixture(scope="module")
def shared(server: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with served(server, template, tmp_path_factory) as up:
        yield up


@pytest.fixture
def kg(shared: Up) -> Person:
    return Person(shared.home)


def add(kg: Person, name: str, *argv: str) -> None:
    done = kg("tool", "add", name, "--json", "--", *argv)
    assert json.loads(done.stdout)["argv"] == list(argv), done.stderr


def test_a_tool_is_registered_run_and_what_it_made_is_taken(kg: Person, tmp_path: Path) -> None:
    add(kg, "word-count", *COUNTS)
    assert [tool["name"] for tool in kg.says("tool", "list")] == ["word-count"]
    notes = tmp_path / "notes.txt"
    notes.write_text("to be or not to be")
    ran = kg("tool", "run", "word-count", "--input", notes, "--inputs", '{"most": 1}', "--wait")
    assert (ran.returncode, ran.stdout.splitlines()[0]) == (0, "notes.txt: 6 words"), ran.stderr
    assert '"words":6' in ran.stdout.replace(" ", "")
    (run,) = kg.says("tool", "runs", "--tool", "word-count")["items"]
    assert (run["status"], run["exit_code"], run["requested_by"]) == ("succeeded", 0, "operator")
    assert kg("tool", "logs", run["id"]).stdout == "notes.txt: 6 words\n"
    (artifact,) = kg.says("tool", "artifacts", run["id"])
    taken = tmp_path / "taken.tsv"
    assert kg("tool", "artifacts", run["id"], artifact["path"], "--to", taken).returncode == 0
    assert taken.read_text().splitlines()[0] == "to\t2"
    assert (taken.stat().st_size, artifact["media_type"]) == (artifact["size"], "text/tab-separated-values")


def test_a_run_that_fails_says_why_in_one_line(kg: Person) -> None:
    add(kg, "broken", "sh", "-c", "echo no luck >&2; exit 3")
    ran = kg("tool", "run", "broken", "--wait")
    assert (ran.returncode, "no luck" in ran.stderr) == (1, True)
    assert "the tool exited with code 3, and the tool left no result.json" in ran.stderr


def test_a_run_that_goes_on_is_cancelled_with_all_that_it_started(shared: Up, kg: Person) -> None:
    add(kg, "endless", "sh", "-c", "echo begun; sleep 1000 & sleep 1000")
    run = kg.says("tool", "run", "endless")
    eventually(lambda: kg.says("tool", "logs", run["id"])["stdout"] == "begun\n", what="it has begun")
    kg.says("tool", "cancel", run["id"], "--reason", "enough")
    ended = eventually(lambda: [one for one in [kg.says("tool", "show", run["id"])] if one["status"] == "cancelled"])
    assert ended[0]["reason"] == "enough"


def test_a_run_that_backs_off_is_queued_and_says_from_when_it_is_available(shared: Up, kg: Person) -> None:
    add(kg, "waits", "sh", "-c", GOOD)
    _enable_tools(shared, enabled=False)
    try:
        run = kg.says("tool", "run", "waits")
        with psycopg.connect(shared.env["KAPPA_DATABASE_URL"]) as connection:  # as after an attempt that failed
            due = "UPDATE kappa.jobs SET state = 'scheduled', run_at = '2100-01-01 UTC' WHERE id = %s"
            connection.execute(due, [run["job_id"]])
        assert kg.says("job", "show", run["job_id"])["state"] == "scheduled"
        seen = kg.says("tool", "show", run["id"])
        assert (seen["status"], seen["available_at"]) == ("queued", "2100-01-01T00:00:00Z")
        listed = kg.says("tool", "runs", "--tool", "waits", "--status", "queued")["items"]
        assert listed == [seen]
        assert "2100-01-01" in kg("tool", "runs", "--tool", "waits").stdout
        assert "2100-01-01" in kg("tool", "show", run["id"]).stdout
        assert "'scheduled' is not one of" in kg.refused(2, "tool", "runs", "--status", "scheduled")
        with shared.client() as client:
            refused = client.get("/tool-runs", params={"status": "scheduled"})
            assert (refused.status_code, "status" in refused.text) == (422, True)
    finally:
        _enable_tools(shared, enabled=True)


def test_only_those_who_run_the_server_register_tools(shared: Up, kg: Person) -> None:
    add(kg, "known", "sh", "-c", GOOD)
    contributor = hired(shared, "carl", "contributor")
    contributor.refused(4, "tool", "add", "mine", "--", "true")
    mine = contributor.says("tool", "run", "known")
    other = hired(shared, "ruth", "read_only")
    other.refused(4, "tool", "run", "known")
    other.refused(4, "tool", "cancel", mine["id"])
    assert other.says("tool", "show", mine["id"])["requested_by"] == "carl"


@pytest.mark.parametrize(
    ("code", "args", "says"),
    [
        (1, ("tool", "run", "unheard-of"), "there is no tool 'unheard-of'"),
        (1, ("tool", "show", "4711"), "there is no tool run 4711"),
        (1, ("tool", "add", "empty"), "the tool 'empty' needs a command to run, or an image"),
        (2, ("tool", "add", "Bad Name", "--", "true"), "'NAME'"),
        (2, ("tool", "add", "greedy", "--memory-mb", "1", "--", "true"), "'--memory-mb'"),
    ],
)
def test_what_makes_no_sense_is_refused(kg: Person, code: int, args: tuple[str, ...], says: str) -> None:
    assert says in kg.refused(code, *args)


def test_without_a_queue_a_run_is_done_in_the_request_and_one_more_is_refused(start_up: Callable[..., Up]) -> None:
    up = start_up(env={"KAPPA_QUEUE_ENABLED": "false"})
    with up.client() as client, up.client() as other:
        gate = "while [ ! -e /kappa-gate ] && [ ! -e go ]; do sleep 0.05; done"
        for name, command in (("quick", GOOD), ("slow", f"{gate}; {GOOD}")):
            body = {"name": name, "version": "1", "argv": ["sh", "-c", command]}
            assert client.post("/tools", json=body).status_code == 201
        done = client.post("/tools/quick/runs", json={})
        assert (done.status_code, done.json()["status"], done.json()["exit_code"]) == (201, "succeeded", 0)

        answers: list[httpx2.Response] = []
        waiting = threading.Thread(target=lambda: answers.append(client.post("/tools/slow/runs", json={})))
        waiting.start()
        eventually(lambda: [run for run in _runs(other) if run["status"] == "running"], what="the slow one runs")
        refused = other.post("/tools/quick/runs", json={})
        assert (refused.status_code, refused.json()["code"], refused.headers["retry-after"]) == (429, "throttled", "5")
        assert len(_runs(other)) == 2, "what was refused left no record"

        def open_runs() -> list[Path]:
            return [path for path in (up.home / "runs").glob("kappa-*-1") if not (path / "result.json").exists()]

        (directory,) = eventually(open_runs, what="the slow one has its directory")
        (directory / "go").touch()
        waiting.join()
        assert answers[0].json()["status"] == "succeeded"
        # The same records as with the queue.
        slow, quick = _runs(other)
        assert slow.keys() == quick.keys()
        assert json.loads(other.get(f"/jobs/{slow['job_id']}").text)["state"] == "succeeded"
    assert up.stop() == 0


def _runs(client: httpx2.Client) -> list[dict[str, object]]:
    return client.get("/tool-runs").json()["items"]


def test_without_a_sandbox_a_tool_is_refused_at_once_and_everybody_is_told(
    start_up: Callable[..., Up], home: Path
) -> None:
    with path_without("bwrap") as path:
        up = start_up(env={"PATH": path})
        eventually(lambda: "ctrl-C stops it" in up.said, what="it has said all")
        assert re.search(r"^ *sandbox +none: process tools are refused$", up.said, re.MULTILINE), up.said
        assert "bubblewrap is not installed" in up.said
        with up.client() as client:
            body = {"name": "it", "version": "1", "argv": ["/bin/sh", "-c", "touch output/ran"]}
            made = client.post("/tools", json=body).json()
            assert made["warning"].startswith("the sandbox of this server is none: process tools are refused (")
            run = client.post("/tools/it/runs", json={"max_attempts": 3}).json()["id"]
            failed = eventually(lambda: [run for run in _runs(client) if run["status"] == "failed"], what="it fails")
            job = client.get(f"/jobs/{failed[0]['job_id']}").json()
        assert (failed[0]["id"], job["attempt"]) == (run, 1)
        assert "bubblewrap is not installed" in str(failed[0]["error_summary"])
        assert "KAPPA_UNSANDBOXED_TOOLS=yes" in str(failed[0]["error_summary"])
        reach = {"PATH": path, "KAPPA_SERVER": up.url, "KAPPA_TOKEN": up.token}
        worker = ground.kg("worker", "--once", home=home.with_name("worker"), env=reach)
    assert worker.returncode == 0, worker.stderr
    assert "the sandbox of tools is none: process tools are refused" in worker.stderr
    assert "tool_run" not in worker.stdout
    assert up.stop() == 0


def _enable_tools(up: Up, *, enabled: bool) -> None:
    with up.client() as client:
        client.patch("/admin/workers/lanes/tools", json={"enabled": enabled}).raise_for_status()
