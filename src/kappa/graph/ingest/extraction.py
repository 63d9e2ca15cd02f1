"""What a provider finds in a text, and the step that holds it against the text.

Every provider, a model in the house or a service elsewhere, gives the same `Extraction`. None of it is trusted: `check`
keeps a quote only where it really stands, and says where to the character. What it returns can be written as it is.

GraphError
├── ProviderDown     nothing can be had of a provider for now; says when to ask again
└── BadExtraction    what a provider said of one text can't be used; another text may fare better
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from kappa.graph.errors import GraphError
from kappa.graph.identity import normal

Modality = Literal["", "possible", "necessary", "intended", "future", "claimed", "conditional", "rare"]
"""How a text puts a relation: "" says it outright; "claimed" lets somebody else say it."""


class ProviderDown(GraphError):
    """A provider that doesn't answer, or answers nobody for now. The work waits; it has not failed."""

    def __init__(self, text: str, retry_after: float) -> None:
        super().__init__(text)
        self.retry_after = retry_after
        """Seconds."""


class BadExtraction(GraphError):
    """What a provider said of one text can't be used: it is cut off, no JSON, refused, too long."""


@dataclass(frozen=True, slots=True)
class FoundConcept:
    """A concept that a text speaks of."""

    label: str
    description: str = ""
    search_terms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FoundInstance:
    """A quote that is said to speak of a concept. `start` is where the provider believes it stands."""

    label: str
    quote: str
    start: int | None = None


@dataclass(frozen=True, slots=True)
class FoundRelation:
    """A relation between two of the concepts. What is denied has a type of its own, `NOT_…`."""

    from_label: str
    to_label: str
    type: str
    confidence: float
    category: str = ""
    modality: Modality = ""


@dataclass(frozen=True, slots=True)
class Extraction:
    """All that a provider found, as it said it."""

    concepts: tuple[FoundConcept, ...] = ()
    instances: tuple[FoundInstance, ...] = ()
    relations: tuple[FoundRelation, ...] = ()


@dataclass(frozen=True, slots=True)
class Context:
    """What a provider may know besides the text. It may ignore it."""

    ontology: str = ""
    document: str = ""
    known_labels: Sequence[str] = ()
    """Labels that are in the graph already, to be used again where they fit."""


class Extractor(Protocol):
    """A provider. Blocking, and safe to call from many threads.

    Raises `ProviderDown`, and `BadExtraction` where only this text is concerned. Whatever else it raises is a fault.
    """

    @property
    def name(self) -> str:
        """Provider and model, for provenance."""
        ...

    def extract(self, text: str, context: Context = ...) -> Extraction: ...


@dataclass(frozen=True, slots=True)
class Quote:
    """A quote with its place: `text[start:end]` is it."""

    label: str
    quote: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """What was not kept, for the job's result."""

    quotes: int = 0
    """Quotes that do not stand in the text."""
    instances: int = 0
    """Instances of a concept that the provider did not name."""
    relations: int = 0
    """Relations of such a concept, of one with itself, without a type or with a confidence that is no number."""
    concepts: int = 0
    """Concepts without a label."""

    def __add__(self, other: "Dropped") -> "Dropped":
        return Dropped(
            self.quotes + other.quotes,
            self.instances + other.instances,
            self.relations + other.relations,
            self.concepts + other.concepts,
        )


@dataclass(frozen=True, slots=True)
class Checked:
    """What is left of an extraction: each label once, every end of a relation and every quote real."""

    concepts: tuple[FoundConcept, ...]
    instances: tuple[Quote, ...]
    relations: tuple[FoundRelation, ...]
    dropped: Dropped


def check(extraction: Extraction, text: str) -> Checked:
    """Hold an extraction against the text it was made from."""
    concepts: dict[str, FoundConcept] = {}
    for concept in extraction.concepts:
        key = normal(concept.label)
        if key:
            before = concepts.get(key)
            concepts[key] = concept if before is None else _united(before, concept)

    places = _Places(text)
    quotes: dict[tuple[str, int, int], Quote] = {}
    lost = strange = 0
    for instance in extraction.instances:
        concept = concepts.get(normal(instance.label))
        place = places.find(instance.quote, instance.start)
        if place is None:
            lost += 1
        elif concept is None:
            strange += 1
        else:
            start, end = place
            quotes.setdefault((concept.label, start, end), Quote(concept.label, text[start:end], start, end))

    relations: dict[tuple[str, str, str], FoundRelation] = {}
    wrong = 0
    for relation in extraction.relations:
        start, end = concepts.get(normal(relation.from_label)), concepts.get(normal(relation.to_label))
        kind = " ".join(relation.type.split())
        if start is None or end is None or start is end or not kind or not math.isfinite(relation.confidence):
            wrong += 1
            continue
        found = FoundRelation(
            start.label, end.label, kind, min(1.0, max(0.0, relation.confidence)), relation.category, relation.modality
        )
        key = (start.label, end.label, kind)
        if key not in relations or relations[key].confidence < found.confidence:
            relations[key] = found

    nameless = sum(not normal(concept.label) for concept in extraction.concepts)
    return Checked(
        tuple(concepts.values()),
        tuple(quotes.values()),
        tuple(relations.values()),
        Dropped(quotes=lost, instances=strange, relations=wrong, concepts=nameless),
    )


def _united(one: FoundConcept, other: FoundConcept) -> FoundConcept:
    terms = tuple(dict.fromkeys((*one.search_terms, *other.search_terms)))
    return FoundConcept(one.label, one.description or other.description, terms)


_PLAIN = str.maketrans("‘’‚“”„«»–—‑\u00a0\u202f\u2009", '\'\'\'"""""---   ')
"""One character for one, so that places stay the same."""


class _Places:
    """Finds quotes in one text. Quotation marks, dashes and white space may differ; words may not."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._loose = ""
        self._at: list[int] = []

    def find(self, quote: str, hint: int | None) -> tuple[int, int] | None:
        quote = quote.strip()
        if not quote:
            return None
        if hint is not None and hint >= 0 and self._text.startswith(quote, hint):
            return hint, hint + len(quote)
        start = self._text.find(quote)
        if start >= 0:
            return start, start + len(quote)
        if not self._at:
            self._loosen()
        loose = " ".join(quote.translate(_PLAIN).split())
        start = self._loose.find(loose)
        if start < 0:
            return None
        return self._at[start], self._at[start + len(loose) - 1] + 1

    def _loosen(self) -> None:
        kept: list[str] = []
        for place, character in enumerate(self._text.translate(_PLAIN)):
            if character.isspace():
                if kept and kept[-1] == " ":
                    continue
                character = " "
            kept.append(character)
            self._at.append(place)
        self._loose = "".join(kept)
