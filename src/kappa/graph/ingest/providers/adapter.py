"""What the SDKs have in common: a question in, an answer or a fault out. All else is the same for all providers."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

from kappa.graph.errors import MissingExtra
from kappa.graph.ingest.providers.backoff import Trouble, trouble_of
from kappa.graph.ingest.providers.errors import ProviderRefused


@dataclass(frozen=True, slots=True)
class Image:
    """A picture to look at."""

    data: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model said."""

    text: str
    cut_off: bool
    """It reached the limit of tokens."""
    declined: bool
    """The model, or a filter before it, would not answer."""
    tokens_in: int
    tokens_out: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Vectors as they came, in the order of the texts."""

    vectors: Sequence[Sequence[float]]
    tokens_in: int
    tokens_out: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """Why there was no answer."""

    trouble: Trouble
    status: int | None = None
    retry_after: str | None = None
    """The header, as it came."""
    said: str = ""
    """The provider's own words."""


def status_fault(status: int, headers: Any, said: str) -> Fault:
    return Fault(trouble_of(status), status, headers.get("retry-after") if headers is not None else None, said)


def words(body: Any) -> str:
    """The message in the body of an error, as both OpenAI and Anthropic put it."""
    while isinstance(body, dict):
        found = cast("dict[str, Any]", body)
        body = found.get("message") or found.get("error")
    return body if isinstance(body, str) else ""


class Adapter(Protocol):
    """One SDK. Makes one call, without retries of its own. Safe to use from many threads."""

    @property
    def where(self) -> str:
        """Host and port, for messages."""
        ...

    @property
    def secrets(self) -> Sequence[str]:
        """What must not stand in a message."""
        ...

    def ask(self, system: str, user: str, schema: dict[str, Any] | None, image: Image | None) -> Reply: ...

    def embed(self, texts: Sequence[str]) -> Rows: ...

    def fault(self, error: Exception) -> Fault | None:
        """What an SDK's error means; None if it is not about the call."""
        ...

    def close(self) -> None: ...


def sdk(name: str) -> ModuleType:
    """An SDK, or one line that says how to get it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"the package {error.name or name!r} is not installed, which the provider {name!r} needs: "
            f"the extra kappa[{name}] brings it"
        ) from error


def no_key(provider: str, variable: str) -> ProviderRefused:
    return ProviderRefused(f"the provider {provider!r} has no key: set KAPPA_{provider.upper()}_API_KEY or {variable}")


def place(url: str) -> str:
    """Host and port of an address, without what may be secret in it."""
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2]
