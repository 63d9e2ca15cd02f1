"""Statements about the settings that all processes share."""

from psycopg import Connection

from kappa.pg import queries
from kappa.pg.queries import Row

sql = queries.beside(__file__)
READ = sql["read"]
EDIT = sql["edit"]


def read(connection: Connection[Row]) -> tuple[int | None, float | None]:
    """Workers and time-out in seconds, where they are set."""
    row = connection.execute(READ.sql).fetchone()
    return (row[0], row[1]) if row else (None, None)


def edit(connection: Connection[Row], workers: int | None, timeout: float | None) -> None:
    """None leaves it to each process's own configuration."""
    connection.execute(EDIT.sql, {"workers": workers, "timeout": timeout})
