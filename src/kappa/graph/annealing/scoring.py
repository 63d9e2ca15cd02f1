"""How ontologies are: their mass, how well their concepts hang together, how much they have in common.

**Mass** counts documents, concepts, evidence and relations. **Coherence** is the mean cosine between a concept's
embedding and the mean of all: 1 where all point the same way. **Overlap** of two is the share of the smaller one's
labels that the other has as well, and the cosine between their means.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from psycopg import Connection

from kappa.graph.identity import normal
from kappa.pg import queries
from kappa.pg.queries import Row

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float64]

sql = queries.beside(__file__)
MASSES = sql["masses"]
LABELS = sql["labels"]
EMBEDDINGS = sql["embeddings"]
MODEL = sql["model"]
LEADING_LABELS = sql["leading_labels"]

BATCH = 10_000
SAMPLED = 20_000
"""Concepts whose embeddings are looked at, the oldest of an ontology."""
ROUNDS = 25


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
    model: tuple[str, int] | None
    middle: "Vectors | None"
    """The direction of the mean."""


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


def score(connection: Connection[Row]) -> list[Scored]:
    """All ontologies."""
    found = connection.execute(MASSES.sql).fetchall()
    return [_scored(connection, row[0], row[1], row[2], Mass(*row[3:])) for row in found]


def _scored(connection: Connection[Row], number: int, key: UUID, name: str, mass: Mass) -> Scored:
    import numpy as np

    labels: dict[str, str] = {}
    after = -1
    while rows := connection.execute(LABELS.sql, {"ontology": number, "after": after, "limit": BATCH}).fetchall():
        for _, _, label in rows:
            labels.setdefault(normal(label), label)
        after = rows[-1][0]
    _, vectors = _embeddings(connection, number)
    coherence = middle = None
    if len(vectors) >= 2:
        mean = vectors.mean(axis=0)
        length = float(np.linalg.norm(mean))
        # Vectors that cancel each other out point nowhere together.
        middle = mean / length if length > 0 else mean
        coherence = float((vectors @ middle).mean())
    model = connection.execute(MODEL.sql, {"ontology": number}).fetchone()
    return Scored(number, key, name, mass, labels, coherence, (model[0], model[1]) if model else None, middle)


def _embeddings(connection: Connection[Row], number: int) -> "tuple[list[tuple[UUID, str]], Vectors]":
    """Concepts and their embeddings, each of length one."""
    import numpy as np

    rows = connection.execute(EMBEDDINGS.sql, {"ontology": number, "limit": SAMPLED}, binary=True).fetchall()
    vectors = np.array([row[3] for row in rows], dtype=np.float64).reshape(len(rows), len(rows[0][3]) if rows else 1)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return [(row[1], row[2]) for row in rows], vectors / np.where(lengths == 0, 1, lengths)


def overlap(one: Scored, other: Scored) -> Overlap:
    shared = sorted(set(one.labels) & set(other.labels))
    least = min(len(one.labels), len(other.labels))
    similarity = None
    if one.middle is not None and other.middle is not None and one.model == other.model:
        similarity = float(one.middle @ other.middle)
    examples = tuple(one.labels[label] for label in shared[:10])
    return Overlap(len(shared), len(shared) / least if least else 0.0, similarity, examples)


def halves(connection: Connection[Row], scored: Scored) -> Halves | None:
    """By two means, from the two concepts that are farthest apart of the first and what is farthest from it."""
    import numpy as np

    concepts, vectors = _embeddings(connection, scored.number)
    if len(concepts) < 4:
        return None
    first = int(np.argmin(vectors @ vectors.mean(axis=0)))
    second = int(np.argmin(vectors @ vectors[first]))
    means: Vectors = vectors[[first, second]]
    side = np.zeros(len(concepts), dtype=bool)
    for _ in range(ROUNDS):
        now = vectors @ means[1] > vectors @ means[0]
        if now.all() or not now.any():
            return None
        means = np.stack([_direction(vectors[~now]), _direction(vectors[now])])
        if (now == side).all():
            break
        side = now
    near: Vectors = vectors @ means.T
    own, other = np.where(side, near[:, 1], near[:, 0]), np.where(side, near[:, 0], near[:, 1])
    apart = np.maximum(1 - own, 1 - other)
    separation = float(np.mean((own - other) / np.where(apart == 0, 1, apart)))
    if side.sum() * 2 > len(side):
        side = ~side
    smaller = tuple(concept for concept, chosen in zip(concepts, side, strict=True) if chosen)
    return Halves(separation, smaller, len(concepts) - len(smaller))


def _direction(vectors: "Vectors") -> Any:
    import numpy as np

    mean = vectors.mean(axis=0)
    length = np.linalg.norm(mean)
    return mean / length if length > 0 else mean


def leading_labels(connection: Connection[Row], number: int, most: int) -> Sequence[str]:
    return [row[0] for row in connection.execute(LEADING_LABELS.sql, {"ontology": number, "limit": most})]
