"""What was found on this machine, and what follows from it."""

import os
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path

import psycopg

from kappa.app import wiring
from kappa.app.settings import Settings, mistyped
from kappa.engine.tools import sandbox
from kappa.pg import Database, KappaError, check, queries
from kappa.pg.database import capacity
from kappa.pg.errors import SchemaTooOld
from kappa.pg.queries import Row

sql = queries.beside(__file__)
SERVER = sql["server"]
EXTENSIONS = sql["extensions"]

LITTLE_DISK = 5 * 1024**3
TOO_LITTLE_DISK = 512 * 1024**2

KERNELS = ("kappa.graph.query._hops", "kappa.graph.query._dots")

WITH_EXTENSION = {
    "vector": "nearest vectors can be found through an index",
    "pg_trgm": "similar text can be found through an index",
    "age": "an Apache AGE graph in this database can be read",
}


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    topic: str
    level: Level
    found: str
    follows: str


def examine(settings: Settings, say: Callable[[str], None]) -> list[Finding]:
    """Look at everything. What can't be looked at is a finding, not an error."""
    findings: list[Finding] = []
    with ExitStack() as stack:
        try:
            database = stack.enter_context(wiring.open_database(settings, "kg doctor", say))
            connection = stack.enter_context(database.connect())
            findings += _of_server(settings, database, connection)
        except (KappaError, psycopg.Error) as error:
            found = " ".join(str(error).split())
            findings.append(Finding("server", Level.PROBLEM, found, "nothing works without a database"))
    return [
        *_of_variables(), *findings, *_of_home(settings.home), _of_disk(settings.home), _of_kernel(), _of_containers(),
        _of_sandbox(settings),
    ]  # fmt: skip


def _of_variables() -> Iterator[Finding]:
    for name, meant in mistyped():
        follows = "it changes nothing" + (f"; {meant} is one" if meant else "")
        yield Finding("settings", Level.NOTE, f"{name} is no setting", follows)


def _of_server(settings: Settings, database: Database, connection: psycopg.Connection[Row]) -> Iterator[Finding]:
    row = connection.execute(SERVER.sql).fetchone()
    assert row is not None
    version, address, encoding, role, is_superuser = row
    embedded = settings.database_url is None
    origin = f"embedded, data in {settings.home.expanduser()}" if embedded else f"at {address}"
    found = f"PostgreSQL {version}, {origin}"
    if encoding != "UTF8":
        yield Finding("server", Level.PROBLEM, f"{found}, encoding {encoding}", "the database must be in UTF8")
    else:
        yield Finding("server", Level.OK, found, "work and knowledge are kept here")
    if is_superuser:
        follows = "one that owns the database will do, and can't reach the server's files and programs"
        yield Finding("role", Level.NOTE, f"{role} is a superuser", follows)
    yield _of_connections(database, connection)
    yield _of_schema(connection)
    for name, installed, available in connection.execute(EXTENSIONS.sql, {"names": list(WITH_EXTENSION)}):
        if installed or available:
            state = f"{installed}, installed" if installed else f"{available}, available"
            yield Finding(name, Level.OK, state, WITH_EXTENSION[name])
        else:
            yield Finding(name, Level.NOTE, "not there", f"not so here: {WITH_EXTENSION[name]}; never required")


def _of_connections(database: Database, connection: psycopg.Connection[Row]) -> Finding:
    room = capacity(connection)
    found = f"{room.free} of {room.usable} free"
    need = sum(bounds.max_size for bounds in database.bounds.values())
    try:
        database.check_capacity()
    except KappaError as error:
        return Finding("connections", Level.PROBLEM, found, str(error))
    if database.behind_pooler:
        return Finding("connections", Level.OK, found, "a pooler stands in front; statements are not prepared")
    if need > room.free:
        return Finding("connections", Level.NOTE, found, f"the pools may want {need}, and may have to wait")
    return Finding("connections", Level.OK, found, f"the pools of one process open {need} at most")


def _of_schema(connection: psycopg.Connection[Row]) -> Finding:
    try:
        newer = check(connection, wiring.COMPONENTS)
    except SchemaTooOld as error:
        return Finding("schema", Level.NOTE, "not up to date", str(error))
    except KappaError as error:
        return Finding("schema", Level.PROBLEM, "not usable", str(error))
    if newer:
        found = f"newer than this version: {', '.join(newer)}"
        return Finding("schema", Level.NOTE, found, "compatible: this version works with it until it is upgraded")
    return Finding("schema", Level.OK, "up to date", "nothing to migrate")


def _of_home(home: Path) -> Iterator[Finding]:
    place = home.expanduser().absolute()
    if place.exists() and place.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        follows = f"no secret in it is readable for them, its names are: chmod 700 {home} closes it"
        yield Finding("home", Level.NOTE, f"{home} is open to other users of this machine", follows)


def _of_kernel() -> Finding:
    if find_spec("numpy") is None:
        return Finding("kernel", Level.NOTE, "numpy is missing", "the graph can't be asked here: install kappa[graph]")
    missing = [name for name in KERNELS if find_spec(name) is None]
    if missing:
        follows = "questions are answered by numpy, several times slower: a C compiler was missing at the installation"
        return Finding("kernel", Level.NOTE, f"not compiled: {', '.join(missing)}", follows)
    return Finding("kernel", Level.OK, "compiled", "questions to the graph in memory are answered by C")


def _of_disk(home: Path) -> Finding:
    place = home.expanduser().absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    found = f"{free / 1024**3:.1f} GB free for {home}"
    if free < TOO_LITTLE_DISK:
        return Finding("disk", Level.PROBLEM, found, "the database stops when the disk is full: make room")
    if free < LITTLE_DISK:
        return Finding("disk", Level.NOTE, found, "enough to begin with")
    return Finding("disk", Level.OK, found, "enough")


def _of_containers() -> Finding:
    for path in _engine_sockets():
        if engine := _ask_engine(path):
            return Finding("containers", Level.OK, f"{engine} at {path}", "tools can run in containers")
    return Finding("containers", Level.NOTE, "no Docker or Podman answers", "tools run as processes")


def _engine_sockets() -> Iterator[str]:
    configured = os.environ.get("DOCKER_HOST", "")
    if configured.startswith("unix://"):
        yield configured.removeprefix("unix://")
    yield from ("/var/run/docker.sock", "/run/podman/podman.sock", f"/run/user/{os.getuid()}/podman/podman.sock")


def _ask_engine(path: str) -> str | None:
    """The engine's name, if one answers on this socket."""
    try:
        with socket.socket(socket.AF_UNIX) as channel:
            channel.settimeout(2)
            channel.connect(path)
            request = HTTPConnection("localhost")
            request.sock = channel
            request.request("GET", "/_ping")
            answer = request.getresponse()
            return answer.headers.get("Server", "an engine").split(" ")[0] if answer.status == 200 else None
    except OSError:
        return None


def _of_sandbox(settings: Settings) -> Finding:
    found = sandbox.state(unsandboxed=not settings.tools_need_sandbox)
    if found.sandboxed:
        memory = "the memory of a run's processes together is checked ten times a second"
        return Finding("sandbox", Level.OK, found.summary, f"tools that run as processes are sandboxed; {memory}")
    follows = f"{found.remedy}, or set {sandbox.UNSANDBOXED}=yes"
    if not settings.tools_need_sandbox:
        follows = "tools can read everything that Kappa's user can read"
    return Finding("sandbox", Level.NOTE, found.summary, f"{found.reason}; {follows}")
