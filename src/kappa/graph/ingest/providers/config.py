"""How a provider is reached, and its numbers with their defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kappa.graph.ingest.providers.prices import Prices, prices


@dataclass(frozen=True, slots=True)
class Standard:
    """What holds for a provider if nobody says otherwise."""

    model: str
    embedding_model: str
    """Empty if it has none."""
    concurrency: int
    timeout: float
    key_variable: str
    """Where its SDK looks for the key."""


STANDARD: Mapping[str, Standard] = {
    "openai": Standard("gpt-5.6-luna", "text-embedding-3-small", 8, 120.0, "OPENAI_API_KEY"),
    "anthropic": Standard("claude-haiku-5-5", "", 4, 120.0, "ANTHROPIC_API_KEY"),
    "ollama": Standard("llama3.1", "nomic-embed-text", 1, 600.0, "OLLAMA_API_KEY"),
}


@dataclass(frozen=True, slots=True)
class ProviderConfig:
    """One use of a provider. What is None is the provider's standard."""

    model: str | None = None
    base_url: str | None = None
    """Without one, the SDK's variable or the provider's own address counts."""
    key: str | None = field(default=None, repr=False)
    """Without one, the SDK's variable counts."""
    timeout: float | None = None
    """Seconds that one call may take."""
    concurrency: int | None = None
    """Calls at once, in the whole process, of all uses of the provider together."""
    tries: int = 5
    max_tokens: int = 16_000
    """Tokens that an answer may have, a model's thinking included; a longer one is cut off and refused."""
    window: int = 16_384
    """Tokens that a model of Ollama sees at once; by its own default it would not see the whole text."""
    dimensions: int | None = None
    """Of embeddings, where the model can be asked for fewer."""
    prices: Prices = field(default_factory=prices)
