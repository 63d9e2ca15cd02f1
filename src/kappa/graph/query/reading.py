"""Reads the graph into memory: all of it by COPY, or what changed since an epoch. One transaction, one state."""

from collections import defaultdict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from psycopg import Connection

from kappa.graph.query.backend import SqlBackend
from kappa.graph.query.snapshot import Delta, Rows, Snapshot, build
from kappa.graph.store import adjacency, clock
from kappa.graph.store.adjacency import Ints, result_of
from kappa.pg.queries import Row

BYTES_PER_EDGE = 14
BYTES_PER_NODE = 30


class TooLarge(Exception):
    """The graph would take more memory than it may."""


@contextmanager
def one_state(connection: Connection[Row]) -> Generator[None]:
    """One transaction that sees one state, begun in a single round trip: on a busy host each of them is a wait."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        yield
    finally:
        if not connection.closed:
            connection.execute("ROLLBACK")


def read_all(connection: Connection[Row], most_bytes: int) -> Snapshot:
    """The whole graph; refused before it is read if it can't fit."""
    with one_state(connection):
        epoch = clock.now(connection)
        nodes, edges = adjacency.size(connection)
        if edges * BYTES_PER_EDGE + nodes * BYTES_PER_NODE > most_bytes:
            raise TooLarge
        ids, ontologies = _joined(adjacency.nodes(connection), (np.int64, np.uint16))
        head, tail, types, confidence = _joined(
            adjacency.relations(connection), (np.int64, np.int64, np.uint16, np.uint8)
        )
        vocabulary = SqlBackend().vocabulary(connection)
    return build(epoch, Rows(ids, ontologies, head, tail, types, confidence, vocabulary))


def _joined(pieces: Generator[Any], dtypes: Sequence[Any]) -> list[NDArray[Any]]:
    columns: list[list[NDArray[Any]]] = [[] for _ in dtypes]
    for piece in pieces:
        for column, values, dtype in zip(columns, piece, dtypes, strict=True):
            column.append(values.astype(dtype))
    return [
        np.concatenate(column) if column else np.empty(0, dtype) for column, dtype in zip(columns, dtypes, strict=True)
    ]


def read_changes(connection: Connection[Row], since: int, most: int) -> Delta | None:
    """What is true now of all that was touched after an epoch; None if only a whole reading can tell."""
    with one_state(connection):
        epoch, logged = clock.since(connection, since)
        if not logged:
            return None
        touched = _touched(connection, since)
        if "reload" in touched:
            return None
        ids = _unique(touched["concepts"])
        keys = _unique_keys(touched["relations"])
        if len(ids) + keys.shape[1] > most:
            return None
        here, ontologies = adjacency.concepts_now(connection, ids) if len(ids) else (ids, ids)
        confidence = np.full(keys.shape[1], -1, np.int16)
        if keys.shape[1]:
            head, tail, types, certain = adjacency.relations_now(connection, keys[0], keys[1], keys[2])
            place = {key: at for at, key in enumerate(zip(*keys.tolist(), strict=True))}
            found = [place[key] for key in zip(head.tolist(), tail.tolist(), types.tolist(), strict=True)]
            confidence[found] = certain
        renamed = "relation_types" in touched or "ontologies" in touched
        vocabulary = SqlBackend().vocabulary(connection) if renamed else None
    gone = np.setdiff1d(ids, here, assume_unique=True)
    return Delta(
        epoch, here, ontologies.astype(np.uint16), gone, keys[0], keys[1], keys[2].astype(np.uint16), confidence,
        vocabulary,
    )  # fmt: skip


def touched_nodes(connection: Connection[Row], since: int) -> Ints | None:
    """Concepts that were touched after an epoch, by themselves or by a relation; None if the log can't tell."""
    _, logged = clock.since(connection, since)
    touched = _touched(connection, since) if logged else {}
    if not logged or "reload" in touched:
        return None
    ends = [piece[column] for piece in touched.get("relations", ()) for column in (0, 1)]
    pieces = [piece[0] for piece in touched.get("concepts", ())] + ends
    return np.unique(np.concatenate(pieces)) if pieces else np.empty(0, np.int64)


def _touched(connection: Connection[Row], since: int) -> dict[str, list[Any]]:
    result = result_of(connection.execute(clock.CHANGES.sql, {"since": since}, binary=True))
    touched: dict[str, list[Any]] = defaultdict(list)
    for row in range(result.ntuples):
        kind = result.get_value(row, 0)
        assert kind is not None
        arrays = [adjacency.unpack(result.get_value(row, column)) for column in (1, 2, 3)]
        touched[kind.decode()].append(arrays)
    return touched


def _unique(pieces: list[Any]) -> Ints:
    return np.unique(np.concatenate([piece[0] for piece in pieces])) if pieces else np.empty(0, np.int64)


def _unique_keys(pieces: list[Any]) -> NDArray[np.int64]:
    """From, to and type of each touched relation, once."""
    if not pieces:
        return np.empty((3, 0), np.int64)
    keys = np.stack([np.concatenate([piece[column] for piece in pieces]) for column in range(3)])
    return np.unique(keys, axis=1)
