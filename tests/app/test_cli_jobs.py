"""`kg job` against a running server."""

import json
import re
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.app.conftest import Up
from tests.app.person import WITH_GATES, Person, hired, line_of, served
from tests.conftest import Server
from tests.ground import PATIENCE


@pytest.fixture(scope="module")
def shared(server: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with served(server, template, tmp_path_factory) as up:
        yield up


@pytest.fixture
def kg(shared: Up) -> Person:
    return Person(shared.home)


@pytest.fixture
def gates(tmp_path: Path) -> Path:
    made = tmp_path / "gates"
    made.mkdir()
    return made


def gated(kg: Person, gates: Path, steps: int = 1) -> int:
    payload = json.dumps({"gates": str(gates), "steps": steps})
    return int(kg.says("job", "enqueue", "gated", "--payload", payload)["id"])


def test_a_job_is_watched_to_its_end_with_its_real_progress(kg: Person, gates: Path) -> None:
    job = gated(kg, gates, steps=2)
    with kg.begins("job", "watch", job) as watching:
        while "running" not in line_of(watching.stdout):
            pass
        (gates / "1").touch()
        assert line_of(watching.stdout) == f"job {job} running 1/2 through gate 1"
        (gates / "2").touch()
        rest, complaint = watching.communicate(timeout=PATIENCE)
        assert (watching.returncode, complaint) == (0, "")
        assert rest.splitlines()[-1] == f"job {job} succeeded 2"
        assert "\x1b" not in rest


def test_a_program_gets_a_line_of_json_for_each_change(kg: Person) -> None:
    done = kg("job", "enqueue", "self_test", "--payload", '{"steps": 3}', "--watch", "--json")
    assert done.returncode == 0, done.stderr
    seen = [json.loads(line) for line in done.stdout.splitlines()]
    assert (seen[-1]["state"], seen[-1]["result"], seen[-1]["submitted_by"]) == ("succeeded", {"steps": 3}, "operator")
    assert f"job {seen[0]['id']} was created" in done.stderr


def test_a_long_payload_is_cut_for_people_and_whole_for_programs(kg: Person) -> None:
    long = "x" * 9_980
    payload = json.dumps({"gates": long, "steps": 1})
    job = kg.says("job", "enqueue", "gated", "--delay", "1h", "--payload", payload)["id"]
    said = kg("job", "show", job).stdout
    assert f"… ({len(payload):,} characters; --json has them all)" in said.replace("\n", "").replace("           ", "")
    assert len(said) < 2_000
    assert kg.says("job", "show", job)["payload"]["gates"] == long


def test_no_line_for_a_program_ends_in_blanks(kg: Person) -> None:
    kg.says("job", "enqueue", "self_test")
    for command in (("job", "list"), ("job", "show", "1"), ("admin", "workers")):
        said = kg(*command).stdout
        assert said.strip()
        assert [line for line in said.splitlines() if line != line.rstrip()] == []


def test_a_terminal_gets_a_bar(kg: Person) -> None:
    code, seen = kg.on_terminal("job", "enqueue", "self_test", "--payload", '{"steps": 2}', "--watch")
    assert code == 0, seen
    assert "━" in seen
    assert "100%" in seen
    assert "succeeded" in seen


def test_watching_several_jobs_fails_if_one_of_them_does(kg: Person) -> None:
    good = kg.says("job", "enqueue", "self_test")["id"]
    bad = kg.says("job", "enqueue", "self_test", "--payload", '{"fail": true}', "--max-attempts", 1)["id"]
    done = kg("job", "watch", good, bad)
    assert (done.returncode, done.stderr) == (1, "")
    assert f'job {good} succeeded {{"steps": 3}}' in done.stdout.splitlines()
    assert f"job {bad} failed the handler failed with RuntimeError" in done.stdout.splitlines()


def test_a_job_that_is_cancelled_while_it_is_watched(kg: Person, gates: Path) -> None:
    job = gated(kg, gates)
    with kg.begins("job", "watch", job) as watching:
        while "running" not in line_of(watching.stdout):
            pass
        told = kg("job", "cancel", job, "--reason", "not wanted").stdout
        assert told in (f"job {job} is told to stop\n", f"job {job} cancelled not wanted\n")
        rest, _ = watching.communicate(timeout=PATIENCE)
        assert (watching.returncode, rest) == (1, f"job {job} cancelled not wanted\n")


def test_a_payload_comes_from_a_file_or_from_standard_input(kg: Person, tmp_path: Path) -> None:
    file = tmp_path / "payload.json"
    file.write_text('{"steps": 7}')
    by_file = kg.says("job", "enqueue", "self_test", "--delay", "1h", "--payload", f"@{file}")
    by_pipe = kg.says("job", "enqueue", "self_test", "--delay", "1h", "--payload", "-", stdin='{"steps": 8}')
    steps = [kg.says("job", "show", made["id"])["payload"]["steps"] for made in (by_file, by_pipe)]
    assert steps == [7, 8]


@pytest.mark.parametrize(
    ("payload", "line"),
    [
        ('{"steps": }', "--payload is no JSON: line 1, column 11: Expecting value"),
        ("", r"invalid value for .--payload.: it is empty \(kg job enqueue --help\)"),
        ("NaN", "--payload is no JSON that can be sent: NaN is no JSON value"),
        ("[" * 100_000, "--payload is no JSON that can be sent: .*recursion.*"),
        ("@/nowhere/at.json", "--payload: /nowhere/at.json can't be read: No such file or directory"),
        ("-", "standard input is no JSON: line 2, column 3: Expecting property name enclosed in double quotes"),
    ],
)
def test_a_payload_that_is_no_json_is_refused_with_its_place(kg: Person, payload: str, line: str) -> None:
    said = kg.refused(2, "job", "enqueue", "self_test", "--payload", payload, stdin="{\n  steps: 1}")
    assert re.fullmatch(line, said)


def test_what_the_server_refuses_is_one_line(kg: Person) -> None:
    assert "'nonsense'" in kg.refused(1, "job", "enqueue", "nonsense")
    assert "steps" in kg.refused(1, "job", "enqueue", "self_test", "--payload", '{"steps": "many"}')
    assert "stepps" in kg.refused(1, "job", "enqueue", "self_test", "--payload", '{"stepps": 3}')
    assert kg.refused(1, "job", "show", 999_999) == "there is no job 999999"
    assert kg.refused(1, "job", "watch", 999_999) == "there is no job 999999"
    # Half a surrogate pair is something that JSON can say and PostgreSQL can't keep.
    kg.refused(1, "job", "enqueue", "self_test", "--payload", r'"\ud800"')


def test_every_option_of_enqueue_arrives(kg: Person) -> None:
    options = {"priority": 7, "delay": "1h30m", "dedup-key": "once", "timeout": "2m", "max-attempts": 5}
    given = [word for name, value in options.items() for word in (f"--{name}", value)]
    made = kg.says("job", "enqueue", "self_test", *given)
    assert made["status"] == "created"
    job = kg.says("job", "show", made["id"])
    assert [job[name] for name in ("priority", "dedup_key", "timeout", "max_attempts", "state")] == [
        *(7, "once", 120.0, 5, "scheduled")
    ]
    assert kg.says("job", "enqueue", "self_test", "--dedup-key", "once") == {"id": made["id"], "status": "existing"}
    later = kg.says("job", "enqueue", "self_test", "--at", "2090-01-31T18:00+01:00")
    assert kg.says("job", "show", later["id"])["run_at"].startswith("2090-01-31T17:00:00")
    assert "2090" in kg("job", "show", later["id"]).stdout
    done = kg("job", "enqueue", "self_test", "--delay", "soon")
    assert done.returncode == 2
    assert "'soon' is no duration" in done.stderr


def test_jobs_are_listed_by_filter_and_page_by_page(shared: Up, kg: Person) -> None:
    lister = hired(shared, "lister", "contributor")
    ids = [lister.says("job", "enqueue", "self_test", "--delay", "1h")["id"] for _ in range(3)]
    newest = ids[::-1]

    def found(*args: object) -> list[int]:
        return [job["id"] for job in lister.says("job", "list", *args)["items"]]

    assert found("--mine") == newest
    assert found("--submitted-by", "lister", "--state", "scheduled", "--state", "queued") == newest
    assert found("--mine", "--state", "running") == []
    assert found("--mine", "--kind", "gated") == []
    assert found("--mine", "--lane", "checks", "--before", ids[1]) == ids[:1]
    assert set(newest) < set(found("--all"))
    first = lister.says("job", "list", "--mine", "--limit", 2)
    assert first["next"] == newest[1]
    assert found("--mine", "--limit", 2, "--before", first["next"]) == newest[2:]
    table = kg("job", "list", "--submitted-by", "lister", "--limit", 2)
    assert [line.split()[:4] for line in table.stdout.splitlines()[1:]] == [
        [str(job), "scheduled", "self_test", "checks"] for job in newest[:2]
    ]
    assert f"--before {newest[1]}" in table.stderr


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (200, ["id", "state", "kind", "lane", "priority", "try", "submitted", "by", "how", "far"]),
        (80, ["id", "state", "kind", "lane", "try", "submitted", "by", "how", "far"]),
        (60, ["id", "state", "kind", "submitted", "how", "far"]),
    ],
)
def test_a_narrow_window_has_fewer_columns_rather_than_broken_words(
    shared: Up, kg: Person, width: int, titles: list[str]
) -> None:
    narrow = hired(shared, f"narrow{width}", "contributor")
    ids = [narrow.says("job", "enqueue", "self_test", "--delay", "1h")["id"] for _ in range(2)]
    narrow.env["COLUMNS"] = str(width)
    said = narrow("job", "list", "--mine").stdout.splitlines()
    assert said[0].split() == titles
    assert [line.split()[:3] for line in said[1:]] == [[str(job), "scheduled", "self_test"] for job in ids[::-1]]
    assert all(re.search(r" \d{4}-\d\d-\d\d \d\d:\d\d:\d\d( |$)", line) for line in said[1:])


def test_jobs_that_cost_something_are_approved_or_rejected(kg: Person) -> None:
    yes, no, own = (kg.says("job", "enqueue", "costly", "--payload", '{"pages": 3}')["id"] for _ in range(3))
    waiting = kg("job", "show", yes).stdout
    assert "awaiting_approval" in waiting
    assert '{"dollars": 3}' in waiting
    assert kg.says("job", "approve", yes)[0]["approved_by"] == "operator"
    assert kg("job", "reject", no).stdout == f"job {no} cancelled rejected\n"
    assert kg("job", "watch", yes).returncode == 0
    assert kg("job", "watch", no).returncode == 1
    kg("job", "cancel", own)
    done = kg("job", "enqueue", "costly", "--payload", '{"pages": 3}', "--auto-approve", "--watch")
    assert done.stdout.splitlines()[-1].endswith('succeeded "spent"'), done.stderr


def test_a_finished_job_is_retried_as_a_new_one(kg: Person) -> None:
    done = kg("job", "enqueue", "self_test", "--watch", "--json")
    first = json.loads(done.stdout.splitlines()[-1])["id"]
    (again,) = kg.says("job", "retry", first)
    assert (again["retry_of"], again["status"]) == (first, "created")
    assert kg("job", "watch", again["id"]).returncode == 0


def test_a_priority_may_be_negative(kg: Person) -> None:
    job = kg.says("job", "enqueue", "self_test", "--delay", "1h")["id"]
    assert kg.says("job", "priority", job, -5)["priority"] == -5
    assert kg("job", "priority", job, "10").stdout == f"job {job} has priority 10\n"
    assert kg("job", "priority", job, "high").returncode == 2


def test_one_job_that_is_refused_does_not_spare_the_others(kg: Person) -> None:
    job = kg.says("job", "enqueue", "self_test", "--delay", "1h")["id"]
    done = kg("job", "cancel", 999_998, job, 999_999)
    assert (done.returncode, done.stdout) == (1, f"job {job} cancelled cancelled by operator\n")
    assert done.stderr == "kg: there is no job 999998\nkg: there is no job 999999\n"


def test_without_permission_the_exit_code_is_4(shared: Up, kg: Person) -> None:
    reader = hired(shared, "reader", "read_only")
    assert reader.refused(4, "job", "enqueue", "self_test") == "reader lacks the permission jobs:enqueue"
    job = kg.says("job", "enqueue", "self_test", "--delay", "1h")["id"]
    writer = hired(shared, "writer", "contributor")
    assert f"job {job} is not writer's" in writer.refused(4, "job", "cancel", job)
    assert "jobs:approve" in writer.refused(4, "job", "enqueue", "costly", "--auto-approve")
    stranger = Person(shared.home, token="kappa_nonsense")
    stranger.refused(4, "job", "list")
    stranger.refused(4, "job", "watch", job)


def test_without_a_server_the_exit_code_is_3(shared: Up, home: Path) -> None:
    nowhere = "no server runs here: start one with `kg up`, or set KAPPA_SERVER and KAPPA_TOKEN"
    assert Person(home).refused(3, "job", "list") == nowhere
    assert Person(home).refused(3, "job", "watch", 1) == nowhere
    closed = Person(home, server="http://127.0.0.1:1", token="kappa_x")
    assert closed.refused(3, "job", "list").startswith("the server at http://127.0.0.1:1 doesn't answer: ")
    wrong = Person(home, server="ftp://kappa.test", token="kappa_x")
    assert wrong.refused(3, "job", "list").startswith("KAPPA_SERVER is 'ftp://kappa.test': ")
    assert Person(home, server="here").refused(3, "job", "list").startswith("KAPPA_SERVER is 'here': not an address")


@pytest.mark.parametrize("token", ["kappa_x", None])
def test_a_password_in_the_servers_address_is_refused_and_not_shown(home: Path, token: str | None) -> None:
    careless = Person(home, server="http://ada:opensesame@127.0.0.1:1", token=token)
    said = careless.refused(3, "job", "list")
    assert said == "KAPPA_SERVER has a user or a password in it; what a server wants is KAPPA_TOKEN"


def test_the_operators_token_goes_to_no_other_server(shared: Up) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        url = f"http://127.0.0.1:{other.getsockname()[1]}"
        assert (
            Person(shared.home, server=url).refused(3, "job", "list") == f"KAPPA_TOKEN is not set: {url} wants a token"
        )
    assert "items" in Person(shared.home, server=shared.url).says("job", "list")


def test_a_watch_outlives_a_server_that_drains(start_up: Callable[..., Up], home: Path, gates: Path) -> None:
    first = start_up("--api-only", env=WITH_GATES)
    second = start_up(env=WITH_GATES)
    kg = Person(home)
    job = gated(kg, gates)
    with kg.begins("job", "watch", job) as watching:
        while "running" not in line_of(watching.stdout):
            pass
        assert first.stop() == 0, first.said
        (gates / "1").touch()
        rest, _ = watching.communicate(timeout=PATIENCE)
        assert (watching.returncode, rest.splitlines()[-1]) == (0, f"job {job} succeeded 1"), second.said


def test_a_watch_outlives_a_server_that_vanishes_for_a_while(
    start_up: Callable[..., Up], home: Path, gates: Path
) -> None:
    start_up(env=WITH_GATES)
    first = start_up("--api-only", env=WITH_GATES)
    port = first.url.rpartition(":")[2]
    kg = Person(home, server=first.url, token=first.token)
    job = gated(kg, gates)
    with kg.begins("job", "watch", job) as watching:
        while "running" not in line_of(watching.stdout):
            pass
        first.kill()
        assert "waiting up to 120 s for it to come back" in line_of(watching.stderr)
        start_up("--api-only", "--port", port, env=WITH_GATES)
        assert line_of(watching.stderr) == "the server is back"
        (gates / "1").touch()
        rest, _ = watching.communicate(timeout=PATIENCE)
        assert (watching.returncode, rest.splitlines()[-1]) == (0, f"job {job} succeeded 1")


def test_patience_with_a_server_that_stays_away_ends(start_up: Callable[..., Up], home: Path) -> None:
    only = start_up("--api-only")
    kg = Person(home)
    job = kg.says("job", "enqueue", "self_test")["id"]
    with kg.begins("job", "watch", job, "--wait", "0.1s") as watching:
        assert line_of(watching.stdout) == f"job {job} queued"
        only.process.send_signal(signal.SIGKILL)
        only.process.wait()
        rest, complaint = watching.communicate(timeout=PATIENCE)
        assert (watching.returncode, rest) == (3, "")
        assert complaint.splitlines()[-1].startswith("kg: ")
