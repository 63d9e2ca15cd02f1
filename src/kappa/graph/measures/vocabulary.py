"""What embeddings say of relation types: which category, for or against, and which two say the same.

A category means what its seed types mean, and for and against are the two ends of the pairs in POLES. The axis from
against to for is the mean of the directions of all pairs, so that what else tells "causes" from "prevents" cancels out.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kappa.graph.errors import BadQuestion
from kappa.graph.findings import Epistemic
from kappa.graph.ingest.local.vocabulary import vocabulary
from kappa.graph.ingest.match import told_apart, type_text
from kappa.graph.query import stance
from kappa.graph.store.vocabulary import Embedded, Scored

Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

POLES = (
    ("SUPPORTS", "CONTRADICTS"), ("CONFIRMS", "REFUTES"), ("PROVES", "DISPROVES"), ("VALIDATES", "INVALIDATES"),
    ("AGREES_WITH", "DISAGREES_WITH"), ("CAUSES", "PREVENTS"), ("ENABLES", "BLOCKS"), ("INCREASES", "REDUCES"),
)  # fmt: skip
"""For, and its opposite against."""
NEUTRAL = 0.3
"""How far from the middle of the axis a type takes no side."""
NEAR = 0.45
"""How like a pole a type must be to be placed on the axis at all."""
MARGIN = 0.05
"""By how much less the second category must be like a type, or nobody knows which is its own."""
LEAST = 0.35
"""How like its best category a type must be to belong to it."""
PLACES = 4
ROWS = 1024
"""Types that are compared with all others at once."""

LEAST_SAMPLE = 5
LEAST_GROUNDED = 3
EPISTEMIC: tuple[tuple[float, Epistemic], ...] = ((0.5, "well"), (0.2, "mixed"), (0.0, "weak"), (-0.3, "poorly"))
"""The mean grounding from which on a type is so."""


class Axis(NamedTuple):
    """From against to for."""

    middle: Doubles
    along: Doubles
    """Of length 1."""
    half: float
    """From the middle to the mean pole."""


def seed_names() -> list[str]:
    """Every type that categories and the axis are made of."""
    return sorted({*vocabulary().categories, *(name for pair in POLES for name in pair)})


def axis(seeds: Mapping[str, Sequence[float]]) -> Axis:
    """Of the pairs that have both ends among the seeds."""
    pairs = [(seeds[plus], seeds[minus]) for plus, minus in POLES if plus in seeds and minus in seeds]
    if not pairs:
        raise BadQuestion("there is no axis: no pair of opposite types has embeddings")
    ends = np.array(pairs, np.float64)
    steps = ends[:, 0] - ends[:, 1]
    mean = (steps / np.linalg.norm(steps, axis=1, keepdims=True)).mean(axis=0)
    length = float(np.linalg.norm(mean))
    if length < 1e-9:
        raise BadQuestion("there is no axis: the pairs of opposite types point against each other")
    along: Doubles = mean / length
    middle: Doubles = ends.mean(axis=(0, 1))
    half = float(np.mean(steps @ along) / 2)
    return Axis(middle, along, half)


def stances(vectors: Doubles, seeds: Mapping[str, Sequence[float]]) -> list[float | None]:
    """1 is where the poles that are for lie on the whole, -1 where those against do; 0 in the neutral middle.

    None for a type that is more like a seed that takes no side, or like none: where it falls on the axis is chance.
    """
    of = axis(seeds)
    placed: Doubles = np.clip((vectors - of.middle) @ of.along / of.half, -1.0, 1.0)
    poles = {name for pair in POLES for name in pair}
    to_pole = _likeness(vectors, [seeds[name] for name in seeds if name in poles])
    to_other = _likeness(vectors, [seeds[name] for name in seeds if name not in poles])
    sided = (to_pole > to_other) & (to_pole >= NEAR)
    return [
        (round(place, PLACES) + 0.0 if abs(place) >= NEUTRAL else 0.0) if takes_side else None
        for place, takes_side in zip(placed.tolist(), sided.tolist(), strict=True)
    ]


def _likeness(vectors: Doubles, seeds: Sequence[Sequence[float]]) -> Doubles:
    """To the nearest of the seeds."""
    if not seeds:
        return np.full(len(vectors), -1.0)
    alike: Doubles = _unit(vectors) @ _unit(np.array(seeds, np.float64)).T
    return alike.max(axis=1)


def score(types: Sequence[Embedded], seeds: Mapping[str, Sequence[float]]) -> list[Scored]:
    """Each type against the seeds of each category: it is as like the category as like the nearest of them."""
    if not types:
        return []
    vectors = np.array([one.vector for one in types], np.float64)
    placed = stances(vectors, seeds)
    categories: dict[str, list[str]] = {}
    for name, category in vocabulary().categories.items():
        if name in seeds:
            categories.setdefault(category, []).append(name)
    likeness = {
        category: _likeness(vectors, [seeds[name] for name in names]) for category, names in sorted(categories.items())
    }
    found: list[Scored] = []
    for at, one in enumerate(types):
        scores = {category: round(float(values[at]), PLACES) + 0.0 for category, values in likeness.items()}
        first, second = sorted(scores, key=lambda category: (-scores[category], category))[:2]
        unsure = scores[first] < LEAST or scores[first] - scores[second] < MARGIN
        found.append(Scored(one.number, placed[at], scores, first, unsure))
    return found


def alike(types: Sequence[Embedded], least: float) -> Iterator[tuple[str, str, float]]:
    """Each two types that are so much alike, of one voice and sign, and that no word tells apart; the most alike first.

    What goes by a merge and what stays is as much like all others as before, so this holds through any number of them.
    """
    if len(types) < 2:
        return
    vectors = _unit(np.array([one.vector for one in types], np.float64))
    rows, columns, values = (np.concatenate(found) for found in zip(*_above(vectors, least), strict=True))
    for at in np.lexsort((columns, rows, -values)):
        one, other = types[int(rows[at])].name, types[int(columns[at])].name
        if not _told_apart(one, other):
            yield one, other, float(values[at])


def _above(vectors: Doubles, least: float) -> Iterator[tuple[Ints, Ints, Doubles]]:
    """Pairs and their likeness, each pair once; some rows of the great table at a time."""
    for begin in range(0, len(vectors), ROWS):
        near = np.round(vectors[begin : begin + ROWS] @ vectors.T, 6)
        rows, columns = np.nonzero(near >= least)
        once = columns > rows + begin
        yield rows[once] + begin, columns[once], near[rows[once], columns[once]]


def more_used_first(names: Sequence[str], relations: Mapping[str, int]) -> list[str]:
    """The one that more relations have, then the seed, then the first by name."""
    seeds = set(seed_names())
    return sorted(names, key=lambda name: (-relations.get(name, 0), name not in seeds, name))


def _told_apart(one: str, other: str) -> bool:
    if stance.passive(one) != stance.passive(other):
        return True
    if (stance.affirmed(one) is None) != (stance.affirmed(other) is None):
        return True
    return told_apart(type_text(one), type_text(other))


def _unit(vectors: Doubles) -> Doubles:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def epistemic(sampled: int, groundings: Sequence[float]) -> tuple[Epistemic, float | None]:
    """What a sample of so many relations says, of whose targets these have a grounding."""
    mean = round(sum(groundings) / len(groundings), PLACES) + 0.0 if groundings else None
    if sampled < LEAST_SAMPLE or len(groundings) < LEAST_GROUNDED or mean is None:
        return "insufficient", mean
    for least, name in EPISTEMIC:
        if mean >= least:
            return name, mean
    return "contradicted", mean
