"""An ASGI application of this process behind an HTTP client, streams included.

httpx2's own transport gives an answer when it is whole; an event stream is whole when it is over.
"""

import asyncio
import logging
from collections.abc import AsyncIterator

import httpx2
from starlette.types import ASGIApp, Message, Scope

log = logging.getLogger(__name__)


class InProcess(httpx2.AsyncBaseTransport):
    """Calls the application in a task of its own for each request. Whoever drops the answer ends the task."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        body = _Body(self._app, _scope(request), await request.aread())
        try:
            start = await body.next_message()
        except BaseException:
            await body.aclose()
            raise
        if start is None:
            return httpx2.Response(500, request=request)
        return httpx2.Response(start["status"], headers=start["headers"], stream=body, request=request)


class _Body(httpx2.AsyncByteStream):
    def __init__(self, app: ASGIApp, scope: Scope, sent: bytes) -> None:
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue(1)
        self._sent: bytes | None = sent
        self._task = asyncio.create_task(self._call(app, scope), name=f"{scope['method']} {scope['path']}")

    async def next_message(self) -> Message | None:
        return await self._messages.get()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self.next_message()) is not None:
            yield message.get("body", b"")

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _call(self, app: ASGIApp, scope: Scope) -> None:
        try:
            await app(scope, self._receive, self._messages.put)
        except Exception:
            log.debug("the application raised what it has answered and logged already", exc_info=True)
        await self._messages.put(None)

    async def _receive(self) -> Message:
        if self._sent is None:
            await asyncio.Event().wait()  # a caller who goes away ends the task
        body, self._sent = self._sent, None
        return {"type": "http.request", "body": body, "more_body": False}


def _scope(request: httpx2.Request) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": request.url.raw_path.split(b"?")[0],
        "query_string": request.url.query,
        "server": (request.url.host, request.url.port),
        "client": ("127.0.0.1", 0),
        "root_path": "",
    }
