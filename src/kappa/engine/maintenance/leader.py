"""Leadership: a term with a heartbeat by the database's clock, and services that write only in that term.

A standby takes the next term when the leader's session is gone or its heartbeat too old, and ends what is left of its
sessions. The leader's connections check the term in every transaction (`kappa.engine.maintenance.term`): one that was
frozen and goes on later writes nothing, whatever it was about to do.

What may take long runs on a second session, so that the reaper and the promoter never wait for it, and the heartbeat on
a third, so that it waits for neither.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import Sequence
from datetime import timedelta

import psycopg
from psycopg import IsolationLevel
from psycopg.errors import DeadlockDetected, LockNotAvailable

from kappa.engine.maintenance.services import Service
from kappa.engine.maintenance.term import TermConnection, TermOver
from kappa.engine.signals import Signals
from kappa.engine.store import leadership
from kappa.engine.waiting import end, happens
from kappa.pg import keepalive
from kappa.pg.ops import run_async

log = logging.getLogger(__name__)

LOCK_RETRY = 1.0
"""Seconds until a service is tried again that gave up waiting for a lock."""
BEATS = 3
"""Heartbeats in the time for which one is good."""
LOCKED_AGAIN = 0.1
"""Seconds until something that is due already, but locked by somebody or not done yet, is looked at again."""


class Leader:
    """Tries to lead, and leads."""

    def __init__(
        self,
        url: str,
        services: Sequence[Service],
        signals: Signals,
        try_every: float,
        ttl: timedelta,
        owner: str = "",
    ) -> None:
        self._url = url
        self._owner = owner
        self._ttl = ttl
        self._services = services
        self._signals = signals
        self._try_every = try_every
        self._nudged = asyncio.Event()
        self._due: dict[str, float] = {}
        self.leading = False

    def nudge(self, service: str = "promoter") -> None:
        """Something may be due earlier than was known."""
        for service_name in (service, "cron"):
            self._due[service_name] = 0.0
        self._nudged.set()

    def sooner(self, service: str, at: float) -> None:
        """Something is due at that instant of the loop's clock."""
        if at < self._due.get(service, 0.0):
            self._due[service] = at
            self._nudged.set()

    async def run(self) -> None:
        while True:
            try:
                await self._stand_by_and_lead()
            except (psycopg.OperationalError, TermOver) as error:
                log.warning("this process no longer leads: %s", " ".join(str(error).split()))
            finally:
                if self.leading:
                    self.leading = False
                    self._signals.emit("not_leading")
            await asyncio.sleep(self._try_every * random.uniform(0.5, 1.0))  # noqa: S311

    async def _stand_by_and_lead(self) -> None:
        async with await self._connect("kappa leader") as connection:
            term = await self._stand_by(connection)
            connection.act_in(term)
            # Who has a lane's or a run's row locked must not keep everything else waiting that is due.
            await connection.execute("SET lock_timeout = '1s'")
            self.leading = True
            self._signals.emit("leading")
            self._due = {service.name: 0.0 for service in self._services}
            prompt = [service for service in self._services if not service.aside]
            aside = [service for service in self._services if service.aside]
            tasks = [asyncio.create_task(self._beat(term)), asyncio.create_task(self._lead(connection, prompt))]
            if aside:
                tasks.append(asyncio.create_task(self._lead_aside(term, aside)))
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()  # none ends by itself: this raises what ended it
            finally:
                await end(tasks)

    async def _stand_by(self, connection: TermConnection) -> int:
        """Wait for a term."""
        told: list[int] = []
        while True:
            term, refused = await run_async(connection, leadership.try_lead(self._owner, self._ttl))
            if refused not in ([], told):
                told = refused
                log.warning(
                    "the last leader's heartbeat ran out, but this role may not end its sessions (pid %s): what it "
                    "has begun to write is waited for, and it can begin nothing more",
                    ", ".join(map(str, refused)),
                )
            if term is not None:
                return term
            # Asked again and again, not waited for: a statement that waits for a lock holds a snapshot, and that keeps
            # vacuum from the whole database.
            await asyncio.sleep(self._try_every * random.uniform(0.8, 1.2))  # noqa: S311

    async def _beat(self, term: int) -> None:
        async with await self._connect("kappa leader heartbeat") as connection:
            # What a crash loses of it is worth nothing after that crash.
            await connection.execute("SET synchronous_commit = off")
            while await run_async(connection, leadership.beat(term)):
                await asyncio.sleep(self._ttl.total_seconds() / BEATS)
        raise TermOver(term)

    async def _lead_aside(self, term: int, services: Sequence[Service]) -> None:
        while True:
            try:
                async with await self._connect("kappa leader aside") as connection:
                    connection.act_in(term)
                    await self._lead(connection, services)
            except psycopg.OperationalError as error:
                log.warning("the leader's connection aside is lost: %s", " ".join(str(error).split()))
            await asyncio.sleep(self._try_every * random.uniform(0.5, 1.0))  # noqa: S311

    async def _connect(self, name: str) -> TermConnection:
        connection = await TermConnection.connect(
            self._url,
            autocommit=True,
            application_name=name,
            connect_timeout=10,
            # A leader whose host vanished must not keep its term until TCP gives up by itself.
            **keepalive.options(self._url, idle=5, interval=2, direct=True),
        )
        # The term is read after its lock is had, by a snapshot that is later than the lock.
        await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
        return connection

    async def _lead(self, connection: TermConnection, services: Sequence[Service]) -> None:
        while True:
            self._nudged.clear()
            for service in services:
                if time.monotonic() < self._due[service.name]:
                    continue
                self._due[service.name] = time.monotonic() + service.every
                try:
                    hint = await service.run_once(connection)
                except (LockNotAvailable, DeadlockDetected) as error:
                    log.warning("the leader's %s waits for a lock: %s", service.name, " ".join(str(error).split()))
                    self.sooner(service.name, time.monotonic() + LOCK_RETRY)
                    continue
                except (psycopg.OperationalError, TermOver):
                    raise
                except Exception:
                    # The fault of one service must not stop the others, here and on every node that leads after.
                    log.exception("the leader's %s failed; it is tried again in %.0f s", service.name, service.every)
                    continue
                if hint is not None:
                    self.sooner(service.name, time.monotonic() + (hint if hint > 0 else LOCKED_AGAIN))
            wait = min((self._due[service.name] for service in services), default=math.inf) - time.monotonic()
            await happens(self._nudged, None if wait == math.inf else max(wait, 0.0))
