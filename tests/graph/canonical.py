"""The whole graph as text, for comparing two states of it: every table, every row, but for when things happened."""

import json

import psycopg
from psycopg import sql

from kappa.pg.queries import Row

TIMES = {"created_at", "updated_at", "made_at", "undone_at", "at", "began"}
RECORDS = {"epochs", "changes", "type_merges", "merged_relations"}
"""Of what happened, not of what is."""


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
