"""Whether it makes sense to call at all.

closed ─ so many failures in a row ─▶ open ─ a while later ─▶ one probe ─ success ─▶ closed
                                        ▲                         │
                                        └──────── failure ────────┘

While it is open, and while the probe is under way, a call is refused at once and told when to come again.
"""

import threading
from typing import Self

from kappa.graph.ingest.extraction import ProviderDown
from kappa.graph.ingest.providers.clock import Clock

PROBE_WAIT = 5.0
"""Seconds after which to come again while somebody else probes."""


class Pass:
    """The right to make one call. What became of it is said once; a pass that is only left says nothing."""

    def __init__(self, circuit: "Circuit", probe: bool) -> None:
        self._circuit = circuit
        self._probe = probe
        self._open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._settle(None)

    def succeeded(self) -> None:
        """The provider is there, whatever it answered."""
        self._settle(True)

    def failed(self) -> None:
        """It is not."""
        self._settle(False)

    def _settle(self, answered: bool | None) -> None:
        if self._open:
            self._open = False
            self._circuit.settle(self._probe, answered)


class Circuit:
    """One address of a provider. Safe to use from many threads."""

    def __init__(self, name: str, clock: Clock, failures: int = 5, open_for: float = 30.0) -> None:
        self._name = name
        self._clock = clock
        self._bound = failures
        self._open_for = open_for
        self._failures = 0
        self._until = 0.0
        self._probing = False
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        with self._lock:
            return self._failures >= self._bound

    def check(self) -> None:
        """Refuse a call that has no chance, before it waits for its turn."""
        with self._lock:
            self._refuse_if_open()

    def enter(self) -> Pass:
        with self._lock:
            self._refuse_if_open()
            probe = self._failures >= self._bound
            self._probing |= probe
            return Pass(self, probe)

    def settle(self, probe: bool, answered: bool | None) -> None:
        with self._lock:
            if probe:
                self._probing = False
            if answered:
                self._failures = 0
            elif answered is False:
                self._failures += 1
                # Calls that began before it opened and fail now say nothing new.
                if self._failures == self._bound or probe:
                    self._until = self._clock.now() + self._open_for

    def _refuse_if_open(self) -> None:
        if self._failures < self._bound:
            return
        left = self._until - self._clock.now()
        if left <= 0 and not self._probing:
            return
        again = max(left, PROBE_WAIT) if self._probing else left
        raise ProviderDown(f"{self._name} is down: no call is made for another {again:.0f} s", again)
