"""Kinds whose jobs go on when a test lets them: handlers for `KAPPA_HANDLERS`."""

import time
from pathlib import Path

from pydantic import BaseModel

from kappa.engine import Engine, JobContext, Lane


class Gated(BaseModel):
    """A step is done when the file of its number is there."""

    gates: Path
    steps: int = 1


def gated(ctx: JobContext, payload: Gated) -> int:
    for step in range(1, payload.steps + 1):
        while not (payload.gates / str(step)).exists():
            ctx.raise_if_cancelled()
            time.sleep(0.02)
        ctx.progress(step, payload.steps, f"through gate {step}")
    return payload.steps


def costly(ctx: JobContext, payload: dict[str, int]) -> str:
    return "spent"


def declare(engine: Engine) -> None:
    engine.lane(Lane("gates", kinds=("gated",), max_slots=4, poll_interval_ms=100))
    engine.lane(Lane("costs", kinds=("costly",)))
    engine.job("gated", max_attempts=1)(gated)
    engine.job("costly", approval=True, estimate=lambda payload: {"dollars": payload["pages"]})(costly)
