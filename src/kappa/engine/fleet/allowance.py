"""How many requests a token has left: so many a minute, saved up for ten seconds at most."""

import time

from kappa.engine.fleet.dispatch import Pass
from kappa.engine.fleet.refusals import Refused
from kappa.engine.fleet.wire import Refusal

SAVED_UP = 10.0
FORGET_ABOVE = 50_000


class Allowance:
    """Of this process: servers don't add up what they see."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[float, float]] = {}

    def take(self, who: Pass) -> None:
        if who.requests_per_minute is None:
            return
        rate = who.requests_per_minute / 60
        most = max(1.0, rate * SAVED_UP)
        now = time.monotonic()
        left, at = self._left.get(who.id, (most, now))
        left = min(most, left + rate * (now - at))
        if left < 1:
            detail = f"this token is for {who.requests_per_minute} requests a minute"
            raise Refused(Refusal.LIMITED, detail, (1 - left) / rate)
        if len(self._left) > FORGET_ABOVE:
            self._left.clear()
        self._left[who.id] = (left - 1, now)
