"""Where a fleet's agent runs in tests: in this process, on a work directory, with handlers of the test's own."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kappa.engine.fleet import wire
from kappa.engine.fleet.agent import Agent, AgentConfig
from kappa.engine.fleet.journal import Journal
from kappa.engine.fleet.link import Link, Place
from kappa.engine.registry import Registry
from tests.engine.fleet.sham import Sham

NAME = "camp"


class Camp:
    """An agent and what it stands on."""

    def __init__(self, server: Sham, work_dir: Path, registry: Registry) -> None:
        self.server = server
        self.work_dir = work_dir
        self.registry = registry
        self.agent: Agent | None = None
        self.running: asyncio.Task[None] | None = None

    @property
    def entries(self) -> list[Path]:
        return sorted((self.work_dir / "tasks").glob("*.json"))

    def handler(self, kind: str, **policy: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            self.registry.add(kind, function, **policy)
            return function

        return register

    @asynccontextmanager
    async def agent_at_work(self, *, slots: int = 1, grace: float = 30.0, once: bool = False) -> AsyncIterator[Agent]:
        """An agent until the block ends; then it drains."""
        place = Place(url=self.server.url, token="secret", worker=NAME, direct=True)
        config = AgentConfig(wire.Able(kinds=sorted(self.registry.kinds)), slots, "0", grace, once)
        with Journal(self.work_dir) as journal:
            async with Link(place) as link:
                self.agent = Agent(config, link, journal, self.registry)
                self.running = asyncio.create_task(self.agent.run())
                try:
                    yield self.agent
                    self.agent.stop()
                    await self.running
                finally:
                    self.running.cancel()
                    await asyncio.gather(self.running, return_exceptions=True)

    async def ended(self) -> None:
        assert self.running is not None
        await self.running
