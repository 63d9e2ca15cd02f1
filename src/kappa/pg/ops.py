"""One database operation as a value: a statement, its parameters, and how to read what comes back.

Functions that build an `Op` know nothing of connections, so the same function serves blocking and async callers,
inside or outside of their transactions: `run(connection, op)` or `await run_async(connection, op)`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from psycopg import AsyncConnection, Connection

from kappa.pg.queries import Query, Row

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Op(Generic[T]):
    """A statement to run, and what its rows mean."""

    query: Query
    params: Mapping[str, Any]
    read: Callable[[list[Row]], T]
    binary: bool = False


def run(connection: Connection[Row], op: Op[T]) -> T:
    cursor = connection.execute(op.query.sql, op.params, binary=op.binary)
    return op.read(cursor.fetchall() if cursor.description else [])


async def run_async(connection: AsyncConnection[Row], op: Op[T]) -> T:
    cursor = await connection.execute(op.query.sql, op.params, binary=op.binary)
    return op.read(await cursor.fetchall() if cursor.description else [])


def nothing(rows: list[Row]) -> None:
    """For statements whose rows don't matter."""


def count(rows: list[Row]) -> int:
    """For statements that return one row for each row they touched."""
    return len(rows)
