"""Noun phrases as labels of concepts.

A noun with the compounds and adjectives before it, in the singular and without articles, counts and what says nothing
("several", "new"). Heads that say nothing by themselves are no concepts; "number of X" is X.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kappa.graph.ingest.local.vocabulary import Vocabulary

if TYPE_CHECKING:
    from spacy.tokens import Token

NOUNS = ("NOUN", "PROPN")
MOST_CHARACTERS = 100
_MEASURES = ("DATE", "TIME", "PERCENT", "MONEY", "QUANTITY", "ORDINAL", "CARDINAL")


@dataclass(frozen=True, slots=True)
class Phrase:
    """A label, and how a text wrote it."""

    label: str
    surface: str
    words: int
    proper: bool


def spoken_of(token: Token, vocabulary: Vocabulary) -> list[Token]:
    """The nouns that stand for one: itself and those joined to it by "and"; those after "number of" for a count."""
    found: list[Token] = []
    for noun in (token, *(other for other in token.conjuncts if other.i > token.i)):
        if noun.pos_ not in NOUNS and noun.tag_ != "VBG":
            continue
        inside = _of(noun)
        if inside is not None and noun.lemma_.lower() in vocabulary.of:
            found.extend(spoken_of(inside, vocabulary))
        else:
            found.append(noun)
    return found


def _of(noun: Token) -> Token | None:
    for child in noun.rights:
        if child.lower_ == "of" and child.dep_ == "prep":
            for inside in child.rights:
                if inside.dep_ == "pobj" and inside.pos_ in NOUNS:
                    return inside
    return None


def phrase(noun: Token, vocabulary: Vocabulary) -> Phrase | None:
    """The concept that a noun is the head of, if it is one."""
    gerund = noun.tag_ == "VBG" and noun.pos_ == "VERB"
    if noun.pos_ not in NOUNS and not gerund:
        return None
    if noun.ent_type_ in _MEASURES and noun.pos_ != "PROPN" and not any(c.dep_ == "compound" for c in noun.lefts):
        return None
    if gerund and any(child.dep_ in ("dobj", "aux", "nsubj", "prep") for child in noun.children):
        return None
    if not any(letter.isalpha() for letter in noun.text):
        return None
    kept = [] if gerund else _modifiers(noun, vocabulary)
    if len(noun.text) < 2 and not kept:
        return None
    lemma = noun.lemma_.lower()
    empty = {noun.lower_, lemma} & (vocabulary.of | vocabulary.generic) and not any(
        token.dep_ in ("compound", "poss", "nmod") or token.pos_ == "PROPN" for token in kept
    )
    label, words, end = _joined([*kept, noun], vocabulary), len(kept) + 1, noun
    inside = _of(noun)
    if inside is not None and noun.pos_ == "NOUN" and noun.i + 2 == inside.left_edge.i and lemma not in vocabulary.of:
        tail = phrase(inside, vocabulary) if empty or _bare(inside) else None
        if tail is not None and tail.words <= 2:
            label, words, end, empty = f"{label} of {tail.label}", words + 1 + tail.words, inside, False
    if empty or len(label) > MOST_CHARACTERS:
        return None
    first = kept[0] if kept else noun
    surface = noun.doc.text[first.idx : end.idx + len(end.text)]
    proper = any(token.pos_ == "PROPN" for token in (*kept, noun))
    return Phrase(label, surface, words, proper)


def inside_of(noun: Token, vocabulary: Vocabulary) -> bool:
    """Whether a noun is only a word of another's label."""
    head = noun.head
    if noun.dep_ in ("compound", "nmod", "npadvmod") and noun.i < head.i:
        return head.pos_ in (*NOUNS, "ADJ", "VERB")
    if noun.dep_ == "pobj" and head.lower_ == "of" and noun.tag_ in ("NN", "NNP") and _bare(noun):
        outer = phrase(head.head, vocabulary)
        return outer is not None and " of " in outer.label and _of(head.head) == noun
    return False


def _bare(noun: Token) -> bool:
    """Without an article, as in "theory of relativity": the two nouns are one name."""
    return not any(child.dep_ in ("det", "poss", "nummod", "relcl", "conj") for child in noun.children)


def _modifiers(noun: Token, vocabulary: Vocabulary) -> list[Token]:
    """Tokens before the head that belong to its label, in their order."""
    kept: list[Token] = []
    for child in noun.lefts:
        if child.dep_ not in ("compound", "amod", "nmod", "poss") or child.pos_ in ("PRON", "DET"):
            continue
        if child.dep_ == "poss" and child.pos_ != "PROPN":
            continue
        if child.dep_ == "amod" and (_says_nothing(child, vocabulary) or child.tag_ in ("JJR", "JJS")):
            continue
        tokens = [token for token in child.subtree if token.i < noun.i]
        # Of "ash and sulfur dioxide" only what stands with the head is sure to belong to it.
        tokens = tokens[1 + max((at for at, token in enumerate(tokens) if token.dep_ == "cc"), default=-1) :]
        hyphened = any(token.text in "-–" for token in tokens)
        kept.extend(
            token
            for token in tokens
            if token.dep_ != "det"
            and token.text not in ",()[]\"'“”‘"
            and (hyphened or (token.dep_ != "advmod" and not _says_nothing(token, vocabulary)))
        )
    kept.sort(key=lambda token: token.i)
    # What a comma or a bracket parts from the head is not of its label.
    parted = (
        max((token.i for token in noun.doc[kept[0].i : noun.i] if token.text in ",;()[]"), default=-1) if kept else -1
    )
    return [token for token in kept if token.i > parted]


def _says_nothing(token: Token, vocabulary: Vocabulary) -> bool:
    return token.pos_ != "PROPN" and token.lower_ in vocabulary.modifiers


def _joined(words: list[Token], vocabulary: Vocabulary) -> str:
    parts: list[str] = []
    for place, token in enumerate(words):
        text = _singular(token, vocabulary) if place == len(words) - 1 else token.text
        named = token.pos_ == "PROPN" or (token.ent_type_ and token.ent_type_ not in _MEASURES)
        if not named and text[:1].isupper() and text[1:].islower():
            text = text.lower()
        parts.append(text)
        if place < len(words) - 1:
            parts.append(token.whitespace_ if words[place + 1].i == token.i + 1 else " ")
    return "".join(parts).strip("-–'’ ")


def _singular(noun: Token, vocabulary: Vocabulary) -> str:
    lower = noun.lower_
    if lower in vocabulary.irregular:
        return vocabulary.irregular[lower]
    if noun.tag_ != "NNS" or lower in vocabulary.plural or noun.lemma_.lower() == lower:
        return noun.text
    if lower.endswith(("oses", "ases", "ises")) and noun.lemma_ == lower[:-2]:
        return lower[:-1]
    return noun.lemma_
