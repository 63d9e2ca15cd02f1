"""Runs one attempt where its lane says, and hands its outcome in.

- `async`: the handler is a coroutine on the worker's loop; at its time-out it is cancelled.
- `thread`: the handler blocks a thread; at its time-out it is told.
- `process`: the handler runs in a child process, behind a thread that speaks for it; at its time-out it is killed.

An attempt that is stopped is settled at once, whatever the handler makes of it: with the lease gone, its later writes
are refused.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any

import psycopg

from kappa.engine import attempt
from kappa.engine.context import AsyncJobContext, JobContext, Running, current
from kappa.engine.desk import Desk
from kappa.engine.errors import LeaseLost
from kappa.engine.model import Executor, JobState
from kappa.engine.office import WorkerOffice
from kappa.engine.runners.process import COMMITTED, Children
from kappa.engine.store.jobs import Finish, PutBack
from kappa.engine.threads import Threads

log = logging.getLogger(__name__)

CANCEL_AGAIN = 1.0
"""Seconds that a handler on the loop has to end, each time that it is cancelled."""
CANCELS = 10
"""How often a handler is cancelled that goes on all the same."""


class SharedTasks:
    """Tasks for handlers on the loop.

    A task costs more than a short handler. So one that was done without ever waiting, and left no trace in the task's
    context variables, leaves its task to the next; any other has had its task for itself.
    """

    def __init__(self, attempt: Callable[[Running], Coroutine[Any, Any, None]]) -> None:
        self._attempt = attempt
        self._ready: deque[Running] = deque()
        self._handing_out = False
        self._turn = 0
        self._loop = asyncio.get_running_loop()

    def start(self, running: Running) -> None:
        self._ready.append(running)
        if not self._handing_out:
            self._hand_out()

    async def begun(self) -> None:
        while self._ready:
            await asyncio.sleep(0)

    def _hand_out(self) -> None:
        """One more task if there is work for it. It runs before this is called again, until it first waits."""
        self._turn += 1
        self._handing_out = bool(self._ready)
        if self._ready:
            asyncio.Task(self._work(), loop=self._loop)
            self._loop.call_soon(self._hand_out)

    async def _work(self) -> None:
        task = asyncio.current_task()
        while self._ready:
            turn, running = self._turn, self._ready.popleft()
            running.task = task
            current.set(running)
            untouched = copy_context()
            await self._attempt(running)
            if turn != self._turn or copy_context() != untouched:
                return


class Executors:
    """The ways to run an attempt in this process."""

    def __init__(self, desk: Desk, office: WorkerOffice, threads: Threads, children: Children) -> None:
        self._desk = desk
        self._office = office
        self._threads = threads
        self._children = children
        self._loop = asyncio.get_running_loop()
        self._tasks = SharedTasks(self._on_loop)
        self._stopping: set[asyncio.Task[None]] = set()

    def start(self, running: Running, executor: Executor) -> None:
        """One attempt, from here to its outcome at the desk."""
        if running.handler.is_async:
            self._tasks.start(running)
            return
        running.begins()
        if executor is Executor.PROCESS:
            attempting = self._in_thread(running, self._in_child)
        else:
            attempting = self._in_thread(running, self._call)
        running.task = asyncio.Task(attempting, loop=self._loop)

    async def begun(self) -> None:
        """Until everything that was started has a task."""
        await self._tasks.begun()

    async def cancel_all(self) -> None:
        """Cancel whatever runs. Returns when all of it has ended, or is given up."""
        left = [(running, running.task) for running in self._desk.running if running.task is not None]
        await asyncio.gather(*self._stopping, *(self._cancel(*attempt, even_ending=True) for attempt in left))

    async def _on_loop(self, running: Running) -> None:
        if running.stopped:  # before it had its turn
            return
        running.begins()
        handler = running.handler
        context = AsyncJobContext(running, self._office)
        outcome: Finish | PutBack | None = None
        try:
            if handler.takes_payload:
                value = await handler.function(context, handler.load_payload(running.claimed.payload))
            else:
                value = await handler.function(context)
            if (
                value is None
                and running.connection is None
                and handler.may_return_nothing
                and not running.stopped
                and not running.unawaited
            ):
                self._desk.succeed(running)
                return
            outcome = attempt.of_value(running, value)
        except LeaseLost:
            pass
        except asyncio.CancelledError as error:
            if running.task is not None and running.task.cancelling() and not running.stopped:
                await self._undo(running)
                raise
            outcome = attempt.of_error(running, error)  # of something that the handler itself cancelled
        except BaseException as error:
            # Not even SystemExit: a handler's end isn't the worker's.
            outcome = attempt.of_error(running, error)
        running.ending = True
        if running.stopped:  # settled when its time was up
            await self._undo(running)
        elif outcome is None:
            await self._give_up(running)
        elif running.connection is None:
            self._desk.settle(running, outcome)
        else:
            await self._settle_with_transaction(running, outcome)

    async def _settle_with_transaction(self, running: Running, outcome: Finish | PutBack) -> None:
        final = _success(outcome)
        try:
            committed = await self._office.end_transaction(running, final)
        except (psycopg.IntegrityError, psycopg.InternalError, psycopg.ProgrammingError) as error:
            self._desk.settle(running, attempt.of_error(running, error))  # the commit itself was refused
            return
        except psycopg.Error as error:
            # Whether the commit arrived is unknown. If it did, the job is settled; if not, the lease runs out.
            log.warning("job %d: its transaction ended with %s", running.claimed.id, error, extra=running.facts)
            await self._give_up(running)
            return
        if committed:
            self._desk.committed(running)
        elif final is not None:
            await self._give_up(running)
        else:
            self._desk.settle(running, outcome)

    def stop(self, running: Running, outcome: Callable[[Running], Finish | PutBack]) -> None:
        """Stop the work, and settle it so: cancel it on the loop, kill its process, tell its thread."""
        if running.ending:
            return  # the handler returned in time; its transaction is about to commit
        running.stopped = True
        if running.handler.is_async:
            if running.task is not None:
                stopping = self._loop.create_task(self._cancel(running, running.task))
                self._stopping.add(stopping)
                stopping.add_done_callback(self._stopping.discard)
        else:
            self._children.kill(running)
        if not running.finished:
            self._desk.settle(running, outcome(running))

    async def _cancel(self, running: Running, task: "asyncio.Task[None]", *, even_ending: bool = False) -> None:
        for _ in range(CANCELS):
            if even_ending or not running.ending:
                task.cancel()
            if (await asyncio.wait([task], timeout=CANCEL_AGAIN))[0]:
                return
            log.warning(
                "job %d: the handler is still running after it was stopped", running.claimed.id, extra=running.facts
            )
        log.error("job %d: the handler can't be stopped: left alone", running.claimed.id, extra=running.facts)

    async def _undo(self, running: Running) -> None:
        if running.connection is not None and self._office.has_transaction(running):
            await self._office.end_transaction(running, None)

    async def _give_up(self, running: Running) -> None:
        await self._undo(running)
        self._desk.lose(running)
        self._desk.forget(running)

    async def _in_thread(self, running: Running, call: Callable[[Running], Finish | PutBack | None]) -> None:
        outcome = await self._threads.submit(lambda: _as_current(running, call))
        if running.stopped:
            return  # settled when its time was up; until now it had its thread
        if isinstance(outcome, (Finish, PutBack)):
            self._desk.settle(running, outcome)
        elif running.lost:
            self._desk.lose(running)
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
        except BaseException as error:
            outcome = attempt.of_error(running, error)
        if running.connection is None:
            return outcome
        final = _success(outcome)
        try:
            if self._office.end_blocking_transaction(running, final):
                return None
            if final is None:
                return outcome
        except (psycopg.IntegrityError, psycopg.InternalError, psycopg.ProgrammingError) as error:
            return attempt.of_error(running, error)  # the commit itself was refused
        except psycopg.Error as error:
            log.warning("job %d: its transaction ended with %s", running.claimed.id, error, extra=running.facts)
        running.lost = True
        return None

    def _in_child(self, running: Running) -> Finish | PutBack | None:
        context = JobContext(running, self._office, self._loop)
        try:
            value = self._children.call(running, context)
            return None if value is COMMITTED else attempt.of_value(running, value)
        except LeaseLost:
            running.lost = True
            return None
        except BaseException as error:
            return attempt.of_error(running, error)


def _as_current(running: Running, call: Callable[[Running], Finish | PutBack | None]) -> Finish | PutBack | None:
    token = current.set(running)
    try:
        return call(running)
    finally:
        current.reset(token)  # an idle thread holds no payload


def _success(outcome: Finish | PutBack) -> Finish | None:
    return outcome if isinstance(outcome, Finish) and outcome.state is JobState.SUCCEEDED else None
