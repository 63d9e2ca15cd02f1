"""A fleet's worker on a machine without a database: asks its server for tasks, does them, beats for them meanwhile.

hello ─▶ what an earlier agent left ─▶ ask, beat ─▶ drain
                                        │    ▲
                                        ▼    │
                                        duties
"""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from kappa.engine.errors import EngineError
from kappa.engine.fleet import wire
from kappa.engine.fleet.crew import Crew
from kappa.engine.fleet.duty import STOPS_WITHIN, Duty
from kappa.engine.fleet.journal import Journal
from kappa.engine.fleet.link import Link, NotDone, Pace, Refused, Unreachable
from kappa.engine.fleet.recovery import recover
from kappa.engine.fleet.tool_attempt import FleetBench
from kappa.engine.registry import Registry
from kappa.engine.tools import KIND
from kappa.engine.waiting import end, happens

log = logging.getLogger(__name__)

LONG_POLL_MARGIN = 15.0
"""Seconds beyond its wait that an answer to `request_task` may take."""
ASK_AGAIN = 1.0
"""Seconds between two questions where the server doesn't let us wait for an answer."""
BEAT_WITHIN = 10.0
SPREAD = 4.0
"""When a server goes away all who wait for it lose their connections in the same moment; they don't come back so."""
LAST_WORDS = 15.0
"""Seconds that an agent that ends tries to say how its tasks ended. What is left is in the journal."""


class OtherProtocol(EngineError):
    """The server speaks another version of the wire."""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """How much an agent takes on."""

    able: wire.Able
    slots: int = 1
    version: str = ""
    grace: float = 30.0
    once: bool = False
    """End as soon as there is nothing to do."""


class Agent:
    """One agent. `run` it on an event loop; `stop` it from anywhere on that loop."""

    def __init__(
        self,
        config: AgentConfig,
        link: Link,
        journal: Journal,
        registry: Registry,
        bench: FleetBench | None = None,
        greet: Callable[[wire.Welcome], None] | None = None,
    ) -> None:
        self._config = config
        self._link = link
        self._worker = link.place.worker
        self._greet = greet
        if bench is not None:
            registry.add(KIND, bench.handle, adoptable=True)
        self._crew = Crew(link, journal, registry, bench, config.slots)
        self._stop = asyncio.Event()
        self._unanswered: wire.RequestTask | None = None
        self._beat_seconds = 15.0

    def stop(self) -> None:
        """Drain: ask for nothing more, give what runs its grace, release the rest, end."""
        self._stop.set()

    async def run(self) -> None:
        """Work until stopped. A token that doesn't count, or doesn't any more, raises `Refused`."""
        with self._crew as crew:
            welcome = await self._hello()
            if welcome is None:
                return
            self._beat_seconds = welcome.beat_seconds
            crew.reports_stale_timeout = welcome.accepts_stale_timeout
            beating = asyncio.create_task(self._beat(welcome.tasks_per_beat), name="beat")
            asking = asyncio.create_task(self._recover_and_ask(welcome), name="ask")
            stopped = asyncio.create_task(self._stop.wait())
            grace = 0.0  # if the server wants no more of us, nobody waits for how our tasks end
            try:
                done, _ = await asyncio.wait([beating, asking, stopped], return_when=asyncio.FIRST_COMPLETED)
                for task in done - {stopped}:
                    task.result()  # raises what ended it
                grace = self._config.grace
            finally:
                self._stop.set()
                await end([stopped, asking])
                await self._drain(grace)
                await end([beating, *crew.at_work])

    async def _hello(self) -> wire.Welcome | None:
        able = self._config.able
        hello = wire.Hello(
            worker=self._worker, version=self._config.version, slots=self._config.slots, **able.model_dump()
        )
        pace, welcome = Pace(), None
        while welcome is None:
            try:
                welcome = await self._link.once("hello", hello, wire.Welcome)
            except NotDone as error:
                if not error.passes or (isinstance(error, Refused) and error.status == 404):
                    raise  # nothing that speaks the wire is at this address
                if isinstance(error, Refused):
                    log.warning("the server doesn't take this worker now: %s", error)
                if await happens(self._stop, pace.after(error)):
                    return None
        if welcome.protocol != wire.PROTOCOL:
            raise OtherProtocol(
                f"{self._link.place.url} speaks version {welcome.protocol} of the wire, and this worker {wire.PROTOCOL}"
            )
        if not welcome.kinds:
            log.warning("no fleet lane has a kind that this worker does and its token allows: nothing comes for now")
        if self._greet is not None:
            self._greet(welcome)
        return welcome

    async def _recover_and_ask(self, welcome: wire.Welcome) -> None:
        await recover(self._crew)
        while True:
            free = self._config.slots - len(self._crew)
            if free > 0:
                if not await self._ask(min(free, welcome.tasks_per_request), welcome.wait_seconds):
                    return
            else:
                self._crew.freed.clear()
                await self._crew.freed.wait()

    async def _ask(self, count: int, wait: float) -> bool:
        """One question to its answer, however often it must be put. False if there is nothing, and nothing is wanted
        but what there is.
        """
        request = wire.RequestTask(
            worker=self._worker,
            request_id=secrets.token_hex(16),
            count=count,
            wait=0 if self._config.once else wait,
            **self._config.able.model_dump(),
        )
        begun, pace, doubtful = time.monotonic(), Pace(), False
        while True:
            was_away = self._link.away
            self._unanswered = request
            try:
                answer = await self._link.once(
                    "request_task", request, wire.Tasks, within=request.wait + LONG_POLL_MARGIN
                )
                break
            except NotDone as error:
                if not error.passes:
                    raise
                pause = pace.after(error)
                if isinstance(error, Unreachable):
                    doubtful = True
                    pause += 0 if was_away else random.uniform(0, SPREAD)  # noqa: S311
                elif not doubtful:
                    self._unanswered = None  # refused, and never done
                await asyncio.sleep(pause)
        self._unanswered = None
        for task in answer.tasks:
            self._crew.take(task)
        if not answer.tasks:
            if self._config.once and not len(self._crew):
                return False
            if time.monotonic() - begun < max(request.wait, ASK_AGAIN):  # sooner than it would have waited
                self._crew.freed.clear()
                await happens(self._crew.freed, answer.retry_after or ASK_AGAIN * random.uniform(0.8, 1.2))  # noqa: S311
        return True

    async def _beat(self, most: int) -> None:
        due = time.monotonic() + random.uniform(0, self._beat_seconds)  # noqa: S311
        pace = Pace()
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            try:
                await self._beat_once([duty for duty in self._crew.held if duty.begun], most)
                pace = Pace()
                due = max(due + self._beat_seconds, time.monotonic())
            except NotDone as error:
                if not error.passes:
                    raise
                # The next beat is not later than it would have been: three that are missed lose the tasks.
                due = time.monotonic() + min(pace.after(error), self._beat_seconds)

    async def _beat_once(self, duties: list[Duty], most: int) -> None:
        for at in range(0, max(1, len(duties)), most):
            part = {duty.task.task: duty for duty in duties[at : at + most]}
            said = await self._link.once(
                "beat", self._beat_of(part.values()), wire.Beaten, within=min(BEAT_WITHIN, self._beat_seconds)
            )
            self._beat_seconds = said.beat_seconds
            for notice in said.notices:
                if (duty := part.get(notice.task)) is not None:
                    duty.hear(notice.verdict, notice.reason)

    def _beat_of(self, duties: Iterable[Duty]) -> wire.Beat:
        held = [wire.Held(task=duty.task.task, token=duty.task.token) for duty in duties]
        return wire.Beat(worker=self._worker, tasks=held)

    async def _drain(self, grace: float) -> None:
        crew = self._crew
        giving_back = asyncio.create_task(self._give_unanswered_back())
        if doing := crew.at_work:
            log.info("draining: %d tasks have %.0f s to end", len(doing), grace)
            await asyncio.wait(doing, timeout=grace)
        for duty in crew.duties:
            duty.let_go()
        stops = STOPS_WITHIN if any(duty.task.tool is not None for duty in crew.duties) else 0.0
        await asyncio.wait([giving_back, *crew.at_work], timeout=LAST_WORDS + stops)
        await end([giving_back])
        if crew.held:
            log.warning("%d tasks are left in the journal: the server could not be told", len(crew.held))

    async def _give_unanswered_back(self) -> None:
        """A request whose answer was not waited for may have been given tasks. The same again tells which."""
        if self._unanswered is None:
            return
        request = self._unanswered.model_copy(update={"wait": 0.0})
        with suppress(NotDone):
            for task in (await self._link.once("request_task", request, wire.Tasks)).tasks:
                body = wire.ReleaseTask(worker=self._worker, task=task.task, token=task.token, started=False)
                with suppress(Refused):
                    await self._link.until_answered("release_task", body, wire.Settled)
