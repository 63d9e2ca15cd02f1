"""Search by text and by vector: exact, in a stated order, within its limits, and harmless whatever is asked."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from typing import ClassVar
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from kappa.graph import (
    BadQuestion,
    BadWrite,
    Budget,
    Cancel,
    Graph,
    GraphConfig,
    NewConcept,
    QuestionStopped,
    UnknownConcept,
    UnknownOntology,
    Where,
)
from kappa.graph.config import from_environment
from kappa.graph.query import vectors
from kappa.graph.query.kernel import NumpyKernel
from kappa.graph.store import vectors as stored
from kappa.pg.queries import Row
from tests.graph.conftest import PATIENT
from tests.graph.test_limits import running
from tests.graph.worlds import labels
from tests.ground import eventually

Session = psycopg.Connection[Row]

ZOO = [
    NewConcept("Otter", "an animal of rivers", ["lutra"]),
    NewConcept("Giant otter", "the largest of its kind"),
    NewConcept("River", "where otters live"),
    NewConcept("The Who"),
    NewConcept("Sea eagle", "a bird, and no otter"),
]


@pytest.fixture
def zoo(graph: Graph) -> dict[str, UUID]:
    return dict(graph.add_concepts("zoo", ZOO).ids)


def embed(graph: Graph, given: dict[UUID, Sequence[float]], model: str = "m") -> int:
    graph.set_embeddings(model, given)
    return graph.epoch()


# Text


@pytest.mark.usefixtures("zoo")
def test_a_label_is_before_every_word_and_those_before_some(graph: Graph) -> None:
    assert labels(graph.search("OTTER")) == ["Otter", "Giant otter", "River", "Sea eagle"]
    assert labels(graph.search("giant ott")) == ["Giant otter"]
    assert labels(graph.search("how do otters live"))[0] == "River"
    assert labels(graph.search("the who"))[0] == "The Who"
    first = graph.search("otter").items[0]
    assert (first.score, first.similarity, first.matched) == (1.0, None, ("label",))
    answer = graph.search("otters in rivers")
    assert answer.complete
    assert (answer.model, answer.served_by, answer.as_of_epoch) == (None, "sql", graph.epoch())
    scores = [(-hit.score, hit.concept.node) for hit in answer.items]
    assert scores == sorted(scores)


@pytest.mark.usefixtures("zoo")
def test_what_matched_is_told(graph: Graph) -> None:
    found = {hit.concept.label: hit.matched for hit in graph.search("lutra rivers").items}
    assert found["Otter"] == ("terms", "description")
    assert graph.search("river").items[0].matched == ("label",)
    assert found["River"] == ("label",)


@pytest.mark.usefixtures("zoo")
def test_quotes_hold_together_and_a_minus_leaves_out(graph: Graph) -> None:
    assert labels(graph.search('"giant otter"')) == ["Giant otter"]
    assert labels(graph.search('"otter giant"')) == []
    assert "Sea eagle" not in labels(graph.search("otter -bird"))
    assert labels(graph.search("otter -otter")) == []


@pytest.mark.usefixtures("zoo")
def test_a_slip_of_the_pen_finds_the_label_where_pg_trgm_is(graph: Graph, connection: Session) -> None:
    assert labels(graph.search("sea eagel")) == ["Sea eagle"]
    assert labels(graph.search("giantt oter")) == ["Giant otter"]
    connection.execute("DROP EXTENSION pg_trgm CASCADE")
    assert labels(graph.search("sea eagel")) == ["Sea eagle"]  # the sea is spelled rightly
    assert labels(graph.search("giantt oter")) == []
    assert labels(graph.search("giant ott")) == ["Giant otter"]
    assert connection.execute("SELECT kappa_graph.use_trigrams()").fetchone() == (True,)
    assert labels(graph.search("giantt oter")) == ["Giant otter"]


def test_without_the_right_to_install_pg_trgm_there_is_the_rest(graph: Graph, superuser: Session) -> None:
    graph.add_concepts("zoo", ZOO)
    superuser.execute("DROP EXTENSION pg_trgm CASCADE")
    superuser.execute("CREATE ROLE guest_of_search")
    try:
        superuser.execute("GRANT USAGE ON SCHEMA kappa_graph TO guest_of_search")
        superuser.execute("SET ROLE guest_of_search")
        assert superuser.execute("SELECT kappa_graph.use_trigrams()").fetchone() == (False,)
    finally:
        superuser.execute("RESET ROLE")
        superuser.execute("DROP OWNED BY guest_of_search")
        superuser.execute("DROP ROLE guest_of_search")
    assert labels(graph.search("otter"))[0] == "Otter"


ODD = ["", "   ", "!!! ???", "'", '"', "-", "\\", "\0", "nul\0byte", "\ud800half", "it's", "a:*&|!()<->b", "☃",
       "Ünïcode", "%(said)s %s", "{}", "$$; DROP TABLE kappa_graph.concepts; $$", "x" * 10_000, "a " * 5_000,
       '"' * 10_000, "-a " * 3_000, '"a b" ' * 1_500, "\U0010ffff", "е́" * 500]  # fmt: skip


@pytest.mark.parametrize("text", ODD, ids=lambda text: repr(text[:12]))
def test_odd_texts_are_asked_in_peace(graph: Graph, text: str) -> None:
    ids = graph.add_concepts("zoo", ZOO).ids
    epoch = embed(graph, {ids["Otter"]: [1, 0]})
    assert graph.search(text).complete
    fused = graph.search(text, vector=[1, 0], model="m", min_epoch=epoch)
    assert labels(fused)[0] == "Otter"
    assert graph.search(vector=[1.0], model=text or "?").items == ()
    if text.strip():
        graph.add_concepts("odd", [NewConcept(text, text, [text])])
        assert graph.search(text).complete
        assert len(graph.concept_by_label(text)) == 1


def test_what_is_found_by_odd_labels_is_what_was_written(graph: Graph) -> None:
    written = ["50% of 10_000", "back\\slash", "O'Hara", 'say "yes"', "C++", "naïve Bayes", "Straße"]
    graph.add_concepts("odd", [NewConcept(label) for label in written])
    for label in ["50% of 10_000", "back\\slash", "O'Hara", "C++", "naïve bayes", "straße"]:
        assert graph.search(label).items[0].score == 1.0, label
    assert graph.concept_by_label("STRASSE")[0].label == "Straße"


def test_a_text_may_be_so_long_and_no_longer(graph: Graph) -> None:
    with pytest.raises(BadQuestion, match="1048576 characters: there may be 10000"):
        graph.search("x" * (1 << 20))
    # What is said of a concept may be longer than full text search can hold.
    graph.add_concepts("long", [NewConcept("Long", "".join(f"w{n} " for n in range(300_000)))])
    assert labels(graph.search("w17")) == ["Long"]


def test_only_what_is_in_the_ontologies_asked_for_is_found(graph: Graph, zoo: dict[str, UUID]) -> None:
    other = graph.add_concepts("music", [NewConcept("Otter"), NewConcept("Sea shanty")]).ids
    epoch = embed(graph, {other["Otter"]: [1, 0], zoo["Otter"]: [1, 0]})
    for where, count in ((None, 2), (Where(["zoo"]), 1), (Where(["music"]), 1), (Where([]), 0)):
        for found in (
            graph.search('"otter"', where=where).items,
            graph.search(vector=[1, 0], model="m", where=where, min_epoch=epoch).items,
        ):
            assert len([hit for hit in found if hit.concept.label == "Otter"]) == count
    assert labels(graph.search("see shanti", where=Where(["zoo"]))) == []
    with pytest.raises(UnknownOntology):
        graph.search("otter", where=Where(["nowhere"]))


def test_a_label_that_meant_another_concept_leads_to_it(graph: Graph) -> None:
    graph.add_concepts("sleep", [NewConcept("Drowsiness", "", ("Sleepiness", "being tired"))])
    graph.add_concepts("work", [NewConcept("Tired eyes", "", ("being tired and red",))])
    assert [one.label for one in graph.concept_by_label("sleepiness")] == ["Drowsiness"]
    assert [one.label for one in graph.concept_by_label(" Being tired ")] == ["Drowsiness"]
    assert graph.concept_by_label("sleepiness", "work") == []
    assert graph.concept_by_label("tired") == []
    graph.add_concepts("work", [NewConcept("sleepiness")])
    assert [one.ontology for one in graph.concept_by_label("Sleepiness")] == ["work"]


def test_concepts_by_label(graph: Graph, zoo: dict[str, UUID], connection: Session) -> None:
    graph.add_concepts("music", [NewConcept("otter")])
    assert [one.ontology for one in graph.concept_by_label("  OTTER ")] == ["zoo", "music"]
    assert [one.id for one in graph.concept_by_label("giant   OTTER", "zoo")] == [zoo["Giant otter"]]
    assert graph.concept_by_label("giant") == []
    assert graph.concept_by_label("Otter", "music")[0].label == "otter"
    with pytest.raises(UnknownOntology):
        graph.concept_by_label("otter", "nowhere")
    # One that was moved has the id of where it was made.
    connection.execute("UPDATE kappa_graph.concepts SET ontology_id = (SELECT id FROM kappa_graph.ontologies "
                       "WHERE name = 'music') WHERE label = 'River'")  # fmt: skip
    assert [one.id for one in graph.concept_by_label("river", "music")] == [zoo["River"]]


# Vectors


Vector = tuple[int, int, int]
vector3 = st.tuples(*[st.integers(-2, 2)] * 3).filter(any)
label = st.sampled_from([f"c{n}" for n in range(12)])


class Nearest(RuleBasedStateMachine):
    """Memory packed by C, memory by numpy, and reading through, beside plain fractions."""

    url: ClassVar[str] = ""
    graphs: ClassVar[dict[str, Graph]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.concepts: dict[str, tuple[UUID, str]] = {}
        self.embedded: dict[str, tuple[str, Vector]] = {}

    @property
    def writer(self) -> Graph:
        return self.graphs["c"]

    def execute(self, query: str, *params: object) -> list[Row]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(query.encode(), params)
            return cursor.fetchall() if cursor.description else []

    @initialize()
    def begin(self) -> None:
        self.execute("TRUNCATE kappa_graph.ontologies CASCADE")
        for ontology in ("one", "two"):
            self.writer.ontology(ontology)

    @rule(names=st.lists(label, min_size=1, max_size=6), ontology=st.sampled_from(["one", "two"]))
    def write(self, names: list[str], ontology: str) -> None:
        new = [name for name in names if self.concepts.get(name, ("", ontology))[1] == ontology]
        ids = self.writer.add_concepts(ontology, [NewConcept(name) for name in new]).ids
        self.concepts |= {name: (ids[name], ontology) for name in new}

    @rule(given=st.dictionaries(label, vector3, max_size=8), model=st.sampled_from(["m", "n"]))
    def embed(self, given: dict[str, Vector], model: str) -> None:
        known = {name: vector for name, vector in given.items() if name in self.concepts}
        self.writer.set_embeddings(model, {self.concepts[name][0]: vector for name, vector in known.items()})
        self.embedded |= {name: (model, vector) for name, vector in known.items()}

    @rule(victim=label)
    def forget(self, victim: str) -> None:
        if victim in self.concepts:
            self.writer.delete_concepts([self.concepts.pop(victim)[0]])
            self.embedded.pop(victim, None)

    @rule(victim=label)
    def unembed(self, victim: str) -> None:
        self.execute(
            "UPDATE kappa_graph.concepts SET embedding = NULL, embedding_model = NULL WHERE label = %s", victim
        )
        self.embedded.pop(victim, None)

    @rule()
    def forget_all_vectors(self) -> None:
        """As a change too large to be listed would."""
        self.execute("INSERT INTO kappa_graph.changes (kind) VALUES ('reload')")

    @rule(
        vector=vector3, model=st.sampled_from(["m", "n"]), limit=st.sampled_from([1, 3, 20]),
        least=st.sampled_from([Fraction(-1), Fraction(0), Fraction(1, 2)]), only=st.none() | st.just("one"),
        like=st.none() | label,
    )  # fmt: skip
    def ask(self, vector: Vector, model: str, limit: int, least: Fraction, only: str | None, like: str | None) -> None:
        nodes = dict(self.execute("SELECT label, id FROM kappa_graph.concepts"))
        if like is not None:
            if like not in self.embedded:
                return
            model, vector = self.embedded[like]
        expected: list[tuple[Fraction, int, str]] = []
        for name, (own, other) in self.embedded.items():
            # The cosine's square with its sign: an exact number, in the same order.
            product = sum(a * b for a, b in zip(vector, other, strict=True))
            square = Fraction(product * abs(product), sum(a * a for a in vector) * sum(b * b for b in other))
            passes = square >= least * abs(least) and (only is None or self.concepts[name][1] == only)
            if own == model and passes and name != like:
                expected.append((-square, nodes[name], name))
        expected = sorted(expected)[:limit]
        where = Where([only]) if only else None
        epoch = self.writer.epoch()
        for name, graph in self.graphs.items():
            if like is not None:
                answer = graph.search(
                    like=self.concepts[like][0], limit=limit, min_similarity=float(least), where=where, min_epoch=epoch
                )
            else:
                answer = graph.search(
                    vector=vector, model=model, limit=limit, min_similarity=float(least), where=where, min_epoch=epoch
                )
            assert labels(answer) == [one[2] for one in expected], name
            for hit, (square, _, _) in zip(answer.items, expected, strict=True):
                cosine = float(abs(square)) ** 0.5 * (-1 if square > 0 else 1)
                assert hit.similarity == pytest.approx(cosine, abs=2e-6)
                assert hit.score == hit.similarity
            assert (answer.complete, answer.as_of_epoch, answer.model) == (True, epoch, model)
            assert answer.served_by == ("sql" if name == "sql" else "snapshot")


@pytest.fixture
def machine(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Nearest]]:
    monkeypatch.setattr(vectors, "MOST_ROWS", 4)
    graphs = {
        "c": Graph(url, PATIENT, budget=Budget()),
        "numpy": Graph(url, PATIENT, budget=Budget(), walk_with=NumpyKernel()),
        "sql": Graph(url, GraphConfig(vectors_bytes=0), budget=Budget()),
    }
    for graph in graphs.values():
        graph.open(listen=False)
    Nearest.url, Nearest.graphs = url, graphs
    yield Nearest
    for graph in graphs.values():
        graph.close()


@pytest.mark.timeout(600)
def test_the_nearest_are_those_of_plain_arithmetic(machine: type[Nearest]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=20, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_models_stand_side_by_side_and_are_never_mixed(graph: Graph, zoo: dict[str, UUID]) -> None:
    embed(graph, {zoo["Otter"]: [1, 0]}, "small")
    embed(graph, {zoo["River"]: [1, 0]}, "other")
    epoch = embed(graph, {zoo["Giant otter"]: [1, 0, 0]}, "large")
    for model, vector, name in (
        ("small", [1, 0], "Otter"),
        ("other", [1, 0], "River"),
        ("large", [1, 0, 0], "Giant otter"),
    ):
        answer = graph.search(vector=vector, model=model, min_epoch=epoch)
        assert (labels(answer), answer.model) == ([name], model)
    assert [(one.model, one.dimension, one.concepts) for one in graph.vectors()] == [
        ("large", 3, 1), ("other", 2, 1), ("small", 2, 1),
    ]  # fmt: skip
    # One that is embedded by another model is no longer among those of the first.
    epoch = embed(graph, {zoo["Otter"]: [1, 0]}, "other")
    assert labels(graph.search(vector=[1, 0], model="small", min_epoch=epoch)) == []
    assert labels(graph.search(vector=[1, 0], model="other", min_epoch=epoch)) == ["Otter", "River"]


def test_like_a_concept(graph: Graph, sql_graph: Graph, zoo: dict[str, UUID]) -> None:
    epoch = embed(graph, {zoo["Otter"]: [1, 0.1], zoo["Giant otter"]: [1, 0.2], zoo["River"]: [0, 1]})
    node = graph.concept(zoo["Otter"]).node  # type: ignore[union-attr]
    for asked in (graph, sql_graph):
        for seed in (zoo["Otter"], str(zoo["Otter"]), node):
            answer = asked.search(like=seed, min_epoch=epoch)
            assert (labels(answer), answer.model) == (["Giant otter", "River"], "m")
        fused = asked.search("otter", like=zoo["Otter"], min_epoch=epoch)
        assert labels(fused) == ["Giant otter", "River", "Sea eagle"]
    with pytest.raises(BadQuestion, match="no embedding to be like"):
        graph.search(like=zoo["The Who"])
    for nobody in (99_999, UUID(int=1), "no id"):
        with pytest.raises(UnknownConcept):
            graph.search(like=nobody)
    with pytest.raises(BadQuestion, match="of model 'm', not of 'n'"):
        graph.search(like=zoo["Otter"], model="n")


def test_two_rankings_are_fused_by_their_ranks(graph: Graph, sql_graph: Graph, zoo: dict[str, UUID]) -> None:
    epoch = embed(graph, {zoo["River"]: [1, 0], zoo["Giant otter"]: [1, 1], zoo["The Who"]: [0, -1]})
    for asked in (graph, sql_graph):
        answer = asked.search("otter", vector=[1, 0], model="m", min_epoch=epoch)
        assert [(hit.concept.label, hit.score, hit.similarity, hit.matched) for hit in answer.items] == [
            ("River", 1 / 63 + 1 / 61, 1.0, ("description", "vector")),
            ("Giant otter", 1 / 62 + 1 / 62, 0.707107, ("label", "vector")),
            ("Otter", 1 / 61, None, ("label",)),
            ("The Who", 1 / 63, 0.0, ("vector",)),
            ("Sea eagle", 1 / 64, None, ("description",)),
        ]
        assert answer.as_of_epoch == epoch
        # What is too far to count as near may still be found by its text, and says how far it is.
        answer = asked.search("the who", vector=[1, 0], model="m", min_epoch=epoch, min_similarity=0.5)
        assert [hit.matched for hit in answer.items if hit.concept.label == "The Who"] == [("label",)]
        assert [hit.similarity for hit in answer.items if hit.concept.label == "The Who"] == [0.0]


def test_questions_that_make_no_sense_are_refused(graph: Graph, zoo: dict[str, UUID]) -> None:
    embed(graph, {zoo["Otter"]: [1, 0]})
    for kwargs, why in (
        ({}, "needs a text, a vector or a concept"),
        ({"vector": [1, 0]}, "without the model"),
        ({"vector": [1, 0], "model": "m", "like": zoo["Otter"]}, "not for both"),
        ({"vector": [1, 0, 0], "model": "m"}, "has 3 dimensions, those of 'm' have 2"),
        ({"vector": [], "model": "m"}, "no list of 1 to 16000 numbers"),
        ({"vector": [[1, 0]], "model": "m"}, "no list of 1 to 16000 numbers"),
        ({"vector": ["a"], "model": "m"}, "no list of 1 to 16000 numbers"),
        ({"vector": [0, 0], "model": "m"}, "points nowhere"),
        ({"vector": [1e-60, 0], "model": "m"}, "points nowhere"),
        ({"vector": [float("nan"), 0], "model": "m"}, "not finite"),
        ({"vector": [1e300, 0], "model": "m"}, "not finite"),
        ({"text": "x", "limit": 0}, "a limit of 0"),
        ({"text": "x", "min_similarity": 2}, "a similarity of 2"),
        ({"text": "x", "min_similarity": 0.5}, "min_similarity needs a vector, or a concept to be like"),
        ({"text": "x", "deadline": 0}, "a deadline of 0"),
    ):
        with pytest.raises(BadQuestion, match=why):
            graph.search(**kwargs)  # type: ignore[arg-type]
    assert graph.search(vector=[1, 0, 0], model="unheard of").items == ()


def test_embeddings_that_are_not_sound_are_refused_whole(graph: Graph, zoo: dict[str, UUID]) -> None:
    good = {zoo["Otter"]: [1.0, 0.0]}
    for bad, why in (
        ([0.0, 0.0], "points nowhere"),
        ([float("nan"), 1.0], "not finite"),
        ([float("inf"), 1.0], "not finite"),
        ([1e39, 1.0], "not finite"),
        ([1.0, 0.0, 0.0], "has 3 dimensions, those of 'm' have 2"),
        ([], "no list of 1 to 16000"),
    ):
        with pytest.raises(BadWrite, match=why):
            graph.set_embeddings("m", {**good, zoo["River"]: bad})
    assert graph.vectors() == ()
    with pytest.raises(BadWrite, match="name of its model"):
        graph.set_embeddings("", good)
    assert graph.set_embeddings("m", {zoo["Otter"]: [1e-44, 1e-44]}) == 1
    with pytest.raises(BadWrite, match="has 3 dimensions, those of 'm' have 2"):
        graph.set_embeddings("m", {zoo["River"]: [1, 0, 0]})
    assert labels(graph.search(vector=[1, 1], model="m")) == ["Otter"]


def test_who_embeds_first_says_how_long_vectors_are(graph: Graph, zoo: dict[str, UUID], url: str) -> None:
    from kappa.graph.store import concepts

    with psycopg.connect(url) as first, psycopg.connect(url, autocommit=True) as watcher:
        concepts.set_embeddings(first, "m", {zoo["Otter"]: [1, 0]})
        with ThreadPoolExecutor(1) as threads:
            second = threads.submit(lambda: graph.set_embeddings("m", {zoo["River"]: [1, 0, 0]}))
            eventually(
                lambda: watcher.execute(
                    "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'advisory' AND query LIKE '%lock_embeddings%' "
                    "AND datname = current_database()"
                ).fetchall()
            )
            first.commit()
            with pytest.raises(BadWrite, match="has 3 dimensions, those of 'm' have 2"):
                second.result()


# Limits


def test_beyond_the_memory_there_is_they_are_read_through(url: str) -> None:
    graph = Graph(url, GraphConfig(vectors_bytes=100), budget=Budget()).open(listen=False)
    ids = graph.add_concepts("zoo", ZOO).ids
    epoch = embed(graph, {ids["Otter"]: [1, 0], ids["River"]: [0, 1]})
    answer = graph.search(vector=[1, 0], model="m", min_epoch=epoch)
    assert (labels(answer), answer.served_by, answer.complete) == (["Otter", "River"], "sql", True)
    (status,) = graph.vectors()
    assert (status.state, status.bytes, status.concepts) == ("too large", 0, 0)
    graph.close()


def test_all_models_together_stay_within_the_memory_there_is(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from kappa.graph.query import vector_keeper

    room = vectors.block_rows(2) * vectors.row_bytes(2, vectors.COMPILED is not None)
    graph = Graph(url, replace(PATIENT, vectors_bytes=room + 1000), budget=Budget()).open(listen=False)
    ids = graph.add_concepts("zoo", ZOO).ids
    embed(graph, {ids["Otter"]: [1, 0]}, "first")
    epoch = embed(graph, {ids["River"]: [1, 0]}, "second")

    def served(model: str) -> str:
        answer = graph.search(vector=[1, 0], model=model, min_epoch=epoch)
        assert len(answer.items) == 1
        assert sum(one.bytes for one in graph.vectors()) <= room + 1000
        return answer.served_by

    assert [served("first"), served("second"), served("first")] == ["snapshot", "sql", "snapshot"]
    # Who was not asked for lately makes room.
    monkeypatch.setattr(vector_keeper, "TRY_AGAIN", 0.0)
    assert [served("second"), served("first")] == ["snapshot", "snapshot"]
    graph.close()


def test_a_matrix_that_grows_too_large_is_given_up(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "MOST_ROWS", 8)
    graph = Graph(url, replace(PATIENT, vectors_bytes=2_000), budget=Budget()).open(listen=False)
    ids = list(graph.add_concepts("zoo", [NewConcept(f"c{n}") for n in range(100)]).ids.values())
    epoch = embed(graph, {ids[0]: [1, 0]})
    assert graph.search(vector=[1, 0], model="m", min_epoch=epoch).served_by == "snapshot"
    epoch = embed(graph, {key: [1.0, 0.0] for key in ids})
    answer = graph.search(vector=[1, 0], model="m", min_epoch=epoch, limit=200)
    assert (answer.served_by, len(answer.items)) == ("sql", 100)
    assert graph.vectors()[0].state == "too large"
    graph.close()


def test_a_text_search_ends_at_its_deadline_and_nothing_runs_on(graph: Graph, url: str, connection: Session) -> None:
    graph.add_concepts("zoo", ZOO)
    graph.search("otter")
    with psycopg.connect(url) as holder:
        holder.execute("LOCK kappa_graph.concepts IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(QuestionStopped, match="the deadline passed"):
            graph.search("otter", deadline=1.0)
        assert running(connection) == []


def test_who_goes_away_takes_the_text_search_along(graph: Graph, url: str, connection: Session) -> None:
    graph.add_concepts("zoo", ZOO)
    graph.search("otter")
    cancel = Cancel()
    with psycopg.connect(url) as holder, ThreadPoolExecutor(1) as threads:
        holder.execute("LOCK kappa_graph.concepts IN ACCESS EXCLUSIVE MODE")
        asking = threads.submit(lambda: graph.search("otter", cancel=cancel))
        eventually(lambda: [one for one in running(connection) if "kappa_graph.concepts" in one[1]])
        cancel.cancel()
        with pytest.raises(QuestionStopped, match="cancelled"):
            asking.result()
        assert running(connection) == []


def test_who_waits_for_vectors_may_give_up_and_the_reading_goes_on(
    graph: Graph, url: str, zoo: dict[str, UUID]
) -> None:
    embed(graph, {zoo["Otter"]: [1, 0]})
    cancel = Cancel()
    with psycopg.connect(url) as holder, ThreadPoolExecutor(1) as threads:
        holder.execute("LOCK kappa_graph.concepts IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(QuestionStopped, match="the deadline passed"):
            graph.search(vector=[1, 0], model="m", deadline=0.5)
        assert [one.state for one in graph.vectors()] == ["reading"]
        asking = threads.submit(lambda: graph.search(vector=[1, 0], model="m", cancel=cancel))
        eventually(lambda: graph.budget().busy == 1)
        cancel.cancel()
        with pytest.raises(QuestionStopped, match="cancelled"):
            asking.result()
        holder.rollback()
    assert labels(graph.search(vector=[1, 0], model="m")) == ["Otter"]
    assert [one.builds for one in graph.vectors()] == [1]


def test_reading_through_ends_at_its_deadline_and_nothing_runs_on(
    graph: Graph, sql_graph: Graph, zoo: dict[str, UUID], url: str, connection: Session
) -> None:
    embed(graph, {zoo["Otter"]: [1, 0]})
    with psycopg.connect(url) as holder:
        holder.execute("LOCK kappa_graph.concepts IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(QuestionStopped, match="the deadline passed"):
            sql_graph.search(vector=[1, 0], model="m", deadline=0.5)
        assert running(connection) == []


@pytest.mark.usefixtures("time_for_rows")
def test_a_text_that_was_found_is_an_answer_without_the_vectors(
    sql_graph: Graph, zoo: dict[str, UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    embed(sql_graph, {zoo["Otter"]: [1, 0]})
    really = stored.block

    def slowly(connection: Session, *args: object) -> object:
        connection.execute("SELECT pg_sleep(3600)")
        return really(connection, *args)  # type: ignore[arg-type]

    # The text alone must be found in time, also on a busy machine: its connection is open from here on.
    assert sql_graph.search("otter").complete
    with monkeypatch.context() as patched:
        patched.setattr(stored, "block", slowly)
        answer = sql_graph.search("otter", vector=[1, 0], model="m", deadline=4.0)
    assert labels(answer) == ["Otter", "Giant otter", "River", "Sea eagle"]
    assert not answer.complete
    assert answer.skipped[0].what == "1 of 1 parts of the vectors"
    assert {one.why for one in answer.skipped} == {"the deadline passed"}
    assert sql_graph.search("otter", vector=[1, 0], model="m").complete


def test_a_commit_that_was_heard_of_is_seen(url: str) -> None:
    with Graph(url, PATIENT, budget=Budget()) as listening:
        ids = listening.add_concepts("zoo", ZOO).ids
        for label, count in (("Otter", 1), ("River", 2), ("The Who", 3)):
            epoch = embed(listening, {ids[label]: [1, 0]})
            assert listening.wait_for(epoch)
            answer = listening.search(vector=[1, 0], model="m")
            assert (len(answer.items), answer.as_of_epoch) == (count, epoch)
        assert [(one.builds, one.refreshes) for one in listening.vectors()] == [(1, 2)]


def test_many_questions_while_vectors_change(graph: Graph, zoo: dict[str, UUID]) -> None:
    """Each answer is of one epoch: either all have moved to the other side, or none has."""
    sides = {1.0: [1.0, 0.0], -1.0: [-1.0, 0.0]}
    embed(graph, dict.fromkeys(zoo.values(), sides[1.0]))
    done = threading.Event()

    def ask() -> int:
        count = 0
        while not done.is_set():
            answer = graph.search(vector=[1, 0], model="m", min_similarity=-1, min_epoch=graph.epoch())
            assert len({hit.similarity for hit in answer.items}) == 1
            assert len(answer.items) == len(ZOO)
            fused = graph.search("otter", vector=[1, 0], model="m", min_similarity=-1)
            assert len({hit.similarity for hit in fused.items}) == 1
            count += 1
        return count

    with ThreadPoolExecutor(4) as threads:
        asking = [threads.submit(ask) for _ in range(4)]
        for turn in range(60):
            embed(graph, dict.fromkeys(zoo.values(), sides[-1.0 if turn % 2 else 1.0]))
        done.set()
        assert all(one.result() > 0 for one in asking)
    assert graph.budget().busy == 0


def test_the_memory_for_vectors_is_a_setting() -> None:
    assert from_environment({}).vectors_bytes == 1 << 30
    assert from_environment({"KAPPA_GRAPH_VECTORS_MB": "64"}).vectors_bytes == 64 << 20
    assert from_environment({"KAPPA_GRAPH_VECTORS_MB": "0"}).vectors_bytes == 0
