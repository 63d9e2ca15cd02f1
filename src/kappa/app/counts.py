"""What an engine's signals say, counted in plain numbers; and how worker processes share theirs with their server.

A signal comes twice for each job, on the loop that claims: so it is counted with as little as possible, and becomes
Prometheus's families only when somebody asks. A worker process writes its counts to a file once a second and when it
ends. The server adds up the files. Of a process that is gone it remembers the counts and removes the file: what was
counted never goes down, and the files don't grow in number. A process that is killed takes its last second along.
"""

import asyncio
import json
import os
import time
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from kappa.app.home import alive
from kappa.engine.signals import Signals
from kappa.graph.ingest.providers import PROCESS
from kappa.pg import PoolUse

JOB_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0),
)
"""The bounds of the histograms of jobs, from a millisecond to four hours."""
WRITE_EVERY = 1.0
SILENT_AFTER = 10.0
"""A process that has written nothing for so many seconds is frozen, and leads no more."""

Labels = tuple[str, ...]


class Spread:
    """A histogram: how many values fell between which bounds, and their sum."""

    __slots__ = ("counts", "total")

    def __init__(self, counts: Sequence[int] = (), total: float = 0.0) -> None:
        self.counts = list(counts) or [0] * (len(JOB_SECONDS) + 1)
        self.total = total

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(JOB_SECONDS, seconds)] += 1
        self.total += seconds


@dataclass
class Counts:
    """Numbers by name and labels, at one instant."""

    counters: dict[tuple[str, Labels], float] = field(default_factory=dict[tuple[str, Labels], float])
    spreads: dict[tuple[str, Labels], Spread] = field(default_factory=dict[tuple[str, Labels], Spread])
    gauges: dict[tuple[str, Labels], float] = field(default_factory=dict[tuple[str, Labels], float])
    leads: bool = False
    pools: list[PoolUse] = field(default_factory=list[PoolUse])

    def add(self, other: "Counts") -> None:
        for key, value in other.counters.items():
            self.counters[key] = self.counters.get(key, 0) + value
        for key, value in other.gauges.items():
            self.gauges[key] = self.gauges.get(key, 0) + value
        for key, spread in other.spreads.items():
            before = self.spreads.get(key) or Spread()
            counts = [one + more for one, more in zip(before.counts, spread.counts, strict=True)]
            self.spreads[key] = Spread(counts, before.total + spread.total)
        self.leads |= other.leads
        self.pools += other.pools

    def dump(self) -> str:
        return json.dumps({
            "counters": [[name, labels, value] for (name, labels), value in self.counters.items()],
            "spreads": [[*key, spread.counts, spread.total] for key, spread in self.spreads.items()],
            "gauges": [[name, labels, value] for (name, labels), value in self.gauges.items()],
            "leads": self.leads,
            "pools": [asdict(pool) for pool in self.pools],
        })  # fmt: skip

    @classmethod
    def load(cls, text: str) -> Self:
        said: dict[str, Any] = json.loads(text)
        return cls(
            {(name, tuple(labels)): value for name, labels, value in said["counters"]},
            {(name, tuple(labels)): Spread(counts, total) for name, labels, counts, total in said["spreads"]},
            {(name, tuple(labels)): value for name, labels, value in said["gauges"]},
            said["leads"],
            [PoolUse(**pool) for pool in said["pools"]],
        )


def provider_counts() -> Counts:
    """What this process asked of providers."""
    return Counts(dict(PROCESS.counters), gauges=dict(PROCESS.gauges))


class _OfKind:
    """One kind in one lane."""

    __slots__ = ("attempts", "ran", "waited")

    def __init__(self) -> None:
        self.attempts = 0
        self.waited = Spread()
        self.ran = Spread()


class EngineCounts:
    """Counts what one engine does in this process. Signals of jobs come from one thread; it is read from any."""

    def __init__(self) -> None:
        self._of_kind: dict[Labels, _OfKind] = {}
        self._outcomes: dict[Labels, int] = {}
        self._rare: dict[tuple[str, Labels], float] = {}
        self._leads = False

    def hear(self, name: str, facts: dict[str, Any]) -> None:
        """A subscriber of `Signals`."""
        match name:
            case "claimed":
                of_kind = self._kind(facts["kind"], facts["lane"])
                of_kind.attempts += 1
                of_kind.waited.add(facts["waited"])
            case "settled":
                key = (facts["kind"], facts["lane"], facts["state"])
                self._outcomes[key] = self._outcomes.get(key, 0) + 1
                if not facts["adopted"]:  # the attempt ran elsewhere; here it was only given up
                    self._kind(facts["kind"], facts["lane"]).ran.add(facts["seconds"])
            case "lease_lost":
                self._add("kappa_leases_lost", facts["kind"], facts["lane"])
            case "adopted":
                self._add("kappa_adoptions", facts["kind"], facts["lane"])
            case "leading" | "not_leading":
                self._leads = name == "leading"
                self._add("kappa_leader_changes", "leading" if self._leads else "standby")
            case "reaped":
                self._add("kappa_leases_reaped", by=facts["count"])
            case "promoted":
                self._add("kappa_jobs_promoted", by=facts["count"])
            case "fired":
                self._add("kappa_schedules_fired")
            case _:
                pass

    def now(self) -> Counts:
        made = Counts(dict(self._rare), leads=self._leads)
        for labels, count in list(self._outcomes.items()):
            made.counters["kappa_job_outcomes", tuple(map(str, labels))] = count
        for labels, of_kind in list(self._of_kind.items()):
            made.counters["kappa_job_attempts", labels] = of_kind.attempts
            for name, spread in (("kappa_job_wait_seconds", of_kind.waited), ("kappa_job_run_seconds", of_kind.ran)):
                made.spreads[name, labels] = Spread(spread.counts, spread.total)
        return made

    def _kind(self, kind: str, lane: str) -> _OfKind:
        found = self._of_kind.get((kind, lane))
        if found is None:
            found = self._of_kind[kind, lane] = _OfKind()
        return found

    def _add(self, name: str, *labels: str, by: float = 1) -> None:
        self._rare[name, labels] = self._rare.get((name, labels), 0) + by


class SharedCounts:
    """In the server: what its worker processes have counted, those that are gone included."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._gone = Counts()

    def now(self) -> Counts:
        total = Counts()
        for path in self._directory.glob("*.json"):
            with suppress(FileNotFoundError):
                counts = Counts.load(path.read_text())
                if alive(int(path.stem)):
                    counts.leads &= time.time() - path.stat().st_mtime < SILENT_AFTER
                    total.add(counts)
                else:
                    self._gone.add(Counts(counts.counters, counts.spreads))
                    path.unlink()
        total.add(self._gone)
        return total


@asynccontextmanager
async def shared(
    directory: Path | None, signals: Signals, pools: Callable[[], Iterable[PoolUse]]
) -> AsyncGenerator[None]:
    """In a worker process: count, and write the counts there for as long as the block lasts."""
    if directory is None:
        yield
        return
    counted = EngineCounts()
    stop = signals.subscribe(counted.hear)

    def write() -> None:
        now = counted.now()
        now.add(provider_counts())
        now.pools = list(pools())
        draft = directory / f".{os.getpid()}"
        with suppress(OSError):  # the directory is gone: so is the server, and nobody will ask
            draft.write_text(now.dump())
            draft.replace(directory / f"{os.getpid()}.json")

    async def keep_writing() -> None:
        while True:
            await asyncio.to_thread(write)
            await asyncio.sleep(WRITE_EVERY)

    writing = asyncio.create_task(keep_writing(), name="metrics")
    try:
        yield
    finally:
        writing.cancel()
        await asyncio.wait([writing])
        stop()
        await asyncio.to_thread(write)
