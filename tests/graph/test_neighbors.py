"""Concepts around concepts: hops, directions, filters, order, cut."""

import pytest

from kappa.graph import (
    BadQuestion,
    Graph,
    NewConcept,
    NewRelation,
    Order,
    UnknownConcept,
    UnknownOntology,
    UnknownRelationType,
    Where,
)
from tests.graph.worlds import labels, write

RIVER = [
    ("otter", "LIVES_IN", "river", 0.9),
    ("river", "FLOWS_TO", "sea", 1.0),
    ("salmon", "LIVES_IN", "river", 0.6),
    ("salmon", "LIVES_IN", "sea", 0.8),
    ("otter", "EATS", "salmon", 0.5),
    ("gull", "EATS", "salmon", 0.4),
    ("gull", "NESTS_ON", "cliff", 0.7),
]


@pytest.fixture(params=["snapshot", "sql"])
def world(request: pytest.FixtureRequest) -> Graph:
    """The same graph, asked in memory and in the database."""
    asked: Graph = request.getfixturevalue("graph" if request.param == "snapshot" else "sql_graph")
    return asked


def test_one_hop_in_both_directions(world: Graph) -> None:
    ids = write(world, RIVER)
    answer = world.neighbors([ids["river"]])
    # Degrees: salmon 4, otter 2, sea 2; otter was written before sea.
    assert labels(answer) == ["salmon", "otter", "sea"]
    assert [item.degree for item in answer.items] == [4, 2, 2]
    assert {item.hop for item in answer.items} == {1}
    assert answer.complete
    assert answer.found == 3


def test_directions(world: Graph) -> None:
    ids = write(world, RIVER)
    assert labels(world.neighbors([ids["river"]], direction="out")) == ["sea"]
    assert labels(world.neighbors([ids["river"]], direction="in")) == ["salmon", "otter"]


def test_each_concept_once_with_its_least_distance_and_no_seed(world: Graph) -> None:
    ids = write(world, RIVER)
    answer = world.neighbors([ids["otter"], ids["sea"]], max_hops=3)
    found = {item.concept.label: item.hop for item in answer.items}
    assert found == {"river": 1, "salmon": 1, "gull": 2, "cliff": 3}


def test_by_degree_and_by_hop(world: Graph) -> None:
    ids = write(world, RIVER)
    assert labels(world.neighbors([ids["cliff"]], max_hops=3)) == ["salmon", "river", "otter", "sea", "gull"]
    nearest = world.neighbors([ids["cliff"]], max_hops=3, order=Order.HOP)
    assert labels(nearest) == ["gull", "salmon", "river", "otter", "sea"]
    assert [item.hop for item in nearest.items] == [1, 2, 3, 3, 3]


@pytest.mark.parametrize("order", list(Order))
def test_the_cut_keeps_what_stands_first(world: Graph, order: Order) -> None:
    ids = write(world, RIVER)
    whole = labels(world.neighbors([ids["cliff"]], max_hops=3, order=order))
    for limit in range(1, 6):
        cut = world.neighbors([ids["cliff"]], max_hops=3, order=order, limit=limit)
        assert labels(cut) == whole[:limit]
        assert cut.found == 5
        assert cut.complete


def test_relation_types_and_confidence_filter_what_is_walked(world: Graph) -> None:
    ids = write(world, RIVER)
    assert labels(world.neighbors([ids["otter"]], 3, relation_types=["LIVES_IN"])) == ["salmon", "river", "sea"]
    assert labels(world.neighbors([ids["otter"]], 3, where=Where(min_confidence=0.61))) == ["salmon", "river", "sea"]
    assert labels(world.neighbors([ids["otter"]], 3, where=Where(min_confidence=0.81))) == ["river", "sea"]
    assert labels(world.neighbors([ids["otter"]], 3, relation_types=[])) == []


def test_a_concept_of_another_ontology_is_not_walked_through(world: Graph) -> None:
    ids = write(world, [("a", "IS", "b"), ("b", "IS", "c")], "one")
    other = write(world, [("x", "IS", "y")], "two")
    world.add_relations([NewRelation(ids["c"], other["x"], "IS")])
    assert labels(world.neighbors([ids["a"]], 9, where=Where(ontologies=["one"]))) == ["b", "c"]
    assert labels(world.neighbors([ids["a"]], 9, where=Where(ontologies=["two"]))) == []
    assert sorted(labels(world.neighbors([other["y"]], 9, where=Where(ontologies=["one"])))) == []
    assert len(world.neighbors([ids["a"]], 9).items) == 4


def test_a_name_that_came_with_the_epoch_asked_for_is_known(world: Graph) -> None:
    ids = write(world, [("a", "IS", "b")], "one")
    assert labels(world.neighbors([ids["a"]], 2, where=Where(ontologies=["one"]))) == ["b"]
    other = world.add_concepts("two", [NewConcept("x")]).ids
    written = world.add_relations([NewRelation(ids["a"], other["x"], "KNOWS")])
    asked = {"where": Where(ontologies=["two"]), "relation_types": ["KNOWS"], "min_epoch": written.epoch}
    assert labels(world.neighbors([ids["a"]], 2, **asked)) == ["x"]


def test_a_seed_may_be_a_uuid_its_text_or_a_node(world: Graph) -> None:
    ids = write(world, RIVER)
    node = world.concept(ids["river"])
    assert node is not None
    answers = [labels(world.neighbors([seed])) for seed in (ids["river"], str(ids["river"]), node.node)]
    assert answers[0] == answers[1] == answers[2] != []


def test_what_does_not_exist_is_named(world: Graph) -> None:
    ids = write(world, RIVER)
    with pytest.raises(UnknownConcept, match="00000000"):
        world.neighbors(["00000000-0000-8000-8000-000000000000"])
    with pytest.raises(UnknownConcept, match="'; DROP TABLE"):
        world.neighbors(["'; DROP TABLE kappa_graph.concepts; --"])
    with pytest.raises(UnknownConcept, match="9223372036854775808"):
        world.neighbors([1 << 63])
    with pytest.raises(UnknownRelationType, match="LIVES_ON"):
        world.neighbors([ids["otter"]], relation_types=["LIVES_ON"])
    with pytest.raises(UnknownOntology, match="no such"):
        world.neighbors([ids["otter"]], where=Where(ontologies=["no such"]))


@pytest.mark.parametrize(
    "question",
    [{"max_hops": 0}, {"max_hops": 21}, {"limit": 0}, {"limit": 10_001}, {"deadline": 0}, {"deadline": 121}],
    ids=str,
)
def test_a_question_outside_of_its_bounds_is_refused(graph: Graph, question: dict[str, int]) -> None:
    ids = write(graph, RIVER)
    with pytest.raises(BadQuestion):
        graph.neighbors([ids["otter"]], **question)
    with pytest.raises(BadQuestion):
        graph.neighbors([])


def test_an_ontology_is_entered_by_its_best_connected_concepts(graph: Graph) -> None:
    write(graph, RIVER)
    graph.add_concepts("elsewhere", [NewConcept("Lake")])
    (name,) = {one.name for one in graph.ontologies()} - {"elsewhere"}
    assert [one.label for one in graph.hubs(name, 3)] == ["salmon", "river", "otter"]
    assert [one.label for one in graph.hubs(name, 3, most=1)] == ["otter"]
    # The snapshot knows of all of them.
    graph.refresh()
    assert [one.label for one in graph.hubs(name, 3, most=1)] == ["salmon", "river", "otter"]
    graph.delete_concepts([one.id for one in graph.hubs(name, 1)])
    graph.refresh()
    assert "salmon" not in {one.label for one in graph.hubs(name, 9, most=1)}
    assert [one.label for one in graph.hubs("elsewhere")] == ["Lake"]
    assert graph.hubs("nowhere") == []
