"""What is there to match with, in memory: the vectors of an ontology's concepts, and the vocabulary's.

Read whole once, then kept fresh by the change log. Whoever asks holds the ontology's lock, has looked and taken what is
new inside of its transaction, and so sees all that was committed before. To look is to send a question, which may wait
for that lock at the server; `lock` is only for those who have their answer. Only vectors of one model and length are in
one place: others are not compared, ever.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from psycopg import Connection

from kappa.graph.ingest.match import Candidate
from kappa.graph.store import clock, embeddings
from kappa.graph.store.embeddings import Embedded
from kappa.graph.store.vectors import Floats, Kind
from kappa.pg.queries import Answer, Row

MOST_CANDIDATES = 32
KEPT_ONTOLOGIES = 8
MANY = 200_000
SLACK = 1e-3
"""More than single precision can be wrong about a cosine."""


def likenesses(one: Floats, others: Floats) -> list[float]:
    """Cosines of vectors of length 1, in millionths: each is the same whatever else was compared with."""
    # Row by row: a product of matrices may add up in another order.
    exact: NDArray[np.float64] = (others.astype(np.float64) * one).sum(axis=1)
    return exact.round(6).tolist()


def products(ones: Floats, others: Floats) -> Floats:
    """Of every vector with every other one, roughly."""
    if len(ones) * len(others) > MANY:
        return ones @ others.T
    # Not by BLAS: it would wake its threads, which on a busy machine takes longer than all the rest.
    return np.vecdot(ones[:, None, :], others[None, :, :])


@dataclass(frozen=True, slots=True)
class News:
    """What happened up to an epoch: nodes, each with what is to be matched with; None if all is to be read anew."""

    epoch: int
    changed: Sequence[tuple[int, Embedded | None]] | None


class NearConcepts:
    """The concepts of one ontology that have vectors of one kind."""

    def __init__(self, ontology: int, kind: Kind) -> None:
        self.lock = threading.Lock()
        self._ontology = ontology
        self._kind = kind
        self._epoch: int | None = None
        self._clear()

    def _clear(self) -> None:
        self._places: dict[int, int] = {}
        self._nodes: list[int] = []
        self._keys: list[UUID] = []
        self._labels: list[str] = []
        self._known: set[UUID] = set()
        self._vectors: Floats = np.empty((256, self._kind.dimension), np.float32)

    def __len__(self) -> int:
        return len(self._nodes)

    def has(self, key: UUID) -> bool:
        """Whether a concept was there, with a vector, when this was last refreshed."""
        return key in self._known

    def look(self, connection: Connection[Row]) -> Answer[News]:
        """Ask what this does not know yet, of all that this transaction's next statement could see."""
        if (epoch := self._epoch) is None:
            return lambda: News(clock.now(connection), None)
        told = clock.told_since(connection, epoch, "reload")
        changed = embeddings.changed_concepts(connection, self._ontology, self._kind, epoch)

        def answer() -> News:
            latest, all_told = told()
            found = changed()
            return News(latest, found if all_told else None)

        return answer

    def take(self, connection: Connection[Row], news: News) -> None:
        """Who asked under the ontology's lock, and has it, tells. What was told before does no harm."""
        if news.changed is None:
            self._clear()
            for one in embeddings.concepts(connection, self._ontology, self._kind):
                self._put(one)
        for node, one in news.changed or ():
            if one is None:
                self._drop(node)
            else:
                self._put(one)
        self._epoch = news.epoch

    def _put(self, one: Embedded) -> None:
        place = self._places.get(one.node)
        if place is None:
            place = self._places[one.node] = len(self._nodes)
            self._nodes.append(one.node)
            self._keys.append(one.key)
            self._known.add(one.key)
            self._labels.append(one.label)
            if place == len(self._vectors):
                self._vectors = np.concatenate([self._vectors, np.empty_like(self._vectors)])
        self._labels[place] = one.label
        self._vectors[place] = one.vector

    def _drop(self, node: int) -> None:
        place = self._places.pop(node, None)
        if place is None:
            return
        self._known.discard(self._keys[place])
        last = len(self._nodes) - 1
        self._vectors[place] = self._vectors[last]
        node, key, label = self._nodes.pop(), self._keys.pop(), self._labels.pop()
        if place != last:
            self._nodes[place], self._keys[place], self._labels[place] = node, key, label
            self._places[node] = place

    def like(self, vectors: Floats, least: float) -> list[list[Candidate[UUID]]]:
        """For each vector the concepts that are at least so like it, the likest first."""
        size = len(self._nodes)
        if not size or not len(vectors):
            return [[] for _ in vectors]
        rough = products(vectors, self._vectors[:size])
        found: list[list[Candidate[UUID]]] = []
        for vector, row in zip(vectors, rough, strict=True):
            places = np.flatnonzero(row >= least - SLACK)
            if len(places) > MOST_CANDIDATES:
                places = places[np.argsort(-row[places], kind="stable")[:MOST_CANDIDATES]]
            exact = likenesses(vector, self._vectors[places])
            found.append(
                [
                    Candidate(self._keys[place], self._labels[place], like)
                    for place, like in zip(places.tolist(), exact, strict=True)
                ]
            )
        return found


class NearTypes:
    """The vocabulary, with the vectors of one kind."""

    def __init__(self, kind: Kind) -> None:
        self.lock = threading.Lock()
        self._kind = kind
        self._epoch: int | None = None
        self._names: list[str] = []
        self._lacking = np.empty(0, bool)
        self._vectors: Floats = np.empty((0, kind.dimension), np.float32)

    def look(self, connection: Connection[Row]) -> Answer[tuple[int, bool]]:
        """Ask up to which epoch this holds, and whether it does."""
        if (epoch := self._epoch) is None:
            return lambda: (clock.now(connection), False)
        return clock.told_since(connection, epoch, "relation_types", "reload")

    def take(self, connection: Connection[Row], epoch: int, holds: bool) -> None:
        if self._epoch is not None and epoch < self._epoch:
            return  # somebody who asked later has told already
        if not holds:
            found = embeddings.types(connection, self._kind)
            blank = np.zeros(self._kind.dimension, np.float32)
            self._names = [name for name, _ in found]
            self._lacking = np.array([vector is None for _, vector in found], bool)
            self._vectors = np.array([blank if vector is None else vector for _, vector in found], np.float32)
        self._epoch = epoch

    def like(self, vector: Floats) -> list[Candidate[str]]:
        """All types, each with its likeness; without a vector of this kind it is like nothing."""
        if not self._names:
            return []
        exact = np.where(self._lacking, -1.0, likenesses(vector, self._vectors)).tolist()
        return [Candidate(name, name, like) for name, like in zip(self._names, exact, strict=True)]


class Shelf:
    """What this process keeps for matching: the ontologies that were matched with last, and the vocabulary."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._concepts: OrderedDict[tuple[int, Kind], NearConcepts] = OrderedDict()
        self._types: dict[Kind, NearTypes] = {}

    def concepts(self, ontology: int, kind: Kind) -> NearConcepts:
        with self._lock:
            found = self._concepts.setdefault((ontology, kind), NearConcepts(ontology, kind))
            self._concepts.move_to_end((ontology, kind))
            while len(self._concepts) > KEPT_ONTOLOGIES:
                self._concepts.popitem(last=False)
            return found

    def types(self, kind: Kind) -> NearTypes:
        with self._lock:
            return self._types.setdefault(kind, NearTypes(kind))
