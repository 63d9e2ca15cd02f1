"""`kg` as people and scripts use it."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kappa.app.cli import worker
from kappa.app.settings import Settings
from tests.ground import eventually, kg, path_without

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def stopped(home: Path) -> Iterator[None]:
    yield
    kg("db", "stop", "--force", home=home)


def test_start_status_url_and_stop(home: Path) -> None:
    before = kg("db", "status", "--json", home=home)
    assert (before.returncode, json.loads(before.stdout)["state"]) == (3, "down")
    started = kg("db", "start", "--json", home=home)
    assert started.returncode == 0, started.stderr
    facts = json.loads(started.stdout)
    assert facts["state"] == "ready"
    assert kg("db", "status", home=home).returncode == 0
    url = kg("db", "url", home=home).stdout.strip()
    assert f"127.0.0.1:{facts['port']}/kappa" in url
    by_url = kg("db", "psql", "-Atc", "SELECT 6 * 7", home=home, env={"KAPPA_DATABASE_URL": url})
    assert (by_url.returncode, by_url.stdout) == (0, "42\n"), by_url.stderr
    assert json.loads(kg("db", "stop", "--json", home=home).stdout) == {"stopped": True}
    assert json.loads(kg("db", "stop", "--json", home=home).stdout) == {"stopped": False}


def test_the_superuser_is_there_for_those_who_ask_for_it(home: Path) -> None:
    who = "SELECT session_user, current_setting('is_superuser')"
    assert kg("db", "psql", "-Atc", who, home=home).stdout.strip() == "kappa|off"
    assert kg("db", "psql", "--superuser", "-Atc", who, home=home).stdout.strip() == "postgres|on"
    kg("db", "start", home=home)
    url = kg("db", "url", "--superuser", home=home).stdout.strip()
    with psycopg.connect(url) as connection:
        assert connection.execute(who.encode()).fetchone() == ("postgres", "on")
    refused = kg("db", "psql", "--superuser", home=home, env={"KAPPA_DATABASE_URL": url})
    assert refused.returncode != 0
    assert "KAPPA_DATABASE_URL is set: there is no embedded server" in refused.stderr


def test_psql_starts_the_server_for_itself_and_passes_its_exit_code_on(home: Path) -> None:
    assert kg("db", "psql", "-c", "SELECT nonsense", home=home).returncode == 1
    assert kg("db", "status", home=home).returncode == 3


def test_the_password_never_stands_on_a_command_line(home: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "kappa.app.cli.entry", "db", "psql", "-c", "SELECT pg_sleep(600)"],
        env={**os.environ, "KAPPA_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        command = eventually(lambda: _command_line_with(b"pg_sleep", but_not=process.pid), what="psql runs")
        password = (home / "postgres" / "password").read_bytes()
        assert password not in command
    finally:
        process.send_signal(signal.SIGINT)  # must not take the server from under psql
        kg("db", "stop", "--force", home=home)
        process.wait()


def _command_line_with(text: bytes, but_not: int) -> bytes | None:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if line.split(b"\0")[0].endswith(b"psql") and text in line and path.parent.name != str(but_not):
            return line
    return None


def test_migrate_says_what_it_did_and_then_that_nothing_is_left(home: Path) -> None:
    kg("db", "start", home=home)
    first = kg("db", "migrate", "--json", home=home)
    assert first.returncode == 0, first.stderr
    again = kg("db", "migrate", home=home)
    assert again.stdout == "the schema is up to date\n"


NEWER = """INSERT INTO kappa.migrations (component, number, name, checksum, compatible)
           SELECT component, max(number) + 1, 'from_later', '', %s FROM kappa.migrations
            WHERE component = 'engine' GROUP BY component"""


def test_status_and_doctor_tell_how_the_schema_compares_to_this_version(home: Path) -> None:
    def told() -> tuple[dict[str, list[str] | str | None], str, dict[str, str]]:
        schema = json.loads(kg("db", "status", "--json", home=home).stdout)["schema"]
        findings = json.loads(kg("doctor", "--json", home=home).stdout)
        return (
            schema,
            kg("db", "status", home=home).stdout,
            next(finding for finding in findings if finding["topic"] == "schema"),
        )

    assert json.loads(kg("db", "status", "--json", home=home).stdout)["schema"] is None
    kg("db", "start", home=home)
    schema, words, finding = told()
    assert "engine/0001_jobs.sql" in (schema["pending"] or "")
    assert "migrations pending: run `kg db migrate`" in words
    assert finding["level"] == "note"
    kg("db", "migrate", home=home)
    schema, words, finding = told()
    assert schema == {"pending": [], "newer": [], "problem": None}
    assert "up to date" in words
    assert finding["level"] == "ok"
    url = kg("db", "url", home=home).stdout.strip()
    with psycopg.connect(url) as later:
        later.execute(NEWER, [True])
    schema, words, finding = told()
    (newer,) = schema["newer"] or ()
    assert (newer.startswith("engine/"), newer.endswith("_from_later.sql")) == (True, True)
    assert f"newer than this version and compatible with it: {newer}" in words
    assert (finding["level"], newer in finding["found"]) == ("note", True)
    assert kg("db", "migrate", home=home).stdout == "the schema is up to date\n"
    with psycopg.connect(url) as later:
        later.execute(NEWER, [False])
    schema, words, finding = told()
    assert "not marked compatible" in str(schema["problem"])
    assert "not marked compatible" in " ".join(words.split())
    assert finding["level"] == "problem"
    refused = kg("db", "migrate", home=home)
    assert (refused.returncode != 0, "not marked compatible" in refused.stderr) == (True, True)


def test_doctor_names_the_server_its_extensions_its_room_and_what_follows(home: Path) -> None:
    done = kg("doctor", "--json", home=home)
    assert done.returncode == 0, done.stderr
    found = {finding["topic"]: finding for finding in json.loads(done.stdout)}
    assert found["server"]["found"].startswith("PostgreSQL 18")
    assert found["vector"]["level"] == "ok"
    assert found["age"]["level"] == "note"
    assert re.fullmatch(r"\d+ of 97 free", found["connections"]["found"])
    assert set(found) == {
        *("server", "connections", "schema", "vector", "pg_trgm", "age", "disk", "kernel", "containers", "sandbox")
    }
    assert (found["kernel"]["level"], found["kernel"]["found"]) == ("ok", "compiled")
    assert all(finding["follows"] for finding in found.values())
    assert kg("db", "status", home=home).returncode == 3, "a look leaves nothing running"


@pytest.mark.parametrize(
    ("env", "words", "follows"),
    [
        ({}, "none: process tools are refused", "install bubblewrap 0.8 or newer, or set KAPPA_UNSANDBOXED_TOOLS=yes"),
        (
            {"KAPPA_UNSANDBOXED_TOOLS": "yes"}, "none: tools run unsandboxed (KAPPA_UNSANDBOXED_TOOLS=yes)",
            "tools can read everything",
        ),
    ],
)  # fmt: skip
def test_doctor_says_that_there_is_no_sandbox(home: Path, env: dict[str, str], words: str, follows: str) -> None:
    with path_without("bwrap") as path:
        nowhere = {"KAPPA_DATABASE_URL": "postgresql://127.0.0.1:1/none"}
        done = kg("doctor", "--json", home=home, env={**nowhere, "PATH": path, **env})
    (found,) = [finding for finding in json.loads(done.stdout) if finding["topic"] == "sandbox"]
    assert (found["level"], found["found"]) == ("note", words)
    assert found["follows"].startswith("bubblewrap is not installed; " + follows)


def test_doctor_tells_who_has_a_bubblewrap_that_may_do_nothing_to_let_it(home: Path) -> None:
    with path_without("bwrap") as path:
        forbidden = Path(path) / "bwrap"
        forbidden.write_text("#!/bin/sh\necho 'Creating new namespace failed' >&2\nexit 1\n")
        forbidden.chmod(0o755)
        env = {"KAPPA_DATABASE_URL": "postgresql://127.0.0.1:1/none", "PATH": path}
        done = kg("doctor", "--json", home=home, env=env)
    (found,) = [finding for finding in json.loads(done.stdout) if finding["topic"] == "sandbox"]
    assert "Creating new namespace failed" in found["follows"]
    assert "let it make namespaces (in a container: docs/deploy.md" in found["follows"]


def test_doctor_notes_a_home_that_others_may_look_into(home: Path) -> None:
    def of_home(mode: int) -> list[str]:
        home.chmod(mode)
        done = kg("doctor", "--json", home=home, env={"KAPPA_DATABASE_URL": "postgresql://127.0.0.1:1/none"})
        return [one["level"] for one in json.loads(done.stdout) if one["topic"] == "home"]

    home.mkdir(exist_ok=True)
    assert of_home(0o700) == []
    assert of_home(0o755) == ["note"]


def test_a_variable_that_is_no_setting_is_named_and_what_was_meant_with_it(home: Path) -> None:
    env = {"KAPPA_PROVDER": "anthropic", "kappa_unheard_of": "1"}
    done = kg("doctor", "--json", home=home, env=env)
    assert done.returncode == 0, done.stderr
    found = [
        (one["level"], one["found"], one["follows"]) for one in json.loads(done.stdout) if one["topic"] == "settings"
    ]
    assert found == [
        ("note", "KAPPA_PROVDER is no setting", "it changes nothing; KAPPA_PROVIDER is one"),
        ("note", "kappa_unheard_of is no setting", "it changes nothing"),
    ]
    started = kg("up", "--host", "256.0.0.1", home=home, env=env)
    assert "KAPPA_PROVDER is no setting, and changes nothing; was KAPPA_PROVIDER meant?" in started.stderr


def test_doctor_notes_a_role_that_is_a_superuser(home: Path) -> None:
    kg("db", "start", home=home)

    def of_role(*more: str) -> list[str]:
        url = kg("db", "url", *more, home=home).stdout.strip()
        found = json.loads(kg("doctor", "--json", home=home, env={"KAPPA_DATABASE_URL": url}).stdout)
        return [one["found"] for one in found if one["topic"] == "role"]

    assert of_role() == []
    assert of_role("--superuser") == ["postgres is a superuser"]


def test_doctor_says_what_is_wrong_with_a_server_that_isnt_there(home: Path) -> None:
    done = kg("doctor", "--json", home=home, env={"KAPPA_DATABASE_URL": "postgresql://127.0.0.1:1/none"})
    assert done.returncode == 1
    found = {finding["topic"]: finding for finding in json.loads(done.stdout)}
    assert found["server"]["level"] == "problem"
    assert "refused" in found["server"]["found"]
    assert "disk" in found


def test_doctor_says_when_the_pools_are_larger_than_the_server(home: Path) -> None:
    done = kg("doctor", "--json", home=home, env={"KAPPA_POOL_GRAPH": "500"})
    assert done.returncode == 1
    found = {finding["topic"]: finding for finding in json.loads(done.stdout)}
    assert "may open 520 connections" in found["connections"]["follows"]


@pytest.mark.parametrize(
    ("env", "line"),
    [
        ({"KAPPA_POSTGRES_PORT": "many"}, r"kg: KAPPA_POSTGRES_PORT is 'many': .*integer.*"),
        ({"KAPPA_POOL_QUEUE": "0"}, r"kg: KAPPA_POOL_QUEUE is '0': .*"),
        ({"KAPPA_HOME": "/dev/null/home"}, r"kg: the Kappa home /dev/null/home can't be used: Not a directory.*"),
        ({"KAPPA_POSTGRES_BIN": "/nowhere"}, r"kg: /nowhere has no postgres and no initdb"),
        ({"KAPPA_DATABASE_URL": "postgresql:///x"}, r"kg: KAPPA_DATABASE_URL is set: there is no embedded .*"),
    ],
)
def test_a_wrong_setting_gives_one_clear_line(home: Path, env: dict[str, str], line: str) -> None:
    done = kg("db", "start", home=home, env=env)
    assert done.returncode == 1
    assert re.fullmatch(line, done.stderr.strip()), done.stderr
    assert done.stdout == ""


def test_an_unknown_command_is_a_usage_error(home: Path) -> None:
    assert kg("db", "destroy", home=home).returncode == 2


def commands() -> Iterator[tuple[str, Any]]:
    """Every command and group of `kg`, by what one types."""
    from kappa.app.cli.commands import whole

    def walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
        yield path, command
        for name, child in getattr(command, "commands", {}).items():
            yield from walk(child, f"{path} {name}")

    return walk(whole(), "kg")


def test_every_command_has_a_help_text() -> None:
    assert [path for path, command in commands() if not command.help] == []


def test_every_setting_is_documented() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    settings = [f"`KAPPA_{name.upper()}`" for name in Settings.model_fields]
    assert [name for name in settings if name not in page] == []


def test_every_command_is_documented() -> None:
    documented = (ROOT / "docs" / "cli.md").read_text()
    wanted = [path for path, command in commands() if not getattr(command, "commands", {})]
    wanted += ["kg admin workers", "kg admin workers lanes"]
    assert [path for path in wanted if f"`{path}" not in documented] == []


def test_a_worker_has_no_more_memory_than_its_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = worker._memory_mb()  # pyright: ignore[reportPrivateUsage]
    assert whole > 256
    for limit, has in (("max\n", whole), ("268435456\n", 256), ("9223372036854771712\n", whole)):
        (tmp_path / "limit").write_text(limit)
        monkeypatch.setattr(worker, "_MEMORY_LIMITS", [str(tmp_path / "none"), str(tmp_path / "limit")])
        assert worker._memory_mb() == has  # pyright: ignore[reportPrivateUsage]
