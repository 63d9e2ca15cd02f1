"""The adjacency of the whole graph at one epoch, immutable; and how the next one is made of it.

A `Delta` says what is true now of everything that was touched, so that applying it twice, or together with an older
one, does no harm. It speaks of ids of rows; indexes belong to one snapshot and its successors up to the next
compaction.
"""

from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kappa.graph.query.adjacency import EdgeList, Growing, Int32, Int64, Lists, UInt8, UInt16
from kappa.graph.query.filters import Vocabulary

Int16: TypeAlias = NDArray[np.int16]

MAX_NODES = (1 << 31) - 2


@dataclass(frozen=True, slots=True)
class Rows:
    """The graph as columns: concepts, and relations by the ids of their ends."""

    ids: Int64
    ontologies: UInt16
    from_ids: Int64
    to_ids: Int64
    types: UInt16
    confidence: UInt8
    vocabulary: Vocabulary = field(default_factory=Vocabulary)


@dataclass(frozen=True, slots=True)
class Delta:
    """Everything touched between two epochs, as it is at the later one."""

    epoch: int
    ids: Int64
    """Concepts that are there."""
    ontologies: UInt16
    gone: Int64
    """Concepts that are not there any more."""
    from_ids: Int64
    to_ids: Int64
    types: UInt16
    confidence: Int16
    """Of each touched relation; -1 where there is none any more."""
    vocabulary: Vocabulary | None = None
    """All names, if some were touched."""

    @property
    def relations(self) -> int:
        return len(self.from_ids)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The graph at one epoch."""

    epoch: int
    out: Lists
    into: Lists
    ids: Int64
    """The id of each node's row. The first `base` of them are sorted."""
    group: UInt16
    """The ontology of each node."""
    base: int
    degree: Int32
    """Relations of each of the first `base` nodes, in and out, when the snapshot was compacted."""
    late: dict[int, int] = field(default_factory=dict[int, int])
    """Nodes that came since."""
    gone: frozenset[int] = frozenset()
    edges: int = 0
    growing: tuple[Growing, Growing] | None = None
    vocabulary: Vocabulary = field(default_factory=Vocabulary)

    @property
    def nodes(self) -> int:
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        nodes = self.ids.nbytes + self.group.nbytes + self.degree.nbytes
        return self.out.nbytes + self.into.nbytes + nodes + 200 * len(self.late) + 100 * len(self.gone)

    @property
    def changed_edges(self) -> int:
        return self.out.changed_edges + self.into.changed_edges

    def index(self, ids: Int64) -> Int32:
        """Each id's node; -1 for what this snapshot doesn't know."""
        base = self.ids[: self.base]
        at = np.searchsorted(base, ids)
        known = at < self.base
        known[known] = base[at[known]] == ids[known]
        nodes = np.where(known, at, -1).astype(np.int32)
        if self.late:
            for place in np.flatnonzero(~known):
                nodes[place] = self.late.get(int(ids[place]), -1)
        if self.gone:
            nodes[[int(node) in self.gone for node in nodes]] = -1
        return nodes

    def best_connected(self, group: int, most: int) -> list[int]:
        """The ids of an ontology's nodes with the most relations, and of equal ones the lowest."""
        nodes = np.flatnonzero(self.group == group).astype(np.int32)
        if self.gone:
            nodes = nodes[~np.isin(nodes, list(self.gone))]
        degrees = self.degrees(nodes)
        if len(nodes) > most:
            # All are not sorted for the sake of a few.
            enough = degrees >= np.partition(degrees, -most)[-most]
            nodes, degrees = nodes[enough], degrees[enough]
        ids = self.ids[nodes]
        return ids[np.lexsort((ids, -degrees))[:most]].tolist()

    def size_of(self, group: int) -> int:
        """How many nodes an ontology has, without those that went since the last compaction being taken off."""
        return int(np.count_nonzero(self.group == group))

    def degrees(self, nodes: Int32) -> Int64 | Int32:
        """All relations of each node, in and out."""
        if self.out.changed is None and self.into.changed is None:
            return self.degree.take(nodes)
        return self.out.sizes(nodes) + self.into.sizes(nodes)


def build(epoch: int, rows: Rows) -> Snapshot:
    """A snapshot of columns that were read in one transaction."""
    order = np.argsort(rows.ids, kind="stable")
    ids = rows.ids[order]
    if len(ids) > MAX_NODES:
        raise OverflowError(f"{len(ids)} concepts are more than a snapshot can number")
    head, tail = _places(ids, rows.from_ids), _places(ids, rows.to_ids)
    made = _assemble(epoch, ids, rows.ontologies[order], head, tail, rows.types, rows.confidence)
    return replace(made, vocabulary=rows.vocabulary)


def _assemble(
    epoch: int, ids: Int64, group: UInt16, head: Int32, tail: Int32, types: UInt16, confidence: UInt8
) -> Snapshot:
    out = _lists(len(ids), head, tail, types, confidence)
    into = _lists(len(ids), tail, head, types, confidence)
    degree = (np.diff(out.ptr) + np.diff(into.ptr)).astype(np.int32)
    return Snapshot(epoch, out, into, ids, group, base=len(ids), degree=degree, edges=len(head))


def _places(ids: Int64, wanted: Int64) -> Int32:
    """Where each of `wanted` stands in the sorted `ids`, which have them all."""
    if not len(ids):
        return np.empty(0, np.int32)
    low, high = int(ids[0]), int(ids[-1])
    if high - low <= 8 * len(ids):
        table = np.zeros(high - low + 1, np.int32)
        table[ids - low] = np.arange(len(ids), dtype=np.int32)
        return table[wanted - low]
    return np.searchsorted(ids, wanted).astype(np.int32)


def _lists(nodes: int, head: Int32, tail: Int32, types: UInt16, confidence: UInt8) -> Lists:
    """CSR, each list in the order of its other ends: neighbours in memory are neighbours in the walk."""
    order = np.argsort(head.astype(np.int64) << 32 | tail, kind="stable")
    ptr = np.zeros(nodes + 1, np.int64)
    np.cumsum(np.bincount(head, minlength=nodes), out=ptr[1:])
    return Lists(ptr, tail[order], types[order], confidence[order])


def apply(old: Snapshot, delta: Delta) -> Snapshot:
    """The snapshot after a delta. Its cost is that of the lists which were touched."""
    ids, group, late, growing = old.ids, old.group, old.late, old.growing
    gone = set(old.gone)
    known = old.index(delta.ids)
    fresh = np.flatnonzero(known < 0)
    moved = [place for place in np.flatnonzero(known >= 0) if group[known[place]] != delta.ontologies[place]]
    if moved:
        group = group.copy()
        group[known[moved]] = delta.ontologies[moved]
        growing = None
    if len(fresh):
        if growing is None:
            growing = (Growing(np.int64, 2 * len(ids) + 16), Growing(np.uint16, 2 * len(ids) + 16))
            growing[0].append(ids)
            growing[1].append(group)
        fresh = fresh[np.argsort(delta.ids[fresh])]
        at = growing[0].append(delta.ids[fresh])
        growing[1].append(delta.ontologies[fresh])
        ids, group = growing[0].view, growing[1].view
        late = {**late, **{int(delta.ids[place]): at + n for n, place in enumerate(fresh)}}
    names = old.vocabulary if delta.vocabulary is None else delta.vocabulary
    middle = replace(old, ids=ids, group=group, late=late, growing=growing, vocabulary=names)
    for node in middle.index(delta.gone):
        if node >= 0:
            gone.add(int(node))
    # An end that is gone took its relations along; who still has a list that names it is touched by the same delta.
    head, tail = middle.index(delta.from_ids), middle.index(delta.to_ids)
    sound = (head >= 0) & (tail >= 0)
    head, tail, types, confidence = head[sound], tail[sound], delta.types[sound], delta.confidence[sound]
    out, change = _changed(middle.out, len(ids), head, tail, types, confidence)
    into, _ = _changed(middle.into, len(ids), tail, head, types, confidence)
    return replace(middle, epoch=delta.epoch, out=out, into=into, gone=frozenset(gone), edges=old.edges + change)


def _changed(
    lists: Lists, nodes: int, owner: Int32, other: Int32, types: UInt16, confidence: Int16
) -> tuple[Lists, int]:
    """The lists of all owners without the touched edges, and with those that are there now; and how many more edges."""
    nothing = np.empty(0, np.int64)
    if nodes > lists.room:
        lists = lists.replace(
            nodes, owner[:0], nothing, EdgeList(other[:0], types[:0], confidence[:0].astype(np.uint8))
        )
    if not len(owner):
        return lists, 0
    touched, mine = np.unique(owner, return_inverse=True)
    place, near, kinds, certain = lists.gather(touched)
    most = int(max(types.max(), kinds.max() if len(kinds) else 0)) + 1

    def keys(places: Int64 | Int32, ends: Int32, numbers: UInt16) -> Int64:
        return (places.astype(np.int64) * nodes + ends) * most + numbers

    stays = ~np.isin(keys(place, near, kinds), keys(mine, other, types))
    there = confidence >= 0
    everyone = np.concatenate((place[stays], mine[there].astype(np.int32)))
    order = np.argsort(everyone, kind="stable")
    new = EdgeList(
        np.concatenate((near[stays], other[there]))[order],
        np.concatenate((kinds[stays], types[there]))[order],
        np.concatenate((certain[stays], confidence[there].astype(np.uint8)))[order],
    )
    sizes = np.bincount(everyone, minlength=len(touched))
    return lists.replace(nodes, touched, sizes, new), len(everyone) - len(place)


def compact(old: Snapshot) -> Snapshot:
    """The same graph without anything laid over it."""
    everyone = np.arange(old.nodes, dtype=np.int32)
    alive = np.ones(old.nodes, np.bool_)
    alive[list(old.gone)] = False
    head, tail, types, confidence = old.out.gather(everyone)
    order = np.argsort(old.ids[alive], kind="stable")
    new_index = np.full(old.nodes, -1, np.int32)
    new_index[everyone[alive][order]] = np.arange(len(order), dtype=np.int32)
    head, tail = new_index[head], new_index[tail]
    made = _assemble(old.epoch, old.ids[alive][order], old.group[alive][order], head, tail, types, confidence)
    return replace(made, vocabulary=old.vocabulary)
