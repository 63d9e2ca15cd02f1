"""Schedules over HTTP: what is enqueued when."""

from typing import Annotated

from fastapi import Path, Query, Response

from kappa.app.api.routing import Routes, Uses, Who
from kappa.app.api.schedule_schemas import AddSchedule, EditSchedule, ScheduleItem, SchedulePage, ScheduleView
from kappa.app.api.schemas import EnqueuedJob, Line
from kappa.app.permissions import Permission

routes = Routes("schedules", "/schedules")

Name = Annotated[Line, Path()]


@routes.get("", Permission.SCHEDULES_VIEW)
async def list_schedules(
    services: Uses,
    after: Annotated[Line | None, Query(description="`next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> SchedulePage:
    """Schedules by name, with the next time of each and what went wrong."""
    found = await services.schedules.list(after=after or "", limit=limit)
    return SchedulePage(
        items=[ScheduleItem.of(one) for one in found],
        next=found[-1].schedule.name if len(found) == limit else None,
    )


@routes.post("", Permission.SCHEDULES_MANAGE, 404, 409, status_code=201)
async def add(services: Uses, who: Who, body: AddSchedule) -> ScheduleView:
    """Make a schedule.

    Needs `jobs:enqueue` and the permissions of its kind as well, and `jobs:approve` if the kind asks for approval.
    """
    return ScheduleView.of(await services.schedules.add(who, body.value))


@routes.get("/{name}", Permission.SCHEDULES_VIEW, 404)
async def show(services: Uses, name: Name) -> ScheduleView:
    """One schedule, with the next few times."""
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
