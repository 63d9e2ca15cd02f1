"""Time and chance, in one place, so that tests need to wait for neither."""

import random
import time
from datetime import UTC, datetime

from kappa.graph.ingest.providers.account import ShouldStop

LOOK_EVERY = 0.2
"""Seconds between two looks at whether a wait is still wanted."""


class Clock:
    """The real ones."""

    def now(self) -> float:
        return time.monotonic()

    def date(self) -> datetime:
        return datetime.now(UTC)

    def chance(self) -> float:
        """From 0 to 1."""
        return random.random()  # noqa: S311

    def wait(self, seconds: float, should_stop: ShouldStop) -> bool:
        """Let time pass; False as soon as the wait is no longer wanted."""
        end = self.now() + seconds
        while not should_stop():
            left = end - self.now()
            if left <= 0:
                return True
            time.sleep(min(left, LOOK_EVERY))
        return False
