"""One embedded server for the whole run, and a fresh database, cloned from a migrated template, for each test."""

import gc
import itertools
import queue
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from kappa.app.wiring import COMPONENTS
from kappa.pg import Database, migrate
from kappa.pg.embedded import ROLE, EmbeddedServer
from tests import ground

TEMPLATE = "kappa_template"

# Durability against a power cut is not under test; against a killed server it is, and that holds without fsync.
QUICK = {"fsync": "off", "max_connections": "200", "autovacuum_naptime": "5s"}

FIRST = (
    "engine/fleet/test_agent_end_to_end.py",
    "chaos/test_chaos.py",
    "engine/test_handlers.py",
    "engine/tools/test_hostile.py",
    "app/test_api_contract.py",
    "app/test_ingestion_kills.py",
    "app/test_api_random_bodies.py",
    "app/test_kinds.py",
    "app/test_mcp.py",
    "test_benchmarks_graph.py",
    "engine/tools/test_conformance.py",
    "test_benchmarks_fleet.py",
    "app/test_up.py",
    "pg/test_embedded.py",
    "app/test_cli_knowing.py",
    "app/test_demo.py",
    "app/test_server_kills.py",
    "test_house.py",
)
"""The files that take longest. They begin first, so that at the end nobody waits for the process that has one."""

_numbers = itertools.count(1)

# Whoever is started in the background of a shell ignores ctrl-C, and so would all that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Server:
    """The run's server, and databases on it."""

    def __init__(self, embedded: EmbeddedServer) -> None:
        self.embedded = embedded
        self.admin = self.connect()
        self._stocks: dict[str, Stock] = {}
        self._refuse: Refuse | None = None

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """As the superuser, to whom alone what tests do around Kappa is allowed."""
        return psycopg.connect(self.embedded.superuser_url(database="postgres"), autocommit=True)

    def superuser(self, url: str) -> psycopg.Connection[tuple[Any, ...]]:
        """The superuser's connection to the database of a test's own URL."""
        database = str(conninfo_to_dict(url)["dbname"])
        return psycopg.connect(self.embedded.superuser_url(database=database), autocommit=True)

    def create(self, template: str = "template0") -> str:
        """The URL of a new database."""
        return self.embedded.url(database=_clone(self.admin, template))

    def fresh(self, template: str) -> str:
        """The same, of a template that many tests want: the next ones are made while this one is used."""
        if template not in self._stocks:
            self._stocks[template] = Stock(self.connect(), template)
        return self.embedded.url(database=self._stocks[template].take())

    def drop(self, url: str) -> None:
        """Now or soon: nobody may look for it any more."""
        if self._refuse is None:
            self._refuse = Refuse(self.connect())
        self._refuse.put(url.rsplit("/", 1)[1])

    def close(self) -> None:
        for stock in self._stocks.values():
            stock.close()
        if self._refuse is not None:
            self._refuse.close()
        self.admin.close()


def _clone(connection: psycopg.Connection[tuple[Any, ...]], template: str) -> str:
    name = f"test_{next(_numbers)}"
    # FILE_COPY without fsync is a few milliseconds; the default writes every page to the log.
    connection.execute(
        sql.SQL("CREATE DATABASE {} OWNER {} TEMPLATE {} STRATEGY file_copy").format(
            sql.Identifier(name), sql.Identifier(ROLE), sql.Identifier(template)
        )
    )
    return name


class Stock:
    """Clones of one template, made ahead by a thread."""

    AHEAD = 2

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]], template: str) -> None:
        self._connection = connection
        self._template = template
        self._wanted = threading.Semaphore(self.AHEAD)
        self._made: queue.SimpleQueue[str | psycopg.Error] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._make, name=f"clones of {template}", daemon=True)
        self._thread.start()

    def take(self) -> str:
        made = self._made.get(timeout=ground.PATIENCE)
        self._wanted.release()
        if isinstance(made, psycopg.Error):
            raise made
        return made

    def close(self) -> None:
        self._closed = True
        self._wanted.release()
        self._thread.join()
        self._connection.close()

    def _make(self) -> None:
        while self._wanted.acquire() and not self._closed:
            try:
                self._made.put(_clone(self._connection, self._template))
            except psycopg.Error as error:
                self._made.put(error)


class Refuse:
    """Databases that nobody uses any more, dropped by a thread. PostgreSQL looks ten times a second whether the last
    session has gone, and no test should wait for that."""

    MOST = 20

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._connection = connection
        self._names: queue.Queue[str | None] = queue.Queue(self.MOST)
        self._error: psycopg.Error | None = None
        self._thread = threading.Thread(target=self._drop, name="drops", daemon=True)
        self._thread.start()

    def put(self, name: str) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        self._names.put(name, timeout=ground.PATIENCE)

    def close(self) -> None:
        self._names.put(None)
        self._thread.join()
        self._connection.close()
        if self._error is not None:
            raise self._error

    def _drop(self) -> None:
        while (name := self._names.get()) is not None:
            try:
                self._connection.execute(
                    sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
                )
            except psycopg.Error as error:
                self._error = error


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with started(tmp_path_factory) as running:
        yield running


@contextmanager
def started(tmp_path_factory: pytest.TempPathFactory, settings: Mapping[str, str] | None = None) -> Iterator[Server]:
    """A server of its own, for as long as the block lasts."""
    with quick_directory(tmp_path_factory) as home:
        embedded = EmbeddedServer(home, settings={**QUICK, **(settings or {})}, say=print)
        with embedded.hold("the tests"):
            _cheapen_passwords(embedded)
            running = Server(embedded)
            # What tests set in sessions of Kappa's own role, to see more or to wait less.
            running.admin.execute(
                sql.SQL("GRANT SET ON PARAMETER deadlock_timeout, track_functions TO {}").format(sql.Identifier(ROLE))
            )
            yield running
            running.close()


def _cheapen_passwords(embedded: EmbeddedServer) -> None:
    """Thousands of connections are made, and the usual number of rounds is half of what each of them costs."""
    for url in (embedded.url(), embedded.superuser_url()):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SET scram_iterations = 1")
            password = sql.Literal(connection.info.password)
            connection.execute(sql.SQL("ALTER ROLE CURRENT_USER PASSWORD {}").format(password))


@contextmanager
def quick_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """In memory where there is room."""
    if (memory := ground.memory()) is None:
        yield tmp_path_factory.mktemp("kappa") / "home"
        return
    with tempfile.TemporaryDirectory(prefix="kappa-tests-", dir=memory, ignore_cleanup_errors=True) as made:
        yield Path(made) / "home"


@pytest.fixture(scope="session")
def template(server: Server) -> str:
    server.admin.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(TEMPLATE), sql.Identifier(ROLE)))
    with psycopg.connect(server.embedded.url(database=TEMPLATE), autocommit=True) as connection:
        migrate(connection, COMPONENTS)
    return TEMPLATE


@pytest.fixture
def url(server: Server, template: str) -> Iterator[str]:
    """The URL of a fresh database with Kappa's schema."""
    made = server.fresh(template)
    yield made
    server.drop(made)


@pytest.fixture
def empty_url(server: Server) -> Iterator[str]:
    """The URL of a database with nothing in it."""
    made = server.fresh("template0")
    yield made
    server.drop(made)


@pytest.fixture
def database(url: str) -> Database:
    return Database(url)


@pytest.fixture
def connection(url: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(url, autocommit=True) as opened:
        yield opened


@pytest.fixture
def superuser(server: Server, url: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """The superuser's connection to the test's database."""
    with server.superuser(url) as opened:
        yield opened


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A Kappa home that doesn't exist yet."""
    return tmp_path / "home"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    ranks = {(here / name).resolve(strict=True): rank for rank, name in enumerate(FIRST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


def pytest_collection_finish() -> None:
    # Modules and tests stay to the end: without them the collector has a tenth of the whole work less to do.
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where tests are spread over processes, each tells the first one what it could not test."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["missing_parts"] = dict(ground.missing_parts)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    ground.missing_parts.update(getattr(node, "workeroutput", {}).get("missing_parts", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if ground.missing_parts:
        terminalreporter.section("NOT TESTED for want of", sep="!", red=True)
        for part, count in sorted(ground.missing_parts.items()):
            terminalreporter.line(f"{part}: {count} tests")
