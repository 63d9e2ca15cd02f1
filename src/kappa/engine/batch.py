"""Collects what many did and writes it as one.

Flushed at once when idle: the first item goes alone and without delay, those that arrive meanwhile go together. So
batches grow with the load and a single item is never kept waiting, unless a pause is asked for.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import psycopg

from kappa.pg import PgError

T = TypeVar("T")

log = logging.getLogger(__name__)

FIRST_RETRY = 0.05
LAST_RETRY = 2.0


class Batch(Generic[T]):
    """A list that empties itself. A flush that fails for want of the database is tried again until it succeeds;
    an item that the database refuses is handed to `refused`."""

    def __init__(
        self,
        name: str,
        flush: Callable[[list[T]], Awaitable[None]],
        *,
        refused: Callable[[T, Exception], None],
        limit: int = 1000,
        pause: float = 0.0,
    ) -> None:
        self._name = name
        self._flush = flush
        self._refused = refused
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
            if not self._items:
                self._idle.set()

    async def empty(self) -> None:
        """Until everything that was added is written."""
        await self._idle.wait()

    async def _write(self, items: list[T]) -> None:
        retry = FIRST_RETRY
        while items:
            try:
                await self._flush(items)
                return
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
