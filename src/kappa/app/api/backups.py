"""Backup and restore over HTTP, both as streams."""

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import StreamingResponse

from kappa.app.api.routing import Routes, Uses, Who
from kappa.app.api.schemas import EnqueuedJob
from kappa.app.permissions import Permission
from kappa.graph.backup import Mode

routes = Routes("backups")

BINARY = {"schema": {"type": "string", "format": "binary"}}
UPLOADS = frozenset({"/restore"})
"""Where a body may be of any size: it is taken in piece by piece."""


@routes.post(
    "/backup",
    Permission.GRAPH_MANAGE,
    response_class=StreamingResponse,
    responses={200: {"content": {"application/gzip": BINARY}}},
)
async def make(services: Uses, who: Who) -> StreamingResponse:
    """The whole graph as it is now, as one file. A file that ends too early can be told from a whole one."""
    headers = {"Content-Disposition": 'attachment; filename="graph.kappa"'}
    return StreamingResponse(services.backups.make(who), media_type="application/gzip", headers=headers)


@routes.post(
    "/restore",
    Permission.GRAPH_MANAGE,
    status_code=201,
    streamed_body={"required": True, "content": {"application/octet-stream": BINARY}},
)
async def restore(
    services: Uses,
    who: Who,
    request: Request,
    mode: Annotated[Mode, Query(description="What becomes of what is there: see docs/backup.md")],
) -> EnqueuedJob:
    """Take a backup in, and enqueue the job that restores it. While that runs, the other lanes are drained."""
    made = await services.backups.restore(who, mode, request.stream())
    return EnqueuedJob(id=made.id, status="created" if made.created else "existing")
