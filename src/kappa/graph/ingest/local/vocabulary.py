"""The words of vocabulary.toml, as the parser's reader asks for them."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a verb, or a verb with its preposition, says."""

    type: str
    category: str
    turned: bool = False
    """From the object to the subject."""


@dataclass(frozen=True, slots=True)
class Hedge:
    """A way to say something without saying that it is so."""

    name: str
    factor: float
    aux: frozenset[str]
    adverbs: frozenset[str]
    verbs: frozenset[str]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """All of it."""

    meanings: Mapping[str, Meaning]
    categories: Mapping[str, str]
    hedges: tuple[Hedge, ...]
    of: frozenset[str]
    """"number of X" is X."""
    generic: frozenset[str]
    modifiers: frozenset[str]
    plural: frozenset[str]
    """Plurals without a singular."""
    irregular: Mapping[str, str]
    """Plurals that the model doesn't know."""


@cache
def vocabulary() -> Vocabulary:
    data: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    phrases, hedges = data.pop("phrases"), data.pop("hedges")
    meanings: dict[str, Meaning] = {}
    for name, entry in data.items():
        for word in entry["words"]:
            meanings[word.removeprefix("<")] = Meaning(name, entry["category"], word.startswith("<"))
    return Vocabulary(
        meanings=meanings,
        categories={name: entry["category"] for name, entry in data.items()},
        hedges=tuple(
            Hedge(name, hedge["factor"], *(frozenset(hedge[words]) for words in ("aux", "adverbs", "verbs")))
            for name, hedge in hedges.items()
        ),
        of=frozenset(phrases["of"]),
        generic=frozenset(phrases["generic"]),
        modifiers=frozenset(phrases["modifiers"]),
        plural=frozenset(phrases["plural"]),
        irregular=phrases["irregular"],
    )
