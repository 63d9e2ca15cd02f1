"""The models that the settings ask for."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kappa.app import settings as app_settings
from kappa.app.kinds import models
from kappa.graph.ingest.local.embed import LocalEmbedder
from kappa.graph.ingest.local.extract import LocalExtractor
from kappa.graph.ingest.providers import PROCESS, ModelExtractor
from kappa.graph.ingest.providers.embedder import ModelEmbedder
from tests.graph.ingest.provider_server import KEY, ProviderServer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProviderServer]:
    with ProviderServer() as running:
        for provider, path in (("OPENAI", "/v1"), ("ANTHROPIC", ""), ("OLLAMA", "")):
            monkeypatch.setenv(f"KAPPA_{provider}_BASE_URL", running.url + path)
            monkeypatch.setenv(f"KAPPA_{provider}_API_KEY", KEY)
        yield running


def test_without_a_setting_everything_is_local() -> None:
    settings = app_settings.load()
    assert isinstance(models.extractor(settings), LocalExtractor)
    assert models.reader_of_images(settings) is None
    embedder = models.embedder(settings)
    assert isinstance(embedder, LocalEmbedder)
    embedder.close()


@pytest.mark.parametrize("provider", ["openai", "anthropic", "ollama"])
def test_every_setting_of_a_provider_reaches_it(
    provider: str, server: ProviderServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = provider.upper()
    (tmp_path / "prices.toml").write_text(f'[{provider}]\n"a-model" = {{input = 1_000_000, output = 0}}\n')
    monkeypatch.setenv("KAPPA_PROVIDER", provider)
    monkeypatch.setenv(f"KAPPA_{name}_MODEL", "a-model")
    monkeypatch.setenv(f"KAPPA_{name}_CONCURRENCY", "7")
    monkeypatch.setenv("KAPPA_PRICES", str(tmp_path / "prices.toml"))
    settings = app_settings.load()
    assert KEY not in repr(settings)
    model = models.extractor(settings)
    assert isinstance(model, ModelExtractor)
    assert model.extract("A lease prevents double work.").concepts
    (asked,) = server.asked
    assert asked.body["model"] == "a-model"
    assert KEY in str(asked.headers)
    assert PROCESS.gauges["kappa_provider_calls_limit", (provider,)] == 7
    assert model.usage.cost == model.usage.tokens_in
    model.close()


@pytest.mark.parametrize("provider", ["openai", "ollama"])
def test_embeddings_have_a_provider_of_their_own(
    provider: str, server: ProviderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAPPA_EMBEDDING_PROVIDER", provider)
    monkeypatch.setenv(f"KAPPA_{provider.upper()}_EMBEDDING_MODEL", "a-model")
    monkeypatch.setenv("KAPPA_EMBEDDING_DIMENSIONS", "3")
    embedder = models.embedder(app_settings.load())
    assert isinstance(embedder, ModelEmbedder)
    assert embedder.embed(["a"]).shape == (1, 3)
    assert server.asked[0].body["model"] == "a-model"
    assert server.asked[0].body["dimensions"] == 3
    assert embedder.model == f"{provider}/a-model@3"
    embedder.close()


def test_a_provider_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAPPA_EMBEDDING_PROVIDER", "anthropic")
    with pytest.raises(app_settings.BadSetting, match="KAPPA_EMBEDDING_PROVIDER is 'anthropic'"):
        app_settings.load()
