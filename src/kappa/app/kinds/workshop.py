"""What the handlers of one process share: made at first use, for a process may never run such a job."""

import threading
from typing import TYPE_CHECKING

from kappa.app.settings import Settings
from kappa.pg import Database

if TYPE_CHECKING:
    from kappa.graph import Graph
    from kappa.graph.ingest.embedding import Embedder


class Workshop:
    """The graph as jobs use it, and the embedding model. Safe to use from many threads."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self.settings = settings
        self._database = database
        self._lock = threading.Lock()
        self._graph: Graph | None = None
        self._embedder: Embedder | None = None

    @property
    def embedder(self) -> "Embedder":
        """What turns texts into vectors."""
        with self._lock:
            if self._embedder is None:
                from kappa.graph.ingest.local.embed import LocalEmbedder

                self._embedder = LocalEmbedder()
            return self._embedder

    @property
    def graph(self) -> "Graph":
        """Without a snapshot: jobs walk little, and the server's own one is large."""
        with self._lock:
            if self._graph is None:
                from kappa.graph import Graph, GraphConfig

                config = GraphConfig(
                    workers=self.settings.graph_workers,
                    timeout=self.settings.graph_timeout,
                    pool=self.settings.bounds["graph"],
                    snapshot=False,
                )
                self._graph = Graph(self._database, config).open(listen=False)
            return self._graph

    def close(self) -> None:
        with self._lock:
            if self._graph is not None:
                self._graph.close()
                self._graph = None
            if self._embedder is not None:
                self._embedder.close()
                self._embedder = None
