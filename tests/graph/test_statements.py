"""Every named statement of the graph is valid on its schema, and the package is as light as it says."""

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

import kappa.graph
from kappa.graph.annealing import executing
from kappa.graph.backup import catalog, uniting
from kappa.graph.backup.staging import MAKE
from kappa.pg import check
from kappa.pg.queries import Query, Row, load

Session = psycopg.Connection[Row]


def every_query() -> list[Query]:
    """Those of AGE are about other tables, and are looked at with its own tests."""
    files = sorted(Path(kappa.graph.__path__[0]).rglob("*.sql"))
    ours = [path for path in files if path.parent.name != "migrations" and path.name != "age.sql"]
    return [query for path in ours for query in load(path).values()]


def test_every_named_statement_is_valid(connection: Session) -> None:
    # A restore's statements speak of tables that it makes for itself.
    for table in catalog.read(connection).values():
        connection.execute(MAKE.format(table.staged_name, table.here, sql.SQL("PRESERVE ROWS")))
    for query in (uniting.LABELS, executing.LEAVING):
        connection.execute(query.sql.replace(b"DROP", b"PRESERVE ROWS"))
    for query in every_query():
        text = "\n".join(line for line in query.numbered().splitlines() if not line.lstrip().startswith("--")).strip()
        if text.startswith("COPY"):
            with connection.cursor().copy(query.sql) as copy:
                if "TO STDOUT" in text:
                    assert list(copy) != []
        elif text.startswith(("TRUNCATE", "CREATE INDEX")):
            connection.execute(query.sql)
        elif not text.startswith("CREATE TEMPORARY"):
            connection.execute(f"PREPARE checked AS {text}".encode())
            connection.execute("DEALLOCATE checked")


def test_the_schema_is_what_the_program_knows(connection: Session) -> None:
    check(connection, [kappa.graph.COMPONENT])


def test_migrating_needs_no_numpy() -> None:
    program = (
        "import sys, kappa.graph as g; g.COMPONENT; assert 'numpy' not in sys.modules; "
        "g.Graph; assert 'numpy' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_what_the_package_names_is_there() -> None:
    for name in kappa.graph.__all__:
        assert getattr(kappa.graph, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        kappa.graph.nothing  # noqa: B018
