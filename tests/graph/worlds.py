"""Small graphs to ask, and large ones to ask quickly."""

import json
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

import psycopg
from psycopg import sql

from kappa.graph import Graph, NewConcept, NewRelation

Edge = tuple[str, str, str] | tuple[str, str, str, float]


def write(graph: Graph, edges: Iterable[Edge], ontology: str = "world") -> dict[str, UUID]:
    """Concepts and relations as `("a", "KNOWS", "b")`, with a confidence as a fourth; the ids by label."""
    edges = list(edges)
    labels = dict.fromkeys(label for edge in edges for label in (edge[0], edge[2]))
    ids = dict(graph.add_concepts(ontology, [NewConcept(label) for label in labels]).ids)
    graph.add_relations([NewRelation(ids[e[0]], ids[e[2]], e[1], e[3] if len(e) > 3 else 1.0) for e in edges])
    return ids


def fill(url: str, nodes: int, edges: int, *, hub: int = 0) -> None:
    """A random graph made by the server itself, with power-law ends; node 1 has `hub` relations more."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT setseed(0.5)")
        connection.execute(
            "INSERT INTO kappa_graph.ontologies (key, name) SELECT gen_random_uuid(), 'part ' || n "
            "FROM generate_series(1, 10) AS n"
        )
        connection.execute(
            "INSERT INTO kappa_graph.relation_types (name) SELECT 'TYPE_' || n FROM generate_series(1, 20) AS n"
        )
        connection.execute(
            "INSERT INTO kappa_graph.concepts (key, ontology_id, label) "
            "SELECT gen_random_uuid(), 1 + n %% 10, 'concept ' || n FROM generate_series(1, %s) AS n",
            [nodes],
        )
        connection.execute(
            "INSERT INTO kappa_graph.relations (from_id, to_id, type_id, confidence) "
            "SELECT 1 + floor(%(n)s * random() ^ 2)::bigint, 1 + floor(%(n)s * random() ^ 2)::bigint, "
            "       1 + floor(20 * random())::int, floor(101 * random())::int "
            "  FROM generate_series(1, %(m)s) ON CONFLICT DO NOTHING",
            {"n": nodes, "m": edges},
        )
        connection.execute(
            "INSERT INTO kappa_graph.relations (from_id, to_id, type_id) SELECT 1, 1 + n, 1 "
            "FROM generate_series(1, %s) AS n ON CONFLICT DO NOTHING",
            [hub],
        )
        connection.execute("VACUUM ANALYZE kappa_graph.relations, kappa_graph.concepts")


Vertex = tuple[str, Mapping[str, object]]
AgeEdge = tuple[int, str, int, Mapping[str, object]]


def write_age(
    connection: psycopg.Connection[tuple[object, ...]],
    name: str,
    vertices: Sequence[Vertex],
    edges: Sequence[AgeEdge],
    *,
    edge_labels: Sequence[str] = (),
) -> list[int]:
    """An AGE graph of vertices `("Label", properties)` and edges between their places; the graphids in that order.

    Labels are numbered as they come; `edge_labels` come first.
    """
    with connection.transaction():
        connection.execute("SET LOCAL search_path = ag_catalog, public")
        connection.execute("SELECT create_graph(%s)", [name])
        for label in dict.fromkeys(label for label, _ in vertices):
            connection.execute("SELECT create_vlabel(%s::cstring, %s::cstring)", [name, label])
        for label in dict.fromkeys([*edge_labels, *(edge[1] for edge in edges)]):
            connection.execute("SELECT create_elabel(%s::cstring, %s::cstring)", [name, label])
        nodes: list[int] = []
        for label, properties in vertices:
            row = connection.execute(
                sql.SQL("INSERT INTO {} (properties) VALUES (%s::agtype) RETURNING id::text").format(
                    sql.Identifier(name, label)
                ),
                [json.dumps(properties, ensure_ascii=False)],
            ).fetchone()
            assert row is not None
            nodes.append(int(str(row[0])))
        for head, label, tail, properties in edges:
            connection.execute(
                sql.SQL(
                    "INSERT INTO {} (start_id, end_id, properties) "
                    "VALUES (%s::text::graphid, %s::text::graphid, %s::agtype)"
                ).format(sql.Identifier(name, label)),
                [str(nodes[head]), str(nodes[tail]), json.dumps(properties, ensure_ascii=False)],
            )
    return nodes


def labels(answer: object) -> list[str]:
    return [item.concept.label for item in answer.items]  # type: ignore[attr-defined]
