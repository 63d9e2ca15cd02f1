"""An Apache AGE graph is asked like Kappa's own, and only asked."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import UUID, uuid4

import numpy as np
import psycopg
import pytest
from psycopg import Connection

from benchmarks.graph_parts.age import fill_age
from kappa.graph import (
    AgeBackend,
    AgeProperties,
    BadQuestion,
    Budget,
    Chunk,
    ForeignGraph,
    Graph,
    GraphConfig,
    GraphFailed,
    NewConcept,
    NewDocument,
    QuestionStopped,
    UnknownConcept,
    UnknownOntology,
    UnknownRelationType,
    Where,
)
from kappa.graph.query import age
from kappa.pg import queries
from kappa.pg.queries import Row
from tests.conftest import Server
from tests.graph.conftest import install_age
from tests.graph.worlds import labels, write_age

Session = psycopg.Connection[Row]

OTTER, RIVER = UUID("00000000-0000-4000-8000-00000000000a"), UUID("00000000-0000-4000-8000-00000000000b")


@pytest.fixture
def session(age_url: str) -> Iterator[Session]:
    with psycopg.connect(age_url, autocommit=True) as opened:
        yield opened


@pytest.fixture
def opened() -> Iterator[list[Graph]]:
    graphs: list[Graph] = []
    yield graphs
    for graph in graphs:
        graph.close()


def ask(opened: list[Graph], url: str, backend: AgeBackend, **config: object) -> Graph:
    graph = Graph(url, GraphConfig(**config), backend=backend, budget=Budget())  # type: ignore[arg-type]
    opened.append(graph.open())
    return graph


def cypher(session: Session, graph: str, query: str) -> list[Row]:
    """A query as users of AGE write it."""
    with session.transaction():
        session.execute("SET LOCAL search_path = ag_catalog, public")
        return session.execute(f"SELECT * FROM cypher('{graph}', $$ {query} $$) AS (found agtype)".encode()).fetchall()


@pytest.fixture
def zoo(session: Session, age_url: str, opened: list[Graph]) -> Graph:
    """Made with Cypher alone, as somebody else would."""
    with session.transaction():
        session.execute("SET LOCAL search_path = ag_catalog, public")
        session.execute("SELECT create_graph('zoo')")
    cypher(
        session,
        "zoo",
        f"""CREATE (o:Animal {{id: '{OTTER}', label: 'Otter', description: 'swims', ontology: 'wild',
                              search_terms: ['lutra', 'otters'], embedding: [1, 0.5]}}),
                   (r:Place {{id: '{RIVER}', label: 'River', ontology: 'wild', embedding: [0.5, 1.0]}}),
                   (s:Place {{label: 'Sea'}}), (x:Animal),
                   (o)-[:LIVES_IN {{confidence: 0.9, category: 'home'}}]->(r), (r)-[:FLOWS_TO]->(s),
                   (x)-[:LIVES_IN {{confidence: 'hardly'}}]->(s), (x)-[:EATS {{confidence: 0.2}}]->(o)""",
    )
    return ask(opened, age_url, AgeBackend("zoo"))


def test_a_graph_made_with_cypher_is_asked_like_any_other(zoo: Graph) -> None:
    answer = zoo.neighbors([OTTER], 3)
    assert {item.concept.label: item.hop for item in answer.items} == {"River": 1, "Animal 2": 1, "Sea": 2}
    assert (answer.complete, answer.served_by, answer.as_of_epoch, answer.found) == (True, "sql", 0, 3)
    assert labels(zoo.neighbors([OTTER], 3, "out")) == ["River", "Sea"]
    assert labels(zoo.neighbors([OTTER], 3, relation_types=["LIVES_IN", "FLOWS_TO"])) == ["Animal 2", "River", "Sea"]
    sea = zoo.neighbors([RIVER], direction="out").items[0].concept
    way = zoo.paths(OTTER, sea.id, direction="out").items[0]
    assert [concept.label for concept in way.concepts] == ["Otter", "River", "Sea"]
    assert [(r.type, r.confidence, r.category) for (r,) in way.relations] == [
        ("LIVES_IN", 0.9, "home"),
        ("FLOWS_TO", 1.0, ""),
    ]


def test_a_concept_is_what_its_properties_say(zoo: Graph) -> None:
    otter = zoo.concept(OTTER)
    assert otter is not None
    assert (otter.id, otter.label, otter.description, otter.ontology) == (OTTER, "Otter", "swims", "wild")
    assert otter.search_terms == ("lutra", "otters")
    assert zoo.concept(uuid4()) is None


def test_a_vertex_without_an_id_has_one_made_of_its_graphid(zoo: Graph) -> None:
    sea = zoo.neighbors([RIVER], direction="out").items[0].concept
    assert sea.label == "Sea"
    assert zoo.concept(sea.id) == sea
    assert labels(zoo.neighbors([sea.id], direction="out")) == []
    otter = zoo.concept(OTTER)
    assert otter is not None
    # Who has an id of its own is known by that alone.
    with pytest.raises(UnknownConcept):
        zoo.neighbors([AgeBackend("zoo")._id(otter.node, None)])
    with pytest.raises(UnknownConcept):
        zoo.neighbors([AgeBackend("another")._id(sea.node, None)])


def test_a_confidence_that_is_no_number_is_none(zoo: Graph) -> None:
    assert labels(zoo.neighbors([OTTER], 3, where=Where(min_confidence=0.5))) == ["Animal 2", "River", "Sea"]
    assert labels(zoo.neighbors([OTTER], 1, where=Where(min_confidence=0.2))) == ["Animal 2", "River"]
    assert labels(zoo.neighbors([OTTER], 1, where=Where(min_confidence=0.21))) == ["River"]


def test_ontologies_are_a_property(zoo: Graph) -> None:
    assert labels(zoo.neighbors([OTTER], 3, where=Where(ontologies=["wild"]))) == ["River"]
    with pytest.raises(UnknownOntology, match="tame"):
        zoo.neighbors([OTTER], 3, where=Where(ontologies=["wild", "tame"]))


def test_embeddings_are_a_property(zoo: Graph) -> None:
    found = zoo.diversity(RIVER, 2)
    assert (found.concepts, found.embedded, found.score) == (3, 1, None)
    assert zoo.diversity(zoo.neighbors([RIVER], direction="out").items[0].concept.id, 2).embedded == 2


def test_properties_may_have_other_names(session: Session, age_url: str, opened: list[Graph]) -> None:
    nodes = write_age(
        session,
        "named",
        [("N", {"concept_id": str(OTTER), "name": "Otter"}), ("N", {"concept_id": str(RIVER), "name": "River"})],
        [(0, "IN", 1, {"weight": 0.4})],
    )
    names = AgeProperties(id="concept_id", label="name", confidence="weight")
    graph = ask(opened, age_url, AgeBackend("named", names))
    assert labels(graph.neighbors([OTTER])) == ["River"]
    assert labels(graph.neighbors([nodes[0]])) == ["River"]
    assert labels(graph.neighbors([OTTER], where=Where(min_confidence=0.5))) == []


def test_relation_types_are_the_edge_labels(zoo: Graph) -> None:
    assert {"LIVES_IN", "FLOWS_TO", "EATS"} <= {one.name for one in zoo.relation_types()}
    with pytest.raises(UnknownRelationType, match="LIVES_ON"):
        zoo.neighbors([OTTER], relation_types=["LIVES_ON"])


def test_what_was_just_written_is_there(zoo: Graph, session: Session) -> None:
    cypher(session, "zoo", "MATCH (a {label: 'Otter'}) CREATE (a)-[:SEES]->(:Bird {label: 'Gull'})")
    assert "Gull" in labels(zoo.neighbors([OTTER]))
    assert labels(zoo.neighbors([OTTER], relation_types=["SEES"])) == ["Gull"]
    cypher(session, "zoo", "MATCH (b:Bird) DETACH DELETE b")
    assert "Gull" not in labels(zoo.neighbors([OTTER]))


def test_there_is_no_epoch_to_wait_for(zoo: Graph) -> None:
    assert zoo.epoch() == 0
    assert zoo.neighbors([OTTER], min_epoch=0).as_of_epoch == 0
    with pytest.raises(BadQuestion, match="no change clock"):
        zoo.neighbors([OTTER], min_epoch=1)
    assert zoo.refresh() is None
    assert zoo.status() is None
    assert not zoo.wait_for(1)


def test_categories_of_types_are_refused(zoo: Graph) -> None:
    with pytest.raises(BadQuestion, match="no categories"):
        zoo.neighbors([OTTER], where=Where(categories=["causal"]))


def test_what_needs_kappas_tables_is_refused_in_one_line(zoo: Graph) -> None:
    def within_a_transaction() -> None:
        with zoo.transaction():
            raise AssertionError("there must be none")

    refused = [
        zoo.install,
        within_a_transaction,
        lambda: zoo.ontology("x"),
        zoo.ontologies,
        lambda: zoo.rename_ontology("x", "y"),
        lambda: zoo.delete_ontology("x"),
        lambda: zoo.add_document("x", NewDocument("a", "b")),
        lambda: zoo.write_chunk(Chunk(uuid4(), 0, 0, 1)),
        lambda: zoo.add_concepts("x", [NewConcept("a")]),
        lambda: zoo.add_relations([]),
        lambda: zoo.load_concepts("x", [NewConcept("a")]),
        lambda: zoo.set_embeddings("m", {OTTER: [1.0]}),
        lambda: zoo.delete_concepts([OTTER]),
        lambda: zoo.delete_relations([(OTTER, RIVER, "LIVES_IN")]),
        lambda: zoo.delete_document(uuid4()),
        lambda: zoo.evidence(OTTER),
        lambda: zoo.edit_settings(workers=4),
    ]
    for act in refused:
        with pytest.raises(ForeignGraph, match=r"^a graph of the backend 'age' [a-z :']+$"):
            act()


def test_a_database_without_kappas_schema_will_do(age_server: Server, age_template: str, opened: list[Graph]) -> None:
    url = age_server.create()
    install_age(age_server, url)
    with psycopg.connect(url, autocommit=True) as session:
        node, _ = write_age(session, "alone", [("N", {"label": "a"}), ("N", {"label": "b"})], [(0, "IN", 1, {})])
    graph = ask(opened, url, AgeBackend("alone"), workers=3)
    assert labels(graph.neighbors([node])) == ["b"]
    assert graph.settings().workers == graph.budget().workers == 3
    assert [one.concept.label for one in graph.subgraph([node]).concepts] == ["a", "b"]
    graph.close()
    age_server.drop(url)


def test_a_graph_that_is_not_there_is_named(age_url: str, empty_url: str, opened: list[Graph]) -> None:
    missing = "there is no AGE graph 'nowhere' in this database"
    for url in (age_url, empty_url):
        lost = ask(opened, url, AgeBackend("nowhere"))
        with pytest.raises(GraphFailed, match=missing):
            lost.neighbors([OTTER])
        with pytest.raises(GraphFailed, match=missing):
            lost.neighbors([1])
        with pytest.raises(GraphFailed, match=missing):
            lost.relation_types()


def test_every_named_statement_is_valid(zoo: Graph, session: Session) -> None:
    backend = AgeBackend("zoo")
    for query in queries.load(Path(age.__file__).with_suffix(".sql")).values():
        composed = backend._statement(session, query, None).as_string(session)
        numbered = queries.Query(query.name, query.source, composed.encode(), query.parameters).numbered()
        session.execute(f"PREPARE checked AS {numbered}".encode())
        session.execute("DEALLOCATE checked")


class SlowAge(AgeBackend):
    """The same graph on a server that takes its time, after a few steps."""

    def __init__(self, graph: str, free: int) -> None:
        super().__init__(graph)
        self._free = free

    def expand(self, connection: Connection[Row], *args: object) -> age.Ints:  # type: ignore[override]
        self._free -= 1
        if self._free < 0:
            connection.execute("SELECT pg_sleep(3600)")
        return super().expand(connection, *args)  # type: ignore[arg-type]


@pytest.mark.usefixtures("time_for_rows")
@pytest.mark.parametrize("chunk", [2_000, 1])
def test_a_deadline_gives_what_was_found_and_nothing_runs_on(
    session: Session, age_url: str, opened: list[Graph], chunk: int
) -> None:
    nodes = write_age(
        session,
        "chain",
        [("N", {"label": f"n{n}"}) for n in range(7)],
        [(0, "IN", 1, {}), (0, "IN", 2, {}), (0, "IN", 3, {}), (1, "IN", 4, {}), (2, "IN", 5, {}), (3, "IN", 6, {})],
    )
    slow = ask(opened, age_url, SlowAge("chain", free=1), chunk=chunk)
    answer = slow.neighbors([nodes[0]], 3, "out", deadline=4.0)
    assert not answer.complete
    assert (answer.skipped[0].what, answer.skipped[0].why) == ("what is beyond hop 1", "the deadline passed")
    assert sorted(labels(answer)) == ["n1", "n2", "n3"]
    assert running(session) == []


def test_a_real_walk_ends_at_its_deadline(session: Session, age_url: str, opened: list[Graph]) -> None:
    """Nothing is slowed down here: the graph is too large for so little time."""
    chance = np.random.default_rng(7)
    count = 10_000
    heads, tails = chance.integers(1, count + 1, (2, 100_000))
    first = fill_age(session, "large", count, (heads, tails))
    graph = ask(opened, age_url, AgeBackend("large"))
    with suppress(QuestionStopped):  # if it could not even begin
        assert not graph.neighbors([first + 1], 6, deadline=0.1).complete
    assert running(session) == []
    assert graph.neighbors([first + 1], 6, deadline=60).found > 0.99 * count


def running(session: Session) -> list[Row]:
    return session.execute(
        "SELECT state, query FROM pg_stat_activity "
        "WHERE application_name = 'kappa graph' AND datname = current_database() AND state <> 'idle'"
    ).fetchall()
