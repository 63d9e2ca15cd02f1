"""How ontologies are: their mass, how well their concepts hang together, how much they have in common.

**Mass** counts documents, concepts, evidence and relations. **Coherence** is the mean cosine between a concept's
embedding and the mean of all: 1 where all point the same way. **Overlap** of two is the share of the smaller one's
labels that the other has as well, and the cosine between their means.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from psycopg import Connection

from kappa.graph.identity import normal
from kappa.graph.store import vectors
from kappa.graph.store.vectors import Block, Kind
from kappa.pg import queries
from kappa.pg.queries import Row

Vectors = NDArray[np.float64]

sql = queries.beside(__file__)
MASSES = sql["masses"]
LABELS = sql["labels"]
MODELS = sql["models"]
OLDEST = sql["oldest"]
LEADING_LABELS = sql["leading_labels"]

BATCH = 10_000
SAMPLED = 20_000
"""Concepts that are thought of in two parts, the oldest of an ontology."""
PART = 2_000
ROUNDS = 25
Told = Callable[[int, int, str], None]
"""How far it is, of how much, with what; it may raise to stop."""


@dataclass(frozen=True, slots=True)
class Mass:
    documents: int
    concepts: int
    evidence: int
    relations: int


@dataclass(frozen=True, slots=True)
class Scored:
    """An ontology, and what was found out about it."""

    number: int
    key: UUID
    name: str
    mass: Mass
    labels: dict[str, str]
    """As they are written, by what is the same of them."""
    coherence: float | None
    """None where fewer than two concepts have an embedding."""
    middle: Vectors | None
    """The direction of the mean."""
    model: Kind | None
    """That most of its concepts have an embedding of."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """What two ontologies have in common."""

    shared: int
    share: float
    """Of the smaller one's labels."""
    similarity: float | None
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Halves:
    """An ontology in two parts, as its embeddings fall."""

    separation: float
    """How much nearer a concept is to its own part than to the other, -1 to 1 (the mean silhouette)."""
    smaller: tuple[tuple[UUID, str], ...]
    """The concepts of the smaller part."""
    larger: int


def untold(done: int, total: int, what: str) -> None:
    pass


def score(connection: Connection[Row], told: Told = untold) -> list[Scored]:
    """All ontologies. The graph is read through once, in parts, whatever their number."""
    masses = connection.execute(MASSES.sql).fetchall()
    models: dict[int, Kind] = {row[0]: Kind(row[1], row[2]) for row in connection.execute(MODELS.sql)}
    bounds = {kind: vectors.bounds(connection, kind) for kind in sorted(set(models.values()))}
    parts = [(kind, low, high) for kind, of in bounds.items() for low, high in vectors.parts(kind, of)]
    labels: dict[int, dict[str, str]] = {row[0]: {} for row in masses}
    after, total = -1, sum(row[4] for row in masses) // BATCH + 1 + len(parts)
    done = 0
    while rows := connection.execute(LABELS.sql, {"after": after, "limit": BATCH}).fetchall():
        told(done, total, "reading the graph")
        for _, ontology, label in rows:
            if ontology in labels:  # or it is newer than the look at all of them
                labels[ontology].setdefault(normal(label), label)
        after, done = rows[-1][0], done + 1
    sums = {number: Sum() for number in models}
    for kind, low, high in parts:
        told(done, total, "reading the graph")
        own = [number for number, model in models.items() if model == kind]
        _add(sums, vectors.block(connection, kind, low, high, own))
        done += 1
    return [
        Scored(
            number, key, name, Mass(*mass), labels[number], *sums[number].middle if number in sums else (None, None),
            models.get(number),
        )
        for number, key, name, *mass in masses
    ]  # fmt: skip


class Sum:
    """Of unit vectors of one ontology."""

    def __init__(self) -> None:
        self.count = 0
        self.sum: Any = 0.0

    @property
    def middle(self) -> tuple[float | None, Vectors | None]:
        """Coherence, and the direction of the mean. The mean cosine to the mean is how long the mean is."""
        if self.count < 2:
            return None, None
        mean = self.sum / self.count
        length = float(np.linalg.norm(mean))
        # Vectors that cancel each other out point nowhere together.
        return length, mean / length if length > 0 else mean


def _add(sums: Mapping[int, Sum], block: Block) -> None:
    if not len(block.nodes):
        return
    order = np.argsort(block.groups, kind="stable")
    groups, first, counts = np.unique(block.groups[order], return_index=True, return_counts=True)
    added = np.add.reduceat(_unit(block.vectors)[order], first, axis=0)
    for number, one, count in zip(groups.tolist(), added, counts.tolist(), strict=True):
        sums[number].sum = sums[number].sum + one
        sums[number].count += count


def _unit(given: NDArray[np.float32]) -> Vectors:
    wide = given.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    return wide / np.where(lengths == 0, 1, lengths)


def sharing(scored: Sequence[Scored], least: int, told: Told = untold) -> list[tuple[int, int]]:
    """Places of ontologies that have so many labels in common, the first first. Only labels of several are paired."""
    holders: dict[str, list[int]] = {}
    common: Counter[tuple[int, int]] = Counter()
    for at, one in enumerate(scored):
        told(at, len(scored), "comparing ontologies")
        for label in one.labels:
            known = holders.setdefault(label, [])
            common.update((other, at) for other in known)
            known.append(at)
    return sorted(pair for pair, count in common.items() if count >= least)


def overlap(one: Scored, other: Scored) -> Overlap:
    shared = sorted(one.labels.keys() & other.labels.keys())
    least = min(len(one.labels), len(other.labels))
    similarity = None
    if one.middle is not None and other.middle is not None and one.model == other.model:
        similarity = float(one.middle @ other.middle)
    examples = tuple(one.labels[label] for label in shared[:10])
    return Overlap(len(shared), len(shared) / least if least else 0.0, similarity, examples)


def halves(connection: Connection[Row], scored: Scored) -> Halves | None:
    """By two means, from the two concepts that are farthest apart of the first and what is farthest from it."""
    if scored.model is None:
        return None
    params = {"ontology": scored.number, **scored.model._asdict(), "limit": SAMPLED}
    named = {row[0]: (row[1], row[2]) for row in connection.execute(OLDEST.sql, params)}
    nodes = np.array(list(named), np.int64)
    blocks = [vectors.some(connection, scored.model, nodes[at : at + PART]) for at in range(0, len(nodes), PART)]
    concepts = [named[node] for block in blocks for node in block.nodes.tolist()]
    if len(concepts) < 4:
        return None
    units = np.concatenate([_unit(block.vectors) for block in blocks])
    first = int(np.argmin(units @ units.mean(axis=0)))
    second = int(np.argmin(units @ units[first]))
    means: Vectors = units[[first, second]]
    side = np.zeros(len(concepts), dtype=bool)
    for _ in range(ROUNDS):
        now = units @ means[1] > units @ means[0]
        if now.all() or not now.any():
            return None
        means = np.stack([_direction(units[~now]), _direction(units[now])])
        if (now == side).all():
            break
        side = now
    near: Vectors = units @ means.T
    own, other = np.where(side, near[:, 1], near[:, 0]), np.where(side, near[:, 0], near[:, 1])
    apart = np.maximum(1 - own, 1 - other)
    separation = float(np.mean((own - other) / np.where(apart == 0, 1, apart)))
    if side.sum() * 2 > len(side):
        side = ~side
    smaller = tuple(concept for concept, chosen in zip(concepts, side, strict=True) if chosen)
    return Halves(separation, smaller, len(concepts) - len(smaller))


def _direction(vectors: Vectors) -> Any:
    mean = vectors.mean(axis=0)
    length = np.linalg.norm(mean)
    return mean / length if length > 0 else mean


def leading_labels(connection: Connection[Row], number: int, most: int) -> Sequence[str]:
    return [row[0] for row in connection.execute(LEADING_LABELS.sql, {"ontology": number, "limit": most})]
