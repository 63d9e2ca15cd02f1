"""The numbers of a worker, with their defaults."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from kappa.engine.model import MAX_LANE_SLOTS
from kappa.pg import Bounds


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How one worker process behaves. What concerns the whole cluster stands in the lanes' rows."""

    lanes: tuple[str, ...] | None = None
    """Serve only these lanes; None serves every lane that has a kind with a handler here."""
    lead: bool = True
    """Whether this process may become the leader."""
    grace: timedelta = timedelta(seconds=30)
    """How long running jobs may go on after the worker was told to stop."""
    pool: Bounds = field(default_factory=lambda: Bounds(1, 10))
    """Connections of the pool `queue`: for the worker itself and for the handlers' transactions."""
    processes: int = field(default_factory=cores)
    """Handlers in child processes at once, of each lane here; as many as there are cores."""
    job_threads: int = 32
    """MAX_CONCURRENT_THREADS: what all jobs together may start in `ctx.threads`, beside the threads they run in."""
    child_set_up: Callable[[], object] | None = None
    """What a child process calls before its first handler, to set up its log for example. It goes there by pickle."""
    claim_batch: int = 250
    """How many jobs one claim takes at most."""
    progress_every: timedelta = timedelta(milliseconds=250)
    start_mark_after: timedelta = timedelta(milliseconds=20)
    """Attempts that last longer are marked as started; shorter ones are counted when they settle."""
    floor_for: timedelta = timedelta(milliseconds=250)
    """How long a claimer trusts where its last full batch ended."""
    lead_every: timedelta = timedelta(seconds=2)
    """How often a standby tries to lead."""
    leader_ttl: timedelta = timedelta(seconds=8)
    """How long a heartbeat of this process is good while it leads; it gives three in that time. A leader that is silent
    for longer, frozen for example, is replaced by the next standby that tries."""


def kept_threads(lanes: int) -> int:
    """How many idle threads stay: enough for every lane to reach its ceiling."""
    return max(4, lanes * MAX_LANE_SLOTS)
