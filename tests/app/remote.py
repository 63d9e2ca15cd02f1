"""A remote worker that speaks ASGI to the application as uvicorn does: it may send no body, or hang up."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import unquote

from starlette.types import Message

from tests.app.conftest import Site


class Request:
    """One request under way."""

    def __init__(
        self,
        site: Site,
        method: str,
        path: str,
        token: str | None,
        *,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        patience: asyncio.Event | None = None,
    ) -> None:
        """Takes no more than the first piece of the answer before `patience`."""
        said = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        if token is not None:
            said.append((b"authorization", f"Bearer {token}".encode()))
        self._scope: dict[str, Any] = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": method,
            "scheme": "http", "path": unquote(path), "raw_path": path.encode(), "query_string": query.encode(),
            "root_path": "", "client": ("127.0.0.1", 1), "server": ("kappa.test", 80), "headers": said,
        }  # fmt: skip
        self._app = site.app
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.pieces: list[int] = []
        self._patience = patience

    def begin(self) -> Self:
        self._task = asyncio.create_task(self._app(self._scope, self._incoming.get, self._take))
        return self

    def send(self, body: bytes, *, more: bool = False) -> Self:
        self._incoming.put_nowait({"type": "http.request", "body": body, "more_body": more})
        return self

    def hang_up(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})

    @property
    def under_way(self) -> bool:
        return self._task is not None and not self._task.done()

    async def answer(self) -> Self:
        assert self._task is not None
        await asyncio.wait_for(self._task, 30)
        return self

    def json(self) -> Any:
        return json.loads(self.body)

    async def _take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.body += message.get("body", b"")
            self.pieces.append(len(message.get("body", b"")))
            if self._patience is not None:
                await self._patience.wait()


class Remote:
    """A worker with a name and a token."""

    def __init__(self, site: Site, token: str | None, name: str = "w") -> None:
        self._site = site
        self.token = token
        self.name = name

    def begin(self, call: str, method: str = "POST", patience: asyncio.Event | None = None, **query: Any) -> Request:
        """A request whose body is still to come."""
        words = "&".join(f"{name}={value}" for name, value in query.items())
        return Request(self._site, method, f"/fleet/v1/{call}", self.token, query=words, patience=patience).begin()

    def says(self, call: str, **words: Any) -> Request:
        return self.begin(call).send(json.dumps({"worker": self.name, **words}).encode())

    async def call(self, call: str, **words: Any) -> Request:
        return await self.says(call, **words).answer()

    async def ask(self, request: str = "r1", *, kinds: tuple[str, ...] = ("crunch",), **words: Any) -> Request:
        return await self.call("request_task", request_id=request, kinds=list(kinds), **words)

    async def task(self, request: str = "r1", **words: Any) -> dict[str, Any]:
        """The task that is given, as it is named in every word about it."""
        (given,) = (await self.ask(request, **words)).json()["tasks"]
        return {"task": given["task"], "token": given["token"]}

    async def file(self, method: str, call: str, body: bytes | list[bytes] = b"", **query: Any) -> Request:
        request = self.begin(call, method, worker=self.name, **query)
        pieces = [body] if isinstance(body, bytes) else body
        for place, piece in enumerate(pieces):
            request.send(piece, more=place < len(pieces) - 1)
        return await request.answer()
