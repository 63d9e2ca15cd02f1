"""How well concepts are founded: grounding, from what speaks for and against them, and confidence in judging it.

Support S and contradiction C are sums over the relations that come in, each with its confidence times the documents
that say so times the stance of its type. With n = S + C, of which a share p = S / n is support, grounding is the centre
of Wilson's score interval for p, stretched from 0…1 to -1…1: (S - C) / (n + z²). So one support moves it a little, 47
move it nearly to 1, more support never lowers it nor either bound, and contradiction never raises them.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from psycopg import Connection

from kappa.graph.findings import Confidence, Grounding, Measured, Reason
from kappa.graph.query import stance
from kappa.graph.query.server import Session
from kappa.graph.store import measures
from kappa.graph.store.measures import Counts
from kappa.pg.queries import Row

Z = 1.96
"""Of the normal distribution, 95 in 100 lie so many standard deviations around its middle."""
REASONS = 5
AT_ONCE = 100
"""Concepts that an answer's list is measured for."""

WORTH = ((6, 0.3), (3, 0.2), (3, 0.3), (5, 0.2))
"""Of relations, types, sources and evidence: how much is worth half of what any amount could be; and its share."""


class Stance(NamedTuple):
    """Where a relation type stands."""

    name: str
    value: float
    measured: bool
    """By its embedding, not by its words alone."""


def stances(connection: Connection[Row]) -> dict[int, Stance]:
    """Of every type. What denies another type is its opposite; what was never measured goes by its words."""
    rows = measures.stances(connection)
    known = {" ".join(stance.words(name)): value for _, name, value in rows if value is not None}
    return {number: _stance(name, known) for number, name, _ in rows}


def _stance(name: str, known: Mapping[str, float]) -> Stance:
    if stance.passive(name):
        return Stance(name, 0.0, False)
    without = stance.affirmed(name)
    said = " ".join(stance.words(name)) if without is None else without
    if said not in known:
        return Stance(name, stance.by_words(name), False)
    return Stance(name, known[said] if without is None else -known[said], True)


class Groundings:
    """Of many concepts, each measured once: the best connected are asked for again and again."""

    def __init__(self, connection: Connection[Row]) -> None:
        self._stances = stances(connection)
        self._known: dict[int, Grounding] = {}

    def of(self, connection: Connection[Row], nodes: Iterable[int]) -> dict[int, Grounding]:
        wanted = set(nodes)
        self._known.update(_groundings(connection, sorted(wanted - self._known.keys()), self._stances))
        return {node: self._known[node] for node in wanted}


def measure(session: Session, nodes: Sequence[int]) -> dict[int, Measured]:
    """Of many concepts, without reasons."""
    return _measure(session, nodes, session.run(stances))


def explain(session: Session, node: int) -> Measured:
    """Of one concept, with the relations that count most."""
    known = session.run(stances)
    found = _measure(session, [node], known)[node]
    sided = {number: one.value for number, one in known.items() if one.value}
    if not found.grounding.supports + found.grounding.contradictions:
        return found
    reasons = tuple(
        Reason(
            strong.id, strong.label, known[strong.type].name, strong.confidence / 100, strong.documents,
            known[strong.type].value, "embedding" if known[strong.type].measured else "words",
            known[strong.type].value * strong.confidence / 100 * strong.documents,
        )
        for strong in session.run(lambda connection: measures.strongest(connection, node, sided, REASONS))
    )  # fmt: skip
    return Measured(found.grounding, found.confidence, reasons)


def _measure(session: Session, nodes: Sequence[int], known: Mapping[int, Stance]) -> dict[int, Measured]:
    # Each statement by itself: the server is told before each how much time is left.
    grounded = session.run(lambda connection: _groundings(connection, nodes, known))
    counted = session.run(lambda connection: measures.counts(connection, nodes))
    return {node: Measured(grounded[node], confidence(counts)) for node, counts in counted.items()}


def _groundings(connection: Connection[Row], nodes: Sequence[int], known: Mapping[int, Stance]) -> dict[int, Grounding]:
    if not nodes:
        return {}
    sided = [number for number, one in known.items() if one.value]
    mass: defaultdict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    relations: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
    for found in sorted(measures.incoming(connection, nodes, sided)):
        value = known[found.type].value
        side = 0 if value > 0 else 1
        mass[found.node][side] += abs(value) * found.hundredths / 100
        relations[found.node][side] += found.relations
    return {node: grounding(mass[node][0], mass[node][1], relations[node][0], relations[node][1]) for node in nodes}


def grounding(support: float, contradiction: float, supports: int = 0, contradictions: int = 0) -> Grounding:
    n = support + contradiction
    whole = n + Z * Z
    value = (support - contradiction) / whole
    # Half the width of the interval for p, times 2.
    beside = 2 * Z * math.sqrt((support * contradiction / n if n else 0.0) + Z * Z / 4) / whole
    low, high = max(-1.0, value - beside), min(1.0, value + beside)
    return Grounding(value, low, high, support, contradiction, supports, contradictions)


def confidence(counts: Counts) -> Confidence:
    """Each count counts by x / (x + half), which rises all the time and never reaches 1."""
    value = sum(share * count / (count + half) for count, (half, share) in zip(counts, WORTH, strict=True))
    return Confidence(value, counts.relations, counts.types, counts.sources, counts.evidence)
