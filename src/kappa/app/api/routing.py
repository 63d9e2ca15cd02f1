"""Routes that can't exist without a permission, and how a request's principal is found."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Request, Security
from fastapi.routing import APIRoute
from fastapi.security import APIKeyCookie, HTTPAuthorizationCredentials, HTTPBearer

from kappa.app.api import problems
from kappa.app.api.streams import Route
from kappa.app.errors import Forbidden, NotAuthenticated
from kappa.app.permissions import Permission
from kappa.app.services import Services
from kappa.app.usecases.credentials import with_request
from kappa.app.usecases.open_streams import Credential
from kappa.app.usecases.principal import Principal
from kappa.app.usecases.turns import CALLER

F = TypeVar("F", bound=Callable[..., Any])

COOKIE = "kappa_session"
CSRF = "X-CSRF-Token"
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

_bearer = HTTPBearer(auto_error=False, description="A token: `kg token make`")
_cookie = APIKeyCookie(name=COOKIE, auto_error=False, description="Set by `POST /sessions`")


async def services_of(request: Request) -> Services:
    return request.app.state.services


Uses = Annotated[Services, Depends(services_of)]
Bearer = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]
Cookie = Annotated[str | None, Security(_cookie)]


async def recognise(request: Request, services: Uses, bearer: Bearer, cookie: Cookie) -> Principal:
    who = await _recognised(request, services, bearer, cookie)
    CALLER.set(who)
    return who


async def _recognised(
    request: Request, services: Services, bearer: HTTPAuthorizationCredentials | None, cookie: str | None
) -> Principal:
    request_id: str = request.scope["kappa.request_id"]
    if bearer is not None:
        request.state.credential = Credential(bearer.credentials)
        return with_request(await services.credentials.by_token(bearer.credentials), request_id)
    if cookie is not None:
        request.state.credential = Credential(cookie, is_cookie=True)
        session = await services.credentials.by_cookie(cookie)
        if request.method not in SAFE:
            check_origin(request)
            await services.credentials.csrf_fits(session, request.headers.get(CSRF))
        return with_request(session.who, request_id)
    raise NotAuthenticated("send a token: Authorization: Bearer …")


def check_origin(request: Request) -> bool:
    """Refuses what a page of another site makes a browser send; every browser says so, in one header or the other.

    True if the browser says that it is this site's own page. A caller that says nothing is no browser of these days.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        if site not in ("same-origin", "none"):
            raise Forbidden(f"this was sent by a page of another site (Sec-Fetch-Site: {site})")
        return True
    if origin is None:
        return False
    host = request.headers.get("host", "")
    if _without_usual_port(urlsplit(origin).netloc) != _without_usual_port(host):
        raise Forbidden(
            f"this was sent by a page of {origin}, and the server was asked for as {host!r}: "
            "if a proxy stands between, it must pass the Host header on"
        )
    return True


def _without_usual_port(host: str) -> str:
    return host.lower().removesuffix(":80").removesuffix(":443")


Who = Annotated[Principal, Depends(recognise)]


def _requires(permission: Permission) -> Callable[[Principal], Coroutine[Any, Any, None]]:
    async def check(who: Who) -> None:
        who.require(permission)

    return check


def _operation(route: APIRoute) -> str:
    return f"{route.tags[0]}_{route.name}" if route.tags else route.name


class Routes:
    """A group of routes. Each declares its permission, or says that it is open."""

    def __init__(self, tag: str, prefix: str = "") -> None:
        self.router = APIRouter(prefix=prefix, tags=[tag], generate_unique_id_function=_operation, route_class=Route)

    def get(self, path: str, permission: Permission, *problem: int, **options: Any) -> Callable[[F], F]:
        """With `check`, that is asked in place of the permission alone; it must refuse whoever doesn't have it."""
        return self._route("GET", path, permission, problem, options)

    def post(self, path: str, permission: Permission, *problem: int, **options: Any) -> Callable[[F], F]:
        return self._route("POST", path, permission, problem, options)

    def put(self, path: str, permission: Permission, *problem: int, **options: Any) -> Callable[[F], F]:
        return self._route("PUT", path, permission, problem, options)

    def patch(self, path: str, permission: Permission, *problem: int, **options: Any) -> Callable[[F], F]:
        return self._route("PATCH", path, permission, problem, options)

    def delete(self, path: str, permission: Permission, *problem: int, **options: Any) -> Callable[[F], F]:
        return self._route("DELETE", path, permission, problem, options)

    def open(self, method: str, path: str, *problem: int, **options: Any) -> Callable[[F], F]:
        """A route for everybody."""
        return self._route(method, path, None, problem, options)

    def _route(
        self, method: str, path: str, permission: Permission | None, problem: tuple[int, ...], options: dict[str, Any]
    ) -> Callable[[F], F]:
        statuses = {400, 413, 422, 503, *problem}
        dependencies: list[Any] = []
        if permission is not None:
            statuses |= {401, 403}
            dependencies.append(Depends(options.pop("check", None) or _requires(permission)))
        declared = str(permission) if permission is not None else "open"
        # A body that is read as a stream, which the framework doesn't see.
        body = {"requestBody": options.pop("streamed_body")} if "streamed_body" in options else {}
        responses = problems.documented(*sorted(statuses)) | options.pop("responses", {})
        return self.router.api_route(
            path,
            methods=[method],
            dependencies=dependencies,
            responses=responses,
            openapi_extra={"x-permission": declared, **body, **options.pop("openapi_extra", {})},
            **options,
        )
