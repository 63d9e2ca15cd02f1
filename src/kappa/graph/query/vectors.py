"""Embeddings of one model in memory, at one epoch, and the search for the nearest of them.

A `Matrix` never changes. Its rows stand in blocks that its successors share: a vector that comes, or comes anew, is
appended behind the last row, where older matrices don't look, and the row that it replaces is marked dead in a copy of
the marks. So a reader keeps its matrix, a writer waits for nobody, and a refresh costs what was touched.

The search is exact. Every row is compared, in eight bits where the compiled kernel is and in single precision
elsewhere; whoever comes near enough to the best to be among them, by what is known to be lost, is compared again in
double precision. Similarities are cosines in millionths, and equal ones are ordered by node.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kappa.graph.query.adjacency import UInt8, UInt16
from kappa.graph.query.filters import Limits
from kappa.graph.store.adjacency import Ints
from kappa.graph.store.vectors import Block, Floats, Kind

Doubles: TypeAlias = NDArray[np.float64]
Marks: TypeAlias = NDArray[np.bool_]


def _compiled() -> Any | None:
    try:
        return importlib.import_module("kappa.graph.query._dots")
    except ImportError:
        return None


COMPILED = _compiled()
"""The kernel that packs vectors into eight bits, where it was built."""

BLOCK_BYTES = 12 << 20
"""Of a block of vectors, about. Between two of them a search looks at the clock."""
MOST_ROWS = 8192
PLACES = 6
"""Of a similarity."""


@dataclass(frozen=True, slots=True)
class Nearest:
    """What is looked for: concepts whose vectors point where this one does."""

    unit: Doubles
    limit: int
    least: float = -1.0
    """The similarity below which nothing is found."""
    ontology_ok: UInt8 | None = None
    never: int = 0
    """A node that is left out."""


@dataclass(frozen=True, slots=True)
class Near:
    """Nodes and their similarities, in order."""

    nodes: Ints
    similarities: Doubles
    stop: int = 0
    """How the search ended."""


def block_rows(dimension: int) -> int:
    """Rows of a block."""
    return min(MOST_ROWS, max(1, BLOCK_BYTES // (4 * dimension)))


def margin(dimension: int) -> float:
    """More than single precision, in whatever order it adds, and rounding can be wrong about two cosines."""
    return 2e-6 + 1.2e-7 * dimension


def unit_of(vector: Sequence[float]) -> Doubles:
    """The vector with length 1, as rows of a matrix have it: rounded to single precision."""
    rows, _ = units(np.asarray(vector, np.float32)[None, :])
    return rows[0].astype(np.float64)


def units(vectors: Floats) -> tuple[Floats, Marks]:
    """Rows with length 1, and which of them are sound: finite, and not zero throughout."""
    wide = vectors.astype(np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->i", wide, wide))
    sound = np.isfinite(lengths) & (lengths > 0)
    wide /= np.where(sound, lengths, 1.0)[:, None]
    return wide.astype(np.float32), sound


@dataclass(frozen=True, slots=True)
class Packed:
    """Unit vectors in eight bits."""

    rows: NDArray[np.int8]
    scale: Floats
    loss: Floats
    """How long the difference between each vector and its packed form is."""

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.scale.nbytes + self.loss.nbytes

    def first(self, count: int) -> "Packed":
        return Packed(self.rows[:count], self.scale[:count], self.loss[:count])


class _Query:
    """A unit vector in sixteen bits, or as many less as keep the sum of products within 32."""

    def __init__(self, unit: Doubles) -> None:
        most = min(32767, ((1 << 31) - 1) // (127 * len(unit)))
        self.step = float(np.abs(unit).max()) / most
        self.levels = np.rint(unit / self.step).astype(np.int16)
        # A packed vector may be longer than 1, but never twice as long.
        self.loss = 2.0 * float(np.linalg.norm(unit - self.levels * self.step))

    def dots(self, packed: Packed) -> Floats:
        assert COMPILED is not None
        out = np.empty(len(packed.scale), np.float32)
        COMPILED.dots(packed.rows, packed.scale, self.levels, self.step, out)
        return out


class Ranking:
    """The best of all blocks that were looked through so far."""

    def __init__(self, wanted: Nearest) -> None:
        self._wanted = wanted
        self._single = wanted.unit.astype(np.float32)
        self._query = _Query(wanted.unit)
        self._margin = margin(len(wanted.unit))
        self._floor = wanted.least
        """What nobody can be below who is still to be among the best."""
        self._nodes: list[Ints] = []
        self._scores: list[Doubles] = []
        self._count = 0

    def look(
        self, nodes: Ints, groups: UInt16 | Ints, rows: Floats, alive: Marks, packed: Packed | None = None
    ) -> None:
        """Rank a block of unit vectors along with what was seen before."""
        if packed is not None:
            scores = self._query.dots(packed)
            slack = packed.loss + np.float32(self._query.loss + self._margin)
        else:
            # Not by BLAS: its threads wait for each other, and on a busy machine that is most of the time.
            scores = np.einsum("ij,j->i", rows, self._single)
            slack = np.full(len(scores), self._margin, np.float32)
        high = scores + slack
        places = np.flatnonzero((high >= self._floor) & alive)
        if self._wanted.ontology_ok is not None:
            places = places[self._wanted.ontology_ok[groups[places]] != 0]
        if self._wanted.never:
            places = places[nodes[places] != self._wanted.never]
        if len(places) > 4 * self._wanted.limit:
            # So many of this block are surely no worse than this one.
            worst = np.partition((scores - slack)[places], -self._wanted.limit)[-self._wanted.limit]
            places = places[high[places] >= worst]
        if not len(places):
            return
        self._nodes.append(nodes[places])
        self._scores.append(cosines(rows[places], self._wanted.unit))
        self._count += len(places)
        if self._count > 4 * self._wanted.limit:
            self._cut()

    def _cut(self) -> None:
        best = self.best()
        self._nodes, self._scores, self._count = [best.nodes], [best.similarities], len(best.nodes)
        if len(best.nodes) == self._wanted.limit:
            self._floor = max(self._floor, float(best.similarities[-1]))

    def best(self, stop: int = 0) -> Near:
        if not self._nodes:
            return Near(np.empty(0, np.int64), np.empty(0, np.float64), stop)
        nodes, scores = np.concatenate(self._nodes), np.concatenate(self._scores)
        enough = scores >= self._wanted.least
        nodes, scores = nodes[enough], scores[enough]
        order = np.lexsort((nodes, -scores))[: self._wanted.limit]
        return Near(nodes[order], scores[order], stop)


def cosines(rows: Floats, unit: Doubles) -> Doubles:
    """Similarities of unit vectors, in double precision, rounded."""
    exact: Doubles = np.einsum("ij,j->i", rows.astype(np.float64), unit)
    rounded: Doubles = np.round(np.clip(exact, -1.0, 1.0), PLACES)
    return rounded + 0.0


def merged(parts: Sequence[Near], limit: int) -> Near:
    """The best of several searches."""
    nodes = np.concatenate([part.nodes for part in parts]) if parts else np.empty(0, np.int64)
    scores = np.concatenate([part.similarities for part in parts]) if parts else np.empty(0, np.float64)
    order = np.lexsort((nodes, -scores))[:limit]
    return Near(nodes[order], scores[order])


def nearest_of(block: Block, wanted: Nearest) -> Near:
    """The nearest of a block that was just read."""
    rows, sound = units(block.vectors)
    ranking = Ranking(wanted)
    ranking.look(block.nodes, block.groups, rows, sound)
    return ranking.best()


@dataclass(frozen=True, slots=True)
class Rows:
    """Room for a block of rows."""

    nodes: Ints
    groups: UInt16
    units: Floats
    packed: Packed | None

    @property
    def nbytes(self) -> int:
        packed = self.packed.nbytes if self.packed is not None else 0
        return self.nodes.nbytes + self.groups.nbytes + self.units.nbytes + packed


def _room(dimension: int, rows: int, packs: bool) -> Rows:
    # Untouched memory costs nothing until it is written, but it is counted.
    packed = None
    if packs:
        loss = np.empty(rows, np.float32)
        packed = Packed(np.empty((rows, dimension), np.int8), np.empty(rows, np.float32), loss)
    return Rows(np.empty(rows, np.int64), np.empty(rows, np.uint16), np.empty((rows, dimension), np.float32), packed)


def _fill(room: Rows, begin: int, nodes: Ints, groups: Ints | UInt16, rows: Floats) -> None:
    end = begin + len(nodes)
    room.nodes[begin:end] = nodes
    room.groups[begin:end] = groups
    room.units[begin:end] = rows
    if room.packed is not None:
        assert COMPILED is not None
        packed = room.packed
        COMPILED.pack(
            room.units[begin:end],
            rows.shape[1],
            packed.rows[begin:end],
            packed.scale[begin:end],
            packed.loss[begin:end],
        )


@dataclass(frozen=True, slots=True)
class Matrix:
    """The unit vectors of one kind at one epoch."""

    kind: Kind
    epoch: int
    packs: bool
    room: int
    """Rows of a block."""
    blocks: tuple[Rows, ...] = ()
    alive: tuple[Marks, ...] = ()
    rows: int = 0
    dead: int = 0
    base: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """The nodes of the first rows, sorted; those that came later are in `late`."""
    late: dict[int, int] = field(default_factory=dict[int, int])

    @property
    def nbytes(self) -> int:
        blocks = sum(block.nbytes for block in self.blocks) + sum(marks.nbytes for marks in self.alive)
        return blocks + self.base.nbytes + 200 * len(self.late)

    @property
    def concepts(self) -> int:
        return self.rows - self.dead

    def nearest(self, wanted: Nearest, limits: Limits) -> Near:
        """The nearest of all, or of as many as could be looked at in time."""
        ranking = Ranking(wanted)
        for at, (block, alive) in enumerate(zip(self.blocks, self.alive, strict=True)):
            if stop := limits.stop():
                return ranking.best(stop)
            filled = min(self.room, self.rows - at * self.room)
            packed = block.packed.first(filled) if block.packed is not None else None
            ranking.look(block.nodes[:filled], block.groups[:filled], block.units[:filled], alive[:filled], packed)
        return ranking.best()

    def similarities(self, nodes: Ints, unit: Doubles) -> dict[int, float]:
        """Of those nodes that are here."""
        wanted: list[int] = nodes.tolist()
        places: list[int] = self.places(nodes).tolist()
        found: dict[int, float] = {}
        for node, place in zip(wanted, places, strict=True):
            if place >= 0:
                row = self.blocks[place // self.room].units[place % self.room]
                found[node] = float(cosines(row[None, :], unit)[0])
        return found

    def places(self, nodes: Ints) -> Ints:
        """The row of each node; -1 for one that has none."""
        at = np.searchsorted(self.base, nodes)
        known = at < len(self.base)
        known[known] = self.base[at[known]] == nodes[known]
        places = np.where(known, at, -1)
        for n, node in enumerate(nodes.tolist()):
            place = self.late.get(node, int(places[n]))
            places[n] = place if place >= 0 and self.alive[place // self.room][place % self.room] else -1
        return places


def row_bytes(dimension: int, packs: bool) -> int:
    """What a row takes."""
    return 4 * dimension + 8 + 8 + 2 + 1 + (dimension + 8 if packs else 0)


class Builder:
    """Makes a matrix out of blocks that come with ascending nodes."""

    def __init__(self, kind: Kind, epoch: int, packs: bool) -> None:
        self._made = Matrix(kind, epoch, packs, block_rows(kind.dimension))

    def add(self, block: Block) -> None:
        self._made = _appended(self._made, block, remember=False)

    def matrix(self) -> Matrix:
        return _settled(self._made)


def apply(old: Matrix, epoch: int, touched: Ints, now: Block) -> Matrix:
    """The matrix at a later epoch: all that was touched, as it is now."""
    places = old.places(touched)
    places = places[places >= 0]
    alive = list(old.alive)
    touched_blocks: list[int] = np.unique(places // old.room).tolist()
    for at in touched_blocks:
        alive[at] = alive[at].copy()
        alive[at][places[places // old.room == at] % old.room] = False
    return _appended(replace(old, epoch=epoch, alive=tuple(alive), dead=old.dead + len(places)), now)


def _appended(old: Matrix, block: Block, *, remember: bool = True) -> Matrix:
    rows, sound = units(block.vectors)
    nodes, groups, rows = block.nodes[sound], block.groups[sound], rows[sound]
    blocks, alive, filled = list(old.blocks), list(old.alive), old.rows
    done = 0
    while done < len(nodes):
        if filled == len(blocks) * old.room:
            blocks.append(_room(old.kind.dimension, old.room, old.packs))
            alive.append(np.ones(old.room, np.bool_))
        begin = filled % old.room
        count = min(old.room - begin, len(nodes) - done)
        part = slice(done, done + count)
        _fill(blocks[-1], begin, nodes[part], groups[part], rows[part])
        filled, done = filled + count, done + count
    late = old.late
    if len(nodes) and remember:
        late = {**late, **{node: old.rows + n for n, node in enumerate(nodes.tolist())}}
    return replace(old, blocks=tuple(blocks), alive=tuple(alive), rows=filled, late=late)


def _settled(made: Matrix) -> Matrix:
    """The same with an index of the rows, which stand in the order of their nodes."""
    parts = [block.nodes[: min(made.room, made.rows - at * made.room)] for at, block in enumerate(made.blocks)]
    base = np.concatenate(parts) if parts else np.empty(0, np.int64)
    return replace(made, base=base, late={})


def compact(old: Matrix) -> Matrix:
    """The same without dead rows."""
    nodes = np.concatenate(
        [block.nodes[: min(old.room, old.rows - at * old.room)] for at, block in enumerate(old.blocks)]
    )
    living = np.concatenate(old.alive)[: old.rows]
    order = np.flatnonzero(living)[np.argsort(nodes[living], kind="stable")]
    made = Matrix(old.kind, old.epoch, old.packs, old.room)
    for at in range(0, len(order), old.room):
        places = order[at : at + old.room]
        taken = np.empty((len(places), old.kind.dimension), np.float32)
        groups = np.empty(len(places), np.uint16)
        sources: list[int] = np.unique(places // old.room).tolist()
        for source in sources:
            mine = np.flatnonzero(places // old.room == source)
            taken[mine] = old.blocks[source].units[places[mine] % old.room]
            groups[mine] = old.blocks[source].groups[places[mine] % old.room]
        room = _room(old.kind.dimension, old.room, old.packs)
        _fill(room, 0, nodes[places], groups, taken)
        blocks, alive = (*made.blocks, room), (*made.alive, np.ones(old.room, np.bool_))
        made = replace(made, blocks=blocks, alive=alive, rows=made.rows + len(places))
    return _settled(made)
