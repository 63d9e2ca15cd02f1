"""The hop queries read nothing but their index, on a table that is large enough to tempt the planner."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import psycopg
import pytest

from kappa.graph.store import adjacency, clock, concepts, measures, relations, texts, vectors
from kappa.pg.queries import Query, Row
from tests.conftest import Server
from tests.graph.worlds import fill

Session = psycopg.Connection[Row]
NODES, EDGES = 20_000, 150_000


@pytest.fixture(scope="module")
def crowded(server: Server, graph_template: str) -> Iterator[str]:
    url = server.create(graph_template)
    fill(url, NODES, EDGES, hub=3_000)
    yield url
    server.drop(url)


@pytest.fixture(params=["auto", "force_generic_plan"])
def session(crowded: str, request: pytest.FixtureRequest) -> Iterator[Session]:
    with psycopg.connect(crowded, autocommit=True) as opened:
        opened.execute("SELECT set_config('plan_cache_mode', %s, false)", [request.param])
        yield opened


def explained(session: Session, query: Query, **params: Any) -> dict[str, Any]:
    """The plan, with what really happened."""
    session.execute(b"DEALLOCATE ALL")
    session.execute(f"PREPARE asked AS {query.numbered()}".encode())
    values = [params[name] for name in query.parameters]
    holes = ", ".join(["%s"] * len(values))
    # EXECUTE takes no parameters from outside; the values are put in here.
    told = psycopg.ClientCursor(session).execute(
        f"EXPLAIN (ANALYZE, FORMAT json) EXECUTE asked ({holes})".encode(), values
    )
    plan = told.fetchall()[0][0]
    plan = json.loads(plan) if isinstance(plan, str) else plan
    return plan[0]["Plan"]


def scans(session: Session, query: Query, **params: Any) -> dict[str, str]:
    """How each table was read: by which index, or `through`."""
    found: dict[str, str] = {}

    def walk(node: dict[str, Any]) -> None:
        if "Relation Name" in node and "Scan" in node["Node Type"] and node["Actual Loops"]:
            found[node["Relation Name"]] = node.get("Index Name") or _bitmap(node)
        for inner in node.get("Plans", ()):
            walk(inner)

    walk(explained(session, query, **params))
    return found


def read_by(session: Session, query: Query, **params: Any) -> set[str]:
    """The ways in which concepts were read, where a statement reads them more than once."""
    found: set[str] = set()

    def walk(node: dict[str, Any]) -> None:
        if node.get("Relation Name") == "concepts" and node["Actual Loops"] and not node.get("Plans"):
            found.add(node.get("Index Name", "through"))
        elif "Bitmap Index Scan" in node["Node Type"]:
            found.add(node["Index Name"])
        for inner in node.get("Plans", ()):
            walk(inner)

    walk(explained(session, query, **params))
    return found


def _bitmap(node: dict[str, Any]) -> str:
    inner = [one.get("Index Name", "") for one in node.get("Plans", ())]
    return inner[0] if inner and inner[0] else "through"


def numbers(first: int, count: int) -> str:
    return adjacency.int_array(np.arange(first, first + count))


FREE = {"types": None, "ontologies": None, "min_confidence": 0, "most": 250_000}


@pytest.mark.parametrize("count", [1, 100, 2_000])
@pytest.mark.parametrize("only", [{}, {"types": "{1,2,3}"}, {"min_confidence": 50}], ids=str)
def test_a_hop_reads_one_index(session: Session, count: int, only: dict[str, Any]) -> None:
    asked = {**FREE, **only, "nodes": numbers(5_000, count)}
    assert scans(session, adjacency.EXPAND_OUT, **asked) == {"relations": "relations_out"}
    assert scans(session, adjacency.EXPAND_IN, **asked) == {"relations": "relations_in"}


@pytest.mark.parametrize("count", [1, 100, 2_000])
def test_a_hop_with_ontologies_looks_up_what_it_found(session: Session, count: int) -> None:
    asked = {**FREE, "ontologies": "{1,2,3,4,5,6,7,8,9}", "nodes": numbers(5_000, count)}
    by_key = {"concepts": "concepts_pkey"}
    assert scans(session, adjacency.EXPAND_OUT, **asked) == {"relations": "relations_out", **by_key}
    assert scans(session, adjacency.EXPAND_IN, **asked) == {"relations": "relations_in", **by_key}
    asked["exempt"] = "{}"
    assert scans(session, adjacency.EDGES_OUT, **asked) == {"relations": "relations_out", **by_key}
    assert scans(session, adjacency.EDGES_IN, **asked) == {"relations": "relations_in", **by_key}


def test_edges_and_degrees_are_read_by_index(session: Session) -> None:
    asked = {**FREE, "nodes": numbers(5_000, 100), "exempt": "{}"}
    assert scans(session, adjacency.EDGES_OUT, **asked) == {"relations": "relations_out"}
    assert scans(session, adjacency.EDGES_IN, **asked) == {"relations": "relations_in"}
    assert scans(session, adjacency.DEGREES, nodes=numbers(5_000, 100))["relations"] in (
        "relations_out",
        "relations_in",
    )


def test_rows_and_changes_are_read_by_index(session: Session) -> None:
    assert scans(session, concepts.ROWS, nodes=numbers(50, 100))["concepts"] == "concepts_pkey"
    keys = {"from_ids": numbers(1, 50), "to_ids": numbers(2, 50), "types": numbers(1, 50)}
    assert scans(session, adjacency.RELATIONS_NOW, **keys)["relations"] in ("relations_out", "relations_in")
    pairs = {"from_ids": numbers(1, 50), "to_ids": numbers(2, 50), "types": None, "min_confidence": 0}
    assert scans(session, relations.BETWEEN, **pairs)["relations"] in ("relations_out", "relations_in")


def test_measures_read_what_they_count_by_index(session: Session) -> None:
    nodes = list(range(1, 101))
    for query, params in (
        (measures.COUNTS, {"nodes": nodes}),
        (measures.INCOMING, {"nodes": nodes, "types": [3, 5]}),
        (measures.STRONGEST, {"node": 1, "types": [3, 5], "stances": [1.0, -0.5], "most": 5}),
    ):
        assert scans(session, query, **params)["relations"] in ("relations_in", "relations_out"), query.name


def test_a_refresh_reads_the_new_part_of_the_log_alone(server: Server, graph_template: str) -> None:
    url = server.create(graph_template)
    with psycopg.connect(url, autocommit=True) as session:
        session.execute("ALTER TABLE kappa_graph.changes DISABLE TRIGGER take_epoch")
        session.execute(
            "INSERT INTO kappa_graph.epochs (epoch, xid) SELECT n, n::text::xid8 FROM generate_series(1, 20000) AS n"
        )
        session.execute(
            "INSERT INTO kappa_graph.changes (xid, kind) SELECT n::text::xid8, 'evidence' "
            "FROM generate_series(1, 20000) AS n"
        )
        session.execute("VACUUM ANALYZE kappa_graph.epochs, kappa_graph.changes")
        for mode in ("auto", "force_generic_plan"):
            session.execute("SELECT set_config('plan_cache_mode', %s, false)", [mode])
            assert scans(session, clock.CHANGES, since=19_990) == {
                "epochs": "epochs_pkey",
                "changes": "changes_transaction",
            }
    server.drop(url)


@pytest.fixture(scope="module")
def worded(server: Server, graph_template: str) -> Iterator[str]:
    """Concepts that have words and embeddings of their own."""
    url = server.create(graph_template)
    fill(url, NODES, 1)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE kappa_graph.concepts SET embedding_model = 'm', embedding = ARRAY[id, 1]::real[]")
        connection.execute("VACUUM (FULL, ANALYZE) kappa_graph.concepts")
    yield url
    server.drop(url)


@pytest.mark.parametrize("mode", ["auto", "force_generic_plan"])
def test_a_search_reads_no_table_through(worded: str, mode: str) -> None:
    asked = {"said": "concept 777", "every": "'777':*", "some": "'777'", "last": "\U0010ffff", "ontologies": None,
             "never": 0, "most": 20}  # fmt: skip
    with psycopg.connect(worded, autocommit=True, prepare_threshold=None) as session:
        session.execute("SELECT set_config('plan_cache_mode', %s, false)", [mode])
        for query, index in (
            (texts.NAMED, "concepts_label"),
            (texts.EVERY_WORD, "concepts_words"),
            (texts.SOME_WORD, "concepts_words"),
        ):
            assert read_by(session, query, **{name: asked[name] for name in query.parameters}) <= {
                index,
                "concepts_pkey",
            }
        kind = {"model": "m", "dimension": 2}
        assert scans(session, vectors.DIMENSION, model="m") == {"concepts": "concepts_embedded"}
        some = {**kind, "nodes": numbers(50, 100)}
        part = {**kind, "low": 5_000, "high": 6_000, "ontologies": None}
        for query, params in ((vectors.SOME, some), (vectors.HAVING, some), (vectors.BLOCK, part)):
            # Here all concepts are embedded by one model, so that either index will do.
            assert scans(session, query, **params)["concepts"] in ("concepts_pkey", "concepts_embedded"), query.name
        keys = {"keys": "{}", "label": "concept 777", "ontology": None}
        assert read_by(session, concepts.LABELLED, **keys) == {"concepts_key_key", "concepts_label"}
