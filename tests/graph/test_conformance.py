"""One suite for everyone who answers: the snapshot, SQL one by one and in parallel, AGE one by one and in parallel.

The judge is networkx, which knows the graph only as it was drawn. All of an answer is compared: concepts, hops,
degrees, relations, their order and the cut.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any
from uuid import UUID

import networkx as nx
import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kappa.graph import (
    AgeBackend,
    Answer,
    Budget,
    Concept,
    Direction,
    Graph,
    GraphConfig,
    Neighbor,
    NewConcept,
    NewRelation,
    Order,
    Path,
    Relation,
    Where,
)
from kappa.graph.query.kernel import NumpyKernel
from tests.conftest import Server
from tests.graph.worlds import write_age

# The pools' own threads use it, while Hypothesis looks.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")

NODES = 9
TYPES = ("FIRST", "SECOND", "Größe_3")
ONTOLOGIES = ("one", 'it\'s $$ "two" \\', "трі; --")
Edge = tuple[int, int, str]
World = Mapping[Edge, int]
"""Confidence in hundredths by from, to and type. Nodes are counted from 0 in their order."""
Told = tuple[int, int, str, float]
"""A relation, by the numbers of its ends."""


@dataclass(frozen=True)
class Asked:
    """What a question allows."""

    direction: Direction
    types: list[str] | None
    ontologies: list[str] | None
    least: int

    @property
    def words(self) -> dict[str, Any]:
        return {
            "direction": self.direction,
            "relation_types": self.types,
            "where": Where(ontologies=self.ontologies, min_confidence=self.least / 100),
        }


worlds = st.dictionaries(
    st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1), st.sampled_from(TYPES)),
    st.integers(0, 100) | st.just(100),
    min_size=1,
    max_size=30,
)
questions = st.builds(
    Asked,
    st.sampled_from(["out", "in", "both"]),
    st.none() | st.lists(st.sampled_from(TYPES), unique=True),
    st.none() | st.lists(st.sampled_from(ONTOLOGIES), unique=True),
    st.sampled_from([0, 0, 1, 50, 100]),
)
node = st.integers(0, NODES - 1)


def label(at: int) -> str:
    return f"c{at} '\"$$\\ é"


def ontology(at: int) -> str:
    """In thirds, so that both databases number the concepts in one order."""
    return ONTOLOGIES[at * 3 // NODES]


class Judge:
    """What networkx says of a world."""

    def __init__(self, world: World, asked: Asked) -> None:
        self._asked = asked
        whole = nx.MultiDiGraph()
        whole.add_nodes_from(range(NODES))
        whole.add_edges_from((head, tail) for head, tail, _ in world)
        self.degree: dict[int, int] = dict(whole.degree())
        self.edges = {
            key: confidence
            for key, confidence in sorted(world.items(), key=lambda one: (one[0][:2], TYPES.index(one[0][2])))
            if confidence >= asked.least and (asked.types is None or key[2] in asked.types)
        }

    def walkable(self, *exempt: int) -> "nx.DiGraph[int]":
        """As directed as the question walks, without concepts that don't pass."""
        graph: nx.DiGraph[int] = nx.DiGraph()
        allowed = self._asked.ontologies
        graph.add_nodes_from(at for at in range(NODES) if allowed is None or ontology(at) in allowed or at in exempt)
        for head, tail, _ in self.edges:
            if head in graph and tail in graph:
                if self._asked.direction != "in":
                    graph.add_edge(head, tail)
                if self._asked.direction != "out":
                    graph.add_edge(tail, head)
        return graph

    def hops(self, seeds: set[int], most: int) -> dict[int, int]:
        graph = self.walkable(*seeds)
        hops: dict[int, int] = {}
        for seed in seeds:
            for at, hop in nx.single_source_shortest_path_length(graph, seed, cutoff=most).items():
                hops[at] = min(hop, hops.get(at, hop))
        return {at: hop for at, hop in hops.items() if at not in seeds}

    def near(self, seeds: set[int], most: int, order: Order, limit: int) -> list[tuple[int, int, int]]:
        hops = self.hops(seeds, most)
        first = sorted(hops, key=lambda at: (hops[at] if order is Order.HOP else 0, -self.degree[at], at))
        return [(at, hops[at], self.degree[at]) for at in first[:limit]]

    def types_to(self, seed: int, at: int) -> tuple[str, ...]:
        """Back by the lowest node, and the lowest type on the step."""
        graph = self.walkable(seed)
        hops: dict[int, int] = nx.single_source_shortest_path_length(graph, seed)
        types: list[str] = []
        while at != seed:
            before = min(one for one in graph.predecessors(at) if hops.get(one) == hops[at] - 1)
            types.append(min((kind for _, _, kind, _ in self.between(before, at)), key=TYPES.index))
            at = before
        return tuple(reversed(types))

    def paths(self, start: int, goal: int, most: int, count: int) -> list[tuple[list[int], list[list[Told]]]]:
        graph = self.walkable(start, goal)
        found: list[list[int]] = sorted(
            map(list, nx.all_simple_paths(graph, start, goal, cutoff=most)), key=lambda way: (len(way), way)
        )
        if found:
            assert len(found[0]) - 1 == nx.shortest_path_length(graph, start, goal)
        return [(way, [self.between(a, b) for a, b in pairwise(way)]) for way in found[:count]]

    def between(self, a: int, b: int) -> list[Told]:
        """Those along the way first, then those against it, as far as the question walks so."""
        along = [(a, b)] if self._asked.direction != "in" else []
        against = [(b, a)] if self._asked.direction != "out" else []
        return [(*key, sure / 100) for ends in along + against for key, sure in self.edges.items() if key[:2] == ends]


class Everyone:
    """The same world in Kappa's tables and in AGE, and all who answer."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        age = AgeBackend("world")
        self.graphs = {
            "snapshot": Graph(url, GraphConfig(), budget=Budget()),
            "snapshot by numpy": Graph(url, GraphConfig(), budget=Budget(), walk_with=NumpyKernel()),
            "sql": Graph(url, GraphConfig(workers=1, snapshot=False), budget=Budget()),
            "sql in parallel": Graph(url, GraphConfig(workers=6, snapshot=False, chunk=1), budget=Budget()),
            "age": Graph(url, GraphConfig(workers=1), backend=age, budget=Budget()),
            "age in parallel": Graph(url, GraphConfig(workers=6, chunk=1), backend=age, budget=Budget()),
        }
        for graph in self.graphs.values():
            graph.open(listen=False)
        self.ids: list[UUID] = []
        self.epoch = 0
        self._made = False
        for name in TYPES:
            self._connection.execute("INSERT INTO kappa_graph.relation_types (name) VALUES (%s)", [name])

    def close(self) -> None:
        for graph in self.graphs.values():
            graph.close()
        self._connection.close()

    def write(self, world: World) -> None:
        ours = self.graphs["snapshot"]
        for name in ONTOLOGIES:
            ours.delete_ontology(name)
        new = [NewConcept(label(at), f"concept {at}", [f"term {at}"]) for at in range(NODES)]
        self.ids = []
        for name in ONTOLOGIES:
            part = [one for at, one in enumerate(new) if ontology(at) == name]
            written = ours.add_concepts(name, part).ids
            self.ids += [written[one.label] for one in part]
        self.epoch = ours.add_relations(
            [NewRelation(self.ids[h], self.ids[t], kind, sure / 100) for (h, t, kind), sure in world.items()]
        ).epoch
        for name in ("snapshot", "snapshot by numpy"):
            assert self.graphs[name].refresh() == self.epoch
        self._write_age(new, world)

    def _write_age(self, new: list[NewConcept], world: World) -> None:
        if self._made:
            with self._connection.transaction():
                self._connection.execute("SET LOCAL search_path = ag_catalog, public")
                self._connection.execute("SET LOCAL client_min_messages = warning")
                self._connection.execute("SELECT drop_graph('world', true)")
        self._made = True
        vertices = [
            (
                # Graphids are in the order of labels first.
                "Early" if at < 4 else "Late",
                {
                    "id": str(self.ids[at]),
                    "label": one.label,
                    "description": one.description,
                    "ontology": ontology(at),
                    "search_terms": list(one.search_terms),
                },
            )
            for at, one in enumerate(new)
        ]
        # A confidence of one may be left out.
        edges = [(h, k, t, {} if sure == 100 else {"confidence": sure / 100}) for (h, t, k), sure in world.items()]
        write_age(self._connection, "world", vertices, edges, edge_labels=TYPES)

    def at(self, concept: Concept) -> int:
        """A concept's number in the world, once all that it says of itself is right."""
        number = self.ids.index(concept.id)
        assert replace(concept, node=0) == Concept(
            self.ids[number], 0, label(number), f"concept {number}", ontology(number), (f"term {number}",)
        )
        return number

    def near(self, items: tuple[Neighbor, ...]) -> list[tuple[int, int, int]]:
        return [(self.at(item.concept), item.hop, item.degree) for item in items]

    def relation(self, one: Relation) -> Told:
        assert one.category == ""
        return self.ids.index(one.from_id), self.ids.index(one.to_id), one.type, one.confidence

    def path(self, path: Path) -> tuple[list[int], list[list[Told]]]:
        return [self.at(one) for one in path.concepts], [list(map(self.relation, step)) for step in path.relations]

    def answer(
        self,
        question: str,
        about: tuple[Any, ...],
        allowed: Mapping[str, Any],
        told: Callable[[Any], object],
        expected: object,
    ) -> None:
        """Ask everyone, and hear the same from all."""
        for name, graph in self.graphs.items():
            epoch = 0 if name.startswith("age") else self.epoch
            answer: Answer = getattr(graph, question)(*about, min_epoch=epoch, **allowed)
            assert (answer.complete, answer.skipped, answer.as_of_epoch) == (True, (), epoch), name
            assert answer.served_by == ("snapshot" if name.startswith("snapshot") else "sql")
            assert told(answer) == expected, name


@pytest.fixture(scope="module")
def everyone(age_template: str, age_server: Server) -> Iterator[Everyone]:
    url = age_server.create(age_template)
    made = Everyone(url)
    yield made
    made.close()
    age_server.drop(url)


# A failure is shown as it was found: every try to make it smaller would cost half a second.
drawn = settings(
    max_examples=15,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
hops = st.integers(1, 5)
limits = st.integers(1, NODES)
seeds = st.sets(node, min_size=1, max_size=3)
ends = st.tuples(node, node).filter(lambda pair: pair[0] != pair[1])


def several(*parts: st.SearchStrategy[Any]) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """Questions to one world: writing it costs more than asking it."""
    return st.lists(st.tuples(questions, *parts), min_size=3, max_size=8)


@drawn
@given(worlds, several(seeds, hops, st.sampled_from(Order), limits))
def test_neighbors(everyone: Everyone, world: World, asking: list[tuple[Asked, set[int], int, Order, int]]) -> None:
    everyone.write(world)
    for asked, around, most, order, limit in asking:
        judge = Judge(world, asked)
        everyone.answer(
            "neighbors",
            ([everyone.ids[at] for at in around], most),
            {"order": order, "limit": limit, **asked.words},
            lambda answer: (everyone.near(answer.items), answer.found),
            (judge.near(around, most, order, limit), len(judge.hops(around, most))),
        )


@drawn
@given(worlds, several(seeds, hops, limits))
def test_subgraph(everyone: Everyone, world: World, asking: list[tuple[Asked, set[int], int, int]]) -> None:
    everyone.write(world)
    for asked, around, most, limit in asking:
        judge = Judge(world, asked)
        kept = [(at, 0, judge.degree[at]) for at in sorted(around)] + judge.near(around, most, Order.HOP, limit)
        inside = {at for at, _, _ in kept}
        everyone.answer(
            "subgraph",
            ([everyone.ids[at] for at in around], most),
            {"limit": limit, **asked.words},
            lambda answer: (everyone.near(answer.concepts), list(map(everyone.relation, answer.relations))),
            (kept, [(*key, sure / 100) for key, sure in judge.edges.items() if {*key[:2]} <= inside]),
        )


@drawn
@given(worlds, several(node, hops, limits))
def test_related(everyone: Everyone, world: World, asking: list[tuple[Asked, int, int, int]]) -> None:
    everyone.write(world)
    for asked, seed, most, limit in asking:
        judge = Judge(world, asked)
        near = judge.near({seed}, most, Order.HOP, limit)
        everyone.answer(
            "related",
            (everyone.ids[seed], most),
            {"limit": limit, **asked.words},
            lambda answer: [(everyone.at(one.concept), one.hop, one.degree, one.types) for one in answer.items],
            [(at, hop, degree, judge.types_to(seed, at)) for at, hop, degree in near],
        )


@drawn
@given(worlds, several(ends, st.integers(1, 8), st.integers(1, 6)))
def test_paths(everyone: Everyone, world: World, asking: list[tuple[Asked, tuple[int, int], int, int]]) -> None:
    everyone.write(world)
    for asked, (start, goal), most, count in asking:
        judge = Judge(world, asked)
        everyone.answer(
            "paths",
            (everyone.ids[start], everyone.ids[goal], most, count),
            asked.words,
            lambda answer: list(map(everyone.path, answer.items)),
            judge.paths(start, goal, most, count),
        )


@drawn
@given(worlds, several(ends, st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), limits))
def test_enriched_path(
    everyone: Everyone, world: World, asking: list[tuple[Asked, tuple[int, int], int, int, int, int]]
) -> None:
    everyone.write(world)
    for asked, (start, goal), most, count, around, limit in asking:
        judge = Judge(world, asked)
        found = judge.paths(start, goal, most, count)
        on_ways = sorted({at for way, _ in found for at in way})
        everyone.answer(
            "enriched_path",
            (everyone.ids[start], everyone.ids[goal], most, count),
            {"around_hops": around, "around_limit": limit, **asked.words},
            lambda answer: (
                list(map(everyone.path, answer.items)),
                {everyone.ids.index(key): everyone.near(items) for key, items in answer.around.items()},
            ),
            (found, {at: judge.near({at}, around, Order.DEGREE, limit) for at in on_ways}),
        )
