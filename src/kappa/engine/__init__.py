"""Durable jobs on PostgreSQL: lanes, leases, adoption, maintenance. Knows nothing of graphs.

engine = Engine("postgresql://…")
engine.lane(Lane("default", kinds=("greet",), max_slots=4))

@engine.job("greet", idempotent=True)
def greet(ctx: JobContext, name: str) -> str:
    return f"hello {name}"

engine.install()
with engine.client() as client:
    client.enqueue("greet", "world")
engine.run()
"""

from typing import TYPE_CHECKING

from kappa import late

if TYPE_CHECKING:
    from kappa.engine.async_client import AsyncClient
    from kappa.engine.client import Client
    from kappa.engine.config import WorkerConfig
    from kappa.engine.context import AsyncJobContext, JobContext, current_facts
    from kappa.engine.engine import COMPONENT, Engine
    from kappa.engine.errors import (
        AttemptLost,
        BadPayload,
        EngineError,
        IllegalTransition,
        JobCancelled,
        JobFailed,
        JobNotFound,
        JobTimedOut,
        LaneError,
        LanesHeld,
        LeaseLost,
        ScheduleError,
        ScheduleExists,
        ScheduleNotFound,
        UnknownKind,
    )
    from kappa.engine.model import (
        Cancel,
        Enqueued,
        Executor,
        Job,
        JobEvent,
        JobPage,
        JobState,
        Lane,
        Needs,
        Relative,
        Retry,
        Schedule,
        Snooze,
        WorkerSeen,
    )
    from kappa.engine.worker import Worker, run_until_signal

__all__ = [
    "COMPONENT",
    "AsyncClient",
    "AsyncJobContext",
    "AttemptLost",
    "BadPayload",
    "Cancel",
    "Client",
    "Engine",
    "EngineError",
    "Enqueued",
    "Executor",
    "IllegalTransition",
    "Job",
    "JobCancelled",
    "JobContext",
    "JobEvent",
    "JobFailed",
    "JobNotFound",
    "JobPage",
    "JobState",
    "JobTimedOut",
    "Lane",
    "LaneError",
    "LanesHeld",
    "LeaseLost",
    "Needs",
    "Relative",
    "Retry",
    "Schedule",
    "ScheduleError",
    "ScheduleExists",
    "ScheduleNotFound",
    "Snooze",
    "UnknownKind",
    "Worker",
    "WorkerConfig",
    "WorkerSeen",
    "current_facts",
    "run_until_signal",
]

if not TYPE_CHECKING:
    __getattr__ = late.names(
        __name__, __all__, ("model", "errors", "config", "context", "async_client", "client", "worker", "engine")
    )
