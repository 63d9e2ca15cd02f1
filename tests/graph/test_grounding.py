"""How well a concept is founded: against a calculation of our own, and against what must hold whatever is said."""

import math
from uuid import UUID

import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kappa.graph import (
    Cancel,
    Chunk,
    Graph,
    NewConcept,
    NewDocument,
    NewInstance,
    NewLink,
    QuestionStopped,
    UnknownConcept,
)
from kappa.graph.query import grounding, stance
from kappa.graph.store.measures import Counts
from kappa.pg.queries import Row
from tests.graph.worlds import write
from tests.ground import PATIENCE

Session = psycopg.Connection[Row]

weights = st.floats(0, 1000, allow_nan=False)
STANCES = {"SUPPORTS": 1.0, "CAUSES": 0.6, "IS_A": 0.0, "PREVENTS": -0.6, "CONTRADICTS": -1.0, "NOT_SUPPORTS": -1.0}


def wilson(support: float, contradiction: float) -> tuple[float, float]:
    """The interval by its definition: the shares p for which the observed one is z standard errors away."""
    n, z = support + contradiction, 1.96
    if not n:
        return -1.0, 1.0
    share = support / n
    # n (share - p)² = z² p (1 - p)
    roots = np.roots([n + z * z, -(2 * n * share + z * z), n * share * share])
    low, high = sorted(roots.real.tolist())
    return 2 * low - 1, 2 * high - 1


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("SUPPORTS", 1), ("supported", 1), ("is_evidence_for", 1), ("CONTRADICTS", -1), ("refutes", -1), ("DENIES", -1),
        ("CAUSES", 0.6), ("PREVENTS", -0.6), ("NOT_CAUSES", -0.6), ("does not support", -1), ("NEVER_PREVENTS", 0.6),
        ("SUPPORTED_BY", 0), ("LIVES_IN", 0), ("DENSER_THAN", 0), ("PROVIDES", 0), ("", 0), ("NOT", 0), ("🙂", 0),
    ],
)  # fmt: skip
def test_words_say_for_or_against(name: str, side: float) -> None:
    assert stance.by_words(name) == pytest.approx(side)


@given(support=weights, contradiction=weights)
def test_the_interval_is_wilsons_and_the_value_its_centre(support: float, contradiction: float) -> None:
    found = grounding.grounding(support, contradiction)
    low, high = wilson(support, contradiction)
    assert found.low == pytest.approx(low, abs=1e-6)
    assert found.high == pytest.approx(high, abs=1e-6)
    assert found.value == pytest.approx((low + high) / 2, abs=1e-6)
    assert -1 <= found.low <= found.value <= found.high <= 1


@given(support=weights, contradiction=weights, more=weights)
def test_support_never_lowers_and_contradiction_never_raises(support: float, contradiction: float, more: float) -> None:
    now = grounding.grounding(support, contradiction)
    for_it = grounding.grounding(support + more, contradiction)
    against = grounding.grounding(support, contradiction + more)
    for name in ("value", "low", "high"):
        assert getattr(for_it, name) >= getattr(now, name) - 1e-12
        assert getattr(against, name) <= getattr(now, name) + 1e-12


def test_one_support_is_not_as_sure_as_47() -> None:
    nothing, one, many = (grounding.grounding(count, 0) for count in (0, 1, 47))
    assert (nothing.value, nothing.low, nothing.high) == (0, -1, 1)
    assert 0 < one.value < 0.25 < 0.9 < many.value
    assert one.low < 0 < 0.8 < many.low
    split = grounding.grounding(47, 47)
    assert split.value == 0
    assert split.high - split.low < 0.5


@given(st.lists(st.integers(0, 10_000), min_size=4, max_size=4), st.integers(0, 3), st.integers(1, 1000))
def test_confidence_rises_with_every_count_and_saturates(counts: list[int], which: int, more: int) -> None:
    now = grounding.confidence(Counts(*counts)).value
    expected = sum(s * c / (c + h) for c, h, s in zip(counts, (6, 3, 3, 5), (0.3, 0.2, 0.3, 0.2), strict=True))
    assert now == pytest.approx(expected)
    assert 0 <= now < 1
    larger = list(counts)
    larger[which] += more
    assert grounding.confidence(Counts(*larger)).value > now


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    edges=st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(sorted(STANCES)), st.integers(0, 100)), max_size=12,
        unique_by=lambda edge: edge[:2],
    )
)  # fmt: skip
def test_a_concepts_grounding_is_that_of_its_incoming_relations(
    graph: Graph, connection: Session, edges: list[tuple[int, str, int]]
) -> None:
    connection.execute("TRUNCATE kappa_graph.ontologies, kappa_graph.relation_types CASCADE")
    world = [(f"c{head}", kind, "it", sure / 100) for head, kind, sure in edges]
    ids = write(graph, [*world, ("it", "SUPPORTS", "other"), ("it", "SUPPORTS", "it")])
    found = graph.measured(ids["it"])
    mass = [sum(STANCES[kind] * sure for _, kind, _, sure in world if STANCES[kind] * side > 0) for side in (1, -1)]
    low, high = wilson(mass[0], -mass[1])
    assert found.grounding.support == pytest.approx(mass[0])
    assert found.grounding.contradiction == pytest.approx(-mass[1])
    assert found.grounding.value == pytest.approx((low + high) / 2, abs=1e-9)
    assert found.grounding.supports == sum(STANCES[kind] > 0 for _, kind, _, _ in world)
    assert found.confidence.relations == len(edges) + 2
    assert found.confidence.types == len({kind for _, kind, _, _ in world} | {"SUPPORTS"})
    expected = sorted((abs(STANCES[kind] * sure) for _, kind, _, sure in world if STANCES[kind]), reverse=True)[:5]
    assert [abs(reason.weight) for reason in found.reasons] == pytest.approx(expected)
    assert all(reason.by == "words" and math.copysign(1, reason.weight) for reason in found.reasons)


TEXT = "Rain causes floods. Rain causes floods again."


def test_documents_that_say_the_same_count_and_chunks_that_overlap_do_not(graph: Graph) -> None:
    def say(text: str, chunks: list[tuple[int, int]]) -> UUID:
        document, _ = graph.add_document("weather", NewDocument(text[:9], text))
        ids: UUID | None = None
        for ordinal, (start, end) in enumerate(chunks):
            written = graph.write_chunk(
                Chunk(
                    document, ordinal, start, end, [NewConcept("Rain"), NewConcept("Flood")],
                    [NewInstance("Flood", text[start : start + 4], start)], [NewLink("Rain", "Flood", "CAUSES", 0.5)],
                )
            )  # fmt: skip
            ids = written.ids["Flood"]
        assert ids is not None
        return ids

    flood = say(TEXT, [(0, 30), (10, 45)])
    once = graph.measured(flood)
    assert (once.grounding.supports, once.grounding.support) == (1, pytest.approx(0.3))
    assert (once.confidence.sources, once.confidence.evidence) == (2, 2)
    say("Elsewhere " + TEXT, [(10, 30)])
    twice = graph.measured(flood)
    assert (twice.grounding.supports, twice.grounding.support) == (1, pytest.approx(0.6))
    assert [(r.label, r.type, r.confidence, r.documents, r.stance) for r in twice.reasons] == [
        ("Rain", "CAUSES", 0.5, 2, pytest.approx(0.6))
    ]
    assert twice.grounding.value > once.grounding.value
    assert twice.confidence.value > once.confidence.value


def test_a_measured_stance_counts_and_what_denies_it_is_its_opposite(graph: Graph, connection: Session) -> None:
    ids = write(graph, [("a", "CAUSES", "x"), ("b", "NOT_CAUSES", "y"), ("c", "CAUSED_BY", "z"), ("d", "HALTS", "x")])
    connection.execute(
        "INSERT INTO kappa_graph.type_measures (type_id, stance, model) SELECT id, 0.25, 'm' FROM"
        " kappa_graph.relation_types WHERE name IN ('CAUSES', 'CAUSED_BY', 'NOT_CAUSES')"
    )
    x, y, z = (graph.measured(ids[name]) for name in "xyz")
    assert (x.grounding.support, x.grounding.contradiction) == (pytest.approx(0.25), 0)
    assert [(reason.type, reason.by) for reason in x.reasons] == [("CAUSES", "embedding")]
    assert (y.grounding.support, y.grounding.contradiction) == (0, pytest.approx(0.25))
    assert (z.grounding.value, z.reasons) == (0, ())


def test_answers_are_measured_on_request(graph: Graph) -> None:
    ids = write(graph, [("seed", "SUPPORTS", "good"), ("seed", "CONTRADICTS", "bad"), ("seed", "NEAR", "plain")])
    answer = graph.with_measures(graph.related(ids["seed"], 1))
    values = {item.concept.label: item.concept.measured for item in answer.items}
    signs = {label: np.sign(found.grounding.value) for label, found in values.items() if found is not None}
    assert signs == {"good": 1, "bad": -1, "plain": 0}
    assert [item.concept.label for item in answer.items] == [
        i.concept.label for i in graph.related(ids["seed"], 1).items
    ]
    hits = graph.with_measures(graph.search("good"))
    assert hits.items[0].concept.measured == values["good"]
    assert graph.with_measures(graph.search("nobody")).items == ()
    with pytest.raises(UnknownConcept):
        graph.measured(UUID(int=7))


def test_measures_that_are_not_there_by_the_deadline_are_left_out_and_said(graph: Graph, url: str) -> None:
    ids = write(graph, [("seed", "SUPPORTS", "good")])
    graph.refresh()
    related, paths = graph.related(ids["seed"], 1), graph.paths(ids["seed"], ids["good"])
    with psycopg.connect(url) as other:
        other.execute("LOCK kappa_graph.relation_types IN ACCESS EXCLUSIVE MODE")
        late = (graph.with_measures(related, deadline=0.5), graph.with_measured_paths(paths, deadline=0.5))
        for before, after in zip((related, paths), late, strict=True):
            assert (before.complete, after.complete, after.items) == (True, False, before.items)
            assert [(one.what, one.why) for one in after.skipped] == [
                ("the measures", "concepts were still measured when the deadline passed")
            ]
        for act in (graph.measured, lambda one, **how: graph.measures([one], **how)):
            with pytest.raises(QuestionStopped, match="still measured when the deadline passed"):
                act(ids["good"], deadline=0.5)
    cancel = Cancel()
    cancel.cancel()
    assert graph.with_measures(related, cancel=cancel).skipped[0].why.endswith("the question was cancelled")
    assert graph.with_measures(related, deadline=PATIENCE).complete


def test_many_concepts_are_measured_as_each_is(graph: Graph, connection: Session) -> None:
    """A hundred concepts with a hundred relations each."""
    targets = [f"t{n}" for n in range(100)]
    ids = write(graph, [(f"s{n}", "SUPPORTS" if n % 3 else "PREVENTS", t) for t in targets for n in range(100)])
    connection.execute("ANALYZE kappa_graph.relations")
    alone = {graph.measured(ids[target]).grounding.supports for target in targets[:20]}
    found = graph.measures([ids[target] for target in targets])
    assert {measured.grounding.supports for measured in found.values()} == alone == {66}
