"""`kg ingest` against a running server."""

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kappa.app.cli.ingest_progress import remarks
from kappa.app.kinds.ingestion import IngestionResult
from tests.app.conftest import Up
from tests.app.person import Person, hired, line_of, served
from tests.conftest import Server
from tests.ground import PATIENCE

OTTERS = "Otters eat fish. Rivers contain fish."
HERONS = "# Birds\n\nHerons eat *fish*. Herons eat frogs."
WHALES = "Whales eat krill."


@pytest.fixture(scope="module")
def shared(server: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with served(server, template, tmp_path_factory) as up:
        yield up


@pytest.fixture
def kg(shared: Up) -> Person:
    return Person(shared.home)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A directory with two documents, a hidden one, and one that a link would lead to."""
    made = tmp_path / "notes"
    (made / "birds").mkdir(parents=True)
    (made / "otters.txt").write_text(OTTERS)
    (made / "birds" / "herons.md").write_text(HERONS)
    (made / ".secret.txt").write_text("Spies eat secrets.")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "far.txt").write_text("Cats eat mice.")
    (made / "link").symlink_to(tmp_path / "elsewhere")
    return made


def evidence(kg: Person, concept: str, ontology: str) -> dict[str, str]:
    """The documents that speak of a concept, each with a quote."""
    found = kg.says("concept", "show", concept, "--ontology", ontology)
    return {one["document_name"]: one["quote"] for one in found["evidence"]}


def test_files_directories_and_standard_input_become_one_job(kg: Person, notes: Path) -> None:
    done = kg(
        *("ingest", notes, "-", "--name", "whales.txt", "--ontology", "one job", "--auto-approve", "--watch"),
        stdin=WHALES,
    )
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert re.match(r"job \d+ is (queued|running): 3 documents, 3 chunks", first)
    assert re.fullmatch(r"job \d+ succeeded: 3 documents, 3 chunks: \d+ new concepts, .* quotes", rest[-1])
    assert "\x1b" not in done.stdout
    assert set(evidence(kg, "fish", "one job")) == {"notes/otters.txt", "notes/birds/herons.md"}
    assert evidence(kg, "krill", "one job") == {"whales.txt": WHALES}
    assert "there is no concept" in kg.refused(1, "concept", "show", "spy", "--ontology", "one job")
    assert "there is no concept" in kg.refused(1, "concept", "show", "cat", "--ontology", "one job")


def test_what_cant_be_read_is_listed_and_the_others_go_on(kg: Person, tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("Bees make honey.")
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.7 and no more")
    (tmp_path / "empty.txt").write_text("")
    os.mkfifo(tmp_path / "pipe")
    names = ("good.txt", "broken.pdf", "empty.txt", "pipe", "nowhere.txt")
    done = kg("ingest", *(tmp_path / name for name in names), "--ontology", "others go on", "-y", "-w", "--json")
    assert done.returncode == 1
    complaints = dict(line.removeprefix("kg: ").split(": ", 1) for line in done.stderr.splitlines())
    assert set(complaints) == {"broken.pdf", "empty.txt", "pipe", "nowhere.txt"}
    assert complaints["pipe"] == "it is no file"
    assert complaints["nowhere.txt"] == "No such file or directory"
    report, *changes = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["name"] for one in report["uploads"]] == ["good.txt"]
    assert {one["name"]: one["reason"] for one in report["refused"]} == complaints
    assert (changes[-1]["id"], changes[-1]["state"]) == (report["job"], "succeeded")
    assert evidence(kg, "honey", "others go on") == {"good.txt": "Bees make honey."}


def test_nothing_that_can_be_read_is_an_error(kg: Person, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = kg("ingest", tmp_path / "empty", tmp_path / "nowhere.txt")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == "kg: nothing to ingest: 2 documents can't be read"


def test_without_approval_the_estimate_is_printed_with_what_approves_it(kg: Person, tmp_path: Path) -> None:
    (tmp_path / "bees.txt").write_text("Bees collect nectar.")
    done = kg("ingest", tmp_path / "bees.txt", "--ontology", "approval")
    assert done.returncode == 0, done.stderr
    said, how = done.stdout.splitlines()
    job = int(said.split()[1])
    assert said.startswith(f"job {job} is awaiting_approval: 1 document, 1 chunk, 3 words, about ")
    assert said.endswith("; free")
    assert f"`kg job approve {job}`" in how
    assert kg("job", "approve", job).returncode == 0
    assert kg("job", "watch", job).returncode == 0
    assert evidence(kg, "nectar", "approval") == {"bees.txt": "Bees collect nectar."}


@pytest.mark.parametrize(("answer", "state"), [("y", "succeeded"), ("n", "awaiting_approval")])
def test_a_terminal_is_asked(kg: Person, tmp_path: Path, answer: str, state: str) -> None:
    (tmp_path / "ants.txt").write_text("Ants build nests.")
    code, seen = kg.on_terminal("ingest", tmp_path / "ants.txt", "--ontology", f"asked {answer}", types=f"{answer}\n")
    assert code == 0, seen
    assert "Approve job" in seen
    job = kg.says("job", "list", "--kind", "ingestion", "--limit", 1)["items"][0]
    if answer == "y":
        assert kg("job", "watch", job["id"]).returncode == 0
    assert kg.says("job", "show", job["id"])["state"] == state


def test_a_terminal_gets_bars_of_documents_and_chunks(kg: Person, notes: Path) -> None:
    code, seen = kg.on_terminal("ingest", notes, "--ontology", "bars", "-y", "-w")
    assert code == 0, seen
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)
    assert re.search(r"━ 2/2 documents .* succeeded", shown)
    assert re.search(r"━ 2/2 chunks", shown)
    assert re.search(r"job \d+ brought 2 documents, 2 chunks: \d+ new concepts", shown)


def test_a_dry_run_says_what_it_would_come_to_and_submits_nothing(kg: Person, notes: Path) -> None:
    before = kg.says("job", "list", "--kind", "ingestion", "--all")["items"]
    done = kg("ingest", notes, "--dry-run")
    assert done.returncode == 0, done.stderr
    head, first, second, total = done.stdout.splitlines()
    assert head.split() == ["document", "type", "bytes", "words", "chunks"]
    assert first.split() == ["notes/otters.txt", "text/plain", str(len(OTTERS)), "6", "1"]
    assert second.split()[:2] == ["notes/birds/herons.md", "text/markdown"]
    assert total.startswith("2 documents, 2 chunks, ")
    report = kg.says("ingest", notes, "--dry-run")
    assert (report["job"], report["estimate"]["documents"]) == (None, 2)
    assert kg.says("job", "list", "--kind", "ingestion", "--all")["items"] == before


def test_what_is_there_already_is_left_out_unless_forced(kg: Person, notes: Path) -> None:
    assert kg("ingest", notes, "--ontology", "twice", "-y", "-w").returncode == 0
    again = kg("ingest", notes, "--ontology", "twice", "-y", "-w")
    assert again.returncode == 0, again.stderr
    assert "notes/otters.txt is there already: document " in again.stdout
    assert again.stdout.splitlines()[-1] == "nothing new to ingest; --force reads it again"
    (notes / "bees.txt").write_text("Bees make wax.")
    more = kg.says("ingest", notes, "--ontology", "twice", "-y")
    assert len(more["duplicates"]) == 2
    assert more["estimate"]["documents"] == 1
    forced = kg.says("ingest", notes / "otters.txt", "--ontology", "twice", "-y", "--force")
    assert (forced["duplicates"], forced["estimate"]["documents"]) == ([], 1)
    assert kg("job", "watch", more["job"], forced["job"]).returncode == 0


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_the_same_content_twice_in_one_directory_is_read_once_and_the_other_file_named(
    kg: Person, tmp_path: Path, force: list[str]
) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("Voles gnaw roots.")
    said = kg("ingest", tmp_path, "--ontology", f"voles{len(force)}", *force)
    assert said.returncode == 0, said.stderr
    twin, made = said.stdout.splitlines()[:2]
    job = made.split()[1]
    assert twin == f"{tmp_path.name}/b.txt is there already: job {job} has the same content"
    assert made.startswith(f"job {job} is awaiting_approval: 1 document, 1 chunk, 3 words, ")
    assert made.endswith(", 1 embedding; free")
    again = kg.says("ingest", tmp_path, "--ontology", f"voles{len(force)}")
    assert [(one["name"][-5:], one["job"]) for one in again["duplicates"]] == [("a.txt", int(job)), ("b.txt", int(job))]


def test_who_approves_what_awaits_approval_already_approves_that(kg: Person, tmp_path: Path) -> None:
    (tmp_path / "moles.txt").write_text("Moles dig tunnels.")
    first = kg.says("ingest", tmp_path / "moles.txt", "--ontology", "moles")
    assert first["state"] == "awaiting_approval"
    unapproved = kg("ingest", tmp_path / "moles.txt", "--ontology", "moles")
    assert unapproved.stdout.splitlines()[-1] == (
        f"nothing new to ingest: it is on its way, `kg job show {first['job']}` says how far"
    )
    again = kg("ingest", tmp_path / "moles.txt", "--ontology", "moles", "-y", "-w")
    assert again.returncode == 0, again.stderr
    assert f"job {first['job']}, which has the same content, awaited approval: approved" in again.stderr
    assert f"job {first['job']} succeeded: 1 document" in again.stdout


def test_what_came_of_it_has_a_line_for_what_was_dropped_unmatched_and_paid() -> None:
    nothing = IngestionResult(
        documents=1, chunks=2, failed_chunks=0, concepts=3, instances=4, relations=5, matched=0, dropped=0, errors=[]
    )
    assert remarks(nothing) == []
    more = {"dropped": 2, "of_other_models": 1, "calls": 3, "tokens_in": 4000, "tokens_out": 50, "cost": "0.0123"}
    dropped, unmatched, paid = remarks(IngestionResult.model_validate(nothing.model_dump() | more))
    assert dropped.startswith("2 things that the provider said were dropped")
    assert "kg job enqueue source_embedding" in unmatched
    assert paid == "3 calls of the provider, 4,000 tokens in and 50 out: $0.0123"


def test_who_may_not_approve_or_ingest_is_told(shared: Up, notes: Path) -> None:
    contributor = hired(shared, "feeder", "contributor")
    assert "jobs:approve" in contributor.refused(4, "ingest", notes, "--ontology", "feeder", "-y")
    assert contributor.says("ingest", notes, "--ontology", "feeder")["state"] == "awaiting_approval"
    assert "graph:ingest" in hired(shared, "looker", "read_only").refused(4, "ingest", notes)


def test_an_unknown_provider_is_one_line(kg: Person, notes: Path) -> None:
    assert "nobody" in kg.refused(1, "ingest", notes, "--ontology", "provider", "--provider", "nobody")


def test_ctrl_c_leaves_the_job_and_says_how_to_follow_it(start_up: Callable[..., Up], notes: Path) -> None:
    up = start_up("--no-lanes")
    kg = Person(up.home)
    with kg.begins("ingest", notes, "--ontology", "left", "-y", "--watch") as watching:
        job = int(line_of(watching.stdout).split()[1])
        assert line_of(watching.stdout) == f"job {job} queued"
        watching.send_signal(signal.SIGINT)
        _, complaint = watching.communicate(timeout=PATIENCE)
        assert watching.returncode == 130
        assert f"job {job} goes on: `kg job watch {job}` follows it, `kg job cancel {job}` ends it" in complaint
    assert kg.says("job", "show", job)["state"] == "queued"
    # Its documents are on their way: who asks again is led to the same job.
    again = kg.says("ingest", notes, "--ontology", "left", "-y")
    assert {one["job"] for one in again["duplicates"]} == {job}


def test_a_document_over_the_limit_is_refused_and_the_others_go_on(start_up: Callable[..., Up], tmp_path: Path) -> None:
    up = start_up("--no-lanes", env={"KAPPA_MAX_UPLOAD": "20000000"})
    kg = Person(up.home)
    (tmp_path / "good.txt").write_text("Bees make honey.")
    with (tmp_path / "huge.txt").open("wb") as file:
        file.truncate(80_000_000)
    done = kg("ingest", tmp_path / "huge.txt", tmp_path / "good.txt", "--json")
    assert done.returncode == 1
    assert done.stderr == "kg: huge.txt: a document has 20,000,000 bytes at most\n"
    assert [one["name"] for one in json.loads(done.stdout)["uploads"]] == ["good.txt"]
    piped = kg("ingest", "-", stdin="a" * 30_000_000)
    assert piped.returncode == 1
    assert piped.stderr.splitlines()[0] == "kg: text: a document has 20,000,000 bytes at most"
