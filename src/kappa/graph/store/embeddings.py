"""Statements that matching and embedding need: vectors with what they are of, written and read by the batch."""

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from psycopg import Connection

from kappa.graph.identity import content_hash
from kappa.graph.store.vectors import ARRAY_HEADER, ELEMENT, Floats, Kind, reals
from kappa.pg import queries
from kappa.pg.queries import Answer, Query, Row

sql = queries.beside(__file__)
CONCEPTS = sql["concepts"]
CHANGED_CONCEPTS = sql["changed_concepts"]
TYPES = sql["types"]
PUT_CONCEPTS = sql["put_concepts"]
PUT_TYPES = sql["put_types"]
PUT_SOURCES = sql["put_sources"]
STALE_CONCEPTS = sql["stale_concepts"]
STALE_TYPES = sql["stale_types"]
STALE_SOURCES = sql["stale_sources"]
STALE = sql["stale"]
OF_OTHER_MODELS = sql["of_other_models"]


class Embedded(NamedTuple):
    """A concept with its vector."""

    node: int
    key: UUID
    label: str
    vector: Floats


class Stale(NamedTuple):
    """Something whose vector is missing, of another model, or of another text than it has now."""

    id: int
    key: Any
    """What `put` knows it by."""
    text: str


def concepts(connection: Connection[Row], ontology: int, kind: Kind) -> list[Embedded]:
    """The concepts of an ontology that have a vector of this kind."""
    rows = connection.execute(CONCEPTS.sql, {"ontology": ontology, **kind._asdict()}, binary=True)
    return [Embedded(row[0], row[1], row[2], _vector(row[3])) for row in rows]


def changed_concepts(
    connection: Connection[Row], ontology: int, kind: Kind, epoch: int
) -> Answer[list[tuple[int, Embedded | None]]]:
    """The nodes that were touched after an epoch, and of those that `concepts` would list what it would say."""
    params = {"ontology": ontology, "since": epoch, **kind._asdict()}
    rows = connection.execute(CHANGED_CONCEPTS.sql, params, binary=True)
    return lambda: [
        (row[0], None if row[1] is None else Embedded(row[0], row[1], row[2], _vector(row[3]))) for row in rows
    ]


def types(connection: Connection[Row], kind: Kind) -> list[tuple[str, Floats | None]]:
    """The vocabulary by name; a type without a vector of this kind has none."""
    rows = connection.execute(TYPES.sql, kind._asdict(), binary=True)
    return [(row[0], None if row[1] is None else _vector(row[1])) for row in rows]


def _vector(data: bytes) -> Floats:
    return np.frombuffer(data, ELEMENT, offset=ARRAY_HEADER)["value"].astype(np.float32)


def put_concepts(connection: Connection[Row], kind: Kind, keys: Sequence[UUID], vectors: Floats) -> None:
    """Vectors for those that have none of this kind."""
    _put(connection, PUT_CONCEPTS, kind, {"keys": list(keys)}, vectors)


def put_types(connection: Connection[Row], kind: Kind, names: Sequence[str], vectors: Floats) -> None:
    _put(connection, PUT_TYPES, kind, {"keys": list(names)}, vectors)


def put_sources(
    connection: Connection[Row], kind: Kind, numbers: Sequence[int], texts: Sequence[str], vectors: Floats
) -> None:
    hashes = [content_hash(text.encode()) for text in texts]
    _put(connection, PUT_SOURCES, kind, {"keys": list(numbers), "hashes": hashes}, vectors)


def _put(connection: Connection[Row], query: Query, kind: Kind, params: dict[str, Any], vectors: Floats) -> None:
    if params["keys"]:
        connection.execute(query.sql, {**params, **kind._asdict(), "flat": reals(connection, vectors)})


def stale(connection: Connection[Row], kind: Kind) -> tuple[int, int, int]:
    """How many concepts, relation types and sources need a vector of this kind."""
    row = connection.execute(STALE.sql, kind._asdict()).fetchone()
    assert row is not None
    return row[0], row[1], row[2]


def next_stale(connection: Connection[Row], query: Query, kind: Kind, after: int, limit: int) -> list[Stale]:
    """Some of them, by id, behind the one given. `query` is one of `STALE_…`."""
    rows = connection.execute(query.sql, {**kind._asdict(), "after": after, "limit": limit})
    return [Stale(*row) for row in rows]


def of_other_models(connection: Connection[Row], ontology: int, kind: Kind) -> int:
    """Concepts whose vectors can't be compared with those of this kind."""
    row = connection.execute(OF_OTHER_MODELS.sql, {"ontology": ontology, **kind._asdict()}).fetchone()
    assert row is not None
    return row[0]
