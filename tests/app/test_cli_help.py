"""How `kg` helps: the way in, examples, `--json`, completion, exit codes; and that it is quick about it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kappa.app.cli import entry
from kappa.app.cli.commands import PLACES
from kappa.app.cli.deferred import DeferringGroup
from tests.app import warm
from tests.app.conftest import Up
from tests.app.person import kg
from tests.app.test_cli import commands

ROOT = Path(__file__).parents[2]

WITHOUT_JSON = {
    "kg up": "it serves; its log is JSON with KAPPA_LOG_FORMAT",
    "kg demo": "it is for eyes",
    "kg mcp": "it speaks JSON-RPC",
    "kg db psql": "it is psql",
}


def acting() -> dict[str, Any]:
    """Every command that does something, by what one types."""
    found = {
        path: command
        for path, command in commands()
        if path != "kg" and (not getattr(command, "commands", {}) or command.invoke_without_command)
    }
    assert len(found) > 40
    return found


def test_kg_alone_shows_the_way_in(home: Path) -> None:
    said = kg(home=home)
    assert (said.returncode, said.stderr) == (0, "")
    known = {path for path, _ in commands()}
    shown = re.findall(r"^  (kg [a-z_ ]+?)(?: [A-Z]+| self_test| --\S+)*  ", said.stdout, re.MULTILINE)
    assert len(shown) > 3
    assert [path for path in shown if path not in known] == []
    assert not home.exists()


def test_every_command_shows_an_example_of_itself() -> None:
    without = [path for path, command in acting().items() if "Example: " not in command.help]
    assert without == []
    others = {
        path: command.help for path, command in acting().items() if path not in command.help.split("Example: ")[1]
    }
    assert set(others) == {"kg mcp"}  # an agent starts it: the example is the agent's configuration


def test_every_command_speaks_json_but_those_that_have_no_result() -> None:
    options = {path: [word for one in command.params for word in one.opts] for path, command in acting().items()}
    assert {path for path, words in options.items() if "--json" not in words} == set(WITHOUT_JSON)
    page = (ROOT / "docs" / "cli.md").read_text()
    (told,) = re.findall(r"Four commands have no `--json`.*?\.\n", page, re.DOTALL)
    assert [path for path in WITHOUT_JSON if f"`{path}`" not in told] == []


def test_commands_that_are_listed_before_they_are_loaded_say_what_they_will_say() -> None:
    loaded = dict(commands())
    for panel, places in PLACES.items():
        for name, place in places.items():
            command = loaded[f"kg {name}"]
            assert " ".join(command.help.split()).startswith(place.does), name
            assert command.rich_help_panel == panel, name
    assert isinstance(loaded["kg"], DeferringGroup)
    late = {name for places in PLACES.values() for name in places}
    assert set(loaded["kg"].commands) - late == set(), "a command of its own line in PLACES is loaded when it is called"


@pytest.mark.parametrize("words", [["--version"], ["--help"], []])
def test_nothing_that_takes_long_to_load_is_loaded_to_say_what_there_is(home: Path, words: list[str]) -> None:
    program = "import sys; from kappa.app.cli import entry\ntry: entry.main()\nfinally: print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        env={**os.environ, "KAPPA_HOME": str(home)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    loaded = done.stdout.splitlines()[-1].split()
    assert "typer" in loaded, done.stderr
    heavy = (
        "pydantic_settings",
        "psycopg",
        "httpx2",
        "fastapi",
        "numpy",
        "asyncio",
        "kappa.engine",
        "kappa.graph",
        "kappa.pg",
    )
    assert [name for name in heavy if name in loaded] == []


def completed(line: str, home: Path, env: dict[str, str] | None = None) -> list[str]:
    """What bash offers at the end of the line."""
    words = line.split(" ")
    given = {"_KG_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), **(env or {})}
    patient = "from kappa.app.cli import complete; complete.WITHIN = 60"  # else nothing is offered on a busy machine
    program = f"import sys; sys.argv[0] = 'kg'; {patient}; from kappa.app.cli import entry; entry.main()"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("KAPPA_")}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**clean, "KAPPA_HOME": str(home), **given},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("kg pol", ["polarity"]),
        ("kg job re", ["reject", "retry"]),
        ("kg admin workers lanes ", ["edit", "drain", "resume"]),
        ("kg job list --st", ["--state"]),
        ("kg job list --state f", ["failed"]),
        ("kg token make x --scope jobs:e", ["jobs:enqueue"]),
        ("kg user make ada --role cur", ["curator"]),
        ("kg admin workers lanes edit ", []),
    ],
)
def test_bash_completes_commands_options_and_names_without_a_server(home: Path, line: str, offers: list[str]) -> None:
    assert completed(line, home) == offers


def test_bash_completes_the_names_that_a_server_has(up: Up) -> None:
    with up.client() as client:
        job = client.post("/jobs", json={"kind": "self_test", "delay": 3600}).json()["id"]
        client.put("/roles/auditor", json={"permissions": ["audit:view"]}).raise_for_status()
    assert completed("kg admin workers lanes edit ch", up.home) == ["checks"]
    assert completed("kg job enqueue self", up.home) == ["self_test"]
    assert completed("kg job cancel ", up.home) == [str(job)]
    assert completed("kg user make ada --role aud", up.home) == ["auditor"]


def test_a_server_that_refuses_or_is_gone_completes_nothing(up: Up) -> None:
    elsewhere = {"KAPPA_SERVER": "http://127.0.0.1:1", "KAPPA_TOKEN": "kappa_nobody"}
    assert completed("kg job cancel ", up.home, elsewhere) == []
    assert completed("kg job cancel ", up.home, {"KAPPA_TOKEN": "kappa_nobody"}) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_can_be_shown_for_each_shell(home: Path, shell: str) -> None:
    said = kg("--show-completion", shell, home=home, env={"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"})
    assert said.returncode == 0, said.stderr
    assert "_COMPLETE" in said.stdout


def test_every_exit_code_is_what_the_document_says(up: Up, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    with up.client() as client:
        mine = client.post("/tokens", json={"name": "little", "scopes": ["jobs:view"]}).json()["token"]
    seen = {
        0: kg("job", "list", home=up.home),
        1: kg("job", "show", "999", home=up.home),
        2: kg("job", "enqueue", "self_test", "--payload", "{", home=up.home),
        3: kg("job", "list", home=alone),
        4: kg("admin", "workers", home=up.home, env={"KAPPA_TOKEN": mine}),
    }
    assert {code: done.returncode for code, done in seen.items()} == {code: code for code in seen}
    assert {*seen, entry.INTERRUPTED} == set(entry.EXIT_CODES)
    for code in (1, 2, 3, 4):
        assert re.fullmatch(r"kg: [^\n]+\n", seen[code].stderr), seen[code].stderr
    page = (ROOT / "docs" / "cli.md").read_text()
    assert re.findall(r"^\| (\d+) \| (.+) \|$", page, re.MULTILINE) == [
        (str(code), meaning) for code, meaning in entry.EXIT_CODES.items()
    ]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["serach", "otter"], "kg: no such command 'serach'. Did you mean 'search'"),
        (["job", "list", "--nope"], "kg: no such option: --nope "),
        (["job", "list", "--limit", "many"], "kg: invalid value for '--limit': "),
        (["job", "list", "--state", "odd"], "kg: invalid value for '--state': 'odd' is not one of "),
        (["job", "show"], "kg: missing argument 'ID' (kg job show --help)"),
        (["path", "otter"], "kg: missing argument "),
        (["search", "otter", "river", "sea"], "kg: got unexpected extra argument"),
        (["up", "--no-api", "--workers", "2"], "kg: invalid value: --no-api leaves nothing for --api-only and "),
    ],
)  # fmt: skip
def test_what_is_typed_wrong_gives_one_clear_line(home: Path, words: list[str], line: str) -> None:
    said = kg(*words, home=home)
    assert (said.returncode, said.stdout) == (entry.NONSENSE, "")
    assert said.stderr.startswith(line), said.stderr
    assert re.search(r" \(kg [a-z -]*--help\)\n$", said.stderr)
    assert said.stderr.count("\n") == 1


def test_a_group_alone_shows_its_commands(home: Path) -> None:
    said = kg("job", home=home)
    assert (said.returncode, said.stderr) == (entry.NONSENSE, "")
    assert "approve" in said.stdout


def test_an_unknown_command_names_the_one_that_was_meant(home: Path) -> None:
    said = kg("serach", "otter", home=home)
    assert said.returncode == entry.NONSENSE
    assert "search" in said.stderr


def test_json_of_a_command_that_reads_is_json(up: Up) -> None:
    for words in (("job", "list"), ("admin", "workers"), ("role", "list"), ("token", "list"), ("tool", "list")):
        assert json.loads(kg(*words, "--json", home=up.home).stdout) is not None


def test_commands_that_speak_http_load_no_driver_and_nothing_of_the_server() -> None:
    speaking = ("admin", "artifacts", "documents", "graph", "ingest", "jobs", "ontologies", "roles", "schedules",
                "tokens", "tools", "users", "vocab")  # fmt: skip
    program = f"import sys, {', '.join(f'kappa.app.cli.{one}' for one in speaking)}; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    heavy = ("psycopg", "psutil", "numpy", "fastapi", "mcp", "kappa.app.services", "kappa.app.wiring")
    assert [name for name in heavy if name in loaded] == []


def test_what_is_loaded_ahead_for_tests_looks_at_no_environment() -> None:
    program = f"import sys, {', '.join(warm.LOADED)}; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in ("kappa.app.cli.show", "typer.rich_utils") if name in loaded] == []
