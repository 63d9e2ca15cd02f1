"""Statements about the change clock and its log."""

from datetime import timedelta

from psycopg import Connection

from kappa.pg import queries
from kappa.pg.queries import Row

sql = queries.beside(__file__)
TAKE_EPOCH = sql["take_epoch"]
NOW = sql["now"]
SINCE = sql["since"]
CHANGES = sql["changes"]
CONCEPT_CHANGES = sql["concept_changes"]
MATCHING_CHANGES = sql["matching_changes"]
BULK_LOCK = sql["bulk_lock"]
EMPTY_INCOMING = sql["empty_incoming"]
PRUNE = sql["prune"]


def take_epoch(connection: Connection[Row]) -> int:
    """The epoch of this transaction. The last thing before the commit: other writers wait from here on."""
    row = connection.execute(TAKE_EPOCH.sql).fetchone()
    assert row is not None
    return row[0]


def now(connection: Connection[Row]) -> int:
    """The latest epoch that can be seen."""
    row = connection.execute(NOW.sql).fetchone()
    assert row is not None
    return row[0]


def since(connection: Connection[Row], epoch: int) -> tuple[int, bool]:
    """The latest epoch, and whether the log tells all that changed after the one given."""
    row = connection.execute(SINCE.sql, {"since": epoch}).fetchone()
    assert row is not None
    return row[0], row[1]


def matching_changes(connection: Connection[Row], epoch: int) -> list[tuple[str, list[int] | None]]:
    """What was touched after an epoch, of concepts and types: the kind of change, and its nodes."""
    return [(row[0], row[1]) for row in connection.execute(MATCHING_CHANGES.sql, {"since": epoch}, binary=True)]


def lock_bulk_loads(connection: Connection[Row]) -> None:
    """One bulk load at a time, with its tables empty."""
    connection.execute(BULK_LOCK.sql)
    connection.execute(EMPTY_INCOMING.sql)


def empty_incoming(connection: Connection[Row]) -> None:
    connection.execute(EMPTY_INCOMING.sql)


def prune(connection: Connection[Row], keep: timedelta) -> int:
    """Forget changes that are older; how many epochs were forgotten."""
    row = connection.execute(PRUNE.sql, {"keep": keep}).fetchone()
    assert row is not None
    return row[0]
