"""Counts of a whole graph, which take longer the larger it is.

Those of a small graph are taken whenever somebody asks. Those of a large one are remembered, for so long that counting
takes a small share of the time, however many ask and however often.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")

MANY = 100_000
"""What was counted: up to so many, it is counted anew each time."""
TIMES = 20
"""What took a second is true for so many."""


class Counted(Generic[T]):
    """One kind of counts. They belong to one event loop."""

    def __init__(
        self, count: Callable[[], Awaitable[T]], mass: Callable[[T], int], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._count = count
        self._mass = mass
        self._now = now
        self._counting = asyncio.Lock()
        self._known: tuple[T, float] | None = None
        """The counts, and until when they are good."""

    async def get(self, fits: Callable[[T], bool] = lambda _: True) -> T:
        """The counts as they are, or as they were a short while ago; never those that don't fit."""
        # Who comes while it is counted waits for that, and does not count as well.
        async with self._counting:
            begun = self._now()
            if self._known is not None and begun < self._known[1] and fits(self._known[0]):
                return self._known[0]
            found = await self._count()
            took = self._now() - begun
            self._known = (found, begun + TIMES * took) if self._mass(found) > MANY else None
            return found

    def forget(self) -> None:
        self._known = None
