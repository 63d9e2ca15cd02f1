"""Schedules: what is enqueued when; made, edited, paused, resumed, run now, deleted."""

import json
from dataclasses import replace
from datetime import UTC
from functools import partial
from typing import Any, cast

from starlette.responses import Response

from kappa.app.api.schedule_schemas import AddSchedule, EditSchedule
from kappa.app.errors import Refused
from kappa.app.permissions import Permission
from kappa.app.usecases import submission
from kappa.app.usecases.schedules import ScheduleNow
from kappa.app.web.pages import Pages, Visit, listed
from kappa.engine import Schedule, ScheduleNotFound
from kappa.pg import KappaError

pages = Pages()

PAGE = 50
FIELDS = ("cron", "timezone", "kind", "payload", "priority", "missed")
NEW = {"name": "", "cron": "", "timezone": "UTC", "kind": "", "payload": "null", "priority": "0", "missed": "fire_once"}


@pages.get("/schedules", Permission.SCHEDULES_VIEW)
async def schedules(visit: Visit) -> Response:
    return await _list(visit)


@pages.post("/schedules", Permission.SCHEDULES_MANAGE)
async def add(visit: Visit) -> Response:
    try:
        wanted = visit.understood(AddSchedule, {"name": visit.word("name"), **_fields(visit)}).value
        made = await visit.services.schedules.add(visit.who, replace(wanted, payload=visit.json("payload")))
    except KappaError as error:
        if not visit.may(Permission.SCHEDULES_VIEW):
            raise
        return await _list(visit, str(error))
    return visit.elsewhere(_home(visit, made.schedule.name))


@pages.get("/schedules/{name}", Permission.SCHEDULES_VIEW)
async def schedule(visit: Visit) -> Response:
    return await _one(visit)


@pages.post("/schedules/{name}", Permission.SCHEDULES_MANAGE)
async def edit(visit: Visit) -> Response:
    name = _name(visit)
    try:
        wanted = visit.understood(EditSchedule, _fields(visit)).changes() | {"payload": visit.json("payload")}
        # What others have changed since the form was shown stays as they left it.
        shown = _shown(visit) or _values((await visit.services.schedules.show(name)).schedule)
        changes = {key: value for key, value in wanted.items() if _text(shown.get(key)) != _text(value)}
        if changes:
            await visit.services.schedules.edit(visit.who, name, changes)
    except ScheduleNotFound:
        raise
    except KappaError as error:
        if not visit.may(Permission.SCHEDULES_VIEW):
            raise
        return await _one(visit, str(error))
    return visit.elsewhere(_home(visit, name))


@pages.post("/schedules/{name}/{doing}", Permission.SCHEDULES_MANAGE)
async def act(visit: Visit) -> Response:
    """Pause it, resume it, run it now, delete it."""
    name, doing = _name(visit), visit.request.path_params["doing"]
    back = "/ui/schedules" if visit.word("back") == "list" else _home(visit, name)
    if doing == "run":
        return visit.to_job((await visit.services.schedules.run(visit.who, name)).id, back)
    if doing == "delete":
        await visit.services.schedules.delete(visit.who, name)
        return visit.elsewhere("/ui/schedules" if visit.may(Permission.SCHEDULES_VIEW) else "/ui/")
    if doing not in ("pause", "resume"):
        raise Refused(f"nobody can {doing} a schedule")
    await visit.services.schedules.edit(visit.who, name, {"enabled": doing == "resume"})
    return visit.elsewhere(back)


def _name(visit: Visit) -> str:
    return visit.request.path_params["name"]


def _home(visit: Visit, name: str) -> str:
    return f"/ui/schedules/{name}" if visit.may(Permission.SCHEDULES_VIEW) else "/ui/"


def _fields(visit: Visit) -> dict[str, Any]:
    """The form as a body of the API has it, but for the payload: there, empty is null."""
    fields: dict[str, Any] = {name: visit.word(name) for name in FIELDS if name != "payload"}
    if fields["priority"]:
        try:
            fields["priority"] = int(fields["priority"])
        except ValueError:
            raise Refused(f"priority must be an integer, not {fields['priority']!r}") from None
    return fields


def _values(schedule: Schedule) -> dict[str, Any]:
    return {name: getattr(schedule, name) for name in FIELDS}


def _text(value: Any) -> str:
    """As JSON, in which 1 is not true."""
    return json.dumps(value, sort_keys=True)


def _shown(visit: Visit) -> dict[str, Any] | None:
    """The schedule as it was when the form was shown; None if the form doesn't say."""
    shown = visit.json("shown")
    return cast("dict[str, Any]", shown) if isinstance(shown, dict) else None


async def _kinds(visit: Visit) -> list[str]:
    """The kinds that a schedule of this visitor may have."""
    if not _may_make(visit):
        return []
    kinds = sorted(kind for lane in await visit.services.client.lanes() for kind in lane.kinds)
    return [kind for kind in kinds if submission.may_submit(visit.who, kind)]


async def _list(visit: Visit, fault: str = "") -> Response:
    values = {name: visit.word(name) for name in NEW} if fault else NEW
    found = await visit.services.schedules.list(after=visit.asked("after") or "", limit=PAGE + 1)
    shown, after = listed(found, PAGE, lambda now: now.schedule.name)
    return visit.page(
        "schedules.html", 422 if fault else 200, schedules=shown, next=after, live=visit.asked("after") is None,
        fault=fault, values=values, kinds=await _kinds(visit), may_make=_may_make(visit),
        may_submit=partial(submission.may_submit, visit.who),
    )  # fmt: skip


async def _one(visit: Visit, fault: str = "") -> Response:
    found: ScheduleNow = await visit.services.schedules.show(_name(visit))
    row = found.schedule
    values = _values(row)
    shown = _shown(visit) if fault else None
    shown = json.dumps(shown or values, ensure_ascii=False)
    values["payload"] = json.dumps(row.payload, ensure_ascii=False, indent=2)
    if fault:
        values = {name: visit.word(name) for name in FIELDS}
    return visit.page(
        "schedule.html", 422 if fault else 200, one=found, values=values, shown=shown, fault=fault,
        kinds=await _kinds(visit), may_make=_may_make(visit) and submission.may_submit(visit.who, row.kind),
        times=[at.astimezone(UTC) for at in found.next_times],
    )  # fmt: skip


def _may_make(visit: Visit) -> bool:
    """Who makes or runs a schedule enqueues jobs."""
    return visit.may(Permission.SCHEDULES_MANAGE) and visit.may(Permission.JOBS_ENQUEUE)
