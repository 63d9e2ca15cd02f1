"""The kind `self_test`: a harmless job that goes all the way, to see that everything works."""

import time
from datetime import timedelta
from typing import Annotated

from pydantic import BaseModel, Field

from kappa.app.kinds.asked import Asked
from kappa.engine import Engine, JobContext, Lane

LANE = Lane("checks", kinds=("self_test",), max_slots=4, poll_interval_ms=5000)


class SelfTest(Asked):
    """How much to do, and how it should end."""

    steps: Annotated[int, Field(ge=1, le=10_000)] = 3
    seconds: Annotated[float, Field(ge=0, le=60)] = 0.0
    """A minute at most: whoever may enqueue may enqueue this, and there are few slots."""
    fail: bool = False


class SelfTestResult(BaseModel):
    steps: int


def declare(engine: Engine) -> None:
    engine.lane(LANE)
    engine.job("self_test", timeout=timedelta(minutes=5), idempotent=True)(self_test)


def self_test(ctx: JobContext, asked: SelfTest | None) -> SelfTestResult:
    """So many steps, each reported; a step is where it can be cancelled."""
    payload = asked or SelfTest()
    begun = time.monotonic()
    for step in range(1, payload.steps + 1):
        while (left := begun + payload.seconds * step / payload.steps - time.monotonic()) > 0:
            ctx.raise_if_cancelled()
            time.sleep(min(left, 0.1))
        ctx.raise_if_cancelled()
        ctx.progress(step, payload.steps, f"step {step} of {payload.steps}")
    if payload.fail:
        raise RuntimeError("it was asked to fail")
    return SelfTestResult(steps=payload.steps)
