"""Statements that read edges by the thousand, as arrays: for the snapshot, and for walks in SQL.

The server packs columns into arrays and numpy unpacks them; no Python object is made for an edge.
"""

import struct
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from psycopg import Connection, Cursor
from psycopg.pq.abc import PGresult

from kappa.pg import queries
from kappa.pg.queries import Query, Row

sql = queries.beside(__file__)
SIZE = sql["size"]
COPY_NODES = sql["copy_nodes"]
COPY_RELATIONS = sql["copy_relations"]
RELATIONS_NOW = sql["relations_now"]
CONCEPTS_NOW = sql["concepts_now"]
EXPAND_OUT = sql["expand_out"]
EXPAND_IN = sql["expand_in"]
EDGES_OUT = sql["edges_out"]
EDGES_IN = sql["edges_in"]
EDGES_AMONG = sql["edges_among"]
DEGREES = sql["degrees"]

Ints: TypeAlias = NDArray[np.int64]

_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_ARRAY_HEADER = 20
INT8 = 20
_ELEMENT = {
    INT8: np.dtype([("size", ">i4"), ("value", ">i8")]),
    23: np.dtype([("size", ">i4"), ("value", ">i4")]),
    21: np.dtype([("size", ">i4"), ("value", ">i2")]),
}
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a walk may take, in numbers; None is everything."""

    types: Sequence[int] | None = None
    ontologies: Sequence[int] | None = None
    min_confidence: int = 0

    def params(self) -> dict[str, Any]:
        return {
            "types": None if self.types is None else list(self.types),
            "ontologies": None if self.ontologies is None else list(self.ontologies),
            "min_confidence": self.min_confidence,
        }


def size(connection: Connection[Row]) -> tuple[int, int]:
    """Concepts and relations."""
    row = connection.execute(SIZE.sql).fetchone()
    assert row is not None
    return row[0], row[1]


def nodes(connection: Connection[Row]) -> Generator[tuple[Ints, Ints]]:
    """Ids and ontologies of all concepts, in pieces."""
    return ((row[0], row[1]) for row in _copied(connection, COPY_NODES))


def relations(connection: Connection[Row]) -> Generator[tuple[Ints, Ints, Ints, Ints]]:
    """Ends, types and confidence of all relations, in pieces."""
    return ((row[0], row[1], row[2], row[3]) for row in _copied(connection, COPY_RELATIONS))


def relations_now(connection: Connection[Row], head: Ints, tail: Ints, types: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Those of the relations asked for that are there, with their confidence."""
    params = {"from_ids": int_array(head), "to_ids": int_array(tail), "types": int_array(types)}
    head, tail, types, confidence = _arrays(connection, RELATIONS_NOW, params)
    return head, tail, types, confidence


def concepts_now(connection: Connection[Row], ids: Ints) -> tuple[Ints, Ints]:
    """Those of the concepts asked for that are there, with their ontologies."""
    found, ontologies = _arrays(connection, CONCEPTS_NOW, {"ids": int_array(ids)})
    return found, ontologies


def expand(connection: Connection[Row], query: Query, frontier: Ints, allowed: Allowed, most: int) -> Ints:
    """Nodes one hop away, each once; `query` says in which direction."""
    (found,) = _arrays(connection, query, {"nodes": int_array(frontier), "most": most, **allowed.params()})
    return found


def edges(
    connection: Connection[Row], query: Query, frontier: Ints, allowed: Allowed, exempt: Ints, most: int
) -> tuple[Ints, Ints, Ints]:
    """Edges from the frontier: this end, the other, the type. Exempt nodes pass whatever their ontology."""
    params = {"nodes": int_array(frontier), "exempt": int_array(exempt), "most": most, **allowed.params()}
    here, there, types = _arrays(connection, query, params)
    return here, there, types


def edges_among(connection: Connection[Row], among: Ints, allowed: Allowed, most: int) -> tuple[Ints, Ints, Ints]:
    """Relations with both ends among some nodes, the lowest nodes first."""
    params = {
        "nodes": int_array(among),
        "most": most,
        "types": None if allowed.types is None else list(allowed.types),
        "min_confidence": allowed.min_confidence,
    }
    head, tail, types = _arrays(connection, EDGES_AMONG, params)
    return head, tail, types


def degrees(connection: Connection[Row], wanted: Ints) -> tuple[Ints, Ints]:
    """Nodes that have relations, and how many, in and out."""
    found, counts = _arrays(connection, DEGREES, {"nodes": int_array(wanted)})
    return found, counts


def int_array(numbers: Ints) -> str:
    """An array as PostgreSQL writes it: much quicker than having every element adapted."""
    return "{" + ",".join(map(str, numbers.tolist())) + "}"


def _arrays(connection: Connection[Row], query: Query, params: dict[str, Any]) -> list[Ints]:
    result = result_of(connection.execute(query.sql, params, binary=True))
    return [unpack(result.get_value(0, column)) for column in range(result.nfields)]


def result_of(cursor: Cursor[Row]) -> PGresult:
    """A statement's result as libpq has it; within a pipeline, as soon as it is there."""
    with suppress(IndexError):  # of no rows
        cursor.scroll(0)
    result = cursor.pgresult
    assert result is not None
    return result


def unpack(data: bytes | memoryview | None, element: int | None = None) -> Ints:
    """An array of whole numbers in PostgreSQL's binary format. No array is one without elements.

    Elements of a type that an extension made are read as those of `element`.
    """
    if data is None or len(data) <= _ARRAY_HEADER:
        return _NONE
    if element is None:
        (element,) = struct.unpack_from("!I", data, 8)
    return np.frombuffer(data, _ELEMENT[element], offset=_ARRAY_HEADER)["value"].astype(np.int64)


def _copied(connection: Connection[Row], query: Query) -> Generator[list[Ints]]:
    with connection.cursor().copy(query.sql) as copy:
        for message in copy:
            data = memoryview(message)
            at = len(_SIGNATURE) + 8 if bytes(data[: len(_SIGNATURE)]) == _SIGNATURE else 0
            # A message is a row, and may hold the header before it; the last is a count of -1.
            while at < len(data):
                (columns,) = struct.unpack_from("!h", data, at)
                at += 2
                if columns < 0:
                    break
                row: list[Ints] = []
                for _ in range(columns):
                    (length,) = struct.unpack_from("!i", data, at)
                    at += 4
                    row.append(unpack(data[at : at + length]) if length > 0 else _NONE)
                    at += max(length, 0)
                yield row
