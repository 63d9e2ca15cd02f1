"""Handlers in child processes, for work that keeps a core busy or must be killable.

A child is started when a job needs one and kept for the next. It runs one handler at a time and asks its parent, over a
pipe, for everything that touches the database; the parent answers through the job's ordinary context, so leases guard
a child's writes as they do a thread's.
"""

import multiprocessing
import os
import pickle
import threading
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from multiprocessing.connection import Connection as PipeEnd
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, cast

import psycopg
from psycopg import Connection

from kappa.engine import attempt
from kappa.engine.context import JobContext, Running, current
from kappa.engine.errors import EngineError, JobFailed, LeaseLost
from kappa.engine.model import JobState
from kappa.engine.store import jobs
from kappa.engine.store.jobs import Finish
from kappa.engine.threads import BoundedThreads
from kappa.pg import keepalive
from kappa.pg.ops import run
from kappa.pg.queries import Row

if TYPE_CHECKING:
    Pipe = PipeEnd[Any, Any]
else:
    Pipe = PipeEnd

# What a child may ask of its job's context.
QUESTIONS = ("progress", "checkpoint", "last_checkpoint", "spawn", "gather", "raise_if_cancelled")


_child_threads = cache(BoundedThreads)

COMMITTED = object()
"""What `call` gives for a handler whose own transaction settled its job."""


class ChildDied(EngineError):
    """The process of a handler ended without a word."""


class ChildContext:
    """A job's context as seen from the child: every question goes to the parent."""

    def __init__(self, pipe: Pipe, facts: dict[str, Any]) -> None:
        self._pipe = pipe
        self._url: str = facts["url"]
        self._job_threads: int = facts["job_threads"]
        self._token: int = facts["token"]
        self._connection: Connection[Row] | None = None
        self.job_id: int = facts["job_id"]
        self.kind: str = facts["kind"]
        self.lane: str = facts["lane"]
        self.attempt: int = facts["attempt"]
        self.max_attempts: int = facts["max_attempts"]
        self.adopted: bool = facts["adopted"]

    @property
    def facts(self) -> dict[str, int | str]:
        return {"job": self.job_id, "attempt": self.attempt, "lane": self.lane, "kind": self.kind}

    def _ask(self, name: str, *args: Any, **named: Any) -> Any:
        self._pipe.send(("ask", name, args, named))
        good, answer = self._pipe.recv()
        if not good:
            raise answer
        return answer

    @property
    def cancelled(self) -> bool:
        return self._ask("cancelled")

    @property
    def lease_lost(self) -> bool:
        return self._ask("lease_lost")

    @property
    def threads(self) -> BoundedThreads:
        """As in a thread, and the child's own."""
        return _child_threads(self._job_threads)

    def raise_if_cancelled(self) -> None:
        self._ask("raise_if_cancelled")

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        self._ask("progress", done, total, message)

    def checkpoint(self, value: Any) -> None:
        self._ask("checkpoint", value)

    def last_checkpoint(self) -> Any:
        return self._ask("last_checkpoint")

    def spawn(self, kind: str, payload: Any = None, *, key: str | None = None, priority: int = 0) -> str:
        return self._ask("spawn", kind, payload, key=key, priority=priority)

    def gather(self, *keys: str) -> list[Any]:
        return self._ask("gather", *keys)

    @contextmanager
    def transaction(self) -> Generator[Connection[Row]]:
        """As in a thread, on a connection of the child's own."""
        if self.lease_lost:
            raise LeaseLost(f"the lease of job {self.job_id} is lost: nothing more can be written")
        if self._connection is None:
            self._connection = psycopg.connect(
                self._url,
                autocommit=True,
                application_name=f"kappa job {self.job_id}",
                **keepalive.options(self._url, direct=False),
            )
            # Begun here, so that the handler's blocks are savepoints and only `end` commits.
            self._connection.execute("BEGIN")
            run(self._connection, jobs.share_lease(self._token))
        with self._connection.transaction():
            yield self._connection

    def end(self, value: Any) -> tuple[Any, ...]:
        """What to tell the parent when the handler returned; its own transaction ends with it."""
        if self._connection is None:
            return ("returned", value)
        outcome = self._ask("outcome", value)
        with self._connection as connection:
            if not isinstance(outcome, Finish) or outcome.state is not JobState.SUCCEEDED:
                connection.rollback()
                return ("returned", value)
            if not run(connection, jobs.settle_own(outcome, 0.0)):
                connection.rollback()
                raise LeaseLost(f"the lease of job {self.job_id} is lost: nothing was written")
        return ("committed",)

    def abandon(self) -> None:
        if self._connection is not None:
            self._connection.close()


class Child:
    """A child process and the way to speak with it."""

    def __init__(self, process: SpawnProcess, pipe: Pipe) -> None:
        self.process = process
        self.pipe = pipe
        self.at_rest = True
        """Whether it waits for a job."""
        self.killed = False

    def kill(self) -> None:
        self.killed = True
        self.process.kill()

    def end(self) -> None:
        self.kill()
        self.process.join()
        self.pipe.close()


class Children:
    """The child processes of one worker.

    A child is idle or busy with one attempt, and changes from one to the other under the lock. It is also killed under
    the lock, by its attempt: a time-out ends the child that works on that attempt, or none. Only a child that has
    finished its job and was not killed gets another.
    """

    def __init__(self, url: str, job_threads: int, set_up: Callable[[], object] | None = None) -> None:
        self._url = url
        self._set_up = set_up
        self._job_threads = job_threads
        self._context = multiprocessing.get_context("spawn")
        self._idle: list[Child] = []
        self._busy: dict[Running, Child] = {}
        self._closed = False
        self._lock = threading.Lock()

    def call(self, running: Running, context: JobContext) -> Any:
        """In a thread: run the handler in a child and give what it returned, or raise what it raised."""
        child: Child | None = None
        message = self._message(running, context)
        try:
            with self._child_for(running) as child:
                child.pipe.send_bytes(message)
                last_word = self._converse(child.pipe, context, running)
                child.at_rest = True
        except (EOFError, OSError) as error:
            if child is None:
                raise
            code = child.process.exitcode
            raise ChildDied(f"the process of job {context.job_id} ended with code {code}") from error
        match last_word:
            case ("committed",):
                return COMMITTED
            case ("returned", value):
                return value
            case ("not there", trace):
                error = _not_there(running)
                error.add_note(trace)
                raise error
            case ("raised", error, trace):
                error.add_note(trace)
                raise error
            case other:
                raise EngineError(f"a child said {other!r}")

    def kill(self, running: Running) -> None:
        """End the child that works on this attempt. One that it gets later sees that the time is up."""
        with self._lock:
            if (child := self._busy.get(running)) is not None:
                child.kill()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy.values())
            for child in busy:
                child.kill()
        for child in idle:
            child.end()
        for child in busy:
            child.process.join()

    def _message(self, running: Running, context: JobContext) -> bytes:
        """What a child is to do."""
        handler = running.handler
        payload = handler.load_payload(running.claimed.payload) if handler.takes_payload else None
        facts = {
            name: getattr(context, name) for name in ("job_id", "kind", "lane", "attempt", "max_attempts", "adopted")
        }
        facts |= {"url": self._url, "job_threads": self._job_threads, "token": running.claimed.token}
        try:
            return bytes(ForkingPickler.dumps((handler.function, handler.takes_payload, payload, facts)))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise _not_there(running) from error

    @contextmanager
    def _child_for(self, running: Running) -> Generator[Child]:
        child = self._take(running)
        child.at_rest = False
        try:
            yield child
        finally:
            with self._lock:
                del self._busy[running]
                reusable = child.at_rest and not child.killed and child.process.is_alive()
                if reusable:
                    self._idle.append(child)
            if not reusable:
                child.end()

    def _take(self, running: Running) -> Child:
        with self._lock:
            while self._idle:
                child = self._idle.pop()
                if child.process.is_alive():
                    return self._make_busy(running, child)
                child.pipe.close()
        ours, theirs = cast("tuple[Pipe, Pipe]", self._context.Pipe())
        process = self._context.Process(target=serve, args=(theirs, self._set_up), name="kappa-child", daemon=True)
        process.start()
        theirs.close()
        with self._lock:
            return self._make_busy(running, Child(process, ours))

    def _make_busy(self, running: Running, child: Child) -> Child:
        self._busy[running] = child
        if running.stopped or self._closed:  # `kill` or `close` came too early to find it
            child.kill()
        return child

    def _converse(self, pipe: Pipe, context: JobContext, running: Running) -> tuple[Any, ...]:
        """Answer what the child asks, and give its last word."""
        while True:
            match pipe.recv():
                case ("ask", "outcome", (value,), _):
                    running.ending = True
                    pipe.send((True, attempt.of_value(running, value)))
                case ("ask", str() as name, args, named):
                    pipe.send(_answer(context, name, args, named))
                case last_word:
                    return last_word


def _not_there(running: Running) -> JobFailed:
    return JobFailed(
        f"the handler of {running.handler.kind!r}, or its payload, can't be found in another process: in a process "
        "lane it is a function of a module, not one inside another function",
        retry=False,
    )


def _answer(context: JobContext, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[bool, Any]:
    try:
        if name in ("cancelled", "lease_lost"):
            return True, getattr(context, name)
        if name not in QUESTIONS:
            raise EngineError(f"a child asked for {name!r}")
        return True, getattr(context, name)(*args, **named)
    except Exception as error:
        return False, error


def serve(pipe: Pipe, set_up: Callable[[], object] | None = None) -> None:
    """In the child: handlers, one after the other, until the parent is gone."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if set_up is not None:
        set_up()
    while True:
        try:
            function, takes_payload, payload, facts = pipe.recv()
        except EOFError:
            return
        except Exception:  # a name that its module hasn't got, or a module whose import raises whatever it likes
            pipe.send(("not there", traceback.format_exc()))
            continue
        context = ChildContext(pipe, facts)
        current.set(context)
        try:
            value = function(context, payload) if takes_payload else function(context)
            answer = context.end(value)
        except BaseException as error:
            context.abandon()
            answer = ("raised", _portable(error), traceback.format_exc())
        try:
            pipe.send(answer)
        except (pickle.PicklingError, TypeError, AttributeError, ValueError) as unpicklable:
            pipe.send(("raised", JobFailed(f"what the handler gave can't leave its process: {unpicklable}"), ""))


def _end_with_parent() -> None:
    """A killed worker can't kill its children, and what they go on doing somebody else will do again."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


def _portable(error: BaseException) -> BaseException:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301
    except Exception:
        return attempt.Untold(type(error).__name__)
    return error
