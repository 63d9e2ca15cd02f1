"""Relations out of a dependency parse: who does what to whom, in the words of the vocabulary.

Passives are turned, joined subjects and objects are taken one by one, what is denied is kept as denied, and how a text
puts it lowers the confidence. What is only supposed (after "if", under "would", in a question) is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from kappa.graph.ingest.extraction import Modality
from kappa.graph.ingest.local.phrases import NOUNS, spoken_of
from kappa.graph.ingest.local.vocabulary import Meaning, Vocabulary

if TYPE_CHECKING:
    from spacy.tokens import Span, Token


@dataclass(frozen=True, slots=True)
class Said:
    """A relation between two nouns of a sentence."""

    start: Token
    end: Token
    type: str
    category: str
    confidence: float
    modality: Modality


@dataclass(frozen=True, slots=True)
class _Stance:
    """How a clause is meant."""

    negated: bool = False
    modality: Modality = ""
    factor: float = 1.0


PLAIN = 0.8
COPULA = 0.85
WITH_PREPOSITION = 0.75
APPOSITION = 0.6
LIST = 0.7
UNNAMED = 0.35
"""A verb that the vocabulary doesn't have: that the two are related is all that is kept."""
JOINED = 0.95
INHERITED = 0.9
"""A subject that stands with another verb."""
PRONOUN = 0.6

_IF = ("if", "unless", "whether", "lest")
_SUBJECT = ("nsubj", "nsubjpass", "csubj")
_SILENT = {
    "be",
    "do",
    "say",
    "go",
    "come",
    "see",
    "know",
    "think",
    "want",
    "look",
    "ask",
    "tell",
    "try",
    "like",
    "begin",
}


class Reader:
    """Reads the sentences of one paragraph, in order: "it" is what the sentence before spoke of."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._words = vocabulary
        self._last: list[Token] = []

    def read(self, sentence: Span) -> list[Said]:
        said: list[Said] = []
        if not sentence.text.rstrip().endswith("?"):
            for token in sentence:
                if token.pos_ in ("VERB", "AUX") and token.dep_ not in ("aux", "auxpass"):
                    said.extend(self._clause(token))
                elif token.pos_ in NOUNS:
                    said.extend(self._beside(token))
        main = [child for child in sentence.root.children if child.dep_ in ("nsubj", "nsubjpass")]
        if main and main[0].pos_ in NOUNS:
            self._last = spoken_of(main[0], self._words)
        elif not (main and main[0].pos_ == "PRON" and main[0].lower_ in ("it", "they")):
            self._last = []
        return said

    def _clause(self, verb: Token) -> Iterator[Said]:
        stance = self._stance(verb)
        if stance is None:
            return
        subjects, passive = self._subjects(verb)
        particle = next((f" {child.lower_}" for child in verb.children if child.dep_ == "prt"), "")
        name = verb.lemma_.lower() + particle
        if passive:
            done = verb.lower_ + particle
            agents = [(noun, 1.0) for by in verb.children if by.dep_ == "agent" for noun in self._after(by)]
            yield from self._emit(agents, subjects, self._words.meanings.get(name), PLAIN, stance, verb)
            for preposition, nouns in self._prepositions(verb):
                meaning = self._words.meanings.get(f"be {done} {preposition}")
                if name in ("replace", "substitute") and preposition in ("with", "by"):
                    yield from self._emit(nouns, subjects, self._words.meanings["replace"], PLAIN, stance, verb)
                elif meaning is not None:
                    yield from self._emit(subjects, nouns, meaning, WITH_PREPOSITION, stance, verb)
            called = self._words.meanings.get(f"be {done}")
            if called is not None:
                names = [
                    (noun, 1.0)
                    for child in verb.children
                    if child.dep_ in ("oprd", "attr")
                    for noun in self._nouns(child)
                ]
                yield from self._emit(subjects, names, called, PLAIN, stance, verb)
            return
        if name == "be":
            yield from self._copula(verb, subjects, stance)
            return
        objects = [child for child in verb.children if child.dep_ in ("dobj", "obj")]
        prepositions = self._prepositions(verb)
        for head in objects:
            nouns = [(noun, 1.0) for noun in self._nouns(head)]
            idiom = False
            for preposition, inner in (*self._prepositions(head), *prepositions):
                meaning = self._words.meanings.get(f"{name} {head.lemma_.lower()} {preposition}")
                if meaning is not None:
                    idiom = True
                    yield from self._emit(subjects, inner, meaning, WITH_PREPOSITION, stance, verb)
                elif name in ("replace", "substitute") and preposition == "with":
                    idiom = True
                    yield from self._emit(inner, nouns, self._words.meanings["replace"], PLAIN, stance, verb)
            if not idiom:
                meaning = self._words.meanings.get(name)
                denied = any(child.lower_ in ("no", "neither") for child in head.lefts)
                yield from self._emit(subjects, nouns, meaning, PLAIN, _turned(stance, denied), verb)
        for preposition, nouns in prepositions:
            meaning = self._words.meanings.get(f"{name} {preposition}")
            if meaning is not None:
                yield from self._emit(subjects, nouns, meaning, WITH_PREPOSITION, stance, verb)
        if name == "become":
            names = [(noun, 1.0) for child in verb.children if child.dep_ == "attr" for noun in self._nouns(child)]
            yield from self._emit(subjects, names, self._words.meanings["become"], WITH_PREPOSITION, stance, verb)

    def _copula(self, verb: Token, subjects: list[tuple[Token, float]], stance: _Stance) -> Iterator[Said]:
        meanings = self._words.meanings
        for child in verb.children:
            if child.dep_ in ("attr", "acomp"):
                handled = False
                word = child.lemma_.lower()
                for preposition, nouns in (*self._prepositions(child), *self._prepositions(verb)):
                    meaning = meanings.get(f"be {word} {preposition}")
                    if meaning is not None:
                        handled = True
                        yield from self._emit(subjects, nouns, meaning, WITH_PREPOSITION, stance, verb)
                if handled or child.pos_ not in NOUNS:
                    continue
                denied = any(left.lower_ == "no" for left in child.lefts)
                named = child.pos_ == "PROPN" and not any(left.dep_ == "det" for left in child.lefts)
                meaning = (
                    Meaning("SAME_AS", self._words.categories["SAME_AS"])
                    if named
                    else Meaning("IS_A", self._words.categories["IS_A"])
                )
                kinds = [(noun, 1.0) for noun in self._nouns(child)]
                base = APPOSITION if named else COPULA
                yield from self._emit(subjects, kinds, meaning, base, _turned(stance, denied), verb)
        for preposition, nouns in self._prepositions(verb):
            meaning = meanings.get(f"be {preposition}")
            if meaning is not None:
                yield from self._emit(subjects, nouns, meaning, WITH_PREPOSITION, stance, verb)

    def _beside(self, noun: Token) -> Iterator[Said]:
        """What stands beside a noun and says what it is: "X, a Y" and "Xs such as Y"."""
        kind = Meaning("IS_A", self._words.categories["IS_A"])
        for child in noun.rights:
            if (
                child.dep_ == "appos"
                and child.pos_ in NOUNS
                and any(left.lower_ in ("a", "an", "the") for left in child.lefts)
            ):
                if child.pos_ == "NOUN":
                    yield from self._emit([(noun, 1.0)], [(child, 1.0)], kind, APPOSITION, _Stance(), noun)
            elif child.dep_ == "prep" and (
                (child.lower_ == "as" and any(inner.lower_ == "such" for inner in child.lefts))
                or child.lower_ == "including"
            ):
                examples = [(one, 1.0) for one in self._after(child)]
                yield from self._emit(examples, [(noun, 1.0)], kind, LIST, _Stance(), noun)

    def _emit(
        self,
        starts: list[tuple[Token, float]],
        ends: list[tuple[Token, float]],
        meaning: Meaning | None,
        base: float,
        stance: _Stance,
        verb: Token,
    ) -> Iterator[Said]:
        if meaning is None:
            if verb.lemma_.lower() in _SILENT:
                return
            meaning, base = Meaning("RELATES_TO", self._words.categories["RELATES_TO"]), UNNAMED
        if meaning.turned:
            starts, ends = ends, starts
        for start, sure in starts:
            for end, certain in ends:
                if start.i == end.i:
                    continue
                denied = stance.negated != any(left.lower_ == "no" for left in start.lefts)
                yield Said(
                    start,
                    end,
                    f"NOT_{meaning.type}" if denied else meaning.type,
                    meaning.category,
                    base * stance.factor * sure * certain,
                    stance.modality,
                )

    def _nouns(self, token: Token) -> list[Token]:
        return spoken_of(token, self._words)

    def _after(self, preposition: Token) -> list[Token]:
        return [noun for child in preposition.children if child.dep_ == "pobj" for noun in self._nouns(child)]

    def _prepositions(self, token: Token) -> list[tuple[str, list[tuple[Token, float]]]]:
        found: list[tuple[str, list[tuple[Token, float]]]] = []
        for child in token.children:
            if child.dep_ in ("prep", "agent", "dative") and child.pos_ in ("ADP", "SCONJ", "ADJ", "VERB", "ADV"):
                name = child.lower_
                nouns = self._after(child)
                for inner in child.children:
                    if inner.dep_ in ("prep", "pcomp") and not nouns:
                        name, nouns = f"{name} {inner.lower_}", self._after(inner)
                found.append((name, [(noun, 1.0) for noun in nouns]))
        return found

    def _subjects(self, verb: Token, depth: int = 0) -> tuple[list[tuple[Token, float]], bool]:
        """Who a clause speaks of, and whether something is done to them."""
        own = [child for child in verb.children if child.dep_ in _SUBJECT]
        passive = any(child.dep_ in ("auxpass", "nsubjpass") for child in verb.children)
        if own:
            found = [pair for child in own for pair in self._subject(child, verb)]
            return _joined(found), passive
        if depth > 4:
            return [], passive
        head = verb.head
        if verb.dep_ == "acl" and head.pos_ in NOUNS:
            if any(child.dep_ == "aux" for child in verb.children):
                return [], passive
            return [(noun, INHERITED) for noun in spoken_of(head, self._words)[:1]], verb.tag_ == "VBN"
        if verb.dep_ == "relcl" and head.pos_ in NOUNS and passive:
            return [(head, INHERITED)], passive
        if verb.dep_ in ("conj", "xcomp", "advcl", "pcomp") and verb.i > head.i:
            governor = head.head if verb.dep_ == "pcomp" and head.head.pos_ in ("VERB", "AUX") else head
            if governor.pos_ not in ("VERB", "AUX"):
                return [], passive
            if verb.dep_ != "conj" and any(
                child.dep_ in ("dobj", "mark") for child in (*governor.children, *verb.children)
            ):
                purpose = any(child.lower_ == "to" for child in verb.lefts)
                if any(child.dep_ == "mark" for child in verb.children) or not (purpose or verb.tag_ == "VBG"):
                    return [], passive
            subjects, was_passive = self._subjects(governor, depth + 1)
            if verb.dep_ == "conj" and was_passive and verb.tag_ == "VBN" and not _has_aux(verb):
                passive = True
            return [(noun, sure * INHERITED) for noun, sure in subjects], passive
        return [], passive

    def _subject(self, child: Token, verb: Token) -> list[tuple[Token, float]]:
        if child.tag_ in ("WDT", "WP") or (child.lower_ in ("that", "which", "who") and verb.dep_ == "relcl"):
            if verb.dep_ == "relcl" and verb.head.pos_ in NOUNS:
                return [(noun, INHERITED) for noun in spoken_of(verb.head, self._words)[:1]]
            return []
        if child.pos_ == "PRON":
            meant = self._meant(verb) if child.lower_ in ("it", "they") else []
            many = len(meant) > 1 or any(noun.tag_ in ("NNS", "NNPS") for noun in meant)
            return [(noun, PRONOUN) for noun in meant] if many == (child.lower_ == "they") else []
        return [(noun, 1.0) for noun in spoken_of(child, self._words)]

    def _meant(self, verb: Token) -> list[Token]:
        """What "it" stands for: the subject of the clause that this one is joined to, or of the sentence before."""
        if verb.dep_ == "conj":
            before = [child for child in verb.head.children if child.dep_ in ("nsubj", "nsubjpass")]
            return spoken_of(before[0], self._words) if before and before[0].pos_ in NOUNS else []
        return self._last

    def _stance(self, verb: Token) -> _Stance | None:
        """How the clause of a verb is meant; None where it is only supposed."""
        for above in (verb, *verb.ancestors):
            if above.pos_ in ("VERB", "AUX") and any(
                child.dep_ == "mark" and child.lower_ in _IF for child in above.children
            ):
                return None
            if any(child.dep_ == "advmod" and child.lower_ in _IF for child in above.children):
                return None
        stance: _Stance | None = _Stance()
        current = verb
        for _ in range(6):
            stance = self._own(current, stance)
            if stance is None:
                return None
            head = current.head
            if head is current or head.pos_ not in ("VERB", "AUX"):
                break
            if current.dep_ == "conj":
                if _has_aux(current) or any(child.dep_ in _SUBJECT for child in current.children):
                    # Its own clause, though what the whole hangs on holds for it as well.
                    current = head
                    while current.dep_ == "conj" and current.head.pos_ in ("VERB", "AUX"):
                        current = current.head
                    if current.dep_ not in ("ccomp", "xcomp"):
                        break
                    head = current.head
                    stance = self._governed(head, stance)
                    if stance is None:
                        return None
                    current = head
                    continue
                current = head
                continue
            if current.dep_ in ("ccomp", "xcomp"):
                stance = self._governed(head, stance)
                if stance is None:
                    return None
                current = head
                continue
            if current.dep_ == "advcl" and any(child.lower_ == "to" for child in current.lefts):
                stance = _Stance(stance.negated, stance.modality or "intended", stance.factor * 0.7)
            break
        return stance

    def _own(self, verb: Token, stance: _Stance) -> _Stance | None:
        """What stands with the verb itself."""
        negated, modality, factor = stance.negated, stance.modality, stance.factor
        for child in verb.children:
            word = child.lower_
            if child.dep_ == "neg" or (child.dep_ == "advmod" and word in ("never", "no longer", "neither", "nor")):
                follower = child.nbor().lower_ if child.i + 1 < len(child.doc) else ""
                if follower not in ("only", "just", "merely", "simply"):
                    negated = not negated
                continue
            if child.dep_ == "advcl" and any(inner.dep_ == "mark" and inner.lower_ in _IF for inner in child.children):
                modality, factor = modality or "conditional", factor * 0.6
            for hedge in self._words.hedges:
                if (child.dep_ == "aux" and (child.lemma_.lower() in hedge.aux or word in hedge.aux)) or (
                    child.dep_ == "advmod" and word in hedge.adverbs
                ):
                    if not hedge.factor:
                        return None
                    modality, factor = modality or _modality(hedge.name), factor * hedge.factor
        return _Stance(negated, modality, factor)

    def _governed(self, head: Token, stance: _Stance) -> _Stance | None:
        """What the verb above makes of it."""
        passive = any(child.dep_ == "auxpass" for child in head.children)
        names = {f"be {head.lower_}"} if passive else {head.lemma_.lower()}
        if head.lemma_ == "be":
            names = {f"be {child.lower_}" for child in head.children if child.dep_ == "acomp"}
        for hedge in self._words.hedges:
            if names & hedge.verbs:
                if not hedge.factor:
                    return None
                if hedge.name == "denied":
                    return _Stance(not stance.negated, stance.modality, stance.factor)
                return _Stance(stance.negated, stance.modality or _modality(hedge.name), stance.factor * hedge.factor)
        return stance


def _modality(name: str) -> Modality:
    return "possible" if name == "capable" else cast(Modality, name)


def _turned(stance: _Stance, denied: bool) -> _Stance:
    return _Stance(stance.negated != denied, stance.modality, stance.factor)


def _has_aux(verb: Token) -> bool:
    return any(child.dep_ in ("aux", "auxpass") for child in verb.children)


def _joined(found: list[tuple[Token, float]]) -> list[tuple[Token, float]]:
    """Those after the first, joined by "and", are a little less sure."""
    return [(noun, sure if not place else sure * JOINED) for place, (noun, sure) in enumerate(found)]
