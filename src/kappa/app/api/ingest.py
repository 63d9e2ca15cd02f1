"""Documents over HTTP: uploaded one by one, then submitted together as one job."""

from collections.abc import AsyncGenerator
from typing import Annotated
from uuid import UUID

from fastapi import Query, Request, Response

from kappa.app.api.ingest_schemas import UNNAMED, UPLOADS, Submit, SubmittedView, UploadedView
from kappa.app.api.routing import Routes, Uses, Who
from kappa.app.api.schemas import Line
from kappa.app.api.spool import kept, spooled
from kappa.app.permissions import Permission
from kappa.app.services import Services
from kappa.app.usecases.principal import Principal

ANY_BYTES = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}

routes = Routes("ingest")


@routes.post(UPLOADS, Permission.GRAPH_INGEST, 501, status_code=201, openapi_extra=ANY_BYTES)
async def upload(
    services: Uses,
    who: Who,
    request: Request,
    name: Annotated[Line, Query(description="The document's name, as evidence will cite it", examples=["notes.md"])],
) -> UploadedView:
    """Keep a document for submission: the body is its bytes. The answer says what its ingestion will come to."""
    async with spooled(request, services.spool, services.settings.max_upload) as path:
        return UploadedView.model_validate(await services.ingestions.upload(who, name, path))


@routes.post("/ingest", Permission.GRAPH_INGEST, 404, 409, 429, 501, status_code=201)
async def submit(services: Uses, who: Who, body: Submit, response: Response) -> SubmittedView:
    """Bring uploads, or one small text, into an ontology. Several are one job, with a child for each."""
    uploads = body.uploads
    if uploads is None:
        uploads = [await _text(services, who, body.name or UNNAMED, body.text or "")]
    done = await services.ingestions.submit(
        who, body.ontology, uploads, provider=body.provider, auto_approve=body.auto_approve, force=body.force,
        priority=body.priority,
    )  # fmt: skip
    response.headers["Location"] = f"/jobs/{done.job}"
    return SubmittedView.model_validate(done)


async def _text(services: Services, who: Principal, name: str, text: str) -> UUID:
    async def pieces() -> AsyncGenerator[bytes]:
        yield text.encode()

    async with kept(pieces(), services.spool, services.settings.max_upload) as path:
        return (await services.ingestions.upload(who, name, path)).key
