"""Handlers for `KAPPA_HANDLERS`, of the server and of its workers: tasks that run until a file is there."""

import time
from datetime import timedelta
from pathlib import Path

from kappa.engine import Engine, Executor, JobContext, Lane

PLACE = f"{__name__}:declare"


def declare(engine: Engine) -> None:
    lane = Lane("far", kinds=("far_gate",), max_slots=100, poll_interval_ms=200, executor=Executor.FLEET)
    engine.lane(lane)
    engine.job("far_gate", idempotent=True, timeout=timedelta(minutes=5))(far_gate)


def far_gate(ctx: JobContext, payload: str) -> str:
    ctx.checkpoint("begun")
    while not Path(payload).exists():
        ctx.raise_if_cancelled()
        time.sleep(0.02)
    return "through"
