"""The HTTP API as tools use it: models in, models out, in the name of whoever called the tool."""

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, TypeVar

import httpx2
from pydantic import BaseModel

from kappa.app import remote
from kappa.app.errors import Refused

M = TypeVar("M", bound=BaseModel)


class Api:
    """A server, reached by the client that belongs to the caller of the moment."""

    def __init__(self, client: Callable[[], httpx2.AsyncClient]) -> None:
        self._client = client

    async def get(self, path: str, model: type[M], params: Mapping[str, Any] | None = None) -> M:
        return await self._ask("GET", path, model, params=_given(params or {}))

    async def get_list(self, path: str, model: type[M], params: Mapping[str, Any] | None = None) -> list[M]:
        client = self._client()
        with remote.reaching(_place(client)):
            response = await client.request("GET", path, params=_given(params or {}))
        return remote.read(list[model], remote.check(response).content)

    async def get_bytes(self, path: str, most: int) -> bytes:
        """A file; one that is longer is refused, and not read to its end."""
        client, data = self._client(), b""
        with remote.reaching(_place(client)):
            async with client.stream("GET", path) as response:
                if not response.is_success:
                    await response.aread()
                    remote.check(response)
                async for piece in response.aiter_bytes():
                    data += piece
                    if len(data) > most:
                        raise Refused(f"{path} has more than {most:,} bytes; it is downloaded from there over HTTP")
        return data

    async def post(self, path: str, model: type[M], body: Mapping[str, Any] | None = None) -> M:
        return await self._send("POST", path, model, body or {})

    async def patch(self, path: str, model: type[M], body: Mapping[str, Any]) -> M:
        return await self._send("PATCH", path, model, body)

    async def delete(self, path: str) -> None:
        client = self._client()
        with remote.reaching(_place(client)):
            remote.check(await client.request("DELETE", path))

    async def events(self, path: str, event: str, model: type[M]) -> AsyncGenerator[M]:
        """The events of this name, until the server ends the stream."""
        client = self._client()
        with remote.reaching(_place(client)):
            async with client.stream("GET", path) as response:
                if not response.is_success:
                    await response.aread()
                    remote.check(response)
                async for sent in httpx2.EventSource(response, max_event_size=None):
                    if sent.event == event:
                        yield remote.read(model, sent.data)

    async def _send(self, method: str, path: str, model: type[M], body: Mapping[str, Any]) -> M:
        # ASCII alone: half a surrogate pair, which JSON can say and UTF-8 can't, is the server's to refuse.
        content = json.dumps(_given(body)).encode()
        return await self._ask(method, path, model, content=content, headers={"Content-Type": "application/json"})

    async def _ask(self, method: str, path: str, model: type[M], **how: Any) -> M:
        client = self._client()
        with remote.reaching(_place(client)):
            response = await client.request(method, path, **how)
        return remote.read(model, remote.check(response).content)


def _place(client: httpx2.AsyncClient) -> remote.Place:
    return remote.Place(str(client.base_url).rstrip("/"), token="")


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without what was left out: the API has the defaults."""
    return {name: value for name, value in values.items() if value is not None}
