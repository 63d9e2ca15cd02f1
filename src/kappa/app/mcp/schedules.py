"""Schedules, as tools for agents."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from kappa.app.api.schedule_schemas import (
    CRON,
    MISSED,
    Cron,
    Missed,
    ScheduleName,
    SchedulePage,
    ScheduleView,
    TimeZone,
)
from kappa.app.api.schemas import EnqueuedJob, Kind, Line, Priority
from kappa.app.mcp.api import Api
from kappa.app.mcp.server import ADDS, CHANGES, ENDS, READS, Server
from kappa.app.remote import segment

TheSchedule = Annotated[Line, Field(description="The schedule's name")]


class DeletedSchedule(BaseModel):
    deleted: str


def offer(server: Server, api: Api) -> None:
    tools = ScheduleTools(api)
    server.offer(tools.list_schedules, READS)
    server.offer(tools.show_schedule, READS)
    server.offer(tools.add_schedule, ADDS)
    server.offer(tools.edit_schedule, CHANGES)
    server.offer(tools.run_schedule, ADDS)
    server.offer(tools.delete_schedule, ENDS)


class ScheduleTools:
    """Each is one call of the API."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def list_schedules(
        self,
        after: Annotated[Line | None, Field(description="`next` of the page before")] = None,
        limit: Annotated[int, Field(ge=1, le=500, description="Schedules on a page")] = 50,
    ) -> SchedulePage:
        """List what is enqueued when: schedules by name, each with its next time, its last one, and why it failed."""
        return await self._api.get("/schedules", SchedulePage, {"after": after, "limit": limit})

    async def show_schedule(self, name: TheSchedule) -> ScheduleView:
        """Show a schedule: its expression, its job, its next few times, and why it failed."""
        return await self._api.get(_path(name), ScheduleView)

    async def add_schedule(
        self,
        name: Annotated[ScheduleName, Field(description="What to call it")],
        cron: Annotated[Cron, Field(description=CRON, examples=["30 2 * * 1-5"])],
        kind: Annotated[Kind, Field(description="The kind of job: the lanes of workers/status list the kinds")],
        payload: Annotated[Any, Field(description="The job's payload, as JSON", examples=[{"steps": 3}])] = None,
        timezone: Annotated[TimeZone, Field(description="As in Europe/Berlin")] = "UTC",
        priority: Annotated[Priority, Field(description="The job's; higher is sooner")] = 0,
        enabled: Annotated[bool, Field(description="false: paused until it is resumed")] = True,
        missed: Annotated[Missed, Field(description=MISSED)] = "fire_once",
    ) -> ScheduleView:
        """Make a schedule, which enqueues a job each time its cron expression is due."""
        body = {
            "name": name, "cron": cron, "kind": kind, "payload": payload, "timezone": timezone, "priority": priority,
            "enabled": enabled, "missed": missed,
        }  # fmt: skip
        return await self._api.post("/schedules", ScheduleView, body)

    async def edit_schedule(
        self,
        name: TheSchedule,
        cron: Annotated[Cron | None, Field(description=CRON)] = None,
        kind: Annotated[Kind | None, Field(description="The kind of job")] = None,
        payload: Annotated[Any, Field(description="The job's payload, as JSON; left out or null: as it is")] = None,
        timezone: Annotated[TimeZone | None, Field(description="As in Europe/Berlin")] = None,
        priority: Annotated[Priority | None, Field(description="The job's; higher is sooner")] = None,
        enabled: Annotated[bool | None, Field(description="false pauses it, true resumes it")] = None,
        missed: Annotated[Missed | None, Field(description=MISSED)] = None,
    ) -> ScheduleView:
        """Change what is given of a schedule, pause or resume it. Another expression moves its next time at once."""
        changes = {
            "cron": cron, "kind": kind, "payload": payload, "timezone": timezone, "priority": priority,
            "enabled": enabled, "missed": missed,
        }  # fmt: skip
        return await self._api.patch(_path(name), ScheduleView, changes)

    async def run_schedule(self, name: TheSchedule) -> EnqueuedJob:
        """Enqueue a schedule's job now and return its id. When it is due next doesn't change."""
        return await self._api.post(f"{_path(name)}/run", EnqueuedJob)

    async def delete_schedule(self, name: TheSchedule) -> DeletedSchedule:
        """Delete a schedule; its jobs stay. One that the server declares can only be paused, with edit_schedule."""
        await self._api.delete(_path(name))
        return DeletedSchedule(deleted=name)


def _path(name: str) -> str:
    return f"/schedules/{segment(name)}"
