"""Text is data, whatever it looks like: in the snapshot, in SQL and in AGE it is kept, found, or refused by name."""

from collections.abc import Iterator
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from kappa.graph import (
    AgeBackend,
    AgeProperties,
    BadQuestion,
    Budget,
    Graph,
    GraphConfig,
    NewConcept,
    NewRelation,
    UnknownConcept,
    UnknownOntology,
    UnknownRelationType,
    Where,
)
from kappa.pg.queries import Row
from tests.graph.worlds import labels, write_age

Session = psycopg.Connection[Row]

HOSTILE = [
    "it's",
    '"quoted"',
    "$$",
    "$1 $2 $ids",
    "$$) AS (n agtype); DROP SCHEMA world CASCADE; --",
    "back\\slash \\' \\\" \\",
    "\\u0000 \\x00",
    "'; DROP TABLE kappa_graph.concepts CASCADE; --",
    "'}) DETACH DELETE n //",
    "{edges} {0} {}",
    "%s %(nodes)s %% %",
    '{"a": 1}',
    "{a,b} NULL",
    "0.5::numeric",
    "line\nfeed\ttab",
    "Größe 知識 🦦 \u202e\u0301",
    "x" * 3_000,
]
IMPOSSIBLE = ["a\0b", "\0", "\ud800", "half \udfff"]


class World:
    """A hub, and for each text a concept that is called so, in an ontology that is called so."""

    def __init__(self, graph: Graph, hub: UUID, types: dict[str, str]) -> None:
        self.graph = graph
        self.hub = hub
        self.types = types
        """The type of the relation to each text."""

    def whole(self) -> bool:
        return self.graph.neighbors([self.hub]).found == len(HOSTILE)


@pytest.fixture(params=["snapshot", "sql", "age"])
def world(request: pytest.FixtureRequest, age_url: str) -> Iterator[World]:
    if request.param == "age":
        made = _in_age(age_url)
    else:
        made = _in_tables(age_url, GraphConfig(snapshot=request.param == "snapshot"))
    yield made
    assert made.whole()
    made.graph.close()


def _in_tables(url: str, config: GraphConfig) -> World:
    graph = Graph(url, config, budget=Budget()).open(listen=False)
    hub = graph.add_concepts("hub", [NewConcept("hub")]).ids["hub"]
    for text in HOSTILE:
        (key,) = graph.add_concepts(text, [NewConcept(text, text, [text])]).ids.values()
        graph.add_relations([NewRelation(hub, key, text, provenance=text)])
    graph.refresh()
    return World(graph, hub, {text: text for text in HOSTILE})


def _in_age(url: str) -> World:
    hub = uuid4()
    vertices: list[tuple[str, dict[str, object]]] = [("Hub", {"id": str(hub)})]
    for text in HOSTILE:
        said = {"label": text, "description": text, "search_terms": [text], "ontology": text, "'; --": text}
        vertices.append(("Text", {"id": str(uuid4()), **said}))
    types = {text: f"T{at}" for at, text in enumerate(HOSTILE)}
    with psycopg.connect(url, autocommit=True) as connection:
        write_age(connection, "world", vertices, [(0, types[text], at, {}) for at, text in enumerate(HOSTILE, start=1)])
    return World(Graph(url, GraphConfig(), backend=AgeBackend("world"), budget=Budget()).open(), hub, types)


def test_text_that_is_there_is_kept_and_found(world: World) -> None:
    for text in HOSTILE:
        for found in (
            world.graph.neighbors([world.hub], 2, where=Where(ontologies=[text])),
            world.graph.neighbors([world.hub], 2, relation_types=[world.types[text]]),
        ):
            (item,) = found.items
            said = item.concept
            assert (said.label, said.description, said.ontology, said.search_terms) == (text, text, text, (text,))
            (path,) = world.graph.paths(world.hub, said.id, where=Where(ontologies=[text])).items
            assert path.relations[0][0].type == world.types[text]


def test_all_of_it_at_once(world: World) -> None:
    found = world.graph.neighbors(
        [world.hub], 2, where=Where(ontologies=HOSTILE), relation_types=[*world.types.values()]
    )
    assert sorted(labels(found)) == sorted(HOSTILE)


@pytest.mark.parametrize("prefix", ["", "no such "])
def test_text_that_is_not_there_is_refused_by_name(world: World, prefix: str) -> None:
    strange = [prefix + text for text in (*HOSTILE, *IMPOSSIBLE)] if prefix else IMPOSSIBLE
    for text in strange:
        with pytest.raises(UnknownOntology):
            world.graph.neighbors([world.hub], where=Where(ontologies=[text]))
        with pytest.raises(UnknownRelationType):
            world.graph.neighbors([world.hub], relation_types=[text])


def test_an_id_is_a_uuid_or_nobodys(world: World) -> None:
    for text in (*HOSTILE, *IMPOSSIBLE, f"{world.hub}'", f"{world.hub}\0"):
        with pytest.raises(UnknownConcept):
            world.graph.neighbors([text])
        with pytest.raises(UnknownConcept):
            world.graph.paths(world.hub, text)
    for number in (1 << 63, -(1 << 63) - 1, 10**40):
        with pytest.raises(UnknownConcept):
            world.graph.neighbors([number])
    for number in (-1, 0, (1 << 63) - 1):
        assert world.graph.neighbors([number]).items == ()


def test_a_direction_is_one_of_three(world: World) -> None:
    for text in (*HOSTILE, *IMPOSSIBLE):
        with pytest.raises(BadQuestion, match="direction"):
            world.graph.neighbors([world.hub], direction=text)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [*HOSTILE, *IMPOSSIBLE, "", "a", "ab", "1st", "a b", "abc\n", "x" * 64, "ö" * 32])
def test_a_graphs_name_passes_an_allow_list(name: str) -> None:
    with pytest.raises(BadQuestion, match="no name of an AGE graph"):
        AgeBackend(name)


@pytest.mark.parametrize("name", [*HOSTILE[:-1], *IMPOSSIBLE, "", "1st", "a b", "abc\n"])
def test_a_propertys_name_passes_an_allow_list(name: str) -> None:
    with pytest.raises(BadQuestion, match="no name of a property"):
        AgeProperties(ontology=name)


def test_a_table_of_any_name_is_quoted(age_url: str) -> None:
    """AGE gives no such names, but the catalogue is the database's, not ours."""
    names = ['e"; DROP TABLE "names"."N"; --', "%s %(nodes)s %", "{edges}", "a.b", "Größe 🦦"]
    with psycopg.connect(age_url, autocommit=True) as connection:
        vertices = [("N", {"label": "hub"}), *[("N", {"label": f"n{at}"}) for at in range(len(names))]]
        nodes = write_age(connection, "names", vertices, [(0, f"T{at}", at + 1, {}) for at in range(len(names))])
        for at, name in enumerate(names):
            connection.execute(
                sql.SQL("ALTER TABLE {} RENAME TO {}").format(sql.Identifier("names", f"T{at}"), sql.Identifier(name))
            )
    graph = Graph(age_url, GraphConfig(), backend=AgeBackend("names"), budget=Budget())
    with graph:
        for at in range(len(names)):
            assert labels(graph.neighbors([nodes[0]], 2, relation_types=[f"T{at}"])) == [f"n{at}"]
        assert graph.neighbors([nodes[0]], relation_types=[f"T{at}" for at in range(len(names))]).found == len(names)


@pytest.mark.parametrize("name", ["a-b", "a.b.c", "é-graph", "select", "_x1", "Ünïcode_7"])
def test_a_graphs_name_of_any_kind_that_age_allows_will_do(age_url: str, name: str) -> None:
    with psycopg.connect(age_url, autocommit=True) as connection:
        node, _ = write_age(connection, name, [("N", {"label": "a"}), ("N", {"label": "b"})], [(0, "IS", 1, {})])
    with Graph(age_url, GraphConfig(), backend=AgeBackend(name), budget=Budget()) as graph:
        assert labels(graph.neighbors([node], relation_types=["IS"])) == ["b"]
