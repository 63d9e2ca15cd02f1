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
        self._watchers: defaultdict[int, set[asyncio.Queue[Job | None]]] = defaultdict(set)
        self._looking: asyncio.Task[None] | None = None

    async def watch(self, job_id: int) -> AsyncGenerator[Job]:
        """The job as it is, and again each time that something of it changed, until it has ended."""
        seen = await self._client.show(job_id)
        yield seen
        news: asyncio.Queue[Job | None] = asyncio.Queue(1)
        self._watchers[job_id].add(news)
        try:
            while not seen.state.terminal:
                if self._looking is None:
                    self._looking = asyncio.create_task(self._look())
                job = await news.get()
                if job is None:
                    return  # it was deleted
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
        try:
            while self._watchers:
                asked = list(self._watchers)
                try:
                    self._tell(asked, await self._client.show_many(asked))
                except (psycopg.Error, PgError) as error:
                    log.warning("watched jobs could not be read, next look soon: %s", error)
                await asyncio.sleep(self._every)
        finally:
            self._looking = None

    def _tell(self, asked: list[int], found: list[Job]) -> None:
        seen = {job.id: job for job in found}
        for job_id in asked:
            for news in self._watchers.get(job_id, ()):
                if news.full():
                    news.get_nowait()
                news.put_nowait(seen.get(job_id))
