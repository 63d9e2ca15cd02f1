"""How many calls of one provider are under way at once, in the whole process: who came first goes first."""

import threading
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from kappa.graph.ingest.providers.account import ShouldStop
from kappa.graph.ingest.providers.clock import LOOK_EVERY, Clock
from kappa.graph.ingest.providers.errors import CallStopped


@dataclass(frozen=True, slots=True)
class TurnUse:
    """The turns at one instant, and the waits so far."""

    limit: int
    busy: int
    waiting: int
    waits: int
    waited: float


class Turns:
    """A semaphore in fair order, which counts who had to wait and gives up for those who no longer want it."""

    def __init__(self, limit: int, clock: Clock) -> None:
        self._limit = limit
        self._clock = clock
        self._busy = 0
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()
        self._waits = 0
        self._waited = 0.0

    def resize(self, limit: int) -> None:
        with self._changed:
            self._limit = limit
            self._changed.notify_all()

    @contextmanager
    def turn(self, should_stop: ShouldStop) -> Generator[None]:
        self._take(should_stop)
        try:
            yield
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def _take(self, should_stop: ShouldStop) -> None:
        with self._changed:
            if self._busy < self._limit and not self._queue:
                self._busy += 1
                return
            place = object()
            self._queue.append(place)
            self._waits += 1
            begun = self._clock.now()
            try:
                while self._busy >= self._limit or self._queue[0] is not place:
                    if should_stop():
                        raise CallStopped("the call was stopped while it waited for its turn")
                    self._changed.wait(LOOK_EVERY)
                self._busy += 1
            finally:
                self._queue.remove(place)
                self._waited += self._clock.now() - begun
                self._changed.notify_all()

    @property
    def use(self) -> TurnUse:
        with self._changed:
            return TurnUse(self._limit, self._busy, len(self._queue), self._waits, self._waited)
