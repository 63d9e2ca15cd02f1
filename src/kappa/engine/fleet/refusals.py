"""Why a call is not done, and when it makes sense to try again."""

import random

from kappa.engine.fleet.wire import Refusal
from kappa.pg import KappaError

STATUS: dict[Refusal, int] = {
    Refusal.BUSY: 503,
    Refusal.DRAINING: 503,
    Refusal.UNAVAILABLE: 503,
    Refusal.LIMITED: 429,
    Refusal.TOO_MANY_MACHINES: 429,
    Refusal.NOT_AUTHENTICATED: 401,
    Refusal.FORBIDDEN: 403,
    Refusal.LOST: 409,
    Refusal.BAD_REQUEST: 400,
    Refusal.TOO_LARGE: 413,
    Refusal.NOT_FOUND: 404,
    Refusal.NO_SUCH_METHOD: 405,
}

RETRY_AFTER: dict[Refusal, float] = {
    Refusal.BUSY: 2.0,
    Refusal.DRAINING: 5.0,
    Refusal.UNAVAILABLE: 2.0,
    Refusal.LIMITED: 10.0,
    Refusal.TOO_MANY_MACHINES: 60.0,
    Refusal.NOT_AUTHENTICATED: 60.0,
    Refusal.FORBIDDEN: 60.0,
}
"""Seconds, on average. What is wrong with a request itself stays wrong: those have none."""

JITTER = 0.5


class Refused(KappaError):
    """A call that is not done."""

    def __init__(self, code: Refusal, detail: str, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.retry_after = spread(RETRY_AFTER.get(code)) if retry_after is None else retry_after


def spread(seconds: float | None) -> float | None:
    """The same for many would bring them back together."""
    if seconds is None:
        return None
    return seconds * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311
