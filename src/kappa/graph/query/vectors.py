"""Embeddings of one model in memory, at one epoch, and the search for the nearest of them.

A `Matrix` never changes. Its rows stand in blocks that its successors share: a vector that comes, or comes anew, is
appended behind the last row, where older matrices don't look, and the row that it replaces is marked dead in a copy of
the marks. So a reader keeps its matrix, a writer waits for nobody, and a refresh costs what was touched.

The search is exact. Every row is compared, in single precision; whoever comes near enough to the best to be among them
is compared again in double precision. Similarities are cosines in millionths, and equal ones are ordered by node.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kappa.graph.query.adjacency import UInt8, UInt16
from kappa.graph.query.filters import Limits
from kappa.graph.store.adjacency import Ints
from kappa.graph.store.vectors import Block, Floats, Kind

Doubles: TypeAlias = NDArray[np.float64]
Marks: TypeAlias = NDArray[np.bool_]

ROWS = 8192
"""Of a block. Between two of them a search looks at the clock."""
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


class Ranking:
    """The best of all blocks that were looked through so far."""

    def __init__(self, wanted: Nearest) -> None:
        self._wanted = wanted
        self._single = wanted.unit.astype(np.float32)
        self._margin = margin(len(wanted.unit))
        self._floor = wanted.least - self._margin
        self._nodes: list[Ints] = []
        self._scores: list[Doubles] = []
        self._count = 0

    def look(self, nodes: Ints, groups: UInt16 | Ints, rows: Floats, alive: Marks | None) -> None:
        """Rank a block of unit vectors along with what was seen before."""
        scores = rows @ self._single
        passes = scores >= self._floor
        if alive is not None:
            passes &= alive
        places = np.flatnonzero(passes)
        if self._wanted.ontology_ok is not None:
            places = places[self._wanted.ontology_ok[groups[places]] != 0]
        if self._wanted.never:
            places = places[nodes[places] != self._wanted.never]
        if len(places) > 4 * self._wanted.limit:
            # Of one block no more can be among the best than are wanted, and those that single precision can't tell.
            worst = np.partition(scores[places], -self._wanted.limit)[-self._wanted.limit]
            places = places[scores[places] >= worst - self._margin]
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
            self._floor = max(self._floor, float(best.similarities[-1]) - self._margin)

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

    @property
    def nbytes(self) -> int:
        return self.nodes.nbytes + self.groups.nbytes + self.units.nbytes


@dataclass(frozen=True, slots=True)
class Matrix:
    """The unit vectors of one kind at one epoch."""

    kind: Kind
    epoch: int
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
            filled = min(ROWS, self.rows - at * ROWS)
            ranking.look(block.nodes[:filled], block.groups[:filled], block.units[:filled], alive[:filled])
        return ranking.best()

    def similarities(self, nodes: Ints, unit: Doubles) -> dict[int, float]:
        """Of those nodes that are here."""
        wanted: list[int] = nodes.tolist()
        places: list[int] = self.places(nodes).tolist()
        found: dict[int, float] = {}
        for node, place in zip(wanted, places, strict=True):
            if place >= 0:
                row = self.blocks[place // ROWS].units[place % ROWS]
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
            places[n] = place if place >= 0 and self.alive[place // ROWS][place % ROWS] else -1
        return places


def row_bytes(dimension: int) -> int:
    """What a row takes."""
    return 4 * dimension + 8 + 8 + 2 + 1


class Builder:
    """Makes a matrix out of blocks that come with ascending nodes."""

    def __init__(self, kind: Kind, epoch: int) -> None:
        self._made = Matrix(kind, epoch)

    def add(self, block: Block) -> None:
        self._made = _appended(self._made, block, remember=False)

    def matrix(self) -> Matrix:
        return _settled(self._made)


def apply(old: Matrix, epoch: int, touched: Ints, now: Block) -> Matrix:
    """The matrix at a later epoch: all that was touched, as it is now."""
    places = old.places(touched)
    places = places[places >= 0]
    alive = list(old.alive)
    touched_blocks: list[int] = np.unique(places // ROWS).tolist()
    for at in touched_blocks:
        alive[at] = alive[at].copy()
        alive[at][places[places // ROWS == at] % ROWS] = False
    return _appended(replace(old, epoch=epoch, alive=tuple(alive), dead=old.dead + len(places)), now)


def _appended(old: Matrix, block: Block, *, remember: bool = True) -> Matrix:
    rows, sound = units(block.vectors)
    nodes, groups, rows = block.nodes[sound], block.groups[sound], rows[sound]
    blocks, alive, filled = list(old.blocks), list(old.alive), old.rows
    done = 0
    while done < len(nodes):
        if filled == len(blocks) * ROWS:
            # Untouched memory costs nothing until it is written, but it is counted.
            size = (ROWS, old.kind.dimension)
            blocks.append(Rows(np.empty(ROWS, np.int64), np.empty(ROWS, np.uint16), np.empty(size, np.float32)))
            alive.append(np.ones(ROWS, np.bool_))
        begin = filled % ROWS
        count = min(ROWS - begin, len(nodes) - done)
        room, end = blocks[-1], begin + count
        room.nodes[begin:end] = nodes[done : done + count]
        room.groups[begin:end] = groups[done : done + count]
        room.units[begin:end] = rows[done : done + count]
        filled, done = filled + count, done + count
    late = old.late
    if len(nodes) and remember:
        late = {**late, **{node: old.rows + n for n, node in enumerate(nodes.tolist())}}
    return replace(old, blocks=tuple(blocks), alive=tuple(alive), rows=filled, late=late)


def _settled(made: Matrix) -> Matrix:
    """The same with an index of the rows, which stand in the order of their nodes."""
    parts = [block.nodes[: min(ROWS, made.rows - at * ROWS)] for at, block in enumerate(made.blocks)]
    base = np.concatenate(parts) if parts else np.empty(0, np.int64)
    return replace(made, base=base, late={})


def compact(old: Matrix) -> Matrix:
    """The same without dead rows."""
    nodes = np.concatenate([block.nodes[: min(ROWS, old.rows - at * ROWS)] for at, block in enumerate(old.blocks)])
    living = np.concatenate(old.alive)[: old.rows]
    order = np.flatnonzero(living)[np.argsort(nodes[living], kind="stable")]
    made = Matrix(old.kind, old.epoch)
    for at in range(0, len(order), ROWS):
        places = order[at : at + ROWS]
        room = Rows(
            np.empty(ROWS, np.int64), np.empty(ROWS, np.uint16), np.empty((ROWS, old.kind.dimension), np.float32)
        )  # fmt: skip
        sources: list[int] = np.unique(places // ROWS).tolist()
        for source in sources:
            mine = np.flatnonzero(places // ROWS == source)
            taken = places[mine] % ROWS
            room.nodes[mine] = old.blocks[source].nodes[taken]
            room.groups[mine] = old.blocks[source].groups[taken]
            room.units[mine] = old.blocks[source].units[taken]
        blocks, alive = (*made.blocks, room), (*made.alive, np.ones(ROWS, np.bool_))
        made = replace(made, blocks=blocks, alive=alive, rows=made.rows + len(places))
    return _settled(made)
