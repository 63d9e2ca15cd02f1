"""Which changes of ontologies are worth a person's thought, by their scores. A proposal is made once, ever.

**merge**: two that share most of the smaller one's labels; the smaller goes into the larger. **split**: a large one
whose concepts fall into two parts. **rename**: one whose name says nothing. **dissolve**: one with hardly anything.
"""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from psycopg import Connection

from kappa.graph.annealing import scoring
from kappa.graph.annealing.scoring import Scored, Told, untold
from kappa.graph.identity import proposal_key
from kappa.graph.model import ProposalKind
from kappa.graph.store import clock, ontologies, proposals
from kappa.pg.queries import Row

NAMELESS = re.compile(
    r"^(untitled|unnamed|default|new|test|temp|tmp|ontology|misc|stuff|data)[\s_-]*\d*$", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """From where on something is proposed."""

    merge_share: float = 0.5
    """Of the smaller one's labels that the other has, too."""
    merge_labels: int = 3
    split_concepts: int = 20
    split_coherence: float = 0.5
    """A split is thought of below it only."""
    split_separation: float = 0.3
    split_least: float = 0.2
    """Of its concepts in the smaller part."""
    dissolve_concepts: int = 2


@dataclass(frozen=True, slots=True)
class Draft:
    """A proposal that may have been made before."""

    kind: ProposalKind
    about: Scored
    identity: tuple[str, ...]
    body: dict[str, Any]
    scores: dict[str, Any]

    @property
    def key(self) -> UUID:
        return proposal_key(self.kind, self.about.key, *self.identity)


@dataclass(frozen=True, slots=True)
class Annealed:
    """What came of looking at all ontologies."""

    ontologies: int
    proposed: int
    known: int


def anneal(
    connection: Connection[Row],
    thresholds: Thresholds | None = None,
    told: Told = untold,
) -> Annealed:
    """Write the proposals that are new. `told` is called again and again, so that it can stop the work."""
    epoch = clock.now(connection)
    scored = scoring.score(connection, told)
    proposed = known = 0
    for draft in _drafts(connection, scored, thresholds or Thresholds(), told):
        if proposals.add(connection, draft.key, draft.kind, draft.about.number, draft.body, draft.scores, epoch):
            proposed += 1
        else:
            known += 1
    return Annealed(len(scored), proposed, known)


def _drafts(connection: Connection[Row], scored: list[Scored], at: Thresholds, told: Told) -> Iterator[Draft]:
    # What is to be merged or dissolved needs no other change.
    leaving: set[int] = set()
    for first, second in scoring.sharing(scored, at.merge_labels, told):
        one, other = scored[first], scored[second]
        found = scoring.overlap(one, other)
        if found.share < at.merge_share:
            continue
        small, large = sorted((one, other), key=lambda each: (each.mass.concepts, each.mass.documents, -each.number))
        if small.number in leaving or large.number in leaving:
            continue
        leaving.add(small.number)
        body = {**_named(small), "target": str(large.key), "into": large.name}
        scores = {"overlap": asdict(found), "mass": asdict(small.mass), "target_mass": asdict(large.mass)}
        yield Draft("merge", small, (str(large.key),), body, scores)
    for done, one in enumerate(scored):
        told(done, len(scored), "looking at each ontology")
        if one.number in leaving:
            continue
        if one.mass.documents == 0 and one.mass.concepts <= at.dissolve_concepts:
            scores = {"mass": asdict(one.mass), "examples": sorted(one.labels.values())}
            yield Draft("dissolve", one, (), _named(one), scores)
            continue
        if NAMELESS.match(one.name.strip()):
            yield from _rename(connection, one)
        yield from _split(connection, one, at)


def _rename(connection: Connection[Row], one: Scored) -> Iterator[Draft]:
    leading = scoring.leading_labels(connection, one.number, 5)
    name = " and ".join(leading[:2])
    if name and ontologies.find(connection, name) is None:
        scores = {"mass": asdict(one.mass), "examples": list(leading)}
        yield Draft("rename", one, (), {**_named(one), "new_name": name}, scores)


def _split(connection: Connection[Row], one: Scored, at: Thresholds) -> Iterator[Draft]:
    if one.coherence is None or one.mass.concepts < at.split_concepts or one.coherence >= at.split_coherence:
        return
    found = scoring.halves(connection, one)
    if found is None or found.separation < at.split_separation:
        return
    if len(found.smaller) < at.split_least * (len(found.smaller) + found.larger):
        return
    labels = [label for _, label in found.smaller]
    name = f"{one.name}: {labels[0]}"
    if ontologies.find(connection, name) is not None:
        return
    body = {**_named(one), "new_name": name, "concepts": [str(key) for key, _ in found.smaller]}
    scores = {
        "coherence": one.coherence, "separation": found.separation, "smaller": len(found.smaller),
        "larger": found.larger, "examples": labels[:10], "mass": asdict(one.mass),
    }  # fmt: skip
    yield Draft("split", one, (), body, scores)


def _named(one: Scored) -> dict[str, Any]:
    return {"ontology": str(one.key), "name": one.name}
