"""Calls of one sort, written together and answered after the commit.

One statement is under way at most; what arrives meanwhile goes with the next one. So a lone call is written at once,
and under load a statement serves as many as came while the last one was written. There is no clock in it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import psycopg
import psycopg.errors

from kappa.engine.fleet.refusals import Refused
from kappa.engine.fleet.wire import Refusal
from kappa.pg import PgError

T = TypeVar("T")
R = TypeVar("R")

log = logging.getLogger(__name__)

UNKEEPABLE = (psycopg.DataError, psycopg.IntegrityError, psycopg.errors.ProgramLimitExceeded)
"""What is wrong with a word itself, and will be when it is said again."""
PATIENCE = 15.0
"""Seconds. A database that takes longer for one statement is away, and the callers are told so."""
STRANGERS = 8
"""Of those who come for the first time, so many in a statement: all that a statement answers go on in one turn of the
loop, and what they do next is long enough to keep a beat waiting."""


class Group(Generic[T, R]):
    """One sort of call.

    `locked` finds the items whose rows others have locked. Their callers are told to try again; the rest is written.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[list[T]], Awaitable[Sequence[R]]],
        most: int = 500,
        locked: Callable[[list[T]], Awaitable[list[T]]] | None = None,
    ) -> None:
        self.name = name
        self.calls = 0
        self.statements = 0
        self._write = write
        self._locked = locked
        self._most = most
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def __call__(self, item: T) -> R:
        """What became of it, once that is durable."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_all(), name=f"fleet {self.name}")
        return await future

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                await self._write_batch(batch)
        finally:
            self._writer = None
            left, self._waiting = self._waiting, []  # there are some only if the writer broke
            self._tell(left, None)

    async def _write_batch(self, batch: list[tuple[T, "asyncio.Future[R]"]]) -> None:
        self.calls += len(batch)
        self.statements += 1
        try:
            async with asyncio.timeout(PATIENCE):
                await self._write_unlocked(batch)
        except UNKEEPABLE as error:
            # Something in it can't be kept, ever. Without it, the others can.
            if len(batch) > 1:
                half = len(batch) // 2
                await self._write_batch(batch[:half])
                await self._write_batch(batch[half:])
                return
            self._tell(batch, unkeepable(error))
        except (psycopg.Error, PgError, OSError, TimeoutError) as error:
            log.warning("fleet %s: the database did not take %d calls: %s", self.name, len(batch), error)
            self._tell(batch, None)
        except BaseException:
            self._tell(batch, None)
            raise

    async def _write_unlocked(self, batch: list[tuple[T, "asyncio.Future[R]"]]) -> None:
        """Write a batch, except what needs a lock that another session has."""
        while batch:
            try:
                answers = await self._write([item for item, _ in batch])
            except psycopg.errors.LockNotAvailable:
                if self._locked is None:
                    raise
                locked = await self._locked([item for item, _ in batch])
                self._tell([call for call in batch if call[0] in locked], row_locked())
                batch = [call for call in batch if call[0] not in locked]
                if not locked:
                    # The lock is on something else that one of them needs. Halves find out which.
                    if len(batch) == 1:
                        self._tell(batch, row_locked())
                        return
                    half = len(batch) // 2
                    await self._write_unlocked(batch[:half])
                    batch = batch[half:]
            else:
                for (_, future), answer in zip(batch, answers, strict=True):
                    if not future.done():
                        future.set_result(answer)
                return

    def _tell(self, batch: list[tuple[T, "asyncio.Future[R]"]], error: Refused | None) -> None:
        for _, future in batch:
            if not future.done():
                future.set_exception(error or Refused(Refusal.UNAVAILABLE, "the database does not answer: try again"))


def row_locked() -> Refused:
    return Refused(Refusal.UNAVAILABLE, "another session has locked what this call needs: try again")


def unkeepable(error: psycopg.Error) -> Refused:
    said = str(error).partition("\n")[0]
    return Refused(Refusal.BAD_REQUEST, f"the database can't keep this: {said}")
