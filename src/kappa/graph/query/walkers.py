"""One question's view of the graph at one epoch, in memory or in the database: ids of rows, and the same from both."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
from psycopg import Connection

from kappa.graph.model import Order, ServedBy, Skipped
from kappa.graph.query import numpy_hops, reading
from kappa.graph.query.adjacency import Int32
from kappa.graph.query.backend import GraphBackend, Way
from kappa.graph.query.degrees import KnownDegrees
from kappa.graph.query.filters import IN, OUT, TOO_MANY, WHY, Filter, Limits, Vocabulary
from kappa.graph.query.kernel import CKernel, Kernel
from kappa.graph.query.server import Session, Stopped
from kappa.graph.query.snapshot import Snapshot
from kappa.graph.store.adjacency import Allowed, Ints
from kappa.pg.queries import Row

_NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Reach:
    """What stands around seeds, ordered and cut."""

    nodes: Ints
    hops: Ints
    degrees: Ints
    found: int
    """How many there are before the cut."""
    skipped: tuple[Skipped, ...] = ()


class Walker(Protocol):
    """A view of the graph at one epoch."""

    epoch: int
    served_by: ServedBy

    def reach(self, seeds: Ints, max_hops: int, filters: Filter, order: Order, limit: int) -> Reach:
        """Nodes around seeds. Seeds are not among them."""
        ...

    def edges(self, nodes: Ints, ways: int, filters: Filter, exempt: Ints) -> tuple[Ints, Ints, Ints]:
        """Edges from nodes that pass the filter: this end, the other, the type."""
        ...

    def degrees(self, nodes: Ints) -> Ints: ...

    def among(self, nodes: Ints, filters: Filter, most: int) -> tuple[Ints, Ints, Ints]:
        """Relations with both ends among the nodes: from, to, type; the lowest first."""
        ...

    def shortest(
        self, start: int, goal: int, max_hops: int, filters: Filter, avoid: Sequence[int], not_next: Sequence[int]
    ) -> list[int] | None:
        """The shortest way that has the lowest nodes, through none of `avoid`, and not to `not_next` first."""
        ...

    def vocabulary(self, named: Sequence[str] = ()) -> Vocabulary:
        """All types at this epoch, and at least those ontologies that are named and there."""
        ...


def why(stop: int, what: str) -> tuple[Skipped, ...]:
    return (Skipped(what, WHY[stop]),) if stop else ()


class SnapshotWalker:
    """The graph in memory."""

    served_by: ServedBy = "snapshot"

    def __init__(self, graph: Snapshot, kernel: Kernel, limits: Limits, most: int) -> None:
        self._graph = graph
        self._kernel = kernel
        self._limits = limits
        self._most = most
        self.epoch = graph.epoch

    def knows(self, nodes: Ints) -> bool:
        return bool((self._graph.index(nodes) >= 0).all())

    def reach(self, seeds: Ints, max_hops: int, filters: Filter, order: Order, limit: int) -> Reach:
        graph, kernel = self._graph, self._kernel
        reached = kernel.reach(graph, graph.index(seeds), max_hops, filters, self._limits, self._most)
        bounds = np.cumsum((0, *reached.levels))
        if order is Order.DEGREE:
            best, degrees = kernel.top(graph, reached.nodes, limit)
            hops = self._hops(reached.nodes, bounds, best)
        else:
            parts: list[tuple[Int32, Ints, Ints]] = []
            for hop, (begin, end) in enumerate(pairwise(bounds.tolist()), start=1):
                level, level_degrees = kernel.top(graph, reached.nodes[begin:end], limit)
                parts.append((level, level_degrees, np.full(len(level), hop, np.int64)))
                limit -= len(level)
                if limit <= 0:
                    break
            best = np.concatenate([part[0] for part in parts]) if parts else np.empty(0, np.int32)
            degrees = np.concatenate([part[1] for part in parts]) if parts else _NOTHING
            hops = np.concatenate([part[2] for part in parts]) if parts else _NOTHING
        what = f"what is beyond hop {max(0, len(reached.levels) - 1)}"
        return Reach(graph.ids[best], hops, degrees, len(reached.nodes), why(reached.stop, what))

    def _hops(self, nodes: Int32, bounds: Ints, best: Int32) -> Ints:
        """The distance of the few that are kept. The last level, which is most of all, needs no mark."""
        hop_of = np.zeros(self._graph.nodes if len(bounds) > 2 else 0, np.uint8)
        for hop, (begin, end) in enumerate(pairwise(bounds[:-1].tolist()), start=1):
            hop_of[nodes[begin:end]] = hop
        hops = hop_of[best].astype(np.int64) if len(hop_of) else np.zeros(len(best), np.int64)
        hops[hops == 0] = len(bounds) - 1
        return hops

    def edges(self, nodes: Ints, ways: int, filters: Filter, exempt: Ints) -> tuple[Ints, Ints, Ints]:
        if stop := self._limits.stop():
            raise Stopped(stop)
        graph = self._graph
        index = graph.index(nodes)
        place, near, types = numpy_hops.edges(graph.out, graph.into, ways, index, filters)
        if filters.ontology_ok is not None:
            passes = filters.ontology_ok[graph.group[near]] != 0
            passes |= np.isin(near, graph.index(exempt))
            place, near, types = place[passes], near[passes], types[passes]
        return nodes[place], graph.ids[near], types.astype(np.int64)

    def degrees(self, nodes: Ints) -> Ints:
        return self._graph.degrees(self._graph.index(nodes)).astype(np.int64)

    def among(self, nodes: Ints, filters: Filter, most: int) -> tuple[Ints, Ints, Ints]:
        head, tail, types = self.edges(nodes, OUT, Filter(OUT, filters.types, None, filters.min_confidence), nodes)
        inside = np.isin(tail, nodes)
        head, tail, types = head[inside], tail[inside], types[inside]
        order = np.lexsort((types, tail, head))[:most]
        return head[order], tail[order], types[order]

    def shortest(
        self, start: int, goal: int, max_hops: int, filters: Filter, avoid: Sequence[int], not_next: Sequence[int]
    ) -> list[int] | None:
        if not isinstance(self._kernel, CKernel):
            return search(self.edges, start, goal, max_hops, filters, avoid, not_next)
        graph = self._graph
        ends = graph.index(np.array([start, goal], np.int64))
        way, stop = self._kernel.shortest(
            graph, int(ends[0]), int(ends[1]), max_hops, filters, self._limits,
            graph.index(np.array(avoid, np.int64)), graph.index(np.array(not_next, np.int64)),
        )  # fmt: skip
        if stop:
            raise Stopped(stop)
        return None if way is None else [int(graph.ids[node]) for node in way]

    def vocabulary(self, named: Sequence[str] = ()) -> Vocabulary:
        return self._graph.vocabulary


class Known:
    """What earlier questions in SQL have read, each true of one epoch."""

    def __init__(self) -> None:
        self.degrees = KnownDegrees()
        self.names: tuple[int, Vocabulary] | None = None


class SqlWalker:
    """The graph in the database, frontier by frontier, through one consistent state."""

    served_by: ServedBy = "sql"

    def __init__(self, backend: GraphBackend, session: Session, limits: Limits, sizes: "Sizes", known: Known) -> None:
        self._backend = backend
        self._session = session
        self._known = known
        self._limits = limits
        self._sizes = sizes
        self.epoch = session.run(backend.epoch)

    def reach(self, seeds: Ints, max_hops: int, filters: Filter, order: Order, limit: int) -> Reach:
        seen = np.unique(seeds)
        frontier, levels = seen, list[Ints]()
        skipped: list[Skipped] = []
        while len(levels) < max_hops and len(frontier) and not skipped:
            near, stop, trouble = self._expand(frontier, filters)
            level = np.setdiff1d(np.unique(np.concatenate(near)), seen, assume_unique=True) if near else _NOTHING
            levels.append(level)
            seen = np.union1d(seen, level)
            frontier = level
            if not stop and len(seen) > self._sizes.most:
                stop = TOO_MANY
            if stop or trouble:
                skipped.append(Skipped(f"what is beyond hop {len(levels) - 1}", WHY.get(stop, trouble)))
        sizes = [len(level) for level in levels]
        found = sum(sizes)
        if order is Order.HOP:
            # What is farther than the first so many can't be among them, and need not be counted.
            levels = levels[: 1 + int(np.searchsorted(np.cumsum(sizes), limit))]
        nodes = np.concatenate(levels) if levels else _NOTHING
        hops = np.repeat(np.arange(1, len(levels) + 1), sizes[: len(levels)])
        try:
            degrees = self.degrees(nodes)
        except Stopped as stopped:
            degrees = np.zeros(len(nodes), np.int64)
            skipped.append(Skipped("degrees, so that the order is by node alone", WHY[stopped.stop]))
        if order is Order.DEGREE:
            places = numpy_hops.top(degrees, limit, lambda some: nodes[some])
        else:
            places = np.lexsort((nodes, -degrees, hops))[:limit]
        return Reach(nodes[places], hops[places], degrees[places], found, tuple(skipped))

    def _expand(self, frontier: Ints, filters: Filter) -> tuple[list[Ints], int, str]:
        allowed, most = allowed_by(filters), self._sizes.rows

        def act(way: Way, part: Ints) -> Callable[[Connection[Row]], Ints]:
            return lambda connection: self._backend.expand(connection, way, part, allowed, most)

        acts = [act(way, part) for part in self._parts(frontier) for way in ways_of(filters.ways)]
        found, _, stop, trouble = self._session.run_all(acts)
        if not stop and any(len(part) >= most for part in found):
            stop = TOO_MANY
        return found, stop, trouble

    def _parts(self, frontier: Ints) -> list[Ints]:
        size = self._sizes.chunk
        return [frontier[at : at + size] for at in range(0, len(frontier), size)]

    def edges(self, nodes: Ints, ways: int, filters: Filter, exempt: Ints) -> tuple[Ints, Ints, Ints]:
        allowed, most = allowed_by(filters), self._sizes.rows

        def act(way: Way, part: Ints) -> Callable[[Connection[Row]], tuple[Ints, Ints, Ints]]:
            return lambda connection: self._backend.edges(connection, way, part, allowed, exempt, most)

        if not len(nodes):
            return _NOTHING, _NOTHING, _NOTHING
        acts = [act(way, part) for part in self._parts(nodes) for way in ways_of(ways)]
        found, missing, stop, _ = self._session.run_all(acts)
        if missing:
            raise Stopped(stop or TOO_MANY)
        if any(len(part[0]) >= most for part in found):
            raise Stopped(TOO_MANY)
        return (
            np.concatenate([part[0] for part in found]),
            np.concatenate([part[1] for part in found]),
            np.concatenate([part[2] for part in found]),
        )

    def degrees(self, nodes: Ints) -> Ints:
        if not self._backend.own:
            return self._count(nodes)
        self._known.degrees.come_to(self.epoch, self._touched)
        degrees = self._known.degrees.find(self.epoch, nodes)
        strange = degrees < 0
        if strange.any():
            degrees[strange] = self._count(nodes[strange])
            self._known.degrees.learn(self.epoch, nodes[strange], degrees[strange])
        return degrees

    def _touched(self, since: int) -> Ints | None:
        return self._session.run(lambda connection: reading.touched_nodes(connection, since))

    def _count(self, nodes: Ints) -> Ints:
        degrees = np.zeros(len(nodes), np.int64)
        order = np.argsort(nodes)
        if len(nodes):
            acts = [self._degrees(part) for part in self._parts(nodes)]
            found, missing, stop, _ = self._session.run_all(acts)
            if missing:
                raise Stopped(stop or TOO_MANY)
            for some, counts in found:
                degrees[order[np.searchsorted(nodes, some, sorter=order)]] = counts
        return degrees

    def _degrees(self, part: Ints) -> Callable[[Connection[Row]], tuple[Ints, Ints]]:
        return lambda connection: self._backend.degrees(connection, part)

    def among(self, nodes: Ints, filters: Filter, most: int) -> tuple[Ints, Ints, Ints]:
        allowed = allowed_by(filters)
        return self._session.run(lambda connection: self._backend.among(connection, nodes, allowed, most))

    def shortest(
        self, start: int, goal: int, max_hops: int, filters: Filter, avoid: Sequence[int], not_next: Sequence[int]
    ) -> list[int] | None:
        return search(self.edges, start, goal, max_hops, filters, avoid, not_next)

    def vocabulary(self, named: Sequence[str] = ()) -> Vocabulary:
        names = self._known.names
        if self._backend.own and names is not None and names[0] == self.epoch:
            return names[1]
        found = self._session.run(lambda connection: self._backend.vocabulary(connection, named))
        self._known.names = (self.epoch, found)
        return found


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much a walk in SQL takes at once, and in all."""

    chunk: int
    rows: int
    most: int


def allowed_by(filters: Filter) -> Allowed:
    return Allowed(filters.types, filters.ontologies, filters.min_confidence)


def ways_of(ways: int) -> list[Way]:
    return [way for bit, way in _WAYS if ways & bit]


_WAYS: tuple[tuple[int, Way], ...] = ((OUT, "out"), (IN, "in"))

Edges = Callable[[Ints, int, Filter, Ints], tuple[Ints, Ints, Ints]]


def search(
    edges: Edges, start: int, goal: int, max_hops: int, filters: Filter, avoid: Sequence[int], not_next: Sequence[int]
) -> list[int] | None:
    """A breadth-first search from both ends, always the smaller side, and then the way with the lowest nodes."""
    shut, barred = np.array(avoid, np.int64), np.array(not_next, np.int64)
    ends = np.array([start, goal], np.int64)
    back = {OUT: IN, IN: OUT}.get(filters.ways, filters.ways)
    near: tuple[list[Ints], list[Ints]] = ([ends[:1]], [ends[1:]])
    seen = [np.union1d(shut, ends[:1]), np.union1d(shut, ends[1:])]
    ways: tuple[list[tuple[Ints, Ints]], list[tuple[Ints, Ints]]] = ([], [])

    def grow(side: int) -> None:
        here, there, _ = edges(near[side][-1], filters.ways if side == 0 else back, filters, ends)
        head, tail = (here, there) if side == 0 else (there, here)
        open_ = ~((head == start) & np.isin(tail, barred)) & ~np.isin(there, seen[side])
        ways[side].append((here[open_], there[open_]))
        near[side].append(np.unique(there[open_]))
        seen[side] = np.union1d(seen[side], near[side][-1])

    while len(near[0]) + len(near[1]) - 2 < max_hops:
        side = int(len(near[1][-1]) < len(near[0][-1]))
        grow(side)
        if not len(near[side][-1]):
            return None
        met = np.intersect1d(near[0][-1], near[1][-1], assume_unique=True)
        if len(met):
            return _lowest(start, met, ways)
    return None


def _lowest(start: int, met: Ints, ways: tuple[list[tuple[Ints, Ints]], list[tuple[Ints, Ints]]]) -> list[int]:
    """The way with the lowest nodes over the levels of both sides."""
    steps: list[tuple[Ints, Ints]] = []
    on = met
    for here, there in reversed(ways[0]):
        leads = np.isin(there, on)
        steps.append((here[leads], there[leads]))
        on = here[leads]
    steps.reverse()
    # The other side's edges were found from the goal; backwards they lead to it.
    steps += [(there, here) for here, there in reversed(ways[1])]
    way = [start]
    for here, there in steps:
        way.append(int(there[here == way[-1]].min()))
    return way
