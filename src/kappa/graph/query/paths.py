"""The shortest ways between two concepts, and what stands around them.

Yen's algorithm over breadth-first searches: every way differs from those before it at some node, and among equally
short ones the one with the lowest nodes comes first. So the order is the same whoever searches.
"""

import heapq
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from kappa.graph.config import MAX_PATH_HOPS, MAX_PATHS
from kappa.graph.errors import BadQuestion
from kappa.graph.model import Direction, EnrichedPaths, Neighbor, Order, Path, Paths, Relation, ServedBy, Skipped, Where
from kappa.graph.query.asking import Asked, Desk, Question, Seed, check_limit, or_stopped
from kappa.graph.query.filters import IN, OUT, WHY, Filter
from kappa.graph.query.neighbors import between, check_hops
from kappa.graph.query.server import Stopped
from kappa.graph.query.walkers import Reach, Walker


def shortest_ways(
    walker: Walker, start: int, goal: int, max_hops: int, count: int, filters: Filter
) -> tuple[list[list[int]], int]:
    """The `count` shortest ways without a node twice, and how the search ended."""
    done: list[list[int]] = []
    waiting: list[tuple[int, list[int]]] = []
    known: set[tuple[int, ...]] = set()
    try:
        first = walker.shortest(start, goal, max_hops, filters, (), ())
        if first is None:
            return [], 0
        waiting.append((len(first), first))
        known.add(tuple(first))
        while waiting:
            _, way = heapq.heappop(waiting)
            done.append(way)
            if len(done) == count:
                break
            for turn in range(len(way) - 1):
                root = way[: turn + 1]
                # What comes after the same root in the ways that are known is not gone again.
                taken = {one[turn + 1] for one in done if one[: turn + 1] == root}
                rest = walker.shortest(root[-1], goal, max_hops - turn, filters, tuple(root[:-1]), tuple(sorted(taken)))
                if rest is not None and tuple(other := root[:-1] + rest) not in known:
                    known.add(tuple(other))
                    heapq.heappush(waiting, (len(other), other))
    except Stopped as stopped:
        return done, stopped.stop
    return done, 0


def paths(
    desk: Desk,
    start: Seed,
    goal: Seed,
    *,
    max_hops: int,
    count: int,
    direction: Direction,
    relation_types: Sequence[str] | None,
    where: Where | None,
    asked: Asked,
) -> Paths:
    with desk.question(asked) as question:
        found, walker = _found(desk, question, start, goal, max_hops, count, direction, relation_types, where)
    return or_stopped(
        Paths(walker.epoch, not question.skipped, tuple(question.skipped), walker.served_by, found), found
    )


def enriched_path(
    desk: Desk,
    start: Seed,
    goal: Seed,
    *,
    max_hops: int,
    count: int,
    around_hops: int,
    around_limit: int,
    direction: Direction,
    relation_types: Sequence[str] | None,
    where: Where | None,
    asked: Asked,
) -> EnrichedPaths:
    check_hops(around_hops)
    check_limit(around_limit)
    with desk.question(asked) as question:
        found, walker = _found(
            desk, question, start, goal, max_hops, count, direction, relation_types, where,
            around=(around_hops, around_limit),
        )  # fmt: skip
        rows = question.rows(sorted({node for reach in walker.around.values() for node in reach.nodes.tolist()}))
    on_paths = {concept.node: concept.id for path in found for concept in path.concepts}
    around = {
        on_paths[node]: tuple(
            Neighbor(rows[near], hop, degree)
            for near, hop, degree in zip(reach.nodes.tolist(), reach.hops.tolist(), reach.degrees.tolist(), strict=True)
            if near in rows
        )
        for node, reach in walker.around.items()
        if node in on_paths
    }
    skipped = tuple(question.skipped)
    return or_stopped(EnrichedPaths(walker.epoch, not skipped, skipped, walker.served_by, found, around), found)


class _Walked:
    """What is left of a walker when its connection is given back: who it was, and what it saw around the ways."""

    def __init__(self, walker: Walker, around: dict[int, Reach]) -> None:
        self.epoch = walker.epoch
        self.served_by: ServedBy = walker.served_by
        self.around = around


def _found(
    desk: Desk,
    question: Question,
    start: Seed,
    goal: Seed,
    max_hops: int,
    count: int,
    direction: Direction,
    relation_types: Sequence[str] | None,
    where: Where | None,
    around: tuple[int, int] | None = None,
) -> tuple[tuple[Path, ...], _Walked]:
    check_hops(max_hops, MAX_PATH_HOPS)
    if not 1 <= count <= MAX_PATHS:
        raise BadQuestion(f"{count} paths: there may be 1 to {MAX_PATHS}")
    first, last = int(question.numbers([start])[0]), int(question.numbers([goal])[0])
    if first == last:
        raise BadQuestion("a path needs two concepts")
    seen: dict[int, Reach] = {}
    ends = np.array([first, last], np.int64)
    with question.walk(ends, direction, relation_types, where) as (walker, filters):
        ways, stop = shortest_ways(walker, first, last, max_hops, count, filters)
        if stop:
            question.skipped.append(Skipped(f"paths after the first {len(ways)}", WHY[stop]))
        if around is not None:
            for node in sorted({node for way in ways for node in way}):
                if question.stopped:
                    question.skipped.append(Skipped(f"what is around node {node} and those after it", WHY[1]))
                    break
                seen[node] = walker.reach(np.array([node], np.int64), around[0], filters, Order.DEGREE, around[1])
                question.skipped += seen[node].skipped
    return _with_rows(desk, question, ways, filters), _Walked(walker, seen)


def _with_rows(desk: Desk, question: Question, ways: Sequence[list[int]], filters: Filter) -> tuple[Path, ...]:
    rows = question.rows(sorted({node for way in ways for node in way}))
    steps = {pair for way in ways for pair in pairwise(way)}
    along: set[tuple[int, int]] = set()
    if filters.ways & OUT:
        along |= steps
    if filters.ways & IN:
        along |= {(b, a) for a, b in steps}
    links: dict[tuple[int, int], list[Relation]] = {}
    for link in between(desk, question, sorted(along), filters, lambda link: link):
        links.setdefault((link.from_node, link.to_node), []).append(link.relation)

    def relations(a: int, b: int) -> tuple[Relation, ...]:
        there = links.get((a, b), []) if filters.ways & OUT else []
        back = links.get((b, a), []) if filters.ways & IN else []
        return (*there, *back)

    return tuple(
        Path(tuple(rows[node] for node in way), tuple(relations(a, b) for a, b in pairwise(way)))
        for way in ways
        if all(node in rows for node in way)
    )
