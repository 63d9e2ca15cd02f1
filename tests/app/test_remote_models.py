"""The models of providers, as the settings have them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kappa.app import settings as app_settings
from kappa.app.kinds import remote_models
from kappa.graph.ingest.providers import PROCESS
from tests.graph.ingest.provider_server import KEY, ProviderServer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProviderServer]:
    with ProviderServer() as running:
        for provider, path in (("OPENAI", "/v1"), ("ANTHROPIC", ""), ("OLLAMA", "")):
            monkeypatch.setenv(f"KAPPA_{provider}_BASE_URL", running.url + path)
            monkeypatch.setenv(f"KAPPA_{provider}_API_KEY", KEY)
        yield running


@pytest.mark.parametrize("provider", remote_models.NAMES)
def test_every_setting_of_a_provider_reaches_it(
    provider: str, server: ProviderServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = provider.upper()
    (tmp_path / "prices.toml").write_text(f'[{provider}]\n"a-model" = {{input = 1_000_000, output = 0}}\n')
    monkeypatch.setenv(f"KAPPA_{name}_MODEL", "a-model")
    monkeypatch.setenv(f"KAPPA_{name}_CONCURRENCY", "7")
    monkeypatch.setenv("KAPPA_PRICES", str(tmp_path / "prices.toml"))
    settings = app_settings.load()
    assert KEY not in repr(settings)
    model = remote_models.extractor(provider, settings)
    assert model.extract("A lease prevents double work.").concepts
    (asked,) = server.asked
    assert asked.body["model"] == "a-model"
    assert KEY in str(asked.headers)
    assert PROCESS.gauges["kappa_provider_calls_limit", (provider,)] == 7
    assert model.usage.cost == model.usage.tokens_in
    assert remote_models.price(provider, settings, 3, 1000) == 3
    model.close()


@pytest.mark.parametrize("provider", remote_models.EMBEDDING_NAMES)
def test_embeddings_have_a_provider_of_their_own(
    provider: str, server: ProviderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"KAPPA_{provider.upper()}_EMBEDDING_MODEL", "a-model")
    monkeypatch.setenv("KAPPA_EMBEDDING_DIMENSIONS", "3")
    embedder = remote_models.embedder(provider, app_settings.load())
    assert embedder.embed(["a"]).shape == (1, 3)
    assert server.asked[0].body["model"] == "a-model"
    assert server.asked[0].body["dimensions"] == 3
    assert embedder.model == f"{provider}/a-model@3"
    embedder.close()


@pytest.mark.parametrize("provider", remote_models.NAMES)
def test_without_settings_the_standard_model_has_its_price(provider: str) -> None:
    assert remote_models.price(provider, app_settings.load(), 1_000_000, 0) is not None
    assert remote_models.AHEAD == {"openai": 7, "anthropic": 3, "ollama": 1}
