"""Carries a proposal out, inside of the caller's transaction, and writes down all it takes to undo it.

Ids follow from what they name, so what comes to another ontology comes to other ids: a document that is read again, a
concept that is written again, finds itself there. A concept whose label is in both ontologies becomes one, which stays
under the id that it has in the one that stays, with the evidence and the relations of both.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import psycopg
from psycopg import Connection
from psycopg.types.json import Jsonb

from kappa.graph.errors import BadProposal
from kappa.graph.identity import concept_key, document_key, kept, normal, source_key
from kappa.graph.model import Ontology
from kappa.graph.store import clock, ontologies, proposals
from kappa.graph.store.locks import keep_writers_out
from kappa.graph.store.proposals import Proposal
from kappa.pg import queries
from kappa.pg.queries import Row

sql = queries.beside(__file__)
LEAVING = sql["leaving"]
UNITE_DOCUMENTS = sql["unite_documents"]
UNITE_SOURCES = sql["unite_sources"]
UNITE_CONCEPTS = sql["unite_concepts"]
LEAVE_WHOLE = sql["leave_whole"]
LEAVE_RELATIONS = sql["leave_relations"]
RECORD_GONE = sql["record_gone"]
RECORD_BEFORE = sql["record_before"]
CARRY = tuple(sql[f"carry_{what}"] for what in ("relations", "relation_sources", "instances"))
CARRY_CONCEPTS = sql["carry_concepts"]
PLACE_SOURCES = sql["place_sources"]
DELETE_CONCEPTS = sql["delete_concepts"]
DELETE_DOCUMENTS = sql["delete_documents"]
DELETE_ONTOLOGY = sql["delete_ontology"]
LABELS = sql["labels"]
CONCEPTS_BY_KEY = sql["concepts_by_key"]
RECORD_CONCEPTS = sql["record_concepts"]
MOVE_CONCEPTS = sql["move_concepts"]
DOCUMENTS_OF = sql["documents_of"]
RECORD_DOCUMENTS = sql["record_documents"]
MOVE_DOCUMENTS = sql["move_documents"]
WRONG_SOURCES = sql["wrong_sources"]
REKEY_SOURCES = sql["rekey_sources"]
RECORD = sql["record"]
ONTOLOGY_BY_KEY = sql["ontology_by_key"]
RENAME = sql["rename"]
DOCUMENTS_IN = sql["documents_in"]
NAMES = sql["names"]

WRITTEN = (
    "ontologies", "documents", "sources", "concepts", "instances", "relations", "relation_sources", "artifacts",
    "chunk_plan",
)  # fmt: skip


def execute(connection: Connection[Row], number: int) -> int:
    """Do what an approved proposal says; the epoch from which on it is done. What can't be done is a `BadProposal`."""
    proposal = locked(connection, number, "approved")
    keep_writers_out(connection, WRITTEN)
    try:
        match proposal.kind:
            case "merge":
                _merge(connection, proposal)
            case "split":
                _split(connection, proposal)
            case "rename":
                _rename(connection, proposal)
            case "dissolve":
                _dissolve(connection, proposal)
    except psycopg.errors.UniqueViolation as error:
        raise BadProposal(f"something is in the way: {error.diag.message_detail}") from None
    proposals.mark_executed(connection, number)
    return clock.take_epoch(connection)


def names_of(connection: Connection[Row], proposal: Proposal) -> list[str]:
    """The ontologies that it is about, by the names that they had when it was made and by those that they have now."""
    said = [proposal.ontology, *(proposal.body.get(part) for part in ("name", "into", "new_name"))]
    keys = [UUID(proposal.body[part]) for part in ("ontology", "target") if part in proposal.body]
    now = connection.execute(NAMES.sql, {"keys": keys, "proposal": proposal.id})
    return sorted({name for name in said if name} | {row[0] for row in now})


def locked(connection: Connection[Row], number: int, wanted: str) -> Proposal:
    state = proposals.lock(connection, number)
    proposal = proposals.find(connection, number)
    if state is None or proposal is None:
        raise BadProposal(f"there is no proposal {number}")
    if state != wanted:
        raise BadProposal(f"proposal {number} is {state}, not {wanted}")
    return proposal


def _ontology(connection: Connection[Row], proposal: Proposal, part: str = "ontology") -> Ontology:
    row = connection.execute(ONTOLOGY_BY_KEY.sql, {"key": UUID(proposal.body[part])}).fetchone()
    if row is None:
        name = proposal.body["name" if part == "ontology" else "into"]
        raise BadProposal(f"the ontology {name!r} is not there any more")
    return Ontology(id=row[1], name=row[2], description=row[3], number=row[0])


def _merge(connection: Connection[Row], proposal: Proposal) -> None:
    source, target = _ontology(connection, proposal), _ontology(connection, proposal, "target")
    here = {"source": source.number, "target": target.number}
    connection.execute(LEAVING.sql)
    connection.execute(UNITE_DOCUMENTS.sql, here)
    connection.execute(UNITE_SOURCES.sql)
    there: dict[str, int] = {}
    for number, label in connection.execute(LABELS.sql, {"ontology": target.number}):
        there.setdefault(normal(label), number)
    # The first of a label stays, also where an ontology has it twice.
    united: dict[int, int] = {}
    moving: list[tuple[int, str]] = []
    for number, label in connection.execute(LABELS.sql, {"ontology": source.number}):
        if normal(label) in there:
            united[number] = there[normal(label)]
        else:
            there[normal(label)] = number
            moving.append((number, label))
    connection.execute(UNITE_CONCEPTS.sql, {"gone": list(united), "kept": list(united.values())})
    connection.execute(LEAVE_RELATIONS.sql)
    _let_go(connection, proposal, source)
    _move_concepts(connection, proposal, target, moving)
    _move_documents(connection, proposal, source, target)
    connection.execute(DELETE_ONTOLOGY.sql, {"ontology": source.number})


def _let_go(connection: Connection[Row], proposal: Proposal, ontology: Ontology) -> None:
    """What leaves is written down; what it says is carried over to what stays; then it is deleted."""
    params = {"proposal": proposal.id, "ontology": ontology.number}
    connection.execute(RECORD_GONE.sql, params)
    connection.execute(RECORD_BEFORE.sql, {"proposal": proposal.id})
    for carry in CARRY:
        connection.execute(carry.sql, {"proposal": proposal.id})
    connection.execute(CARRY_CONCEPTS.sql)
    connection.execute(PLACE_SOURCES.sql, {"proposal": proposal.id})
    connection.execute(DELETE_CONCEPTS.sql)
    connection.execute(DELETE_DOCUMENTS.sql)


def _move_concepts(
    connection: Connection[Row], proposal: Proposal, target: Ontology, moving: Sequence[tuple[int, str]]
) -> None:
    ids = [number for number, _ in moving]
    connection.execute(RECORD_CONCEPTS.sql, {"proposal": proposal.id, "ids": ids})
    keys = [concept_key(target.id, label) for _, label in moving]
    connection.execute(MOVE_CONCEPTS.sql, {"target": target.number, "ids": ids, "keys": keys})


def _move_documents(connection: Connection[Row], proposal: Proposal, source: Ontology, target: Ontology) -> None:
    found = connection.execute(DOCUMENTS_OF.sql, {"ontology": source.number}).fetchall()
    connection.execute(RECORD_DOCUMENTS.sql, {"proposal": proposal.id, "ontology": source.number})
    ids, keys = [row[0] for row in found], [document_key(target.id, row[1]) for row in found]
    connection.execute(MOVE_DOCUMENTS.sql, {"target": target.number, "ids": ids, "keys": keys})
    wrong = connection.execute(WRONG_SOURCES.sql, {"proposal": proposal.id}).fetchall()
    ids, keys = [row[0] for row in wrong], [source_key(*row[1:]) for row in wrong]
    connection.execute(REKEY_SOURCES.sql, {"ids": ids, "keys": keys})


def _split(connection: Connection[Row], proposal: Proposal) -> None:
    source = _ontology(connection, proposal)
    name: str = proposal.body["new_name"]
    if ontologies.find(connection, name) is not None:
        raise BadProposal(f"there is an ontology {name!r} by now")
    keys = [UUID(key) for key in proposal.body["concepts"]]
    moving = connection.execute(CONCEPTS_BY_KEY.sql, {"ontology": source.number, "keys": keys}).fetchall()
    if not moving:
        raise BadProposal(f"none of the concepts is in {source.name!r} any more")
    made = ontologies.ensure(connection, name, proposal.body.get("description", ""))
    _record(connection, proposal, "made ontologies", {"id": made.number})
    _move_concepts(connection, proposal, made, moving)


def _rename(connection: Connection[Row], proposal: Proposal) -> None:
    ontology = _ontology(connection, proposal)
    _record(connection, proposal, "renamed", {"id": ontology.number, "name": ontology.name})
    connection.execute(RENAME.sql, {"ontology": ontology.number, "name": kept(proposal.body["new_name"])})


def _dissolve(connection: Connection[Row], proposal: Proposal) -> None:
    ontology = _ontology(connection, proposal)
    found = connection.execute(DOCUMENTS_IN.sql, {"ontology": ontology.number}).fetchone()
    if found is None or found[0]:
        raise BadProposal(f"{ontology.name!r} has documents by now")
    connection.execute(LEAVING.sql)
    connection.execute(LEAVE_WHOLE.sql, {"ontology": ontology.number})
    connection.execute(LEAVE_RELATIONS.sql)
    _let_go(connection, proposal, ontology)
    connection.execute(DELETE_ONTOLOGY.sql, {"ontology": ontology.number})


def _record(connection: Connection[Row], proposal: Proposal, what: str, content: dict[str, Any]) -> None:
    connection.execute(RECORD.sql, {"proposal": proposal.id, "what": what, "content": Jsonb(content)})
