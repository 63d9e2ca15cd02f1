"""MCP over HTTP, at `/mcp` of a server: a tool does what it does with the token of the request that called it.

The SDK is a third of what a server's start would take, and most servers never see an agent: the first one that comes
with a good token waits until it is loaded, in a thread, and nobody else does.
"""

import asyncio
import ipaddress
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import httpx2
from anyio.to_thread import run_sync
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from kappa.app.api import problems
from kappa.app.api.middleware import RequestId
from kappa.app.mcp.inprocess import InProcess
from kappa.app.settings import Settings

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from mcp.server.transport_security import TransportSecuritySettings

    from kappa.app.mcp.server import Server

PATH = "/mcp"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
RELAYED = ("content-type", "www-authenticate", "retry-after")

# There is no default: a tool that was called by nobody can do nothing.
_caller: ContextVar[httpx2.AsyncClient] = ContextVar("caller")


@asynccontextmanager
async def opened(settings: Settings) -> AsyncGenerator[Callable[[ASGIApp], ASGIApp]]:
    """What puts `/mcp` before the API, for as long as the block lasts."""
    sessions = _Sessions(settings)
    try:
        yield lambda api: _Endpoint(api, sessions)
    finally:
        await sessions.close()


class _Sessions:
    """The SDK's manager, made for the first who asks for it. It begins and ends in one task, as its task group must."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._made: asyncio.Future[StreamableHTTPSessionManager] | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()

    async def manager(self) -> "StreamableHTTPSessionManager":
        if self._made is None:
            self._made = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._run(self._made), name="mcp")
        return await asyncio.shield(self._made)  # who goes away takes nothing from those who wait with it

    async def close(self) -> None:
        self._closed.set()
        if self._task is not None:
            await self._task

    async def _run(self, made: "asyncio.Future[StreamableHTTPSessionManager]") -> None:
        try:
            server = await run_sync(_build, self._settings)
        except Exception as error:
            self._made = None  # the next one may have more luck
            made.set_exception(error)
            return
        async with server.session_manager.run():
            made.set_result(server.session_manager)
            await self._closed.wait()


def _build(settings: Settings) -> "Server":
    from kappa.app.mcp import offers
    from kappa.app.mcp.api import Api

    server = offers.build(Api(_caller.get))
    # Stateless: any process of a server can answer any request, and a restart loses no session.
    server.streamable_http_app(
        stateless_http=True, max_request_body_size=settings.max_body, transport_security=_security(settings)
    )
    return server


class _Endpoint:
    """MCP at its path; everything else is the API's."""

    def __init__(self, api: ASGIApp, sessions: _Sessions) -> None:
        self._api = api
        self._sessions = sessions
        self._inside = InProcess(RequestId(api))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH:
            return await self._api(scope, receive, send)
        scope["kappa.route"] = PATH
        # As bytes, as they came. No cookie: a page that could make a browser call would have it along.
        headers = [(b"x-request-id", scope["kappa.request_id"].encode())]
        headers += [(name, value) for name, value in scope["headers"] if name == b"authorization"]
        async with httpx2.AsyncClient(
            transport=self._inside, base_url="http://localhost", headers=headers, trust_env=False
        ) as client:
            known = await client.get("/me")
            if known.status_code not in (200, 403):  # 403: a token whose scopes leave its account out is a good one
                said = {name: known.headers[name] for name in RELAYED if name in known.headers}
                return await Response(known.content, known.status_code, said)(scope, receive, send)
            if scope["method"] != "POST":  # without sessions there is no stream to open and none to end
                refusal = problems.response(
                    405, "no_such_method", "MCP without sessions is POST alone",
                    request_id=scope["kappa.request_id"], headers={"Allow": "POST"},
                )  # fmt: skip
                return await refusal(scope, receive, send)
            manager = await self._sessions.manager()
            mark = _caller.set(client)
            try:
                return await manager.handle_request(scope, receive, send)
            finally:
                _caller.reset(mark)


def _security(settings: Settings) -> "TransportSecuritySettings":
    """The names that count as this server's, so that no page can lead a browser here under a name of its own.

    Where it listens on every address and nobody told it its names, it can't know them.
    """
    from mcp.server.transport_security import TransportSecuritySettings

    given = [name.strip() for name in (settings.mcp_hosts or "").split(",") if name.strip()]
    if not given and _is_every_address(settings.host):
        return TransportSecuritySettings(enable_dns_rebinding_protection=False)
    hosts = [*LOOPBACK, *given, *([] if _is_every_address(settings.host) else [_in_url(settings.host)])]
    names = [*hosts, *(f"{name}:*" for name in hosts)]
    return TransportSecuritySettings(
        allowed_hosts=names, allowed_origins=[f"{scheme}://{name}" for scheme in ("http", "https") for name in names]
    )


def _is_every_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
