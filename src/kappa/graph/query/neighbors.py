"""Concepts around concepts, and what is read off their neighbourhood."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

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
    Relation,
    Skipped,
    Subgraph,
    Where,
)
from kappa.graph.query.asking import Asked, Desk, Question, Seed, check_limit
from kappa.graph.query.filters import IN, OUT, WHY, Filter
from kappa.graph.query.server import Stopped
from kappa.graph.query.walkers import Reach, Walker, allowed_by
from kappa.graph.store.adjacency import Ints

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
        filters = question.filters(direction, relation_types, where)
        with question.walker(nodes) as walker:
            reach = walker.reach(nodes, max_hops, filters, order, limit)
        items = with_rows(question, reach)
    skipped = (*reach.skipped, *question.skipped)
    return Neighbors(walker.epoch, not skipped, skipped, walker.served_by, items, reach.found)


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
        filters = question.filters(direction, relation_types, where)
        with question.walker(nodes) as walker:
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
        pairs = sorted(set(zip(head.tolist(), tail.tolist(), strict=True)))
        relations = between(desk, question, pairs, filters)
    skipped = (*reach.skipped, *question.skipped)
    return Subgraph(
        walker.epoch, not skipped, skipped, walker.served_by, (*items, *found),
        tuple(relation for pair in pairs for relation in relations.get(pair, ())), reach.found,
    )  # fmt: skip


def between(
    desk: Desk, question: Question, pairs: Sequence[tuple[int, int]], filters: Filter
) -> dict[tuple[int, int], list[Relation]]:
    """The rows of all relations from the first node of each pair to its second."""
    if not pairs:
        return {}
    try:
        links = question.fetch(lambda connection: desk.backend.between(connection, pairs, allowed_by(filters)))
    except Stopped as stopped:
        question.skipped.append(Skipped("the rows of the relations", WHY[stopped.stop]))
        return {}
    found: dict[tuple[int, int], list[Relation]] = {}
    for link in links:
        found.setdefault((link.from_node, link.to_node), []).append(link.relation)
    return found


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
        filters = question.filters(direction, relation_types, where)
        with question.walker(nodes) as walker:
            reach = walker.reach(nodes, max_hops, filters, Order.HOP, limit)
            try:
                ways = _ways_back(walker, int(nodes[0]), reach, filters)
            except Stopped as stopped:
                question.skipped.append(Skipped("the ways to what was found", WHY[stopped.stop]))
                ways = {}
        found = with_rows(question, reach)
        names = {one.number: name for name, one in desk.vocabulary(question).types.items()} if ways else {}
    skipped = (*reach.skipped, *question.skipped)
    items = tuple(
        RelatedConcept(one.concept, one.hop, one.degree, tuple(names[t] for t in ways.get(one.concept.node, ())))
        for one in found
    )
    return Related(walker.epoch, not skipped, skipped, walker.served_by, items, reach.found)


def _ways_back(walker: Walker, seed: int, reach: Reach, filters: Filter) -> dict[int, tuple[int, ...]]:
    """The types on the way from the seed to each node: by the lowest node before it, and the lowest type between.

    Every nearer level is walked again from the seed, since the node before may have been cut from the answer.
    """
    back = {OUT: IN, IN: OUT}.get(filters.ways, filters.ways)
    exempt = np.array([seed], np.int64)
    deepest = int(reach.hops.max()) if len(reach.hops) else 0
    wanted = [reach.nodes[reach.hops == hop] for hop in range(deepest + 1)]
    before: dict[int, tuple[int, int]] = {}
    # Distances are needed of all that may lie on a way: levels from the seed up to the one before the deepest.
    distance: dict[int, int] = {seed: 0}
    frontier = exempt
    for hop in range(1, deepest):
        _, there, _ = walker.edges(frontier, filters.ways, filters, exempt)
        frontier = np.array([n for n in np.unique(there).tolist() if n not in distance], np.int64)
        distance.update(dict.fromkeys(frontier.tolist(), hop))
    for hop in range(deepest, 0, -1):
        here, there, types = walker.edges(np.unique(wanted[hop]), back, filters, exempt)
        parents: set[int] = set()
        for node, previous, number in sorted(zip(here.tolist(), there.tolist(), types.tolist(), strict=True)):
            if node not in before and distance.get(previous) == hop - 1:
                before[node] = (previous, number)
                parents.add(previous)
        wanted[hop - 1] = np.union1d(wanted[hop - 1], np.array(sorted(parents), np.int64))
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
        filters = question.filters(direction, relation_types, where)
        types: Ints = nodes[:0]
        with question.walker(nodes) as walker:
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
    return Diversity(
        walker.epoch, not skipped, skipped, walker.served_by,
        concepts=len(found),
        embedded=len(mine),
        score=_spread(mine),
        ontologies=len({row.ontology for row in rows.values()}),
        type_entropy=_entropy(types.tolist()),
    )  # fmt: skip


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
