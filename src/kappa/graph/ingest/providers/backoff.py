"""When to try again: by the answer's status, never by its text."""

from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import StrEnum

from kappa.graph.ingest.providers.clock import Clock


class Trouble(StrEnum):
    """What went wrong with a call."""

    UNREACHABLE = "unreachable"
    TIMED_OUT = "timed_out"
    ERROR = "error"
    """5xx"""
    LIMITED = "limited"
    """429"""
    BUSY = "busy"
    """408, 409, 425"""
    DENIED = "denied"
    """401, 403: the key"""
    UNFIT = "unfit"
    """400, 413, 422: this request; another text may fare better"""
    REFUSED = "refused"
    """Any other status: all requests of its kind"""

    @property
    def down(self) -> bool:
        """The provider is not there."""
        return self in (Trouble.UNREACHABLE, Trouble.TIMED_OUT, Trouble.ERROR)

    @property
    def passing(self) -> bool:
        """Another try may do."""
        return self.down or self in (Trouble.LIMITED, Trouble.BUSY)


def trouble_of(status: int) -> Trouble:
    match status:
        case 401 | 403:
            return Trouble.DENIED
        case 429:
            return Trouble.LIMITED
        case 408 | 409 | 425:
            return Trouble.BUSY
        case 400 | 413 | 422:
            return Trouble.UNFIT
        case _:
            return Trouble.ERROR if status >= 500 else Trouble.REFUSED


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential, with jitter, bounded."""

    tries: int = 5
    base: float = 1.0
    cap: float = 60.0
    jitter: float = 0.2

    def after(self, tried: int, retry_after: float | None, clock: Clock) -> float:
        """Seconds to wait after so many tries; never less than the provider asks for, and then not all at once."""
        own = min(self.base * 2 ** (tried - 1), self.cap)
        own = min(own * (1 + self.jitter * (2 * clock.chance() - 1)), self.cap)
        if retry_after is None:
            return own
        return max(own, retry_after * (1 + self.jitter * clock.chance()))


def seconds_of(header: str | None, clock: Clock) -> float | None:
    """What `Retry-After` says: seconds, or a date. None if it says nothing that can be used."""
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.replace(".", "", 1).isdigit():
        return float(text)
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - clock.date()).total_seconds())
