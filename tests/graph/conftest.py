"""A graph on a fresh database, with its snapshot refreshed only when a test says so."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from kappa.graph import COMPONENT, Budget, Graph, GraphConfig
from kappa.pg import migrate
from tests.conftest import Server

TEMPLATE = "graph_template"


@pytest.fixture(scope="session")
def graph_template(server: Server, template: str) -> str:
    server.admin.execute(
        sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(TEMPLATE), sql.Identifier(template))
    )
    with psycopg.connect(server.embedded.url(database=TEMPLATE), autocommit=True) as connection:
        migrate(connection, [COMPONENT])
    return TEMPLATE


@pytest.fixture
def url(server: Server, graph_template: str) -> Iterator[str]:
    """The URL of a fresh database with the graph's schema."""
    made = server.create(graph_template)
    yield made
    server.drop(made)


@pytest.fixture
def graph(url: str) -> Iterator[Graph]:
    """A graph that answers from memory after `refresh`."""
    made = Graph(url, GraphConfig(), budget=Budget()).open(listen=False)
    yield made
    made.close()


@pytest.fixture
def sql_graph(url: str) -> Iterator[Graph]:
    """The same database, without anything in memory."""
    made = Graph(url, GraphConfig(snapshot=False, vectors_bytes=0), budget=Budget()).open(listen=False)
    yield made
    made.close()
