"""Statements about relations. A batch is sorted by ends and type before it locks anything."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from psycopg import Connection

from kappa.graph.errors import BadWrite
from kappa.graph.identity import kept
from kappa.graph.model import NewRelation, Relation
from kappa.graph.store import arrays
from kappa.pg import queries
from kappa.pg.queries import Answer, Row

sql = queries.beside(__file__)
UPSERT = sql["upsert"]
COPY_IN = sql["copy_in"]
INCOMING_TYPES = sql["incoming_types"]
INCOMING_STRANGERS = sql["incoming_strangers"]
MERGE_INCOMING = sql["merge_incoming"]
SUPPORT = sql["support"]
DELETE = sql["delete"]
BETWEEN = sql["between"]


class RelationRow(NamedTuple):
    """A relation by the numbers of its ends and type."""

    from_id: int
    to_id: int
    type: int
    confidence: int
    category: str = ""
    provenance: str = ""


class Link(NamedTuple):
    """A relation between two nodes."""

    from_node: int
    to_node: int
    type: int
    relation: Relation


def hundredths(confidence: float) -> int:
    """Confidence as it is kept."""
    if not 0.0 <= confidence <= 1.0:
        raise BadWrite(f"a confidence of {confidence:g}: it is 0 to 1")
    return round(confidence * 100)


def upsert(connection: Connection[Row], relations: Sequence[RelationRow]) -> Answer[int]:
    """How many are new."""
    if not relations:
        return lambda: 0
    params = {
        "from_ids": arrays.numbers(one.from_id for one in relations),
        "to_ids": arrays.numbers(one.to_id for one in relations),
        "types": arrays.numbers(one.type for one in relations),
        "confidences": arrays.numbers(one.confidence for one in relations),
        "categories": arrays.texts(kept(one.category) for one in relations),
        "provenances": arrays.texts(kept(one.provenance) for one in relations),
    }
    cursor = connection.execute(UPSERT.sql, params)
    return lambda: sum(row[0] for row in cursor)


def support(connection: Connection[Row], source: int, relations: Sequence[RelationRow]) -> None:
    if relations:
        params = {
            "source": source,
            "from_ids": arrays.numbers(one.from_id for one in relations),
            "to_ids": arrays.numbers(one.to_id for one in relations),
            "types": arrays.numbers(one.type for one in relations),
        }
        connection.execute(SUPPORT.sql, params)


def copy_in(connection: Connection[Row], relations: Iterable[NewRelation]) -> None:
    """Into the table of what comes in, under the lock of bulk loads."""
    with connection.cursor().copy(COPY_IN.sql) as copy:
        copy.set_types(["uuid", "uuid", "text", "int2", "text", "text"])
        for new in relations:
            copy.write_row(
                (
                    new.from_id,
                    new.to_id,
                    kept(new.type).strip(),
                    hundredths(new.confidence),
                    kept(new.category),
                    kept(new.provenance),
                )
            )


def incoming_types(connection: Connection[Row]) -> dict[str, str]:
    return dict(connection.execute(INCOMING_TYPES.sql).fetchall())


def merge_incoming(connection: Connection[Row]) -> int:
    """How many were made or changed."""
    stranger = connection.execute(INCOMING_STRANGERS.sql).fetchone()
    if stranger is not None:
        raise BadWrite(f"a relation names concept {stranger[0]}, which is not in the graph")
    return connection.execute(MERGE_INCOMING.sql).rowcount


def delete(connection: Connection[Row], keys: Sequence[tuple[UUID, UUID, str]]) -> int:
    """From, to and type of each; how many were there."""
    params = {
        "from_keys": [key[0] for key in keys],
        "to_keys": [key[1] for key in keys],
        "types": [kept(key[2]).strip() for key in keys],
    }
    return len(connection.execute(DELETE.sql, params).fetchall())


def between(
    connection: Connection[Row], pairs: Sequence[tuple[int, int]], types: Sequence[int] | None, min_confidence: int
) -> Answer[Iterable[Link]]:
    """All relations from the first node of each pair to its second, by both ends and type."""
    params = {
        "from_ids": arrays.numbers(pair[0] for pair in pairs),
        "to_ids": arrays.numbers(pair[1] for pair in pairs),
        "types": None if types is None else list(types),
        "min_confidence": min_confidence,
    }
    found = connection.execute(BETWEEN.sql, params, binary=True)
    # The same ids come again and again: one object for each, so that a look for garbage has less to look at.
    ids: dict[int, UUID] = {}

    def link(row: Row) -> Link:
        start, goal, from_id, to_id, name, confidence, category, number = row
        relation = Relation(
            ids.setdefault(start, from_id), ids.setdefault(goal, to_id), name, confidence / 100, category
        )
        return Link(start, goal, number, relation)

    return lambda: map(link, found)
