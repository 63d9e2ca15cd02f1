"""The providers `openai`, `anthropic` and `ollama`, by their own SDKs.

extractor = make("openai", ProviderConfig(model="gpt-5.6-luna"))
with on_account(should_stop) as account:
    extractor.extract(text)
account.usage

Each call goes through the one line of its provider (line.py): limits, retries, the circuit and the counts are there.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from kappa.graph.ingest.providers.account import Account, Usage, on_account
from kappa.graph.ingest.providers.adapter import Adapter
from kappa.graph.ingest.providers.anthropic import AnthropicAdapter
from kappa.graph.ingest.providers.backoff import Backoff
from kappa.graph.ingest.providers.config import STANDARD, ProviderConfig, Standard
from kappa.graph.ingest.providers.errors import CallStopped, ProviderRefused
from kappa.graph.ingest.providers.extractor import ModelExtractor
from kappa.graph.ingest.providers.line import PROCESS, Line, Switchboard
from kappa.graph.ingest.providers.ollama import OllamaAdapter
from kappa.graph.ingest.providers.openai import OpenAIAdapter
from kappa.graph.ingest.providers.prices import Prices, price, prices

if TYPE_CHECKING:
    from kappa.graph.ingest.providers.embedder import ModelEmbedder

__all__ = [
    "PROCESS",
    "STANDARD",
    "Account",
    "CallStopped",
    "ModelExtractor",
    "Prices",
    "ProviderConfig",
    "ProviderRefused",
    "Switchboard",
    "Usage",
    "make",
    "make_embedder",
    "on_account",
    "price",
    "prices",
]

ADAPTERS: dict[str, Callable[[str, ProviderConfig, float], Adapter]] = {
    "openai": OpenAIAdapter,
    "anthropic": AnthropicAdapter,
    "ollama": OllamaAdapter,
}


def make(name: str, config: ProviderConfig | None = None, switchboard: Switchboard = PROCESS) -> ModelExtractor:
    """A provider's model for texts and images."""
    config = config or ProviderConfig()
    return ModelExtractor(_line(name, config.model or _standard(name).model, config, switchboard))


def make_embedder(
    name: str, config: ProviderConfig | None = None, switchboard: Switchboard = PROCESS
) -> "ModelEmbedder":
    """A provider's model for vectors."""
    from kappa.graph.ingest.providers.embedder import ModelEmbedder  # the only part that needs numpy

    config = config or ProviderConfig()
    if not _standard(name).embedding_model:
        raise ProviderRefused(f"the provider {name!r} has no embeddings")
    line = _line(name, config.model or _standard(name).embedding_model, config, switchboard)
    return ModelEmbedder(line, config.dimensions)


def _standard(name: str) -> Standard:
    if name not in STANDARD:
        raise ProviderRefused(f"there is no provider {name!r}: there are {', '.join(sorted(STANDARD))} and local")
    return STANDARD[name]


def _line(name: str, model: str, config: ProviderConfig, switchboard: Switchboard) -> Line:
    standard = _standard(name)
    adapter = ADAPTERS[name](model, config, config.timeout or standard.timeout)
    concurrency = config.concurrency or standard.concurrency
    return switchboard.line(name, model, adapter, config.prices, concurrency, Backoff(tries=config.tries))
