"""Tools that are registered with Kappa, and their runs, for agents."""

from typing import Annotated, Any, Self

import anyio
from mcp.server.mcpserver import Context
from pydantic import BaseModel, Field

from kappa.app.api.schemas import (
    ArtifactView,
    JobId,
    Line,
    Priority,
    ToolLogs,
    ToolName,
    ToolRunPage,
    ToolRunView,
    ToolView,
    Version,
)
from kappa.app.errors import Refused
from kappa.app.mcp.api import Api
from kappa.app.mcp.jobs import PATIENCE
from kappa.app.mcp.server import ADDS, ENDS, READS, Server
from kappa.app.remote import segment
from kappa.engine.tools import ToolRunStatus

LOGGED = 4_000
"""Characters of each stream in an answer unless told otherwise: its end, where the reason usually stands."""
LONGEST = 200_000
LOOK = 0.5

TheRun = Annotated[JobId, Field(description="The run's id")]
Logged = Annotated[int, Field(ge=0, le=LONGEST, description="So many characters of each log at most, its end")]


class ToolSummary(BaseModel):
    """A tool as whoever runs it sees it."""

    name: str
    version: str
    description: str
    image: str | None = Field(description="The container that it runs in; null: a process")
    timeout: float = Field(description="Seconds that a run may take")
    limits: dict[str, Any]
    enabled: bool

    @classmethod
    def of(cls, tool: ToolView) -> Self:
        known = tool.model_dump(include={"name", "version", "description", "image", "limits", "enabled"})
        return cls(timeout=tool.timeout.total_seconds(), **known)


class ToolList(BaseModel):
    items: list[ToolSummary]


class ToolRunDetail(BaseModel):
    """A run, what it has said so far, and what it left."""

    run: ToolRunView
    stdout: str
    stderr: str
    artifacts: list[ArtifactView]


class ArtifactText(BaseModel):
    path: str
    text: str


def offer(server: Server, api: Api) -> None:
    tools = ToolRunTools(api)
    server.offer(tools.tools, READS)
    server.offer(tools.run_tool, ADDS)
    server.offer(tools.list_tool_runs, READS)
    server.offer(tools.show_tool_run, READS)
    server.offer(tools.wait_for_tool_run, READS)
    server.offer(tools.read_artifact, READS)
    server.offer(tools.cancel_tool_run, ENDS)


class ToolRunTools:
    def __init__(self, api: Api) -> None:
        self._api = api

    async def tools(self) -> ToolList:
        """Kappa's tools, which run_tool runs, by name, the newest version first: what each is for, what it may use."""
        return ToolList(items=[ToolSummary.of(tool) for tool in await self._api.get_list("/tools", ToolView)])

    async def run_tool(
        self,
        tool: Annotated[ToolName, Field(description="Its name, as `tools` has it")],
        inputs: Annotated[Any, Field(description="What the tool reads as `inputs` of its request.json")] = None,
        files: Annotated[
            dict[str, str] | None, Field(description="Input files by name, in base64", max_length=100)
        ] = None,
        version: Annotated[Version | None, Field(description="The newest that is enabled, if not given")] = None,
        priority: Annotated[Priority, Field(description="Higher is sooner")] = 0,
    ) -> ToolRunView:
        """Ask for a run of a tool, in its sandbox, and return at once. Use wait_for_tool_run to see it through."""
        body = {"inputs": inputs, "files": files, "version": version, "priority": priority}
        return await self._api.post(f"/tools/{segment(tool)}/runs", ToolRunView, body)

    async def list_tool_runs(
        self,
        tool: Annotated[Line | None, Field(description="Only runs of this tool")] = None,
        status: Annotated[list[ToolRunStatus] | None, Field(description="Only runs in any of these states")] = None,
        requested_by: Annotated[Line | None, Field(description="Only runs that this user asked for")] = None,
        before: Annotated[JobId | None, Field(description="`next` of the page before")] = None,
        limit: Annotated[int, Field(ge=1, le=500, description="Runs on a page")] = 20,
    ) -> ToolRunPage:
        """List runs of tools, the newest first, a page at a time."""
        asked = {
            "tool": tool, "status": status and [str(one) for one in status], "requested_by": requested_by,
            "before": before, "limit": limit,
        }  # fmt: skip
        return await self._api.get("/tool-runs", ToolRunPage, asked)

    async def show_tool_run(self, run_id: TheRun, log_characters: Logged = LOGGED) -> ToolRunDetail:
        """Show a run: its status, outputs or error, the end of its logs, also while it runs, and its artifacts."""
        run = await self._api.get(f"/tool-runs/{run_id}", ToolRunView)
        said = await self._api.get(f"/tool-runs/{run_id}/logs", ToolLogs)
        left = await self._api.get_list(f"/tool-runs/{run_id}/artifacts", ArtifactView)
        ends = [text[max(0, len(text) - log_characters) :] for text in (said.stdout, said.stderr)]
        return ToolRunDetail(run=run, stdout=ends[0], stderr=ends[1], artifacts=left)

    async def wait_for_tool_run(
        self,
        ctx: Context[Any, Any],
        run_id: TheRun,
        seconds: Annotated[float, Field(ge=0, le=3600, description="How long to wait at most")] = PATIENCE,
        log_characters: Logged = LOGGED,
    ) -> ToolRunDetail:
        """Wait until a run has ended or the time is up, and return it as it is then, with logs and artifacts.

        Look at `run.status`: succeeded, failed, timed_out and cancelled are ends. If it is another, call again.
        """
        seen = await self._api.get(f"/tool-runs/{run_id}", ToolRunView)
        told: list[ToolRunStatus] = []
        with anyio.move_on_after(seconds):
            while not seen.status.terminal:
                if seen.status not in told[-1:]:
                    told.append(seen.status)
                    await ctx.report_progress(len(told), None, str(seen.status))
                await anyio.sleep(LOOK)
                seen = await self._api.get(f"/tool-runs/{run_id}", ToolRunView)
        return await self.show_tool_run(run_id, log_characters)

    async def read_artifact(
        self,
        run_id: TheRun,
        path: Annotated[Line, Field(description="Its path, as show_tool_run has it")],
    ) -> ArtifactText:
        """Read an artifact that a run left, if it is a text of 200 kB at most."""
        way = "/".join(segment(part) for part in path.split("/"))
        data = await self._api.get_bytes(f"/tool-runs/{run_id}/artifacts/{way}", LONGEST)
        try:
            return ArtifactText(path=path, text=data.decode())
        except UnicodeDecodeError:
            raise Refused(f"{path} is no text; it is downloaded from /tool-runs/{run_id}/artifacts/{way}") from None

    async def cancel_tool_run(
        self,
        run_id: TheRun,
        reason: Annotated[Line | None, Field(description="Why, for those who look at it later")] = None,
    ) -> ToolRunView:
        """Cancel a run. One that runs is ended with everything that it started: wait_for_tool_run sees it end."""
        return await self._api.post(f"/tool-runs/{run_id}/cancel", ToolRunView, {"reason": reason})
