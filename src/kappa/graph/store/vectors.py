"""Statements that read embeddings by the thousand, as matrices. The server packs them, numpy unpacks them."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from psycopg import Connection
from psycopg.adapt import Dumper
from psycopg.pq import Format

from kappa.graph.errors import BadWrite
from kappa.graph.identity import kept
from kappa.graph.store.adjacency import Ints, int_array, result_of, unpack
from kappa.pg import queries
from kappa.pg.queries import Query, Row

sql = queries.beside(__file__)
MODELS = sql["models"]
DIMENSION = sql["dimension"]
LOCK_MODEL = sql["lock_model"]
BOUNDS = sql["bounds"]
BLOCK = sql["block"]
SOME = sql["some"]
HAVING = sql["having"]
BEST_CONNECTED = sql["best_connected"]
BEST_CONNECTED_OF = sql["best_connected_of"]

Floats: TypeAlias = NDArray[np.float32]

MAX_DIMENSIONS = 16_000
PART_BYTES = 8 << 20
"""What one statement may give, about."""
ARRAY_HEADER = 20
ELEMENT = np.dtype([("size", ">i4"), ("value", ">f4")])
_FLOAT4, _FLOAT4_ARRAY = 700, 1021


class Reals:
    """Numbers as PostgreSQL takes an array of them: much quicker than having each adapted."""

    def __init__(self, numbers: Floats) -> None:
        flat = numbers.reshape(-1)
        elements = np.empty(len(flat), ELEMENT)
        elements["size"], elements["value"] = 4, flat
        self.data = struct.pack("!iiIii", 1, 0, _FLOAT4, len(flat), 1) + elements.tobytes()


class _RealsDumper(Dumper):
    format = Format.BINARY
    oid = _FLOAT4_ARRAY

    def dump(self, obj: Reals) -> bytes:
        return obj.data


def reals(connection: Connection[Row], numbers: Floats) -> Reals:
    """Numbers that this connection can send."""
    # Here, for a connection knows only what it was told of before it was made.
    connection.adapters.register_dumper(Reals, _RealsDumper)
    return Reals(numbers)


class Kind(NamedTuple):
    """Vectors that can be compared: of one model, and of one length."""

    model: str
    dimension: int


class Block(NamedTuple):
    """Some concepts with their vectors, the lowest node first."""

    nodes: Ints
    groups: Ints
    """Their ontologies."""
    vectors: Floats


class Bounds(NamedTuple):
    """The lowest and highest node that has a vector, and how many have."""

    low: int
    high: int
    vectors: int


def models(connection: Connection[Row]) -> dict[Kind, int]:
    """How many concepts have an embedding of each kind."""
    return {Kind(model, dimension): count for model, dimension, count in connection.execute(MODELS.sql)}


def bounds(connection: Connection[Row], kind: Kind) -> Bounds:
    row = connection.execute(BOUNDS.sql, kind._asdict()).fetchone()
    assert row is not None
    return Bounds(row[0] or 0, row[1] or 0, row[2])


def parts(kind: Kind, of: Bounds) -> list[tuple[int, int]]:
    """Ranges of nodes whose vectors are some megabytes, together all of them."""
    step = max(1, min(8192, PART_BYTES // (8 * kind.dimension)))
    return [(low, low + step) for low in range(of.low, of.high + 1, step)] if of.vectors else []


def block(connection: Connection[Row], kind: Kind, low: int, high: int, ontologies: Sequence[int] | None) -> Block:
    """All vectors of nodes from `low` up to `high`."""
    params = {
        **kind._asdict(),
        "low": low,
        "high": high,
        "ontologies": None if ontologies is None else list(ontologies),
    }
    return _packed(connection, BLOCK, kind, params)


def some(connection: Connection[Row], kind: Kind, nodes: Ints) -> Block:
    """The vectors of those nodes that have one."""
    return _packed(connection, SOME, kind, {**kind._asdict(), "nodes": int_array(nodes)})


def having(connection: Connection[Row], kind: Kind, nodes: Ints) -> Ints:
    """Those of the nodes that have a vector."""
    result = result_of(connection.execute(HAVING.sql, {**kind._asdict(), "nodes": int_array(nodes)}, binary=True))
    return unpack(result.get_value(0, 0))


def best_connected(connection: Connection[Row], kind: Kind, ontology: int | None, most: int) -> dict[int, int]:
    """Nodes that have a vector and the most relations, with how many."""
    query = BEST_CONNECTED if ontology is None else BEST_CONNECTED_OF
    return dict(connection.execute(query.sql, {**kind._asdict(), "ontology": ontology, "most": most}).fetchall())


def _packed(connection: Connection[Row], query: Query, kind: Kind, params: dict[str, Any]) -> Block:
    result = result_of(connection.execute(query.sql, params, binary=True))
    nodes, groups, data = (result.get_value(0, column) for column in range(3))
    record = np.dtype([("header", f"V{ARRAY_HEADER}"), ("elements", ELEMENT, (kind.dimension,))])
    vectors = np.frombuffer(data or b"", record)["elements"]["value"].astype(np.float32)
    return Block(unpack(nodes), unpack(groups), vectors)


def dimension(connection: Connection[Row], model: str) -> int | None:
    """How long the vectors of a model are; None if it has embedded nothing yet."""
    row = connection.execute(DIMENSION.sql, {"model": model}).fetchone()
    return row[0] if row else None


def checked(connection: Connection[Row], model: str, vectors: Mapping[UUID, Sequence[float]]) -> list[Floats]:
    """The vectors as they are kept, if they are sound and of the length that the model's have."""
    model = kept(model)
    if not model:
        raise BadWrite("an embedding needs the name of its model")
    sound = [_sound(concept, vector) for concept, vector in vectors.items()]
    known = dimension(connection, model)
    if known is None:
        connection.execute(LOCK_MODEL.sql, {"model": model})
        known = dimension(connection, model)
    for concept, vector in zip(vectors, sound, strict=True):
        known = known or len(vector)
        if len(vector) != known:
            raise BadWrite(f"the embedding of {concept} has {len(vector)} dimensions, those of {model!r} have {known}")
    return sound


def _sound(concept: UUID, vector: Sequence[float]) -> Floats:
    with np.errstate(over="ignore"):
        array = np.asarray(vector, np.float64).astype(np.float32)
    if array.ndim != 1 or not 1 <= len(array) <= MAX_DIMENSIONS:
        raise BadWrite(f"the embedding of {concept} is no list of 1 to {MAX_DIMENSIONS} numbers")
    if not np.isfinite(array).all():
        raise BadWrite(f"the embedding of {concept} has a number that is not finite")
    if not array.any():
        raise BadWrite(f"the embedding of {concept} is zero throughout, and points nowhere")
    return array
