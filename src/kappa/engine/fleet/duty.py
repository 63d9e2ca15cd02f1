"""One task of a worker's: from the word that it begins to the acknowledged word of how it ended.

    journal ─▶ `started` acknowledged ─▶ work ─▶ settlement acknowledged ─▶ journal
                                          ▲
             beats, time-out, drain ──────┘ may stop it

A task is held until its settlement is acknowledged, or the server says that it is lost. Of one that is lost nothing
more is said.
"""

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable
from typing import Any

from kappa.engine import attempt
from kappa.engine.context import AsyncJobContext, JobContext, Running, current
from kappa.engine.errors import LeaseLost
from kappa.engine.fleet import wire
from kappa.engine.fleet.journal import Entry, Journal, Undelivered
from kappa.engine.fleet.link import Link, NotDone, Refused
from kappa.engine.fleet.remote_office import RemoteOffice
from kappa.engine.fleet.terms import Outcome, claimed_of, seconds_left, settlement
from kappa.engine.fleet.wire import Verdict
from kappa.engine.model import JobState
from kappa.engine.registry import Handler
from kappa.engine.store.jobs import Finish
from kappa.engine.threads import BoundedThreads, Threads
from kappa.engine.waiting import happens

log = logging.getLogger(__name__)

STOPS_WITHIN = 35.0
"""Seconds that a tool run, or a coroutine, gets to end once it is told to."""
UNWRITABLE_FOR = 5.0


class Duty:
    """A task while it is held."""

    def __init__(
        self,
        entry: Entry,
        task: wire.Task,
        handler: Handler,
        link: Link,
        journal: Journal,
        threads: Threads,
        beside: BoundedThreads,
        forget: Callable[[wire.Task], None],
        *,
        reports_stale_timeout: bool = False,
    ) -> None:
        self.task = task
        self.running = Running(claimed_of(task, adopted=entry.begun_at is not None), handler, task.lane)
        self.held = True
        self.begun = entry.begun_at is not None
        self._entry = entry
        self._link = link
        self._journal = journal
        self._threads = threads
        self._over = asyncio.Event()
        self._told = asyncio.Event()
        self._settling = False
        self._releasing = False
        self._forget = forget
        self._reports_stale_timeout = reports_stale_timeout
        self._office = RemoteOffice(link, beside, task.checkpoint, self._over, self.hear)

    async def run(self) -> None:
        """From here to its end. Comes back when its slot is free again."""
        doing: asyncio.Future[Outcome | None] | None = None
        try:
            outcome = await self._begin()
            if outcome is None and self.held and not self._releasing:
                doing = self._start()
                outcome = await self._until_done(doing)
            self._office.close()
            if self._releasing:
                await self._release()
            elif outcome is not None and self.held and not self.running.lost:
                await self._settle(*settlement(self._link.place.worker, outcome))
            else:
                self.held = False
            if doing is not None and not doing.done() and not self._releasing:
                await asyncio.wait([doing])  # a thread that was told to stop has its slot until it did
        finally:
            self._office.close()
            if not self.held:
                await self._end()

    async def deliver(self, undelivered: Undelivered) -> None:
        """Only say how it ended: an earlier agent could not."""
        self._settling = True
        body = wire.CompleteTask if undelivered.call == "complete_task" else wire.FailTask
        await self._deliver(undelivered.call, body.model_validate(undelivered.body))
        if not self.held:
            await self._end()

    async def give_back(self) -> None:
        """Only let another worker have it."""
        await self._release()
        if not self.held:
            await self._end()

    async def drop(self) -> None:
        """It is somebody else's by now, or nobody's: end what is left of it."""
        self.held = False
        await self._end()

    def hear(self, verdict: Verdict, reason: str | None) -> None:
        """What the server says of it."""
        if self._settling or not self.held:
            return  # the settlement's own answer tells
        running = self.running
        if verdict is Verdict.CANCEL:
            if running.cancel_reason is None:
                log.info("task %d is cancelled: %s", self.task.task, reason, extra=running.facts)
                running.cancel_reason = reason or "cancelled"
            return
        if not running.lost:
            why = "its time is over" if verdict is Verdict.TIMED_OUT else "its lease is gone"
            log.warning("task %d is not ours any more: %s", self.task.task, why, extra=running.facts)
        running.lost = True
        self.held = False
        self._over.set()
        self._told.set()

    def let_go(self) -> None:
        """The worker ends: stop, and give the task back."""
        if not self._settling and self.held:
            self._releasing = True
            self.running.lost = True
            self._over.set()
            self._told.set()

    async def _begin(self) -> Outcome | None:
        """Write it down and say that it begins; an outcome if it is over before it began."""
        if self.begun:
            self.running.look_for_it()
            return None
        try:
            await self._write(self._entry)
            answer = await self._link.until_answered("update_task", self._start_report(), wire.Updated, self._over)
            if answer is None:
                return None
            self._entry = self._entry.model_copy(update={"begun_at": time.time()})
            await self._write(self._entry)
        except Refused as error:
            log.warning("task %d doesn't begin: %s", self.task.task, error, extra=self.running.facts)
            self.held = False
            return None
        except OSError as error:
            # The server may well give it to us again at once.
            log.error("task %d can't be written down: %s", self.task.task, error, extra=self.running.facts)
            await happens(self._over, UNWRITABLE_FOR)
            self._releasing = True
            return None
        self.begun = True
        running = self.running
        running.started = True
        running.begun = time.monotonic()
        running.deadline = running.begun + seconds_left(self.task)
        if answer.cancel is not None:
            return Finish(*running.held, JobState.CANCELLED, reason=answer.cancel)
        log.info("task %d begins", self.task.task, extra=running.facts)
        return None

    def _start_report(self) -> wire.UpdateTask:
        own = self.running.handler.stale_timeout
        if own is None or not self._reports_stale_timeout:
            return wire.UpdateTask(**self._whose(), started=True)
        seconds = min(own.total_seconds(), wire.NO_TIMEOUT)
        return wire.UpdateTask(**self._whose(), started=True, stale_timeout=seconds)

    def _start(self) -> "asyncio.Future[Outcome | None]":
        if self.running.handler.is_async:
            return asyncio.create_task(self._on_loop(), name=f"task {self.task.task}")
        loop = asyncio.get_running_loop()
        return self._threads.submit(lambda: self._in_thread(loop))

    async def _until_done(self, doing: "asyncio.Future[Outcome | None]") -> Outcome | None:
        """How it ended, by itself or because it was told to."""
        told = asyncio.create_task(self._told.wait())
        running = self.running
        try:
            left = None if running.deadline == math.inf else max(0.0, running.deadline - time.monotonic())
            await asyncio.wait([doing, told], timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            told.cancel()
        if doing.done():
            return doing.result()
        if not running.lost:
            running.stopped = True
        self._over.set()
        if running.handler.is_async:
            doing.cancel()
        if running.handler.is_async or running.handler.adoptable:
            await asyncio.wait([doing], timeout=STOPS_WITHIN)
        return attempt.timed_out(running) if running.stopped else None

    async def _on_loop(self) -> Outcome | None:
        running, handler = self.running, self.running.handler
        current.set(running)
        context = AsyncJobContext(running, self._office)
        try:
            if handler.takes_payload:
                value = await handler.function(context, handler.load_payload(running.claimed.payload))
            else:
                value = await handler.function(context)
            return attempt.of_value(running, value)
        except LeaseLost:
            running.lost = True
            return None
        except BaseException as error:
            # Not even SystemExit: a handler's end isn't the worker's.
            return attempt.of_error(running, error)

    def _in_thread(self, loop: asyncio.AbstractEventLoop) -> Outcome | None:
        running, handler = self.running, self.running.handler
        token = current.set(running)
        context = JobContext(running, self._office, loop)
        try:
            if handler.takes_payload:
                value = handler.function(context, handler.load_payload(running.claimed.payload))
            else:
                value = handler.function(context)
            return attempt.of_value(running, value)
        except LeaseLost:
            running.lost = True
            return None
        except BaseException as error:
            return attempt.of_error(running, error)
        finally:
            current.reset(token)

    async def _settle(self, call: str, said: dict[str, Any]) -> None:
        self._settling = True
        body = (wire.CompleteTask if call == "complete_task" else wire.FailTask).model_validate(said)
        try:
            await self._tell(call, body, patient=False)
        except NotDone as error:
            if error.passes:
                await self._keep(Undelivered(call=call, body=json.loads(body.model_dump_json(exclude_unset=True))))
            await self._deliver(call, body)

    async def _keep(self, undelivered: Undelivered) -> None:
        """Once the settlement takes longer, a crash must not lose it."""
        self._entry = self._entry.model_copy(update={"undelivered": undelivered})
        try:
            await self._write(self._entry)
        except OSError as error:
            log.error("how task %d ended can't be written down: %s", self.task.task, error, extra=self.running.facts)

    async def _deliver(self, call: str, body: wire.Said) -> None:
        try:
            await self._tell(call, body, patient=True)
        except Refused as error:
            if error.lost or call != "complete_task":
                self.held = False
                log.warning("task %d can't be settled: %s", self.task.task, error, extra=self.running.facts)
                return
            text = f"what the handler gave can't be kept: {error}"[: wire.SUMMARY_LIMIT]
            await self._deliver("fail_task", wire.FailTask(**self._whose(), outcome="fatal", summary=text))

    async def _release(self) -> None:
        self._settling = True
        try:
            await self._tell("release_task", wire.ReleaseTask(**self._whose(), started=self.begun), patient=True)
        except Refused as error:
            self.held = False
            log.warning("task %d can't be released: %s", self.task.task, error, extra=self.running.facts)

    async def _tell(self, call: str, body: wire.Said, *, patient: bool) -> None:
        if patient:
            answer = await self._link.until_answered(call, body, wire.Settled)
        else:
            answer = await self._link.once(call, body, wire.Settled)
        assert answer is not None
        self.held = False
        log.info("task %d: %s", self.task.task, answer.state, extra=self.running.facts)

    async def _end(self) -> None:
        def clear() -> None:
            if self.task.tool is not None:
                self._forget(self.task)
            self._journal.remove(self._entry)

        await asyncio.shield(self._threads.submit(clear))

    async def _write(self, entry: Entry) -> None:
        await self._threads.submit(lambda: self._journal.write(entry))

    def _whose(self) -> dict[str, Any]:
        return {"worker": self._entry.worker, "task": self.task.task, "token": self.task.token}
