"""Any provider's embedding model as an `Embedder`."""

import threading
from collections.abc import Iterator, Sequence

import numpy as np

from kappa.graph.ingest.embedding import PROVIDER, Thresholds, Vectors
from kappa.graph.ingest.providers.account import Usage
from kappa.graph.ingest.providers.line import Line

MOST_TEXTS = 256
MOST_CHARACTERS = 200_000
"""Of one call; providers bound the tokens of a call, and 4 characters are about one."""
KNOWN = {"text-embedding-3-small": 1536, "text-embedding-3-large": 3072, "text-embedding-ada-002": 1536}


class ModelEmbedder:
    """A model that makes vectors. Safe to use from many threads."""

    thresholds: Thresholds = PROVIDER

    def __init__(self, line: Line, dimensions: int | None) -> None:
        self._line = line
        self._fewer = dimensions
        self._dimension = dimensions or KNOWN.get(line.model)
        self._lock = threading.Lock()

    @property
    def model(self) -> str:
        fewer = f"@{self._fewer}" if self._fewer is not None else ""
        return f"{self._line.provider}/{self._line.model}{fewer}"

    @property
    def dimension(self) -> int:
        """Of a model that Kappa does not know, the first call tells it."""
        if self._dimension is None:
            self._call(["dimension"])
        assert self._dimension is not None
        return self._dimension

    @property
    def usage(self) -> Usage:
        """Of all its calls so far."""
        return self._line.account.usage

    def embed(self, texts: Sequence[str]) -> Vectors:
        parts = [self._call(some) for some in _batches(texts)]
        return np.concatenate(parts) if parts else np.empty((0, self.dimension), np.float32)

    def close(self) -> None:
        self._line.adapter.close()

    def _call(self, texts: Sequence[str]) -> Vectors:
        rows = self._line.call(lambda: self._line.adapter.embed(texts)).vectors
        if len(rows) != len(texts) or len(set(map(len, rows))) != 1:
            raise self._line.bad(f"gave {len(rows)} vectors for {len(texts)} texts, or vectors of several lengths")
        vectors = np.asarray(rows, np.float32)
        with self._lock:
            self._dimension = self._dimension or vectors.shape[1]
        if vectors.shape[1] != self._dimension:
            raise self._line.bad(f"gave vectors of {vectors.shape[1]} numbers, not of {self._dimension}")
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not (np.isfinite(lengths).all() and (lengths > 0).all()):
            raise self._line.bad("gave a vector without a direction")
        return vectors / lengths


def _batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    some: list[str] = []
    characters = 0
    for text in texts:
        if some and (len(some) == MOST_TEXTS or characters + len(text) > MOST_CHARACTERS):
            yield some
            some, characters = [], 0
        some.append(text)
        characters += len(text)
    if some:
        yield some
