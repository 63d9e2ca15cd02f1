"""Whether a label names a concept that is there already, and a relation type one of the vocabulary. Pure decisions.

Likeness alone can't tell: to a model "type 1 diabetes" and "type 2 diabetes" are nearly one, and so are "causes" and
"caused by". Where words tell two labels apart, no likeness makes them the same. In doubt a label is new: two concepts
can be merged later, one that swallowed another can't be parted.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, Literal, TypeVar

from kappa.graph.identity import REMEMBERED, normal
from kappa.graph.ingest.embedding import Thresholds

K = TypeVar("K")

Why = Literal["label", "stem", "contains", "similar", "new"]


@dataclass(frozen=True, slots=True)
class Candidate(Generic[K]):
    """Something that is there, and how like it the new label is, by the embedding model's cosine."""

    key: K
    label: str
    similarity: float


@dataclass(frozen=True, slots=True)
class Decision(Generic[K]):
    """The same as a candidate, or new."""

    same: Candidate[K] | None
    why: Why


def decide(label: str, candidates: Iterable[Candidate[K]], thresholds: Thresholds) -> Decision[K]:
    """The nearest candidate that the label is the same as. Equals are taken in the order of their labels."""
    ordered = sorted(candidates, key=lambda one: (-one.similarity, one.label))
    wanted = normal(label)
    for candidate in ordered:
        if normal(candidate.label) == wanted:
            return Decision(candidate, "label")
    for candidate in ordered:
        if why := _why(label, candidate, thresholds):
            return Decision(candidate, why)
    return Decision(None, "new")


def _why(label: str, candidate: Candidate[K], thresholds: Thresholds) -> Why | None:
    """Why a label is the same as a candidate, by how their words differ and how like they are; None if it is not."""
    one, other = label, candidate.label
    words, others = _stems(one), _stems(other)
    why: Why
    if words == others:
        why, least = "stem", thresholds.stem
    elif _contains(words, others) or _contains(others, words):
        # A name stays itself with a word beside it ("Redis", "Redis server"); a common noun becomes a kind of it or
        # something else ("virus", "computer virus"; "lease", "lease token").
        short = min(one, other, key=lambda label: len(_stems(label)))
        if len(_stems(short)) == 1 and not _is_name(short, one, other):
            return None
        why, least = "contains", thresholds.contains
    else:
        why, least = "similar", thresholds.same
    # Last, for it costs most.
    return why if candidate.similarity >= least and not told_apart(one, other) else None


def _is_name(word: str, *labels: str) -> bool:
    core = re.escape(_WORD.findall(word)[-1])
    return all((found := re.search(core, label, re.IGNORECASE)) and not found[0].islower() for label in labels)


def decide_type(name: str, candidates: Iterable[Candidate[K]], thresholds: Thresholds) -> Decision[K]:
    """The same for relation types: by name, then by stem, then by likeness. Only those of one sign and voice compare.

    All types of the vocabulary may be given: name and stem need no likeness.
    """
    ordered = sorted(candidates, key=lambda one: (-one.similarity, one.label))
    wanted = _stems(type_text(name))
    exact = normal(type_text(name))
    for candidate in ordered:
        if normal(type_text(candidate.label)) == exact:
            return Decision(candidate, "label")
    fitting = [one for one in ordered if _voice(name) == _voice(one.label)]
    for candidate in fitting:
        if _stems(type_text(candidate.label)) == wanted:
            return Decision(candidate, "stem")
    for candidate in fitting:
        if candidate.similarity < thresholds.types:
            break
        if not told_apart(type_text(name), type_text(candidate.label)):
            return Decision(candidate, "similar")
    return Decision(None, "new")


def type_text(name: str) -> str:
    """A relation type as words, for people and for the embedding model: `PART_OF` is "part of"."""
    return " ".join(re.sub(r"[_\W]+", " ", name).lower().split())


def _voice(name: str) -> tuple[bool, bool]:
    words = type_text(name).split()
    return bool(_DENIALS & set(words)), words[-1:] == ["by"]


_DENIALS = {"not", "no", "never", "without"}

OPPOSITES = (
    "left right", "upper lower", "top bottom", "front back", "high low", "maximum minimum", "max min", "big small",
    "large small", "long short", "deep shallow", "thick thin", "heavy light", "hot cold", "warm cold", "wet dry",
    "hard soft", "fast slow", "early late", "first second", "first last", "primary secondary", "major minor",
    "input output", "read write", "reader writer", "client server", "sender receiver", "source target", "source sink",
    "internal external", "inner outer", "local remote", "local global", "static dynamic", "public private",
    "male female", "man woman", "mother father", "boy girl", "north south", "east west", "northern southern",
    "eastern western", "positive negative", "increase decrease", "increase reduce", "grow shrink", "rise fall",
    "gain loss", "profit loss", "supply demand", "import export", "buyer seller", "creditor debtor",
    "cause prevent", "enable prevent", "enable disable", "support contradict", "support oppose", "prove disprove",
    "encode decode", "encoder decoder", "compress decompress", "encrypt decrypt", "encryption decryption",
    "open close", "open closed", "start stop", "start end", "begin end", "before after", "ascending descending",
    "horizontal vertical", "linear nonlinear", "analog digital", "parent child", "master slave", "leader follower",
    "precede follow", "send receive", "push pull", "insert delete", "upload download", "acid base", "acute chronic",
    "vein artery", "predator prey", "day night", "summer winter", "anode cathode", "proton electron",
    "hardware software", "optimistic pessimistic", "implicit explicit", "strong weak", "true false",
    "lossy lossless", "inhale exhale", "synchronous asynchronous", "micro macro",
    "microeconomics macroeconomics", "endothermic exothermic",
    "autotroph heterotroph", "mitosis meiosis", "latitude longitude", "frontend backend", "hypotension hypertension",
    "domestic foreign", "absolute relative", "active passive", "direct indirect", "past future", "old new",
)  # fmt: skip
_OPPOSITE: dict[str, set[str]] = {}
_PREFIXES = {
    "un",
    "in",
    "im",
    "ir",
    "non",
    "anti",
    "dis",
    "de",
    "mis",
    "a",
    "hypo",
    "sub",
    "pre",
    "post",
    "co",
    "inter",
}


def told_apart(one: str, other: str) -> bool:
    """Whether two labels differ in a word that makes them two things: a number, an opposite, a "not" or an "un-"."""
    words, others = _words(one), _words(other)
    only, but = set(words) - set(others), set(others) - set(words)
    if _numbers(words) != _numbers(others) and (
        (_numbers(words) and _numbers(others)) or _contains(words, others) or _contains(others, words)
    ):
        return True
    if _DENIALS & (only | but):
        return True
    stems, antonyms = {stem(word) for word in only}, {stem(word) for word in but}
    if any(_OPPOSITE.get(word, set[str]()) & antonyms for word in stems):
        return True
    return any(_negates(a, b) or _negates(b, a) for a in stems for b in antonyms)


@lru_cache(REMEMBERED)
def _numbers(words: tuple[str, ...]) -> set[str]:
    return {_NUMERALS.get(word, word) for word in words if word in _NUMERALS or any(map(str.isdigit, word))}


def _negates(long: str, short: str) -> bool:
    return len(short) >= 4 and long.endswith(short) and long.removesuffix(short) in _PREFIXES


_NUMERALS = {
    word: str(number)
    for number, words in enumerate(
        ("i one first", "ii two second", "iii three third", "iv four fourth", "v five fifth", "vi six sixth"), start=1
    )
    for word in words.split()
}
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")


@lru_cache(REMEMBERED)
def _words(label: str) -> tuple[str, ...]:
    return tuple(word.removesuffix("'s") for word in _WORD.findall(normal(label).replace("’", "'")))


_SMALL = {"the", "a", "an"}


@lru_cache(REMEMBERED)
def _stems(label: str) -> tuple[str, ...]:
    return tuple(stem(word) for word in _words(label) if word not in _SMALL)


def _contains(long: Sequence[str], short: Sequence[str]) -> bool:
    """Whole words, in their order: "supervised" is not in "unsupervised"."""
    size = len(short)
    return 0 < size < len(long) and any(long[at : at + size] == short for at in range(len(long) - size + 1))


_ENDINGS = ("ation", "ment", "ing", "ied", "ion", "ed", "ly")


@lru_cache(REMEMBERED)
def stem(word: str) -> str:
    """What the forms of an English word have in common, roughly. `-er` stays: a worker is not work."""
    if len(word) < 3 or word.endswith(("ss", "us", "is")):
        return word
    if len(word) > 3:
        word = word.removesuffix("ies") + "y" if word.endswith("ies") else word.removesuffix("s")
    for ending in _ENDINGS:
        rest = word.removesuffix(ending)
        if rest != word and len(rest) >= 2 and any(letter in "aeiouy" for letter in rest):
            double = ending in ("ing", "ed") and len(rest) > 3 and rest[-1] == rest[-2] and rest[-1] not in "lsz"
            word = rest[:-1] if double else rest
            break
    word = word.removesuffix("e") if len(word) > 2 else word
    if len(word) > 4:
        word = word.removesuffix("at").removesuffix("y")
    return word.removesuffix("is") + "iz" if len(word) > 5 and word.endswith("is") else word


for _pair in OPPOSITES:
    _a, _b = (stem(_word) for _word in _pair.split())
    _OPPOSITE.setdefault(_a, set()).add(_b)
    _OPPOSITE.setdefault(_b, set()).add(_a)
