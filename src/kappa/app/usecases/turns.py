"""Places that people take turns in: who asks much waits for oneself, not for others.

On one event loop. A place that becomes free goes to whoever waits and had a turn the longest ago, and nobody holds more
than their share, so that others find a place at once. What the server itself asks has no name and no share.
"""

import asyncio
from collections import Counter, deque
from contextvars import ContextVar

from kappa.app.usecases.principal import Principal

CALLER: ContextVar[Principal | None] = ContextVar("caller", default=None)
"""Whose request this is, in the task that answers it."""


class Turns:
    """A number of places."""

    def __init__(self, places: int, share: int) -> None:
        self._free = places
        self._places = places
        self._share = max(1, min(share, places))
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By name, in the order of their turns."""

    def enter(self, name: str) -> asyncio.Future[None]:
        """Done as soon as there is a place, which `leave` gives back."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(name, deque()).append(place)
        self._admit()
        return place

    def leave(self, name: str) -> None:
        self._free += 1
        self._held[name] -= 1
        if not self._held[name]:
            del self._held[name]
        self._admit()

    def give_up(self, name: str, place: asyncio.Future[None]) -> None:
        """Whoever waited for it doesn't any longer. It may have been given meanwhile."""
        if place.done():
            self.leave(name)
            return
        waiting = self._waiting[name]
        waiting.remove(place)
        if not waiting:
            del self._waiting[name]

    def _admit(self) -> None:
        while self._free:
            name = next(
                (one for one in self._waiting if self._held[one] < (self._share if one else self._places)), None
            )
            if name is None:
                return
            waiting = self._waiting.pop(name)
            waiting.popleft().set_result(None)
            if waiting:
                self._waiting[name] = waiting  # behind everybody else
            self._free -= 1
            self._held[name] += 1
