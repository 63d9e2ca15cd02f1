"""Threads for handlers that block.

There is always a thread for a job that was claimed: slots bound how many run, and a parent that waits for its
children keeps its thread while others run. So the number of threads isn't capped here, only how many idle ones stay.
"""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

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
