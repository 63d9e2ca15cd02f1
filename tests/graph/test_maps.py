"""Maps of embeddings, clusters and their names, and the pictures."""

import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappa.graph import BadQuestion, Graph, UnknownOntology
from kappa.graph.measures import clusters, pictures, projection
from kappa.graph.model import Skipped
from kappa.pg.queries import Row
from tests.graph.dump import canonical
from tests.graph.worlds import write

Session = psycopg.Connection[Row]
SVG = "{http://www.w3.org/2000/svg}"


def bunches(count: int, each: int, size: int = 8, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of length 1 in so many bunches, and which is in which."""
    rng = np.random.default_rng(seed)
    middles = np.linalg.qr(rng.normal(size=(size, size)))[0][:count]
    vectors = np.repeat(middles, each, axis=0) + 0.1 * rng.normal(size=(count * each, size))
    return projection.unit(vectors), np.repeat(np.arange(count), each)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 12), st.integers(1, 6))
def test_principal_components_are_the_eigenvectors_of_the_covariance(seed: int, count: int, size: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(count, size))
    found = projection.components(vectors, 2)
    assert found.shape == (count, 2)
    values = (
        np.sort(np.linalg.eigvalsh(np.atleast_2d(np.cov(vectors.T, bias=True))))[::-1] if count > 1 else np.zeros(size)
    )
    expected = [*values.tolist(), 0.0][:2]
    assert (found**2).mean(axis=0) == pytest.approx(expected, abs=1e-9)
    assert found.mean(axis=0) == pytest.approx([0, 0], abs=1e-9)


def kept_neighbours(places: np.ndarray, groups: np.ndarray) -> float:
    """The share of everybody's five nearest that are of the same bunch."""
    far = projection.distances(places, places)
    np.fill_diagonal(far, np.inf)
    nearest = np.argsort(far, axis=1)[:, :5]
    return float((groups[nearest] == groups[:, None]).mean())


def test_neighbours_stay_neighbours_on_the_map() -> None:
    vectors, groups = bunches(6, 20)
    rounds: list[int] = []
    places = projection.tsne(vectors, rounds.append)
    assert rounds == sorted(rounds)  # the first is said again and again, while likenesses are measured
    assert set(rounds) == set(range(projection.ROUNDS))
    assert np.abs(places).max() == 1
    assert np.array_equal(places, projection.tsne(vectors))
    assert kept_neighbours(places, groups) > 0.98 > kept_neighbours(projection.pca(vectors), groups)


def test_affinities_have_the_perplexity_that_was_asked_for() -> None:
    vectors, _ = bunches(3, 20)
    alike = projection.affinities(vectors, 10.0)
    assert alike.sum() == pytest.approx(1, abs=1e-6)
    assert np.allclose(alike, alike.T)
    far = projection.distances(vectors, vectors)
    # By hand, row by row: the width whose entropy is log 10.
    others = []
    for at in range(len(vectors)):
        mine = np.delete(far[at], at)
        a, b = 1e-3, 1e3
        for _ in range(100):
            w = (a * b) ** 0.5
            s = np.exp(-mine * w) / np.exp(-mine * w).sum()
            a, b = (w, b) if -(s * np.log(np.maximum(s, 1e-300))).sum() > np.log(10) else (a, w)
        others.append(np.insert(np.exp(-mine * a) / np.exp(-mine * a).sum(), at, 0.0))
    shares = np.array(others)
    assert np.allclose(alike, (shares + shares.T) / (2 * len(vectors)), atol=1e-6)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
def test_few_vectors_have_a_map_too(count: int) -> None:
    vectors = np.eye(8)[:count]
    for way in (projection.pca, projection.tsne):
        if count:
            assert np.isfinite(way(vectors)).all()
    assert len(clusters.cluster(vectors, 3, 1)) == count
    same = np.tile(np.eye(8)[0], (6, 1))
    assert np.array_equal(projection.pca(same), np.zeros((6, 2)))
    assert clusters.cluster(same, 3, 1).tolist() == [0] * 6


def test_clusters_are_the_bunches_and_the_largest_is_first() -> None:
    vectors, groups = bunches(3, 10)
    vectors, groups = vectors[:-4], groups[:-4]
    found = clusters.cluster(vectors, 3, seed=7)
    assert np.array_equal(found, clusters.cluster(vectors, 3, seed=7))
    assert len({(int(a), int(b)) for a, b in zip(found, groups, strict=True)}) == 3
    assert np.bincount(found).tolist() == [10, 10, 6]


def test_clusters_are_named_by_the_words_they_share() -> None:
    texts = ["river otter", "sea otter", "giant otter", "red wine", "white wine", "quartz"]
    assert clusters.names(texts, [0, 0, 0, 1, 1, 2], ["sea otter", "red wine", "quartz"]) == ["otter", "wine", "quartz"]


HOSTILE = "<script>alert('x')</script> & \"quotes\" \x01\ud800 ]]>"


@settings(deadline=None)
@given(st.lists(st.text(max_size=60), min_size=1, max_size=5))
def test_pictures_are_sound_whatever_they_say(labels: list[str]) -> None:
    said = [HOSTILE, *labels]
    points = [pictures.Point(0.1 * at, -0.1 * at, label, at, at) for at, label in enumerate(said)]
    marks = [pictures.Mark(label, at - 2.0, "neutral", None) for at, label in enumerate(said)]
    drawn = (
        pictures.projection(said[-1], points, [(label, 3) for label in said]),
        pictures.polarity(HOSTILE, said[-1], marks, HOSTILE),
    )
    for picture in drawn:
        tags = {element.tag.removeprefix(SVG) for element in ET.fromstring(picture).iter()}
        assert tags <= {"svg", "title", "style", "text", "circle", "line"}
        assert b"<script" not in picture
        assert b"href" not in picture
        assert b"url(" not in picture


def test_labels_on_the_map_do_not_overlap() -> None:
    points = [pictures.Point(0.0, 0.001 * at, f"concept {at}", 0, at) for at in range(100)]
    drawn = ET.fromstring(pictures.projection("crowd", points, [("all", 100)]))
    shown = [text.text for text in drawn.iter(f"{SVG}text") if (text.text or "").startswith("concept")]
    assert len(list(drawn.iter(f"{SVG}circle"))) == 101
    assert "concept 99" in shown
    assert len(shown) < 10


def test_every_cluster_on_the_map_has_a_concept_that_is_named() -> None:
    crowd = [pictures.Point(at % 10 / 5 - 1, at // 10 / 10 - 1, f"much {at}", 0, 9) for at in range(100)]
    aside = [pictures.Point(0.5, 0.5 + at / 10, f"little {at}", 1, 1) for at in range(4)]
    drawn = ET.fromstring(pictures.projection("two", [*crowd, *aside], [("many", 100), ("few", 4)]))
    shown = [text.text for text in drawn.iter(f"{SVG}text")]
    assert len(shown) == pictures.MOST_LABELS + 3, "a title, and a legend of two"
    assert "little 0" in shown


def test_a_name_on_the_map_stands_above_its_point_rather_than_on_those_beside_it() -> None:
    points = [
        pictures.Point(x, 0.0, label, 0, 3 - at)
        for at, (x, label) in enumerate([(0.0, "otter"), (0.05, ""), (-0.05, "")])
    ]
    drawn = ET.fromstring(pictures.projection("row", points, [("all", 3)]))
    otter = next(text for text in drawn.iter(f"{SVG}text") if text.text == "otter")
    dot = next(iter(drawn.iter(f"{SVG}circle")))
    assert (otter.get("text-anchor"), otter.get("x")) == ("middle", dot.get("cx"))
    assert float(otter.get("y") or 0) < float(dot.get("cy") or 0) - 4


def animals(graph: Graph) -> dict[str, np.ndarray]:
    vectors, groups = bunches(3, 8)
    names = ("otter", "wine", "quartz")
    labels = [f"{names[group]} {at}" for at, group in enumerate(groups)]
    ids = write(graph, [(labels[0], "NEAR", label) for label in labels])
    graph.set_embeddings("m", {ids[label]: vector.tolist() for label, vector in zip(labels, vectors, strict=True)})
    return dict(zip(labels, vectors, strict=True))


@pytest.mark.parametrize("way", ["pca", "tsne"])
def test_a_map_is_an_artifact_and_the_same_one_the_second_time(graph: Graph, connection: Session, way: str) -> None:
    vectors = animals(graph)
    steps: list[float] = []
    made = graph.project(way=way, step=lambda done, total, what: steps.append(done / total))
    assert steps == sorted(steps)
    assert steps[-1] < 1
    content = graph.artifact_content(made)
    assert {one["label"] for one in content["concepts"]} == set(vectors)
    assert {one["name"] for one in content["clusters"]} == {"otter", "wine", "quartz"}
    assert sum(one["size"] for one in content["clusters"]) == 24
    if way == "pca":
        places = {one["label"]: (one["x"], one["y"]) for one in content["concepts"]}
        matrix = np.array([vectors[label] for label in places])
        _, _, axes = np.linalg.svd(matrix - matrix.mean(axis=0))
        expected = (matrix - matrix.mean(axis=0)) @ axes[:2].T
        got = np.array(list(places.values()))
        for column in range(2):
            assert abs(np.corrcoef(expected[:, column], got[:, column])[0, 1]) == pytest.approx(1, abs=1e-4)
    found = graph.artifact(made)
    assert found is not None
    assert (found.kind, found.media_type, found.as_of_epoch) == ("projection", "image/svg+xml", graph.epoch())
    picture = graph.artifact_data(made)
    assert picture is not None
    assert ET.fromstring(picture).tag == f"{SVG}svg"
    before = canonical(connection)
    again: list[float] = []
    assert graph.project(way=way, step=lambda done, total, what: again.append(done)) == made
    assert again == []
    assert canonical(connection) == before
    connection.execute("DELETE FROM kappa_graph.artifacts")
    assert graph.project(way=way) == made
    assert (graph.artifact_content(made), graph.artifact_data(made)) == (content, picture)
    assert graph.project(way=way, seed=2) != made


def test_a_map_of_the_best_connected_of_one_ontology(graph: Graph) -> None:
    animals(graph)
    ids = write(graph, [("a", "NEAR", "b"), ("a", "NEAR", "c"), ("b", "NEAR", "c"), ("a", "NEAR", "d")], "other")
    graph.set_embeddings("m", {key: [float(at == n) for n in range(8)] for at, key in enumerate(ids.values())})
    made = graph.project(ontology="other", most=3, way="pca")
    assert {one["label"] for one in graph.artifact_content(made)["concepts"]} == {"a", "b", "c"}
    assert [one.id for one in graph.artifacts(ontology="other")] == [made]


def test_a_polarity_that_is_not_complete_says_so_and_is_not_what_the_next_one_finds(graph: Graph) -> None:
    animals(graph)
    poles = [graph.concept_by_label(label)[0].id for label in ("otter 0", "quartz 23")]
    whole = graph.polarity(*poles)
    part = replace(
        whole, complete=False, items=whole.items[:1], skipped=(Skipped("the candidates", "the deadline passed"),)
    )
    partial = graph.keep_polarity(part, {"positive": "otter 0"})
    complete = graph.keep_polarity(whole, {"positive": "otter 0"})
    assert [len(graph.artifact_content(one)["items"]) for one in (partial, complete)] == [1, len(whole.items)]
    pictures = [graph.artifact_data(one) or b"" for one in (partial, complete)]
    assert [b"NOT COMPLETE: the candidates: the deadline passed" in one for one in pictures] == [True, False]
    kept = [graph.artifact(one) for one in (partial, complete)]
    assert [one is not None and one.expires_at is not None for one in kept] == [True, False]


def test_what_has_no_map_is_refused(graph: Graph) -> None:
    with pytest.raises(BadQuestion, match="nothing to map"):
        graph.project()
    animals(graph)
    with pytest.raises(BadQuestion, match="by 'n'"):
        graph.project(model="n")
    with pytest.raises(UnknownOntology):
        graph.project(ontology="nowhere")
    for terms in ({"most": 0}, {"most": 2_001}, {"way": "umap"}, {"way": "pca", "most": 20_001}):
        with pytest.raises(BadQuestion, match="there may be"):
            graph.project(**terms)
