"""Wrong input to the commands that know how well we know it: one line, the right exit code, nothing left behind."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from tests.app import worlds
from tests.app.conftest import Up
from tests.app.person import Person, hired, line_of, served
from tests.conftest import Server
from tests.ground import PATIENCE, eventually

NOTHING = str(UUID(int=1))


@pytest.fixture(scope="module")
def shared(server: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with served(server, template, tmp_path_factory) as up:
        with up.client() as client:
            client.post("/graph/concepts", json=worlds.concepts()).raise_for_status()
            client.post("/graph/relations", json=worlds.relations()).raise_for_status()
        yield up


@pytest.fixture
def kg(shared: Up) -> Person:
    return Person(shared.home, server=shared.url, token=shared.token)


@pytest.fixture
def backup(kg: Person, tmp_path: Path) -> Path:
    """A whole one."""
    file = tmp_path / "graph.kappa"
    assert kg("backup", file).returncode == 0
    return file


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("concept", "show", "Nobody"), "there is no concept 'Nobody'"),
        (("concept", "show", NOTHING), f"there is no concept {NOTHING}"),
        (("concept", "show", "Otter", "--ontology", "nowhere"), "there is no ontology 'nowhere'"),
        (("vocab", "merge", "NOPE", "EATS"), "there is no relation type 'NOPE'"),
        (("vocab", "merge", "EATS", "EATS"), "'EATS' can't be merged into itself"),
        (("vocab", "undo", "99"), "there is no merge 99"),
        (("ontology", "show", "nowhere"), "there is no ontology 'nowhere'"),
        (("ontology", "rename", "nowhere", "x"), "there is no ontology 'nowhere'"),
        (("ontology", "delete", "nowhere", "--yes"), "there is no ontology 'nowhere'"),
        (("proposal", "show", "99"), "there is no proposal 99"),
        (("proposal", "approve", "99"), "there is no proposal 99"),
        (("proposal", "reject", "99"), "there is no proposal 99"),
        (("proposal", "execute", "99"), "there is no proposal 99"),
        (("proposal", "undo", "99"), "there is no proposal 99"),
        (("artifact", "show", NOTHING), f"there is no artifact {NOTHING}"),
        (("artifact", "show", NOTHING, "--content"), f"there is no artifact {NOTHING}"),
        (("artifact", "save", NOTHING, "--to", "-"), f"there is no artifact {NOTHING}"),
        (("backup", "verify", "/nowhere/at.all"), "/nowhere/at.all can't be read: No such file or directory"),
        (("backup", "verify", "/"), "/ can't be read: Is a directory"),
        (("backup", "/nowhere/at.all"), "/nowhere/at.all can't be written: No such file or directory"),
        (("restore", "/nowhere/at.all", "--mode", "merge"), "/nowhere/at.all can't be read: No such file or directory"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(kg: Person, args: tuple[str, ...], words: str) -> None:
    assert words in kg.refused(1, *args)


@pytest.mark.parametrize(
    "args",
    [
        ("artifact", "show", "no-id"), ("vocab", "undo", "0"), ("proposal", "show", "seven"),
        ("projection", "--way", "umap"), ("projection", "--most", "0"), ("restore", "x"),
        ("restore", "x", "--mode", "sideways"), ("vocab", "consolidate", "--near", "2"),
        ("proposal", "list", "--state", "sleepy"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_before_the_server_is_asked(kg: Person, args: tuple[str, ...]) -> None:
    done = kg(*args)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "Traceback" not in done.stderr


def test_a_backup_is_not_written_over_a_directory(kg: Person, tmp_path: Path) -> None:
    assert "is a directory" in kg.refused(2, "backup", tmp_path)
    assert "is a directory" in kg.refused(2, "backup", tmp_path, "--force")
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_no_backups_are_told_apart(kg: Person, backup: Path) -> None:
    whole = backup.read_bytes()
    for content, words in (
        (b"", "this is no backup"),
        (b"garbage", "this is no backup"),
        (b"\x1f\x8bgarbage", "backup"),
        (whole[: len(whole) // 2], "ends in the middle"),
        (whole[:-1], "ends in the middle"),
        (whole + b"more", "is not the bytes that were written"),
    ):
        backup.write_bytes(content)
        assert words in kg.refused(1, "backup", "verify", backup), content[:20]
        assert words in kg.refused(1, "restore", backup, "--mode", "replace", "--yes")
    assert kg.says("job", "list", "--kind", "restore")["items"] == []


@pytest.mark.parametrize("place", ["nowhere/map.svg", ".", "map.png"])
def test_a_picture_that_can_not_be_written_is_said_before_the_work(kg: Person, tmp_path: Path, place: str) -> None:
    before = kg.says("artifact", "list")
    assert "can't be written" in kg.refused(2, "projection", "--way", "pca", "--to", tmp_path / place)
    assert "can't be written" in kg.refused(2, "polarity", "River", "Sea", "--save", tmp_path / place)
    assert kg.says("artifact", "list") == before
    assert kg("projection", "--way", "pca").returncode == 0
    made = kg.says("artifact", "list")[0]["id"]
    assert "can't be written" in kg.refused(2, "artifact", "save", made, "--to", tmp_path / place)
    assert list(tmp_path.iterdir()) == []


def test_a_map_of_an_ontology_that_is_not_there_makes_no_job(kg: Person) -> None:
    before = kg.says("job", "list", "--kind", "projection")
    assert kg.refused(1, "projection", "--ontology", "nowhere") == "there is no ontology 'nowhere'"
    assert kg.says("job", "list", "--kind", "projection") == before


def test_a_job_that_fails_says_why(kg: Person) -> None:
    done = kg("job", "enqueue", "projection", "--payload", '{"ontology": "nowhere"}', "--watch")
    assert done.returncode == 1
    assert "there is no ontology 'nowhere'" in done.stdout


def test_who_may_not_is_told_what_is_lacking(shared: Up, backup: Path, tmp_path: Path) -> None:
    reader = hired(shared, "reader", "read_only")
    reader.env["KAPPA_SERVER"] = shared.url
    assert "graph:curate" in reader.refused(4, "vocab", "merge", "FLOWS_INTO", "LIVES_IN")
    assert "graph:curate" in reader.refused(4, "ontology", "rename", "zoology", "x")
    assert "graph:curate" in reader.refused(4, "ontology", "anneal")
    assert "graph:curate" in reader.refused(4, "proposal", "approve", 1)
    assert "jobs:enqueue" in reader.refused(4, "projection")
    assert "graph:manage" in reader.refused(4, "restore", backup, "--mode", "replace", "--yes")
    other = tmp_path / "other.kappa"
    assert "graph:manage" in reader.refused(4, "backup", other)
    assert [path.name for path in tmp_path.iterdir()] == [backup.name]


def test_nothing_runs_on_a_fresh_home_without_a_server(tmp_path: Path) -> None:
    stranger = Person(tmp_path / "fresh")
    for args in (("concept", "show", "x"), ("vocab", "list"), ("ontology", "list"), ("proposal", "list"),
                 ("artifact", "list"), ("projection",)):  # fmt: skip
        assert "no server runs here" in stranger.refused(3, *args)
    file = tmp_path / "file"
    file.write_bytes(b"x")
    assert "this is no backup" in stranger.refused(1, "restore", file, "--mode", "merge", "--yes")
    assert "has no database to back up" in stranger.refused(1, "backup", tmp_path / "new.kappa")
    assert {path.name for path in tmp_path.iterdir()} == {"file"}
    stranger.env["KAPPA_DATABASE_URL"] = "garbage"
    assert "address can't be understood" in stranger.refused(1, "backup", tmp_path / "new.kappa")


def test_ctrl_c_leaves_the_restore_to_the_server_and_says_so(start_up: Callable[..., Up], tmp_path: Path) -> None:
    up = start_up("--no-lanes")
    kg = Person(up.home, server=up.url, token=up.token)
    file = tmp_path / "graph.kappa"
    assert kg("backup", file).returncode == 0
    with kg.begins("restore", file, "--mode", "merge", "--yes") as watching:
        job = line_of(watching.stdout).split()[1]
        watching.send_signal(signal.SIGINT)
        _, complaint = watching.communicate(timeout=PATIENCE)
    assert watching.returncode == 130
    assert f"job {job} goes on: `kg job watch {job}` follows it, `kg job cancel {job}` ends it" in complaint
    assert kg.says("job", "show", job)["state"] == "queued"


def test_ctrl_c_in_a_backup_leaves_no_file(shared: Up, kg: Person, tmp_path: Path) -> None:
    with psycopg.connect(shared.env["KAPPA_DATABASE_URL"]) as holding:
        holding.execute("LOCK TABLE kappa_graph.concepts")  # so it is in the middle until it is interrupted
        waits = (
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'kappa_graph.concepts'::regclass "
            "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        with kg.begins("backup", tmp_path / "graph.kappa") as writing:
            eventually(lambda: holding.execute(waits).fetchone() != (0,), what="the server waits for the table")
            assert (tmp_path / "graph.kappa.part").exists()
            writing.send_signal(signal.SIGINT)
            _, complaint = writing.communicate(timeout=PATIENCE)
    assert (writing.returncode, complaint.strip()) == (130, "")
    assert list(tmp_path.iterdir()) == []
