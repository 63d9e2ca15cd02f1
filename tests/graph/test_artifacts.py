"""Results that are kept: known by what they are about, written once, gone when their time is over."""

from datetime import timedelta

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kappa.graph import BadWrite, Graph, UnknownOntology
from kappa.graph.findings import NewArtifact
from kappa.graph.store import artifacts
from kappa.pg.queries import Row

Session = psycopg.Connection[Row]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.floats(-1e15, 1e15)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcé'\"\\$", max_size=4), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


def test_the_second_writing_of_an_artifact_changes_nothing(graph: Graph, connection: Session) -> None:
    graph.ontology("zoo")
    first = NewArtifact(
        "projection", 7, {"seed": 1, "way": "pca"}, "map", "zoo", {"points": []}, b"<svg/>", "image/svg+xml"
    )
    key, written = artifacts.add(connection, first)
    assert written
    found = artifacts.find(connection, key)
    assert found is not None
    assert (found.kind, found.ontology, found.parameters, found.size) == (
        "projection",
        "zoo",
        dict(first.parameters),
        6,
    )
    again = NewArtifact("projection", 7, {"way": "pca", "seed": 1}, "other", "zoo", {"points": [1]}, b"", "text/plain")
    assert artifacts.add(connection, again) == (key, False)
    assert artifacts.find(connection, key) == found
    assert artifacts.content(connection, key) == {"points": []}
    assert artifacts.data(connection, key) == b"<svg/>"


def test_what_it_is_about_tells_artifacts_apart(graph: Graph, connection: Session) -> None:
    graph.ontology("zoo")
    about = [
        NewArtifact("a", 1, content=0), NewArtifact("b", 1, content=0), NewArtifact("a", 2, content=0),
        NewArtifact("a", 1, {"x": None}, content=0), NewArtifact("a", 1, ontology="zoo", content=0),
    ]  # fmt: skip
    assert len({artifacts.add(connection, one)[0] for one in about}) == len(about)
    assert [one.kind for one in artifacts.find_all(connection)] == ["a", "a", "a", "b", "a"]
    assert [one.as_of_epoch for one in artifacts.find_all(connection, kind="a", limit=3)] == [1, 1, 2]
    assert [one.ontology for one in artifacts.find_all(connection, ontology="zoo")] == ["zoo"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=json_values, epoch=st.integers(0, 1 << 62))
def test_what_is_put_in_comes_out_again(connection: Session, value: object, epoch: int) -> None:
    parameters = {"value": value}
    with connection.transaction(force_rollback=True):
        key, _ = artifacts.add(connection, NewArtifact("any", epoch, parameters, content={"of": value}))
        assert artifacts.content(connection, key) == {"of": value}
        found = artifacts.find(connection, key)
        assert found is not None
        assert found.parameters == parameters
        assert artifacts.add(connection, NewArtifact("any", epoch, parameters, content={})) == (key, False)


def test_what_postgresql_cannot_keep_is_kept_as_it_is_told(connection: Session) -> None:
    key, _ = artifacts.add(connection, NewArtifact("any", 1, content={"label": ["a\0b\ud800", "\\u0000"]}))
    assert artifacts.content(connection, key) == {"label": ["a\\0b\\ud800", "\\u0000"]}


def test_an_expired_artifact_is_not_there_and_begins_anew(connection: Session) -> None:
    short = NewArtifact("any", 1, content=1, keep=timedelta(hours=1))
    key, _ = artifacts.add(connection, short)
    found = artifacts.find(connection, key)
    assert found is not None
    assert found.expires_at is not None
    over = found.expires_at
    assert artifacts.find(connection, key, over) is None
    assert artifacts.find_all(connection, now=over) == []
    assert artifacts.content(connection, key, over) is None
    connection.execute("UPDATE kappa_graph.artifacts SET expires_at = now()")
    assert artifacts.content(connection, key) is None
    assert artifacts.add(connection, NewArtifact("any", 1, content=2)) == (key, True)
    assert artifacts.content(connection, key) == 2


def test_an_artifact_goes_with_its_ontology_or_by_itself(graph: Graph, connection: Session) -> None:
    graph.ontology("zoo")
    inside, _ = artifacts.add(connection, NewArtifact("any", 1, ontology="zoo", data=b"x"))
    outside, _ = artifacts.add(connection, NewArtifact("any", 1, data=b"x"))
    graph.delete_ontology("zoo")
    assert artifacts.data(connection, inside) is None
    assert artifacts.data(connection, outside) == b"x"
    assert artifacts.delete(connection, outside)
    assert not artifacts.delete(connection, outside)


def test_what_is_no_artifact_is_refused(connection: Session) -> None:
    with pytest.raises(BadWrite, match="something in it"):
        artifacts.add(connection, NewArtifact("any", 1))
    with pytest.raises(BadWrite, match="no JSON"):
        artifacts.add(connection, NewArtifact("any", 1, content=float("nan")))
    with pytest.raises(UnknownOntology):
        artifacts.add(connection, NewArtifact("any", 1, content=1, ontology="nowhere"))
