"""Statements about concepts. A batch is sorted by key before it locks anything."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from uuid import UUID

import numpy as np
from psycopg import Connection

from kappa.graph.errors import BadWrite
from kappa.graph.identity import concept_key, kept
from kappa.graph.model import Concept, NewConcept, Ontology
from kappa.graph.store import arrays
from kappa.graph.store.vectors import Floats, Kind, checked, reals
from kappa.pg import queries
from kappa.pg.queries import Answer, Row

sql = queries.beside(__file__)
UPSERT = sql["upsert"]
COPY_IN = sql["copy_in"]
MERGE_INCOMING = sql["merge_incoming"]
NUMBERS = sql["numbers"]
LOCK_NUMBERS = sql["lock_numbers"]
ROWS = sql["rows"]
EMBEDDINGS = sql["embeddings"]
SET_EMBEDDINGS = sql["set_embeddings"]
LABELLED = sql["labelled"]
ALSO_CALLED = sql["also_called"]
HUBS = sql["hubs"]
DELETE = sql["delete"]


def upsert(
    connection: Connection[Row],
    ontology: int,
    ontology_key: UUID,
    concepts: Iterable[NewConcept],
    kind: Kind | None = None,
    vectors: Mapping[UUID, Floats] = MappingProxyType({}),
) -> Answer[int]:
    """How many are new. Two with one label are one concept: the first description, all search terms.

    Of the `vectors`, by id, those are kept whose concept has none of this kind.
    """
    merged: dict[UUID, tuple[str, str, set[str]]] = {}
    for new in concepts:
        key = concept_key(ontology_key, new.label)
        terms = {kept(term) for term in new.search_terms}
        if key in merged:
            label, description, before = merged[key]
            merged[key] = (label, description or kept(new.description), before | terms)
        else:
            merged[key] = (_label(new), kept(new.description), terms)
    if not merged:
        return lambda: 0
    places = {key: place for place, key in enumerate(vectors, start=1)}
    params = {
        "ontology": ontology,
        "keys": arrays.uuids(merged),
        "labels": arrays.texts(label for label, _, _ in merged.values()),
        "descriptions": arrays.texts(description for _, description, _ in merged.values()),
        # Arrays inside of an array would all have to be of one length.
        "terms": arrays.texts(arrays.texts(sorted(terms)) for _, _, terms in merged.values()),
        "places": arrays.numbers(places.get(key) for key in merged),
        "flat": reals(connection, np.stack([*vectors.values()])) if vectors else None,
        "model": None if kind is None else kind.model,
        "dimension": None if kind is None else kind.dimension,
    }
    cursor = connection.execute(UPSERT.sql, params)
    return lambda: sum(row[0] for row in cursor)


def _label(new: NewConcept) -> str:
    label = kept(new.label).strip()
    if not label:
        raise BadWrite("a concept needs a label")
    return label


def merge(connection: Connection[Row], ontology: Ontology, concepts: Iterable[NewConcept]) -> int:
    """The same for very many, by COPY, under the lock of bulk loads."""
    with connection.cursor().copy(COPY_IN.sql) as copy:
        copy.set_types(["uuid", "text", "text", "text[]"])
        for new in concepts:
            terms = sorted({kept(term) for term in new.search_terms})
            copy.write_row((concept_key(ontology.id, new.label), _label(new), kept(new.description), terms))
    return connection.execute(MERGE_INCOMING.sql, {"ontology": ontology.number}).rowcount


def numbers(connection: Connection[Row], keys: Sequence[UUID]) -> dict[UUID, int]:
    """The nodes of those that are there."""
    return look_up(connection, keys)()


def look_up(connection: Connection[Row], keys: Sequence[UUID], *, lock: bool = False) -> Answer[dict[UUID, int]]:
    """The same; with `lock`, they stay until the transaction ends."""
    if not keys:
        return dict
    query = LOCK_NUMBERS if lock else NUMBERS
    cursor = connection.execute(query.sql, {"keys": arrays.uuids(keys)}, binary=True)
    return lambda: dict(cursor.fetchall())


def rows(connection: Connection[Row], nodes: Sequence[int]) -> Answer[dict[int, Concept]]:
    """Concepts by their nodes."""
    found = connection.execute(ROWS.sql, {"nodes": arrays.numbers(nodes)}, binary=True)
    return lambda: {
        node: Concept(key, node, label, description, ontology, tuple(terms))
        for key, node, label, description, ontology, terms in found
    }


def embeddings(connection: Connection[Row], nodes: Sequence[int]) -> list[tuple[int, str, list[float]]]:
    """Node, model and vector of those that have one."""
    return [(row[0], row[1], row[2]) for row in connection.execute(EMBEDDINGS.sql, {"nodes": list(nodes)}, binary=True)]


def set_embeddings(connection: Connection[Row], model: str, vectors: Mapping[UUID, Sequence[float]]) -> int:
    """How many concepts were there to be given one. One vector that is not sound, and none is written."""
    sound = checked(connection, model, vectors)
    params = {
        "model": kept(model),
        "keys": list(vectors),
        "embeddings": ["{" + ",".join(map(repr, vector.tolist())) + "}" for vector in sound],
    }
    return len(connection.execute(SET_EMBEDDINGS.sql, params).fetchall())


def labelled(
    connection: Connection[Row], label: str, keys: Sequence[UUID], ontology: int | None = None
) -> list[Concept]:
    """Concepts that have one of the ids, or the label by its letters; the lowest node first."""
    params = {"label": kept(label).strip(), "keys": list(keys), "ontology": ontology}
    return _read(connection.execute(LABELLED.sql, params, binary=True))


def also_called(connection: Connection[Row], label: str, ontology: int | None = None) -> list[Concept]:
    """Concepts of which the label is a search term; the lowest node first."""
    params = {"label": kept(label).strip(), "ontology": ontology}
    return _read(connection.execute(ALSO_CALLED.sql, params, binary=True))


def _read(rows: Iterable[Row]) -> list[Concept]:
    return [
        Concept(key, node, name, description, within, tuple(terms))
        for key, node, name, description, within, terms in rows
    ]


def hubs(connection: Connection[Row], ontology: str, limit: int, most: int) -> list[Concept]:
    """Those with the most relations, of the first so many of an ontology."""
    params = {"ontology": ontology, "limit": limit, "most": most}
    return [
        Concept(key, node, label, description, within, tuple(terms))
        for key, node, label, description, within, terms in connection.execute(HUBS.sql, params, binary=True)
    ]


def delete(connection: Connection[Row], keys: Sequence[UUID]) -> int:
    """With their relations and evidence; how many were there."""
    return len(connection.execute(DELETE.sql, {"keys": list(keys)}).fetchall())
