"""Names that questions use are those of the state that they walk through, however young, whoever listens."""

from collections.abc import Iterator

import pytest

from kappa.graph import Budget, Graph, GraphConfig, NewConcept, NewRelation, Where
from kappa.graph.errors import UnknownOntology, UnknownRelationType
from tests.graph.worlds import labels, write

CHAIN = [("a", "IS", "b"), ("b", "IS", "c")]


@pytest.fixture
def cold(url: str) -> Iterator[Graph]:
    """What jobs have: no snapshot, and nobody who listens."""
    with Graph(url, GraphConfig(snapshot=False), budget=Budget()).open(listen=False) as made:
        yield made


@pytest.fixture(params=["snapshot", "sql"])
def either(request: pytest.FixtureRequest, graph: Graph, cold: Graph) -> Graph:
    return graph if request.param == "snapshot" else cold


def test_a_relation_of_a_type_that_was_just_committed_is_told_by_its_name(cold: Graph) -> None:
    ids = write(cold, CHAIN)
    assert [item.types for item in cold.related(ids["a"]).items] == [("IS",), ("IS", "IS")]
    cold.add_relations([NewRelation(ids["a"], ids["c"], "NEW")])
    assert [item.types for item in cold.related(ids["a"]).items] == [("IS",), ("NEW",)]


def test_a_type_that_was_just_committed_may_be_asked_for(either: Graph) -> None:
    ids = write(either, CHAIN)
    either.refresh()
    assert either.neighbors([ids["a"]], relation_types=["IS"]).found == 1
    with pytest.raises(UnknownRelationType, match="NEW"):
        either.neighbors([ids["a"]], relation_types=["NEW"])
    either.add_relations([NewRelation(ids["a"], ids["c"], "NEW", category="kin")])
    assert labels(either.neighbors([ids["a"]], relation_types=["NEW"])) == ["c"]
    assert labels(either.neighbors([ids["a"]], where=Where(categories=["kin"]))) == ["c"]


def test_an_ontology_that_was_just_committed_may_be_asked_for(either: Graph) -> None:
    ids = write(either, CHAIN)
    either.refresh()
    assert either.neighbors([ids["a"]], where=Where(["world"])).found == 1
    assert labels(either.search("b", where=Where(["world"]))) == ["b"]
    with pytest.raises(UnknownOntology, match="other"):
        either.search("b", where=Where(["other"]))
    with pytest.raises(UnknownOntology, match="other"):
        either.neighbors([ids["a"]], where=Where(["other"]))
    more = either.add_concepts("other", [NewConcept("bee")]).ids
    either.add_relations([NewRelation(ids["a"], more["bee"], "IS")])
    assert labels(either.neighbors([ids["a"]], where=Where(["other"]))) == ["bee"]
    assert labels(either.search("bee", where=Where(["other"]))) == ["bee"]


def test_a_type_that_was_merged_meanwhile_is_still_itself_in_a_snapshot_of_before(graph: Graph) -> None:
    ids = write(graph, [*CHAIN, ("c", "WAS", "a")])
    graph.refresh()
    graph.merge_types("WAS", "IS")
    before = graph.neighbors([ids["a"]], relation_types=["WAS"])
    assert (before.served_by, labels(before)) == ("snapshot", ["c"])
    graph.refresh()
    assert labels(graph.neighbors([ids["a"]], relation_types=["WAS"])) == ["b", "c"]


def test_without_a_snapshot_and_without_listening_no_answer_is_older_than_its_question(cold: Graph) -> None:
    ids = write(cold, CHAIN)
    assert labels(cold.neighbors([ids["a"]])) == ["b"]
    cold.set_embeddings("m", {ids["a"]: [1, 0]})
    assert labels(cold.search(vector=[1, 0], model="m")) == ["a"]
    cold.add_relations([NewRelation(ids["a"], ids["c"], "IS")])
    assert labels(cold.neighbors([ids["a"]])) == ["b", "c"]
    cold.set_embeddings("m", {ids["b"]: [1, 0]})
    assert labels(cold.search(vector=[1, 0], model="m")) == ["a", "b"]
