"""Statements about artifacts: results that are kept. One whose time is over is not there, deleted or not."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from psycopg import Connection
from psycopg.types.json import Jsonb

from kappa.graph.errors import BadWrite
from kappa.graph.findings import Artifact, NewArtifact
from kappa.graph.identity import artifact_key, kept
from kappa.graph.store import ontologies
from kappa.pg import queries
from kappa.pg.ops import Op
from kappa.pg.queries import Row

sql = queries.beside(__file__)
ADD = sql["add"]
FIND = sql["find"]
FIND_ALL = sql["find_all"]
UNMAPPED = sql["unmapped"]
CONTENT = sql["content"]
DATA = sql["data"]
DELETE = sql["delete"]


def key_of(connection: Connection[Row], new: NewArtifact) -> UUID:
    """What it will be known by; it follows from what it is about, not from what is in it."""
    ontology = None if new.ontology is None else ontologies.get(connection, new.ontology).id
    return artifact_key(new.kind, ontology, _canonical(new.parameters), new.as_of_epoch)


def add(connection: Connection[Row], new: NewArtifact) -> tuple[UUID, bool]:
    """Its id, and whether it was written: one that is there stays as it is."""
    if new.content is None and new.data is None:
        raise BadWrite("an artifact needs something in it")
    ontology = None if new.ontology is None else ontologies.get(connection, new.ontology)
    key = artifact_key(new.kind, ontology and ontology.id, _canonical(new.parameters), new.as_of_epoch)
    params = {
        "key": key,
        "kind": kept(new.kind),
        "name": kept(new.name),
        "ontology": ontology and ontology.number,
        "parameters": Jsonb(new.parameters, _canonical),
        "as_of_epoch": new.as_of_epoch,
        "content": None if new.content is None else Jsonb(new.content, _canonical),
        "data": new.data,
        "media_type": kept(new.media_type),
        "keep": new.keep,
    }
    return key, connection.execute(ADD.sql, params).fetchone() is not None


def find(connection: Connection[Row], key: UUID, now: datetime | None = None) -> Artifact | None:
    row = connection.execute(FIND.sql, {"key": key, "now": now}).fetchone()
    return Artifact(*row) if row else None


def find_all(
    connection: Connection[Row],
    kind: str | None = None,
    ontology: str | None = None,
    limit: int = 100,
    now: datetime | None = None,
) -> list[Artifact]:
    """The latest first."""
    params = {"kind": kind, "ontology": ontology, "limit": limit, "now": now}
    return [Artifact(*row) for row in connection.execute(FIND_ALL.sql, params)]


def unmapped(ontology: str | None, parameters: Mapping[str, Any]) -> Op[bool]:
    """Whether a map with these parameters would be a new one."""
    return Op(UNMAPPED, {"ontology": ontology, "parameters": Jsonb(parameters)}, lambda rows: rows[0][0])


def content(connection: Connection[Row], key: UUID, now: datetime | None = None) -> Any:
    """Its JSON value; None if it has none, or is not there."""
    row = connection.execute(CONTENT.sql, {"key": key, "now": now}).fetchone()
    return row[0] if row else None


def data(connection: Connection[Row], key: UUID, now: datetime | None = None) -> bytes | None:
    """Its bytes; None if it has none, or is not there."""
    row = connection.execute(DATA.sql, {"key": key, "now": now}).fetchone()
    return row[0] if row else None


def delete(connection: Connection[Row], key: UUID) -> bool:
    """Whether there was one."""
    return connection.execute(DELETE.sql, {"key": key}).fetchone() is not None


def _canonical(value: Any) -> str:
    """JSON text that is the same for the same value, and that PostgreSQL can keep."""
    try:
        return json.dumps(_kept(value), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise BadWrite(f"what an artifact says is no JSON: {error}") from None


def _kept(value: Any) -> Any:
    match value:
        case str():
            return kept(value)
        case dict():
            entries = cast("dict[Any, Any]", value)
            return {_kept(name): _kept(inner) for name, inner in entries.items()}
        case list() | tuple():
            items = cast("list[Any]", value)
            return [_kept(inner) for inner in items]
        case _:
            return value
