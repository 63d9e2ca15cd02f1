"""Connection pools that are bounded, named, and say who holds what.

Each subsystem has a pool of its own, so that none can take a connection away from another. A caller waits a
bounded time for a connection; when that runs out the error names the pool, its size and everyone who holds
one of its connections. Connections are in autocommit: a single statement costs one round trip, and
`transaction()` opens a block where several belong together.

`Pool` is for threads and `AsyncPool` for an event loop; what they share stands in `_Ledger`.
"""

import asyncio
import select
import sys
import threading
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolClosed, PoolTimeout

from kappa.pg import keepalive
from kappa.pg.bounds import Bounds
from kappa.pg.errors import PoolError, PoolExhausted, PoolUnreachable, SchemaTooOld
from kappa.pg.queries import Row

C = TypeVar("C", bound=Connection[Row] | AsyncConnection[Row])


@dataclass(frozen=True, slots=True)
class PoolUse:
    """A pool at one instant, for metrics and for errors."""

    name: str
    size: int
    in_use: int
    waiting: int
    most: int
    """Connections that it may open."""
    waits: int
    """Callers that had to wait, since the pool was made, and how many seconds together."""
    waited: float


SPARE_FOR = 10.0
"""How long a connection stays outside of its pool, at hand for the next caller."""


class _Ledger(Generic[C]):
    """Who holds a pool's connections, and since when; and the one that was last given back.

    That one is kept at hand while nobody waits: the pool's own way in and out costs as much as a short statement.
    """

    def __init__(self, name: str, bounds: Bounds, url: str) -> None:
        self.name = name
        self.bounds = bounds
        self._url = url
        self._held: dict[int, tuple[str, float]] = {}
        self._lock = threading.Lock()
        self._spare: C | None = None
        self._fetched: dict[int, float] = {}
        self._waiting = 0
        self._closed = False

    def take_spare(self, who: str) -> C | None:
        """The spare connection. Without one the caller counts as waiting until it has `entered` or `gave_up`."""
        with self._lock:
            spare, self._spare = self._spare, None
            if spare is None:
                self._waiting += 1
            else:
                self._held[id(spare)] = (who, time.monotonic())
            return spare

    def entered(self, connection: C, who: str) -> None:
        with self._lock:
            self._waiting -= 1
            now = time.monotonic()
            self._fetched[id(connection)] = now
            self._held[id(connection)] = (who, now)

    def gave_up(self) -> None:
        with self._lock:
            self._waiting -= 1

    def left(self, connection: C) -> bool:
        """Whether the connection is kept as the spare; if not, the pool wants it back."""
        with self._lock:
            del self._held[id(connection)]
            if (
                self._spare is None
                and not self._waiting
                and not self._closed
                and connection.pgconn.transaction_status == TransactionStatus.IDLE
                and time.monotonic() - self._fetched[id(connection)] < SPARE_FOR
            ):
                self._spare = connection
                return True
            del self._fetched[id(connection)]
            return False

    def broken(self, connection: C) -> None:
        """A spare connection that turned out to be useless; its taker waits for another."""
        with self._lock:
            self._waiting += 1
            del self._held[id(connection)]
            del self._fetched[id(connection)]

    def close(self) -> C | None:
        """Keep no spare any more; the one there was goes back to the pool."""
        with self._lock:
            self._closed = True
            spare, self._spare = self._spare, None
            return spare

    def use(self, stats: dict[str, int]) -> PoolUse:
        size = stats.get("pool_size", 0)
        in_use = size - stats.get("pool_available", 0) - (self._spare is not None)
        return PoolUse(
            name=self.name, size=size, in_use=in_use, waiting=stats.get("requests_waiting", 0),
            most=self.bounds.max_size, waits=stats.get("requests_queued", 0),
            waited=stats.get("requests_wait_ms", 0) / 1000,
        )  # fmt: skip

    def timed_out(self, wait: float) -> PoolExhausted | None:
        """The error for a wait that ran out while every connection was held; None if some were not."""
        with self._lock:
            held = sorted(self._held.values(), key=lambda entry: entry[1])
        if len(held) < self.bounds.max_size:
            return None
        now = time.monotonic()
        holders = ", ".join(f"{who} for {now - since:.1f} s" for who, since in held)
        return PoolExhausted(
            f"pool {self.name!r} ({self.bounds.max_size} connections) had none free within {wait:g} s; "
            f"held by {holders}"
        )

    def unreachable(self, wait: float, cause: psycopg.Error | None) -> PoolUnreachable:
        reason = " ".join(str(cause).split()) if cause else "no connection was made in time"
        return PoolUnreachable(f"pool {self.name!r} reached no server within {wait:g} s: {reason}")

    @property
    def probe_url(self) -> str:
        return make_conninfo(self._url, connect_timeout=3)


def _caller(default: str) -> str:
    """The function that asked for the connection: the first frame outside of the plumbing."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_globals.get("__name__") in (__name__, "contextlib"):
        frame = frame.f_back
    return f"{default} in {frame.f_code.co_qualname}" if frame else default


def _has_news(connection: Connection[Row] | AsyncConnection[Row]) -> bool:
    """Whether an idle connection's socket is readable, which nearly always means that the server hung up.

    It costs no round trip, so every check-out can afford it.
    """
    poller = select.poll()
    poller.register(connection.fileno(), select.POLLIN)
    return bool(poller.poll(0))


def _check(connection: Connection[Row]) -> None:
    if _has_news(connection):
        connection.execute(b"")


async def _check_async(connection: AsyncConnection[Row]) -> None:
    if _has_news(connection):
        await connection.execute(b"")


def _connection_options(url: str, name: str, pooled_by_server: bool) -> dict[str, Any]:
    # A pooler in transaction mode gives every transaction another session: a statement prepared in one
    # does not exist in the next.
    return {
        "autocommit": True,
        "application_name": f"kappa {name}",
        "prepare_threshold": None if pooled_by_server else 5,
        **keepalive.options(url, direct=not pooled_by_server),
    }


class Pool:
    """A pool for threads."""

    def __init__(self, url: str, name: str, bounds: Bounds, *, behind_pooler: bool = False) -> None:
        self._ledger = _Ledger[Connection[Row]](name, bounds, url)
        self._pool: ConnectionPool[Connection[Row]] = ConnectionPool(
            url,
            kwargs=_connection_options(url, name, behind_pooler),
            min_size=bounds.min_size,
            max_size=bounds.max_size,
            timeout=bounds.wait,
            check=_check,
            name=name,
            open=False,
        )

    def open(self) -> Self:
        """Begin to connect, unless it is open. Fails when no server answers within the pool's wait."""
        if not self._pool.closed:
            return self
        wait = self._ledger.bounds.wait
        self._pool.open()
        try:
            self._pool.wait(wait)
        except PoolTimeout:
            self._pool.close()
            raise self._ledger.unreachable(wait, self._probe()) from None
        return self

    def close(self) -> None:
        if (spare := self._ledger.close()) is not None:
            self._pool.putconn(spare)
        self._pool.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def connection(self, *, wait: float | None = None, who: str | None = None) -> "_Lent":
        """A connection in autocommit, given back at the end of the block."""
        return _Lent(self, self._ledger.bounds.wait if wait is None else wait, who or _caller(_thread_name()))

    def take(self, wait: float, who: str) -> Connection[Row]:
        return self._spare(who) or self._fetch(wait, who)

    def give_back(self, connection: Connection[Row]) -> None:
        if not self._ledger.left(connection):
            self._pool.putconn(connection)

    def _spare(self, who: str) -> Connection[Row] | None:
        spare = self._ledger.take_spare(who)
        if spare is not None and _has_news(spare):
            try:
                spare.execute(b"")
            except psycopg.Error:
                self._ledger.broken(spare)
                self._pool.putconn(spare)
                return None
        return spare

    def _fetch(self, wait: float, who: str) -> Connection[Row]:
        try:
            connection = self._pool.getconn(wait)
        except BaseException as error:
            self._ledger.gave_up()
            if isinstance(error, PoolTimeout):
                raise self._ledger.timed_out(wait) or self._ledger.unreachable(wait, self._why(wait)) from None
            if isinstance(error, PoolClosed):
                raise _not_open(error) from None
            raise
        self._ledger.entered(connection, who)
        return connection

    @contextmanager
    def transaction(
        self, *, wait: float | None = None, who: str | None = None, pipeline: bool = False
    ) -> Generator[Connection[Row]]:
        """A connection inside a transaction: committed at the end of the block, undone on any error.

        In a `pipeline` statements are sent without waiting for the answers to those before.
        """
        who = who or _caller(_thread_name())
        with (
            self.connection(wait=wait, who=who) as connection,
            connection.pipeline() if pipeline else nullcontext(),
            connection.transaction(),
        ):
            yield connection

    def use(self) -> PoolUse:
        return self._ledger.use(self._pool.get_stats())

    def _why(self, waited: float) -> psycopg.Error | None:
        # Who waits for less than usual has a deadline, and no time to ask.
        return self._probe() if waited >= self._ledger.bounds.wait else None

    def _probe(self) -> psycopg.Error | None:
        try:
            psycopg.connect(self._ledger.probe_url).close()
        except psycopg.Error as error:
            return error
        return None


class AsyncPool:
    """A pool for an event loop."""

    def __init__(self, url: str, name: str, bounds: Bounds, *, behind_pooler: bool = False) -> None:
        self._ledger = _Ledger[AsyncConnection[Row]](name, bounds, url)
        self._pool: AsyncConnectionPool[AsyncConnection[Row]] = AsyncConnectionPool(
            url,
            kwargs=_connection_options(url, name, behind_pooler),
            min_size=bounds.min_size,
            max_size=bounds.max_size,
            timeout=bounds.wait,
            check=_check_async,
            name=name,
            open=False,
        )

    async def open(self) -> Self:
        """Begin to connect, unless it is open. Fails when no server answers within the pool's wait."""
        if not self._pool.closed:
            return self
        wait = self._ledger.bounds.wait
        await self._pool.open()
        try:
            await self._pool.wait(wait)
        except PoolTimeout:
            await self._pool.close()
            raise self._ledger.unreachable(wait, await self._probe()) from None
        return self

    async def close(self) -> None:
        if (spare := self._ledger.close()) is not None:
            await self._pool.putconn(spare)
        await self._pool.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def connection(self, *, wait: float | None = None, who: str | None = None) -> "_LentAsync":
        """A connection in autocommit, given back at the end of the block."""
        return _LentAsync(self, self._ledger.bounds.wait if wait is None else wait, who or _caller(_task_name()))

    async def take(self, wait: float, who: str) -> AsyncConnection[Row]:
        return await self._spare(who) or await self._fetch(wait, who)

    async def give_back(self, connection: AsyncConnection[Row]) -> None:
        if not self._ledger.left(connection):
            await self._pool.putconn(connection)

    async def _spare(self, who: str) -> AsyncConnection[Row] | None:
        spare = self._ledger.take_spare(who)
        if spare is not None and _has_news(spare):
            try:
                await spare.execute(b"")
            except BaseException as error:
                self._ledger.broken(spare)
                await self._pool.putconn(spare)
                if not isinstance(error, psycopg.Error):
                    self._ledger.gave_up()
                    raise
                return None
        return spare

    async def _fetch(self, wait: float, who: str) -> AsyncConnection[Row]:
        cancelled = _cancellations()
        try:
            connection = await self._pool.getconn(wait)
            if _cancellations() > cancelled:
                # One that comes together with the connection is forgotten on the way; the caller would go on for ever.
                await self._pool.putconn(connection)
                raise asyncio.CancelledError
        except BaseException as error:
            self._ledger.gave_up()
            if isinstance(error, PoolTimeout):
                raise self._ledger.timed_out(wait) or self._ledger.unreachable(wait, await self._probe()) from None
            if isinstance(error, PoolClosed):
                raise _not_open(error) from None
            raise
        self._ledger.entered(connection, who)
        return connection

    @asynccontextmanager
    async def transaction(
        self, *, wait: float | None = None, who: str | None = None
    ) -> AsyncGenerator[AsyncConnection[Row]]:
        """A connection inside a transaction: committed at the end of the block, undone on any error."""
        who = who or _caller(_task_name())
        async with self.connection(wait=wait, who=who) as connection, connection.transaction():
            yield connection

    def use(self) -> PoolUse:
        return self._ledger.use(self._pool.get_stats())

    async def _probe(self) -> psycopg.Error | None:
        try:
            await (await AsyncConnection.connect(self._ledger.probe_url)).close()
        except psycopg.Error as error:
            return error
        return None


# The block around a connection. Classes, since a generator's way in and out costs more than a short statement's
# parameters, and every statement goes through here.


class _Lent:
    __slots__ = ("_connection", "_pool", "_wait", "_who")

    def __init__(self, pool: Pool, wait: float, who: str) -> None:
        self._pool, self._wait, self._who = pool, wait, who

    def __enter__(self) -> Connection[Row]:
        self._connection = self._pool.take(self._wait, self._who)
        return self._connection

    def __exit__(self, *exc: object) -> None:
        self._pool.give_back(self._connection)
        if exc[0] is not None:
            _say_if_not_installed(exc[1])


class _LentAsync:
    __slots__ = ("_connection", "_pool", "_wait", "_who")

    def __init__(self, pool: AsyncPool, wait: float, who: str) -> None:
        self._pool, self._wait, self._who = pool, wait, who

    async def __aenter__(self) -> AsyncConnection[Row]:
        self._connection = await self._pool.take(self._wait, self._who)
        return self._connection

    async def __aexit__(self, *exc: object) -> None:
        await self._pool.give_back(self._connection)
        if exc[0] is not None:
            _say_if_not_installed(exc[1])


def _say_if_not_installed(error: object) -> None:
    """A program's first mistake, in words: what is Kappa's own is not in the database."""
    if isinstance(error, (psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedTable)):
        found = error.diag.message_primary or ""
        if '"kappa"' in found or '"kappa.' in found:
            raise SchemaTooOld(
                f"the database has not got Kappa's tables ({found}): `engine.install()` or `kg db migrate` makes them"
            ) from error


def _not_open(error: PoolClosed) -> PoolError:
    return PoolError(f"{error}, so it is not open: use what it belongs to in a `with` block, or call its `open()`")


def _cancellations() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task else 0


def _thread_name() -> str:
    return threading.current_thread().name


def _task_name() -> str:
    task = asyncio.current_task()
    return task.get_name() if task else "event loop"
