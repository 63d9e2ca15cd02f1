"""What is there to match with, in memory: the vectors of an ontology's concepts, and the vocabulary's.

Read whole once, then kept fresh by the change log. Whoever asks holds the ontology's lock, has refreshed what it asks
inside of its transaction, and so sees all that was committed before. Only vectors of one model and length are in one
place: others are not compared, ever.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from uuid import UUID

import numpy as np
from psycopg import Connection

from kappa.graph.ingest.match import Candidate
from kappa.graph.store import clock, embeddings
from kappa.graph.store.embeddings import Embedded
from kappa.graph.store.vectors import Floats, Kind
from kappa.pg.queries import Row

MOST_CANDIDATES = 32
KEPT_ONTOLOGIES = 8
SLACK = 1e-3
"""More than single precision can be wrong about a cosine."""


def likeness(one: Floats, other: Floats) -> float:
    """The cosine of two vectors of length 1, in millionths: the same whatever else they were compared with."""
    return round(float(np.dot(one.astype(np.float64), other.astype(np.float64))), 6)


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

    def refresh(self, connection: Connection[Row]) -> None:
        """Up to all that this transaction's next statement could see."""
        if self._epoch is None:
            latest, told = clock.now(connection), False
        else:
            latest, told = clock.since(connection, self._epoch)
        if told and self._epoch is not None:
            changes = clock.matching_changes(connection, self._epoch)
            told = all(kind != "reload" for kind, _ in changes)
            touched = sorted({node for kind, nodes in changes if kind == "concepts" for node in nodes or ()})
        else:
            touched = []
        if not told:
            self._clear()
            self._put(embeddings.concepts(connection, self._ontology, self._kind))
        elif touched:
            found = embeddings.concepts(connection, self._ontology, self._kind, touched)
            for node in set(touched) - {one.node for one in found}:
                self._drop(node)
            self._put(found)
        self._epoch = latest

    def _put(self, found: Sequence[Embedded]) -> None:
        for one in found:
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
        rough = vectors @ self._vectors[:size].T
        found: list[list[Candidate[UUID]]] = []
        for vector, row in zip(vectors, rough, strict=True):
            places = np.flatnonzero(row >= least - SLACK)
            if len(places) > MOST_CANDIDATES:
                places = places[np.argsort(-row[places], kind="stable")[:MOST_CANDIDATES]]
            found.append(
                [
                    Candidate(self._keys[place], self._labels[place], likeness(vector, self._vectors[place]))
                    for place in places.tolist()
                ]
            )
        return found


class NearTypes:
    """The vocabulary, with the vectors of one kind."""

    def __init__(self, kind: Kind) -> None:
        self.lock = threading.Lock()
        self._kind = kind
        self._epoch: int | None = None
        self._types: list[tuple[str, Floats | None]] = []

    def refresh(self, connection: Connection[Row]) -> None:
        if self._epoch is None:
            latest, told = clock.now(connection), False
        else:
            latest, told = clock.since(connection, self._epoch)
            told = told and not any(kind != "concepts" for kind, _ in clock.matching_changes(connection, self._epoch))
        if not told:
            self._types = embeddings.types(connection, self._kind)
        self._epoch = latest

    def like(self, vector: Floats) -> list[Candidate[str]]:
        """All types, each with its likeness; without a vector of this kind it is like nothing."""
        return [
            Candidate(name, name, -1.0 if other is None else likeness(vector, other)) for name, other in self._types
        ]


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
