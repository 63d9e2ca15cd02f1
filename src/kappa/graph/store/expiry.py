"""Statements that delete artifacts whose time is over."""

from datetime import datetime

from psycopg import Connection

from kappa.pg import queries
from kappa.pg.queries import Row

sql = queries.beside(__file__)
DELETE_EXPIRED = sql["delete_expired"]
COUNT_EXPIRED = sql["count_expired"]


def delete_expired(connection: Connection[Row], limit: int, now: datetime | None = None) -> int:
    """How many were deleted."""
    return len(connection.execute(DELETE_EXPIRED.sql, {"limit": limit, "now": now}).fetchall())


def count_expired(connection: Connection[Row], now: datetime | None = None) -> int:
    row = connection.execute(COUNT_EXPIRED.sql, {"now": now}).fetchone()
    return row[0] if row else 0
