"""One PostgreSQL database as Kappa uses it: its address, its pools, and the proof that they fit.

`direct_url` is for what needs a session of its own (the leader's lock, LISTEN). Where it differs from `url`,
`url` leads through a pooler in transaction mode, and the pools prepare no statements.
"""

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import psycopg

from kappa.pg import queries
from kappa.pg.bounds import Bounds
from kappa.pg.errors import PgError, PoolsTooLarge
from kappa.pg.pool import AsyncPool, Pool
from kappa.pg.queries import Row

sql = queries.beside(__file__)
CAPACITY = sql["capacity"]

OLDEST_SERVER = 15

DEFAULT_BOUNDS: Mapping[str, Bounds] = {
    "queue": Bounds(1, 10),
    "graph": Bounds(1, 20),
    "auth": Bounds(1, 5),
    "fleet": Bounds(1, 5),
}


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many connections a server gives, and how many of them are taken."""

    version: int
    max_connections: int
    reserved: int
    in_use: int

    @property
    def usable(self) -> int:
        return self.max_connections - self.reserved

    @property
    def free(self) -> int:
        return max(0, self.usable - self.in_use)


@dataclass(frozen=True)
class Database:
    """Where the database is and how large its pools are."""

    url: str = field(repr=False)
    direct_url: str = field(default="", repr=False)
    bounds: Mapping[str, Bounds] = field(default_factory=lambda: dict(DEFAULT_BOUNDS))

    def __post_init__(self) -> None:
        if not self.direct_url:
            object.__setattr__(self, "direct_url", self.url)

    @property
    def behind_pooler(self) -> bool:
        return self.direct_url != self.url

    def connect(self) -> psycopg.Connection[Row]:
        """A connection of its own to the server itself, in autocommit."""
        try:
            return psycopg.connect(
                self.direct_url, autocommit=True, connect_timeout=10, application_name="kappa direct"
            )
        except psycopg.OperationalError as error:
            raise PgError(f"no connection to the database: {' '.join(str(error).split())}") from error
        except psycopg.ProgrammingError:
            # What the driver says of it repeats it, with the password if there is one.
            raise PgError(
                "the database's address can't be understood: it looks like postgresql://user@host/name"
            ) from None

    def check_capacity(self) -> Capacity:
        """Fail when the server is too old, or gives fewer connections than the pools may open."""
        with self.connect() as connection:
            found = capacity(connection)
        if found.version // 10000 < OLDEST_SERVER:
            raise PgError(f"this server is PostgreSQL {found.version // 10000}; Kappa needs {OLDEST_SERVER} or newer")
        need = sum(bounds.max_size for bounds in self.bounds.values())
        if need > found.usable and not self.behind_pooler:
            parts = ", ".join(f"{name} {bounds.max_size}" for name, bounds in self.bounds.items())
            raise PoolsTooLarge(
                f"the pools may open {need} connections ({parts}), but this server gives {found.usable} "
                f"(max_connections {found.max_connections}, {found.reserved} reserved): "
                f"make the pools smaller or raise max_connections"
            )
        return found

    @contextmanager
    def pools(self) -> Generator[Mapping[str, Pool]]:
        """The pools for threads, by name, checked against the server and closed at the end of the block."""
        self.check_capacity()
        with ExitStack() as stack:
            yield {
                name: stack.enter_context(Pool(self.url, name, bounds, behind_pooler=self.behind_pooler))
                for name, bounds in self.bounds.items()
            }

    @asynccontextmanager
    async def async_pools(self) -> AsyncGenerator[Mapping[str, AsyncPool]]:
        """The pools for an event loop, by name, checked and closed in the same way."""
        await asyncio.to_thread(self.check_capacity)
        async with AsyncExitStack() as stack:
            yield {
                name: await stack.enter_async_context(
                    AsyncPool(self.url, name, bounds, behind_pooler=self.behind_pooler)
                )
                for name, bounds in self.bounds.items()
            }


def capacity(connection: psycopg.Connection[Row]) -> Capacity:
    """What the server gives; asked on a connection of the caller's, which is not counted as in use."""
    row = connection.execute(CAPACITY.sql).fetchone()
    assert row is not None
    return Capacity(*row)
