"""Collects what many did and writes it as one.

A job whose row another session has locked keeps none of the others waiting: it is set aside and tried again soon.

Flushed at once when idle: the first item goes alone and without delay, those that arrive meanwhile go together. So
batches grow with the load and a single item is never kept waiting, unless a pause is asked for.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import psycopg
from psycopg.errors import LockNotAvailable

from kappa.pg import PgError

T = TypeVar("T")

log = logging.getLogger(__name__)

FIRST_RETRY = 0.05
LAST_RETRY = 2.0
FRUITLESS_WAITS = 3
"""How often a batch waits for a lock that is not on a job's row before it is written in halves."""
LOCKED_RETRY = 0.25
"""Seconds until a job whose row is locked is tried again."""


class Batch(Generic[T]):
    """A list that empties itself. A flush that fails for want of the database is tried again until it succeeds;
    an item that the database refuses is handed to `refused`. Where a lock is not to be had, `locked` finds the items
    whose rows others have locked."""

    def __init__(
        self,
        name: str,
        flush: Callable[[list[T]], Awaitable[None]],
        *,
        refused: Callable[[T, Exception], None],
        locked: Callable[[list[T]], Awaitable[list[T]]],
        limit: int = 1000,
        pause: float = 0.0,
    ) -> None:
        self._name = name
        self._flush = flush
        self._refused = refused
        self._locked = locked
        self._set_aside = 0
        self._limit = limit
        self._pause = pause
        self._items: list[T] = []
        self._filled = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, item: T) -> None:
        if not self._items:
            self._idle.clear()
            self._filled.set()
        self._items.append(item)

    async def run(self) -> None:
        while True:
            await self._filled.wait()
            if self._pause:
                await asyncio.sleep(self._pause)
            items, self._items = self._items[: self._limit], self._items[self._limit :]
            if not self._items:
                self._filled.clear()
            await self._write(items)
            if not self._items and not self._set_aside:
                self._idle.set()

    async def empty(self) -> None:
        """Until everything that was added is written."""
        await self._idle.wait()

    async def _write(self, items: list[T]) -> None:
        retry, waits = FIRST_RETRY, 0
        while items:
            try:
                try:
                    await self._flush(items)
                    return
                except LockNotAvailable:
                    for item in (locked := await self._locked(items)):
                        self._retry_later(item)
                    items = [item for item in items if item not in locked]
                    if not locked and (waits := waits + 1) >= FRUITLESS_WAITS:
                        # The lock is on something else that one of them needs. Halves find out which.
                        log.warning("%s: another session has locked what %d writes need", self._name, len(items))
                        if len(items) == 1:
                            self._retry_later(items[0])
                            return
                        half = len(items) // 2
                        await self._write(items[:half])
                        items, waits = items[half:], 0
            except (psycopg.OperationalError, PgError) as error:
                log.warning("%s: the database did not take a batch, next try in %.2f s: %s", self._name, retry, error)
                await asyncio.sleep(retry * random.uniform(0.8, 1.2))  # noqa: S311
                retry = min(retry * 2, LAST_RETRY)
            except (psycopg.Error, ValueError, TypeError) as error:
                # Something in it can't be written, ever. Alone, each of the others can.
                if len(items) == 1:
                    self._refused(items[0], error)
                    return
                for item in items:
                    await self._write([item])
                return

    def _retry_later(self, item: T) -> None:
        self._set_aside += 1
        asyncio.get_running_loop().call_later(LOCKED_RETRY, self._retry, item)

    def _retry(self, item: T) -> None:
        self._set_aside -= 1
        self.add(item)
