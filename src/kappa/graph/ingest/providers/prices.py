"""What a model's tokens cost, from prices.toml and from a file that a setting names. An unknown model has no price."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cache
from pathlib import Path
from typing import Any

from kappa.graph.ingest.providers.errors import ProviderRefused

MILLION = Decimal(1_000_000)
_DATED = re.compile(r"-(\d{8}|\d{4}-\d{2}-\d{2}|latest)$")


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens."""

    input: Decimal
    output: Decimal


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices by provider and model."""

    models: Mapping[tuple[str, str], Price]
    as_of: str

    def price(self, provider: str, model: str, tokens_in: int, tokens_out: int) -> Decimal | None:
        """Dollars; None if nobody told the price. A dated name has the price of the model that it is one of."""
        for name in (model, _DATED.sub("", model), "*"):
            found = self.models.get((provider, name))
            if found is not None:
                return (found.input * tokens_in + found.output * tokens_out) / MILLION
        return None


@cache
def prices(own: Path | None = None) -> Prices:
    """The table that Kappa brings; what stands in `own` counts before it."""
    made = _read(Path(__file__).with_suffix(".toml"))
    if own is None:
        return made
    more = _read(own)
    return Prices({**made.models, **more.models}, more.as_of or made.as_of)


def price(model: str, tokens_in: int, tokens_out: int, table: Prices | None = None) -> Decimal | None:
    """The price of a model by its full name, `provider/model`, for estimates."""
    provider, _, name = model.partition("/")
    return (table or prices()).price(provider, name, tokens_in, tokens_out)


def _read(path: Path) -> Prices:
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        as_of = str(data.pop("as_of", ""))
        models = {
            (provider, model): Price(Decimal(entry["input"]), Decimal(entry["output"]))
            for provider, entries in data.items()
            for model, entry in entries.items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError, InvalidOperation) as error:
        raise ProviderRefused(f"the prices in {path} can't be read: {error!r}") from error
    return Prices(models, as_of)
