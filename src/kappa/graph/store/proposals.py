"""Statements about proposals. Each change of state is one guarded statement."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from psycopg import Connection
from psycopg.types.json import Jsonb

from kappa.graph.model import ProposalKind, ProposalState
from kappa.pg import queries
from kappa.pg.queries import Row

sql = queries.beside(__file__)
ADD = sql["add"]
FIND_ALL = sql["find_all"]
DECIDE = sql["decide"]
LOCK = sql["lock"]
EXECUTED = sql["executed"]
FAILED = sql["failed"]
ASK_UNDO = sql["ask_undo"]
UNDONE = sql["undone"]
FORGET_UNDO = sql["forget_undo"]
REFUSE_UNDO = sql["refuse_undo"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change of ontologies that somebody should think about."""

    id: int
    key: UUID
    kind: ProposalKind
    ontology: str | None
    """By its name now; None once it is gone."""
    body: dict[str, Any]
    """What is to be done. An ontology stands in it by its id and, for people, by the name that it had."""
    scores: dict[str, Any]
    """Why: the figures, and examples."""
    state: ProposalState
    created_at: datetime
    decided_by: str | None
    decided_at: datetime | None
    executed_at: datetime | None
    undone_at: datetime | None
    undo_requested_by: str | None
    error: str | None


def add(
    connection: Connection[Row],
    key: UUID,
    kind: ProposalKind,
    ontology: int,
    body: Mapping[str, Any],
    scores: Mapping[str, Any],
    epoch: int,
) -> bool:
    """Whether it is new."""
    params = {
        "key": key,
        "kind": kind,
        "ontology": ontology,
        "body": Jsonb(body),
        "scores": Jsonb(scores),
        "epoch": epoch,
    }
    return connection.execute(ADD.sql, params).fetchone() is not None


def find_all(
    connection: Connection[Row], *, number: int | None = None, state: str | None = None, limit: int = 100
) -> list[Proposal]:
    """The newest first."""
    found = connection.execute(FIND_ALL.sql, {"id": number, "state": state, "limit": limit})
    return [Proposal(*row) for row in found]


def find(connection: Connection[Row], number: int) -> Proposal | None:
    return next(iter(find_all(connection, number=number, limit=1)), None)


def decide(connection: Connection[Row], number: int, state: Literal["approved", "rejected"], who: str) -> bool:
    """Whether it was still to be decided."""
    return connection.execute(DECIDE.sql, {"id": number, "state": state, "who": who}).fetchone() is not None


def lock(connection: Connection[Row], number: int) -> ProposalState | None:
    """Its state, which is nobody else's to change until the transaction ends."""
    row = connection.execute(LOCK.sql, {"id": number}).fetchone()
    return row[0] if row else None


def mark_executed(connection: Connection[Row], number: int) -> None:
    connection.execute(EXECUTED.sql, {"id": number})


def mark_failed(connection: Connection[Row], number: int, error: str) -> bool:
    return connection.execute(FAILED.sql, {"id": number, "error": error}).fetchone() is not None


def ask_undo(connection: Connection[Row], number: int, who: str) -> bool:
    return connection.execute(ASK_UNDO.sql, {"id": number, "who": who}).fetchone() is not None


def mark_undone(connection: Connection[Row], number: int) -> None:
    connection.execute(UNDONE.sql, {"id": number})
    connection.execute(FORGET_UNDO.sql, {"id": number})


def refuse_undo(connection: Connection[Row], number: int, error: str) -> bool:
    return connection.execute(REFUSE_UNDO.sql, {"id": number, "error": error}).fetchone() is not None
