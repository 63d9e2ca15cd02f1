"""Things that happened, for whoever wants to know: tests that wait, metrics that count.

Without a subscriber an emit costs one look at an empty list. The names are those of the verbs in the job-state page:
claimed, adopted, settled, put_back, lease_lost, asleep, leading, not_leading, reaped, promoted, …
"""

from collections.abc import Callable
from typing import Any

Subscriber = Callable[[str, dict[str, Any]], None]


class Signals:
    """Subscribers of one engine, called where the thing happens; they must be quick and must not raise."""

    def __init__(self) -> None:
        self._subscribers: list[Subscriber] = []

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Begin to listen; call what comes back to end it."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    @property
    def heard(self) -> bool:
        """Whether anybody listens; hot paths ask before they put facts together."""
        return bool(self._subscribers)

    def emit(self, name: str, **facts: Any) -> None:
        for subscriber in self._subscribers:
            subscriber(name, facts)
