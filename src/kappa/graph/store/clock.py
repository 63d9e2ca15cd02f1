"""Statements about the change clock and its log."""

from datetime import timedelta

from psycopg import Connection

from kappa.pg import queries
from kappa.pg.queries import Answer, Row

sql = queries.beside(__file__)
TAKE_EPOCH = sql["take_epoch"]
NOW = sql["now"]
SINCE = sql["since"]
CHANGES = sql["changes"]
CONCEPT_CHANGES = sql["concept_changes"]
TOLD_SINCE = sql["told_since"]
BULK_LOCK = sql["bulk_lock"]
EMPTY_INCOMING = sql["empty_incoming"]
PRUNE = sql["prune"]


def take_epoch(connection: Connection[Row]) -> int:
    """The epoch of this transaction. The last thing before the commit: other writers wait from here on."""
    row = connection.execute(TAKE_EPOCH.sql).fetchone()
    assert row is not None
    return row[0]


def end(connection: Connection[Row]) -> None:
    """The same for who has no use for the number, and doesn't wait for it."""
    connection.execute(TAKE_EPOCH.sql)


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


def told_since(connection: Connection[Row], epoch: int, *unlisted: str) -> Answer[tuple[int, bool]]:
    """The latest epoch, and whether nothing of some kinds changed after the one given, as far as the log can tell."""
    cursor = connection.execute(TOLD_SINCE.sql, {"since": epoch, "unlisted": list(unlisted)})

    def answer() -> tuple[int, bool]:
        row = cursor.fetchone()
        assert row is not None
        return row[0], row[1]

    return answer


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
