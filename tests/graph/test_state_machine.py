"""Random writes, deletes and refreshes: memory by C, memory by numpy, SQL in chunks and a plain model say the same."""

from collections.abc import Iterator
from typing import ClassVar

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from kappa.graph import Budget, Direction, Graph, GraphConfig, NewConcept, NewRelation, Order, Where
from kappa.graph.query.keeper import Keeper
from kappa.graph.query.kernel import NumpyKernel, best
from kappa.graph.query.snapshot import compact

LABELS = [f"c{n}" for n in range(8)]
TYPES = ["KNOWS", "IS", "HAS"]
label, kind = st.sampled_from(LABELS), st.sampled_from(TYPES)


class Models(RuleBasedStateMachine):
    """Four ways to one answer."""

    url: ClassVar[str] = ""
    graphs: ClassVar[dict[str, Graph]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.edges: dict[tuple[str, str, str], int] = {}
        self.concepts: dict[str, str] = {}
        """Each concept's ontology."""

    @property
    def writer(self) -> Graph:
        return self.graphs["c"]

    @initialize()
    def begin(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("TRUNCATE kappa_graph.ontologies, kappa_graph.relation_types CASCADE")

    @rule(labels=st.lists(label, min_size=1, max_size=4), ontology=st.sampled_from(["one", "two"]))
    def write(self, labels: list[str], ontology: str) -> None:
        new = [name for name in labels if self.concepts.get(name, ontology) == ontology]
        self.writer.add_concepts(ontology, [NewConcept(name) for name in new])
        self.concepts |= dict.fromkeys(new, ontology)

    @rule(edges=st.lists(st.tuples(label, kind, label, st.integers(0, 100)), min_size=1, max_size=8))
    def relate(self, edges: list[tuple[str, str, str, int]]) -> None:
        known = [edge for edge in edges if edge[0] in self.concepts and edge[2] in self.concepts]
        ids = self.ids()
        self.writer.add_relations([NewRelation(ids[a], ids[b], t, c / 100) for a, t, b, c in known])
        for a, t, b, c in known:
            self.edges[a, t, b] = max(c, self.edges.get((a, t, b), 0))

    @rule(edges=st.lists(st.tuples(label, kind, label), min_size=1, max_size=4))
    def part(self, edges: list[tuple[str, str, str]]) -> None:
        ids = self.ids()
        known = [edge for edge in edges if edge[0] in ids and edge[2] in ids]
        self.writer.delete_relations([(ids[a], ids[b], t) for a, t, b in known])
        for edge in known:
            self.edges.pop(edge, None)

    @rule(victim=label)
    def forget(self, victim: str) -> None:
        ids = self.ids()
        if victim in ids:
            self.writer.delete_concepts([ids[victim]])
            del self.concepts[victim]
            self.edges = {key: c for key, c in self.edges.items() if victim not in (key[0], key[2])}

    @rule(name=st.sampled_from(["c", "numpy"]))
    def refresh(self, name: str) -> None:
        self.graphs[name].refresh()

    @rule(name=st.sampled_from(["c", "numpy"]))
    def compact(self, name: str) -> None:
        keeper = self.graphs[name]._keeper
        assert isinstance(keeper, Keeper)
        if keeper.current is not None:
            keeper._swap(compact(keeper.current))

    def ids(self) -> dict[str, object]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return dict(connection.execute("SELECT label, key FROM kappa_graph.concepts").fetchall())  # type: ignore[arg-type]

    def model(self, seed: str, hops: int, direction: str, types: list[str] | None, where: Where) -> dict[str, int]:
        distance, frontier = {seed: 0}, [seed]
        for hop in range(1, hops + 1):
            level: list[str] = []
            for (a, t, b), confidence in self.edges.items():
                if confidence < where.min_confidence * 100 or (types is not None and t not in types):
                    continue
                for here, there, way in ((a, b, "out"), (b, a, "in")):
                    passes = where.ontologies is None or self.concepts[there] in where.ontologies
                    if passes and direction in (way, "both") and here in frontier and there not in distance:
                        distance[there] = hop
                        level.append(there)
            frontier = level
        return {name: hop for name, hop in distance.items() if hop}

    @rule(
        seed=label, goal=label, hops=st.integers(1, 4), direction=st.sampled_from(["out", "in", "both"]),
        types=st.none() | st.lists(kind, unique=True), confident=st.sampled_from([0.0, 0.5]),
        only=st.none() | st.just(["one"]), limit=st.sampled_from([2, 100]),
    )  # fmt: skip
    def ask(
        self, seed: str, goal: str, hops: int, direction: Direction, types: list[str] | None, confident: float,
        only: list[str] | None, limit: int,
    ) -> None:  # fmt: skip
        if seed not in self.concepts:
            return
        graph = self.writer
        known = {one.name for one in graph.relation_types()}
        types = None if types is None else [name for name in types if name in known]
        if only and not {"one"} <= {one.name for one in graph.ontologies()}:
            only = None
        where = Where(only, confident)
        expected = self.model(seed, hops, direction, types, where)
        degree = {name: sum((name == key[0]) + (name == key[2]) for key in self.edges) for name in self.concepts}
        ids, epoch = self.ids(), graph.epoch()
        for asked in self.graphs.values():
            asked.refresh()
        answers = {
            name: asked.neighbors(
                [ids[seed]], hops, direction, types, where, limit, min_epoch=epoch, order=Order.DEGREE  # type: ignore[list-item]
            )
            for name, asked in self.graphs.items()
        }  # fmt: skip
        first = answers["c"]
        assert {item.concept.label: item.hop for item in first.items}.items() <= expected.items()
        assert first.found == len(expected)
        assert [item.degree for item in first.items] == sorted((degree[name] for name in expected), reverse=True)[
            :limit
        ]
        for name, answer in answers.items():
            assert answer.items == first.items, name
            assert answer.complete
            assert answer.as_of_epoch == epoch
        assert {name: answer.served_by for name, answer in answers.items()} == {
            "c": "snapshot", "numpy": "snapshot", "sql": "sql",
        }  # fmt: skip
        if goal in self.concepts and goal != seed:
            found = {
                name: asked.paths(ids[seed], ids[goal], hops, 3, direction, types, where, min_epoch=epoch).items  # type: ignore[arg-type]
                for name, asked in self.graphs.items()
            }
            assert found["c"] == found["numpy"] == found["sql"]
            assert bool(found["c"]) == (goal in self.model(seed, hops, direction, types, where)) or only is not None
        draws = {
            name: asked.subgraph([ids[seed]], hops, direction, types, where, limit, min_epoch=epoch)  # type: ignore[list-item]
            for name, asked in self.graphs.items()
        }
        ways = {
            name: asked.related(ids[seed], hops, direction, types, where, limit, min_epoch=epoch).items  # type: ignore[arg-type]
            for name, asked in self.graphs.items()
        }
        assert ways["c"] == ways["numpy"] == ways["sql"]
        assert all(len(one.types) == one.hop for one in ways["c"])
        for draw in draws.values():
            assert (draw.concepts, draw.relations) == (draws["c"].concepts, draws["c"].relations)

    @invariant()
    def edges_are_counted(self) -> None:
        graph = self.graphs["c"]
        status = graph.status()
        assert status is not None
        if status.epoch is not None and status.epoch == graph.epoch():
            assert (status.nodes, status.edges) == (len(self.concepts), len(self.edges))


@pytest.fixture
def models(url: str) -> Iterator[type[Models]]:
    graphs = {
        "c": Graph(url, GraphConfig(), budget=Budget(), walk_with=best()),
        "numpy": Graph(url, GraphConfig(), budget=Budget(), walk_with=NumpyKernel()),
        # Two nodes to a statement, so that every hop is in parallel.
        "sql": Graph(url, GraphConfig(snapshot=False, chunk=2), budget=Budget()),
    }
    for graph in graphs.values():
        graph.open(listen=False)
    Models.url, Models.graphs = url, graphs
    yield Models
    for graph in graphs.values():
        graph.close()


@pytest.mark.timeout(600)
def test_every_way_gives_the_same_answer(models: type[Models]) -> None:
    run_state_machine_as_test(
        models,
        settings=settings(
            max_examples=12, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
