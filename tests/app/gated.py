"""Handlers for `KAPPA_HANDLERS`: a job that runs until a file is there."""

import time
from datetime import timedelta
from pathlib import Path

from kappa.engine import Engine, JobContext, Lane

PLACE = f"{__name__}:declare"
NO_FUNCTION = 7


def declare(engine: Engine) -> None:
    engine.lane(Lane("gates", kinds=("gate",), max_slots=4, poll_interval_ms=100, lease_ttl=timedelta(seconds=1)))
    engine.job("gate", idempotent=True)(gate)


def gate(ctx: JobContext, payload: str) -> str:
    while not Path(payload).exists():
        time.sleep(0.02)
    return "through"
