"""Renews a worker's leases and shows that the worker is alive, from a thread and on a connection of its own.

So a handler that blocks the event loop costs no lease, and neither does anything that waits for a lock or for a free
connection, nor a session that the server no longer serves. The thread also notices when the loop stands still, and logs
whose handler blocks it.
"""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable

import psycopg
from psycopg.abc import RV, PQGen
from psycopg.errors import LockNotAvailable

from kappa.engine.context import Running
from kappa.engine.desk import Desk
from kappa.engine.store import jobs
from kappa.engine.store.jobs import Renewal
from kappa.pg import Database, PgError, keepalive
from kappa.pg.ops import Op, run
from kappa.pg.queries import Row

log = logging.getLogger(__name__)

LOCKED_RETRY = 0.25
"""Seconds until a lease is renewed whose row another session had locked."""
ERROR_RETRY = 1.0
WATCH_EVERY = 1.0
BLOCKED_AFTER = 1.0
"""Seconds that the event loop may stand still before it is logged."""
STOP_WITHIN = 1.0
LEAST_PATIENCE = 1.0
"""Seconds that a statement has at least until the session is given up."""


class _Connection(psycopg.Connection[Row]):
    """Gives up on a server that does not answer: one frozen backend would otherwise cost every lease."""

    patience = LEAST_PATIENCE

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        return super().wait(gen, interval, self.patience if timeout is None else timeout)


class Heartbeat:
    """The heartbeat of one worker. Made on the worker's event loop."""

    def __init__(
        self, database: Database, desk: Desk, interval: Callable[[], float], presence: Callable[[], Op[None]]
    ) -> None:
        self._database = database
        self._desk = desk
        self._interval = interval
        self._presence = presence
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._failure: asyncio.Future[None] = self._loop.create_future()
        self._wake = threading.Event()
        self._asked = self._answered = 0
        """How many extra rounds were asked for, by the loop alone, and how many of these were made."""
        self._stopped = False
        self._locked: list[Running] = []
        """Leases that could not be renewed yet, and are tried again soon."""
        self._connection: _Connection | None = None
        self._pinged: float | None = None
        self._blocked_by: str | None = None

    async def run(self) -> None:
        """Beat until cancelled. Raises what makes it impossible."""
        thread = threading.Thread(target=self._run, name="kappa-heartbeat", daemon=True)
        thread.start()
        try:
            await self._failure
        finally:
            self._stopped = True
            self._wake.set()
            await asyncio.to_thread(thread.join, STOP_WITHIN)

    def beat_soon(self) -> None:
        """Renew now: a lease may be lost, or a job cancelled."""
        self._asked += 1
        self._wake.set()

    def _run(self) -> None:
        try:
            self._beat_until_stopped()
        except Exception as error:
            self._tell_loop(self._fail, error)
        finally:
            self._disconnect()

    def _beat_until_stopped(self) -> None:
        next_beat = next_round = next_presence = time.monotonic() + self._interval()
        while True:
            self._wake.wait(max(0.0, min(next_beat - time.monotonic(), WATCH_EVERY)))
            self._wake.clear()
            if self._stopped:
                return
            self._watch_loop()
            asked = self._asked
            if time.monotonic() < next_beat and asked == self._answered:
                next_beat = min(next_beat, time.monotonic() + self._interval())  # the leases may have become shorter
                continue
            connected = self._connection is not None
            everything = asked != self._answered or not self._locked or time.monotonic() >= next_round
            try:
                self._renew(self._desk.leases() if everything else self._locked)
                if everything:
                    self._answered = asked
                    next_round = time.monotonic() + self._interval()
                if time.monotonic() >= next_presence:
                    self._show_presence()
                    next_presence = time.monotonic() + self._interval()
                retry = time.monotonic() + LOCKED_RETRY
                next_beat = min(next_round, retry) if self._locked else next_round
            except (psycopg.Error, PgError) as error:
                log.warning("leases could not be renewed: %s", " ".join(str(error).split()))
                self._disconnect()
                # A session that has failed is replaced at once. Where none can be had, the server is given a moment.
                next_beat = time.monotonic() + (0.0 if connected else min(ERROR_RETRY, self._interval()))

    def _renew(self, leases: list[Running]) -> None:
        """Renew leases in one statement, and note those whose rows another session has locked."""
        leases = [running for running in leases if not running.lost]
        found: dict[int, Renewal] = {}
        if leases:
            found = run(self._connected(), jobs.renew([running.held for running in leases]))
            self._tell_loop(self._desk.renewed, leases, found)
        self._locked = [
            running
            for running in leases
            if (renewal := found.get(running.claimed.id)) is not None and not renewal.renewed
        ]

    def _show_presence(self) -> None:
        try:
            run(self._connected(), self._presence())
        except LockNotAvailable:
            log.debug("this worker's row is locked: its presence is shown later")

    def _connected(self) -> psycopg.Connection[Row]:
        if self._connection is None:
            # Not through a pooler, where renewals could wait behind the transactions of handlers.
            self._connection = _Connection.connect(
                self._database.direct_url,
                autocommit=True,
                application_name="kappa heartbeat",
                connect_timeout=10,
                **keepalive.options(self._database.direct_url, idle=5, interval=2, direct=True),
            )
            # Renewals skip locked rows. What can be locked is the worker's own row, or a whole table.
            self._connection.execute("SET lock_timeout = '200ms'")
        self._connection.patience = max(LEAST_PATIENCE, self._interval())
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _watch_loop(self) -> None:
        """The loop is asked for a sign now and then; one that doesn't answer is blocked."""
        now, pinged = time.monotonic(), self._pinged
        if pinged is None:
            self._pinged = now
            self._tell_loop(self._answer)
        elif self._blocked_by is None and now - pinged > BLOCKED_AFTER:
            blocker = self._describe_blocker()
            if self._pinged == pinged:  # the loop may have answered meanwhile
                self._blocked_by = blocker
                log.warning(
                    "the worker's event loop has been blocked for %.1f s by %s: nothing else runs on it meanwhile",
                    now - pinged,
                    blocker,
                )

    def _answer(self) -> None:
        pinged, blocker = self._pinged, self._blocked_by
        self._pinged, self._blocked_by = None, None
        if blocker is not None and pinged is not None:
            log.warning("the event loop was blocked for %.1f s by %s", time.monotonic() - pinged, blocker)

    def _describe_blocker(self) -> str:
        task = asyncio.current_task(self._loop)
        frame = sys._current_frames().get(self._loop_thread)  # pyright: ignore[reportPrivateUsage]
        place = f" ({frame.f_code.co_filename}:{frame.f_lineno})" if frame else ""
        for running in self._desk.leases():
            if task is not None and running.task is task:
                name = getattr(running.handler.function, "__qualname__", "?")
                return f"the handler {name} of job {running.claimed.id}, kind {running.claimed.kind!r}{place}"
        return f"no job's handler{place}"

    def _tell_loop(self, function: Callable[..., None], *args: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)

    def _fail(self, error: Exception) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)
