"""How much all questions of a process may do at once.

There are so many graph workers for the whole process, whoever asks. A question waits its turn, takes one worker, and
borrows more for a large step only while they are free and nobody waits. Who waited in vain for a while goes the
sequential way: a few lanes beside the workers, one connection each. Workers and lanes together are fewer than the
pool's connections by two, so that a health check or a write always finds one.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from kappa.graph.errors import GraphBusy
from kappa.graph.query.filters import Limits
from kappa.graph.query.gate import Gate

SPARED = 2
"""Connections of the pool that questions leave to others."""


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """The budget at one instant, for metrics."""

    workers: int
    busy: int
    waiting: int
    lanes: int
    lanes_busy: int


class Budget:
    """The graph workers of a process, and the lanes for those who found none."""

    builders: Gate
    """Who makes the rows of large answers. That holds the interpreter: with a dozen at it, any other thread, such as an
    event loop, would wait for a dozen turns whenever it wants to go on."""

    def __init__(self, workers: int = 8, pool: int = 20) -> None:
        self.builders = Gate(1)
        self._pool = pool
        self._workers = Gate(0)
        self._lanes = Gate(0)
        self.resize(workers)

    def resize(self, workers: int) -> None:
        """As many workers as asked for, as far as the pool goes."""
        usable = max(1, self._pool - SPARED)
        workers = min(workers, usable)
        self._workers.resize(workers)
        self._lanes.resize(usable - workers)

    @contextmanager
    def question(self, limits: Limits, patience: float) -> Generator["Grant"]:
        """A place for one question, in the order of asking."""
        if self._workers.enter(min(patience, limits.left)):
            gate = self._workers
        elif self._lanes.enter(0) or (self._lanes.use[1] and self._lanes.enter(limits.left)):
            gate = self._lanes
        elif not self._lanes.use[1] and self._workers.enter(limits.left):
            gate = self._workers
        else:
            held, size, waiting = self._workers.use
            raise GraphBusy(
                f"none of {size} graph workers became free before the deadline ({held} are busy, {waiting} wait)"
            )
        try:
            yield Grant(self._workers if gate is self._workers else None)
        finally:
            gate.leave()

    @property
    def use(self) -> BudgetUse:
        held, size, waiting = self._workers.use
        lanes_held, lanes, lanes_waiting = self._lanes.use
        return BudgetUse(size, held, waiting + lanes_waiting, lanes, lanes_held)


class Grant:
    """What a question may use: its own thread always, others' where they are free."""

    def __init__(self, workers: Gate | None) -> None:
        self._workers = workers

    @property
    def sequential(self) -> bool:
        return self._workers is None

    @contextmanager
    def more(self, want: int) -> Generator[int]:
        """How many workers beside the question's own it has for this step."""
        taken = self._workers.take(want) if self._workers is not None and want > 0 else 0
        try:
            yield taken
        finally:
            if taken and self._workers is not None:
                self._workers.leave(taken)
