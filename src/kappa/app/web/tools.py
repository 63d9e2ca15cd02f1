"""Tools, their runs, what they said and what they left."""

import json
import shlex
from datetime import timedelta
from itertools import groupby
from typing import Annotated, Any

from pydantic import BaseModel, Field, StringConstraints
from starlette.datastructures import UploadFile
from starlette.responses import Response

from kappa.app.api.schemas import ToolName, Version
from kappa.app.errors import Refused
from kappa.app.permissions import Permission
from kappa.app.web.pages import Pages, Visit, listed
from kappa.engine.tools import ToolRun, ToolRunStatus
from kappa.pg import KappaError

pages = Pages()

PAGE = 50


class RegisterForm(BaseModel):
    name: ToolName
    version: Version
    command: Annotated[str, StringConstraints(max_length=10_000)] = ""
    image: Annotated[str, StringConstraints(max_length=500)] | None = None
    description: Annotated[str, StringConstraints(max_length=10_000)] = ""
    timeout: float = Field(default=600, gt=0, le=7 * 86400, allow_inf_nan=False)


@pages.get("/tools", Permission.TOOLS_VIEW)
async def tools(visit: Visit) -> Response:
    known = await visit.services.tool_runs.tools.tools()
    found = await visit.services.tool_runs.tools.runs(
        tool=visit.asked("tool"), states=_states(visit.asked("status")), before=visit.asked_number("before"),
        limit=PAGE + 1,
    )  # fmt: skip
    shown, after = listed(found, PAGE, lambda run: run.id)
    return visit.page(
        "tools.html", tools=[(name, list(versions)) for name, versions in groupby(known, lambda tool: tool.name)],
        runs=shown, next=after, states=list(ToolRunStatus), live=visit.asked_number("before") is None,
    )  # fmt: skip


@pages.get("/tools/new", Permission.TOOLS_MANAGE)
async def new(visit: Visit) -> Response:
    return _new(visit)


@pages.post("/tools/new", Permission.TOOLS_MANAGE)
async def register(visit: Visit) -> Response:
    try:
        asked = visit.understood(RegisterForm, dict(visit.form))
        made = await visit.services.tool_runs.register(
            visit.who, asked.name, asked.version, argv=_argv(asked.command), image=asked.image,
            description=asked.description, limits={}, timeout=timedelta(seconds=asked.timeout),
        )  # fmt: skip
    except KappaError as error:
        return _new(visit, str(error))
    return visit.elsewhere(f"/ui/tools/{made.name}" if visit.may(Permission.TOOLS_VIEW) else "/ui/tools/new")


@pages.get("/tools/{name}", Permission.TOOLS_VIEW)
async def tool(visit: Visit) -> Response:
    return await _tool(visit)


@pages.post("/tools/{name}/run", Permission.TOOLS_RUN)
async def run(visit: Visit) -> Response:
    files = {
        one.filename: await one.read()
        for one in visit.form.getlist("files")
        if isinstance(one, UploadFile) and one.filename
    }
    try:
        asked = await visit.services.tool_runs.run(
            visit.who, visit.request.path_params["name"], version=visit.word("version") or None,
            inputs=visit.json("inputs"), files=files, priority=0, max_attempts=1,
        )  # fmt: skip
    except KappaError as error:
        return await _tool(visit, str(error))
    return visit.elsewhere(f"/ui/runs/{asked.id}")


@pages.post("/tools/{name}/switch", Permission.TOOLS_MANAGE)
async def switch(visit: Visit) -> Response:
    name = visit.request.path_params["name"]
    enabled = visit.word("enabled") == "yes"
    await visit.services.tool_runs.set_enabled(visit.who, name, visit.word("version") or None, enabled=enabled)
    return visit.elsewhere(f"/ui/tools/{name}")


@pages.get("/runs/{run_id:int}", Permission.TOOLS_VIEW)
async def show_run(visit: Visit) -> Response:
    run_id = visit.number("run_id")
    client = visit.services.tool_runs.tools
    found = await client.show(run_id)
    pieces = await client.logs(run_id)
    said = {
        stream: b"".join(piece.content for piece in pieces if piece.stream == stream).decode(errors="replace")
        for stream in ("stdout", "stderr")
    }
    return visit.page(
        "run.html", run=found, said=said, attempt=pieces[0].attempt if pieces else None,
        artifacts=await client.artifacts(run_id), may_cancel=_may_cancel(visit, found),
    )  # fmt: skip


@pages.post("/runs/{run_id:int}/cancel", Permission.TOOLS_RUN)
async def cancel(visit: Visit) -> Response:
    ended = await visit.services.tool_runs.cancel(visit.who, visit.number("run_id"), None)
    return visit.elsewhere(f"/ui/runs/{ended.id}")


def _may_cancel(visit: Visit, found: ToolRun) -> bool:
    theirs = found.requested_by == visit.who.name or visit.may(Permission.JOBS_MANAGE)
    return not found.status.terminal and theirs and visit.may(Permission.TOOLS_RUN)


async def _tool(visit: Visit, fault: str = "") -> Response:
    name = visit.request.path_params["name"]
    client = visit.services.tool_runs.tools
    versions = [one for one in await client.tools() if one.name == name]
    if not versions:
        await client.tool(name)  # says that there is none
    runs = await client.runs(tool=name, limit=10)
    inputs = visit.word("inputs") if fault else json.dumps({})
    return visit.page(
        "tool.html", 422 if fault else 200, name=name, versions=versions, runs=runs, fault=fault, inputs=inputs
    )


def _new(visit: Visit, fault: str = "") -> Response:
    values: dict[str, Any] = {field: visit.word(field) for field in RegisterForm.model_fields}
    values["timeout"] = values["timeout"] or "600"
    return visit.page("tool_new.html", 422 if fault else 200, values=values, fault=fault)


def _argv(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise Refused(f"the command can't be read: {error}") from None


def _states(text: str | None) -> list[ToolRunStatus] | None:
    if text is None:
        return None
    try:
        return [ToolRunStatus(text)]
    except ValueError:
        raise Refused(f"there is no state {text!r}") from None
