"""How `kg` and agents reach a server: where it is, with which token, and its refusals as errors of one line."""

import json
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar
from urllib.parse import quote

import httpx2
from pydantic import TypeAdapter, ValidationError

from kappa.app import home
from kappa.app.errors import AppError
from kappa.app.settings import Settings

T = TypeVar("T")

TIMEOUT = httpx2.Timeout(30.0, connect=5.0)
LONG = httpx2.Timeout(600.0, connect=5.0)
"""For a document, which the server reads before it answers."""


class ServerNotFound(AppError):
    """No server runs here, and none was named; or the one that was named doesn't answer."""


class BadToken(AppError):
    """What was given as a token is none."""


class ServerRefused(AppError):
    """The server said no; the text is what it said."""

    def __init__(self, status: int, code: str, text: str, problem: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.problem = problem or {}
        """All that it said, for those who know this code."""

    @property
    def not_now(self) -> bool:
        """The same request may well succeed a little later: the server drains, or has no database."""
        return self.status in (502, 503, 504)


class Unspeakable(AppError):
    """No request can be made of what was asked for."""


class ServerSpeaksOtherwise(AppError):
    """The answer is not what this version of `kg` understands."""


@dataclass(frozen=True, slots=True)
class Place:
    """A server, and what to show it."""

    url: str
    token: str = field(repr=False)
    local: bool = False
    """It runs on this machine: no proxy stands between."""

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


def find(settings: Settings) -> Place:
    """The server that the settings name, or the one that runs on this machine with the same Kappa home."""
    given = _sendable(settings.token.get_secret_value()) if settings.token is not None else None
    running = [one.url for one in home.running(settings.home)]
    if settings.server is not None:
        url = _address(settings.server)
        # The operator's token is for the servers of this home alone: any other could keep it and come back with it.
        token = given or (home.read_token(settings.home) if url in running else None)
        if token is None:
            raise ServerNotFound(f"KAPPA_TOKEN is not set: {url} wants a token")
        return Place(url, token, local=url in running)
    token = given or home.read_token(settings.home)
    if not running or token is None:
        raise ServerNotFound("no server runs here: start one with `kg up`, or set KAPPA_SERVER and KAPPA_TOKEN")
    return Place(running[0], token, local=True)


def _sendable(token: str) -> str:
    """A token as it can stand in a header; one that can't is nowhere shown."""
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise BadToken("the token has characters in it that no token has: was all of it copied, and nothing else?")
    return token


def _address(server: str) -> str:
    """A server's address as it can be shown, and asked."""
    if "@" in server:
        raise ServerNotFound("KAPPA_SERVER has a user or a password in it; what a server wants is KAPPA_TOKEN")
    try:
        known = httpx2.URL(server).scheme in ("http", "https")
        wrong = "" if known else "not an address as in https://kappa.example"
    except httpx2.InvalidURL as error:
        wrong = str(error)
    if wrong:
        raise ServerNotFound(f"KAPPA_SERVER is {server!r}: {wrong}")
    return server.rstrip("/")


@contextmanager
def open_client(settings: Settings) -> Generator[httpx2.Client]:
    """A blocking client of the server; `check` its answers."""
    place = find(settings)
    with (
        reaching(place),
        httpx2.Client(base_url=place.url, headers=place.headers, timeout=TIMEOUT, trust_env=not place.local) as client,
    ):
        yield client


@contextmanager
def reaching(place: Place) -> Generator[None]:
    """Failures on the way, as errors that say where the way led."""
    try:
        yield
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
        raise Unspeakable(f"the server can't be asked for that: {error}") from None
    except httpx2.TransportError as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ServerNotFound(f"the server at {place.url} doesn't answer: {reason}") from None


def check(response: httpx2.Response) -> httpx2.Response:
    """The response, unless it is a refusal."""
    if response.is_success:
        return response
    try:
        problem = response.json()
        text, code = str(problem["detail"]), str(problem["code"])
    except (ValueError, KeyError, TypeError):
        text, code, problem = f"the server answered {response.status_code}", "unknown", None
    raise ServerRefused(response.status_code, code, text, problem)


class Server:
    """A server's routes, called one after the other: answers are values, refusals are errors."""

    def __init__(self, client: httpx2.Client) -> None:
        self._client = client

    def get(self, path: str, answer: type[T], params: Mapping[str, Any] | None = None) -> T:
        given = {name: value for name, value in (params or {}).items() if value is not None}
        return read(answer, check(self._client.get(path, params=given)).content)

    def post(self, path: str, answer: type[T], body: object = None, *, within: float | None = None) -> T:
        """`within`: seconds, where the answer may take longer than usual."""
        return read(answer, self._send("POST", path, body, within).content)

    def upload(
        self, path: str, answer: type[T], params: Mapping[str, Any], pieces: Iterable[bytes], size: int | None
    ) -> T:
        """Send bytes as they come; `size` is how many there will be, where that is known."""
        headers = {"Content-Type": "application/octet-stream"}
        if size is not None:
            headers["Content-Length"] = str(size)
        return read(
            answer,
            check(self._client.post(path, params=params, content=pieces, headers=headers, timeout=LONG)).content,
        )

    def put(self, path: str, answer: type[T], body: object) -> T:
        return read(answer, self._send("PUT", path, body).content)

    def patch(self, path: str, answer: type[T], body: object) -> T:
        return read(answer, self._send("PATCH", path, body).content)

    def delete(self, path: str) -> None:
        self._send("DELETE", path, None)

    def put_only(self, path: str, body: object) -> None:
        """Put something that the server answers with nothing."""
        self._send("PUT", path, body)

    def _send(self, method: str, path: str, body: object, within: float | None = None) -> httpx2.Response:
        # ASCII alone: half a surrogate pair, which JSON can say and UTF-8 can't, is the server's to refuse.
        content = None if body is None else json.dumps(body).encode()
        headers = None if body is None else {"Content-Type": "application/json"}
        timeout = TIMEOUT if within is None else httpx2.Timeout(within, connect=TIMEOUT.connect)
        return check(self._client.request(method, path, content=content, headers=headers, timeout=timeout))


@contextmanager
def open_server(settings: Settings) -> Generator[Server]:
    with open_client(settings) as client:
        yield Server(client)


def segment(name: str) -> str:
    """A name as one part of a path, whatever it contains."""
    # Written in any way, these two would lead to another path; and an empty one to a list.
    if name in ("", ".", ".."):
        raise Unspeakable(f"nothing is called {name!r}")
    return quote(name, safe="")


def read(answer: type[T], content: bytes | str) -> T:
    """An answer as what it should be."""
    try:
        return _adapter(answer).validate_json(content)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, fault["loc"])) or "the answer"
        raise ServerSpeaksOtherwise(f"the server is of another version than this kg: {where}: {fault['msg']}") from None


@cache
def _adapter(answer: type[T]) -> TypeAdapter[T]:
    return TypeAdapter(answer)
