"""The administration of lanes, workers and anybody's jobs."""

from importlib.metadata import version
from typing import Annotated

from fastapi import Path

from kappa.app.api.jobs import JobPath
from kappa.app.api.routing import Routes, Uses, Who
from kappa.app.api.schemas import (
    CancelJob,
    EditLane,
    JobView,
    LaneView,
    Line,
    PoolView,
    SetPriority,
    StatusView,
    WorkerView,
)
from kappa.app.permissions import Permission

routes = Routes("workers", "/admin/workers")

VERSION = version("kappa")
"""Read once: it is looked up in files, and a route must not wait for a disk."""


@routes.get("/status", Permission.WORKERS_VIEW)
async def status(services: Uses) -> StatusView:
    """Who works, who leads, what every lane has to do."""
    now = await services.workers.status()
    return StatusView(
        version=VERSION,
        leader=now.leader,
        workers=[WorkerView.model_validate(worker) for worker in now.workers],
        lanes=[LaneView.of(lane) for lane in now.lanes],
        pools=[PoolView.model_validate(use) for use in services.pools()],
    )


@routes.get("/lanes", Permission.WORKERS_VIEW)
async def lanes(services: Uses) -> list[LaneView]:
    """Every lane's row, and how many of its slots are used."""
    return [LaneView.of(lane) for lane in await services.workers.lanes()]


@routes.patch("/lanes/{name}", Permission.WORKERS_MANAGE, 404)
async def edit_lane(services: Uses, who: Who, name: Annotated[Line, Path()], body: EditLane) -> LaneView:
    """Change a lane while it works. `enabled: false` drains it, `enabled: true` resumes."""
    return LaneView.of(await services.workers.edit_lane(who, name, body.changes()))


@routes.post("/jobs/{job_id}/cancel", Permission.WORKERS_MANAGE, 404, 409)
async def cancel(services: Uses, who: Who, job_id: JobPath, body: CancelJob | None = None) -> JobView:
    """Cancel anybody's job."""
    job = await services.jobs.cancel(who, job_id, body.reason if body else None, any_job=True)
    return JobView.of(job, with_detail=who.may(Permission.WORKERS_VIEW))


@routes.patch("/jobs/{job_id}/priority", Permission.WORKERS_MANAGE, 404, 409)
async def prioritise(services: Uses, who: Who, job_id: JobPath, body: SetPriority) -> JobView:
    """Change the priority of anybody's job."""
    job = await services.jobs.prioritise(who, job_id, body.priority, any_job=True)
    return JobView.of(job, with_detail=who.may(Permission.WORKERS_VIEW))
