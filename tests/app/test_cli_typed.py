"""What is typed is refused in the words of the command line, whoever finds the fault."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kappa.app.api.wording import what_is_wrong
from kappa.app.cli import entry
from kappa.app.cli.typed import MAY_BE_EMPTY, Command
from tests.app.conftest import Up
from tests.app.person import Beside, Person, kg, served
from tests.app.test_cli_help import acting
from tests.conftest import Server


@pytest.fixture(scope="module")
def up(server: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with served(server, template, tmp_path_factory) as up:
        yield up


def test_every_command_refuses_in_these_words() -> None:
    others = {path for path, command in acting().items() if not isinstance(command, Command)}
    assert others == {"kg admin workers", "kg admin workers lanes"}, "groups, which take no names"
    known = {word for command in acting().values() for param in command.params for word in param.opts}
    assert known >= MAY_BE_EMPTY


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["search", ""], "'TEXT'"),
        (["search", "otter", "--ontology="], "'--ontology'"),
        (["ingest", ""], "'PATH…'"),
        (["ingest", "notes", ""], "'PATH…'"),
        (["backup", ""], "'FILE'"),
        (["projection", "--to", ""], "'--to'"),
        (["user", "drop", "", "--yes"], "'NAME'"),
        (["tool", "run", "word-count", "--input", ""], "'--input'"),
    ],
)
def test_an_empty_argument_is_refused_before_anything_is_done(home: Path, words: list[str], what: str) -> None:
    said = kg(*words, home=home)
    assert (said.returncode, said.stdout) == (entry.NONSENSE, "")
    assert re.fullmatch(rf"kg: invalid value for {what}: it is empty \(kg [a-z ]+ --help\)\n", said.stderr), said.stderr
    assert not home.exists()


def test_what_the_server_refuses_is_said_of_what_was_typed(
    up: Up, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = Beside(up, monkeypatch, capsys)
    long, name = "x" * 501, r"it should begin with a small letter.* and have only small letters, digits.*, 63 at most"
    refused = {
        ("search", "otter", "--type", "x"): r"no such option: --type",
        ("search", "otter", "--ontology", long): r"invalid value for '--ontology': it should have at most 500 char.*",
        ("related", "otter", "--type", long): r"invalid value for '--type': it should have at most 500 characters",
        ("path", long * 3, "otter"): r"invalid value for 'FROM': it should have at most .* characters",
        ("ontology", "rename", "otters", long): r"invalid value for 'NEW': it should have at most 500 characters",
        ("job", "enqueue", "self_test", "--priority", 40_000): r"invalid value for '--priority': .* 32767",
        ("job", "enqueue", "self test"): r"invalid value for 'KIND': it should begin with a letter and have only .*",
        ("admin", "workers", "lanes", "edit", "tools", "--lease-ttl", 0): r"invalid value for '--lease-ttl': .* 1",
        ("tool", "add", "counts", "--memory-mb", 1, "--", "true"): r"invalid value for '--memory-mb': .* 16",
        ("tool", "add", "counts words", "--", "true"): rf"invalid value for 'NAME': {name}",
        ("user", "make", "Ada L."): rf"invalid value for 'NAME': {name}",
        ("token", "make", "x", "--requests", 2**40): r"invalid value for '--requests': .*",
        ("vocab", "undo", 2**70): r"invalid value for 'MERGE': .*",
    }
    for words, line in refused.items():
        code, out, said = typed(*words)
        assert (code, out) == (entry.NONSENSE, ""), (words, said)
        assert re.fullmatch(rf"kg: {line} \(kg [a-z ]+ --help\)\n", said), (words, said)


def test_what_is_empty_on_purpose_is_taken(up: Up) -> None:
    asked = Person(up.home)
    added = asked("tool", "add", "speaks", "--description", "", "--", "echo", "")
    assert added.returncode == 0, added.stderr
    assert asked.says("admin", "workers", "lanes", "edit", "checks", "--kinds", "")["kinds"] == []


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_that_would_be_another_path_is_nobodys(up: Up, name: str) -> None:
    said = Person(up.home).refused(entry.FAILED, "user", "drop", name, "--yes")
    assert said == f"nothing is called '{name}'"


def test_a_text_that_fits_into_no_address_says_nothing_of_the_server(up: Up) -> None:
    said = Person(up.home).refused(entry.FAILED, "concept", "show", "x" * 100_000)
    assert said == "the server can't be asked for that: URL too long"


@pytest.mark.parametrize("token", ["kappa_ü", "kappa_a\nb", "two words"])
def test_a_token_that_is_none_is_refused_without_being_shown(up: Up, token: str) -> None:
    said = Person(up.home, token=token).refused(entry.NOT_ALLOWED, "job", "list")
    assert said.startswith("the token has characters in it that no token has")
    assert token not in said


def test_json_has_no_colours_for_a_program_whatever_the_environment_says(up: Up) -> None:
    said = kg("role", "list", "--json", home=up.home, env={"FORCE_COLOR": "1", "CLICOLOR_FORCE": "1"})
    assert json.loads(said.stdout)


def test_json_of_a_tool_that_is_waited_for_is_json_alone(up: Up) -> None:
    asked = Person(up.home)
    result = '{"contract_version": 1, "status": "succeeded"}'
    asked("tool", "add", "reports", "--", "sh", "-c", f"echo aloud; echo '{result}' > result.json")
    done = asked("tool", "run", "reports", "--wait", "--json")
    assert (done.returncode, json.loads(done.stdout)["status"]) == (0, "succeeded"), done.stderr
    assert "aloud\n" in done.stderr


@pytest.mark.parametrize("words", [["role", "list"], ["role", "list", "--json"], ["--help"]])
def test_an_output_that_can_not_be_written_is_one_line(up: Up, words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kappa.app.cli.entry", *words], env={**os.environ, "KAPPA_HOME": str(up.home)},
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (entry.FAILED, "kg: the output: No space left on device\n")


@pytest.mark.parametrize("words", ["role list", "role list --json", "role list 2>&-"])
def test_an_output_that_is_closed_is_no_error(up: Up, words: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m kappa.app.cli.entry {words} >&-"], stderr=subprocess.PIPE, text=True,
        env={**os.environ, "KAPPA_HOME": str(up.home)}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_who_reads_the_first_line_alone_sees_no_error(up: Up) -> None:
    command = f"{sys.executable} -m kappa.app.cli.entry role permissions | head -1"
    done = subprocess.run(
        ["bash", "-c", command], env={**os.environ, "KAPPA_HOME": str(up.home)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.stderr, done.stdout.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (
            r"^[a-z][a-z0-9_-]{0,62}$",
            "it should begin with a small letter and have only small letters, digits, _ and -, 63 at most",
        ),
        (r"^[^\x00]*$", "a NUL character can't be kept"),
        (r"^https?://", "as the library says it"),
    ],
)  # fmt: skip
def test_a_pattern_is_told_in_words(pattern: str, said: str) -> None:
    fault = {"type": "string_pattern_mismatch", "msg": "as the library says it", "ctx": {"pattern": pattern}}
    assert what_is_wrong(fault) == said
