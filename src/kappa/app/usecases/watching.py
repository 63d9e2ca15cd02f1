"""Live progress: while anybody watches, one statement reads every watched job, however many watch."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator

import psycopg

from kappa.engine import AsyncClient, Job
from kappa.pg import PgError

log = logging.getLogger(__name__)

EVERY = 0.5


class Watchtower:
    """Looks at jobs for whoever watches them."""

    def __init__(self, client: AsyncClient, every: float = EVERY) -> None:
        self._client = client
        self._every = every
        self._watchers: defaultdict[int, set[asyncio.Queue[Job]]] = defaultdict(set)
        self._looking: asyncio.Task[None] | None = None

    async def watch(self, job_id: int) -> AsyncGenerator[Job]:
        """The job as it is, and again each time that something of it changed, until it has ended."""
        seen = await self._client.show(job_id)
        yield seen
        news: asyncio.Queue[Job] = asyncio.Queue(1)
        self._watchers[job_id].add(news)
        try:
            while not seen.state.terminal:
                if self._looking is None:
                    self._looking = asyncio.create_task(self._look())
                job = await news.get()
                if job != seen:
                    seen = job
                    yield seen
        finally:
            self._watchers[job_id].discard(news)
            if not self._watchers[job_id]:
                del self._watchers[job_id]

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look(self) -> None:
        while self._watchers:
            try:
                found = await self._client.show_many(list(self._watchers))
            except (psycopg.OperationalError, PgError) as error:
                log.warning("watched jobs could not be read, next look soon: %s", error)
                found = []
            for job in found:
                for news in self._watchers.get(job.id, ()):
                    if news.full():
                        news.get_nowait()
                    news.put_nowait(job)
            await asyncio.sleep(self._every)
        self._looking = None
