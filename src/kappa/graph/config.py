"""The numbers of a graph in one process, with their defaults.

What concerns everybody (workers, time-out) may also stand in `graph_settings`, where it can be changed while
processes run; what stands there counts, and this is the fall-back.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from kappa.graph.errors import BadQuestion
from kappa.pg import Bounds

WORKERS = range(1, 33)
TIMEOUT = (5.0, 120.0)
MAX_HOPS = 20
MOST_MAPPED = {"tsne": 2_000, "pca": 20_000}
"""Concepts on a map, by the way in which it is made."""
MAX_PATH_HOPS = 10
MAX_PATHS = 50
MAX_LIMIT = 10_000
MAX_SEEDS = 1_000
MAX_TEXT = 10_000


@dataclass(frozen=True, slots=True)
class GraphConfig:
    """How the graph behaves in this process."""

    workers: int = 8
    """Workers of all questions together, 1 to 32; never more than the pool has connections, less two."""
    timeout: float = 30.0
    """Seconds that a question may take if it doesn't say so itself, 5 to 120."""
    pool: Bounds = field(default_factory=lambda: Bounds(1, 20))
    """Connections of the pool `graph`."""
    snapshot: bool = True
    """Whether this process keeps the adjacency in memory."""
    snapshot_bytes: int = 1 << 30
    """What the snapshot may take; a larger graph is asked in SQL."""
    vectors_bytes: int = 1 << 30
    """What the embeddings in memory may take, all models together; more are read through at each question."""
    compact_at: float = 0.05
    """The share of the edges at which what was changed since the snapshot was built is merged into it."""
    poll: timedelta = timedelta(seconds=5)
    """How often the clock is looked at where no notification came."""
    settings_for: timedelta = timedelta(seconds=1)
    """How long the settings of the database are trusted."""
    keep_changes: timedelta = timedelta(hours=24)
    """How long the change log is kept. A snapshot that is older is built anew."""
    max_found: int = 2_000_000
    """Nodes that one question may find; more are not looked for, and the answer says so."""
    chunk: int = 2_000
    """Nodes of a frontier in one statement."""
    chunk_rows: int = 250_000
    """Rows that one statement may give."""
    patience: float = 0.5
    """Seconds that a question waits for a worker before it takes the sequential way, and for what is in memory to catch
    up before it asks the database; of a short deadline a quarter of what is left."""
    cached_answers: int = 1_000
    """One-hop answers that are remembered while nothing changes."""
    cached_rows: int = 100_000
    """Concepts that all of them may have together: millions of objects would be looked through with all garbage."""

    def __post_init__(self) -> None:
        if self.workers not in WORKERS:
            raise BadQuestion(f"{self.workers} graph workers: there are 1 to 32")
        if not TIMEOUT[0] <= self.timeout <= TIMEOUT[1]:
            raise BadQuestion(f"a graph time-out of {self.timeout:g} s: it is {TIMEOUT[0]:g} to {TIMEOUT[1]:g}")


WORKERS_VARIABLES = ("KAPPA_GRAPH_WORKERS", "PARALLEL_QUERY_MAX_WORKERS")
TIMEOUT_VARIABLES = ("KAPPA_GRAPH_TIMEOUT", "PARALLEL_QUERY_TIMEOUT_SECONDS")
"""The first that is set counts; the second ones are what similar programs read."""


def from_environment(environment: Mapping[str, str] | None = None) -> GraphConfig:
    """From `KAPPA_GRAPH_WORKERS` or else `PARALLEL_QUERY_MAX_WORKERS`; `KAPPA_GRAPH_TIMEOUT` or else
    `PARALLEL_QUERY_TIMEOUT_SECONDS`; `KAPPA_GRAPH_SNAPSHOT_MB` and `_VECTORS_MB` (0: none).
    """
    given = os.environ if environment is None else environment
    config = GraphConfig()
    if (name := first_set(WORKERS_VARIABLES, given)) is not None:
        config = replace(config, workers=_workers(name, given[name]))
    if (name := first_set(TIMEOUT_VARIABLES, given)) is not None:
        config = replace(config, timeout=_timeout(name, given[name]))
    if megabytes := given.get("KAPPA_GRAPH_SNAPSHOT_MB"):
        size = int(_number("KAPPA_GRAPH_SNAPSHOT_MB", megabytes)) << 20
        config = replace(config, snapshot=size > 0, snapshot_bytes=size)
    if megabytes := given.get("KAPPA_GRAPH_VECTORS_MB"):
        config = replace(config, vectors_bytes=int(_number("KAPPA_GRAPH_VECTORS_MB", megabytes)) << 20)
    return config


def first_set(names: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """An empty variable counts as unset."""
    return next((name for name in names if environment.get(name)), None)


def _workers(name: str, text: str) -> int:
    number = _number(name, text)
    if number not in WORKERS:
        raise BadQuestion(f"{name} is {text!r}: it must be an integer from {WORKERS[0]} to {WORKERS[-1]}")
    return int(number)


def _timeout(name: str, text: str) -> float:
    seconds = _number(name, text)
    if not TIMEOUT[0] <= seconds <= TIMEOUT[1]:
        raise BadQuestion(f"{name} is {text!r}: it must be {TIMEOUT[0]:g} to {TIMEOUT[1]:g} seconds")
    return seconds


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadQuestion(f"{name} is {text!r}, which is no number") from None
