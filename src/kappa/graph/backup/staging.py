"""A backup's rows in tables of the restoring transaction alone, checked before anything is changed."""

from collections.abc import Callable, Iterable

import psycopg
from psycopg import Connection, sql

from kappa.graph.backup import catalog
from kappa.graph.backup.archive import Header, Reader
from kappa.graph.backup.catalog import Table
from kappa.graph.errors import BadBackup
from kappa.graph.schema import COMPONENT
from kappa.pg.queries import Row

# Beside its columns a staged row has: the number that it has or gets here, whether it is new here, and its key here.
MAKE = sql.SQL(
    "CREATE TEMPORARY TABLE {} (LIKE {} INCLUDING DEFAULTS, here_id bigint, is_new boolean NOT NULL DEFAULT false, "
    "here_key uuid) ON COMMIT {}"
)


def stage(
    connection: Connection[Row], pieces: Iterable[bytes], told: Callable[[str], None]
) -> tuple[Header, dict[str, Table]]:
    """Everything that the file has. A file that is not whole, or not for this schema, is refused."""
    reader = Reader(pieces)
    header = reader.header
    known = len(COMPONENT.steps)
    if header.schema_version > known:
        raise BadBackup(
            f"the backup has schema {header.schema_version} of the graph, this program knows {known} at most: "
            f"it was made by a newer version, use that one"
        )
    tables = catalog.read(connection)
    for name, columns in header.tables.items():
        if name not in tables:
            raise BadBackup(f"the backup has a table {name!r}, which this program doesn't know")
        if unknown := [column for column in columns if column not in tables[name].columns]:
            raise BadBackup(f"the backup has a column {unknown[0]!r} of {name}, which this program doesn't know")
    connection.execute(catalog.PLAIN_VALUES.sql)
    for table in tables.values():
        connection.execute(MAKE.format(table.staged_name, table.here, sql.SQL("DROP")))
    rows = dict.fromkeys(header.tables, 0)
    for name, content in reader.tables():
        told(name)
        rows[name] = _copy(connection, tables[name], header.tables[name], content)
    if rows != reader.manifest.rows:
        raise BadBackup("the backup is broken: it has not as many rows as its manifest says")
    connection.execute(catalog.FORGET_RUNS.sql)
    for table in tables.values():
        if "id" in table.columns:
            connection.execute(sql.SQL("ALTER TABLE {} ADD PRIMARY KEY (id)").format(table.staged))
        connection.execute(sql.SQL("ANALYZE {}").format(table.staged))
    return header, tables


def _copy(connection: Connection[Row], table: Table, columns: list[str], content: Iterable[bytes]) -> int:
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(table.staged, catalog.names(tuple(columns)))
    cursor = connection.cursor()
    try:
        with cursor.copy(statement) as copy:
            for piece in content:
                copy.write(piece)
    except (psycopg.DataError, psycopg.IntegrityError) as error:
        raise BadBackup(f"the backup's rows of {table.name} can't be read: {error.diag.message_primary}") from None
    return cursor.rowcount
