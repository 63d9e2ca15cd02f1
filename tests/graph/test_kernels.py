"""The compiled kernel and numpy give the same as a plain breadth-first search, over a base and over changed lists."""

import time
from collections import deque
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappa.graph.query import numpy_hops
from kappa.graph.query.filters import BOTH, CANCELLED, COMPLETE, IN, OUT, OUT_OF_TIME, TOO_MANY, Cancel, Filter, Limits
from kappa.graph.query.kernel import CKernel, NumpyKernel, best
from kappa.graph.query.paths import shortest_ways
from kappa.graph.query.snapshot import Delta, Rows, Snapshot, apply, build, compact
from kappa.graph.query.walkers import SnapshotWalker

Edge = tuple[int, int, int]
World = dict[Edge, int]
"""Confidence by from, to and type."""

NODES = 9
edges = st.dictionaries(
    st.tuples(st.integers(1, NODES), st.integers(1, NODES), st.integers(1, 3)), st.integers(0, 100), max_size=25
)
filters = st.builds(
    Filter,
    ways=st.sampled_from([OUT, IN, BOTH]),
    types=st.none() | st.sets(st.integers(1, 3)).map(lambda some: tuple(sorted(some))),
    ontologies=st.none() | st.sets(st.integers(1, 3)).map(lambda some: tuple(sorted(some))),
    min_confidence=st.sampled_from([0, 0, 50]),
)


def ontology(node: int) -> int:
    return 1 + node % 3


def snapshot(world: World, nodes: int = NODES) -> Snapshot:
    ids = np.arange(1, nodes + 1, dtype=np.int64)
    keys = np.array(sorted(world), np.int64).reshape(-1, 3)
    confidence = np.array([world[key] for key in sorted(world)], np.uint8)
    groups = np.array([ontology(int(node)) for node in ids], np.uint16)
    return build(1, Rows(ids, groups, keys[:, 0], keys[:, 1], keys[:, 2].astype(np.uint16), confidence))


def delta(old: World, new: World, nodes: int = NODES, gone: tuple[int, ...] = ()) -> Delta:
    touched = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    keys = np.array(touched, np.int64).reshape(-1, 3)
    ids = np.array([node for node in range(1, nodes + 1) if node not in gone], np.int64)
    groups = np.array([ontology(int(node)) for node in ids], np.uint16)
    confidence = np.array([new.get(key, -1) for key in touched], np.int16)
    types = keys[:, 2].astype(np.uint16)
    return Delta(2, ids, groups, np.array(gone, np.int64), keys[:, 0], keys[:, 1], types, confidence)


def limits(seconds: float = 60.0) -> Limits:
    return Limits(time.monotonic() + seconds, Cancel())


def steps(world: World, node: int, only: Filter) -> set[int]:
    found: set[int] = set()
    for (head, tail, kind), confidence in world.items():
        if confidence < only.min_confidence or (only.types is not None and kind not in only.types):
            continue
        if only.ways & OUT and head == node:
            found.add(tail)
        if only.ways & IN and tail == node:
            found.add(head)
    return found


def passes(node: int, only: Filter) -> bool:
    return only.ontologies is None or ontology(node) in only.ontologies


def plain(world: World, seeds: list[int], max_hops: int, only: Filter) -> dict[int, int]:
    distance = dict.fromkeys(seeds, 0)
    queue = deque(seeds)
    while queue:
        node = queue.popleft()
        if distance[node] == max_hops:
            continue
        for near in steps(world, node, only):
            if near not in distance and passes(near, only):
                distance[near] = distance[node] + 1
                queue.append(near)
    return {node: hop for node, hop in distance.items() if hop}


def all_ways(world: World, start: int, goal: int, max_hops: int, only: Filter) -> list[list[int]]:
    """Every simple way, shortest first, then by its nodes: by trying all there are."""
    found: list[list[int]] = []

    def go(way: list[int]) -> None:
        if way[-1] == goal:
            found.append(way)
            return
        if len(way) > max_hops:
            return
        for near in steps(world, way[-1], only):
            if near not in way and (near == goal or passes(near, only)):
                go([*way, near])

    go([start])
    return sorted(found, key=lambda way: (len(way), way))


KERNELS = [best(), NumpyKernel()]


def test_the_compiled_kernel_is_built_where_there_is_a_compiler() -> None:
    assert isinstance(best(), CKernel)


def reached(
    kernel: CKernel | NumpyKernel, graph: Snapshot, seeds: list[int], hops: int, only: Filter
) -> dict[int, int]:
    result = kernel.reach(graph, graph.index(np.array(seeds, np.int64)), hops, only, limits(), 10**6)
    assert result.stop == COMPLETE
    distance = np.repeat(np.arange(1, len(result.levels) + 1), result.levels)
    ids = graph.ids[result.nodes].tolist()
    assert len(set(ids)) == len(ids)
    return dict(zip(ids, distance.tolist(), strict=True))


@settings(max_examples=300, deadline=None)
@given(edges, st.lists(st.integers(1, NODES), min_size=1, max_size=3, unique=True), st.integers(1, 5), filters)
def test_reach_is_a_breadth_first_search(world: World, seeds: list[int], hops: int, only: Filter) -> None:
    graph = snapshot(world)
    for kernel in KERNELS:
        assert reached(kernel, graph, sorted(seeds), hops, only) == plain(world, seeds, hops, only)


@settings(max_examples=200, deadline=None)
@given(edges, edges, edges, st.integers(1, NODES), filters)
def test_changed_lists_and_their_compaction_say_the_same(
    first: World, second: World, third: World, seed: int, only: Filter
) -> None:
    first = {key: value for key, value in first.items() if max(key[:2]) <= NODES - 2}
    graph = apply(snapshot(first, NODES - 2), delta(first, second))
    older = graph
    graph = apply(graph, delta(second, third))
    for state, world in (
        (older, second),
        (graph, third),
        (compact(graph), third),
        (apply(older, delta({}, {})), second),
    ):
        assert state.edges == len(world)
        for kernel in KERNELS:
            assert reached(kernel, state, [seed], 4, only) == plain(world, [seed], 4, only)


@settings(max_examples=100, deadline=None)
@given(edges, st.integers(1, NODES))
def test_a_node_that_is_gone_is_not_known_any_more(world: World, victim: int) -> None:
    after = {key: value for key, value in world.items() if victim not in key[:2]}
    for graph in (apply(snapshot(world), delta(world, after, gone=(victim,))),):
        for state in (graph, compact(graph)):
            assert state.index(np.array([victim], np.int64)).tolist() == [-1]
            for seed in set(range(1, NODES + 1)) - {victim}:
                assert reached(KERNELS[0], state, [seed], 3, Filter()) == plain(after, [seed], 3, Filter())
        assert compact(graph).nodes == NODES - 1


@settings(max_examples=200, deadline=None)
@given(edges, st.integers(1, NODES), st.integers(1, NODES), st.integers(1, 6), st.integers(1, 6), filters)
def test_paths_are_all_simple_ways_in_order(
    world: World, start: int, goal: int, hops: int, count: int, only: Filter
) -> None:
    if start == goal:
        return
    expected = all_ways(world, start, goal, hops, only)[:count]
    for graph in (snapshot(world), apply(snapshot({}), delta({}, world))):
        for kernel in KERNELS:
            walker = SnapshotWalker(graph, kernel, limits(), 10**6)
            assert shortest_ways(walker, start, goal, hops, count, only) == (expected, COMPLETE)


@settings(max_examples=200, deadline=None)
@given(edges, st.integers(1, 12))
def test_the_top_is_by_degree_and_then_by_id(world: World, limit: int) -> None:
    degree = {node: sum((node == key[0]) + (node == key[1]) for key in world) for node in range(1, NODES + 1)}
    expected = sorted(degree, key=lambda node: (-degree[node], node))[:limit]
    for graph in (snapshot(world), apply(snapshot({}), delta({}, world))):
        for kernel in KERNELS:
            nodes, degrees = kernel.top(graph, np.arange(NODES, dtype=np.int32)[::-1].copy(), limit)
            assert graph.ids[nodes].tolist() == expected
            assert degrees.tolist() == [degree[node] for node in expected]


def power_law(nodes: int, count: int) -> Snapshot:
    chance = np.random.default_rng(7)
    ends = (nodes * chance.random((2, count)) ** 3).astype(np.int64) + 1
    return build(
        1,
        Rows(
            np.arange(1, nodes + 1),
            chance.integers(1, 4, nodes).astype(np.uint16),
            ends[0],
            ends[1],
            chance.integers(1, 4, count).astype(np.uint16),
            chance.integers(0, 101, count).astype(np.uint8),
        ),
    )


@pytest.mark.parametrize("ways", [OUT, IN, BOTH])
def test_large_frontiers_are_walked_upwards_to_the_same_end(ways: int) -> None:
    graph = power_law(3_000, 30_000)
    for only in (Filter(ways), Filter(ways, types=(1, 2)), Filter(ways, ontologies=(1, 3), min_confidence=40)):
        answers = [reached(kernel, graph, [5, 17], 4, only) for kernel in KERNELS]
        assert answers[0] == answers[1]
        assert len(answers[0]) > 200


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_walk_stops_when_it_is_told_to(kernel: CKernel | NumpyKernel) -> None:
    graph = power_law(3_000, 30_000)
    seed = np.array([5], np.int32)
    over = Limits(time.monotonic() - 1, Cancel())
    assert kernel.reach(graph, seed, 3, Filter(), over, 10**6).stop == OUT_OF_TIME
    cancelled = limits()
    cancelled.cancel.cancel()
    assert kernel.reach(graph, seed, 3, Filter(), cancelled, 10**6).stop == CANCELLED
    many = kernel.reach(graph, seed, 3, Filter(), limits(), 100)
    assert many.stop == TOO_MANY
    assert len(many.nodes) >= 100


def test_the_top_of_few_is_the_whole_order() -> None:
    degrees = np.array([3, 1, 3, 2])
    ids = np.array([9, 1, 4, 7])
    assert numpy_hops.top(degrees, 10, lambda some: ids[some]).tolist() == [2, 0, 3, 1]
    for order in permutations(range(4)):
        places = list(order)
        top = numpy_hops.top(degrees[places], 2, lambda some, places=places: ids[places][some])
        assert ids[places][top].tolist() == [4, 9]


def test_a_hundred_refreshes_disturb_no_earlier_version() -> None:
    world: World = {}
    versions: list[tuple[Snapshot, World]] = []
    graph = snapshot(world, 2_000)
    chance = np.random.default_rng(3)
    for _ in range(100):
        new = dict(world)
        for head, tail in chance.integers(1, 2_001, (5, 2)).tolist():
            new[head, tail, 1] = 100
        for key in list(new)[: int(chance.integers(0, 3))]:
            del new[key]
        graph = apply(graph, delta(world, new, 0))
        world = new
        versions.append((graph, world))
    for state, then in versions[::7]:
        assert state.edges == len(then)
        for seed in sorted({key[0] for key in then})[::25]:
            for kernel in KERNELS:
                assert reached(kernel, state, [seed], 3, Filter()) == plain(then, [seed], 3, Filter())
