"""Tools, their runs, what they said and what they left."""

import base64
import binascii
from datetime import timedelta
from typing import Annotated

from fastapi import Path, Query
from starlette.responses import FileResponse

from kappa.app.api.routing import Routes, Uses, Who
from kappa.app.api.schemas import (
    NO_NUL,
    ArtifactView,
    CancelJob,
    ChangeTool,
    JobId,
    Line,
    RegisteredTool,
    RegisterTool,
    RunTool,
    ToolLogs,
    ToolName,
    ToolRunPage,
    ToolRunView,
    ToolView,
    Version,
)
from kappa.app.errors import Refused
from kappa.app.permissions import Permission
from kappa.engine.tools import ToolRunStatus

routes = Routes("tools")

ToolPath = Annotated[ToolName, Path()]
RunPath = Annotated[JobId, Path()]


@routes.get("/tools", Permission.TOOLS_VIEW)
async def tools(services: Uses) -> list[ToolView]:
    """Every tool, by name, the newest version first."""
    return [ToolView.model_validate(tool) for tool in await services.tool_runs.tools.tools()]


@routes.post("/tools", Permission.TOOLS_MANAGE, status_code=201)
async def register(services: Uses, who: Who, body: RegisterTool) -> RegisteredTool:
    """Make a version of a tool known. What a version says never changes: a change is a new version."""
    made = await services.tool_runs.register(
        who, body.name, body.version, argv=body.argv, image=body.image, description=body.description,
        limits=body.limits.model_dump(exclude_none=True), timeout=timedelta(seconds=body.timeout),
    )  # fmt: skip
    known = ToolView.model_validate(made).model_dump()
    return RegisteredTool(**known, warning=await services.tool_runs.warning(made))


@routes.get("/tools/{name}", Permission.TOOLS_VIEW, 404)
async def show_tool(services: Uses, name: ToolPath, version: Annotated[Version | None, Query()] = None) -> ToolView:
    return ToolView.model_validate(await services.tool_runs.tools.tool(name, version))


@routes.patch("/tools/{name}", Permission.TOOLS_MANAGE, 404, status_code=204)
async def change_tool(services: Uses, who: Who, name: ToolPath, body: ChangeTool) -> None:
    """Switch a version on or off. Runs that were asked for go on."""
    await services.tool_runs.set_enabled(who, name, body.version, enabled=body.enabled)


@routes.post("/tools/{name}/runs", Permission.TOOLS_RUN, 404, 429, status_code=201)
async def run_tool(services: Uses, who: Who, name: ToolPath, body: RunTool | None = None) -> ToolRunView:
    """Ask for a run. Without a queue (`KAPPA_QUEUE_ENABLED=false`) the answer comes when it has ended."""
    asked = body or RunTool()
    run = await services.tool_runs.run(
        who, name, version=asked.version, inputs=asked.inputs, files=_decoded(asked.files), priority=asked.priority,
        max_attempts=asked.max_attempts,
    )  # fmt: skip
    return ToolRunView.of(run)


@routes.get("/tool-runs", Permission.TOOLS_VIEW)
async def tool_runs(
    services: Uses,
    tool: Annotated[Line | None, Query()] = None,
    status: Annotated[list[ToolRunStatus] | None, Query()] = None,
    requested_by: Annotated[Line | None, Query()] = None,
    before: Annotated[JobId | None, Query(description="`next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> ToolRunPage:
    """Runs, the newest first, a page at a time."""
    found = await services.tool_runs.tools.runs(
        tool=tool, states=status, requested_by=requested_by, before=before, limit=limit
    )
    return ToolRunPage(items=[ToolRunView.of(run) for run in found], next=found[-1].id if len(found) == limit else None)


@routes.get("/tool-runs/{run_id}", Permission.TOOLS_VIEW, 404)
async def show_run(services: Uses, run_id: RunPath) -> ToolRunView:
    return ToolRunView.of(await services.tool_runs.tools.show(run_id))


@routes.post("/tool-runs/{run_id}/cancel", Permission.TOOLS_RUN, 404, 409)
async def cancel(services: Uses, who: Who, run_id: RunPath, body: CancelJob | None = None) -> ToolRunView:
    """Cancel a run. One that runs is ended with everything that it started."""
    return ToolRunView.of(await services.tool_runs.cancel(who, run_id, body.reason if body else None))


@routes.get("/tool-runs/{run_id}/logs", Permission.TOOLS_VIEW, 404)
async def logs(
    services: Uses,
    run_id: RunPath,
    attempt: Annotated[int | None, Query(ge=1, le=2**31 - 1, description="null: the last one")] = None,
    stdout_from: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
    stderr_from: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
) -> ToolLogs:
    """What a run has said, 200 kB a stream at most; also while it runs."""
    await services.tool_runs.tools.show(run_id)
    pieces = await services.tool_runs.tools.logs(run_id, attempt=attempt)
    said = {
        stream: b"".join(piece.content for piece in pieces if piece.stream == stream) for stream in ("stdout", "stderr")
    }
    return ToolLogs(
        attempt=pieces[0].attempt if pieces else None,
        stdout=said["stdout"][stdout_from:].decode(errors="replace"),
        stderr=said["stderr"][stderr_from:].decode(errors="replace"),
        stdout_next=max(stdout_from, len(said["stdout"])),
        stderr_next=max(stderr_from, len(said["stderr"])),
    )


@routes.get("/tool-runs/{run_id}/artifacts", Permission.TOOLS_VIEW, 404)
async def artifacts(services: Uses, run_id: RunPath) -> list[ArtifactView]:
    """What a run left, each wholly stored."""
    await services.tool_runs.tools.show(run_id)
    return [ArtifactView.model_validate(one) for one in await services.tool_runs.tools.artifacts(run_id)]


@routes.get(
    "/tool-runs/{run_id}/artifacts/{path:path}",
    Permission.TOOLS_VIEW,
    404,
    response_class=FileResponse,
    responses={200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}},
)
async def artifact(
    services: Uses, run_id: RunPath, path: Annotated[str, Path(max_length=1024, pattern=NO_NUL)]
) -> FileResponse:
    """The bytes of an artifact."""
    stored, place = await services.tool_runs.artifact(run_id, path)
    # Never as what the tool says it is: a page of somebody's making must not open in the reader's browser.
    headers = {"ETag": f'"{stored.sha256}"'}
    name = stored.path.rsplit("/", 1)[-1]
    return FileResponse(place, media_type="application/octet-stream", filename=name, headers=headers)


def _decoded(files: dict[str, str]) -> dict[str, bytes]:
    try:
        return {name: base64.b64decode(text, validate=True) for name, text in files.items()}
    except (binascii.Error, ValueError):
        raise Refused("the input files must be in base64") from None
