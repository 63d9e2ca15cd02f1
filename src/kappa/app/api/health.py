"""Is it alive, can it work, how much does it do."""

from anyio.to_thread import run_sync
from fastapi import Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from kappa.app.api import scraping
from kappa.app.api.routing import Routes, Uses
from kappa.app.api.schemas import Health, Ready
from kappa.app.errors import Draining
from kappa.app.permissions import Permission

routes = Routes("health")


@routes.open("GET", "/healthz")
async def healthz() -> Health:
    """The process answers. It asks nobody else."""
    return Health(status="ok")


@routes.open("GET", "/readyz")
async def readyz(services: Uses, request: Request) -> Ready:
    """The server takes work and its database answers; 503 if not."""
    if request.app.state.guard.draining:
        raise Draining("the server is about to stop")
    async with services.auth.connection(wait=3, who="readyz") as connection:
        await connection.execute("SELECT 1")
    return Ready(status="ready")


_METRICS = {
    "description": "The page, as Prometheus reads it",
    "content": {"text/plain": {"schema": {"type": "string"}}},
}


@routes.get(
    "/metrics",
    Permission.WORKERS_VIEW,
    check=scraping.may_scrape,
    response_class=Response,
    responses={200: _METRICS},
)
async def metrics(services: Uses, request: Request) -> Response:
    """What is counted here and in the queue. Open to everybody if `KAPPA_METRICS_PUBLIC` says so."""
    return Response(await scraping.page(request, services), media_type=CONTENT_TYPE_LATEST)


@routes.open("GET", "/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> JSONResponse:
    """This API, described."""
    # The first time it takes a quarter of a second.
    return JSONResponse(await run_sync(request.app.openapi))
