"""The graph's edges in memory: a base that never changes, and the changed lists laid over it.

A node is an index here, 0 up to `nodes`; `ids[index]` is the id of its row. A `Lists` is one direction. Its base is
CSR. A node whose list changed since has a slot, found through a table of small pages, and its whole new list stands
in arrays that are only ever appended to. So a newer version shares everything with the older one except for the few
pages that were touched, a reader keeps the version it began with, and nobody waits for anybody.
"""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Int32: TypeAlias = NDArray[np.int32]
Int64: TypeAlias = NDArray[np.int64]
UInt8: TypeAlias = NDArray[np.uint8]
UInt16: TypeAlias = NDArray[np.uint16]
Bools: TypeAlias = NDArray[np.bool_]

PAGE_BITS = 8
PAGE = 1 << PAGE_BITS
LONG = 32
"""Lists that are longer than this on average are copied one by one, which costs less than an index of each edge."""


class Growing:
    """An array that is appended to. Views that were given stay as they are: what they see is never written again."""

    def __init__(self, dtype: Any, capacity: int = 1024) -> None:
        self._data: NDArray[Any] = np.empty(capacity, dtype)
        self.size = 0

    def append(self, values: NDArray[Any]) -> int:
        """Where the values begin."""
        at, end = self.size, self.size + len(values)
        if end > len(self._data):
            grown = np.empty(max(end, 2 * len(self._data)), self._data.dtype)
            grown[:at] = self._data[:at]
            self._data = grown
        self._data[at:end] = values
        self.size = end
        return at

    @property
    def view(self) -> NDArray[Any]:
        return self._data[: self.size]

    @property
    def nbytes(self) -> int:
        return self._data.nbytes


class Arena:
    """Where changed lists of one direction are kept until the next compaction."""

    def __init__(self) -> None:
        self.pages = Growing(np.int32, PAGE)
        self.pages.append(np.full(PAGE, -1, np.int32))
        self.start = Growing(np.int64)
        self.size = Growing(np.int32)
        self.nbr = Growing(np.int32)
        self.type = Growing(np.uint16)
        self.conf = Growing(np.uint8)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.pages, self.start, self.size, self.nbr, self.type, self.conf))


@dataclass(frozen=True, slots=True)
class Changed:
    """Which nodes have changed lists, at one version."""

    arena: Arena
    page_of: Int32
    pages: Int32
    start: Int64
    size: Int32
    nbr: Int32
    type: UInt16
    conf: UInt8

    def slots(self, nodes: Int32) -> Int32:
        """Each node's slot, or -1."""
        page = self.page_of[nodes >> PAGE_BITS].astype(np.int64)
        return self.pages[(page << PAGE_BITS) | (nodes & (PAGE - 1))]


@dataclass(frozen=True, slots=True)
class EdgeList:
    """Edges in one direction."""

    nbr: Int32
    type: UInt16
    conf: UInt8


@dataclass(frozen=True, slots=True)
class Lists:
    """The edges of every node in one direction, at one version."""

    ptr: Int64
    nbr: Int32
    type: UInt16
    conf: UInt8
    changed: Changed | None = None
    parts: tuple[Any, ...] = field(init=False, repr=False, compare=False)
    """As the compiled kernel takes them."""

    def __post_init__(self) -> None:
        base = (self.ptr, self.nbr, self.type, self.conf)
        over = self.changed
        rest: tuple[Any, ...] = (None,) * 7
        if over is not None:
            rest = (over.page_of, over.pages, over.start, over.size, over.nbr, over.type, over.conf)
        object.__setattr__(self, "parts", base + rest)

    @property
    def base_nodes(self) -> int:
        return len(self.ptr) - 1

    @property
    def nbytes(self) -> int:
        base = self.ptr.nbytes + self.nbr.nbytes + self.type.nbytes + self.conf.nbytes
        return base + (self.changed.arena.nbytes + self.changed.page_of.nbytes if self.changed else 0)

    @property
    def changed_edges(self) -> int:
        return len(self.changed.nbr) if self.changed else 0

    def sizes(self, nodes: Int32) -> Int64:
        """How many edges each node has."""
        if self.changed is None:
            return self.ptr[nodes + 1] - self.ptr[nodes]
        sizes = np.zeros(len(nodes), np.int64)
        slots = self.changed.slots(nodes)
        patched = slots >= 0
        sizes[patched] = self.changed.size[slots[patched]]
        plain = ~patched & (nodes < self.base_nodes)
        sizes[plain] = self.ptr[nodes[plain] + 1] - self.ptr[nodes[plain]]
        return sizes

    @property
    def room(self) -> int:
        """Nodes below this may be asked for."""
        return self.base_nodes if self.changed is None else len(self.changed.page_of) << PAGE_BITS

    def replace(self, nodes: int, touched: Int32, sizes: Int64, lists: EdgeList) -> "Lists":
        """A version with room for so many nodes, and new lists, one after the other, of those that were touched."""
        page_of = np.zeros(-(-nodes // PAGE), np.int32)
        if self.changed is None:
            arena = Arena()
        else:
            arena = self.changed.arena
            page_of[: len(self.changed.page_of)] = self.changed.page_of
        if len(touched):
            at = arena.nbr.append(lists.nbr)
            arena.type.append(lists.type)
            arena.conf.append(lists.conf)
            slot = arena.start.append(at + np.cumsum(sizes) - sizes)
            arena.size.append(sizes)
            pages, page = np.unique(touched >> PAGE_BITS, return_inverse=True)
            fresh = arena.pages.view.reshape(-1, PAGE)[page_of[pages]]
            fresh[page, touched & (PAGE - 1)] = np.arange(slot, slot + len(touched))
            first = arena.pages.append(fresh.ravel()) >> PAGE_BITS
            page_of[pages] = np.arange(first, first + len(pages))
        changed = Changed(
            arena, page_of, arena.pages.view, arena.start.view, arena.size.view,
            arena.nbr.view, arena.type.view, arena.conf.view,
        )  # fmt: skip
        return Lists(self.ptr, self.nbr, self.type, self.conf, changed)

    def gather(self, nodes: Int32) -> tuple[Int32, Int32, UInt16, UInt8]:
        """All edges of some nodes: the place of the node in `nodes`, the other end, type, confidence."""
        places = np.arange(len(nodes), dtype=np.int32)
        if self.changed is None:
            return self._base_edges(nodes, places)
        slots = self.changed.slots(nodes)
        plain = (slots < 0) & (nodes < self.base_nodes)
        over = slots >= 0
        a = self._base_edges(nodes[plain], places[plain])
        if not over.any():
            return a
        at = slots[over]
        index, owner = spread(self.changed.start[at], self.changed.size[at], places[over])
        b = (owner, self.changed.nbr[index], self.changed.type[index], self.changed.conf[index])
        return (
            np.concatenate((a[0], b[0])),
            np.concatenate((a[1], b[1])),
            np.concatenate((a[2], b[2])),
            np.concatenate((a[3], b[3])),
        )

    def _base_edges(self, nodes: Int32, places: Int32) -> tuple[Int32, Int32, UInt16, UInt8]:
        starts = self.ptr[nodes]
        index, owner = spread(starts, self.ptr[nodes + 1] - starts, places)
        return owner, self.nbr[index], self.type[index], self.conf[index]

    def neighbors(self, nodes: Int32) -> Int32:
        """The other ends alone, with repetitions: what a walk without filters needs."""
        if self.changed is not None:
            return self.gather(nodes)[1]
        starts = self.ptr[nodes]
        sizes = self.ptr[nodes + 1] - starts
        ends = np.cumsum(sizes)
        if not len(ends):
            return self.nbr[:0]
        if ends[-1] > LONG * len(ends):
            parts = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
            return np.concatenate([self.nbr[begin:end] for begin, end in parts])
        index = np.arange(int(ends[-1])) + np.repeat(starts - ends + sizes, sizes)
        return self.nbr[index]


def spread(starts: NDArray[Any], sizes: NDArray[Any], owners: Int32) -> tuple[Int64, Int32]:
    """The positions of all elements of some slices, and each one's owner."""
    sizes = sizes.astype(np.int64)
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    index = np.arange(total) + np.repeat(starts - ends + sizes, sizes)
    return index, np.repeat(owners, sizes)
