"""What the simulator notes of its calls: when each was due, how long it took from then, and what it cost itself."""

import resource
import time
from array import array
from collections import Counter
from dataclasses import dataclass, field


def share(values: list[float], part: float) -> float:
    """A percentile of sorted values."""
    return values[min(len(values) - 1, int(len(values) * part))] if values else 0.0


def summary(seconds: list[float]) -> dict[str, float]:
    """In milliseconds."""
    ordered = sorted(seconds)
    found = {name: 1000 * share(ordered, part) for name, part in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))}
    return {"count": float(len(ordered)), **found, "max": 1000 * (ordered[-1] if ordered else 0.0)}


@dataclass
class Series:
    """Every call of one sort: due, and seconds from then until its answer."""

    due: array = field(default_factory=lambda: array("d"))
    took: array = field(default_factory=lambda: array("d"))

    def add(self, due: float, took: float) -> None:
        self.due.append(due)
        self.took.append(took)

    def between(self, begin: float, end: float) -> list[float]:
        return [took for due, took in zip(self.due, self.took, strict=True) if begin <= due < end]


class Records:
    """All of it, kept whole: any window can be looked at afterwards."""

    def __init__(self) -> None:
        self.series: dict[str, Series] = {}
        self.counts: Counter[str] = Counter()
        self.sent: Counter[int] = Counter()
        """Requests and new connections in each second of the clock."""
        self.late = Series()
        """How late the simulator itself was with what was due."""
        self._cpu: list[tuple[float, float]] = []

    def add(self, name: str, due: float, now: float) -> None:
        found = self.series.get(name)
        if found is None:
            found = self.series[name] = Series()
        found.add(due, now - due)

    def sample(self) -> None:
        """What this process used of its core until now."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        self._cpu.append((time.monotonic(), used.ru_utime + used.ru_stime))

    def cpu(self, begin: float, end: float) -> float:
        """The share of a core that this process used in a window."""
        self.sample()
        before = max((one for one in self._cpu if one[0] <= begin), default=self._cpu[0])
        after = min((one for one in self._cpu if one[0] >= end), default=self._cpu[-1])
        return (after[1] - before[1]) / max(after[0] - before[0], 0.001)

    def worst_second(self, begin: float, end: float) -> int:
        return max((count for second, count in self.sent.items() if begin <= second < end), default=0)
