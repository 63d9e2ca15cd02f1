"""Ontologies are scored, changes are proposed once, carried out once in one transaction, and undone without a trace."""

from collections.abc import Callable
from typing import Any

import numpy as np
import psycopg
import pytest

from kappa.graph import Graph, NewConcept, NewRelation
from kappa.graph.annealing import proposing, scoring
from kappa.graph.annealing.executing import execute
from kappa.graph.annealing.proposing import Annealed, Thresholds, anneal
from kappa.graph.annealing.undoing import undo
from kappa.graph.errors import BadProposal
from kappa.graph.store import proposals, vectors
from kappa.graph.store.proposals import Proposal
from kappa.pg.queries import Row
from tests.graph.dump import HISTORY, Lines, dump, whole
from tests.graph.libraries import OTTERS, write_beside, write_document, write_library

Session = psycopg.Connection[Row]


@pytest.fixture
def made(connection: Session) -> Callable[..., Proposal]:
    """Anneals, and gives the only proposal of a kind, approved."""

    def find(kind: str, **thresholds: Any) -> Proposal:
        anneal(connection, Thresholds(**thresholds))
        found = [one for one in proposals.find_all(connection) if one.kind == kind]
        assert len(found) == 1, found
        assert proposals.decide(connection, found[0].id, "approved", "ada")
        return found[0]

    return find


def do(connection: Session, act: Callable[[Session, int], int], proposal: Proposal) -> int:
    with connection.transaction():
        return act(connection, proposal.id)


def take_back(connection: Session, proposal: Proposal) -> None:
    assert proposals.ask_undo(connection, proposal.id, "ada")
    do(connection, undo, proposal)


def content(url: str) -> Lines:
    return {table: lines for table, lines in dump(url).items() if table not in HISTORY}


def overlapping(graph: Graph, url: str) -> None:
    """Two ontologies with a document, three concepts and two relations in common, and something of their own each."""
    write_library(graph)
    write_document(
        graph, "brooks", "otters.txt", OTTERS,
        [("otters", "LIVES_IN", "rivers"), ("otters", "EATS", "fish"), ("otters", "NEEDS", "water")],
    )  # fmt: skip
    write_document(graph, "brooks", "own.txt", "Beavers build dams in rivers.", [("beavers", "BUILDS", "dams")])
    ours = graph.concept_by_label("fish", "brooks")[0].id
    theirs = graph.concept_by_label("otters", "rivers")[0].id
    graph.add_relations([NewRelation(ours, theirs, "FEARS", 0.9), NewRelation(ours, ours, "EATS", 0.3)])
    graph.add_relations([NewRelation(ours, graph.concept_by_label("fish", "rivers")[0].id, "SAME_AS", 0.5)])
    write_beside(url)


def test_mass_coherence_and_overlap_are_what_numpy_says(graph: Graph, connection: Session) -> None:
    generator = np.random.default_rng(7)
    labels = [f"c{n}" for n in range(9)]
    ids = graph.add_concepts("a", [NewConcept(label) for label in labels]).ids
    vectors = {label: generator.normal(size=5).tolist() for label in labels}
    graph.set_embeddings("m", {ids[label]: vector for label, vector in vectors.items()})
    other = graph.add_concepts("b", [NewConcept("C1"), NewConcept("c2 "), NewConcept("elsewhere")]).ids
    graph.set_embeddings("m", {other["C1"]: [1, 0, 0, 0, 0], other["elsewhere"]: [0, 1, 0, 0, 0]})
    a, b = scoring.score(connection)
    unit = np.array([np.float32(vector) for vector in vectors.values()], dtype=np.float64)
    unit /= np.linalg.norm(unit, axis=1)[:, None]
    mean = unit.mean(axis=0) / np.linalg.norm(unit.mean(axis=0))
    assert a.mass == scoring.Mass(0, 9, 0, 0)
    assert a.coherence == pytest.approx(float(np.mean([vector @ mean for vector in unit])), abs=1e-9)
    found = scoring.overlap(a, b)
    assert (found.shared, found.share, found.examples) == (2, pytest.approx(2 / 3), ("c1", "c2"))
    assert found.similarity == pytest.approx(float(mean @ (np.array([1, 1, 0, 0, 0]) / np.sqrt(2))), abs=1e-9)


def test_what_is_read_in_parts_is_scored_as_what_is_read_at_once(
    graph: Graph, connection: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(11)
    for name, labels in (("a", "pqrstuvw"), ("b", "rstuxy"), ("c", "z"), ("d", "wxyz")):
        ids = graph.add_concepts(name, [NewConcept(label) for label in labels]).ids
        model, size = ("m", 5) if name != "d" else ("other", 3)
        graph.set_embeddings(model, {key: generator.normal(size=size).tolist() for key in ids.values()})
    at_once = scoring.score(connection)
    told: list[tuple[int, int, str]] = []
    monkeypatch.setattr(scoring, "BATCH", 3)
    monkeypatch.setattr(vectors, "PART_BYTES", 1)
    in_parts = scoring.score(connection, lambda *said: told.append(said))
    for one, other in zip(at_once, in_parts, strict=True):
        assert (one.labels, one.mass, one.model) == (other.labels, other.mass, other.model)
        assert one.coherence == pytest.approx(other.coherence)
        if one.middle is None:
            assert other.middle is None
        else:
            np.testing.assert_allclose(one.middle, other.middle)
    assert [one.coherence is None for one in at_once] == [False, False, True, False]
    assert len(told) > 20
    assert all(done <= total for done, total, _ in told)
    # The same pairs as if each were held against each.
    wanted = [(i, j) for i in range(4) for j in range(i + 1, 4) if scoring.overlap(at_once[i], at_once[j]).shared >= 2]
    assert scoring.sharing(at_once, 2) == wanted == [(0, 1), (1, 3)]
    assert scoring.sharing(at_once, 5) == []


def test_a_proposal_is_made_once_whatever_becomes_of_it(graph: Graph, url: str, connection: Session) -> None:
    overlapping(graph, url)
    with psycopg.connect(url) as other:
        other.execute("DELETE FROM kappa_graph.proposals")
    first = anneal(connection)
    assert first == Annealed(3, 1, 0)
    assert anneal(connection) == Annealed(3, 0, 1)
    only = proposals.find_all(connection)[0]
    assert (only.kind, only.body["name"], only.body["into"]) == ("merge", "rivers", "brooks") or (
        only.body["name"], only.body["into"]) == ("brooks", "rivers")  # fmt: skip
    assert only.scores["overlap"]["examples"]
    assert proposals.decide(connection, only.id, "rejected", "ada")
    assert not proposals.decide(connection, only.id, "approved", "bob")
    assert anneal(connection).proposed == 0


def test_a_merge_unites_what_is_the_same_and_its_undo_leaves_no_trace(
    graph: Graph, url: str, connection: Session, made: Callable[..., Proposal]
) -> None:
    overlapping(graph, url)
    with psycopg.connect(url) as other:
        other.execute("DELETE FROM kappa_graph.proposals")
    proposal = made("merge")
    before = content(url)
    do(connection, execute, proposal)
    whole(url)
    gone, into = proposal.body["name"], proposal.body["into"]
    assert {one.name for one in graph.ontologies()} == {into, "seas"}
    assert [one.label for one in graph.concept_by_label("otters")] == ["Otters"]
    labels = [line for line in dump(url)["concepts"] if f'"ontology":"{into}"' in line]
    assert len(labels) == 8  # otters, rivers, river, sea, fish, water; beavers, dams
    assert "SAME_AS" not in "".join(dump(url)["relations"])
    assert sum(line.count("FEARS") for line in dump(url)["relations"]) == 1
    found = proposals.find(connection, proposal.id)
    assert found is not None
    assert (found.state, found.ontology) == ("executed", None)
    with pytest.raises(BadProposal, match="is executed, not approved"):
        do(connection, execute, proposal)
    take_back(connection, proposal)
    assert content(url) == before
    whole(url)
    with pytest.raises(BadProposal, match="is undone"):
        do(connection, undo, proposal)
    assert gone in {one.name for one in graph.ontologies()}


def test_what_is_written_after_a_merge_finds_what_came_in(
    graph: Graph, url: str, connection: Session, made: Callable[..., Proposal]
) -> None:
    overlapping(graph, url)
    with psycopg.connect(url) as other:
        other.execute("DELETE FROM kappa_graph.proposals")
    proposal = made("merge")
    do(connection, execute, proposal)
    into = proposal.body["into"]
    before = content(url)
    write_document(graph, into, "own.txt", "Beavers build dams in rivers.", [("beavers", "BUILDS", "dams")])
    write_document(
        graph, into, "otters.txt", OTTERS,
        [("otters", "LIVES_IN", "rivers"), ("otters", "EATS", "fish"), ("fish", "NEEDS", "water")],
    )  # fmt: skip
    assert content(url) == before


def test_an_undo_leaves_what_was_written_since(
    graph: Graph, url: str, connection: Session, made: Callable[..., Proposal]
) -> None:
    overlapping(graph, url)
    with psycopg.connect(url) as other:
        other.execute("DELETE FROM kappa_graph.proposals")
    proposal = made("merge")
    do(connection, execute, proposal)
    into = proposal.body["into"]
    graph.add_concepts(into, [NewConcept("Otters", "", ["new term"]), NewConcept("Late")])
    graph.delete_concepts([graph.concept_by_label("beavers", into)[0].id])
    take_back(connection, proposal)
    whole(url)
    assert graph.concept_by_label("late", into)
    assert "new term" in graph.concept_by_label("otters", into)[0].search_terms
    assert graph.concept_by_label("beavers") == []


def test_an_undo_that_is_in_the_way_of_something_changes_nothing(
    graph: Graph, url: str, connection: Session, made: Callable[..., Proposal]
) -> None:
    overlapping(graph, url)
    with psycopg.connect(url) as other:
        other.execute("DELETE FROM kappa_graph.proposals")
    proposal = made("merge")
    do(connection, execute, proposal)
    graph.ontology("first")
    graph.rename_ontology("first", proposal.body["name"])
    before = dump(url)
    assert proposals.ask_undo(connection, proposal.id, "ada")
    with pytest.raises(BadProposal, match="in the way"):
        do(connection, undo, proposal)
    assert dump(url) == before


def test_an_undo_needs_somebody_who_asked_for_it(
    graph: Graph, url: str, connection: Session, made: Callable[..., Proposal]
) -> None:
    graph.add_concepts("untitled", [NewConcept(label) for label in ("Otter", "River", "Fish")])
    proposal = made("rename")
    do(connection, execute, proposal)
    with pytest.raises(BadProposal, match="nobody has asked"):
        do(connection, undo, proposal)


def test_an_ontology_in_two_parts_is_split_and_put_together_again(
    graph: Graph, url: str, connection: Session, made: Callable[..., Proposal]
) -> None:
    generator = np.random.default_rng(3)
    ids = graph.add_concepts("all", [NewConcept(f"{kind} {n}") for kind in ("animal", "engine") for n in range(15)]).ids
    poles = {"animal": np.array([1.0, 0, 0, 0]), "engine": np.array([0, 1.0, 0, 0])}
    near = {label: poles[label.split()[0]] + generator.normal(scale=0.05, size=4) for label in list(ids)[:-3]}
    graph.set_embeddings("m", {ids[label]: vector.tolist() for label, vector in near.items()})
    graph.add_relations([NewRelation(ids["animal 1"], ids["engine 1"], "FEARS", 1.0)])
    before = content(url)
    proposal = made("split", split_coherence=0.9)
    do(connection, execute, proposal)
    assert len(graph.ontologies()) == 2
    moved = [line for line in dump(url)["concepts"] if '"ontology":"all: ' in line]
    assert len(moved) == 12  # the three without an embedding stay
    assert all("engine" in line for line in moved)
    assert len(dump(url)["relations"]) == 1
    take_back(connection, proposal)
    assert content(url) == before


def test_a_name_that_says_nothing_is_changed_and_changed_back(
    graph: Graph, url: str, connection: Session, made: Callable[..., Proposal]
) -> None:
    ids = graph.add_concepts("untitled 2", [NewConcept(label) for label in ("Otter", "River", "Fish")]).ids
    graph.add_relations([NewRelation(ids["Otter"], ids["River"], "LIVES_IN", 1.0)])
    before = content(url)
    proposal = made("rename")
    assert proposal.body["new_name"] == "Otter and River"
    do(connection, execute, proposal)
    assert [one.name for one in graph.ontologies()] == ["Otter and River"]
    take_back(connection, proposal)
    assert content(url) == before


def test_an_ontology_with_hardly_anything_is_dissolved_and_brought_back(
    graph: Graph, url: str, connection: Session, made: Callable[..., Proposal]
) -> None:
    write_library(graph)
    ids = graph.add_concepts("scrap", [NewConcept("Scrap", "of iron")]).ids
    graph.add_relations([NewRelation(ids["Scrap"], graph.concept_by_label("otters")[0].id, "HARMS", 0.7)])
    write_beside(url)
    with psycopg.connect(url) as other:
        other.execute("DELETE FROM kappa_graph.proposals")
    before = content(url)
    proposal = made("dissolve")
    do(connection, execute, proposal)
    assert graph.concept(ids["Scrap"]) is None
    assert "scrap" not in {one.name for one in graph.ontologies()}
    whole(url)
    take_back(connection, proposal)
    assert content(url) == before


def test_what_has_grown_since_is_not_dissolved(
    graph: Graph, url: str, connection: Session, made: Callable[..., Proposal]
) -> None:
    graph.ontology("scrap")
    proposal = made("dissolve")
    write_document(graph, "scrap", "x", "Bats eat moths.", [("bats", "EATS", "moths")])
    before = dump(url)
    with pytest.raises(BadProposal, match="has documents by now"):
        do(connection, execute, proposal)
    assert dump(url) == before


def test_an_ontology_that_is_gone_can_not_be_changed(
    graph: Graph, connection: Session, made: Callable[..., Proposal]
) -> None:
    graph.ontology("scrap")
    proposal = made("dissolve")
    graph.delete_ontology("scrap")
    with pytest.raises(BadProposal, match="'scrap' is not there any more"):
        do(connection, execute, proposal)


def test_two_executions_at_once_are_one(
    graph: Graph, url: str, connection: Session, made: Callable[..., Proposal]
) -> None:
    """The second waits for the first, and then finds it done."""
    import threading

    graph.add_concepts("untitled", [NewConcept(label) for label in ("Otter", "River", "Fish")])
    proposal = made("rename")
    outcome: list[str] = []

    def rival() -> None:
        with psycopg.connect(url, autocommit=True) as other:
            try:
                do(other, execute, proposal)
                outcome.append("done")
            except BadProposal as error:
                outcome.append(str(error))

    with connection.transaction():
        execute(connection, proposal.id)
        second = threading.Thread(target=rival)
        second.start()
        with psycopg.connect(url, autocommit=True) as looking:
            while looking.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            ).fetchone() == (0,):
                assert not outcome
    second.join()
    assert outcome == [f"proposal {proposal.id} is executed, not approved"]


def test_generic_names_are_known() -> None:
    assert proposing.NAMELESS.match("Untitled")
    assert proposing.NAMELESS.match("ontology_3")
    assert not proposing.NAMELESS.match("Testing of bridges")
