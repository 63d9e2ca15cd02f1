"""How `kg` and agents reach a server: where it is, with which token, and its refusals as errors of one line."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx2

from kappa.app import home
from kappa.app.errors import AppError
from kappa.app.settings import Settings

TIMEOUT = httpx2.Timeout(30.0, connect=5.0)


class ServerNotFound(AppError):
    """No server runs here, and none was named."""


class ServerRefused(AppError):
    """The server said no; the text is what it said."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class Place:
    """A server, and what to show it."""

    url: str
    token: str = field(repr=False)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


def find(settings: Settings) -> Place:
    """The server that the settings name, or the one that runs on this machine with the same Kappa home."""
    token = settings.token.get_secret_value() if settings.token is not None else home.read_token(settings.home)
    if settings.server is not None:
        if token is None:
            raise ServerNotFound(f"KAPPA_TOKEN is not set: {settings.server} wants a token")
        return Place(settings.server.rstrip("/"), token)
    running = home.running(settings.home)
    if not running or token is None:
        raise ServerNotFound("no server runs here: start one with `kg up`, or set KAPPA_SERVER and KAPPA_TOKEN")
    return Place(running[0].url, token)


@contextmanager
def open_client(settings: Settings) -> Generator[httpx2.Client]:
    """A blocking client of the server; `check` its answers."""
    place = find(settings)
    with reaching(place), httpx2.Client(base_url=place.url, headers=place.headers, timeout=TIMEOUT) as client:
        yield client


@contextmanager
def reaching(place: Place) -> Generator[None]:
    """Failures on the way, as errors that say where the way led."""
    try:
        yield
    except httpx2.TransportError as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ServerNotFound(f"the server at {place.url} doesn't answer: {reason}") from None
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
        raise ServerNotFound(f"KAPPA_SERVER is {place.url!r}: {error}") from None


def check(response: httpx2.Response) -> httpx2.Response:
    """The response, unless it is a refusal."""
    if response.is_success:
        return response
    try:
        problem = response.json()
        text, code = str(problem["detail"]), str(problem["code"])
    except (ValueError, KeyError, TypeError):
        text, code = f"the server answered {response.status_code}", "unknown"
    raise ServerRefused(response.status_code, code, text)
