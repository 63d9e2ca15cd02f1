"""Runs one attempt where its lane says, and hands its outcome in.

- `async`: the handler is a coroutine on the worker's loop; at its time-out it is cancelled.
- `thread`: the handler blocks a thread; at its time-out the job is settled and the thread told, its writes refused.
- `process`: the handler runs in a child process, behind a thread that speaks for it; at its time-out it is killed.
"""

import asyncio
import logging
from collections.abc import Callable

from kappa.engine import attempt
from kappa.engine.context import AsyncJobContext, JobContext, Running
from kappa.engine.desk import Desk
from kappa.engine.errors import LeaseLost
from kappa.engine.model import Executor, JobState
from kappa.engine.office import WorkerOffice
from kappa.engine.runners.process import COMMITTED, Children
from kappa.engine.store.jobs import Finish, PutBack
from kappa.engine.threads import Threads

log = logging.getLogger(__name__)


class Executors:
    """The ways to run an attempt in this process."""

    def __init__(self, desk: Desk, office: WorkerOffice, threads: Threads, children: Children) -> None:
        self._desk = desk
        self._office = office
        self._threads = threads
        self._children = children
        self._loop = asyncio.get_running_loop()

    async def run(self, running: Running, executor: Executor) -> None:
        """One attempt, from here to its outcome at the desk."""
        if running.handler.is_async:
            await self._on_loop(running)
        elif executor is Executor.PROCESS:
            await self._in_thread(running, self._in_child)
        else:
            await self._in_thread(running, self._call)

    async def _on_loop(self, running: Running) -> None:
        handler, claimed = running.handler, running.claimed
        context = AsyncJobContext(running, self._office)
        timer = asyncio.timeout(max(claimed.seconds_left, 0.0))
        try:
            async with timer:
                if handler.takes_payload:
                    value = await handler.function(context, handler.load_payload(claimed.payload))
                else:
                    value = await handler.function(context)
            outcome = attempt.of_value(running, value)
        except LeaseLost:
            return await self._give_up(running)
        except Exception as error:
            outcome = attempt.timed_out(running) if timer.expired() else attempt.of_error(running, error)
        if running.connection is not None:
            final = outcome if isinstance(outcome, Finish) and outcome.state is JobState.SUCCEEDED else None
            if await self._office.end_transaction(running, final):
                return self._desk.committed(running)
            if final is not None:
                return await self._give_up(running)
        self._desk.settle(running, outcome)
        return None

    async def _give_up(self, running: Running) -> None:
        if running.connection is not None and self._office.has_transaction(running):
            await self._office.end_transaction(running, None)
        if not running.lost:
            self._desk.lose(running)
        self._desk.forget(running)

    async def _in_thread(self, running: Running, call: Callable[[Running], Finish | PutBack | None]) -> None:
        work = self._threads.submit(lambda: call(running))
        try:
            outcome = await asyncio.wait_for(asyncio.shield(work), max(running.claimed.seconds_left, 0.0))
        except TimeoutError:
            running.timed_out = True
            self._children.kill(running)
            self._desk.settle(running, attempt.timed_out(running))
            await asyncio.wait([work])  # its thread is taken until it returns, whatever it returns
            work.exception()
            return
        if isinstance(outcome, (Finish, PutBack)):
            self._desk.settle(running, outcome)
        elif running.lost:
            self._desk.forget(running)
        else:
            self._desk.committed(running)

    def _call(self, running: Running) -> Finish | PutBack | None:
        """In a thread: the outcome to settle; None if the handler's transaction settled it, or the lease is lost."""
        handler = running.handler
        context = JobContext(running, self._office, self._loop)
        try:
            if handler.takes_payload:
                value = handler.function(context, handler.load_payload(running.claimed.payload))
            else:
                value = handler.function(context)
            outcome: Finish | PutBack = attempt.of_value(running, value)
        except LeaseLost:
            if running.connection is not None:
                self._office.end_blocking_transaction(running, None)
            running.lost = True
            return None
        except Exception as error:
            outcome = attempt.of_error(running, error)
        if running.connection is None:
            return outcome
        final = outcome if isinstance(outcome, Finish) and outcome.state is JobState.SUCCEEDED else None
        if self._office.end_blocking_transaction(running, final):
            return None
        if final is not None:
            running.lost = True
            return None
        return outcome

    def _in_child(self, running: Running) -> Finish | PutBack | None:
        context = JobContext(running, self._office, self._loop)
        try:
            value = self._children.call(running, context)
            return None if value is COMMITTED else attempt.of_value(running, value)
        except LeaseLost:
            running.lost = True
            return None
        except Exception as error:
            return attempt.of_error(running, error)
