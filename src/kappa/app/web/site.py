"""The web pages as one application below `/ui`, beside the API."""

import logging
import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from kappa.app.api import problems
from kappa.app.api.middleware import BodyLimit
from kappa.app.errors import NotAuthenticated, Throttled
from kappa.app.services import Services
from kappa.app.web import (
    dashboard,
    explorer,
    files,
    fleet,
    ingest,
    jobs,
    lanes,
    maps,
    ontologies,
    people,
    schedules,
    sign_in,
    tools,
)
from kappa.app.web.pages import HEADERS, PREFIX, SIGN_IN, Page, visited
from kappa.app.web.rendering import Templates

log = logging.getLogger(__name__)

GROUPS = (sign_in, dashboard, jobs, schedules, lanes, tools, fleet, explorer, maps, ontologies, ingest, people)
KEPT = "public, max-age=31536000, immutable"


def pages() -> Iterator[Page]:
    """Every page there is."""
    for group in GROUPS:
        yield from group.pages.all


def large(path: str) -> bool:
    """Whether a path takes bodies beyond the usual."""
    return path == ingest.UPLOAD


def compile_templates() -> None:
    """Before the first visit, in a thread."""
    _looks()[1].compile()


def beside(services: Services) -> Callable[[ASGIApp], ASGIApp]:
    """What puts the pages before the API."""
    site = Site(services)
    bounded = BodyLimit(site.app, ingest.LARGEST, lambda path: not large(path))
    return lambda api: _Web(api, bounded)


@cache
def _looks() -> tuple[dict[str, files.File], Templates]:
    """What all servers of a process show alike, so that each template is compiled once."""
    known = files.load()
    return known, Templates(known)


class _Web:
    """Pages at their paths; everything else is the API's."""

    def __init__(self, api: ASGIApp, site: ASGIApp) -> None:
        self._api = api
        self._site = site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        if scope["type"] == "http" and (path in ("/", PREFIX) or path.startswith(f"{PREFIX}/")):
            return await self._site(scope, receive, send)
        return await self._api(scope, receive, send)


class Site:
    """The pages of one server."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._files, self._templates = _looks()
        first = [Route(path, _first, methods=["GET"]) for path in ("/", PREFIX)]
        static = Route(files.PREFIX + "{name:path}", self._file, methods=["GET"])
        application = Starlette(
            routes=[*first, static, *map(self._route, pages())],
            exception_handlers={Exception: self._failed, HTTPException: self._failed},
        )
        application.state.services = services
        application.state.templates = self._templates
        self.app: ASGIApp = application

    def _route(self, page: Page) -> Route:
        async def answer(request: Request) -> Response:
            request.scope["kappa.route"] = PREFIX + page.path
            try:
                if page.open is not None:
                    return await page.open(request)
                return await visited(request, self._services, self._templates, page)
            except Exception as error:
                return await self._failed(request, error)

        return Route(PREFIX + page.path, answer, methods=[page.method])

    async def _file(self, request: Request) -> Response:
        request.scope["kappa.route"] = files.PREFIX
        found = self._files.get(request.path_params["name"])
        if found is None:
            return await self._failed(request, HTTPException(404))
        headers = {"ETag": f'"{found.digest}"', "Cache-Control": KEPT, **HEADERS}
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(found.content, media_type=found.media_type, headers=headers)

    async def _failed(self, request: Request, error: Exception) -> Response:
        """What went wrong, in one clear line; or the way to sign in."""
        if isinstance(error, NotAuthenticated) and request.url.path != SIGN_IN:
            return _to_sign_in(request)
        status, line = self._told(request, error)
        headers = dict(HEADERS)
        if isinstance(error, Throttled):
            headers["Retry-After"] = str(math.ceil(error.retry_after))
        facts: dict[str, Any] = {"status": status, "title": problems.TITLES.get(status, "A problem"), "line": line}
        text = self._templates.render("error.html", request_id=request.scope.get("kappa.request_id"), **facts)
        return HTMLResponse(text, status, headers)

    def _told(self, request: Request, error: Exception) -> tuple[int, str]:
        if isinstance(error, HTTPException):
            unsaid = {404: f"there is no page {request.url.path}", 405: "that is not done here"}
            return error.status_code, unsaid.get(error.status_code, str(error.detail))
        known = problems.told(request.url.path, error)
        if known is not None:
            return known[0], known[2]
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return 500, "the server failed; its log says why"


def _to_sign_in(request: Request) -> Response:
    wanted = request.url.path
    if request.url.query and request.method == "GET":
        wanted += f"?{request.url.query}"
    there = f"{SIGN_IN}?next={quote(wanted)}" if request.method == "GET" else SIGN_IN
    if request.headers.get("hx-request"):
        return Response(status_code=401, headers={"HX-Redirect": SIGN_IN})
    if "text/html" not in request.headers.get("accept", "text/html") and "*/*" not in request.headers.get("accept", ""):
        return Response(status_code=401)
    return RedirectResponse(there, 303)


async def _first(request: Request) -> Response:
    request.scope["kappa.route"] = request.url.path
    return RedirectResponse(f"{PREFIX}/", 303)
