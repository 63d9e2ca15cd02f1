"""Handlers for `KAPPA_HANDLERS`: a job that runs until a file is there."""

import ctypes
import threading
import time
from datetime import timedelta
from pathlib import Path

from kappa.engine import Engine, JobContext, Lane

PLACE = f"{__name__}:declare"
NO_FUNCTION = 7


def declare(engine: Engine) -> None:
    engine.lane(
        Lane("gates", kinds=("gate", "in_a_library"), max_slots=4, poll_interval_ms=100, lease_ttl=timedelta(seconds=1))
    )
    engine.job("gate", idempotent=True)(gate)
    engine.job("in_a_library")(in_a_library)


def in_a_library(ctx: JobContext) -> None:
    """As within a library in C, which aborts where it is taken down while it is used."""
    libc = ctypes.CDLL(None)
    libc.on_exit(ctypes.cast(libc.abort, ctypes.c_void_p), None)
    ctx.progress(1)
    threading.Event().wait()


def gate(ctx: JobContext, payload: str) -> str:
    while not Path(payload).exists():
        time.sleep(0.02)
    return "through"
