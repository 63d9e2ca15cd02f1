"""The fleet as people see it: which workers there are."""

from kappa.engine.fleet import store
from kappa.engine.fleet.dispatch import Fleet
from kappa.engine.fleet.store import FleetWorker


class FleetWorkers:
    """Remote workers that gave a sign of life lately."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def list(self, *, after: str = "", limit: int = 100) -> list[FleetWorker]:
        return await self._fleet.do(store.workers(after=after, limit=limit))

    async def count(self) -> int:
        return await self._fleet.do(store.count_workers())
