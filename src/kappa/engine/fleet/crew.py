"""The duties of one agent: begun, counted, and gone when they ended."""

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import ExitStack
from typing import Any, Self

from kappa.engine.fleet import wire
from kappa.engine.fleet.duty import Duty
from kappa.engine.fleet.journal import Entry, Journal
from kappa.engine.fleet.link import Link
from kappa.engine.fleet.tool_attempt import FleetBench
from kappa.engine.registry import Registry
from kappa.engine.threads import BoundedThreads, Threads

log = logging.getLogger(__name__)

THREADS_BESIDE = 32


class Crew:
    """Whoever is at work. A duty has its slot until its work has really ended."""

    def __init__(
        self, link: Link, journal: Journal, registry: Registry, bench: FleetBench | None, keep_threads: int
    ) -> None:
        self.link = link
        self.journal = journal
        self.registry = registry
        self.bench = bench
        self.threads = Threads(keep_threads)
        self.freed = asyncio.Event()
        self.reports_stale_timeout = False
        """Whether the server accepts a kind's own stale_timeout."""
        self._beside = BoundedThreads(THREADS_BESIDE)
        self._duties: dict[tuple[int, int], tuple[Duty, asyncio.Task[None]]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.callback(self.threads.close)
        self._stack.callback(self._beside.shutdown)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __len__(self) -> int:
        return len(self._duties)

    @property
    def duties(self) -> list[Duty]:
        return [duty for duty, _ in self._duties.values()]

    @property
    def at_work(self) -> list["asyncio.Task[None]"]:
        return [task for _, task in self._duties.values()]

    @property
    def held(self) -> list[Duty]:
        """Those whose task is still ours."""
        return [duty for duty in self.duties if duty.held]

    def take(self, task: wire.Task) -> None:
        """A task that the server gave."""
        if (task.task, task.token) in self._duties:
            return
        if self.registry.find(task.kind) is None:
            log.error("task %d is of the kind %s, for which there is no handler here", task.task, task.kind)
            return  # its lease runs out: giving it back would bring it here again at once
        duty = self.duty(Entry.of(self.link.place.url, self.link.place.worker, task), task)
        self.begin(duty, duty.run())

    def duty(self, entry: Entry, task: wire.Task) -> Duty:
        if self.bench is not None:
            self.bench.expect(task)
        forget = self.bench.forget if self.bench is not None else _nothing
        handler = self.registry.get(task.kind)
        return Duty(
            entry, task, handler, self.link, self.journal, self.threads, self._beside, forget,
            reports_stale_timeout=self.reports_stale_timeout,
        )  # fmt: skip

    def begin(self, duty: Duty, work: Coroutine[Any, Any, None]) -> None:
        held = (duty.task.task, duty.task.token)
        doing = asyncio.create_task(work, name=f"duty {duty.task.task}")
        self._duties[held] = (duty, doing)

        def done(task: "asyncio.Task[None]") -> None:
            del self._duties[held]
            self.freed.set()
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("task %d was left: %s", held[0], error, exc_info=error)

        doing.add_done_callback(done)


def _nothing(task: wire.Task) -> None:
    pass
