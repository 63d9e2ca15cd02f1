"""A worker process of a run: `python -m tests.chaos.worker URL DIRECT_URL LEASE`.

Everything it sends to the server carries its owner's name, where no pooler stands between. Says `ready` when it listens
to signals and `working` when the server let it in, and works until SIGTERM. Ends with 3, and says why, when it leaves
threads behind.
"""

import asyncio
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from kappa.engine import WorkerConfig
from kappa.engine import worker as worker_module
from kappa.engine.loops import loop_factory
from kappa.engine.maintenance import services
from kappa.engine.registry import Registry
from kappa.engine.signals import Signals
from kappa.engine.store import maintenance
from kappa.engine.worker import run_until_signal
from kappa.pg import Database
from kappa.pg.ops import Op
from tests.chaos import handlers

NO_LOCK = "CHAOS_NO_LEADER_LOCK"
FOLLOW = "CHAOS_FOLLOW"
CLOCK = "CHAOS_CLOCK"
MARK_AFTER = "CHAOS_MARK_AFTER"
"""Test-only, in the environment: seconds for which a job of a batch may last before its row says that it runs."""
REAP_EVERY = 0.5
GRACE = timedelta(seconds=2)
LAST_THREADS = 5.0

TRY_LEAD = maintenance.try_lead


def quick_services(registry: Registry, signals: Signals) -> Sequence[services.Service]:
    """The leader's services with a reaper that looks as often as the short leases of these tests want it."""
    first, *rest = services.all_services(registry, signals)
    assert isinstance(first, services.Reaper)
    return (services.Reaper(signals, REAP_EVERY), *rest)


def lead_without_lock() -> Op[bool]:
    """Test-only: every worker takes itself for the leader."""
    op = TRY_LEAD()
    return replace(op, query=replace(op.query, name="lead_without_lock", sql=b"SELECT true"))


def shift_clock(offsets: Path) -> None:
    """Without libfaketime: `time.time` with an offset that is read anew from a file."""
    true_time = time.time

    def shifted() -> float:
        return true_time() + float(offsets.read_text() or 0)

    time.time = shifted


def tell_where() -> None:
    """To the log: where every task and thread is. For runs that don't come to an end."""
    for task in asyncio.all_tasks():
        task.print_stack(file=sys.stdout)
    sys.stdout.flush()
    faulthandler.dump_traceback(sys.stdout)


def main(url: str, direct_url: str, lease: str) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    worker_module.all_services = quick_services  # type: ignore[assignment]
    if os.environ.get(NO_LOCK):
        maintenance.try_lead = lead_without_lock
    if "libfaketime" in os.environ.get("LD_PRELOAD", ""):
        # It fails every sleep on the monotonic clock, which Python's `time.sleep` is.
        time.sleep = lambda seconds: threading.Event().wait(seconds) and None
    elif clock := os.environ.get(CLOCK):
        shift_clock(Path(clock))
    os.environ[handlers.URL] = url
    engine = handlers.declare(Database(url, direct_url), float(lease))

    async def work() -> None:
        lead = not os.environ.get(FOLLOW)
        config = WorkerConfig(lead=lead, grace=GRACE, lead_every=timedelta(seconds=0.3))
        if seconds := os.environ.get(MARK_AFTER):
            config = replace(config, start_mark_after=timedelta(seconds=float(seconds)))
        worker = engine.worker(config)
        if url == direct_url:
            os.environ["PGOPTIONS"] = f"-c chaos.owner={worker.owner}"
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, tell_where)
        said: list[str] = []

        def tell_that_it_works(name: str, facts: dict[str, Any]) -> None:
            if not said:
                said.append("working")
                print("working", flush=True)  # noqa: T201

        engine.signals.subscribe(tell_that_it_works)
        # Said when `run_until_signal` has begun to listen to signals.
        loop.call_soon(lambda: print(f"ready {worker.owner}", flush=True))  # noqa: T201
        await run_until_signal(worker)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(work())
    until = time.monotonic() + LAST_THREADS
    while left := [thread.name for thread in threading.enumerate() if thread.name.startswith(("kappa", "queue"))]:
        if time.monotonic() > until:
            print(f"threads left: {', '.join(left)}", flush=True)  # noqa: T201
            return 3
        threading.Event().wait(0.05)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
