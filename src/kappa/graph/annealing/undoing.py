"""Undoes what the execution of a proposal did, from its record, inside of the caller's transaction.

Everything comes back under its own ids. What was written since stays where it was written; what was deleted since is
not made again, nor what hung on it.
"""

from typing import LiteralString

import psycopg
from psycopg import Connection, sql

from kappa.graph.annealing.executing import WRITTEN, locked
from kappa.graph.backup import catalog
from kappa.graph.errors import BadProposal
from kappa.graph.store import clock, proposals
from kappa.graph.store.locks import keep_writers_out
from kappa.pg import queries
from kappa.pg.queries import Row

blocks = queries.beside(__file__)
RECORDED = blocks["recorded"]
UNMAKE = tuple(blocks[f"unmake_{what}"] for what in ("relation_sources", "relations", "instances"))
MOVE_DOCUMENTS_BACK = blocks["move_documents_back"]
MOVE_SOURCES_BACK = blocks["move_sources_back"]
MOVE_CONCEPTS_BACK = blocks["move_concepts_back"]
CONCEPTS_BEFORE = blocks["concepts_before"]
RELATIONS_BEFORE = blocks["relations_before"]
NAME_BACK = blocks["name_back"]
UNMAKE_ONTOLOGY = blocks["unmake_ontology"]
PROPOSALS_BACK = blocks["proposals_back"]

# Where an end is gone, what led to it stays gone.
_IF_THERE: dict[str, LiteralString] = {
    "instances": "EXISTS (SELECT FROM kappa_graph.concepts AS c WHERE c.id = r.concept_id) "
    "AND EXISTS (SELECT FROM kappa_graph.sources AS s WHERE s.id = r.source_id)",
    "relations": "EXISTS (SELECT FROM kappa_graph.concepts AS c WHERE c.id = r.from_id) "
    "AND EXISTS (SELECT FROM kappa_graph.concepts AS c WHERE c.id = r.to_id) "
    "AND EXISTS (SELECT FROM kappa_graph.relation_types AS t WHERE t.id = r.type_id)",
    "relation_sources": "EXISTS (SELECT FROM kappa_graph.relations AS e WHERE e.id = r.relation_id) "
    "AND EXISTS (SELECT FROM kappa_graph.sources AS s WHERE s.id = r.source_id)",
}


def undo(connection: Connection[Row], number: int) -> int:
    """The epoch from which on it is undone. What can't be undone any more is a `BadProposal`."""
    proposal = locked(connection, number, "executed")
    if proposal.undo_requested_by is None:
        raise BadProposal(f"nobody has asked for proposal {number} to be undone")
    if connection.execute(RECORDED.sql, {"proposal": number}).fetchone() != (True,):
        raise BadProposal(f"there is no record of what proposal {number} did")
    keep_writers_out(connection, WRITTEN)
    params = {"proposal": number}
    tables = catalog.read(connection)
    try:
        _put_back(connection, number, tables["ontologies"])
        if proposal.kind == "rename" and connection.execute(NAME_BACK.sql, params).fetchone() is None:
            raise BadProposal(f"the ontology {proposal.body['new_name']!r} is not there any more")
        for unmake in UNMAKE:
            connection.execute(unmake.sql, params)
        _put_back(connection, number, tables["documents"])
        _put_back(connection, number, tables["chunk_plan"])
        connection.execute(MOVE_DOCUMENTS_BACK.sql, params)
        _put_back(connection, number, tables["sources"])
        connection.execute(MOVE_SOURCES_BACK.sql, params)
        connection.execute(MOVE_CONCEPTS_BACK.sql, params)
        for name in ("concepts", "instances", "relations", "relation_sources", "artifacts"):
            _put_back(connection, number, tables[name])
        connection.execute(CONCEPTS_BEFORE.sql, params)
        connection.execute(RELATIONS_BEFORE.sql, params)
        connection.execute(UNMAKE_ONTOLOGY.sql, params)
        connection.execute(PROPOSALS_BACK.sql, params)
    except psycopg.IntegrityError as error:
        raise BadProposal(
            f"proposal {number} can't be undone, something is in the way: {error.diag.message_detail}"
        ) from None
    proposals.mark_undone(connection, number)
    return clock.take_epoch(connection)


def _put_back(connection: Connection[Row], number: int, table: catalog.Table) -> None:
    statement = sql.SQL(
        "INSERT INTO {here} ({columns}) OVERRIDING SYSTEM VALUE SELECT {values} FROM kappa_graph.undo_rows AS u "
        "CROSS JOIN LATERAL jsonb_populate_record(NULL::{here}, u.content) AS r "
        "WHERE u.proposal_id = {number} AND u.what = {what} AND {there} ORDER BY u.id{conflict}"
    )
    there = _IF_THERE.get(table.name)
    connection.execute(
        statement.format(
            here=table.here, columns=catalog.names(table.columns), values=catalog.names(table.columns, "r"),
            number=sql.Literal(number), what=sql.Literal(f"gone {table.name}"), there=sql.SQL(there or "true"),
            conflict=sql.SQL(" ON CONFLICT DO NOTHING" if there else ""),
        )
    )  # fmt: skip
