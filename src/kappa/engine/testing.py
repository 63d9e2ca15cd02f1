"""For tests of programs that use the engine: drain the queue, move time, wait for what happens.

async def test_greeting(engine):
    with engine.client() as client:
        client.enqueue("greet", "world")
    await drain(engine)
    await maintain(engine, later=timedelta(days=3))    # what the leader would have done by then
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

from psycopg import AsyncConnection

from kappa.engine.config import WorkerConfig
from kappa.engine.engine import Engine
from kappa.engine.maintenance.services import AT_ONCE, all_services
from kappa.engine.model import JobState
from kappa.engine.worker import Worker

PATIENCE = 30.0

Fact = tuple[str, dict[str, Any]]


class Heard:
    """What an engine's signals said since this was made, and a way to wait for more."""

    def __init__(self, engine: Engine) -> None:
        self.facts: list[Fact] = []
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.stop = engine.signals.subscribe(self._hear)

    def _hear(self, name: str, facts: dict[str, Any]) -> None:
        self.facts.append((name, facts))
        self._loop.call_soon_threadsafe(self._news.set)

    def all(self, name: str, **wanted: Any) -> list[dict[str, Any]]:
        return [
            facts
            for heard, facts in self.facts
            if heard == name and all(facts.get(key) == value for key, value in wanted.items())
        ]

    async def until(self, name: str, count: int = 1, **wanted: Any) -> dict[str, Any]:
        """Wait for a signal, or for the n-th of its sort, and give what it said."""
        async with asyncio.timeout(PATIENCE):
            while len(found := self.all(name, **wanted)) < count:
                self._news.clear()
                await self._news.wait()
        return found[count - 1]


@asynccontextmanager
async def working(engine: Engine, config: WorkerConfig | None = None) -> AsyncGenerator[Worker]:
    """A worker on this loop for as long as the block lasts; it drains at the end."""
    worker = engine.worker(config)
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await running


async def drain(engine: Engine, config: WorkerConfig | None = None) -> None:
    """Work until no job is queued or running. What is scheduled or awaits approval stays."""
    ready = (JobState.QUEUED, JobState.RUNNING)
    async with working(engine, config), engine.async_client() as client:
        async with asyncio.timeout(PATIENCE):
            while any(state in ready for _, state in await client.counts()):
                await asyncio.sleep(0.005)


async def maintain(
    engine: Engine, *, later: timedelta = timedelta(0), only: Callable[[str], bool] = lambda name: True
) -> None:
    """Do at once what the leader would do so much later."""
    connection = await AsyncConnection.connect(engine.database.direct_url, autocommit=True)
    async with connection:
        cursor = await connection.execute("SELECT now() + %s", [later])
        row = await cursor.fetchone()
        assert row is not None
        now: datetime = row[0]
        for service in all_services(engine.registry, engine.signals):
            if only(service.name):
                while await service.run_once(connection, now) == AT_ONCE:
                    pass
