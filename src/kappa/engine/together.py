"""Enqueues that are asked for at the same time go in together.

A caller who is alone goes at once. While as many as may are on their way, those who come later wait, and then all of
them are one statement and one commit: under load a commit's price is shared, and nobody waits for company.

What the database refuses is its own caller's affair: then each of the others goes alone.
"""

import asyncio
from collections import deque

import psycopg

from kappa.engine.store import jobs
from kappa.engine.store.jobs import NewJob
from kappa.pg import AsyncPool, Pool
from kappa.pg.ops import run, run_async

ON_THEIR_WAY = 2
"""One in the database and one at its door."""
MOST, MOST_CHARACTERS = 500, 1_000_000
"""Jobs, and characters of their payloads, that go together."""

Asked = tuple[NewJob, "asyncio.Future[int | None]"]


class AsyncTogether:
    """The callers of one event loop."""

    def __init__(self, pool: AsyncPool) -> None:
        self._pool = pool
        self._under_way = 0
        self._waiting: deque[Asked] = deque()
        self._trips: set[asyncio.Task[None]] = set()

    async def enqueue(self, new: NewJob) -> int | None:
        """The id of a usual job; None if its kind has no lane."""
        if self._under_way < ON_THEIR_WAY:
            self._under_way += 1
            try:
                return await self._alone(new)
            finally:
                self._next()
        told: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((new, told))
        return await told

    def _next(self) -> None:
        """Somebody has arrived: whoever waited sets out."""
        if not self._waiting:
            self._under_way -= 1
            return
        trip = asyncio.get_running_loop().create_task(self._carry(), name="enqueue together")
        self._trips.add(trip)
        trip.add_done_callback(self._trips.discard)

    async def _carry(self) -> None:
        try:
            while batch := self._gather():
                await self._put_in(batch)
        finally:
            self._under_way -= 1

    def _gather(self) -> list[Asked]:
        batch: list[Asked] = []
        characters = 0
        while self._waiting and len(batch) < MOST and characters < MOST_CHARACTERS:
            asked = self._waiting.popleft()
            if not asked[1].done():  # given up meanwhile
                batch.append(asked)
                characters += len(asked[0].payload)
        return batch

    async def _put_in(self, batch: list[Asked]) -> None:
        try:
            async with self._pool.connection(who="client") as session:
                made = await run_async(session, jobs.enqueue_together([new for new, _ in batch]))
        except (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError):
            for new, told in batch:
                await self._tell(new, told)
        except BaseException as error:
            for _, told in batch:
                if not told.done():
                    told.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            for (_, told), one in zip(batch, made, strict=True):
                if not told.done():
                    told.set_result(one)

    async def _tell(self, new: NewJob, told: "asyncio.Future[int | None]") -> None:
        if told.done():
            return
        try:
            made = await self._alone(new)
        except BaseException as error:
            if not told.done():
                told.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            if not told.done():
                told.set_result(made)

    async def _alone(self, new: NewJob) -> int | None:
        async with self._pool.connection(who="client") as session:
            return await run_async(session, jobs.enqueue(new))


class Together:
    """Callers in threads: each has a connection, and PostgreSQL itself makes one of their commits."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def enqueue(self, new: NewJob) -> int | None:
        with self._pool.connection(who="client") as session:
            return run(session, jobs.enqueue(new))
