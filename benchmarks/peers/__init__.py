"""The other queues, measured the way Kappa is measured: same server, no-op jobs, durable settings.

Every peer runs in processes of its own, out of environments that Kappa never imports from: the Python ones in
`benchmarks/.venv` (requirements/bench.lock), graphile-worker in `graphile/node_modules`. `ensure()` makes both.
The caller gives each peer a fresh, empty database; `install` is called once on it before anything else.

A peer that can't run here is a `Missing`, never a shorter list: `available()` returns both, and whoever prints
a table has to print both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from benchmarks.peers.driven import Driven
from benchmarks.peers.environment import NODE_NEEDED, ensure, node_problem
from benchmarks.peers.settings import GRAPHILE_WORKER, PGQUEUER, PROCRASTINATE

__all__ = ["Missing", "Peer", "available", "ensure"]


class Peer(Protocol):
    """One queue under measurement. Rates are jobs/s; every job is committed with synchronous_commit on."""

    @property
    def name(self) -> str: ...

    def install(self, url: str) -> None:
        """Create the peer's schema in an empty database."""
        ...

    def enqueue_one(self, url: str, seconds: float) -> float:
        """One connection, one job and one commit a call."""
        ...

    def enqueue_crowd(self, url: str, seconds: float, callers: int, connections: int) -> float:
        """The same call by so many at once on one event loop, which share the connections."""
        ...

    def enqueue_batch(self, url: str, jobs: int, batch: int = 1000) -> float:
        """The peer's best bulk call, one connection, a commit a batch."""
        ...

    def crew(
        self, url: str, processes: int, config: str | None = None
    ) -> AbstractContextManager[Callable[[int], float]]:
        """Workers that drain so many jobs and give the rate.

        The jobs are enqueued beforehand; the time is from the first handler's start until the database shows all of
        them settled. The workers are warm: they have drained a smaller lot before. Without `config` it is the fastest
        of `configs()` for that number of processes.
        """
        ...

    def configs(self) -> Sequence[str]:
        """Names of the worker settings `drain` knows, for rows such as "batch 10 / 50 / 500"."""
        ...

    def best_config(self, processes: int) -> str:
        """The name of the fastest settings, found by trying."""
        ...

    def latency(self, url: str, samples: int) -> list[float]:
        """Milliseconds from the acknowledged commit of a job to the start of its handler, worker idle.

        A worker can be faster than the acknowledgement on a busy machine: single values may be below zero.
        """
        ...

    def idle_tps(self, url: str, seconds: float) -> float:
        """Transactions/s which one idle worker process causes."""
        ...


@dataclass(frozen=True, slots=True)
class Missing:
    """A peer that can't be measured on this machine, and what to do about it."""

    name: str
    reason: str


def available() -> tuple[list[Peer], list[Missing]]:
    """The peers that `ensure()` can make ready here, and those it can't."""
    peers: list[Peer] = [Driven(PROCRASTINATE), Driven(PGQUEUER)]
    if problem := node_problem():
        return peers, [Missing(GRAPHILE_WORKER.name, f"{problem}; it needs {NODE_NEEDED}")]
    return [*peers, Driven(GRAPHILE_WORKER)], []
