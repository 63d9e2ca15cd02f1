"""What is known of a request when it is over, for whoever counts or traces."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

UNMATCHED = "unmatched"
"""The route of every request that has none, whatever its path: people's guesses must not become series."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Answered(NamedTuple):
    """One request."""

    method: str
    route: str
    """The template, as `/jobs/{job_id}`."""
    status: int
    """0 if nothing was answered: the client left, or the server failed too early."""
    begun: int
    """When it came, in nanoseconds since 1970."""
    until_answer: float
    """Seconds until the answer began. A stream may go on for hours after that."""
    seconds: float
    request_id: str
    headers: Mapping[str, str]


Observer = Callable[[Answered], None]
