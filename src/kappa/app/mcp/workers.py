"""Lanes and workers, for agents to look at."""

from kappa.app.api.schemas import StatusView
from kappa.app.mcp.api import Api
from kappa.app.mcp.server import Server

STATUS = "kappa://workers/status"


def offer(server: Server, api: Api) -> None:
    @server.resource(
        STATUS,
        name="workers/status",
        title="Workers and lanes",
        description="Who works and who leads; every lane with its kinds, its slots and its live jobs by state. "
        "Needs the permission workers:view.",
        mime_type="application/json",
    )
    async def status() -> str:  # pyright: ignore[reportUnusedFunction]
        # The status has the lanes as GET /admin/workers/lanes gives them, read at the same instant.
        return (await api.get("/admin/workers/status", StatusView)).model_dump_json(indent=2)
