"""What a task's context asks for where there is no database: it goes to the server, or is refused."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, NoReturn

from psycopg import AsyncConnection, Connection

from kappa.engine.context import Running
from kappa.engine.errors import EngineError, JobCancelled
from kappa.engine.fleet import wire
from kappa.engine.fleet.link import Link, NotDone, Pace, Refused
from kappa.engine.model import JobState
from kappa.engine.threads import BoundedThreads
from kappa.pg.queries import Row

REPORT_EVERY = 0.5
"""Seconds between two reports of one task's progress; the latest word counts."""


class RemoteOffice:
    """The office of one task."""

    def __init__(
        self,
        link: Link,
        threads: BoundedThreads,
        checkpoint: Any,
        over: asyncio.Event,
        hear: Callable[[wire.Verdict, str | None], None],
    ) -> None:
        self.threads = threads
        self._link = link
        self._checkpoint = checkpoint
        self._over = over
        self._hear = hear
        self._reporting: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Report nothing more."""
        self._over.set()
        if self._reporting is not None:
            self._reporting.cancel()

    def report_progress(self, running: Running) -> None:
        if not self._over.is_set() and (self._reporting is None or self._reporting.done()):
            self._reporting = asyncio.create_task(self._report(running), name=f"progress of {running.claimed.id}")

    async def save_checkpoint(self, running: Running, value: str) -> bool:
        kept = json.loads(value)
        body = wire.UpdateTask(**self._whose(running), checkpoint=kept)
        try:
            answer = await self._link.until_answered("update_task", body, wire.Updated, self._over)
        except Refused as error:
            if not error.lost:
                raise
            self._hear(wire.Verdict.LOST, None)
            return False
        if answer is None:
            if running.lost:
                return False
            raise JobCancelled("the time is up")
        self._take(answer)
        self._checkpoint = kept
        return True

    async def read_checkpoint(self, running: Running) -> list[Any]:
        return [self._checkpoint]

    async def spawn(self, running: Running, kind: str, payload: Any, key: str, priority: int) -> int:
        _no_database("spawn")

    async def gather(self, running: Running, keys: list[str]) -> dict[str, tuple[int, JobState, Any, str | None]]:
        _no_database("gather")

    async def open_transaction(self, running: Running) -> AsyncConnection[Row]:
        _no_database("transaction")

    def open_blocking_transaction(self, running: Running) -> Connection[Row]:
        _no_database("transaction")

    async def _report(self, running: Running) -> None:
        pace = Pace()
        while (progress := running.progress) is not None:
            done, total, message = progress
            text = None if message is None else message[: wire.SUMMARY_LIMIT]
            body = wire.UpdateTask(**self._whose(running), done=done, total=total, message=text)
            pause = REPORT_EVERY
            try:
                self._take(await self._link.once("update_task", body, wire.Updated))
                pace = Pace()
                if running.progress is progress:
                    running.progress = None
            except NotDone as error:
                if isinstance(error, Refused) and error.lost:
                    self._hear(wire.Verdict.LOST, None)
                if not error.passes:
                    return  # the beats and the settlement say the rest
                pause = pace.after(error)
            await asyncio.sleep(pause)

    def _take(self, answer: wire.Updated) -> None:
        if answer.cancel is not None:
            self._hear(wire.Verdict.CANCEL, answer.cancel)

    def _whose(self, running: Running) -> dict[str, Any]:
        task, token = running.held
        return {"worker": self._link.place.worker, "task": task, "token": token}


def _no_database(what: str) -> NoReturn:
    raise EngineError(f"a fleet worker has no database: {what}() is for handlers that run beside it")
