"""Lanes and workers: what is going on, and the knobs."""

from dataclasses import dataclass
from typing import Any

from kappa.app.errors import NotFound
from kappa.app.usecases import audit
from kappa.app.usecases.principal import Principal
from kappa.engine import AsyncClient, JobState, Lane, LaneError, WorkerSeen


@dataclass(frozen=True, slots=True)
class LaneNow:
    """A lane's row, how many live jobs it has in each state, and how many slots they take."""

    lane: Lane
    jobs: dict[JobState, int]
    slots_used: int
    """Fewer than run where parents wait for their children."""


@dataclass(frozen=True, slots=True)
class Status:
    """The cluster at one instant."""

    leader: str | None
    workers: list[WorkerSeen]
    lanes: list[LaneNow]


class Workers:
    """Lanes and workers of one engine, for people."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def status(self) -> Status:
        workers = await self._client.workers()
        leader = next((worker.owner for worker in workers if worker.leads), None)
        return Status(leader, workers, await self.lanes())

    async def lanes(self) -> list[LaneNow]:
        found = await self._client.lanes()
        counts = await self._client.counts()
        used = await self._client.slots_used()
        by_lane: dict[str, dict[JobState, int]] = {lane.name: {} for lane in found}
        for (lane, state), count in counts.items():
            by_lane.setdefault(lane, {})[state] = count
        return [LaneNow(lane, by_lane[lane.name], used.get(lane.name, 0)) for lane in found]

    async def edit_lane(self, who: Principal, name: str, changes: dict[str, Any]) -> LaneNow:
        """Change columns of a lane's row; every worker follows in its next cycle."""
        if name not in {lane.name for lane in await self._client.lanes()}:
            raise NotFound(f"there is no lane {name!r}")
        if not changes:
            raise LaneError(f"nothing to change in lane {name!r}")
        async with self._client.transaction() as connection:
            await self._client.edit_lane(name, connection=connection, **changes)
            await audit.record(connection, who, "lane.edit", name, **changes)
        return next(lane for lane in await self.lanes() if lane.lane.name == name)
