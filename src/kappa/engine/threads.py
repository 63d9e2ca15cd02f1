"""Threads for handlers that block, and for what handlers do beside themselves.

There is always a thread for a job that was claimed: slots bound how many run, and a parent that waits for its
children keeps its thread while others run. So the number of threads isn't capped here, only how many idle ones stay.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

_Work = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class Threads:
    """Runs functions in daemon threads and gives their results to the loop."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._idle: list[SimpleQueue[_Work | None]] = []
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._made = 0

    def submit(self, function: Callable[[], T]) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = self._loop.create_future()
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = SimpleQueue[_Work | None]()
            self._made += 1
            threading.Thread(target=self._serve, args=(inbox,), name=f"kappa-job-{self._made}", daemon=True).start()
        inbox.put((function, future))
        return future

    def close(self) -> None:
        with self._lock:
            self._keep = 0
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)

    def _serve(self, inbox: "SimpleQueue[_Work | None]") -> None:
        while (work := inbox.get()) is not None:
            function, future = work
            try:
                self._tell(future, function(), None)
            except BaseException as error:
                self._tell(future, None, error)
            del function, future, work
            with self._lock:
                if len(self._idle) >= self._keep:
                    return
                self._idle.append(inbox)

    def _tell(self, future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
        def deliver() -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(deliver)


class BoundedThreads(Executor):
    """At most so many daemon threads for all who submit; more work waits for one of them.

    Not a `ThreadPoolExecutor`, whose threads keep the process from ending for as long as one of them hangs.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._made = 0
        self._idle = 0
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        future: Future[T] = Future()
        context = copy_context()  # whose work it is, for logs; as `asyncio.to_thread` does

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(context.run(fn, *args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        with self._lock:
            if self._closed:
                raise RuntimeError("the worker has ended: no thread for its jobs any more")
            if self._idle:
                self._idle -= 1
            elif self._made < self._most:
                self._made += 1
                threading.Thread(target=self._serve, name=f"kappa-beside-{self._made}", daemon=True).start()
            self._work.put(work)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads end when they have done what was submitted. Nobody is waited for."""
        with self._lock:
            self._closed = True
            for _ in range(self._made):
                self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work
            with self._lock:
                self._idle += self._work.empty()
