"""Each peer's command, its question "is anything left?" and the worker settings that were tried.

`best` had the highest median in a few short runs on two cores with PostgreSQL 18. Neighbouring settings lie within
the noise of such a machine of each other: a comparison with a peer's best should run them all and take the fastest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.peers.environment import GRAPHILE, HERE, PYTHON


@dataclass(frozen=True, slots=True)
class Settings:
    name: str
    command: Sequence[str]
    unfinished: bytes  # SQL: true while any job is neither done nor deleted
    configs: Mapping[str, Mapping[str, object]]
    best: Mapping[int, str]  # processes → the fastest of `configs`; the highest key not above is used
    idle: str  # the one of `configs` for latency and idling: near the peer's defaults, no local queue or large batch
    env: Mapping[str, str] = field(default_factory=dict[str, str])


PROCRASTINATE = Settings(
    name="Procrastinate",
    command=[str(PYTHON), str(HERE / "drivers" / "run_procrastinate.py")],
    unfinished=b"select exists (select from procrastinate_jobs where status in ('todo', 'doing'))",
    configs={
        "concurrency 1": {"concurrency": 1, "pool": 5, "delete_jobs": "never"},
        "concurrency 10": {"concurrency": 10, "pool": 10, "delete_jobs": "never"},
        "concurrency 30": {"concurrency": 30, "pool": 10, "delete_jobs": "never"},
        "concurrency 10, deleting": {"concurrency": 10, "pool": 10, "delete_jobs": "successful"},
    },
    best={1: "concurrency 10", 2: "concurrency 30"},
    idle="concurrency 10",
)

PGQUEUER = Settings(
    name="PgQueuer",
    command=[str(PYTHON), str(HERE / "drivers" / "run_pgqueuer.py")],
    unfinished=b"select exists (select from pgqueuer)",
    configs={f"batch {n}": {"batch": n} for n in (10, 50, 100, 500, 1000)},
    best={1: "batch 500"},
    idle="batch 10",
)


def _graphile(concurrency: int, local: int | None, delay: int | None, pool: int) -> Mapping[str, object]:
    settings: dict[str, object] = {"concurrentJobs": concurrency, "pool": pool, "maxPoolSize": pool}
    if local is not None:
        settings["localQueue"] = {"size": local}
    if delay is not None:
        settings |= {"completeJobBatchDelay": delay, "failJobBatchDelay": delay}
    return settings


GRAPHILE_WORKER = Settings(
    name="graphile-worker",
    command=["node", str(GRAPHILE / "run.mjs")],
    unfinished=b"select exists (select from graphile_worker._private_jobs)",
    configs={
        "one by one": _graphile(10, None, None, 10),
        "local queue 500, concurrency 10": _graphile(10, 500, 0, 10),
        "local queue 500, concurrency 24": _graphile(24, 500, 0, 10),
        "local queue 1000, concurrency 10": _graphile(10, 1000, 0, 10),
        "local queue 1000, concurrency 1000": _graphile(1000, 1000, 0, 10),
    },
    best={1: "local queue 1000, concurrency 10"},
    idle="one by one",
    env={"NODE_ENV": "production", "NO_LOG_SUCCESS": "1"},
)
