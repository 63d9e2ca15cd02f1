"""Named queries: found or refused while a module is imported, and all of them valid on the migrated schema."""

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

import kappa
from kappa.graph.backup import catalog, staging
from kappa.pg.errors import QueryNotFound
from kappa.pg.queries import Queries, Query, load
from tests.conftest import Server

STATEMENTS_THAT_PREPARE_TAKES = ("SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "WITH", "VALUES", "TABLE")


def parse(text: str) -> Queries:
    return Queries(Path("some.sql"), text)


ELSEWHERE = {"age.sql", "executing.sql", "uniting.sql"}


def every_query() -> list[Query]:
    """But for those on the tables of a foreign graph, whose names are filled in, and on tables that a transaction makes
    for itself: tests/graph/test_statements.py has these."""
    files = sorted(Path(kappa.__path__[0]).rglob("*.sql"))
    ours = [path for path in files if path.parent.name != "migrations" and path.name not in ELSEWHERE]
    return [query for path in ours for query in load(path).values()]


def make_tables_of_the_transaction(query: Query, connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """Those that the statements of its file work on."""
    for table in catalog.read(connection).values():
        connection.execute(staging.MAKE.format(table.staged_name, table.here, sql.SQL("DROP")))
    for block in load(query.source).values():
        if block.text.upper().find("CREATE TEMPORARY TABLE") >= 0:
            connection.execute(block.sql)


def test_a_block_ends_where_the_next_begins_and_loses_its_semicolon() -> None:
    found = parse("-- a file\n\n-- name: one\n-- why\nSELECT 1;\n\n-- name: two\nSELECT\n 2\n")
    assert [(name, query.text) for name, query in found.items()] == [
        ("one", "-- why\nSELECT 1"),
        ("two", "SELECT\n 2"),
    ]


def test_a_missing_block_says_which_file_and_what_there_is() -> None:
    with pytest.raises(QueryNotFound, match=r"some\.sql has no block named 'three' \(it has: one\)"):
        parse("-- name: one\nSELECT 1")["three"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("SELECT 1", "SQL before its first"),
        ("-- name: a\n\n-- name: b\nSELECT 1", "block 'a' is empty"),
        ("-- name: a\nSELECT 1\n-- name: a\nSELECT 2", r"some\.sql:3: a second block named 'a'"),
        ("-- name: Two Words\nSELECT 1", "is not a name"),
    ],
)
def test_a_malformed_file_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(QueryNotFound, match=complaint):
        parse(text)


def test_parameters_are_numbered_in_the_order_of_first_use() -> None:
    query = parse("-- name: q\nSELECT %(b)s, %(a)s, %(b)s, 5 %% 2")["q"]
    assert query.parameters == ("b", "a")
    assert query.numbered() == "SELECT $1, $2, $1, 5 % 2"


def statement_of(query: Query) -> str:
    body = [line for line in query.numbered().splitlines() if not line.lstrip().startswith("--")]
    return "\n".join(body).strip()


def can_be_prepared(query: Query) -> bool:
    return statement_of(query).upper().startswith(STATEMENTS_THAT_PREPARE_TAKES)


def name_of(query: Query) -> str:
    return f"{query.source.stem}.{query.name}"


@pytest.fixture(scope="module")
def migrated(server: Server, template: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """One database for all that is prepared, and no more than that."""
    url = server.create(template)
    # psycopg prepares nothing of its own, as what it forgets at a rollback is all that is prepared.
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as opened:
        yield opened
    server.drop(url)


@pytest.mark.parametrize("query", [one for one in every_query() if can_be_prepared(one)], ids=name_of)
def test_every_named_statement_is_valid_on_the_migrated_schema(
    query: Query, migrated: psycopg.Connection[tuple[object, ...]]
) -> None:
    statement = statement_of(query)
    with migrated.transaction(force_rollback=True):
        if "pg_temp." in statement:
            make_tables_of_the_transaction(query, migrated)
        migrated.execute(f"PREPARE checked AS {statement}".encode())
    # What is prepared outlives the transaction.
    migrated.execute("DEALLOCATE checked")


@pytest.mark.parametrize("query", [one for one in every_query() if not can_be_prepared(one)], ids=name_of)
def test_a_statement_that_can_not_be_prepared_is_run_where_it_is_undone(
    query: Query, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    statement = statement_of(query)
    assert not query.parameters
    if statement.upper().startswith("COPY"):
        with connection.cursor().copy(query.sql) as copy:
            if "TO STDOUT" in statement.upper():
                list(copy)
    elif "pg_temp." in statement:
        with connection.transaction(force_rollback=True):
            make_tables_of_the_transaction(query, connection)
            connection.execute(query.sql)
    else:
        connection.execute("DROP SCHEMA kappa CASCADE; CREATE SCHEMA kappa")
        connection.execute(query.sql)


def test_every_block_is_bound_to_a_constant_of_its_module() -> None:
    bound: set[tuple[Path, str]] = set()
    for module in pkgutil.walk_packages(kappa.__path__, "kappa."):
        if module.name.endswith("__main__"):
            continue
        for constant in vars(importlib.import_module(module.name)).values():
            for value in constant if isinstance(constant, tuple) else (constant,):
                if isinstance(value, Query):
                    bound.add((value.source, value.name))
    unused = [
        f"{query.source.name}: {query.name}" for query in every_query() if (query.source, query.name) not in bound
    ]
    assert unused == []
