"""The ASGI application: routes, problems, middleware."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp

from kappa.app.api import (
    backups,
    fleet,
    graph,
    health,
    ingest,
    jobs,
    measures,
    middleware,
    ontologies,
    people,
    problems,
    schedules,
    tools,
    workers,
)
from kappa.app.api.ingest_schemas import UPLOADS
from kappa.app.api.middleware import Guard
from kappa.app.api.problems import Problem
from kappa.app.services import Services

GROUPS = (
    health.routes,
    jobs.routes,
    schedules.routes,
    workers.routes,
    tools.routes,
    people.routes,
    fleet.routes,
    graph.routes,
    ingest.routes,
    measures.routes,
    backups.routes,
    ontologies.routes,
)


def build(
    services: Services,
    guard: Guard,
    beside: Callable[[ASGIApp], ASGIApp] = lambda app: app,
    large: Callable[[str], bool] = lambda _: False,
) -> ASGIApp:
    """The application, with what stands `beside` its routes, and middleware around both, the outermost last.

    Paths that are `large` bound the bodies of their requests themselves.
    """
    application = api()
    application.state.services = services
    application.state.guard = guard
    app = beside(application)
    own_limits = {UPLOADS, *backups.UPLOADS}
    app = middleware.BodyLimit(app, services.settings.max_body, lambda path: path in own_limits or large(path))
    app = middleware.Head(app)
    app = middleware.ShutdownGuard(app, guard)
    app = middleware.Observed(app, services.observers)
    # Outermost: what thousands of workers say every second needs none of the above.
    app = middleware.Fleet(middleware.RequestId(app), services.fleet)
    return middleware.Proxied(app, proxies) if (proxies := services.settings.proxies) else app


class _Api(FastAPI):
    """FastAPI, with what the routes' problems refer to."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            schemas = document["components"]["schemas"]
            problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= problem.pop("$defs")
            schemas["Problem"] = problem
        return super().openapi()


def api() -> FastAPI:
    """The routes alone; enough to write the OpenAPI document."""
    application = _Api(
        title="Kappa",
        version=version("kappa"),
        description="Durable jobs in lanes, and a knowledge graph, on nothing but PostgreSQL.",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    for group in GROUPS:
        # They are whole as they are. To include a router is to make all of its routes anew, at the first request.
        application.router.routes.extend(group.router.routes)
    problems.install(application, [route for group in GROUPS for route in group.router.routes])
    return application
