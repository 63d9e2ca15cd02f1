"""The cluster at a glance: lanes, workers, throughput, and what needs somebody's attention.

However many look, the database is asked once in a while for all of them; however many jobs there are, none is counted
beyond what a person reads.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import psycopg

from kappa.engine import AsyncClient, Executor, JobState, Lane, Schedule, WorkerSeen
from kappa.pg import PgError

log = logging.getLogger(__name__)

COUNTED = 10_000
"""Jobs of a lane and state that are counted; more are only known to be more."""
REMEMBERED = 1.0
"""Seconds that a look lasts for everybody."""
SAMPLED = 15.0
HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class LaneGlance:
    """A lane, and its live jobs by state, counted up to `COUNTED`."""

    lane: Lane
    jobs: dict[JobState, int]
    workers: int
    """Processes that claim for it; remote workers are not among them."""

    def of(self, state: JobState) -> int:
        return self.jobs.get(state, 0)


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that needs somebody."""

    level: Literal["bad", "warn", "info"]
    text: str
    lane: str | None = None
    state: JobState | None = None
    """Where to look: at the lane, or at its jobs in this state."""


@dataclass(frozen=True, slots=True)
class Glance:
    """The cluster at one instant."""

    leader: WorkerSeen | None
    workers: list[WorkerSeen]
    lanes: list[LaneGlance]
    per_minute: list[float]
    """Jobs that ended, per minute, over the last hour or since this server began; the last is the newest."""
    alarms: list[Alarm]


class Pulse:
    """How many jobs end, looked at now and then by every server for itself."""

    def __init__(self, count: Callable[[], Awaitable[int]]) -> None:
        self._count = count
        self._seen: deque[tuple[float, int]] = deque(maxlen=int(HOUR / SAMPLED) + 1)

    async def run_once(self, now: float | None = None) -> None:
        self._seen.append((time.monotonic() if now is None else now, await self._count()))

    def per_minute(self) -> list[float]:
        looks = list(self._seen)
        # What is counted less than before was reset, or a day's history was dropped: nothing is known of that moment.
        return [
            60 * max(0, after - before) / max(0.001, later - earlier)
            for (earlier, before), (later, after) in pairwise(looks)
        ]

    async def run(self) -> None:
        while True:
            try:
                await self.run_once()
            except (psycopg.Error, PgError) as error:
                log.warning("finished jobs could not be counted, next look soon: %s", error)
            await asyncio.sleep(SAMPLED)


class Overview:
    """What is going on, for people who look."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.pulse = Pulse(client.finished_so_far)
        self._known: tuple[float, Glance] | None = None
        self._looking = asyncio.Lock()

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator["Overview"]:
        beating = asyncio.create_task(self.pulse.run(), name="pulse")
        try:
            yield self
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    async def glance(self) -> Glance:
        """As it is, or was a moment ago."""
        async with self._looking:
            if self._known is None or time.monotonic() - self._known[0] >= REMEMBERED:
                self._known = (time.monotonic(), await self._look())
            return self._known[1]

    def forget(self) -> None:
        """Somebody changed something, and should see it."""
        self._known = None

    async def _look(self) -> Glance:
        workers = await self._client.workers()
        lanes = await self._client.lanes()
        depths = await self._client.depths(COUNTED)
        orphans = await self._client.orphans(COUNTED)
        unoffered = await self._client.unoffered(COUNTED)
        schedules = await self._client.schedules()
        glances = [
            LaneGlance(
                lane,
                {state: depths[lane.name, state] for state in JobState if (lane.name, state) in depths},
                sum(lane.name in worker.lanes for worker in workers),
            )
            for lane in lanes
        ]
        leader = next((worker for worker in workers if worker.leads), None)
        alarms = _alarms(leader, glances, orphans, unoffered, schedules)
        return Glance(leader, workers, glances, self.pulse.per_minute(), alarms)


def _alarms(
    leader: WorkerSeen | None, lanes: Sequence[LaneGlance], orphans: int, unoffered: Mapping[tuple[str, str], int],
    schedules: Sequence[Schedule],
) -> list[Alarm]:  # fmt: skip
    found: list[Alarm] = []
    if leader is None:
        found.append(Alarm("bad", "nobody leads: retries, schedules and lost leases wait until somebody does"))
    if orphans:
        text = f"{_jobs(orphans, 'wait')} to be adopted: the worker was lost"
        found.append(Alarm("bad", text, state=JobState.RUNNING))
    for one in lanes:
        name, waiting = one.lane.name, one.of(JobState.QUEUED)
        if not one.lane.is_open:
            queue = f", and {_jobs(waiting, 'wait')}" if waiting else ""
            held = "drained" if one.lane.held_by is None else f"held by job {one.lane.held_by}"
            found.append(Alarm("warn", f"the lane {name} is {held}{queue}", name))
        elif waiting and not one.workers and one.lane.executor is not Executor.FLEET:
            found.append(Alarm("bad", f"no worker serves the lane {name}, and {_jobs(waiting, 'wait')}", name))
        elif waiting >= COUNTED:
            found.append(Alarm("warn", f"more than {_jobs(COUNTED, 'wait')} in the lane {name}", name, JobState.QUEUED))
    for (name, kind), waiting in unoffered.items():
        text = f"no remote worker offers {kind}, and {_jobs(waiting, 'wait')} in the fleet lane {name}"
        found.append(Alarm("bad", text, name, JobState.QUEUED))
    if unapproved := sum(one.of(JobState.AWAITING_APPROVAL) for one in lanes):
        found.append(Alarm("info", f"{_jobs(unapproved, 'wait')} for approval", state=JobState.AWAITING_APPROVAL))
    found += [Alarm("warn", f"the schedule {one.name} can't launch: {one.error}") for one in schedules if one.failures]
    return found


def _jobs(count: int, do: str) -> str:
    return f"1 job {do}s" if count == 1 else f"{count:,} jobs {do}".replace(",", "\u202f")
