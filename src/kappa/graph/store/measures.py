"""Statements that count what speaks for concepts and against them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from psycopg import Connection

from kappa.pg import queries
from kappa.pg.queries import Row

sql = queries.beside(__file__)
STANCES = sql["stances"]
COUNTS = sql["counts"]
INCOMING = sql["incoming"]
STRONGEST = sql["strongest"]


class Counts(NamedTuple):
    """What there is to judge a concept by."""

    relations: int
    types: int
    sources: int
    evidence: int


class Incoming(NamedTuple):
    """The relations of one type that come in to a concept."""

    node: int
    type: int
    relations: int
    hundredths: int
    """Their confidences, each times its documents."""


class Strong(NamedTuple):
    """One of them."""

    id: UUID
    label: str
    type: int
    confidence: int
    documents: int


def stances(connection: Connection[Row]) -> list[tuple[int, str, float | None]]:
    """Number, name and measured stance of every type; None where nobody measured it."""
    return [(row[0], row[1], row[2]) for row in connection.execute(STANCES.sql)]


def counts(connection: Connection[Row], nodes: Sequence[int]) -> dict[int, Counts]:
    found = connection.execute(COUNTS.sql, {"nodes": list(nodes)}, binary=True)
    return {row[0]: Counts(*row[1:]) for row in found}


def incoming(connection: Connection[Row], nodes: Sequence[int], types: Sequence[int]) -> list[Incoming]:
    """Only relations of these types; a concept's relations to itself say nothing."""
    found = connection.execute(INCOMING.sql, {"nodes": list(nodes), "types": list(types)}, binary=True)
    return [Incoming(*row) for row in found]


def strongest(connection: Connection[Row], node: int, stances: Mapping[int, float], most: int) -> list[Strong]:
    params = {"node": node, "types": list(stances), "stances": list(stances.values()), "most": most}
    return [Strong(*row) for row in connection.execute(STRONGEST.sql, params)]
