"""The ways into one graph's tables: for reading, for writing, and not at all where the graph is somebody else's."""

from collections.abc import Generator
from contextlib import contextmanager

from psycopg import Connection

from kappa.graph.errors import ForeignGraph
from kappa.graph.query.backend import GraphBackend
from kappa.pg import Pool
from kappa.pg.queries import Row


class Access:
    """What every part of the graph's front stands on."""

    def __init__(self, pool: Pool, backend: GraphBackend) -> None:
        self._pool = pool
        self._backend = backend

    @contextmanager
    def transaction(self, *, pipeline: bool = False) -> Generator[Connection[Row]]:
        """Several writes that commit together: pass the connection to each of them.

        In a `pipeline` statements are sent without waiting for the answers to those before.
        """
        self._only_own("is not ours to write")
        with self._pool.transaction(pipeline=pipeline) as connection:
            yield connection

    def _only_own(self, why: str) -> None:
        if not self._backend.own:
            raise ForeignGraph(f"a graph of the backend {self._backend.name!r} {why}")

    @contextmanager
    def _writing(self, connection: Connection[Row] | None) -> Generator[Connection[Row]]:
        self._only_own("is not ours to write")
        if connection is not None:
            yield connection
            return
        with self._pool.transaction() as own:
            yield own
