"""Merges of relation types: every edge is kept, none is left behind, and undoing restores the graph to the letter."""

import random
import threading
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kappa.graph import BadWrite, Chunk, Graph, NewConcept, NewDocument, NewLink, NewRelation, UnknownRelationType
from kappa.pg.queries import Row
from tests.graph.dump import canonical
from tests.graph.worlds import write
from tests.ground import eventually

Session = psycopg.Connection[Row]
Edges = dict[tuple[str, str, str], tuple[int, frozenset[int]]]

TYPES = ("USES", "EMPLOYS", "UTILISES")


def edges(connection: Session) -> Edges:
    """Every relation: its confidence, and the sources that say so."""
    rows = connection.execute(
        "SELECT f.label, y.name, t.label, r.confidence, ARRAY(SELECT source_id FROM kappa_graph.relation_sources"
        " WHERE relation_id = r.id) FROM kappa_graph.relations AS r JOIN kappa_graph.concepts AS f ON f.id = r.from_id"
        " JOIN kappa_graph.concepts AS t ON t.id = r.to_id JOIN kappa_graph.relation_types AS y ON y.id = r.type_id"
    )
    return {(head, kind, tail): (sure, frozenset(sources)) for head, kind, tail, sure, sources in rows}


def tell(graph: Graph, said: list[tuple[int, str, int, int, int]]) -> None:
    """Relations between numbered concepts, each as a source says it: from, type, to, confidence, source."""
    document, _ = graph.add_document("w", NewDocument("d", "x" * 100))
    for source in sorted({one[4] for one in said}):
        links = [NewLink(f"c{a}", f"c{b}", kind, sure / 100) for a, kind, b, sure, at in said if at == source]
        named = {end for link in links for end in (link.from_label, link.to_label)}
        chunk = Chunk(
            document, source, source, source + 5, [NewConcept(str(n)) for n in sorted(map(str, named))], (), links
        )
        graph.write_chunk(chunk)


def test_edges_of_both_types_become_one(graph: Graph, connection: Session) -> None:
    tell(graph, [(1, "USES", 2, 50, 0), (1, "EMPLOYS", 2, 80, 1), (1, "EMPLOYS", 3, 70, 1), (2, "USES", 3, 60, 0)])
    first, second = (row[0] for row in connection.execute("SELECT id FROM kappa_graph.sources ORDER BY ordinal"))
    merge = graph.merge_types("EMPLOYS", "USES", by="me", similarity=0.9)
    assert (merge.merged, merge.survivor, merge.relations, merge.united, merge.made_by) == (
        "EMPLOYS",
        "USES",
        2,
        1,
        "me",
    )
    assert edges(connection) == {
        ("c1", "USES", "c2"): (80, frozenset({first, second})),
        ("c1", "USES", "c3"): (70, frozenset({second})),
        ("c2", "USES", "c3"): (60, frozenset({first})),
    }
    # The old name still leads there, for questions and for writers.
    ids = {one.label: one.id for n in (1, 2, 3) for one in graph.concept_by_label(f"c{n}")}
    assert graph.neighbors([ids["c1"]], relation_types=["EMPLOYS"], min_epoch=graph.epoch()).found == 2
    graph.add_relations([NewRelation(ids["c3"], ids["c1"], "EMPLOYS")])
    assert ("c3", "USES", "c1") in edges(connection)
    kinds = {one.name: (one.active, one.merged_into) for one in graph.relation_types()}
    assert kinds == {"USES": (True, None), "EMPLOYS": (False, "USES")}


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    said=st.lists(
        st.tuples(
            st.integers(0, 3), st.sampled_from(TYPES), st.integers(0, 3), st.integers(0, 100), st.integers(0, 3)
        ),
        min_size=1, max_size=20,
    ),
    order=st.permutations(TYPES),
)  # fmt: skip
def test_merging_keeps_every_edge_and_undoing_restores_the_graph(
    graph: Graph, connection: Session, said: list[tuple[int, str, int, int, int]], order: list[str]
) -> None:
    connection.execute("TRUNCATE kappa_graph.ontologies, kappa_graph.relation_types RESTART IDENTITY CASCADE")
    tell(graph, [*said, *((9, name, 8, 50, 0) for name in TYPES)])
    states = [canonical(connection)]
    before = edges(connection)
    merges = []
    for merged, survivor in ((order[0], order[1]), (order[1], order[2])):
        merges.append(graph.merge_types(merged, survivor))
        states.append(canonical(connection))
    after = edges(connection)
    assert {(head, tail) for head, _, tail in after} == {(head, tail) for head, _, tail in before}
    for (head, _, tail), (sure, sources) in after.items():
        same = [value for (h, _, t), value in before.items() if (h, t) == (head, tail)]
        assert sure == max(value[0] for value in same)
        assert sources == frozenset().union(*(value[1] for value in same))
    with pytest.raises(BadWrite, match=f"merge {merges[1].id} came after"):
        graph.undo_merge(merges[0].id)
    assert canonical(connection) == states[2]
    for merge, state in ((merges[1], states[1]), (merges[0], states[0])):
        assert graph.undo_merge(merge.id, by="me").undone_by == "me"
        assert canonical(connection) == state
    with pytest.raises(BadWrite, match="undone already"):
        graph.undo_merge(merges[0].id)


def test_what_was_deleted_or_said_after_a_merge_is_not_undone(graph: Graph, connection: Session) -> None:
    tell(graph, [(1, "USES", 2, 50, 0), (1, "EMPLOYS", 2, 80, 1), (1, "EMPLOYS", 3, 70, 1), (4, "EMPLOYS", 5, 70, 1),
                 (4, "USES", 5, 20, 1)])  # fmt: skip
    merge = graph.merge_types("EMPLOYS", "USES")
    ids = {one.label: one.id for n in range(1, 6) for one in graph.concept_by_label(f"c{n}")}
    graph.delete_relations([(ids["c1"], ids["c2"], "USES")])
    graph.add_relations([NewRelation(ids["c4"], ids["c5"], "USES", 0.9), NewRelation(ids["c5"], ids["c1"], "EMPLOYS")])
    connection.execute("DELETE FROM kappa_graph.sources WHERE ordinal = 1")
    graph.undo_merge(merge.id)
    assert {key: sure for key, (sure, _) in edges(connection).items()} == {
        ("c1", "EMPLOYS", "c3"): 70, ("c4", "EMPLOYS", "c5"): 70, ("c4", "USES", "c5"): 90, ("c5", "USES", "c1"): 100,
    }  # fmt: skip


def test_what_can_not_be_merged_is_refused(graph: Graph, connection: Session) -> None:
    write(graph, [("a", "USES", "b"), ("a", "EMPLOYS", "b"), ("a", "EATS", "b")])
    graph.merge_types("EMPLOYS", "USES")
    before = canonical(connection)
    for merged, survivor, why in (
        ("USES", "USES", "itself"),
        ("EMPLOYS", "EATS", "already"),
        ("EATS", "EMPLOYS", "already"),
    ):
        with pytest.raises(BadWrite, match=why):
            graph.merge_types(merged, survivor)
    for merged, survivor in (("NOTHING", "USES"), ("USES", "NOTHING")):
        with pytest.raises(UnknownRelationType, match="no relation type 'NOTHING'"):
            graph.merge_types(merged, survivor)
    with pytest.raises(UnknownRelationType, match="no merge 99"):
        graph.undo_merge(99)
    connection.execute("UPDATE kappa_graph.relation_types SET active = false WHERE name = 'EATS'")
    with pytest.raises(BadWrite, match="not active"):
        graph.merge_types("USES", "EATS")
    connection.execute("UPDATE kappa_graph.relation_types SET active = true WHERE name = 'EATS'")
    assert canonical(connection) == before


def _waits(connection: Session) -> bool:
    waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    return connection.execute(waiting).fetchone() is not None


@pytest.mark.parametrize("name", ["EMPLOYS", "UTILISES"])
def test_a_writer_who_waits_for_a_merge_writes_to_the_survivor(graph: Graph, connection: Session, name: str) -> None:
    """UTILISES leads to EMPLOYS, which is merged while the writer waits."""
    ids = write(graph, [("a", "USES", "b"), ("a", "EMPLOYS", "b"), ("a", "UTILISES", "b")])
    graph.merge_types("UTILISES", "EMPLOYS")
    with graph.transaction() as merging:
        graph.merge_types("EMPLOYS", "USES", connection=merging)
        writer = threading.Thread(target=graph.add_relations, args=[[NewRelation(ids["b"], ids["a"], name)]])
        writer.start()
        eventually(lambda: _waits(connection), what="the writer waits")
    writer.join()
    assert set(edges(connection)) == {("a", "USES", "b"), ("b", "USES", "a")}


def test_a_merge_waits_for_writers_and_takes_what_they_wrote(graph: Graph, connection: Session) -> None:
    ids = write(graph, [("a", "USES", "b"), ("a", "EMPLOYS", "b")])
    with graph.transaction() as writing:
        graph.add_relations([NewRelation(ids["b"], ids["a"], "EMPLOYS")], connection=writing)
        merger = threading.Thread(target=graph.merge_types, args=["EMPLOYS", "USES"])
        merger.start()
        eventually(lambda: _waits(connection), what="the merge waits")
    merger.join()
    assert set(edges(connection)) == {("a", "USES", "b"), ("b", "USES", "a")}


def test_merges_undoings_and_writers_at_once_lose_nothing(graph: Graph, connection: Session) -> None:
    rng = random.Random(5)
    ids = list(write(graph, [(f"c{n}", name, f"c{(n + 1) % 10}") for n in range(10) for name in TYPES]).values())
    told: list[tuple[UUID, UUID]] = []
    stop = threading.Event()
    failures: list[BaseException] = []

    def writes(seed: int) -> None:
        own = random.Random(seed)
        try:
            while not stop.is_set():
                pair = own.sample(ids, 2)
                graph.add_relations([NewRelation(pair[0], pair[1], own.choice(TYPES), 0.5)])
                told.append((pair[0], pair[1]))
        except BaseException as error:
            failures.append(error)

    writers = [threading.Thread(target=writes, args=[seed]) for seed in (1, 2)]
    for writer in writers:
        writer.start()
    for _ in range(15):
        merged, survivor = rng.sample(TYPES, 2)
        number = graph.merge_types(merged, survivor).id
        assert not any(kind == merged for _, kind, _ in edges(connection))
        graph.undo_merge(number)
    stop.set()
    for writer in writers:
        writer.join()
    assert not failures
    assert told
    labels = {one.id: one.label for one in (graph.concept(key) for key in ids) if one is not None}
    there = {(head, tail) for head, _, tail in edges(connection)}
    assert {(labels[a], labels[b]) for a, b in told} <= there
