"""Gives vectors of the current model to all that lacks them: after a change of model, or what was written without.

Batch by batch, each committed before the next: what was broken off goes on where it stopped, because what has its
vector is not found again.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kappa.graph.identity import kept
from kappa.graph.ingest.embedding import Embedder
from kappa.graph.ingest.match import type_text
from kappa.graph.ingest.pipeline import Begin
from kappa.graph.store import clock, embeddings
from kappa.graph.store.embeddings import STALE_CONCEPTS, STALE_SOURCES, STALE_TYPES
from kappa.graph.store.vectors import Floats, Kind

BATCH = 128


@dataclass(frozen=True, slots=True)
class Reembedded:
    """How many got a vector."""

    model: str
    concepts: int
    relation_types: int
    sources: int


def reembed(
    begin: Begin,
    embedder: Embedder,
    *,
    each: Callable[[int, int], None] = lambda done, total: None,
    batch: int = BATCH,
) -> Reembedded:
    """Concepts, relation types and sources without a vector of this model, or with one of another text.

    `each(done, total)` is called after every batch; what it raises ends the work there.
    """
    kind = Kind(kept(embedder.model), embedder.dimension)
    with begin() as connection:
        total = sum(embeddings.stale(connection, kind))
    counts: list[int] = []
    each(0, total)
    for query in (STALE_CONCEPTS, STALE_TYPES, STALE_SOURCES):
        done = after = 0
        while True:
            with begin() as connection:
                found = embeddings.next_stale(connection, query, kind, after, batch)
            if not found:
                break
            texts = [(type_text(one.text) or one.text) if query is STALE_TYPES else one.text for one in found]
            vectors: Floats = np.asarray(embedder.embed(texts), np.float32)
            keys = [one.key for one in found]
            with begin() as connection:
                if query is STALE_SOURCES:
                    embeddings.put_sources(connection, kind, keys, texts, vectors)
                else:
                    put = embeddings.put_concepts if query is STALE_CONCEPTS else embeddings.put_types
                    put(connection, kind, keys, vectors)
                clock.take_epoch(connection)
            done, after = done + len(found), found[-1].id
            each(sum(counts) + done, total)
        counts.append(done)
    return Reembedded(embedder.model, *counts)
