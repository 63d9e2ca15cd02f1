"""Degrees that questions in SQL have counted before: counting is most of their work, and few of them change.

What is known is true of one epoch. A question at a later one says what was touched since, which is forgotten; a
question at an earlier one knows nothing.
"""

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kappa.graph.store.adjacency import Ints

MOST_NODES = 1 << 24
"""Nodes above this are not remembered: there are four bytes for each."""


class KnownDegrees:
    """What a process knows of one graph's degrees."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epoch = -1
        self._degrees: NDArray[np.int32] = np.empty(0, np.int32)
        """By node; -1 where nothing is known."""

    def come_to(self, epoch: int, touched: Callable[[int], Ints | None]) -> None:
        """Forget what was touched since; None where nobody can tell."""
        since = self._epoch
        if epoch <= since:
            return
        changed = touched(since) if since >= 0 else None
        with self._lock:
            if self._epoch != since:
                return  # somebody else was quicker
            if changed is None:
                self._degrees = np.empty(0, np.int32)
            else:
                self._degrees[changed[changed < len(self._degrees)]] = -1
            self._epoch = epoch

    def find(self, epoch: int, nodes: Ints) -> Ints:
        """The degrees at an epoch; -1 where they are not known."""
        found = np.full(len(nodes), -1, np.int64)
        with self._lock:
            if self._epoch == epoch:
                inside = nodes < len(self._degrees)
                found[inside] = self._degrees[nodes[inside]]
        return found

    def learn(self, epoch: int, nodes: Ints, degrees: Ints) -> None:
        inside = (nodes >= 0) & (nodes < MOST_NODES)
        nodes, degrees = nodes[inside], degrees[inside]
        if not len(nodes):
            return
        with self._lock:
            if self._epoch != epoch:
                return
            room = int(nodes.max()) + 1
            if room > len(self._degrees):
                grown = np.full(min(MOST_NODES, max(room, 2 * len(self._degrees))), -1, np.int32)
                grown[: len(self._degrees)] = self._degrees
                self._degrees = grown
            self._degrees[nodes] = degrees
