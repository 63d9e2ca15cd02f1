"""A graph as text, for comparing two states of it.

`dump` is its content: lines in a fixed order, without row numbers, epochs and times. Two databases that say the same
have the same dump. With `ids`, the public ids are content too; without them two graphs that grew apart under other ids
can still be found to say the same. `canonical` is every row of every table of one database, but for when things
happened: what changed nothing leaves it as it was.
"""

import json

import psycopg
from psycopg import sql

from kappa.pg.queries import Row

Lines = dict[str, list[str]]

# Each refers to others by what they are: an ontology by its name, a concept by ontology and label, a source by the
# document's ontology, its hash and its place.
QUERIES = {
    "ontologies": "SELECT o.name, o.description FROM kappa_graph.ontologies AS o",
    "documents": """
        SELECT n.name AS ontology, encode(o.content_hash, 'hex') AS hash, o.name, o.media_type, md5(o.text) AS text,
               md5(o.original) AS original
          FROM kappa_graph.documents AS o JOIN kappa_graph.ontologies AS n ON n.id = o.ontology_id""",
    "sources": """
        SELECT place.said AS source, o.ordinal, o.text, o.embedding, o.embedding_model,
               encode(o.embedded_hash, 'hex') AS hash
          FROM kappa_graph.sources AS o JOIN places AS place ON place.id = o.id""",
    "concepts": """
        SELECT n.name AS ontology, o.label, o.description, o.search_terms, o.embedding, o.embedding_model
          FROM kappa_graph.concepts AS o JOIN kappa_graph.ontologies AS n ON n.id = o.ontology_id""",
    "relation_types": """
        SELECT o.name, o.category, o.description, o.embedding, o.embedding_model, o.active, m.name AS merged_into
          FROM kappa_graph.relation_types AS o LEFT JOIN kappa_graph.relation_types AS m ON m.id = o.merged_into""",
    "instances": """
        SELECT c.said AS concept, place.said AS source, o.start_offset, o.end_offset, o.quote
          FROM kappa_graph.instances AS o
          JOIN labels AS c ON c.id = o.concept_id JOIN places AS place ON place.id = o.source_id""",
    "relations": """
        SELECT f.said AS start, t.said AS goal, y.name AS type, o.confidence, o.category,
               coalesce((SELECT p.said FROM places AS p WHERE 'source ' || p.key = o.provenance), o.provenance) AS by,
               ARRAY(SELECT p.said FROM kappa_graph.relation_sources AS r JOIN places AS p ON p.id = r.source_id
                      WHERE r.relation_id = o.id ORDER BY 1) AS sources
          FROM kappa_graph.relations AS o
          JOIN labels AS f ON f.id = o.from_id JOIN labels AS t ON t.id = o.to_id
          JOIN kappa_graph.relation_types AS y ON y.id = o.type_id""",
    "artifacts": """
        SELECT o.key, o.kind, o.name, n.name AS ontology, o.parameters, o.content, md5(o.bytes) AS bytes, o.media_type
          FROM kappa_graph.artifacts AS o LEFT JOIN kappa_graph.ontologies AS n ON n.id = o.ontology_id""",
    "proposals": """
        SELECT o.key, o.kind, n.name AS ontology, o.body, o.scores, o.state, o.decided_by
          FROM kappa_graph.proposals AS o LEFT JOIN kappa_graph.ontologies AS n ON n.id = o.ontology_id""",
    "chunk_plan": """
        SELECT n.name AS ontology, encode(d.content_hash, 'hex') AS hash, o.ordinal, o.start_offset, o.end_offset,
               o.words, o.state, o.extractor, o.concepts, o.instances, o.relations, o.matched, o.dropped, o.error
          FROM kappa_graph.chunk_plan AS o JOIN kappa_graph.documents AS d ON d.id = o.document_id
          JOIN kappa_graph.ontologies AS n ON n.id = d.ontology_id""",
    "seed_types": "SELECT o.model, o.name, o.embedding FROM kappa_graph.seed_types AS o",
    "type_measures": """
        SELECT y.name, o.stance, o.model, o.scores, o.best, o.ambiguous, o.epistemic, o.grounding, o.sampled, o.grounded
          FROM kappa_graph.type_measures AS o JOIN kappa_graph.relation_types AS y ON y.id = o.type_id""",
    # What it takes to undo something speaks of rows by their numbers.
    "type_merges": """
        SELECT o.id, m.name AS merged, s.name AS survivor, o.similarity, o.made_by, o.undone_by, o.moved, o.followers
          FROM kappa_graph.type_merges AS o JOIN kappa_graph.relation_types AS m ON m.id = o.merged
          JOIN kappa_graph.relation_types AS s ON s.id = o.survivor""",
    "merged_relations": "SELECT o.* FROM kappa_graph.merged_relations AS o",
    "undo_rows": """
        SELECT p.key AS proposal, o.id, o.what, o.content
          FROM kappa_graph.undo_rows AS o JOIN kappa_graph.proposals AS p ON p.id = o.proposal_id""",
}
HISTORY = ("proposals", "undo_rows", "seed_types", "type_measures", "type_merges", "merged_relations")
"""What comes back by `replace` only."""
TIMES = {"created_at", "updated_at", "made_at", "undone_at", "at", "began", "run"}
"""When, or by whose number, something happened."""
RECORDS = {"epochs", "changes", "type_merges", "merged_relations"}
"""Of what happened, not of what is."""
WITH_IDS = ("ontologies", "documents", "sources", "concepts")


def dump(url: str, *, ids: bool = True) -> Lines:
    """The lines of each table."""
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        lines: Lines = {}
        for table, query in QUERIES.items():
            keys = ids and table in WITH_IDS
            text = query.replace("SELECT", "SELECT o.key AS id,", 1) if keys else query
            with_names = f"""
                WITH places AS (
                    SELECT s.id, s.key,
                           concat_ws('/', n.name, encode(d.content_hash, 'hex'), s.start_offset, s.end_offset) AS said
                      FROM kappa_graph.sources AS s JOIN kappa_graph.documents AS d ON d.id = s.document_id
                      JOIN kappa_graph.ontologies AS n ON n.id = d.ontology_id
                ), labels AS (
                    SELECT c.id, n.name || '/' || c.label AS said
                      FROM kappa_graph.concepts AS c JOIN kappa_graph.ontologies AS n ON n.id = c.ontology_id
                )
                SELECT row_to_json(q)::text FROM ({text}) AS q"""
            lines[table] = sorted(row[0] for row in connection.execute(with_names.encode()))
        return lines


def canonical(connection: psycopg.Connection[Row], *, leave_out: frozenset[str] = frozenset()) -> str:
    names = connection.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'kappa_graph' ORDER BY tablename"
    ).fetchall()
    lines: list[str] = []
    for (name,) in names:
        if name in RECORDS | leave_out:
            continue
        query = sql.SQL("SELECT to_jsonb(t) FROM kappa_graph.{} AS t").format(sql.Identifier(name))
        rows = [{key: value for key, value in row[0].items() if key not in TIMES} for row in connection.execute(query)]
        lines += sorted(f"{name} {json.dumps(row, sort_keys=True)}" for row in rows)
    return "\n".join(lines)


def whole(url: str) -> None:
    """Every reference leads somewhere, every quote stands where it says: what constraints alone don't prove."""
    with psycopg.connect(url) as connection:
        assert connection.execute(
            "SELECT count(*) FROM kappa_graph.sources AS s JOIN kappa_graph.documents AS d ON d.id = s.document_id "
            "WHERE substr(d.text, s.start_offset + 1, s.end_offset - s.start_offset) <> s.text"
        ).fetchone() == (0,)
        assert connection.execute(
            "SELECT count(*) FROM kappa_graph.instances AS i JOIN kappa_graph.sources AS s ON s.id = i.source_id "
            "JOIN kappa_graph.documents AS d ON d.id = s.document_id "
            "WHERE substr(d.text, i.start_offset + 1, i.end_offset - i.start_offset) <> i.quote"
        ).fetchone() == (0,)
        assert connection.execute(
            "SELECT count(*) FROM kappa_graph.relations AS r WHERE NOT EXISTS "
            "(SELECT FROM kappa_graph.concepts AS c WHERE c.id = r.from_id) OR NOT EXISTS "
            "(SELECT FROM kappa_graph.concepts AS c WHERE c.id = r.to_id)"
        ).fetchone() == (0,)
