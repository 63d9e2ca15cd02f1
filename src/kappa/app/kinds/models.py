"""The models of these settings: what finds concepts, and what makes vectors."""

from typing import TYPE_CHECKING

from kappa.app.settings import EmbeddingProviderName, ProviderName, Settings

if TYPE_CHECKING:
    from kappa.graph.ingest.embedding import Embedder
    from kappa.graph.ingest.extraction import Extractor
    from kappa.graph.ingest.providers import ModelExtractor, ProviderConfig


def extractor(settings: Settings) -> "Extractor":
    """What reads texts. Takes a second or more for `local`: keep it."""
    if settings.provider is ProviderName.LOCAL:
        from kappa.graph.ingest.local.extract import LocalExtractor

        return LocalExtractor()
    return _model(settings)


def reader_of_images(settings: Settings) -> "ModelExtractor | None":
    """A model that can look at images; None where there is only the local OCR."""
    return None if settings.provider is ProviderName.LOCAL else _model(settings)


def embedder(settings: Settings) -> "Embedder":
    """What makes vectors. Close it."""
    if settings.embedding_provider is EmbeddingProviderName.LOCAL:
        from kappa.graph.ingest.local.embed import LocalEmbedder

        return LocalEmbedder()
    from kappa.graph.ingest import providers

    name = settings.embedding_provider.value
    model: str | None = getattr(settings, f"{name}_embedding_model")
    return providers.make_embedder(name, provider_config(settings, name, model))


def provider_config(settings: Settings, name: str, model: str | None) -> "ProviderConfig":
    from kappa.graph.ingest.providers import ProviderConfig, prices

    key = getattr(settings, f"{name}_api_key")
    return ProviderConfig(
        model=model,
        base_url=getattr(settings, f"{name}_base_url"),
        key=key.get_secret_value() if key is not None else None,
        timeout=getattr(settings, f"{name}_timeout"),
        concurrency=getattr(settings, f"{name}_concurrency"),
        tries=settings.provider_tries,
        dimensions=settings.embedding_dimensions,
        prices=prices(settings.prices),
    )


def _model(settings: Settings) -> "ModelExtractor":
    from kappa.graph.ingest import providers

    name = settings.provider.value
    return providers.make(name, provider_config(settings, name, getattr(settings, f"{name}_model")))
