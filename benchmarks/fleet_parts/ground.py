"""The ground of the benchmark: cores, files, a PostgreSQL, databases with tokens and jobs, and servers to be tested."""

import hashlib
import json
import os
import random
import resource
import secrets
import signal
import socket
import string
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import psycopg
from psycopg import sql

from benchmarks.report import console
from kappa.app import home
from kappa.app.wiring import COMPONENTS
from kappa.engine import Engine
from kappa.engine.model import Executor, Lane
from kappa.pg import migrate
from kappa.pg.embedded import ROLE, EmbeddedServer

LANE, KIND, NO_SUCH_KIND = "bench-fleet", "bench_task", "bench_nothing"
TEMPLATE = "bench_fleet_template"
SUBMITTERS = 5
ATTEMPTS = 10
SPARE_FILES = 500
"""Beside one for each worker's connection."""


class CannotRun(Exception):
    """Why there is nothing to measure here."""


@dataclass(frozen=True)
class Cores:
    """Who runs where."""

    server: int
    load: int
    postgres: tuple[int, ...]

    @classmethod
    def choose(cls, postgres: str) -> "Cores":
        usable = sorted(os.sched_getaffinity(0))
        if len(usable) < 2:
            raise CannotRun(
                f"two cores are needed, one for the server and one for the simulator; there is {len(usable)}"
            )
        places = {"load": (usable[1],), "server": (usable[0],), "both": tuple(usable[:2]), "free": tuple(usable[2:])}
        if not places[postgres]:
            raise CannotRun("there is no third core for PostgreSQL")
        return cls(usable[0], usable[1], places[postgres])

    def busy_seconds(self) -> float:
        """What both cores did until now, for whomever; what a host took away counts as well."""
        times = psutil.cpu_times(percpu=True)
        return sum(sum(times[core]) - times[core].idle - times[core].iowait for core in (self.server, self.load))


def raise_file_limit(workers: int) -> None:
    """Each process has a file for each worker."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most != resource.RLIM_INFINITY and most < workers + SPARE_FILES:
        raise CannotRun(f"{workers} workers need {workers + SPARE_FILES} open files, and `ulimit -Hn` is {most}")


@contextmanager
def preferred(nice: int) -> Generator[None]:
    """Everything that this process starts goes before, or after, what others do on this machine."""
    if not nice:
        yield
        return
    os.nice(nice)
    _prefer_group(os.getpid(), nice)
    try:
        yield
    finally:
        _prefer_group(os.getpid(), 0)  # it is the whole session's, and stays


def _prefer_group(pid: int, nice: int) -> None:
    """Linux may share cores between sessions first and between their processes then."""
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


class Postgres:
    """The PostgreSQL under test: an embedded one with durable settings, or the one of KAPPA_DATABASE_URL."""

    def __init__(self, place: Path, cores: Cores, given: str | None) -> None:
        self._cores = cores
        self._given = given
        self._embedded = None if given else EmbeddedServer(
            place / "pg", settings={"max_connections": "200", "shared_preload_libraries": "pg_stat_statements"},
            say=console.print,
        )  # fmt: skip
        self._held = ExitStack()

    @property
    def may_be_killed(self) -> bool:
        return self._embedded is not None

    @contextmanager
    def running(self) -> Generator[None]:
        with self._held:
            self._start()
            yield

    def _start(self) -> None:
        if self._embedded is None:
            return
        self._held.enter_context(self._embedded.hold("the benchmark"))
        self._pin()

    def _pin(self) -> None:
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.cpu_affinity(list(self._cores.postgres))
                if nice := os.nice(0):
                    _prefer_group(process.pid, nice)

    def _processes(self) -> list[psutil.Process]:
        assert self._embedded is not None
        pid = self._embedded.status().pid
        assert pid is not None
        postmaster = psutil.Process(pid)
        return [postmaster, *postmaster.children()]

    def kill(self) -> None:
        """All of it at once, by SIGKILL."""
        processes = self._processes()
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=10)

    def start_again(self) -> None:
        self._start()

    def url(self, database: str) -> str:
        if self._embedded is not None:
            return self._embedded.url(database=database, by_socket=True)
        assert self._given is not None
        return urlsplit(self._given)._replace(path=f"/{database}").geturl()

    def admin(self) -> "closing[psycopg.Connection[tuple[object, ...]]]":
        url = self._given
        if self._embedded is not None:
            url = self._embedded.superuser_url(database="postgres", by_socket=True)
        assert url is not None
        return closing(psycopg.connect(url, autocommit=True, application_name="kappa benchmark"))

    def create(self, name: str, template: str | None = None) -> str:
        with self.admin() as admin:
            admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
            made = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
            if self._embedded is not None:
                made = sql.SQL("{} OWNER {}").format(made, sql.Identifier(ROLE))
            if template:
                made = sql.SQL("{} TEMPLATE {}").format(made, sql.Identifier(template))
            admin.execute(made)
        return self.url(name)

    def drop(self, name: str) -> None:
        with self.admin() as admin:
            admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def cpu_seconds(self) -> float:
        """Of all its processes that live; those that ended are counted by their parent."""
        if self._embedded is None:
            return 0.0
        total = 0.0
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                used = process.cpu_times()
                total += used.user + used.system
        return total


class Statements:
    """How many statements and transactions a database has done. Asked from another database."""

    def __init__(self, postgres: Postgres, database: str) -> None:
        self._postgres = postgres
        self._database = database
        with postgres.admin() as admin:
            try:
                admin.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
                admin.execute("SELECT 1 FROM pg_stat_statements LIMIT 1")
                self.exact = True
            except psycopg.Error:
                self.exact = False

    def count(self) -> dict[str, float]:
        with self._postgres.admin() as admin:
            query = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s"
            row = admin.execute(query, [self._database]).fetchone()
            found = {"transactions": float(row[0]) if row else 0.0}  # type: ignore[arg-type]
            if self.exact:
                row = admin.execute(
                    "SELECT coalesce(sum(s.calls), 0) FROM pg_stat_statements AS s"
                    " JOIN pg_database AS d ON d.oid = s.dbid WHERE d.datname = %s AND s.toplevel",
                    [self._database],
                ).fetchone()
                found["statements"] = float(row[0]) if row else 0.0  # type: ignore[arg-type]
        return found


class Server:
    """A server process on its own core, always on the same port."""

    def __init__(self, name: str, command: list[str], env: Mapping[str, str], cores: Cores, log: Path) -> None:
        self.name = name
        self.port = _free_port()
        self._command = [part.replace("PORT", str(self.port)) if part == "PORT" else part for part in command]
        self._env = env
        self._core = cores.server
        self._log = log
        self.process: psutil.Popen | None = None

    def start(self, patience: float = 60.0) -> None:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self.process = psutil.Popen(self._command, env=dict(self._env), stdout=log, stderr=log)
        self.process.cpu_affinity([self._core])
        until = time.monotonic() + patience
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise CannotRun(f"{self.name} ended at once:\n{self._log.read_text()[-2000:]}")
            if self._answers():
                return
            time.sleep(0.05)
        raise CannotRun(f"{self.name} didn't answer within {patience:.0f} s:\n{self._log.read_text()[-2000:]}")

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=2) as answer:
                return answer.status == 200
        except (OSError, urllib.error.URLError):
            return False

    def stop(self) -> float:
        """By SIGTERM; the seconds that it took."""
        assert self.process is not None
        begun = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(45)
            except psutil.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return time.monotonic() - begun

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    @property
    def rss_mb(self) -> float:
        assert self.process is not None
        return self.process.memory_info().rss / 2**20

    @property
    def cpu_seconds(self) -> float:
        assert self.process is not None
        used = self.process.cpu_times()
        return used.user + used.system


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass
class Stand:
    """A database with jobs in it and a server on it."""

    server: Server
    database: str
    url: str
    statements: Statements
    home: Path | None = None

    @property
    def operator(self) -> str:
        assert self.home is not None
        return home.token_file(self.home).read_text().strip()

    def a_job(self) -> int:
        """The last one, which stays queued the longest."""
        with closing(psycopg.connect(self.url, autocommit=True)) as connection:
            row = connection.execute("SELECT max(id) FROM kappa.jobs").fetchone()
        assert row is not None
        return int(row[0])


class Ground:
    """Makes stands."""

    def __init__(
        self, place: Path, postgres: Postgres, cores: Cores, workers: int, flooders: int, logs: Path | None = None
    ) -> None:
        self.place = place
        self.logs = logs or place
        self.postgres = postgres
        self.cores = cores
        self.workers = workers
        self.flooders = flooders
        self.identities = place / "identities.json"
        self._number = 0

    def prepare(self) -> None:
        """A template with the schema, the lane, and a token for each worker."""
        url = self.postgres.create(TEMPLATE)
        with closing(psycopg.connect(url, autocommit=True)) as connection:
            migrate(connection, COMPONENTS)
        self._engine(url).install()
        everyone = [
            (f"w{number:05}", _address(number), "kappa_" + secrets.token_urlsafe(32))
            for number in range(self.workers + self.flooders)
        ]
        with closing(psycopg.connect(url, autocommit=True)) as connection:
            connection.execute("INSERT INTO kappa.roles (name, permissions) VALUES ('bench_fleet', '{fleet:work}')")
            row = connection.execute("INSERT INTO kappa.users (name) VALUES ('bench-fleet') RETURNING id").fetchone()
            assert row is not None
            connection.execute("INSERT INTO kappa.user_roles (user_id, role) VALUES (%s, 'bench_fleet')", row)
            with connection.cursor().copy("COPY kappa.tokens (user_id, name, hash) FROM STDIN") as copy:
                for name, _, token in everyone:
                    copy.write_row((row[0], name, hashlib.sha256(token.encode()).digest()))
            connection.execute("VACUUM ANALYZE")
        self.identities.write_text(json.dumps(everyone))
        self.identities.chmod(0o600)

    def forget(self) -> None:
        self.postgres.drop(TEMPLATE)

    @contextmanager
    def stand(self, design: str, jobs: int, lease: float) -> Generator[Stand]:
        """A fresh database and a server on it."""
        self._number += 1
        name = f"bench_fleet_{self._number}"
        url = self.postgres.create(name, TEMPLATE)
        self._fill(url, jobs, lease)
        server, at = self.server(design, url, f"{name}.log")
        try:
            server.start()
            yield Stand(server, name, url, Statements(self.postgres, name), at)
        finally:
            if server.process is not None:
                server.stop()
            self.postgres.drop(name)

    def server(self, design: str, url: str, log: str) -> tuple[Server, Path | None]:
        """A server that is not started yet."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith("KAPPA_")}
        env = {**clean, "KAPPA_DATABASE_URL": url}
        if design == "plain":
            command = [sys.executable, "-m", "benchmarks.fleet_parts.plain_server", "PORT", LANE]
            return Server("the plain design", command, env, self.cores, self.logs / log), None
        self._number += 1
        at = self.place / f"home-{self._number}"
        env |= {"KAPPA_HOME": str(at), "KAPPA_GRACE": "5"}
        # Without lanes of its own, but with maintenance: a fleet in which nobody reaps has no false deaths.
        command = [sys.executable, "-m", "kappa.app.cli.entry", "up", "--no-lanes", "--port", "PORT"]
        return Server("Kappa", command, env, self.cores, self.logs / log), at

    def _engine(self, url: str) -> Engine:
        engine = Engine(url)
        engine.job(KIND, max_attempts=ATTEMPTS)(_nothing)
        slots = max(20_000, 4 * self.workers)
        engine.lane(Lane(LANE, (KIND, NO_SUCH_KIND), slots, executor=Executor.FLEET, stale_timeout=timedelta(days=1)))
        return engine

    def _fill(self, url: str, jobs: int, lease: float) -> None:
        chance = random.Random(11)
        letters = "".join(chance.choices(string.ascii_letters + string.digits, k=4096))
        with closing(psycopg.connect(url, autocommit=True)) as connection:
            changed = "UPDATE kappa.lanes SET lease_ttl = make_interval(secs => %s) WHERE name = %s"
            connection.execute(changed, [lease, LANE])
        with self._engine(url).client() as client:
            for submitter in range(SUBMITTERS):
                count = jobs // SUBMITTERS + (submitter < jobs % SUBMITTERS)
                payloads = ({"args": letters[: chance.randint(300, 3000)]} for _ in range(count))
                client.enqueue_many(KIND, payloads, submitted_by=f"submitter-{submitter}")
        with closing(psycopg.connect(url, autocommit=True)) as connection:
            connection.execute("VACUUM ANALYZE kappa.jobs")


def _nothing(ctx: object, payload: object) -> None:
    """Nobody runs it here."""


def _address(number: int) -> str:
    return f"127.{1 + number // 62500}.{number // 250 % 250}.{1 + number % 250}"
