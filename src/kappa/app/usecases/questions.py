"""One question to the graph, in the thread that asks it: concepts by id or label, and its share of time.

Everything here blocks. `kappa.app.usecases.graph` runs it, where no event loop is.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from kappa.app.errors import Ambiguous
from kappa.app.usecases.graph import Walk, as_id
from kappa.graph import (
    Cancel,
    Concept,
    Diversity,
    EnrichedPaths,
    Graph,
    Instance,
    Measured,
    Neighbors,
    Order,
    Paths,
    Polarity,
    Related,
    SearchAnswer,
    Subgraph,
    Where,
)
from kappa.graph.errors import EpochNotReached, GraphBusy, QuestionStopped, UnknownConcept

NAMED = 5
"""Candidates that are named when a label is not enough."""


class Asking:
    """The graph, for the time of one question."""

    def __init__(self, graph: Graph, seconds: float, min_epoch: int | None = None) -> None:
        self.cancel = Cancel()
        self.begun = False
        self._graph = graph
        self._until = time.monotonic() + seconds
        self._min_epoch = min_epoch

    @property
    def left(self) -> float:
        """Seconds until its deadline."""
        return max(0.001, self._until - time.monotonic())

    def begin(self) -> None:
        """From here on a thread has it. An epoch that nobody has written yet is refused, not waited for."""
        self.begun = True
        if time.monotonic() >= self._until:
            raise GraphBusy("a question came to its turn after its deadline")
        if self._min_epoch is None:
            return
        now = self._graph.status()
        if now is not None and now.epoch is not None and now.epoch >= self._min_epoch:
            return
        if (latest := self._graph.epoch()) < self._min_epoch:
            raise EpochNotReached(f"the graph is at epoch {latest} and was not at {self._min_epoch} yet")

    def concept(self, name: str, where: Where | None = None) -> UUID:
        """The id of the concept with this id or label."""
        if (known := as_id(name)) is not None:
            return known
        return self._labelled(name, where.ontologies if where is not None else None).id

    def _labelled(self, name: str, ontologies: Sequence[str] | None) -> Concept:
        # A thousand seeds are a thousand of these.
        if self.cancel.cancelled or time.monotonic() >= self._until:
            raise QuestionStopped("the deadline passed while concepts were looked up by their labels")
        only = ontologies[0] if ontologies and len(ontologies) == 1 else None
        found = self._graph.concept_by_label(name, only, **self._time())
        if ontologies:
            found = [one for one in found if one.ontology in ontologies]
        if not found:
            where = f" in {', '.join(ontologies)}" if ontologies else ""
            raise UnknownConcept(f"there is no concept {name!r}{where}")
        if len(found) > 1:
            listed = ", ".join(f"{one.id} ({one.ontology})" for one in found[:NAMED])
            more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
            raise Ambiguous(f"{name!r} is {len(found)} concepts: {listed}{more}; say which by its id")
        return found[0]

    def shown(self, name: str, ontologies: Sequence[str] | None, evidence: int) -> tuple[Concept, list[Instance]]:
        """A concept with its measures, and quotes that speak of it."""
        known = as_id(name)
        concept = self._graph.concept(known, **self._time()) if known else self._labelled(name, ontologies)
        if concept is None:
            raise UnknownConcept(f"there is no concept {name}")
        concept = replace(concept, measured=self._graph.measured(concept.id, **self._time()))
        return concept, self._graph.evidence(concept.id, evidence, **self._time()) if evidence else []

    def measures(self, ids: Sequence[UUID]) -> dict[UUID, Measured]:
        return self._graph.measures(ids, **self._time())

    def neighbors(self, seeds: Sequence[str], walk: Walk, *, max_hops: int, order: Order, limit: int) -> Neighbors:
        nodes = self._concepts(seeds, walk)
        return self._graph.neighbors(nodes, max_hops, order=order, limit=limit, **self._terms(walk))

    def related(self, concept: str, walk: Walk, *, max_hops: int, limit: int, measures: bool = False) -> Related:
        node = self.concept(concept, walk.where)
        found = self._graph.related(node, max_hops, limit=limit, **self._terms(walk))
        return self._graph.with_measures(found, **self._time()) if measures else found

    def subgraph(self, seeds: Sequence[str], walk: Walk, *, max_hops: int, limit: int) -> Subgraph:
        nodes = self._concepts(seeds, walk)
        return self._graph.subgraph(nodes, max_hops, limit=limit, **self._terms(walk))

    def diversity(self, concept: str, walk: Walk, *, max_hops: int, limit: int) -> Diversity:
        node = self.concept(concept, walk.where)
        return self._graph.diversity(node, max_hops, limit=limit, **self._terms(walk))

    def paths(self, start: str, goal: str, walk: Walk, *, max_hops: int, count: int, measures: bool = False) -> Paths:
        first, last = self._concepts([start, goal], walk)
        found = self._graph.paths(first, last, max_hops, count, **self._terms(walk))
        return self._graph.with_measured_paths(found, **self._time()) if measures else found

    def enriched_path(
        self, start: str, goal: str, walk: Walk, *, max_hops: int, count: int, around_hops: int, around_limit: int,
        measures: bool = False,
    ) -> EnrichedPaths:  # fmt: skip
        first, last = self._concepts([start, goal], walk)
        found = self._graph.enriched_path(
            first, last, max_hops, count, around_hops=around_hops, around_limit=around_limit, **self._terms(walk)
        )
        return self._graph.with_measured_paths(found, **self._time()) if measures else found

    def polarity(
        self, positive: str, negative: str, walk: Walk, *, candidates: Sequence[str] | None, max_hops: int, limit: int
    ) -> Polarity:
        plus, minus = self._concepts([positive, negative], walk)
        chosen = None if candidates is None else self._concepts(candidates, walk)
        return self._graph.polarity(
            plus, minus, candidates=chosen, max_hops=max_hops, limit=limit, **self._terms(walk)
        )  # fmt: skip

    def search(
        self,
        text: str | None,
        where: Where | None,
        *,
        vector: Sequence[float] | None,
        model: str | None,
        like: str | None,
        limit: int,
        min_similarity: float,
        measures: bool = False,
    ) -> SearchAnswer:
        """By words, by a vector of a model, or by another concept's."""
        alike = None if like is None else self.concept(like, where)
        found = self._graph.search(
            text, vector=vector, model=model, like=alike, where=where, limit=limit, min_similarity=min_similarity,
            **self._limits(),
        )  # fmt: skip
        return self._graph.with_measures(found, **self._time()) if measures else found

    def _concepts(self, names: Sequence[str], walk: Walk) -> list[UUID]:
        return [self.concept(name, walk.where) for name in names]

    def _terms(self, walk: Walk) -> dict[str, Any]:
        return {
            "direction": walk.direction, "relation_types": walk.relation_types, "where": walk.where, **self._limits()
        }  # fmt: skip

    def _limits(self) -> dict[str, Any]:
        return {"min_epoch": self._min_epoch, **self._time()}

    def _time(self) -> dict[str, Any]:
        return {"deadline": self.left, "cancel": self.cancel}
