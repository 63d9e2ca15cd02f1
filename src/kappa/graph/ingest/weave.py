"""Makes of a chunk's extraction what is written: labels become concepts that are there, or new ones.

The labels are taken in their order, and each is held against the concepts that are there and against those that the
chunk itself has brought so far. The same chunk against the same graph always gives the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import numpy as np

from kappa.graph.identity import concept_key, normal
from kappa.graph.ingest.embedding import Thresholds
from kappa.graph.ingest.extraction import Checked, FoundConcept, FoundRelation
from kappa.graph.ingest.match import Candidate, decide, decide_type, type_text
from kappa.graph.ingest.near import SLACK, NearConcepts, NearTypes, likenesses, products
from kappa.graph.model import NewConcept, NewInstance, NewLink
from kappa.graph.store.vectors import Floats


@dataclass
class Woven:
    """The parts of a chunk as they are written."""

    concepts: list[NewConcept] = field(default_factory=list[NewConcept])
    instances: list[NewInstance] = field(default_factory=list[NewInstance])
    relations: list[NewLink] = field(default_factory=list[NewLink])
    matched: dict[str, UUID] = field(default_factory=dict[str, UUID])
    """Labels that name a concept which keeps an id of its own, not that of its label."""
    vectors: dict[UUID, Floats] = field(default_factory=dict[UUID, Floats])
    """Of the labels that are written as they are."""
    others: int = 0
    """Labels that named a concept which was there under another one."""
    dropped: int = 0
    """Relations whose two ends turned out to be one concept."""


def weave_concepts(
    found: Sequence[FoundConcept],
    vectors: Mapping[str, Floats],
    ontology: UUID,
    there: Mapping[UUID, int],
    near: NearConcepts,
    thresholds: Thresholds,
) -> tuple[Woven, dict[str, str]]:
    """The concepts to write, and what each label is called from here on.

    `vectors` has those of all labels but of such that `near` has; `there` are the ids of labels that are in the graph.
    """
    woven = Woven()
    called: dict[str, str] = {}
    keys = {one.label: concept_key(ontology, one.label) for one in found}
    unsure = [one.label for one in found if keys[one.label] not in there]
    least = min(thresholds.same, thresholds.contains, thresholds.stem)
    rows = np.stack([vectors[label] for label in unsure]) if unsure else np.empty((0, 1), np.float32)
    candidates = dict(zip(unsure, near.like(rows, least), strict=True))
    # Roughly how like the chunk's own labels are; only where that is near enough is it looked at closely.
    alike = products(rows, rows) >= least - SLACK
    places = {label: place for place, label in enumerate(unsure)}
    brought = np.zeros(len(unsure), bool)
    for one in found:
        key = keys[one.label]
        if (vector := vectors.get(one.label)) is not None:
            woven.vectors[key] = vector
        if key in there:
            called[one.label] = one.label
            woven.concepts.append(NewConcept(one.label, one.description, one.search_terms))
            continue
        assert vector is not None
        place = places[one.label]
        own = np.flatnonzero(alike[place] & brought)
        among = candidates[one.label] + [
            Candidate(keys[unsure[other]], unsure[other], like)
            for other, like in zip(own.tolist(), likenesses(vector, rows[own]), strict=True)
        ]
        same = decide(one.label, among, thresholds).same
        if same is None:
            called[one.label] = one.label
            brought[place] = True
            woven.concepts.append(NewConcept(one.label, one.description, one.search_terms))
            continue
        del woven.vectors[key]
        woven.others += 1
        called[one.label] = same.label
        if concept_key(ontology, same.label) != same.key:
            woven.matched[same.label] = same.key
        woven.concepts.append(NewConcept(same.label, one.description, (*one.search_terms, one.label)))
    return woven, called


def weave_types(
    relations: Sequence[FoundRelation], vectors: Mapping[str, Floats], near: NearTypes, thresholds: Thresholds
) -> tuple[dict[str, str], dict[str, Floats]]:
    """What each relation type of a chunk is called from here on, and the vectors of those that are new."""
    called: dict[str, str] = {}
    new: dict[str, Floats] = {}
    for name in dict.fromkeys(one.type for one in relations):
        vector = vectors[name]
        among = near.like(vector) + [
            Candidate(other, other, likenesses(vector, theirs[None, :])[0]) for other, theirs in new.items()
        ]
        same = decide_type(name, among, thresholds).same
        if same is not None:
            called[name] = same.key
        else:
            made = type_text(name).upper().replace(" ", "_") or name
            called[name] = made
            new[made] = vector
    return called, new


def weave_relations(woven: Woven, checked: Checked, called: Mapping[str, str], types: Mapping[str, str]) -> None:
    """Relations between the concepts as they are called now; of two that became one the more certain stays."""
    best: dict[tuple[str, str, str], NewLink] = {}
    for one in checked.relations:
        start, end, kind = called[one.from_label], called[one.to_label], types[one.type]
        if normal(start) == normal(end):
            woven.dropped += 1
            continue
        place = (normal(start), normal(end), kind)
        if place not in best or best[place].confidence < one.confidence:
            best[place] = NewLink(start, end, kind, one.confidence, one.category)
    woven.relations.extend(best.values())


def weave_instances(woven: Woven, checked: Checked, called: Mapping[str, str], start: int) -> None:
    """Quotes, by their places in the document; one that speaks of two labels of one concept is one."""
    seen: set[tuple[str, int, int]] = set()
    for one in checked.instances:
        label = called[one.label]
        place = (normal(label), one.start, one.end)
        if place not in seen:
            seen.add(place)
            woven.instances.append(NewInstance(label, one.quote, start + one.start))
