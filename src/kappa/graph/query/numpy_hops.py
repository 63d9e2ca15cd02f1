"""Walks over adjacency lists in numpy: the authority on what `_hops.c` computes, and its stand-in."""

import threading
from collections.abc import Callable

import numpy as np

from kappa.graph.query.adjacency import Bools, Int32, Int64, Lists, UInt16
from kappa.graph.query.filters import COMPLETE, IN, OUT, TOO_MANY, Filter, Limits

EDGES_AT_ONCE = 4_000_000
"""Edges that are gathered between two looks at the clock."""
DENSE = 16
"""One edge for so many nodes, and more, are many."""


def reach(
    out: Lists, into: Lists, group: UInt16, nodes: int, seeds: Int32, max_hops: int, filters: Filter, limits: Limits,
    most: int,
) -> tuple[list[Int32], int]:  # fmt: skip
    """The nodes of each hop, in no order, and how it ended. What a stopped hop had found is given too."""
    seen = np.zeros(nodes, np.bool_)
    seen[seeds] = True
    levels: list[Int32] = []
    frontier, count, stop = seeds, 0, COMPLETE
    while len(levels) < max_hops and len(frontier) and not stop:
        if stop := limits.stop():
            break
        near: list[Int32] = []
        for lists in _ways(out, into, filters.ways):
            for part in _parts(lists, frontier):
                near.append(_near(lists, part, filters))
                if stop := limits.stop():
                    break
            if stop:
                break
        fresh = _fresh(np.concatenate(near), seen)
        if filters.ontology_ok is not None:
            fresh = fresh[filters.ontology_ok.view(np.bool_).take(group.take(fresh))]
        if len(levels) + 1 < max_hops:
            seen[fresh] = True
        frontier = fresh.astype(np.int32)
        levels.append(frontier)
        count += len(frontier)
        if not stop and count + len(seeds) > most:
            stop = TOO_MANY
    return levels, stop


_scratch = threading.local()


def _fresh(near: Int32, seen: Bools) -> Int64:
    """The nodes that were not seen, each once."""
    places: Int64 = near.astype(np.intp)
    if DENSE * len(near) > len(seen):
        # Many of all there are: marks are quicker than looking for repetitions.
        mark = np.zeros(len(seen), np.bool_)
        mark[places] = True
        return np.flatnonzero(np.greater(mark, seen, out=mark))
    places = places[~seen.take(places)]
    last: Int32 | None = getattr(_scratch, "last", None)
    if last is None or len(last) < len(seen):
        # Kept by the thread: memory that is new each time costs more than the walk.
        last = _scratch.last = np.empty(len(seen), np.int32)
    turn = np.arange(len(places), dtype=np.int32)
    # The occurrence is kept that was the last to write its place.
    last[places] = turn
    return places[last.take(places) == turn]


def _ways(out: Lists, into: Lists, ways: int) -> list[Lists]:
    return [lists for bit, lists in ((OUT, out), (IN, into)) if ways & bit]


def _parts(lists: Lists, frontier: Int32) -> list[Int32]:
    if len(frontier) < 2 or len(lists.nbr) + lists.changed_edges <= EDGES_AT_ONCE:
        return [frontier]
    edges = np.cumsum(lists.sizes(frontier))
    if edges[-1] <= EDGES_AT_ONCE:
        return [frontier]
    cuts = np.searchsorted(edges, np.arange(EDGES_AT_ONCE, int(edges[-1]), EDGES_AT_ONCE))
    return [part for part in np.split(frontier, np.unique(cuts)) if len(part)]


def _near(lists: Lists, nodes: Int32, filters: Filter) -> Int32:
    if not filters.looks_at_edges:
        return lists.neighbors(nodes)
    _, near, types, confidence = lists.gather(nodes)
    keep = confidence >= filters.min_confidence
    if filters.type_ok is not None:
        keep &= filters.type_ok[types] != 0
    return near[keep]


def edges(out: Lists, into: Lists, ways: int, nodes: Int32, filters: Filter) -> tuple[Int32, Int32, UInt16]:
    """Edges from some nodes that pass the filter for relations: place in `nodes`, other end, type."""
    found: list[tuple[Int32, Int32, UInt16]] = []
    for lists in _ways(out, into, ways):
        place, near, types, confidence = lists.gather(nodes)
        if filters.looks_at_edges:
            keep = confidence >= filters.min_confidence
            if filters.type_ok is not None:
                keep &= filters.type_ok[types] != 0
            place, near, types = place[keep], near[keep], types[keep]
        found.append((place, near, types))
    if len(found) == 1:
        return found[0]
    return (
        np.concatenate([one[0] for one in found]),
        np.concatenate([one[1] for one in found]),
        np.concatenate([one[2] for one in found]),
    )


def top(degrees: Int64 | Int32, limit: int, ids: Callable[[Int64], Int64]) -> Int64:
    """The places of the highest degrees, and among equals of the lowest ids, in that order."""
    places = np.arange(len(degrees))
    if len(degrees) > limit:
        cut = np.partition(degrees, len(degrees) - limit)[len(degrees) - limit]
        candidates = np.flatnonzero(degrees >= cut)
        highest = degrees[candidates]
        above, level = candidates[highest > cut], candidates[highest == cut]
        rest = limit - len(above)
        if len(level) > rest:
            level = level[np.argpartition(ids(level), rest - 1)[:rest]]
        places = np.concatenate((above, level))
    return places[np.lexsort((ids(places), -degrees[places]))]
