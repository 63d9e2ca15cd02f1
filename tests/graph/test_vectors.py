"""The matrix of embeddings alone: packed or not, however it came to be, it finds what brute force finds."""

import time

import numpy as np
import pytest

from kappa.graph import Cancel
from kappa.graph.query import vectors
from kappa.graph.query.filters import CANCELLED, OUT_OF_TIME, Limits
from kappa.graph.query.vectors import Builder, Doubles, Matrix, Near, Nearest, apply, compact, unit_of
from kappa.graph.store.vectors import Block, Kind

PACKED = [False, True] if vectors.COMPILED is not None else [False]
ENDLESS = Limits(float("inf"), Cancel())


def block(nodes: list[int], rows: Doubles) -> Block:
    return Block(np.array(nodes, np.int64), np.array(nodes, np.int64) % 3, rows.astype(np.float32))


def brute_force(rows: dict[int, Doubles], wanted: Nearest) -> list[int]:
    cosines = {node: float(np.round(unit_of(row.tolist()) @ wanted.unit, 6)) for node, row in rows.items()}
    return sorted((node for node in cosines if cosines[node] >= wanted.least), key=lambda n: (-cosines[n], n))[
        : wanted.limit
    ]


def nodes(near: Near) -> list[int]:
    return near.nodes.tolist()


@pytest.mark.parametrize("packs", PACKED)
@pytest.mark.parametrize("dimension", [1, 2, 7, 384, 3000])
def test_random_vectors_with_changes_between(packs: bool, dimension: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "MOST_ROWS", 64)
    chance = np.random.default_rng(dimension)
    # Few directions with little noise: many are nearly equal, and some quite.
    centres = chance.standard_normal((5, dimension))

    def some(count: int) -> Doubles:
        near = centres[chance.integers(0, 5, count)] * chance.choice([1.0, 2.0, 1e-20, 1e15], (count, 1))
        return near * (1 + 1e-5 * chance.standard_normal((count, dimension)) * chance.integers(0, 2, (count, 1)))

    first = some(500)
    rows = {node: first[node] for node in range(500)}
    builder = Builder(Kind("m", dimension), 1, packs)
    for at in range(0, 500, 100):
        builder.add(block(list(range(at, at + 100)), first[at : at + 100]))
    matrix = builder.matrix()
    for turn in range(6):
        touched = sorted({int(node) for node in chance.integers(0, 600, 80)})
        there = touched[::2]
        now = some(len(there))
        matrix = apply(matrix, turn + 2, np.array(touched, np.int64), block(there, now))
        rows = {node: row for node, row in rows.items() if node not in touched}
        rows |= {node: now[n].astype(np.float32) for n, node in enumerate(there)}
        if turn == 3:
            matrix = compact(matrix)
            assert matrix.dead == 0
        assert matrix.concepts == len(rows)
        for limit, least in ((1, -1.0), (10, 0.0), (1000, -1.0), (20, 0.99999)):
            wanted = Nearest(unit_of(some(1)[0].tolist()), limit, least)
            assert nodes(matrix.nearest(wanted, ENDLESS)) == brute_force(rows, wanted)
    sought = np.array([*rows, 700], np.int64)
    found = matrix.similarities(sought, wanted.unit)
    assert set(found) == set(rows)


@pytest.mark.parametrize("packs", PACKED)
def test_an_older_matrix_stays_as_it_was(packs: bool) -> None:
    builder = Builder(Kind("m", 2), 1, packs)
    builder.add(block([1, 2], np.array([[1.0, 0.0], [0.0, 1.0]])))
    old = builder.matrix()
    new = apply(old, 2, np.array([1, 3]), block([1, 3], np.array([[0.0, 1.0], [1.0, 0.0]])))
    wanted = Nearest(unit_of([1, 0]), 1)
    assert nodes(old.nearest(wanted, ENDLESS)) == [1]
    assert nodes(new.nearest(wanted, ENDLESS)) == [3]
    assert old.similarities(np.array([1, 3]), wanted.unit) == {1: 1.0}


@pytest.mark.parametrize("packs", PACKED)
def test_what_points_nowhere_is_left_out(packs: bool) -> None:
    builder = Builder(Kind("m", 2), 1, packs)
    builder.add(block([1, 2, 3, 4], np.array([[0.0, 0.0], [np.nan, 1.0], [np.inf, 0.0], [1.0, 1.0]])))
    matrix = builder.matrix()
    assert matrix.concepts == 1
    assert nodes(matrix.nearest(Nearest(unit_of([1, 0]), 10), ENDLESS)) == [4]


def test_a_search_looks_at_the_clock_and_at_who_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "MOST_ROWS", 4)
    builder = Builder(Kind("m", 2), 1, False)
    builder.add(block(list(range(1, 20)), np.ones((19, 2))))
    matrix: Matrix = builder.matrix()
    wanted = Nearest(unit_of([1, 0]), 3)
    assert matrix.nearest(wanted, Limits(time.monotonic() - 1, Cancel())).stop == OUT_OF_TIME
    cancel = Cancel()
    cancel.cancel()
    assert matrix.nearest(wanted, Limits(float("inf"), cancel)).stop == CANCELLED
