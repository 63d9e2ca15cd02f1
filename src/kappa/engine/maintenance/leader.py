"""Leadership: a session-level advisory lock, and services that run on the very session that holds it.

When the session is gone the lock is gone, and so is the only way this process had to act. No clock is compared and
nothing needs to be stopped in time: two leaders can't act at once.

What may take long runs aside, on a second session of the leader's with a lock of its own, so that the reaper and the
promoter never wait for it. A new leader does so once the session of the one before it is gone.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Sequence

import psycopg
from psycopg import AsyncConnection

from kappa.engine.maintenance.services import Service
from kappa.engine.signals import Signals
from kappa.engine.store import maintenance
from kappa.engine.waiting import end, happens
from kappa.pg import keepalive
from kappa.pg.ops import Op, run_async
from kappa.pg.queries import Row

log = logging.getLogger(__name__)

LOCKED_AGAIN = 0.1
"""Seconds until something that is due already, but locked by somebody or not done yet, is looked at again."""


class Leader:
    """Tries to lead, and leads."""

    def __init__(
        self, url: str, services: Sequence[Service], signals: Signals, try_every: float, owner: str = ""
    ) -> None:
        self._url = url
        self._owner = owner
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
            except psycopg.OperationalError as error:
                log.warning("the leader's connection is lost: %s", " ".join(str(error).split()))
            finally:
                if self.leading:
                    self.leading = False
                    self._signals.emit("not_leading")
            await asyncio.sleep(self._try_every * random.uniform(0.5, 1.0))  # noqa: S311

    async def _stand_by_and_lead(self) -> None:
        async with await self._connect("kappa leader") as connection:
            await self._lock(connection, maintenance.try_lead)
            self.leading = True
            self._signals.emit("leading")
            await run_async(connection, maintenance.lead(self._owner))
            self._due = {service.name: 0.0 for service in self._services}
            aside = asyncio.create_task(self._lead_aside())
            try:
                await self._lead(connection, [service for service in self._services if not service.aside])
            finally:
                await end([aside])

    async def _lead_aside(self) -> None:
        services = [service for service in self._services if service.aside]
        while services:
            try:
                async with await self._connect("kappa leader aside") as connection:
                    await self._lock(connection, maintenance.try_lead_aside)
                    await self._lead(connection, services)
            except psycopg.OperationalError as error:
                log.warning("the leader's connection aside is lost: %s", " ".join(str(error).split()))
            await asyncio.sleep(self._try_every * random.uniform(0.5, 1.0))  # noqa: S311

    async def _connect(self, name: str) -> AsyncConnection[Row]:
        return await AsyncConnection.connect(
            self._url,
            autocommit=True,
            application_name=name,
            connect_timeout=10,
            # A leader whose host vanished must not keep the lock until TCP gives up by itself.
            **keepalive.options(self._url, idle=5, interval=2, direct=True),
        )

    async def _lock(self, connection: AsyncConnection[Row], try_lock: Callable[[], Op[bool]]) -> None:
        # Asked again and again, not waited for: a statement that waits for a lock holds a snapshot, and that keeps
        # vacuum from the whole database.
        while not await run_async(connection, try_lock()):
            await asyncio.sleep(self._try_every * random.uniform(0.8, 1.2))  # noqa: S311

    async def _lead(self, connection: AsyncConnection[Row], services: Sequence[Service]) -> None:
        while True:
            self._nudged.clear()
            for service in services:
                if time.monotonic() < self._due[service.name]:
                    continue
                self._due[service.name] = time.monotonic() + service.every
                try:
                    hint = await service.run_once(connection)
                except psycopg.OperationalError:
                    raise
                except Exception:
                    # The fault of one service must not stop the others, here and on every node that leads after.
                    log.exception("the leader's %s failed; it is tried again in %.0f s", service.name, service.every)
                    continue
                if hint is not None:
                    self.sooner(service.name, time.monotonic() + (hint if hint > 0 else LOCKED_AGAIN))
            wait = min((self._due[service.name] for service in services), default=math.inf) - time.monotonic()
            await happens(self._nudged, None if wait == math.inf else max(wait, 0.0))
