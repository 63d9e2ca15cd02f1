"""Pure ASGI middleware: request ids, the guard of a server that drains, HEAD, body size, security headers.

None of them looks into a body or holds a response back: streams pass through.
"""

import ipaddress
import logging
import re
import secrets
import time
from collections.abc import Callable, Sequence

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kappa.app.answered import UNMATCHED, Answered, Observer
from kappa.app.api import problems
from kappa.app.settings import Network
from kappa.engine.fleet.wire import PREFIX

log = logging.getLogger("kappa.access")

ALWAYS_ANSWERED = frozenset({"/healthz", "/readyz", "/metrics"})
_ID = re.compile(r"^[A-Za-z0-9._-]{1,64}$")

SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}


class Guard:
    """Whether new work is taken, and how much is under way."""

    def __init__(self) -> None:
        self.draining = False
        self.under_way = 0

    def drain(self) -> None:
        self.draining = True


class Proxied:
    """The address and the scheme that a caller used, as a trusted proxy says. Nobody else is believed.

    A proxy adds the address it sees at the right of `X-Forwarded-For`; what stands to the left of the first one that
    is no trusted proxy's may have been made up.
    """

    def __init__(self, app: ASGIApp, trusted: Sequence[Network]) -> None:
        self._app = app
        self._trusted = trusted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        if scope["type"] == "http" and client is not None and self._is_trusted(_address(client[0])):
            headers = Headers(scope=scope)
            seen = ",".join(headers.getlist("x-forwarded-for")).split(",")
            scheme = ",".join(headers.getlist("x-forwarded-proto")).split(",")[-1].strip().lower()
            scope = {**scope, "client": (self._caller(client[0], seen), 0)}
            if scheme in ("http", "https"):
                scope["scheme"] = scheme
        return await self._app(scope, receive, send)

    def _caller(self, proxy: str, seen: Sequence[str]) -> str:
        caller = proxy
        for text in reversed(seen):
            address = _address(text)
            if address is None:  # whoever wrote that, nothing beyond it can be believed
                break
            caller = str(address)
            if not self._is_trusted(address):
                break
        return caller

    def _is_trusted(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None) -> bool:
        return address is not None and any(address in network for network in self._trusted)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address as it stands in `X-Forwarded-For`, with or without a port."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


class Fleet:
    """The calls of remote workers, apart from everything else."""

    def __init__(self, app: ASGIApp, fleet: ASGIApp) -> None:
        self._app = app
        self._fleet = fleet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(PREFIX):
            return await self._fleet(scope, receive, send)
        return await self._app(scope, receive, send)


class RequestId:
    """Gives every request an id, the caller's if it sent a sane one, and logs how it ended."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _ID.match(given) else secrets.token_hex(8)
        scope["kappa.request_id"] = request_id
        begun, status = time.monotonic(), 0

        async def with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                for name, value in SECURITY.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            return await self._app(scope, receive, with_id)
        finally:
            took = 1000 * (time.monotonic() - begun)
            facts = {"request_id": request_id, "method": scope["method"], "path": scope["path"], "status": status}
            log.info("%s %s %d", scope["method"], scope["path"], status, extra={**facts, "ms": round(took, 1)})


class Observed:
    """Tells observers of every request when it is over."""

    def __init__(self, app: ASGIApp, observers: Sequence[Observer]) -> None:
        self._app = app
        self._observers = observers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        came, begun, status = time.time_ns(), time.monotonic(), 0
        until_answer: float | None = None

        async def watched(message: Message) -> None:
            nonlocal status, until_answer
            if message["type"] == "http.response.start":
                status, until_answer = message["status"], time.monotonic() - begun
            await send(message)

        try:
            return await self._app(scope, receive, watched)
        finally:
            took = time.monotonic() - begun
            answered = Answered(
                scope["method"], _route(scope), status, came, took if until_answer is None else until_answer, took,
                scope["kappa.request_id"], Headers(scope=scope),
            )  # fmt: skip
            for tell in self._observers:
                tell(answered)


def _route(scope: Scope) -> str:
    """The template of the route that answered. What stands beside the routes says so itself, as `kappa.route`."""
    if "kappa.route" in scope:
        return scope["kappa.route"]
    return getattr(scope.get("route"), "path", UNMATCHED)


class ShutdownGuard:
    """Turns new work away while the server drains. The listeners are still open then, so that the answer arrives."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in ALWAYS_ANSWERED:
            return await self._app(scope, receive, send)
        if self._guard.draining:
            refusal = problems.response(
                503, "draining", "the server is about to stop: try another, or later",
                request_id=scope.get("kappa.request_id"), retry_after=5, headers={"Connection": "close"},
            )  # fmt: skip
            return await refusal(scope, receive, send)
        self._guard.under_way += 1
        try:
            return await self._app(scope, receive, send)
        finally:
            self._guard.under_way -= 1


class Head:
    """HEAD is GET without the body, on every route that has GET."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            return await self._app(scope, receive, send)

        answering = anyio.CancelScope()

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body"})
                answering.cancel()  # a stream would go on for nobody

        inner = {**scope, "method": "GET"}
        try:
            with answering:
                await self._app(inner, receive, without_body)
        finally:
            scope.update({name: inner[name] for name in ("route", "kappa.route") if name in inner})


class BodyLimit:
    """Refuses a body that is too large: by what it says of itself before any of it is read, or when it gets there."""

    def __init__(self, app: ASGIApp, limit: int, exempt: Callable[[str], bool] = lambda _: False) -> None:
        self._app = app
        self._limit = limit
        self._exempt = exempt

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._exempt(scope["path"]):
            return await self._app(scope, receive, send)
        said = Headers(scope=scope).get("content-length", "")
        if said.isdigit() and int(said) > self._limit:
            return await self._refuse(scope, receive, send)
        read = 0

        async def bounded() -> Message:
            nonlocal read
            message = await receive()
            if message["type"] == "http.request":
                read += len(message.get("body", b""))
                if read > self._limit:
                    # As this, FastAPI lets it through where it reads a body; anything else would become a 400.
                    raise HTTPException(413, self._too_large, {"Connection": "close"})
            return message

        return await self._app(scope, bounded, send)

    @property
    def _too_large(self) -> str:
        return f"a body has {self._limit} bytes at most"

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = problems.response(
            413, "too_large", self._too_large,
            request_id=scope.get("kappa.request_id"), headers={"Connection": "close"},
        )  # fmt: skip
        await refusal(scope, receive, send)
