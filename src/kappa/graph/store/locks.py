"""For a change of the whole graph: writers are kept out until it commits, readers go on with what was there."""

from collections.abc import Sequence

import psycopg
from psycopg import Connection, sql

from kappa.graph.errors import GraphBusy
from kappa.pg.queries import Row

PATIENCE = "60s"
"""How long writers that were there before are waited for."""


def keep_writers_out(connection: Connection[Row], tables: Sequence[str], patience: str | None = None) -> None:
    named = sql.SQL(", ").join(sql.Identifier("kappa_graph", name) for name in tables)
    patience = patience or PATIENCE
    try:
        connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(patience)))
        connection.execute(sql.SQL("LOCK TABLE {} IN EXCLUSIVE MODE").format(named))
        connection.execute("SET LOCAL lock_timeout = 0")
    except psycopg.errors.LockNotAvailable:
        raise GraphBusy(f"somebody has been writing to the graph for {patience} and doesn't end") from None
