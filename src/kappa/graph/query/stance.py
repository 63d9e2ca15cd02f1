"""Whether a relation type speaks for its target or against it, by its words.

This is what counts where no embedding has been measured, and what embeddings can't tell: "not supports" lies beside
"supports" to every model. A passive ("supported by") speaks of its other end, so it says nothing of its target.
"""

import re

_DENIALS = frozenset({"not", "no", "never", "without"})

_FOR = (
    ("support", 1.0), ("confirm", 1.0), ("corroborat", 1.0), ("validat", 1.0), ("verif", 1.0), ("prove", 1.0),
    ("demonstrat", 1.0), ("evidence", 1.0), ("agree", 1.0), ("cause", 0.6), ("enable", 0.6), ("produce", 0.6),
    ("lead", 0.6), ("result", 0.6), ("increase", 0.4), ("improve", 0.4), ("strengthen", 0.4), ("promote", 0.4),
)  # fmt: skip
_AGAINST = (
    ("contradict", 1.0), ("refut", 1.0), ("disprove", 1.0), ("invalidat", 1.0), ("den", 1.0), ("dispute", 1.0),
    ("oppose", 1.0), ("disagree", 1.0), ("conflict", 1.0), ("challenge", 0.8), ("undermine", 0.8), ("prevent", 0.6),
    ("block", 0.6), ("inhibit", 0.6), ("disable", 0.6), ("reduce", 0.4), ("decrease", 0.4), ("weaken", 0.4),
)  # fmt: skip
_STANCES = dict(_FOR) | {beginning: -value for beginning, value in _AGAINST}
_EXACT = frozenset({"den"})
"""Beginnings of too many words; these may only go on as a verb does."""
_VERB = re.compile(r"(?:y|ies|ied|ying)")


def words(name: str) -> list[str]:
    return re.sub(r"[_\W]+", " ", name).lower().split()


def passive(name: str) -> bool:
    return words(name)[-1:] == ["by"]


def affirmed(name: str) -> str | None:
    """A denied type without its denial, as words: `NOT_CAUSES` is "causes"; None for one that denies nothing."""
    said = words(name)
    left = [word for word in said if word not in _DENIALS]
    return " ".join(left) if left and len(left) < len(said) else None


def by_words(name: str) -> float:
    """From -1, against, to 1, for; 0 for all that takes no side."""
    if passive(name):
        return 0.0
    if (without := affirmed(name)) is not None:
        return -by_words(without)
    for word in words(name):
        for beginning, value in _STANCES.items():
            rest = word.removeprefix(beginning)
            if rest != word and (beginning not in _EXACT or _VERB.fullmatch(rest)):
                return value
    return 0.0
