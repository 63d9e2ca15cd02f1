"""Tools and their runs, from outside: register, run, look, cancel."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from psycopg import AsyncConnection, errors
from pydantic import ValidationError
from pydantic_core import to_json

from kappa.engine.async_client import AsyncClient
from kappa.engine.errors import EngineError
from kappa.engine.model import Needs
from kappa.engine.tools import store
from kappa.engine.tools.collect import Stored
from kappa.engine.tools.handler import ToolRunPayload
from kappa.engine.tools.limits import ToolLimits
from kappa.engine.tools.status import ToolRunStatus
from kappa.engine.tools.store import LogPiece, Tool, ToolRun
from kappa.pg.ops import Op, run_async
from kappa.pg.queries import Row

T = TypeVar("T")

KIND = "tool_run"
CONTAINERS = "containers"
"""What a remote worker must have, as a label, for a tool that names an image."""
INPUTS_LIMIT = 64 * 1024 * 1024
LONGEST = timedelta(days=7)
NAME_LIMIT = 255
"""Bytes that a file's name may have, as every file system has it."""


class ToolNotFound(EngineError):
    """There is no such tool, or no such run."""


class ToolError(EngineError):
    """A tool that can't be as it was asked to be."""


class Tools:
    """The tools of one engine."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def register(
        self,
        name: str,
        version: str,
        *,
        argv: Sequence[str] = (),
        image: str | None = None,
        description: str = "",
        limits: Mapping[str, Any] | None = None,
        timeout: timedelta = timedelta(minutes=10),
        created_by: str | None = None,
        connection: AsyncConnection[Row] | None = None,
    ) -> Tool:
        """Make a version of a tool known. What a version says never changes: a change is a new version."""
        if image is None and not argv:
            raise ToolError(f"the tool {name!r} needs a command to run, or an image")
        if not timedelta(0) < timeout <= LONGEST:
            raise ToolError(f"a tool's time-out is more than nothing and at most {LONGEST.days} days")
        try:
            checked = ToolLimits.model_validate(limits or {})
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            raise ToolError(f"limit {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from None
        text = checked.model_dump_json(exclude_none=True)
        try:
            made = await self._do(
                store.put_tool(name, version, description, image, argv, text, timeout, created_by), connection
            )
        except errors.CheckViolation as error:
            raise ToolError(f"a tool can't be called {name!r} {version!r}: {error.diag.constraint_name}") from None
        except (errors.DataError, UnicodeEncodeError):
            raise ToolError("a tool is described in plain text: NUL and halves of characters can't be kept") from None
        if not made:
            raise ToolError(f"there is {name!r} {version!r} already: what a version says never changes")
        return await self.tool(name, version, connection=connection)

    async def tools(self) -> list[Tool]:
        """Every tool, by name, the newest version first."""
        return await self._do(store.read_tools())

    async def tool(
        self, name: str, version: str | None = None, *, connection: AsyncConnection[Row] | None = None
    ) -> Tool:
        """A version of a tool; the newest that is enabled if none is named."""
        found = await self._do(store.read_tools(name), connection)
        if not found:
            raise ToolNotFound(f"there is no tool {name!r}")
        fits = [tool for tool in found if (tool.enabled if version is None else tool.version == version)]
        if not fits:
            what = "enabled version" if version is None else f"version {version!r}"
            raise ToolNotFound(f"the tool {name!r} has no {what} (it has: {', '.join(tool.version for tool in found)})")
        return fits[0]

    async def set_enabled(
        self,
        name: str,
        version: str | None = None,
        *,
        enabled: bool,
        connection: AsyncConnection[Row] | None = None,
    ) -> None:
        """Switch a version on or off, or all of them. Runs that were asked for go on."""
        if not await self._do(store.set_tool_enabled(name, version, enabled=enabled), connection):
            raise ToolNotFound(f"there is no tool {name!r}" + (f" {version!r}" if version else ""))

    async def run(
        self,
        name: str,
        *,
        version: str | None = None,
        inputs: Any = None,
        files: Mapping[str, bytes] | None = None,
        priority: int = 0,
        max_attempts: int = 1,
        requested_by: str | None = None,
    ) -> ToolRun:
        """Ask for a run: its record and its job are made together."""
        tool = await self.tool(name, version)
        if not tool.enabled:
            raise ToolError(f"{name!r} {tool.version!r} is switched off")
        files = files or {}
        if sum(map(len, files.values())) > INPUTS_LIMIT:
            raise ToolError(f"the input files have {INPUTS_LIMIT // 1024 // 1024} MB at most together")
        for file in files:
            if len(file.encode(errors="replace")) > NAME_LIMIT:
                raise ToolError(f"an input file can't be called {file!r}")
        async with self._client.transaction() as connection:
            try:
                text = to_json(inputs).decode()
                run_id = await run_async(connection, store.make_run(name, tool.version, requested_by, text))
            except (errors.DataError, ValueError):
                raise ToolError("the inputs can't be kept: they have NUL, half a character, or no number") from None
            for file, content in files.items():
                try:
                    await run_async(connection, store.put_input(run_id, file, content))
                except (errors.CheckViolation, errors.DataError, UnicodeEncodeError):
                    raise ToolError(f"an input file can't be called {file!r}") from None
            job = await self._client.enqueue(
                KIND, ToolRunPayload(run_id=run_id), priority=priority, timeout=tool.timeout,
                max_attempts=max_attempts, submitted_by=requested_by, connection=connection,
                needs=None if tool.image is None else Needs(labels=(CONTAINERS,)),
            )  # fmt: skip
            await run_async(connection, store.tie_run(run_id, job.id))
        return await self.show(run_id)

    async def show(self, run_id: int) -> ToolRun:
        found = await self._do(store.read_runs(run_id=run_id))
        if not found:
            raise ToolNotFound(f"there is no tool run {run_id}")
        return found[0]

    async def runs(
        self,
        *,
        tool: str | None = None,
        states: Sequence[ToolRunStatus] | None = None,
        requested_by: str | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> list[ToolRun]:
        """Runs, the newest first; `before` continues after the last id of a page."""
        op = store.read_runs(tool=tool, states=states, requested_by=requested_by, before=before, limit=limit)
        return await self._do(op)

    async def logs(self, run_id: int, *, attempt: int | None = None, stream: str | None = None) -> list[LogPiece]:
        """What a run has said so far, of its last attempt unless another one is asked for."""
        return await self._do(store.read_logs(run_id, attempt=attempt, stream=stream))

    async def artifacts(self, run_id: int) -> list[Stored]:
        return await self._do(store.read_artifacts(run_id))

    async def cancel(
        self, run_id: int, reason: str = "cancelled", *, connection: AsyncConnection[Row] | None = None
    ) -> None:
        """Cancel a run; one that runs is ended with everything that it started."""
        run = await self.show(run_id)
        await self._client.cancel(run.job_id, reason, connection=connection)

    async def _do(self, op: Op[T], connection: AsyncConnection[Row] | None = None) -> T:
        if connection is not None:
            return await run_async(connection, op)
        async with self._client.transaction() as own:
            return await run_async(own, op)
