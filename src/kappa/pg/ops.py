"""One database operation as a value: a statement, its parameters, and how to read what comes back.

Functions that build an `Op` know nothing of connections, so the same function serves blocking and async callers,
inside or outside of their transactions: `run(connection, op)` or `await run_async(connection, op)`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Generic, TypeVar

from psycopg import AsyncConnection, Connection
from psycopg.abc import Transformer as AbstractTransformer
from psycopg.adapt import Transformer
from psycopg.errors import InvalidSqlStatementName, error_from_result
from psycopg.generators import execute
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from kappa.pg.queries import Query, Row

T = TypeVar("T")

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Op(Generic[T]):
    """A statement to run, and what its rows mean."""

    query: Query
    params: Mapping[str, Any]
    read: Callable[[list[Row]], T]
    binary: bool = False
    first_number: bool = False
    """Whether the answer is one whole number or nothing; such an operation can take the short way."""
    values: list[Any] | None = None
    """The parameters as they are sent, of an operation that is `kept` for many times."""
    in_transaction: "Callable[[], Op[T]] | None" = None
    """What runs in its place where it doesn't commit by itself, so that others learn of it only later."""


def kept(op: Op[T]) -> Op[T]:
    """The same, for whoever runs it again and again with the same parameters."""
    return replace(op, values=_plain(op))


def run(connection: Connection[Row], op: Op[T]) -> T:
    alone = commits_by_itself(connection)
    if op.in_transaction is not None and not alone:
        op = op.in_transaction()
    if op.first_number and alone and connection.prepare_threshold is not None and (values := _plain(op)) is not None:
        return op.read(_short_way(connection, op, values))
    cursor = connection.execute(op.query.sql, op.params, binary=op.binary)
    return op.read(cursor.fetchall() if cursor.description else [])


async def run_async(connection: AsyncConnection[Row], op: Op[T]) -> T:
    alone = commits_by_itself(connection)
    if op.in_transaction is not None and not alone:
        op = op.in_transaction()
    # The short way is not for transactions: a statement that psycopg has deallocated would end them.
    if alone and connection.prepare_threshold is not None and (values := op.values or _plain(op)) is not None:
        return op.read(await _short_way_async(connection, op, values))
    cursor = await connection.execute(op.query.sql, op.params, binary=op.binary)
    return op.read(await cursor.fetchall() if cursor.description else [])


def commits_by_itself(connection: Connection[Row] | AsyncConnection[Row]) -> bool:
    """Whether the next statement is a transaction of its own. Otherwise the commit comes later."""
    return connection.autocommit and connection.pgconn.transaction_status == TransactionStatus.IDLE


def _plain(op: Op[Any]) -> list[Any] | None:
    """The parameters as text, in the statement's order; None if one of them needs an adapter."""
    values: list[Any] = []
    for name in op.query.parameters:
        value: object = op.params[name]
        if value is None:
            values.append(None)
        elif isinstance(value, str):
            if "\0" in value:
                return None
            values.append(value.encode())
        elif isinstance(value, bool):
            values.append(b"t" if value else b"f")
        elif isinstance(value, int):
            values.append(b"%d" % value)
        elif isinstance(value, timedelta):
            values.append(interval_text(value).encode())
        else:
            return None
    return values


def interval_text(span: timedelta) -> str:
    """A span as PostgreSQL reads it, to the microsecond."""
    return f"{span // _MICROSECOND} us"


class _Session:
    """What is known of one connection: the statements prepared on it, and how to read its results."""

    def __init__(self, connection: Connection[Row] | AsyncConnection[Row]) -> None:
        self.prepared: set[bytes] = set()
        self.transformer = Transformer(connection)
        self._connection = connection
        self._readers: dict[tuple[bytes, bool], AbstractTransformer] = {}

    def forget(self, name: bytes) -> None:
        self.prepared.discard(name)
        for binary in (False, True):
            self._readers.pop((name, binary), None)

    def rows(self, result: PGresult) -> list[Row]:
        if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            raise error_from_result(result, self.transformer.encoding)
        self.transformer.set_pgresult(result)
        return self.transformer.load_rows(0, result.ntuples, tuple)

    def rows_again(self, name: bytes, binary: bool, result: PGresult) -> list[Row]:
        """As `rows`, of a prepared statement. Its columns keep their types: how to read them is looked up once."""
        if result.status != ExecStatus.TUPLES_OK:
            return self.rows(result)
        reader = self._readers.get((name, binary))
        known = reader is not None
        if reader is None:
            reader = self._readers[name, binary] = Transformer(self._connection)
        reader.set_pgresult(result, set_loaders=not known)
        return reader.load_rows(0, result.ntuples, tuple)

    def number(self, result: PGresult) -> list[Row]:
        """As `rows`, where there is one whole number or nothing: a loader costs more than the number."""
        if result.status != ExecStatus.TUPLES_OK:
            return self.rows(result)
        value = result.get_value(0, 0) if result.ntuples else None
        return [] if value is None else [(int(value),)]


def _session(connection: Connection[Row] | AsyncConnection[Row]) -> _Session:
    """Kept by the connection itself, and gone with it: a transformer refers to its connection."""
    kept_by = vars(connection)
    if (session := kept_by.get("kappa_session")) is None:
        session = kept_by["kappa_session"] = _Session(connection)
    return session


# The short way: a prepared statement by libpq alone, its parameters as text. For a quick statement a cursor costs more
# than the statement. psycopg deallocates all statements after a rollback or a change of the schema; then the statement
# is prepared once more.


def _short_way(connection: Connection[Row], op: Op[Any], values: list[Any]) -> list[Row]:
    """The connection waits in C: only where a single, quick statement is all there is to wait for."""
    libpq, session, name = connection.pgconn, _session(connection), op.query.key
    with connection.lock:
        for _ in range(2):
            if name not in session.prepared:
                session.rows(libpq.prepare(name, op.query.numbered().encode()))
                session.prepared.add(name)
            try:
                return session.number(libpq.exec_prepared(name, values))
            except InvalidSqlStatementName:
                session.forget(name)
    raise InvalidSqlStatementName(f"{op.query.name} vanishes as soon as it is prepared")


async def _short_way_async(connection: AsyncConnection[Row], op: Op[Any], values: list[Any]) -> list[Row]:
    libpq, session, name = connection.pgconn, _session(connection), op.query.key
    async with connection.lock:
        for _ in range(2):
            if name not in session.prepared:
                libpq.send_prepare(name, op.query.numbered().encode())
                session.rows((await connection.wait(execute(libpq)))[0])
                session.prepared.add(name)
            try:
                libpq.send_query_prepared(name, values, result_format=op.binary)
                return session.rows_again(name, op.binary, (await connection.wait(execute(libpq)))[0])
            except InvalidSqlStatementName:
                session.forget(name)
    raise InvalidSqlStatementName(f"{op.query.name} vanishes as soon as it is prepared")


def nothing(rows: list[Row]) -> None:
    """For statements whose rows don't matter."""


def count(rows: list[Row]) -> int:
    """For statements that return one row for each row they touched."""
    return len(rows)
