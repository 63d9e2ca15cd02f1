"""What embeddings say of relation types: categories, sides, synonyms; against calculations of our own."""

from collections.abc import Mapping, Sequence

import numpy as np
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappa.graph import BadQuestion, Graph
from kappa.graph.ingest.embedding import PROVIDER, Thresholds, Vectors
from kappa.graph.ingest.local.vocabulary import vocabulary as words
from kappa.graph.ingest.match import type_text
from kappa.graph.measures import vocabulary
from kappa.graph.store.vocabulary import Embedded
from kappa.pg.queries import Row
from tests.graph.dump import canonical
from tests.graph.worlds import write

Session = psycopg.Connection[Row]
SIZE = 12


class Made:
    """An embedder whose vectors are said, or follow from the letters of a text."""

    model = "made"
    dimension = SIZE
    thresholds: Thresholds = PROVIDER

    def __init__(self, said: Mapping[str, Sequence[float]] | None = None) -> None:
        self.said = dict(said or {})
        self.texts: list[str] = []

    def embed(self, texts: Sequence[str]) -> Vectors:
        self.texts += texts
        return np.array([self.said.get(text) or self.of(text) for text in texts], np.float32)

    def of(self, text: str) -> list[float]:
        vector = np.random.default_rng(list(text.encode())).normal(size=SIZE)
        return (vector / np.linalg.norm(vector)).tolist()

    def close(self) -> None:
        pass


def seeds(embedder: Made) -> dict[str, list[float]]:
    names = vocabulary.seed_names()
    return dict(zip(names, embedder.embed([type_text(name) for name in names]).tolist(), strict=True))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 8))
def test_stances_are_those_of_plain_geometry(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    known = {name: rng.normal(size=SIZE) for name in vocabulary.seed_names()}
    poles = {name for pair in vocabulary.POLES for name in pair}
    given_vectors = rng.normal(size=(count, SIZE))
    given_vectors[::2] += 3 * known["CONTRADICTS"]
    found = vocabulary.stances(given_vectors, {name: vector.tolist() for name, vector in known.items()})
    steps = [
        (known[plus] - known[minus]) / np.linalg.norm(known[plus] - known[minus]) for plus, minus in vocabulary.POLES
    ]
    along = np.sum(steps, axis=0) / np.linalg.norm(np.sum(steps, axis=0))
    plus_end = np.mean([known[plus] @ along for plus, _ in vocabulary.POLES])
    minus_end = np.mean([known[minus] @ along for _, minus in vocabulary.POLES])

    def cosine(a: np.ndarray, b: np.ndarray) -> float:
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    for vector, value in zip(given_vectors, found, strict=True):
        near = max(cosine(vector, known[name]) for name in poles)
        other = max(cosine(vector, known[name]) for name in known if name not in poles)
        if near <= other or near < vocabulary.NEAR:
            assert value is None
            continue
        # The poles' means lie at 1 and -1, and everything between them in proportion.
        place = np.clip(-1 + 2 * (vector @ along - minus_end) / (plus_end - minus_end), -1, 1)
        assert value == pytest.approx(place if abs(place) >= vocabulary.NEUTRAL else 0, abs=1e-3)


def test_poles_lie_on_their_sides_and_pairs_are_needed() -> None:
    made = seeds(Made())
    ends = np.array([[made[plus], made[minus]] for plus, minus in vocabulary.POLES])
    axis = vocabulary.axis(made)
    assert np.linalg.norm(axis.along) == pytest.approx(1)
    assert axis.half > 0
    assert (ends[:, 0] - ends[:, 1]).mean(axis=0) @ axis.along > 0
    with pytest.raises(BadQuestion, match="no pair"):
        vocabulary.axis({"SUPPORTS": made["SUPPORTS"], "PREVENTS": made["PREVENTS"]})


def test_a_type_is_of_the_category_whose_seed_it_is_most_like(graph: Graph, connection: Session) -> None:
    near, far = np.zeros(SIZE), np.zeros(SIZE)
    embedder = Made()
    known = seeds(embedder)
    near = np.array(known["PART_OF"]) + 0.05 * np.array(known["CAUSES"])
    between = np.array(known["PART_OF"]) + np.array(known["CAUSES"])
    far = -np.sum([known[name] for name in words().categories], axis=0)
    embedder.said = {"piece of": near.tolist(), "unclear": between.tolist(), "strange": far.tolist()}
    write(graph, [("a", "PIECE_OF", "b"), ("a", "UNCLEAR", "b"), ("a", "STRANGE", "b"), ("a", "CAUSES", "b")])
    assert graph.embed_types(embedder) == 4
    assert graph.score_types("made") == {"types": 4, "changed": 4, "categorised": 2, "ambiguous": 2}
    found = {one.name: one for one in graph.vocabulary()}
    assert (found["PIECE_OF"].category, found["PIECE_OF"].best, found["PIECE_OF"].ambiguous) == ("structure",) * 2 + (
        False,
    )
    assert (found["UNCLEAR"].category, found["UNCLEAR"].ambiguous) == ("", True)
    assert (found["STRANGE"].category, found["STRANGE"].ambiguous) == ("", True)
    assert found["CAUSES"].category == "causal"
    assert found["CAUSES"].stance_by == "embedding"
    scores = found["PIECE_OF"].scores
    assert scores is not None
    unit = near / np.linalg.norm(near)
    for category in scores:
        expected = max(float(unit @ np.array(known[n])) for n, c in words().categories.items() if c == category)
        assert scores[category] == pytest.approx(expected, abs=1e-3)
    before = canonical(connection)
    embedder.texts.clear()
    assert graph.embed_types(embedder) == 0
    assert embedder.texts == []
    assert graph.score_types("made") == {"types": 4, "changed": 0, "categorised": 0, "ambiguous": 2}
    assert canonical(connection) == before


def embedded(vectors: Mapping[str, Sequence[float]]) -> list[Embedded]:
    return [Embedded(at, name, "", list(vector)) for at, (name, vector) in enumerate(vectors.items())]


def test_the_two_most_alike_are_merged_and_the_more_used_stays() -> None:
    types = embedded({"EATS": (1, 0, 0), "DEVOURS": (1, 0.1, 0), "CONSUMES": (1, 0.3, 0), "LIVES_IN": (0, 0, 1)})
    found = list(vocabulary.alike(types, 0.8))
    assert [pair[:2] for pair in found] == [("EATS", "DEVOURS"), ("DEVOURS", "CONSUMES"), ("EATS", "CONSUMES")]
    assert found[0][2] == pytest.approx(1 / np.sqrt(1.01), abs=1e-6)
    assert list(vocabulary.alike(types, 0.9999)) == []
    assert list(vocabulary.alike(types[:1], 0.5)) == []
    assert vocabulary.more_used_first(("EATS", "DEVOURS"), {"EATS": 5, "DEVOURS": 9}) == ["DEVOURS", "EATS"]
    # Of equals the one that is a seed, then the first by name.
    assert vocabulary.more_used_first(("AFFORDS", "CAUSES"), {}) == ["CAUSES", "AFFORDS"]
    assert vocabulary.more_used_first(("DEVOURS", "CONSUMES"), {}) == ["CONSUMES", "DEVOURS"]


@pytest.mark.parametrize("seed", range(5))
def test_every_two_that_are_alike_are_found_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where they are compared in parts."""
    monkeypatch.setattr(vocabulary, "ROWS", 7)
    unit = np.random.default_rng(seed).normal(size=(30, 3))
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    names = [chr(65 + at // 26) * 3 + chr(65 + at % 26) * 3 for at in range(30)]  # no numbers: those tell apart
    types = embedded({name: vector.tolist() for name, vector in zip(names, unit, strict=True)})
    near = np.round(unit @ unit.T, 6)
    expected = {(names[i], names[j]) for i in range(30) for j in range(i + 1, 30) if near[i, j] >= 0.8}
    found = list(vocabulary.alike(types, 0.8))
    assert {pair[:2] for pair in found} == expected
    assert len(found) == len(expected) > 20
    assert [pair[2] for pair in found] == sorted((pair[2] for pair in found), reverse=True)


@pytest.mark.parametrize(
    ("one", "other"),
    [("CAUSES", "NOT_CAUSES"), ("CAUSES", "CAUSED_BY"), ("ENABLES", "DISABLES"), ("INCREASES", "DECREASES")],
)
def test_what_words_tell_apart_is_never_merged(one: str, other: str) -> None:
    assert list(vocabulary.alike(embedded({one: (1, 0), other: (1, 0)}), 0.5)) == []


@pytest.mark.parametrize(
    ("sampled", "groundings", "status"),
    [
        (4, [1.0] * 4, "insufficient"), (50, [1.0, 1.0], "insufficient"), (0, [], "insufficient"),
        (5, [0.9, 0.1, 0.5], "well"), (9, [0.2] * 3, "mixed"), (9, [0.0] * 3, "weak"), (9, [0.3, -0.4, -0.1], "poorly"),
        (9, [-0.5] * 3, "contradicted"),
    ],
)  # fmt: skip
def test_a_types_worth_follows_from_its_sample(sampled: int, groundings: list[float], status: str) -> None:
    found, mean = vocabulary.epistemic(sampled, groundings)
    assert found == status
    assert mean == (pytest.approx(np.mean(groundings), abs=1e-4) if groundings else None)


def test_a_type_is_remeasured_by_the_targets_of_its_relations(graph: Graph, connection: Session) -> None:
    good = [(f"s{n}", "SUPPORTS", f"good{m}") for n in range(8) for m in range(5)]
    bad = [(f"s{n}", "CONTRADICTS", f"bad{m}") for n in range(8) for m in range(5)]
    praise = [("x", "PRAISES", f"good{m}") for m in range(5)] + [("x", "BLAMES", f"bad{m}") for m in range(5)]
    write(graph, [*good, *bad, *praise, *(("x", "NEAR", f"lonely{m}") for m in range(9)), ("x", "RARE", "good1")])
    expected = 8 / (8 + 1.96**2)
    numbers = {name: number for number, name in graph.active_types()}
    told = {
        name: graph.remeasure_type(number, graph.groundings(), sample=100, seed=1)[0]
        for name, number in numbers.items()
    }
    assert told == {
        "SUPPORTS": "well", "PRAISES": "well", "CONTRADICTS": "contradicted", "BLAMES": "contradicted",
        "NEAR": "insufficient", "RARE": "insufficient",
    }  # fmt: skip
    found = {one.name: one for one in graph.vocabulary()}
    assert found["PRAISES"].grounding == pytest.approx(expected, abs=1e-4)
    assert (found["SUPPORTS"].sampled, found["NEAR"].sampled, found["NEAR"].grounding) == (40, 9, None)
    before = canonical(connection)
    assert not any(
        graph.remeasure_type(number, graph.groundings(), sample=100, seed=1)[1] for number in numbers.values()
    )
    assert canonical(connection) == before
    # A smaller sample is the same one each time.
    few = [graph.remeasure_type(numbers["SUPPORTS"], graph.groundings(), sample=7, seed=3) for _ in range(2)]
    assert few == [("well", True), ("well", False)]


def test_the_local_model_knows_the_sides_of_words_it_was_not_told(graph: Graph) -> None:
    """With the real model, on types that are no seeds."""
    from kappa.graph.ingest.local.embed import LocalEmbedder

    for_it, against, neither = ("ALLOWS", "STRENGTHENS"), ("CRITICISES", "INHIBITS"), ("LIVES_IN", "DEPENDS_ON", "OWNS")
    write(graph, [("a", name, "b") for name in (*for_it, *against, *neither)])
    with LocalEmbedder() as embedder:
        graph.embed_types(embedder)
        graph.score_types(embedder.model)
    found = {one.name: one for one in graph.vocabulary()}
    assert all(found[name].stance > 0 for name in for_it)
    assert all(found[name].stance < 0 for name in against)
    assert all(found[name].stance == 0 for name in neither)
    assert found["LIVES_IN"].best == "place"
