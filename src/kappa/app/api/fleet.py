"""The fleet's workers, for those who run the server. What the workers say is heard elsewhere: `kappa.engine.fleet`."""

from typing import Annotated

from fastapi import Query

from kappa.app.api.routing import Routes, Uses
from kappa.app.api.schemas import FleetPage, FleetWorkerView
from kappa.app.permissions import Permission
from kappa.engine.fleet.wire import Worker

routes = Routes("fleet", "/admin/fleet")


@routes.get("/workers", Permission.FLEET_VIEW)
async def workers(
    services: Uses,
    after: Annotated[Worker | None, Query(description="`next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> FleetPage:
    """Remote workers that gave a sign of life in the last five minutes, by name."""
    found = await services.fleet_workers.list(after=after or "", limit=limit)
    return FleetPage(
        workers=await services.fleet_workers.count(),
        items=[FleetWorkerView.model_validate(one) for one in found],
        next=found[-1].worker if len(found) == limit else None,
    )
