"""What turns texts into vectors, and how near two vectors must be to mean the same.

The numbers of likeness belong to the model: two models agree on an order, never on a scale.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
"""A row for each text, of length 1."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Cosines at which a model's vectors count as the same."""

    same: float
    """Two labels mean one concept."""
    contains: float
    """Where one label contains the other."""
    stem: float
    """Where both have equal stems."""
    types: float
    """Two relation types say one thing."""


PROVIDER = Thresholds(same=0.85, contains=0.75, stem=0.75, types=0.85)
"""What suits the large models of providers, until one has been calibrated."""


class Embedder(Protocol):
    """A model of embeddings. Safe to call from many threads."""

    @property
    def model(self) -> str:
        """The name that is kept with each vector: vectors of two models are never compared."""
        ...

    @property
    def dimension(self) -> int: ...

    @property
    def thresholds(self) -> Thresholds: ...

    def embed(self, texts: Sequence[str]) -> Vectors: ...

    def close(self) -> None: ...
