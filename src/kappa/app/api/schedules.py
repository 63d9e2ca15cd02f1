"""Schedules over HTTP: what is enqueued when."""

from typing import Annotated

from fastapi import Path, Response

from kappa.app.api.routing import Routes, Uses, Who
from kappa.app.api.schedule_schemas import AddSchedule, EditSchedule, ScheduleView
from kappa.app.api.schemas import EnqueuedJob, Line
from kappa.app.permissions import Permission

routes = Routes("schedules", "/schedules")

Name = Annotated[Line, Path()]


@routes.get("", Permission.SCHEDULES_VIEW)
async def list_schedules(services: Uses) -> list[ScheduleView]:
    """Every schedule, by name, with its next times and what went wrong."""
    return [ScheduleView.of(one) for one in await services.schedules.all()]


@routes.post("", Permission.SCHEDULES_MANAGE, 404, 409, status_code=201)
async def add(services: Uses, who: Who, body: AddSchedule) -> ScheduleView:
    """Make a schedule.

    Needs `jobs:enqueue` and the permissions of its kind as well, and `jobs:approve` if the kind asks for approval.
    """
    return ScheduleView.of(await services.schedules.add(who, body.value))


@routes.get("/{name}", Permission.SCHEDULES_VIEW, 404)
async def show(services: Uses, name: Name) -> ScheduleView:
    """One schedule."""
    return ScheduleView.of(await services.schedules.show(name))


@routes.patch("/{name}", Permission.SCHEDULES_MANAGE, 404)
async def edit(services: Uses, who: Who, name: Name, body: EditSchedule) -> ScheduleView:
    """Change what is given. Another expression or time zone moves the next time at once."""
    return ScheduleView.of(await services.schedules.edit(who, name, body.changes()))


@routes.post("/{name}/pause", Permission.SCHEDULES_MANAGE, 404)
async def pause(services: Uses, who: Who, name: Name) -> ScheduleView:
    """Let it fire no more until it is resumed."""
    return ScheduleView.of(await services.schedules.edit(who, name, {"enabled": False}))


@routes.post("/{name}/resume", Permission.SCHEDULES_MANAGE, 404)
async def resume(services: Uses, who: Who, name: Name) -> ScheduleView:
    """Let it fire again, from its next due time on; what was due meanwhile is not made up for."""
    return ScheduleView.of(await services.schedules.edit(who, name, {"enabled": True}))


@routes.post("/{name}/run", Permission.SCHEDULES_MANAGE, 404, 429, status_code=201)
async def run(services: Uses, who: Who, name: Name, response: Response) -> EnqueuedJob:
    """Enqueue its job now, in one's own name. When it is due next doesn't change."""
    done = await services.schedules.run(who, name)
    response.headers["Location"] = f"/jobs/{done.id}"
    return EnqueuedJob(id=done.id, status="created")


@routes.delete("/{name}", Permission.SCHEDULES_MANAGE, 404, 409, status_code=204)
async def delete(services: Uses, who: Who, name: Name) -> None:
    """Delete a schedule; the jobs that it enqueued stay. One that the server declares can be paused only."""
    await services.schedules.delete(who, name)
