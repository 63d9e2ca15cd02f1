"""PostgreSQL plumbing: pools, LISTEN, named queries, migrations, the embedded server."""

from typing import TYPE_CHECKING

from kappa import late

if TYPE_CHECKING:
    from kappa.pg.bounds import Bounds
    from kappa.pg.database import DEFAULT_BOUNDS, Capacity, Database
    from kappa.pg.errors import KappaError, PgError, PoolExhausted, PoolUnreachable
    from kappa.pg.listener import Listening, Notification, listen
    from kappa.pg.migrations import Component, Migration, SchemaState, check, component, examine, migrate
    from kappa.pg.pool import AsyncPool, Pool, PoolUse
    from kappa.pg.queries import Queries, Query, beside

__all__ = [
    "DEFAULT_BOUNDS",
    "AsyncPool",
    "Bounds",
    "Capacity",
    "Component",
    "Database",
    "KappaError",
    "Listening",
    "Migration",
    "Notification",
    "PgError",
    "Pool",
    "PoolExhausted",
    "PoolUnreachable",
    "PoolUse",
    "Queries",
    "Query",
    "SchemaState",
    "beside",
    "check",
    "component",
    "examine",
    "listen",
    "migrate",
]

if not TYPE_CHECKING:
    __getattr__ = late.names(
        __name__, __all__, ("errors", "bounds", "queries", "pool", "migrations", "listener", "database")
    )
