"""Which relations and concepts a question may walk through, by name and as numbers; and when it has to stop."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kappa.graph.errors import BadQuestion, UnknownOntology, UnknownRelationType
from kappa.graph.model import Direction, RelationType, Where
from kappa.graph.query.adjacency import Int32, UInt8

OUT, IN, BOTH = 1, 2, 3
WAYS: dict[Direction, int] = {"out": OUT, "in": IN, "both": BOTH}

COMPLETE, OUT_OF_TIME, CANCELLED, TOO_MANY = range(4)
WHY = {
    OUT_OF_TIME: "the deadline passed",
    CANCELLED: "the question was cancelled",
    TOO_MANY: "more was found than one question may find",
}

NUMBERS = 1 << 16
"""Ontologies and relation types are numbered below this."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Numbers of ontologies and relation types, or None for all; confidence in hundredths."""

    ways: int = BOTH
    types: tuple[int, ...] | None = None
    ontologies: tuple[int, ...] | None = None
    min_confidence: int = 0
    type_ok: UInt8 | None = field(init=False, compare=False, repr=False)
    ontology_ok: UInt8 | None = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "type_ok", _table(self.types))
        object.__setattr__(self, "ontology_ok", _table(self.ontologies))

    @property
    def looks_at_edges(self) -> bool:
        return self.types is not None or self.min_confidence > 0


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The names that questions may use, and their numbers, at one epoch."""

    types: Mapping[str, RelationType] = field(default_factory=dict[str, RelationType])
    ontologies: Mapping[str, int] = field(default_factory=dict[str, int])
    categories: bool = True
    """Whether relation types have categories."""

    @property
    def type_names(self) -> dict[int, str]:
        return {one.number: name for name, one in self.types.items()}


@dataclass(frozen=True, slots=True)
class Terms:
    """Which relations and concepts a question may walk through, by name."""

    direction: Direction = "both"
    relation_types: Sequence[str] | None = None
    where: Where = field(default_factory=Where)

    def check(self) -> None:
        if self.direction not in WAYS:
            raise BadQuestion(f"direction {self.direction!r}: it is out, in or both")
        if not 0.0 <= self.where.min_confidence <= 1.0:
            raise BadQuestion(f"a confidence of {self.where.min_confidence:g}: it is 0 to 1")

    @property
    def has_names(self) -> bool:
        return not (self.relation_types is None and self.where.categories is None and self.where.ontologies is None)

    def are_in(self, known: Vocabulary) -> bool:
        """Whether all names are known."""
        types, ontologies = self.relation_types or (), self.where.ontologies or ()
        return all(name in known.types for name in types) and all(name in known.ontologies for name in ontologies)

    def numbers(self, known: Vocabulary) -> "Filter":
        """The same as numbers. A type that was merged is its survivor."""
        if self.where.categories is not None and not known.categories:
            raise BadQuestion("the relation types of this backend have no categories")
        types = _types(known, self.relation_types, self.where.categories)
        ontologies = None if self.where.ontologies is None else _ontologies(known, self.where.ontologies)
        return Filter(WAYS[self.direction], types, ontologies, round(self.where.min_confidence * 100))


def _types(known: Vocabulary, names: Sequence[str] | None, categories: Sequence[str] | None) -> tuple[int, ...] | None:
    if names is None and categories is None:
        return None
    chosen = set(range(NUMBERS)) if names is None else {_survivor(known, name) for name in names}
    if categories is not None:
        chosen &= {one.number for one in known.types.values() if one.category in categories}
    return tuple(sorted(chosen))


def _survivor(known: Vocabulary, name: str) -> int:
    if name not in known.types:
        raise UnknownRelationType(f"there is no relation type {name!r}")
    found = known.types[name]
    return _survivor(known, found.merged_into) if found.merged_into else found.number


def _ontologies(known: Vocabulary, names: Sequence[str]) -> tuple[int, ...]:
    for name in names:
        if name not in known.ontologies:
            raise UnknownOntology(f"there is no ontology {name!r}")
    return tuple(sorted(known.ontologies[name] for name in names))


def _table(numbers: tuple[int, ...] | None) -> UInt8 | None:
    if numbers is None:
        return None
    table = np.zeros(NUMBERS, np.uint8)
    table[list(numbers)] = 1
    return table


class Cancel:
    """A caller's way to end a question that runs in another thread, or one that is yet to be asked."""

    def __init__(self) -> None:
        self.flag: Int32 = np.zeros(1, np.int32)
        """Read by the kernels while they run."""
        self._lock = threading.Lock()
        self._acts: dict[object, object] = {}

    def cancel(self) -> None:
        with self._lock:
            self.flag[0] = 1
            acts = list(self._acts.values())
        for act in acts:
            assert callable(act)
            act()

    @property
    def cancelled(self) -> bool:
        return bool(self.flag[0])

    def watch(self, key: object, act: object) -> None:
        """Call `act` when it is cancelled; at once if it is already."""
        with self._lock:
            self._acts[key] = act
            late = self.cancelled
        if late:
            assert callable(act)
            act()

    def unwatch(self, key: object) -> None:
        with self._lock:
            self._acts.pop(key, None)


@dataclass(frozen=True, slots=True)
class Limits:
    """When a question has to stop: a wall clock for the whole of it, and the caller's word."""

    until: float
    """In the time of `time.monotonic`."""
    cancel: Cancel

    @property
    def left(self) -> float:
        return max(0.0, self.until - time.monotonic())

    def within(self, seconds: float) -> "Limits":
        """The same, for something that may take so long at most."""
        return Limits(min(self.until, time.monotonic() + seconds), self.cancel)

    def stop(self) -> int:
        if self.cancel.cancelled:
            return CANCELLED
        return OUT_OF_TIME if time.monotonic() >= self.until else COMPLETE
