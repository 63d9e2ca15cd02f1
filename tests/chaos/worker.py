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
from kappa.engine.context import Running
from kappa.engine.heartbeat import Heartbeat
from kappa.engine.loops import loop_factory
from kappa.engine.maintenance import services
from kappa.engine.office import WorkerOffice
from kappa.engine.registry import Registry
from kappa.engine.signals import Signals
from kappa.engine.store import leadership
from kappa.engine.worker import run_until_signal
from kappa.pg import Database
from kappa.pg.ops import Op
from tests.chaos import handlers, journal

NO_TERM = "CHAOS_NO_TERM"
FOLLOW = "CHAOS_FOLLOW"
LANES = "CHAOS_LANES"
"""The lanes that a worker serves; without it, all."""
CLOCK = "CHAOS_CLOCK"
MARK_AFTER = "CHAOS_MARK_AFTER"
"""Test-only, in the environment: seconds for which a job of a batch may last before its row says that it runs."""
REAP_EVERY = 0.5
GRACE = timedelta(seconds=2)
LEADER_TTL = timedelta(seconds=2)
LAST_THREADS = 5.0

SLOT_IN_TRANSACTION = "CHAOS_SLOT_IN_TRANSACTION"
RENEW_ON_LOOP = "CHAOS_RENEW_ON_LOOP"

SLOT_IS_FREE = """
    UPDATE kappa.jobs AS j SET waiting = false
     WHERE j.id = %s AND j.lease_token = %s
       AND (SELECT count(*) FROM kappa.jobs AS r WHERE r.lane = j.lane AND r.state = 'running' AND NOT r.waiting)
           < (SELECT max_slots FROM kappa.lanes AS l WHERE l.name = j.lane)
    RETURNING j.id
"""

TRY_LEAD = leadership.try_lead


def quick_services(registry: Registry, signals: Signals) -> Sequence[services.Service]:
    """The leader's services with a reaper that looks as often as the short leases of these tests want it."""
    first, *rest = services.all_services(registry, signals)
    assert isinstance(first, services.Reaper)
    return (services.Reaper(signals, REAP_EVERY), *rest)


def lead_without_term(owner: str, ttl: timedelta) -> Op[tuple[int | None, list[int]]]:
    """Test-only: every worker takes itself for the leader."""
    op, anybodys = TRY_LEAD(owner, ttl), b"SELECT term, '{}'::int[] FROM kappa.leadership"
    return replace(op, query=replace(op.query, name="lead_without_term", sql=anybodys, parameters=()))


async def reacquire_slot_in_transaction(self: WorkerOffice, running: Running) -> None:
    """Test-only: the lane's lock is held from one statement to the next."""
    while running.waiting:
        async with self._pool.transaction() as connection:
            await connection.execute("SELECT pg_advisory_xact_lock(1262568289, hashtext(%s))", [running.lane])
            taken = await connection.execute(SLOT_IS_FREE, running.held)
            running.waiting = taken.rowcount == 0
        await asyncio.sleep(0.1 if running.waiting else 0)


async def renew_on_loop(self: Heartbeat) -> None:
    """Test-only: leases are renewed by the event loop, when it has time for it."""
    while True:
        await asyncio.sleep(self._interval())
        self._renew(self._desk.leases())


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
    if os.environ.get(NO_TERM):
        leadership.try_lead = lead_without_term
    if os.environ.get(SLOT_IN_TRANSACTION):
        WorkerOffice._reacquire_slot = reacquire_slot_in_transaction  # type: ignore[method-assign]
    if os.environ.get(RENEW_ON_LOOP):
        Heartbeat.run = renew_on_loop  # type: ignore[method-assign]
    if "libfaketime" in os.environ.get("LD_PRELOAD", ""):
        # It fails every sleep on the monotonic clock, which Python's `time.sleep` is.
        time.sleep = lambda seconds: threading.Event().wait(seconds) and None
    elif clock := os.environ.get(CLOCK):
        shift_clock(Path(clock))
    os.environ[handlers.URL] = url
    journal.watch_turns()
    engine = handlers.declare(Database(url, direct_url), float(lease))

    async def work() -> None:
        lead = not os.environ.get(FOLLOW)
        config = WorkerConfig(lead=lead, grace=GRACE, lead_every=timedelta(seconds=0.3), leader_ttl=LEADER_TTL)
        if names := os.environ.get(LANES):
            config = replace(config, lanes=tuple(names.split(",")))
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
                journal.write("working")
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
