"""Makes a backup: one snapshot of all tables, as a stream of bytes, while others go on writing."""

import os
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path

from psycopg import Connection, IsolationLevel, sql

from kappa.graph.backup import catalog
from kappa.graph.backup.archive import FORMAT, PART, Header, Writer
from kappa.graph.backup.verifying import pieces_of, verify
from kappa.graph.errors import BadBackup
from kappa.graph.schema import COMPONENT
from kappa.pg import check
from kappa.pg.queries import Row

Told = Callable[[str, int], None]
"""Told how many rows of a table are written."""


def make(connection: Connection[Row], told: Told = lambda table, rows: None) -> Generator[bytes]:
    """The bytes of a backup. The connection must be the caller's own, and outside of a transaction."""
    check(connection, [COMPONENT])
    connection.isolation_level = IsolationLevel.REPEATABLE_READ
    connection.read_only = True
    with connection.transaction():
        # Locked before the snapshot is taken: nobody can empty or change a table that is still to be read.
        locked = sql.SQL(", ").join(sql.Identifier("kappa_graph", name) for name in catalog.KEPT)
        connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(locked))
        connection.execute(catalog.PLAIN_VALUES.sql)
        tables = catalog.read(connection)
        row = connection.execute(catalog.MOMENT.sql).fetchone()
        assert row is not None
        writer = Writer()
        yield writer.header(
            Header(
                kappa_backup=FORMAT,
                schema_version=len(COMPONENT.steps),
                made_at=row[0],
                epoch=row[1],
                tables={name: list(table.columns) for name, table in tables.items()},
            )
        )
        rows: dict[str, int] = {}
        for name, table in tables.items():
            rows[name] = yield from _table(connection, writer, table, told)
        yield writer.end(rows)


def _table(
    connection: Connection[Row], writer: Writer, table: catalog.Table, told: Told
) -> Generator[bytes, None, int]:
    statement = sql.SQL("COPY (SELECT {} FROM {} ORDER BY {}) TO STDOUT")
    rows, number, part = 0, 0, bytearray()
    with connection.cursor().copy(
        statement.format(catalog.names(table.columns), table.here, catalog.names(table.ordered_by))
    ) as copy:
        for line in copy:
            part += line
            rows += bytes(line).count(b"\n")
            if len(part) >= PART:
                number += 1
                yield writer.part(f"{table.name}/{number:06d}", bytes(part))
                part.clear()
                told(table.name, rows)
    if part:
        yield writer.part(f"{table.name}/{number + 1:06d}", bytes(part))
    told(table.name, rows)
    return rows


def write_file(pieces: Generator[bytes], path: Path) -> int:
    """A file that is there whole, verified and durable, or not at all; how many bytes it has."""
    draft = path.with_name(f"{path.name}.part")
    written = 0
    try:
        try:
            number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(number, "wb") as file:  # noqa: PTH123
                for piece in pieces:
                    written += file.write(piece)
                file.flush()
                os.fsync(file.fileno())
        finally:
            pieces.close()
        verify(pieces_of(draft))
        draft.replace(path)
        _sync_directory(path.parent)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise BadBackup(f"{path} can't be written: {error.strerror}") from None
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    return written


def _sync_directory(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
