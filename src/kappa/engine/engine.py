"""The front of the engine: declare handlers, install the schema, get clients, run workers."""

import asyncio
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from kappa.engine.async_client import AsyncClient
from kappa.engine.client import Client
from kappa.engine.config import WorkerConfig
from kappa.engine.errors import EngineError
from kappa.engine.loops import loop_factory
from kappa.engine.model import Lane, Schedule
from kappa.engine.registry import Registry
from kappa.engine.schedule import first_fault
from kappa.engine.signals import Signals
from kappa.engine.store import lanes, maintenance
from kappa.engine.worker import Worker, run_until_signal
from kappa.pg import Bounds, Database, component, migrate
from kappa.pg.ops import Op, run

F = TypeVar("F", bound=Callable[..., Any])

COMPONENT = component("engine", Path(__file__).parent / "migrations")


class Engine:
    """Durable jobs on one PostgreSQL database."""

    def __init__(self, database: Database | str) -> None:
        self.database = Database(database) if isinstance(database, str) else database
        self.registry = Registry()
        self.signals = Signals()
        self._lanes: dict[str, Lane] = {}
        self._at_end: list[Callable[[], object]] = []
        self._schedules: dict[str, Schedule] = {}

    def job(
        self,
        kind: str,
        *,
        timeout: timedelta | None = None,
        stale_timeout: timedelta | None = None,
        idempotent: bool = False,
        max_attempts: int | None = None,
        approval: bool = False,
        estimate: Callable[[Any], Any] | None = None,
        adoptable: bool = False,
        needed: Callable[[Any], Op[bool] | None] | None = None,
        needs_database: bool = False,
    ) -> Callable[[F], F]:
        """Declare the decorated function as the handler of a kind: `(ctx)` or `(ctx, payload)`, blocking or async.

        An attempt that lasts longer than `timeout` ends `timed_out`. One that reports no progress for longer than
        `stale_timeout` is stopped and tried again, as often as the kind allows; without it the lane's `stale_timeout`
        holds, and `timedelta.max` is for work that can't report any.

        `adoptable` is for work that outlives its worker: an orphan is handed to the handler again, as the same attempt
        with `ctx.adopted`, to find what became of it; if nothing can be found it raises `AttemptLost`.

        `needed` is asked by the leader, with the payload, when a schedule of this kind is due: if it gives an operation
        that says no, no job is made.
        `needs_database` is for work that no machine without one can do: workers over HTTP leave it alone.
        """

        if callable(kind):
            raise EngineError(f'a handler is declared with its kind, as in @engine.job("kind"), not {kind!r}')

        def declare(function: F) -> F:
            self.registry.add(
                kind, function, timeout=timeout, stale_timeout=stale_timeout, idempotent=idempotent,
                max_attempts=max_attempts,
                approval=approval, estimate=estimate, adoptable=adoptable, needed=needed, needs_database=needs_database,
            )  # fmt: skip
            return function

        return declare

    def lane(self, lane: Lane) -> Lane:
        """Declare a lane that `install` makes if there is none of its name."""
        self._lanes[lane.name] = lane
        return lane

    def forget(self, old: Callable[[datetime | None], Op[int]]) -> None:
        """Have the leader delete what is too old of the program's own, whenever it deletes finished jobs.

        The operation deletes some and says how many: none are left when it says 0. Its argument is the time, if it is
        not the database's.
        """
        self.registry.forgetting.append(old)

    def at_end(self, act: Callable[[], object]) -> None:
        """Have this called by `close`: what handlers share and somebody must put away."""
        self._at_end.append(act)

    def close(self) -> None:
        """Put away what handlers share, last first; for when the last worker and client of this engine have ended."""
        while self._at_end:
            self._at_end.pop()()

    def schedule(self, schedule: Schedule) -> Schedule:
        """Declare a schedule that `install` makes if there is none of its name."""
        if (fault := first_fault(schedule)) is not None:
            raise fault
        self._schedules[schedule.name] = schedule
        return schedule

    @property
    def declared_schedules(self) -> frozenset[str]:
        """The names of those that `install` makes if they are missing."""
        return frozenset(self._schedules)

    @property
    def served_lanes(self) -> tuple[str, ...]:
        """The lanes that have a kind with a handler here."""
        with self.database.connect() as connection:
            found = run(connection, lanes.read_lanes())
        return tuple(lane.name for lane in found if any(kind in self.registry.kinds for kind in lane.kinds))

    def install(self) -> None:
        """Bring the schema up to date and make the declared lanes and schedules. Safe to call at every start."""
        with self.database.connect() as connection:
            migrate(connection, [COMPONENT])
            for lane in self._lanes.values():
                try:
                    run(connection, lanes.declare_lane(lane))
                except psycopg.IntegrityError as error:
                    raise lanes.refused(lane.name, error) from None
            for schedule in self._schedules.values():
                payload = self.registry.dump_payload(schedule.kind, schedule.payload)
                run(connection, maintenance.declare_schedule(schedule, payload))

    def client(self, *, bounds: Bounds | None = None) -> Client:
        """A blocking client; use it as a context manager."""
        return Client(self.database, self.registry, bounds=bounds)

    def async_client(self, *, bounds: Bounds | None = None) -> AsyncClient:
        """An async client; use it as an async context manager."""
        return AsyncClient(self.database, self.registry, bounds=bounds)

    def worker(self, config: WorkerConfig | None = None) -> Worker:
        """A worker, to be run on an event loop of yours."""
        return Worker(self.database, self.registry, config, self.signals)

    def run(self, config: WorkerConfig | None = None) -> None:
        """Work until SIGTERM or ctrl-C, then drain. On uvloop where it is installed."""
        if threading.current_thread() is not threading.main_thread():
            raise EngineError(
                "signals come to the main thread only: run `engine.worker()` on a loop of this thread's own"
            )

        async def work() -> None:
            await run_until_signal(self.worker(config))

        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(work())
