"""The models of `openai`, `anthropic` and `ollama` as the settings have them; an SDK is imported when one is made."""

from decimal import Decimal
from typing import TYPE_CHECKING

from kappa.app.settings import Settings
from kappa.graph.ingest import providers
from kappa.graph.ingest.providers import STANDARD, ModelExtractor, ProviderConfig

if TYPE_CHECKING:
    from kappa.graph.ingest.providers.embedder import ModelEmbedder

NAMES = tuple(STANDARD)
EMBEDDING_NAMES = tuple(name for name, standard in STANDARD.items() if standard.embedding_model)
AHEAD = {name: max(1, standard.concurrency - 1) for name, standard in STANDARD.items()}
"""Chunks of one document that it makes sense to ask for at once, beside the one that is written."""


def extractor(name: str, settings: Settings) -> ModelExtractor:
    """What reads texts and images. Close it."""
    return providers.make(name, _config(name, settings, _set(settings, name, "model")))


def embedder(name: str, settings: Settings) -> "ModelEmbedder":
    """What makes vectors. Close it."""
    return providers.make_embedder(name, _config(name, settings, _set(settings, name, "embedding_model")))


def check(name: str, settings: Settings) -> None:
    """An error if the SDK, or the key that it wants, is not there."""
    extractor(name, settings).close()


def price(name: str, settings: Settings, tokens_in: int, tokens_out: int) -> Decimal | None:
    """What texts of so many tokens cost, in US dollars; None if nobody told."""
    model = _set(settings, name, "model") or STANDARD[name].model
    return providers.prices(settings.prices).price(name, model, tokens_in, tokens_out)


def _config(name: str, settings: Settings, model: str | None) -> ProviderConfig:
    key = getattr(settings, f"{name}_api_key")
    return ProviderConfig(
        model=model,
        base_url=_set(settings, name, "base_url"),
        key=key.get_secret_value() if key is not None else None,
        timeout=getattr(settings, f"{name}_timeout"),
        concurrency=getattr(settings, f"{name}_concurrency"),
        tries=settings.provider_tries,
        dimensions=settings.embedding_dimensions,
        prices=providers.prices(settings.prices),
    )


def _set(settings: Settings, name: str, what: str) -> str | None:
    return getattr(settings, f"{name}_{what}")
