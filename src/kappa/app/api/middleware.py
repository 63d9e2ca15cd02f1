"""Pure ASGI middleware: request ids, the guard of a server that drains, HEAD, body size, security headers.

None of them looks into a body or holds a response back: streams pass through.
"""

import logging
import re
import secrets
import time
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kappa.app.api import problems

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

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        return await self._app({**scope, "method": "GET"}, receive, without_body)


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
        read, begun = 0, False

        async def bounded() -> Message:
            nonlocal read
            message = await receive()
            if message["type"] == "http.request":
                read += len(message.get("body", b""))
                if read > self._limit:
                    raise _TooLarge
            return message

        async def sent(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            return await self._app(scope, bounded, sent)
        except _TooLarge:
            if begun:
                raise
            return await self._refuse(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = problems.response(
            413, "too_large", f"a body has {self._limit} bytes at most",
            request_id=scope.get("kappa.request_id"), headers={"Connection": "close"},
        )  # fmt: skip
        await refusal(scope, receive, send)


class _TooLarge(Exception):
    pass
