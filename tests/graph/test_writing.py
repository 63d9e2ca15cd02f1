"""Writes: idempotent, whole, and without a circle of waiting."""

import random
import threading
from itertools import pairwise
from uuid import UUID

import psycopg
import pytest

from kappa.graph import (
    BadWrite,
    Chunk,
    Graph,
    NewConcept,
    NewDocument,
    NewInstance,
    NewLink,
    NewRelation,
    Where,
)
from kappa.graph.identity import concept_key, content_hash, document_key, normal, ontology_key
from kappa.graph.store import concepts, ontologies
from kappa.pg.queries import Row
from tests.graph.worlds import labels, write
from tests.ground import eventually

Session = psycopg.Connection[Row]
TEXT = "Otters live in rivers.\nÄhnlich ☃: the “salmon” lives in both."
NASTY = ["it's", '"quoted"', "$$; DROP TABLE kappa_graph.concepts; $$", "back\\slash\\", "☃ Ünïcode", "nul\0byte",
         "%(name)s %s", "{a,b}", "MATCH (n) DETACH DELETE n", "\ud800half"]  # fmt: skip


def counts(session: Session) -> tuple[int, ...]:
    tables = (
        "documents",
        "sources",
        "concepts",
        "instances",
        "relations",
        "relation_types",
        "relation_sources",
        "changes",
    )
    return tuple(
        session.execute(f"SELECT count(*) FROM kappa_graph.{table}".encode()).fetchall()[0][0] for table in tables
    )


def waiting_inserts(session: Session) -> int:
    return session.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database() "
        "AND query LIKE '%INSERT INTO kappa_graph.concepts%'"
    ).fetchall()[0][0]


def chunk(document: UUID) -> Chunk:
    return Chunk(
        document, 0, 0, len(TEXT),
        [NewConcept("Otter", "an animal", ["otters"]), NewConcept("River"), NewConcept("otter", "", ["lutra"])],
        [NewInstance("OTTER", "Otters", 0), NewInstance("river", "rivers", 15)],
        [NewLink("Otter", "River", "LIVES_IN", 0.9), NewLink("Otter", "River", "LIVES_IN", 0.4)],
    )  # fmt: skip


def test_a_chunk_again_changes_nothing(graph: Graph, connection: Session) -> None:
    document, new = graph.add_document("zoology", NewDocument("a.txt", TEXT))
    assert new
    assert graph.add_document("zoology", NewDocument("b.txt", TEXT)) == (document, False)
    first = graph.write_chunk(chunk(document))
    assert (first.concepts, first.instances, first.relations) == (2, 2, 1)
    before = counts(connection)
    again = graph.write_chunk(chunk(document))
    assert (again.concepts, again.instances, again.relations) == (0, 0, 0)
    assert again.ids == first.ids
    assert again.epoch == first.epoch
    assert counts(connection) == before
    otter = graph.concept(first.ids["Otter"])
    assert otter is not None
    assert (otter.label, otter.description, otter.search_terms) == ("Otter", "an animal", ("lutra", "otters"))
    quotes = graph.evidence(otter.id)
    assert [(one.quote, TEXT[one.start : one.end]) for one in quotes] == [("Otters", "Otters")]


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        ({"end": len(TEXT) + 1}, "are not in document"),
        ({"instances": [NewInstance("Otter", "Otter!", 0)]}, "does not stand at"),
        ({"instances": [NewInstance("Badger", "Otters", 0)]}, "none of its concepts"),
        ({"relations": [NewLink("Otter", "Badger", "IS")]}, "none of its concepts"),
        ({"relations": [NewLink("Otter", "River", "IS", 1.5)]}, "confidence"),
        ({"relations": [NewLink("Otter", UUID(int=5), "IS")]}, "not in the graph"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_chunk_that_contradicts_itself_leaves_nothing_behind(
    graph: Graph, connection: Session, broken: dict[str, object], complaint: str
) -> None:
    document, _ = graph.add_document("zoology", NewDocument("a.txt", TEXT))
    before = counts(connection)
    good = chunk(document)
    given = {name: getattr(good, name) for name in Chunk.__slots__} | broken
    with pytest.raises(BadWrite, match=complaint):
        graph.write_chunk(Chunk(**given))
    assert counts(connection) == before


def test_what_can_not_be_kept_is_refused(graph: Graph) -> None:
    ids = write(graph, [("a", "IS", "b")])
    with pytest.raises(BadWrite, match="needs a label"):
        graph.add_concepts("world", [NewConcept(" \t")])
    with pytest.raises(BadWrite, match="needs a label"):
        graph.load_concepts("world", [NewConcept("")])
    with pytest.raises(BadWrite, match="needs a type"):
        graph.add_relations([NewRelation(ids["a"], ids["b"], " ")])
    with pytest.raises(BadWrite, match="a NUL"):
        graph.add_document("world", NewDocument("n.txt", "nul\0byte"))


def test_ids_follow_from_content_and_ontology(graph: Graph) -> None:
    one, two = graph.ontology("one"), graph.ontology("two")
    assert one.id == ontology_key("one") != two.id
    ids = graph.add_concepts("one", [NewConcept("  Éclair\tau  Chocolat ")]).ids
    assert list(ids.values()) == [concept_key(one.id, "éclair au chocolat")]
    assert concept_key(one.id, "éclair au chocolat") != concept_key(two.id, "éclair au chocolat")
    assert normal("Ｅ́ＣＬＡＩＲ") == normal("éclair")
    # A renamed ontology keeps its key, and a new one of the old name has another.
    assert graph.rename_ontology("one", "first")
    assert graph.add_concepts("first", [NewConcept("Éclair au chocolat")]).concepts == 0
    again = graph.ontology("one")
    assert again.id not in (one.id, two.id)
    assert document_key(one.id, content_hash(b"x")) != document_key(two.id, content_hash(b"x"))


def test_two_who_write_one_concept_at_once_make_one(graph: Graph, url: str, connection: Session) -> None:
    world = graph.ontology("world")
    with psycopg.connect(url) as first:
        concepts.upsert(first, world.number, world.id, [NewConcept("shared", "from the first")])
        results: list[int] = []
        rival = threading.Thread(
            target=lambda: results.append(graph.add_concepts("world", [NewConcept("Shared")]).concepts)
        )
        rival.start()
        eventually(
            lambda: waiting_inserts(connection) == 1,
            what="the second waits for the first",
        )
        first.commit()
        rival.join()
    assert results == [0]
    assert connection.execute("SELECT label, description FROM kappa_graph.concepts").fetchall() == [
        ("shared", "from the first")
    ]


def test_unsorted_batches_that_meet_never_wait_in_a_circle(graph: Graph) -> None:
    names = [f"concept {n}" for n in range(60)]
    world = graph.ontology("world")
    ids = [concept_key(world.id, name) for name in names]
    gate = threading.Barrier(6)
    troubles: list[BaseException] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        try:
            gate.wait()
            for turn in range(8):
                order = chance.sample(range(60), 60)
                graph.add_concepts("world", [NewConcept(names[n], "", [f"{seed} {turn} {n}"]) for n in order])
                pairs = [(ids[a], ids[b]) for a, b in pairwise(order) if abs(a - b) < 20]
                graph.add_relations([NewRelation(a, b, f"TYPE_{turn % 3}", chance.random()) for a, b in pairs])
                graph.delete_relations([(a, b, f"TYPE_{turn % 3}") for a, b in pairs[::3]])
        except BaseException as error:
            troubles.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert troubles == []


def test_locks_are_taken_in_the_order_of_the_keys(graph: Graph, url: str, connection: Session) -> None:
    """The circle by force: the rival holds the middle key, and waits for a batch that came in the other order."""
    world = graph.ontology("world")
    names = sorted((f"n{n}" for n in range(3)), key=lambda name: concept_key(world.id, name))
    graph.add_concepts("world", [NewConcept(name) for name in names])
    with psycopg.connect(url) as rival:
        concepts.upsert(rival, world.number, world.id, [NewConcept(names[0], "", ["held"])])
        done = threading.Event()

        def write_backwards() -> None:
            graph.add_concepts("world", [NewConcept(name, "", ["mine"]) for name in reversed(names)])
            done.set()

        thread = threading.Thread(target=write_backwards)
        thread.start()
        eventually(
            lambda: waiting_inserts(connection) == 1,
            what="the batch waits at its first key",
        )
        # It waits before it has locked anything, so the rival goes on unhindered.
        rival.execute("SET lock_timeout = '5s'")
        concepts.upsert(rival, world.number, world.id, [NewConcept(name, "", ["held"]) for name in names[1:]])
        rival.commit()
        thread.join()
        assert done.is_set()


def test_a_bulk_load_is_the_same_as_many_writes(graph: Graph, connection: Session) -> None:
    names = [f"n{n}" for n in range(500)]
    assert graph.load_concepts("bulk", (NewConcept(name, "", [name]) for name in names)) == 500
    assert graph.load_concepts("bulk", [NewConcept("N1", "late", ["other"])]) == 1
    assert graph.load_concepts("bulk", (NewConcept(name) for name in names)) == 0
    world = graph.ontology("bulk")
    ids = [concept_key(world.id, name) for name in names]
    edges = [NewRelation(ids[n], ids[(n * 7 + 1) % 500], "NEXT", 0.5) for n in range(500)]
    assert graph.load_relations(edges) == 500
    assert graph.load_relations(edges) == 0
    assert graph.load_relations([NewRelation(ids[0], ids[1], "NEXT", 0.9)]) == 1
    with pytest.raises(BadWrite, match="not in the graph"):
        graph.load_relations([NewRelation(ids[0], UUID(int=1), "NEXT")])
    assert connection.execute("SELECT count(*) FROM kappa_graph.incoming_relations").fetchall() == [(0,)]
    assert labels(graph.neighbors([ids[0]], direction="out", where=Where(min_confidence=0.9))) == ["n1"]


@pytest.mark.parametrize("way", ["graph", "sql_graph"])
def test_text_of_any_kind_is_data(way: str, request: pytest.FixtureRequest, connection: Session) -> None:
    graph: Graph = request.getfixturevalue(way)
    for nasty in NASTY:
        ids = graph.add_concepts(nasty, [NewConcept(nasty, nasty, [nasty, "x"]), NewConcept(nasty + " too")]).ids
        graph.add_relations([NewRelation(ids[nasty], ids[nasty + " too"], nasty, 0.5, nasty, nasty)])
    words = {one.name: one for one in graph.relation_types()}
    assert len(words) == len(NASTY)
    for one in words.values():
        found = connection.execute(
            "SELECT c.key FROM kappa_graph.concepts AS c JOIN kappa_graph.relations AS r ON r.from_id = c.id "
            "WHERE r.type_id = %s", [one.number]
        ).fetchall()  # fmt: skip
        where = Where(ontologies=[one.name], categories=[one.name])
        answer = graph.neighbors([found[0][0]], 3, relation_types=[one.name], where=where, min_epoch=graph.epoch())
        assert len(answer.items) == 1, one
    document, _ = graph.add_document("doc", NewDocument("$$ ' \\", "quote ' $$ \\ here"))
    written = graph.write_chunk(Chunk(document, 0, 0, 17, [NewConcept("q")], [NewInstance("q", "' $$ \\", 6)]))
    assert graph.evidence(written.ids["q"])[0].quote == "' $$ \\"


def test_a_deleted_document_takes_its_evidence_and_leaves_concepts(graph: Graph, connection: Session) -> None:
    document, _ = graph.add_document("zoology", NewDocument("a.txt", TEXT))
    ids = graph.write_chunk(chunk(document)).ids
    assert graph.delete_document(document)
    assert not graph.delete_document(document)
    assert graph.evidence(ids["Otter"]) == []
    assert labels(graph.neighbors([ids["Otter"]])) == ["River"]
    assert graph.delete_ontology("zoology")
    assert graph.concept(ids["Otter"]) is None
    assert ontologies.find(connection, "zoology") is None


def test_deleted_concepts_and_relations_are_gone_from_answers(graph: Graph) -> None:
    ids = write(graph, [("a", "IS", "b"), ("b", "IS", "c"), ("a", "WAS", "b")])
    assert graph.delete_relations([(ids["a"], ids["b"], "IS"), (ids["a"], ids["c"], "IS")]).relations == 1
    answer = graph.neighbors([ids["a"]], 2, min_epoch=graph.epoch())
    assert labels(answer) == ["b", "c"]
    deleted = graph.delete_concepts([ids["b"], UUID(int=3)])
    assert deleted.concepts == 1
    assert labels(graph.neighbors([ids["a"]], 2, min_epoch=deleted.epoch)) == []
