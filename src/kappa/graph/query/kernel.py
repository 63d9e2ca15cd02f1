"""The walks over a snapshot, by the compiled kernel where it was built and by numpy elsewhere. Both give the same."""

import importlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np

from kappa.graph.query import numpy_hops
from kappa.graph.query.adjacency import Int32, Int64
from kappa.graph.query.filters import Filter, Limits
from kappa.graph.query.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Reached:
    """Nodes of a snapshot and their distances, in no order; and how the walk ended."""

    nodes: Int32
    levels: tuple[int, ...]
    """How many of them are one hop away, then two, and so on."""
    stop: int


class Kernel(Protocol):
    """What walks."""

    name: Literal["c", "numpy"]

    def reach(
        self, graph: Snapshot, seeds: Int32, max_hops: int, filters: Filter, limits: Limits, most: int
    ) -> Reached: ...

    def top(self, graph: Snapshot, nodes: Int32, limit: int) -> tuple[Int32, Int64]:
        """The nodes of the highest degrees, and among equals of the lowest ids, in that order; and their degrees."""
        ...


class NumpyKernel:
    """Walks in numpy."""

    name: Literal["c", "numpy"] = "numpy"

    def reach(
        self, graph: Snapshot, seeds: Int32, max_hops: int, filters: Filter, limits: Limits, most: int
    ) -> Reached:
        levels, stop = numpy_hops.reach(
            graph.out, graph.into, graph.group, graph.nodes, seeds, max_hops, filters, limits, most
        )
        nodes = np.concatenate(levels) if levels else seeds[:0]
        return Reached(nodes, tuple(len(level) for level in levels), stop)

    def top(self, graph: Snapshot, nodes: Int32, limit: int) -> tuple[Int32, Int64]:
        degrees = graph.degrees(nodes)
        places = numpy_hops.top(degrees, limit, lambda some: graph.ids[nodes[some]])
        return nodes[places], degrees[places].astype(np.int64)


class CKernel:
    """Walks in C, without the interpreter's lock."""

    name: Literal["c", "numpy"] = "c"

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    def reach(
        self, graph: Snapshot, seeds: Int32, max_hops: int, filters: Filter, limits: Limits, most: int
    ) -> Reached:
        # Untouched memory costs nothing until it is written.
        found = np.empty(max(graph.nodes, 1), np.int32)
        found[: len(seeds)] = seeds
        ends = np.empty(max(max_hops, 1), np.int64)
        levels, stop = self._compiled.reach(
            graph.out.parts, graph.into.parts, filters.ways, graph.group, filters.ontology_ok, filters.type_ok,
            filters.min_confidence, limits.cancel.flag, limits.until, graph.nodes, 2 * graph.edges, len(seeds),
            max_hops, found, ends, most,
        )  # fmt: skip
        bounds = [len(seeds), *(int(end) for end in ends[:levels])]
        sizes = tuple(b - a for a, b in pairwise(bounds))
        return Reached(found[len(seeds) : bounds[-1]], sizes, stop)

    def top(self, graph: Snapshot, nodes: Int32, limit: int) -> tuple[Int32, Int64]:
        limit = min(limit, len(nodes))
        best, degrees = np.empty(limit, np.int32), np.empty(limit, np.int64)
        plain = graph.out.changed is None and graph.into.changed is None
        self._compiled.top(
            graph.out.parts, graph.into.parts, graph.degree if plain else None, graph.ids, nodes, limit, best, degrees
        )
        return best, degrees

    def shortest(
        self, graph: Snapshot, start: int, goal: int, max_hops: int, filters: Filter, limits: Limits,
        avoid: Int32, not_next: Int32,
    ) -> tuple[list[int] | None, int]:  # fmt: skip
        """The shortest way with the lowest ids, or None; and how the search ended."""
        way = np.empty(max_hops + 1, np.int32)
        length, stop = self._compiled.shortest(
            graph.out.parts, graph.into.parts, filters.ways, graph.group, filters.ontology_ok, filters.type_ok,
            filters.min_confidence, limits.cancel.flag, limits.until, graph.nodes, graph.ids, start, goal, max_hops,
            avoid, not_next, way,
        )  # fmt: skip
        return (way[: length + 1].tolist() if length >= 0 else None), stop


def best() -> CKernel | NumpyKernel:
    """The compiled kernel if there is one."""
    try:
        return CKernel(importlib.import_module("kappa.graph.query._hops"))
    except ImportError:
        return NumpyKernel()
