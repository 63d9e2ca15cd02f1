"""Routes whose answer may be a stream, which lasts no longer than the permission to read it."""

from collections.abc import Callable, Coroutine
from typing import Any

import anyio
from fastapi import Request, Response
from starlette.responses import FileResponse, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from kappa.app.api.json_body import JsonRoute
from kappa.app.services import Services
from kappa.app.usecases.open_streams import Credential

EVENTS = "text/event-stream"


class Route(JsonRoute):
    """A route; every stream that it answers with ends when its reader may no longer read it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        permission: str = (self.openapi_extra or {})["x-permission"]

        async def answer(request: Request) -> Response:
            state = request.state  # made here, so that what a handler's own request notes is seen
            response = await handle(request)
            credential: Credential | None = getattr(state, "credential", None)
            if credential is not None and isinstance(response, (StreamingResponse, FileResponse)):
                return _WhileAllowed(response, request.app.state.services, credential, permission)
            return response

        return answer


class _WhileAllowed(Response):
    """A stream that can be ended from outside."""

    def __init__(self, stream: Response, services: Services, credential: Credential, permission: str) -> None:
        self._stream = stream
        self._services = services
        self._credential = credential
        self._permission = permission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_sending = False

        async def noted(message: Message) -> None:
            nonlocal is_sending
            await send(message)
            is_sending = message["type"] == "http.response.start" or message.get("more_body", False)

        with anyio.CancelScope() as sending:
            with self._services.open_streams.ended_by(sending.cancel, self._credential, self._permission):
                await self._stream(scope, receive, noted)
        if sending.cancel_called and is_sending and self._stream.media_type == EVENTS:
            await send({"type": "http.response.body"})
        # Of a file, the connection breaks: nobody must take a part for the whole.
