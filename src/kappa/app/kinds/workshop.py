"""What the handlers of one process share: made at first use, for a process may never run such a job."""

import threading
from typing import TYPE_CHECKING

from kappa.app.kinds import models
from kappa.app.settings import Settings
from kappa.graph.ingest.providers import ModelExtractor
from kappa.pg import Database

if TYPE_CHECKING:
    from kappa.graph import Graph
    from kappa.graph.ingest.embedding import Embedder
    from kappa.graph.ingest.extraction import Extractor
    from kappa.graph.ingest.pipeline import Pipeline
    from kappa.graph.ingest.reader_pool import ReaderPool


class Workshop:
    """The graph as jobs use it, and the models, one of each. Safe to use from many threads."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self.settings = settings
        self._database = database
        self._lock = threading.RLock()
        self._graph: Graph | None = None
        self._embedder: Embedder | None = None
        self._pipeline: Pipeline | None = None
        self._extractors: dict[str, Extractor] = {}
        self._readers: ReaderPool | None = None

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

    @property
    def embedder(self) -> "Embedder":
        """The one model of this process, with its one thread: what several jobs ask for goes through it together."""
        with self._lock:
            if self._embedder is None:
                self._embedder = models.open_embedder(self.settings)
            return self._embedder

    @property
    def pipeline(self) -> "Pipeline":
        with self._lock:
            if self._pipeline is None:
                from kappa.graph.ingest.pipeline import Pipeline

                self._pipeline = Pipeline(self.graph.transaction, self.embedder)
            return self._pipeline

    @property
    def readers(self) -> "ReaderPool":
        """The processes that documents are read in."""
        with self._lock:
            if self._readers is None:
                self._readers = models.open_readers(self.settings)
            return self._readers

    def extractor(self, provider: str | None) -> "Extractor":
        """The provider of this name, or the one that the settings say."""
        name = provider or self.settings.provider
        with self._lock:
            if name not in self._extractors:
                self._extractors[name] = models.provider(name).open(self.settings)
            return self._extractors[name]

    def close(self) -> None:
        with self._lock:
            if self._readers is not None:
                self._readers.close()
                self._readers = None
            for extractor in self._extractors.values():
                if isinstance(extractor, ModelExtractor):  # which has connections
                    extractor.close()
            self._extractors.clear()
            self._pipeline = None
            if self._embedder is not None:
                self._embedder.close()
                self._embedder = None
            if self._graph is not None:
                self._graph.close()
                self._graph = None
