"""Polarity: where concepts stand between two poles."""

from uuid import UUID

import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kappa.graph import BadQuestion, Cancel, Graph, QuestionStopped, UnknownConcept, Where
from kappa.pg.queries import Row
from tests.graph.test_limits import running
from tests.graph.worlds import labels, write

Session = psycopg.Connection[Row]

WORLD = [
    ("good", "NEAR", "kind"),
    ("kind", "NEAR", "plain"),
    ("plain", "NEAR", "harsh"),
    ("harsh", "NEAR", "bad"),
    ("plain", "LIKE", "mute"),
]
VECTORS = {
    "good": [1.0, 0.0],
    "bad": [-1.0, 0.0],
    "kind": [0.5, 0.5],
    "plain": [0.3, 2.0],
    "harsh": [-3.0, 0.0],
}


@pytest.fixture
def world(graph: Graph) -> dict[str, UUID]:
    ids = write(graph, WORLD)
    graph.set_embeddings("m", {ids[name]: vector for name, vector in VECTORS.items()})
    return ids


def test_concepts_around_the_poles_stand_on_the_axis(graph: Graph, sql_graph: Graph, world: dict[str, UUID]) -> None:
    epoch = graph.refresh()
    answers = [asked.polarity(world["good"], world["bad"], min_epoch=epoch) for asked in (graph, sql_graph)]
    for answer in answers:
        assert [(i.concept.label, i.position, i.direction, i.distance, i.hop) for i in answer.items] == [
            ("kind", 0.5, "positive", 0.5, 1),
            ("plain", 0.3, "neutral", 2.0, 2),
            ("harsh", -3.0, "negative", 0.0, 1),
        ]
        assert (answer.positive.label, answer.negative.label, answer.model, answer.length) == ("good", "bad", "m", 2.0)
        assert (answer.without_embedding, answer.complete, answer.as_of_epoch) == (0, True, epoch)
        assert answer.mean == pytest.approx(np.mean([0.5, 0.3, -3.0]))
        assert answer.spread == pytest.approx(np.std([0.5, 0.3, -3.0]))
    assert [answer.served_by for answer in answers] == ["snapshot", "sql"]
    turned = graph.polarity(world["bad"], world["good"])
    assert [(i.concept.label, i.position) for i in turned.items] == [("harsh", 3.0), ("plain", -0.3), ("kind", -0.5)]


def test_positions_are_correlated_with_grounding(graph: Graph, world: dict[str, UUID]) -> None:
    plain = graph.polarity(world["good"], world["bad"])
    assert ({item.grounding for item in plain.items}, plain.correlation) == ({0}, None)
    write(graph, [("a", "SUPPORTS", "kind", 0.8), ("b", "SUPPORTS", "kind"), ("a", "CONTRADICTS", "harsh", 0.5)])
    found = graph.polarity(world["good"], world["bad"], min_epoch=graph.epoch(), relation_types=["NEAR"])
    grounded = [item.grounding for item in found.items]
    assert grounded == pytest.approx([1.8 / (1.8 + 1.96**2), 0, -0.5 / (0.5 + 1.96**2)])
    positions = [item.position for item in found.items]
    assert found.correlation == pytest.approx(np.corrcoef(positions, np.array(grounded, float))[0, 1], abs=1e-6)
    two = graph.polarity(world["good"], world["bad"], candidates=[world["kind"], world["harsh"]])
    assert two.correlation is None


def test_what_may_be_walked_and_how_many_are_taken(graph: Graph, world: dict[str, UUID]) -> None:
    poles = world["good"], world["bad"]
    assert labels(graph.polarity(*poles, max_hops=1)) == ["kind", "harsh"]
    assert labels(graph.polarity(*poles, direction="out")) == ["kind", "plain"]
    assert labels(graph.polarity(*poles, relation_types=["LIKE"])) == []
    # The nearest are taken, of these the best connected: kind and harsh have two relations each.
    assert labels(graph.polarity(*poles, limit=1)) == ["kind"]
    far = graph.polarity(*poles, max_hops=3)
    assert (labels(far), far.without_embedding) == (["kind", "plain", "harsh"], 1)
    empty = graph.polarity(*poles, relation_types=["LIKE"])
    assert (empty.mean, empty.spread, empty.complete) == (None, None, True)
    write(graph, [("good", "NEAR", "elsewhere")], "other")
    assert labels(graph.polarity(*poles, where=Where(["world"]), min_epoch=graph.epoch())) == ["kind", "plain", "harsh"]


def test_candidates_may_be_given(graph: Graph, world: dict[str, UUID]) -> None:
    given = [world["harsh"], str(world["kind"]), world["mute"], world["good"], world["harsh"]]
    answer = graph.polarity(world["good"], world["bad"], candidates=given)
    assert [(i.concept.label, i.hop) for i in answer.items] == [("kind", None), ("harsh", None)]
    assert answer.without_embedding == 1
    assert labels(graph.polarity(world["good"], world["bad"], candidates=[])) == []
    with pytest.raises(UnknownConcept):
        graph.polarity(world["good"], world["bad"], candidates=[UUID(int=5)])


def test_poles_without_an_axis_between_them_are_refused(graph: Graph, world: dict[str, UUID]) -> None:
    good, bad = world["good"], world["bad"]
    with pytest.raises(BadQuestion, match="one and the same"):
        graph.polarity(good, good)
    with pytest.raises(BadQuestion, match="'mute' has no embedding"):
        graph.polarity(good, world["mute"])
    for nobody in (UUID(int=5), 99_999):
        with pytest.raises(UnknownConcept):
            graph.polarity(good, nobody)
    graph.set_embeddings("n", {bad: [-1.0, 0.0, 0.0]})
    with pytest.raises(BadQuestion, match=r"no embeddings of a common model: 'm' \(2 dimensions\) and 'n' \(3\)"):
        graph.polarity(good, bad)
    graph.set_embeddings("m", {bad: [1.0, 0.0]})
    with pytest.raises(BadQuestion, match="are equal"):
        graph.polarity(good, bad)
    with pytest.raises(BadQuestion, match="0 hops"):
        graph.polarity(good, bad, max_hops=0)
    with pytest.raises(BadQuestion, match="a limit of 0"):
        graph.polarity(good, bad, limit=0)


def test_embeddings_of_other_models_are_left_out_and_counted(graph: Graph, world: dict[str, UUID]) -> None:
    graph.set_embeddings("n", {world["kind"]: [1.0, 0.0]})
    answer = graph.polarity(world["good"], world["bad"], min_epoch=graph.epoch())
    assert (labels(answer), answer.without_embedding) == (["plain", "harsh"], 1)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    vectors=st.lists(
        st.lists(st.floats(-10, 10, width=32), min_size=4, max_size=4).filter(lambda v: any(abs(x) > 1e-3 for x in v)),
        min_size=6, max_size=6,
    ).filter(lambda given: np.linalg.norm(np.subtract(given[0], given[1])) > 0.1)
)  # fmt: skip
def test_positions_are_those_of_plain_geometry(graph: Graph, vectors: list[list[float]]) -> None:
    ids = list(write(graph, [("p", "NEAR", f"c{n}") for n in range(4)] + [("p", "NEAR", "q")]).values())
    names = ["p", "c0", "c1", "c2", "c3", "q"]
    known = dict(zip(names, ids, strict=True))
    order = ["p", "q", "c0", "c1", "c2", "c3"]
    graph.set_embeddings("m", {known[name]: vector for name, vector in zip(order, vectors, strict=True)})
    answer = graph.polarity(known["p"], known["q"], min_epoch=graph.epoch())
    plus, minus = np.array(vectors[0], np.float64), np.array(vectors[1], np.float64)
    assert answer.length == pytest.approx(np.linalg.norm(plus - minus))
    half, middle = (plus - minus) / 2, (plus + minus) / 2
    expected: dict[str, tuple[float, float]] = {}
    for name, vector in zip(order[2:], vectors[2:], strict=True):
        off = np.array(vector, np.float64) - middle
        along = float(off @ half / (half @ half))
        expected[name] = (along, float(np.linalg.norm(off - along * half) / np.linalg.norm(half)))
    assert {item.concept.label for item in answer.items} == set(expected)
    for item in answer.items:
        position, distance = expected[item.concept.label]
        assert item.position == pytest.approx(position, abs=1e-5)
        assert item.distance == pytest.approx(distance, abs=1e-5)
        assert item.direction == (
            "positive" if item.position > 0.3 else "negative" if item.position < -0.3 else "neutral"
        )
    placed = [(-item.position, item.concept.node) for item in answer.items]
    assert placed == sorted(placed)


def test_a_deadline_and_a_cancel_end_it_and_nothing_runs_on(
    graph: Graph, world: dict[str, UUID], url: str, connection: Session
) -> None:
    graph.polarity(world["good"], world["bad"])
    cancel = Cancel()
    cancel.cancel()
    with pytest.raises(QuestionStopped, match="cancelled"):
        graph.polarity(world["good"], world["bad"], cancel=cancel)
    with psycopg.connect(url) as holder:
        holder.execute("LOCK kappa_graph.concepts IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(QuestionStopped, match="the deadline passed"):
            graph.polarity(world["good"], world["bad"], deadline=0.5)
        assert running(connection) == []
