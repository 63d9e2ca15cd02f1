"""One question's connections: a single consistent state, a deadline that the server keeps too, nothing left running.

The first connection opens a transaction and stays in it for as long as the question lasts. Others, for large steps,
take over its snapshot. Before each statement the server is told how much time is left; when the caller cancels, it is
told to stop.
"""

import logging
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from typing import Generic, TypeVar

import psycopg
from psycopg import Connection, errors, sql
from psycopg.pq import TransactionStatus

from kappa.graph.errors import GraphBusy, GraphFailed
from kappa.graph.query.budget import Grant
from kappa.graph.query.filters import OUT_OF_TIME, Cancel, Limits
from kappa.pg import Pool, PoolExhausted, PoolUnreachable
from kappa.pg.queries import Row

log = logging.getLogger(__name__)

T = TypeVar("T")

_threads = ThreadPoolExecutor(max_workers=32, thread_name_prefix="kappa graph worker")
"""Threads of all questions; how many work at once is the budget's to say."""

CANCEL_WITHIN = 2.0
STOP_WITHIN = 10.0
"""Seconds after which nobody waits any longer for threads whose statements can't be ended."""
HELP_WITHIN = 0.5
"""Seconds in which a worker must have its connection; later it would hold up more than it helps."""


class Stopped(Exception):
    """A step that did not come to its end; the question answers with what it has."""

    def __init__(self, stop: int) -> None:
        super().__init__(stop)
        self.stop = stop


class _Work(Generic[T]):
    """Statements that several connections share. `pop` is atomic, so each is taken once."""

    def __init__(self, acts: Sequence[Callable[[Connection[Row]], T]]) -> None:
        self._rest = list(enumerate(acts))[::-1]
        self.results: list[T | None] = [None] * len(acts)
        self.errors: list[psycopg.Error | Stopped] = []

    def take(self, connection: Connection[Row], limits: Limits) -> None:
        """Run statements until none is left, or none can be run any more."""
        # One that fails must not take the transaction along, whose snapshot the others need.
        several = len(self.results) > 1
        while True:
            try:
                place, act = self._rest.pop()
            except IndexError:
                return
            try:
                with _guarded(connection) if several else nullcontext():
                    self.results[place] = timed(connection, limits, act)
            except Stopped as stopped:
                self.errors.append(stopped)
                return
            except psycopg.Error as error:
                self.errors.append(error)
                if connection.broken:
                    return


class Session:
    """The first connection of a question."""

    def __init__(self, pool: Pool, connection: Connection[Row], limits: Limits, grant: Grant) -> None:
        self._pool = pool
        self._connection = connection
        self._limits = limits
        self._grant = grant
        self._exported: str | None = None

    def run(self, act: Callable[[Connection[Row]], T]) -> T:
        """One statement on the question's own connection."""
        try:
            return timed(self._connection, self._limits, act)
        except psycopg.Error as error:
            raise GraphFailed(f"the database failed a question: {' '.join(str(error).split())}") from error

    def run_all(self, acts: Sequence[Callable[[Connection[Row]], T]]) -> tuple[list[T], int, int, str]:
        """Several statements, in parallel as far as workers are free.

        What came back, how many did not, how it ended, and why as text. That none came back is an error.
        """
        work = _Work(acts)
        with self._grant.more(len(acts) - 1) as helpers:
            snapshot = self._export() if helpers else ""
            helping = [_threads.submit(self._help, snapshot, work) for _ in range(helpers)]
            try:
                work.take(self._connection, self._limits)
            finally:
                _finish(helping)
        results = [result for result in work.results if result is not None]
        if len(results) == len(acts):
            return results, 0, 0, ""
        first = work.errors[0]
        stopped = next((error.stop for error in work.errors if isinstance(error, Stopped)), 0)
        if not results and not stopped:
            raise GraphFailed(f"every worker of a question failed: {' '.join(str(first).split())}") from first
        return results, len(acts) - len(results), stopped, " ".join(str(first).split())

    def _export(self) -> str:
        if self._exported is None:
            row = self._connection.execute("SELECT pg_export_snapshot()").fetchone()
            assert row is not None
            self._exported = str(row[0])
        return self._exported

    def _help(self, snapshot: str, work: _Work[T]) -> None:
        try:
            with opened(self._pool, self._limits, snapshot, wait=HELP_WITHIN) as connection:
                work.take(connection, self._limits)
        except (psycopg.Error, PoolExhausted, PoolUnreachable, Stopped):
            # Who could not begin leaves the statements to the others: the question's own thread takes what is left.
            return


def _finish(helping: Sequence[Future[None]]) -> None:
    for one in helping:
        # Whoever has not begun by now finds nothing to do.
        if not one.cancel():
            one.result()


@contextmanager
def cancellable(connection: Connection[Row], cancel: Cancel) -> Generator[None]:
    """Whoever cancels ends the statement that runs on the connection."""

    def end() -> None:
        try:
            connection.cancel_safe(timeout=CANCEL_WITHIN)
        except psycopg.Error as error:
            # A server that doesn't answer: whoever cancels has other statements to end, and things to close.
            log.warning("a statement could not be cancelled: %s", " ".join(str(error).split()))

    key = object()
    cancel.watch(key, end)
    try:
        yield
    finally:
        cancel.unwatch(key)


def stop_threads(threads: Sequence[threading.Thread], cancel: Cancel) -> None:
    """End what they run, also a statement that waits for somebody; those that don't end are left to themselves."""
    until = time.monotonic() + STOP_WITHIN
    cancel.cancel()
    for thread in threads:
        thread.join(CANCEL_WITHIN)
        while thread.is_alive() and time.monotonic() < until:
            cancel.cancel()  # it may have begun another statement
            thread.join(CANCEL_WITHIN)
        if thread.is_alive():
            log.warning("the thread %r waits for a server that doesn't answer, and is left behind", thread.name)


def timed(connection: Connection[Row], limits: Limits, act: Callable[[Connection[Row]], T]) -> T:
    """Run a statement that the server itself ends at the deadline: one round trip, in the transaction of `_begun`."""
    _go_on(connection, limits)
    try:
        connection.execute(_server_keeps(limits))
        return act(connection)
    except psycopg.Error as error:
        _go_on_after_error(connection)
        if isinstance(error, errors.QueryCanceled):
            raise Stopped(limits.stop() or OUT_OF_TIME) from None
        raise


def _go_on(connection: Connection[Row], limits: Limits) -> None:
    """Raises `Stopped` if there is no time for more, or the server has ended a statement and takes no other."""
    if stop := limits.stop():
        raise Stopped(stop)
    if connection.info.transaction_status == TransactionStatus.INERROR:
        raise Stopped(OUT_OF_TIME)


def _server_keeps(limits: Limits) -> sql.Composed:
    return sql.SQL("SET LOCAL statement_timeout = {}").format(max(1, int(limits.left * 1000)))


# `Connection.transaction` waits for each of its own statements, also within a pipeline. Those of the next two travel
# with the statements between.


@contextmanager
def _begun(connection: Connection[Row], *begin: sql.SQL | sql.Composed) -> Generator[None]:
    """A transaction, and a pipeline for as long as it lasts."""
    with connection.pipeline():
        try:
            for statement in begin:
                connection.execute(statement)
            yield
        except BaseException:
            _go_on_after_error(connection)
            with suppress(psycopg.Error):  # the connection may be gone
                connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


@contextmanager
def _guarded(connection: Connection[Row]) -> Generator[None]:
    """A statement that, if it fails, leaves the transaction as it was."""
    connection.execute("SAVEPOINT kappa")
    try:
        yield
    except BaseException:
        with suppress(psycopg.Error):
            connection.execute("ROLLBACK TO SAVEPOINT kappa")
        raise
    connection.execute("RELEASE SAVEPOINT kappa")


def _go_on_after_error(connection: Connection[Row]) -> None:
    """In the pipeline: until then the server leaves out whatever it is sent."""
    with suppress(psycopg.Error), connection.pipeline() as pipeline:  # the error was raised already
        pipeline.sync()


@contextmanager
def opened(pool: Pool, limits: Limits, snapshot: str = "", *, wait: float = float("inf")) -> Generator[Connection[Row]]:
    """A connection in a transaction that sees one state, known to whoever cancels the question."""
    if stop := limits.stop():
        raise Stopped(stop)
    # A walk is parallel by itself, within the budget; the server's own workers are outside of it, and to start them
    # takes longer than most steps.
    begin = [
        sql.SQL("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"),
        *([sql.SQL("SET TRANSACTION SNAPSHOT {}").format(snapshot)] if snapshot else []),
        sql.SQL("SET LOCAL max_parallel_workers_per_gather = 0"),
    ]
    with (
        pool.connection(wait=max(min(limits.left, wait), 0.001)) as connection,
        cancellable(connection, limits.cancel),
        _begun(connection, *begin),
    ):
        yield connection


def quick(pool: Pool, limits: Limits, act: Callable[[Connection[Row]], T]) -> T:
    """One short statement, which fetches its rows, in a transaction of its own; all of it in two round trips."""
    if stop := limits.stop():
        raise Stopped(stop)
    try:
        with (
            pool.connection(wait=max(limits.left, 0.001)) as connection,
            cancellable(connection, limits.cancel),
            _begun(connection, sql.SQL("BEGIN"), _server_keeps(limits)),
        ):
            return act(connection)
    except errors.QueryCanceled:
        raise Stopped(limits.stop() or OUT_OF_TIME) from None
    except PoolExhausted as error:
        raise GraphBusy(f"no connection for a question: {error}") from error
    except psycopg.Error as error:
        raise GraphFailed(f"the database failed a question: {' '.join(str(error).split())}") from error


@contextmanager
def session(pool: Pool, limits: Limits, grant: Grant) -> Generator[Session]:
    """A question's first connection."""
    try:
        with opened(pool, limits) as connection:
            yield Session(pool, connection, limits, grant)
    except PoolExhausted as error:
        raise GraphBusy(f"no connection for a question: {error}") from error
