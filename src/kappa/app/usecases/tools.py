"""What people do with tools. To register one is to say what runs on the server: that is for those who run it."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from kappa.app.errors import Forbidden, NotFound, Throttled
from kappa.app.permissions import Permission
from kappa.app.usecases import audit, submission
from kappa.app.usecases.limits import LiveJobs, check_priority
from kappa.app.usecases.principal import Principal
from kappa.app.usecases.watching import Watchtower
from kappa.engine import AsyncClient, Engine, WorkerConfig
from kappa.engine.tools import KIND, ArtifactStore, Stored, Tool, ToolNotFound, ToolRun, Tools, sandbox
from kappa.pg import Bounds

LANE = "tools"
TRY_AGAIN = 5.0


class ToolRuns:
    """Tools and their runs, for people; in the queue, or without one in the request itself."""

    def __init__(
        self,
        client: AsyncClient,
        engine: Engine,
        watchtower: Watchtower,
        artifacts: ArtifactStore,
        live: LiveJobs,
        *,
        at_once: int | None,
        need_sandbox: bool,
    ) -> None:
        self.tools = Tools(client)
        self._client = client
        self._engine = engine
        self._watchtower = watchtower
        self._artifacts = artifacts
        self._live = live
        self._at_once = at_once
        self._need_sandbox = need_sandbox
        self._under_way = 0

    async def register(
        self,
        who: Principal,
        name: str,
        version: str,
        *,
        argv: list[str],
        image: str | None,
        description: str,
        limits: Mapping[str, Any],
        timeout: timedelta,
    ) -> Tool:
        async with self._client.transaction() as connection:
            await audit.record(connection, who, "tool.register", f"{name} {version}", image=image, argv=argv)
            return await self.tools.register(
                name, version, argv=argv, image=image, description=description, limits=limits, timeout=timeout,
                created_by=who.name, connection=connection,
            )  # fmt: skip

    async def warning(self, tool: Tool) -> str | None:
        """What whoever registers a tool should know of the host that is asked for it."""
        if tool.image is not None:
            return None
        found = await asyncio.to_thread(sandbox.state, unsandboxed=not self._need_sandbox)
        return None if found.sandboxed else f"the sandbox of this server is {found.summary} ({found.reason})"

    async def set_enabled(self, who: Principal, name: str, version: str | None, *, enabled: bool) -> None:
        async with self._client.transaction() as connection:
            await self.tools.set_enabled(name, version, enabled=enabled, connection=connection)
            await audit.record(connection, who, "tool.change", name, version=version, enabled=enabled)

    async def run(
        self,
        who: Principal,
        name: str,
        *,
        version: str | None,
        inputs: Any,
        files: Mapping[str, bytes],
        priority: int,
        max_attempts: int,
    ) -> ToolRun:
        """Ask for a run. Without a queue it is done before this comes back, or refused at once if others are."""
        submission.require_permissions(who, KIND)
        check_priority(who, priority)
        if self._at_once is not None:
            if self._under_way >= self._at_once:
                raise Throttled(f"{self._under_way} tool runs are under way, and no more may be", TRY_AGAIN)
            self._under_way += 1
        try:
            async with self._live.one_more(who):
                asked = await self.tools.run(
                    name, version=version, inputs=inputs, files=files, priority=priority, max_attempts=max_attempts,
                    requested_by=who.name,
                )  # fmt: skip
            if self._at_once is not None:
                await self._do_now(asked)
                asked = await self.tools.show(asked.id)
            return asked
        finally:
            if self._at_once is not None:
                self._under_way -= 1

    async def cancel(self, who: Principal, run_id: int, reason: str | None) -> ToolRun:
        run = await self.tools.show(run_id)
        if run.requested_by != who.name and not who.may(Permission.JOBS_MANAGE):
            raise Forbidden(f"tool run {run_id} is not {who.name}'s, and {who.name} lacks {Permission.JOBS_MANAGE}")
        async with self._client.transaction() as connection:
            await self.tools.cancel(run_id, reason or f"cancelled by {who.name}", connection=connection)
            await audit.record(connection, who, "tool_run.cancel", run_id, reason=reason)
        return await self.tools.show(run_id)

    async def artifact(self, run_id: int, path: str) -> tuple[Stored, str]:
        """An artifact, and the file that has its bytes."""
        for stored in await self.tools.artifacts(run_id):
            if stored.path == path:
                place = self._artifacts.place(stored.sha256)
                if not await asyncio.to_thread(place.is_file):
                    raise NotFound(f"the bytes of {path!r} are not on this host")
                return stored, str(place)
        raise ToolNotFound(f"tool run {run_id} has no artifact {path!r}")

    async def _do_now(self, asked: ToolRun) -> None:
        """A worker for as long as this run lasts: the same leases, the same records as with the queue."""
        worker = self._engine.worker(WorkerConfig(lanes=(LANE,), lead=False, pool=Bounds(1, 4)))
        working = asyncio.create_task(worker.run())
        try:
            async for job in self._watchtower.watch(asked.job_id):
                if job.state.terminal or working.done():
                    break
        finally:
            worker.stop()
            await working
