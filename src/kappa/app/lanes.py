"""Where a server's lanes run: on a loop in a thread of their own, or in processes of their own.

Either way the API's loop is not theirs: a handler that blocks stops its lane, not the answers to others.
"""

import asyncio
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from kappa.engine import Engine, Worker, WorkerConfig
from kappa.engine.loops import loop_factory
from kappa.pg import PoolUse

log = logging.getLogger(__name__)

RESTART_AFTER = 1.0
RESTART_AT_MOST = 30.0


class Lanes(Protocol):
    """Something that does jobs until it is told to stop."""

    def start(self) -> None: ...

    def stop(self) -> None:
        """Begin to drain; comes back at once."""
        ...

    async def ended(self) -> None:
        """Until everything has ended. Raises what ended it if nobody asked it to."""
        ...


class NoLanes:
    """An API alone."""

    def __init__(self) -> None:
        self._stopped = asyncio.Event()

    def start(self) -> None:
        pass

    def stop(self) -> None:
        self._stopped.set()

    async def ended(self) -> None:
        await self._stopped.wait()


class LanesInThread:
    """A worker on an event loop in a thread."""

    def __init__(self, engine: Engine, config: WorkerConfig) -> None:
        self._engine = engine
        self._config = config
        self._thread = threading.Thread(target=self._run, name="lanes")
        self._lock = threading.Lock()
        self._worker: tuple[asyncio.AbstractEventLoop, Worker] | None = None
        self._stopped = False
        self._error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            if self._worker is not None:
                loop, worker = self._worker
                with suppress(RuntimeError):  # the loop has ended already
                    loop.call_soon_threadsafe(worker.stop)

    async def ended(self) -> None:
        # Not in the default pool of threads: that one may be full of calls that wait for the lanes.
        while self._thread.is_alive():
            await asyncio.sleep(0.05)
        if self._error is not None:
            raise self._error

    def pools(self) -> Sequence[PoolUse]:
        """Its worker's pools as they are now."""
        with self._lock:
            return self._worker[1].pools() if self._worker is not None else ()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(self._work())
        except BaseException as error:  # handed to the loop that waits for the thread
            self._error = error

    async def _work(self) -> None:
        worker = self._engine.worker(self._config)
        with self._lock:
            self._worker = (asyncio.get_running_loop(), worker)
            if self._stopped:
                worker.stop()
        await worker.run()


class LanesInProcesses:
    """So many processes, each with a worker. One that dies is replaced; all end when this process does."""

    def __init__(self, command: list[str], count: int) -> None:
        self._command = command
        self._children: list[subprocess.Popen[bytes] | None] = [None] * count
        self._failures = [0] * count
        self._retry_at = [0.0] * count
        self._stopped = False

    def start(self) -> None:
        for place in range(len(self._children)):
            self._begin(place)

    def stop(self) -> None:
        self._stopped = True
        for child in self._children:
            if child is not None and child.poll() is None:
                child.terminate()

    async def ended(self) -> None:
        while True:
            for place, child in enumerate(self._children):
                if child is not None and child.poll() is not None:
                    self._buried(place, child)
                if self._children[place] is None and not self._stopped and time.monotonic() >= self._retry_at[place]:
                    await asyncio.to_thread(self._begin, place)
                    if self._stopped:  # meanwhile
                        self.stop()
            if self._stopped and not any(self._children):
                return
            await asyncio.sleep(0.1)

    def _begin(self, place: int) -> None:
        # The pipe is how a child learns that its parent is gone, also by SIGKILL.
        self._children[place] = subprocess.Popen([sys.executable, *self._command], stdin=subprocess.PIPE)

    def _buried(self, place: int, child: "subprocess.Popen[bytes]") -> None:
        if child.stdin is not None:
            child.stdin.close()
        self._children[place] = None
        if not self._stopped:
            self._failures[place] += 1
            pause = min(RESTART_AFTER * 2 ** (self._failures[place] - 1), RESTART_AT_MOST)
            self._retry_at[place] = time.monotonic() + pause
            log.error("a worker process ended with %d; the next begins in %.0f s", child.returncode, pause)
