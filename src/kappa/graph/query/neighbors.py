"""Concepts around concepts, and what is read off their neighbourhood."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from psycopg import Connection

from kappa.graph.config import MAX_HOPS
from kappa.graph.errors import BadQuestion
from kappa.graph.model import (
    Direction,
    Diversity,
    Neighbor,
    Neighbors,
    Order,
    Related,
    RelatedConcept,
    Skipped,
    Subgraph,
    Where,
)
from kappa.graph.query.asking import Asked, Desk, Question, Seed, check_limit, or_stopped
from kappa.graph.query.filters import IN, OUT, WHY, Filter
from kappa.graph.query.server import Stopped
from kappa.graph.query.walkers import Reach, Walker, allowed_by
from kappa.graph.store.adjacency import Ints
from kappa.graph.store.relations import Link
from kappa.pg.queries import Answer, Row

T = TypeVar("T")

MAX_SUBGRAPH_RELATIONS = 20_000


def check_hops(max_hops: int, most: int = MAX_HOPS) -> None:
    if not 1 <= max_hops <= most:
        raise BadQuestion(f"{max_hops} hops: there may be 1 to {most}")


def neighbors(
    desk: Desk,
    seeds: Sequence[Seed],
    *,
    max_hops: int,
    direction: Direction,
    relation_types: Sequence[str] | None,
    where: Where | None,
    order: Order,
    limit: int,
    asked: Asked,
) -> Neighbors:
    check_hops(max_hops)
    check_limit(limit)
    with desk.question(asked) as question:
        nodes = question.numbers(seeds)
        with question.walk(nodes, direction, relation_types, where) as (walker, filters):
            reach = walker.reach(nodes, max_hops, filters, order, limit)
        items = with_rows(question, reach)
    skipped = (*reach.skipped, *question.skipped)
    answer = Neighbors(walker.epoch, not skipped, skipped, walker.served_by, items, reach.found)
    return or_stopped(answer, items or answer.found)


def with_rows(question: Question, reach: Reach) -> tuple[Neighbor, ...]:
    nodes: list[int] = reach.nodes.tolist()
    rows = question.rows(nodes)
    return tuple(
        Neighbor(rows[node], hop, degree)
        for node, hop, degree in zip(nodes, reach.hops.tolist(), reach.degrees.tolist(), strict=True)
        if node in rows
    )


def subgraph(
    desk: Desk,
    seeds: Sequence[Seed],
    *,
    max_hops: int,
    direction: Direction,
    relation_types: Sequence[str] | None,
    where: Where | None,
    limit: int,
    asked: Asked,
) -> Subgraph:
    check_hops(max_hops)
    check_limit(limit)
    with desk.question(asked) as question:
        nodes = question.numbers(seeds)
        with question.walk(nodes, direction, relation_types, where) as (walker, filters):
            reach = walker.reach(nodes, max_hops, filters, Order.HOP, limit)
            everyone = np.unique(np.concatenate((nodes, reach.nodes)))
            try:
                head, tail, _ = walker.among(everyone, filters, MAX_SUBGRAPH_RELATIONS)
                degrees = walker.degrees(nodes)
            except Stopped as stopped:
                question.skipped.append(Skipped("the relations", WHY[stopped.stop]))
                head, tail, degrees = everyone[:0], everyone[:0], np.zeros(len(nodes), np.int64)
        if len(head) >= MAX_SUBGRAPH_RELATIONS:
            question.skipped.append(Skipped(f"relations beyond {MAX_SUBGRAPH_RELATIONS}", "there are too many"))
        rows = question.rows(nodes.tolist())
        found = with_rows(question, reach)
        items = [Neighbor(rows[n], 0, d) for n, d in zip(nodes.tolist(), degrees.tolist(), strict=True) if n in rows]
        pairs = list(dict.fromkeys(zip(head.tolist(), tail.tolist(), strict=True)))  # they came in order
        relations = tuple(between(desk, question, pairs, filters, lambda link: link.relation))
    skipped = (*reach.skipped, *question.skipped)
    answer = Subgraph(walker.epoch, not skipped, skipped, walker.served_by, (*items, *found), relations, reach.found)
    return or_stopped(answer, found or answer.relations)


def between(
    desk: Desk, question: Question, pairs: Sequence[tuple[int, int]], filters: Filter, make: Callable[[Link], T]
) -> list[T]:
    """What is made of each relation from the first node of a pair to its second, ordered by both ends."""
    if not pairs:
        return []

    def act(connection: Connection[Row]) -> Answer[list[T]]:
        links = desk.backend.between(connection, pairs, allowed_by(filters))
        return lambda: [make(link) for link in links()]

    try:
        return question.built(len(pairs), act)
    except Stopped as stopped:
        question.skipped.append(Skipped("the rows of the relations", WHY[stopped.stop]))
        return []


def related(
    desk: Desk,
    seed: Seed,
    *,
    max_hops: int,
    direction: Direction,
    relation_types: Sequence[str] | None,
    where: Where | None,
    limit: int,
    asked: Asked,
) -> Related:
    check_hops(max_hops)
    check_limit(limit)
    with desk.question(asked) as question:
        nodes = question.numbers([seed])
        with question.walk(nodes, direction, relation_types, where) as (walker, filters):
            reach = walker.reach(nodes, max_hops, filters, Order.HOP, limit)
            names: dict[int, str] = {}
            try:
                with question.turn(len(reach.nodes) if walker.served_by == "snapshot" else 0):
                    ways = _ways_back(walker, int(nodes[0]), reach, filters)
                names = walker.vocabulary().type_names if ways else {}
            except Stopped as stopped:
                question.skipped.append(Skipped("the ways to what was found", WHY[stopped.stop]))
                ways = {}
        found = with_rows(question, reach)
    skipped = (*reach.skipped, *question.skipped)
    items = tuple(
        RelatedConcept(one.concept, one.hop, one.degree, tuple(names[t] for t in ways.get(one.concept.node, ())))
        for one in found
    )
    answer = Related(walker.epoch, not skipped, skipped, walker.served_by, items, reach.found)
    return or_stopped(answer, items or reach.found)


def _ways_back(walker: Walker, seed: int, reach: Reach, filters: Filter) -> dict[int, tuple[int, ...]]:
    """The types on the way from the seed to each node: by the lowest node before it, and the lowest type between.

    Every nearer level is walked again from the seed, since the node before may have been cut from the answer.
    """
    back = {OUT: IN, IN: OUT}.get(filters.ways, filters.ways)
    exempt = np.array([seed], np.int64)
    deepest = int(reach.hops.max()) if len(reach.hops) else 0
    wanted = [reach.nodes[reach.hops == hop] for hop in range(deepest + 1)]
    before: dict[int, tuple[int, int]] = {}
    # Levels are needed of all that may lie on a way: from the seed up to the one before the deepest.
    levels, seen = [exempt], exempt
    for _ in range(1, deepest):
        _, there, _ = walker.edges(levels[-1], filters.ways, filters, exempt)
        levels.append(np.setdiff1d(there, seen))
        seen = np.union1d(seen, levels[-1])
    for hop in range(deepest, 0, -1):
        here, there, types = walker.edges(np.unique(wanted[hop]), back, filters, exempt)
        nearer = np.isin(there, levels[hop - 1])
        here, there, types = here[nearer], there[nearer], types[nearer]
        order = np.lexsort((types, there, here))
        nodes, first = np.unique(here[order], return_index=True)
        chosen = order[first]
        ends = zip(there[chosen].tolist(), types[chosen].tolist(), strict=True)
        before.update(zip(nodes.tolist(), ends, strict=True))
        wanted[hop - 1] = np.union1d(wanted[hop - 1], there[chosen])
    ways: dict[int, tuple[int, ...]] = {}
    for node in reach.nodes.tolist():
        way: list[int] = []
        at = node
        while at != seed and at in before:
            at, number = before[at]
            way.append(number)
        if at == seed:
            ways[node] = tuple(reversed(way))
    return ways


def diversity(
    desk: Desk,
    seed: Seed,
    *,
    max_hops: int,
    direction: Direction,
    relation_types: Sequence[str] | None,
    where: Where | None,
    limit: int,
    asked: Asked,
) -> Diversity:
    check_hops(max_hops)
    check_limit(limit)
    with desk.question(asked) as question:
        nodes = question.numbers([seed])
        types: Ints = nodes[:0]
        with question.walk(nodes, direction, relation_types, where) as (walker, filters):
            reach = walker.reach(nodes, max_hops, filters, Order.HOP, limit)
            try:
                _, _, types = walker.edges(nodes, filters.ways, filters, nodes)
            except Stopped as stopped:
                question.skipped.append(Skipped("the relation types around the concept", WHY[stopped.stop]))
        found: list[int] = reach.nodes.tolist()
        rows = question.rows(found)
        try:
            vectors = question.fetch(lambda connection: desk.backend.embeddings(connection, found)) if found else []
        except Stopped as stopped:
            question.skipped.append(Skipped("the embeddings", WHY[stopped.stop]))
            vectors = []
    skipped = (*reach.skipped, *question.skipped)
    model = _most_common(vectors)
    mine = np.array([vector for _, name, vector in vectors if (name, len(vector)) == model], np.float64)
    answer = Diversity(
        walker.epoch, not skipped, skipped, walker.served_by,
        concepts=len(found),
        embedded=len(mine),
        score=_spread(mine),
        ontologies=len({row.ontology for row in rows.values()}),
        type_entropy=_entropy(types.tolist()),
    )  # fmt: skip
    return or_stopped(answer, found)


def _most_common(vectors: Sequence[tuple[int, str, list[float]]]) -> tuple[str, int] | None:
    """The model and length that most have; of equally many the first by name."""
    counts = Counter((name, len(vector)) for _, name, vector in vectors)
    return min(counts, key=lambda one: (-counts[one], one)) if counts else None


def _spread(vectors: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float | None:
    """The mean of 1 − cosine over all pairs, from the sum of the unit vectors alone."""
    lengths = np.linalg.norm(vectors, axis=1) if len(vectors) else np.zeros(0)
    count = int((lengths > 0).sum())
    if count < 2:
        return None
    unit = vectors[lengths > 0] / lengths[lengths > 0, None]
    total = float(np.square(unit.sum(axis=0)).sum())
    return 1.0 - (total - count) / (count * (count - 1))


def _entropy(types: Sequence[int]) -> float:
    counts = Counter(types)
    return -sum(n / len(types) * math.log2(n / len(types)) for n in counts.values()) + 0.0
