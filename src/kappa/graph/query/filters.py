"""Which relations and concepts a question may walk through, as numbers; and when it has to stop."""

import threading
import time
from dataclasses import dataclass, field

import numpy as np

from kappa.graph.model import Direction
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

    def stop(self) -> int:
        if self.cancel.cancelled:
            return CANCELLED
        return OUT_OF_TIME if time.monotonic() >= self.until else COMPLETE
