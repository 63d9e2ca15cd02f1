"""Restores a backup, in one of three ways, inside of the caller's transaction.

`replace`: the graph becomes the backup. `keep_ids`: all that the backup has is there as it has it, under its ids; what
it doesn't have stays. `merge`: what says the same is one, and what is here has the last word.

Until the file was read whole nothing is changed; then writers are kept out to the end of the transaction, while readers
go on with the graph as it was.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

import psycopg
from psycopg import Connection, sql

from kappa.graph.backup import catalog, uniting
from kappa.graph.backup.archive import Header
from kappa.graph.backup.catalog import Table
from kappa.graph.backup.staging import stage
from kappa.graph.errors import BadBackup
from kappa.graph.store import clock
from kappa.graph.store.locks import keep_writers_out
from kappa.pg.queries import Row


class Mode(StrEnum):
    REPLACE = "replace"
    KEEP_IDS = "keep_ids"
    MERGE = "merge"


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore left."""

    epoch: int
    rows: dict[str, int]
    """Of each table, as it is now."""


def restore(
    connection: Connection[Row],
    pieces: Iterable[bytes],
    mode: Mode,
    told: Callable[[str], None] = lambda step: None,
    sure: Callable[[], None] = lambda: None,
) -> Restored:
    """The whole change. `told` hears of each step; `sure` is asked before the first row is changed, and may refuse."""
    header, tables = stage(connection, pieces, lambda table: told(f"reading {table}"))
    sure()
    told("waiting for writers")
    keep_writers_out(connection, catalog.KEPT)
    told(f"writing ({mode.value})")
    try:
        match mode:
            case Mode.REPLACE:
                _replace(connection, tables)
            case Mode.KEEP_IDS:
                uniting.keep_ids(connection, tables)
            case Mode.MERGE:
                uniting.merge(connection, tables)
    except psycopg.errors.UniqueViolation as error:
        raise BadBackup(
            f"the backup can't be restored by {mode.value}, because something else here has the name or the content of "
            f"one of its {error.diag.table_name}: {error.diag.message_detail}"
        ) from None
    except psycopg.IntegrityError as error:
        raise BadBackup(f"the backup contradicts itself: {error.diag.message_primary}") from None
    return _finish(connection, header, tables)


def _replace(connection: Connection[Row], tables: dict[str, Table]) -> None:
    # Not TRUNCATE: who reads goes on reading what was there, until the commit.
    for table in reversed(tables.values()):
        connection.execute(sql.SQL("DELETE FROM {}").format(table.here))
    for table in tables.values():
        columns = catalog.names(table.columns)
        statement = sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {} ORDER BY {}")
        connection.execute(
            statement.format(table.here, columns, columns, table.staged, catalog.names(table.ordered_by))
        )


def _finish(connection: Connection[Row], header: Header, tables: dict[str, Table]) -> Restored:
    rows: dict[str, int] = {}
    for name, table in tables.items():
        most = sql.SQL("max(id)") if "id" in table.columns else sql.SQL("NULL::bigint")
        row = connection.execute(sql.SQL("SELECT count(*), {} FROM {}").format(most, table.here)).fetchone()
        assert row is not None
        rows[name] = row[0]
        if row[1] is not None:
            connection.execute(catalog.RAISE_NUMBERS.sql, {"table": name, "most": row[1]})
        connection.execute(sql.SQL("ANALYZE {}").format(table.here))
    connection.execute(catalog.RAISE_EPOCH.sql, {"epoch": header.epoch})
    connection.execute(catalog.RELOAD.sql)
    return Restored(clock.take_epoch(connection), rows)
