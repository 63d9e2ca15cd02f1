"""What the tests of providers share: a clock that only moves when somebody waits, and ways to make a provider."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from kappa.graph.ingest.providers import ModelExtractor, ProviderConfig, Switchboard, make, make_embedder
from kappa.graph.ingest.providers.account import ShouldStop
from kappa.graph.ingest.providers.clock import Clock
from kappa.graph.ingest.providers.embedder import ModelEmbedder
from tests.graph.ingest.provider_server import KEY, ProviderServer

MODELS = {"openai": "gpt-4.1-mini", "anthropic": "claude-haiku-4-5", "ollama": "llama3.1"}
EMBEDDINGS = {"openai": "text-embedding-test", "ollama": "nomic-embed-text"}
BASE = {"openai": "/v1", "anthropic": "", "ollama": ""}
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


class StillClock(Clock):
    """Time stands still but for waits, which are written down and over at once. Chance is what `chances` say."""

    def __init__(self, chances: Iterator[float] | None = None) -> None:
        self.waits: list[float] = []
        self._now = 1000.0
        self._chances = chances
        self._lock = threading.Lock()

    def now(self) -> float:
        with self._lock:
            return self._now

    def date(self) -> datetime:
        return NOON + timedelta(seconds=self.now() - 1000)

    def chance(self) -> float:
        return next(self._chances) if self._chances is not None else 0.5

    def wait(self, seconds: float, should_stop: ShouldStop) -> bool:
        if should_stop():
            return False
        with self._lock:
            self.waits.append(seconds)
        self.pass_by(seconds)
        return not should_stop()

    def pass_by(self, seconds: float) -> None:
        with self._lock:
            self._now += seconds


class Made:
    """The providers of one test, closed at its end."""

    def __init__(self, board: Switchboard) -> None:
        self.board = board
        self._made: list[ModelExtractor | ModelEmbedder] = []

    def extractor(
        self, provider: str, server: ProviderServer | str, board: Switchboard | None = None, **more: Any
    ) -> ModelExtractor:
        made = make(provider, config(provider, _url(server), **more), board or self.board)
        self._made.append(made)
        return made

    def embedder(
        self, provider: str, server: ProviderServer, board: Switchboard | None = None, **more: Any
    ) -> ModelEmbedder:
        asked = config(provider, server.url, **{"model": EMBEDDINGS[provider], **more})
        made = make_embedder(provider, asked, board or self.board)
        self._made.append(made)
        return made

    def close(self) -> None:
        for one in self._made:
            one.close()


def _url(server: ProviderServer | str) -> str:
    return server if isinstance(server, str) else server.url


def config(provider: str, url: str, **more: Any) -> ProviderConfig:
    settings = {"model": MODELS[provider], "base_url": url + BASE[provider], "key": KEY, **more}
    return ProviderConfig(**settings)
