"""The vocabulary, its merges, and artifacts, over HTTP. Jobs that measure are enqueued like all others."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import Path, Query, Response

from kappa.app.api.json_pieces import listed
from kappa.app.api.measure_schemas import KeptArtifact, MergeTypes, MergeView, TypeView
from kappa.app.api.routing import Routes, Uses, Who
from kappa.app.api.schemas import JobId, Kind, Line
from kappa.app.permissions import Permission

routes = Routes("measures")

ArtifactPath = Annotated[UUID, Path()]
MergePath = Annotated[JobId, Path(description="The number of the merge")]
SAFELY = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
          "X-Content-Type-Options": "nosniff"}  # fmt: skip
"""A picture is ours, but what it says is not: opened by itself it may run nothing and fetch nothing."""


@routes.get("/graph/vocabulary", Permission.GRAPH_READ, 501, 504, response_model=list[TypeView])
async def vocabulary(services: Uses) -> Response:
    """Every relation type with what is known of it: category, stance, what its targets rest on."""
    return await listed(services, TypeView, await services.curation.vocabulary())


@routes.get("/graph/vocabulary/merges", Permission.GRAPH_READ, 501, 504)
async def merges(services: Uses, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> list[MergeView]:
    """Merges of relation types, the latest first."""
    return [MergeView.model_validate(one) for one in await services.curation.merges(limit)]


@routes.post("/graph/vocabulary/merges", Permission.GRAPH_CURATE, 501, status_code=201)
async def merge(services: Uses, who: Who, body: MergeTypes) -> MergeView:
    """Merge one relation type into another: every relation of it is rewritten, in one transaction."""
    return MergeView.model_validate(await services.curation.merge(who, body.merged, body.survivor))


@routes.post("/graph/vocabulary/merges/{merge_id}/undo", Permission.GRAPH_CURATE, 501)
async def undo(services: Uses, who: Who, merge_id: MergePath) -> MergeView:
    """Undo a merge, exactly. Of two that have to do with each other, the later one first."""
    return MergeView.model_validate(await services.curation.undo(who, merge_id))


@routes.get("/artifacts", Permission.GRAPH_READ, 501, 504)
async def artifacts(
    services: Uses,
    kind: Annotated[Kind | None, Query(description="Only of this kind, as in projection")] = None,
    ontology: Annotated[Line | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> list[KeptArtifact]:
    """Results that are kept, the latest first, without what is in them."""
    return [KeptArtifact.model_validate(one) for one in await services.curation.artifacts(kind, ontology, limit)]


@routes.get("/artifacts/{artifact_id}", Permission.GRAPH_READ, 404, 501, 504)
async def artifact(services: Uses, artifact_id: ArtifactPath) -> KeptArtifact:
    """What is known of an artifact."""
    return KeptArtifact.model_validate(await services.curation.artifact(artifact_id))


@routes.get("/artifacts/{artifact_id}/content", Permission.GRAPH_READ, 404, 501, 504)
async def content(services: Uses, artifact_id: ArtifactPath) -> Any:
    """What it says, as JSON."""
    return await services.curation.content(artifact_id)


@routes.get(
    "/artifacts/{artifact_id}/data",
    Permission.GRAPH_READ,
    404,
    501,
    504,
    response_class=Response,
    responses={200: {"content": {"image/svg+xml": {"schema": {"type": "string"}}}}},
)
async def data(services: Uses, artifact_id: ArtifactPath) -> Response:
    """Its bytes: the picture, as SVG."""
    found, content = await services.curation.data(artifact_id)
    return Response(content, media_type=found.media_type, headers={"ETag": f'"{found.id}"', **SAFELY})
