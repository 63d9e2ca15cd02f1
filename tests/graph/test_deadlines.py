"""A deadline that passes before there is anything to answer is an error, and says so; whoever asks what."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from kappa.graph import Budget, Cancel, Graph, GraphConfig, QuestionStopped
from kappa.graph.query.backend import SqlBackend, Way
from kappa.graph.store.adjacency import Allowed, Ints
from kappa.pg.queries import Row
from tests.graph.worlds import labels, write

CHAIN = [("a", "IS", "b"), ("b", "IS", "c"), ("c", "IS", "d")]
ENDS = ["a", "d"]

QUESTIONS: dict[str, Callable[..., Any]] = {
    "neighbors": lambda graph, a, d, **how: graph.neighbors([a], 2, **how),
    "related": lambda graph, a, d, **how: graph.related(a, **how),
    "subgraph": lambda graph, a, d, **how: graph.subgraph([a, d], **how),
    "diversity": lambda graph, a, d, **how: graph.diversity(a, **how),
    "paths": lambda graph, a, d, **how: graph.paths(a, d, **how),
    "enriched_path": lambda graph, a, d, **how: graph.enriched_path(a, d, **how),
}


class StuckBackend(SqlBackend):
    """The same graph on a server that comes to no end, once it is told to."""

    stuck = False

    def expand(self, connection: Connection[Row], way: Way, frontier: Ints, allowed: Allowed, most: int) -> Ints:
        if self.stuck:
            connection.execute("SELECT pg_sleep(3600)")
        return super().expand(connection, way, frontier, allowed, most)

    def edges(
        self, connection: Connection[Row], way: Way, frontier: Ints, allowed: Allowed, exempt: Ints, most: int
    ) -> tuple[Ints, Ints, Ints]:
        if self.stuck:
            connection.execute("SELECT pg_sleep(3600)")
        return super().edges(connection, way, frontier, allowed, exempt, most)


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_a_deadline_that_found_nothing_in_the_database_is_an_error(
    graph: Graph, url: str, question: Callable[..., Any]
) -> None:
    ids = write(graph, CHAIN)
    backend = StuckBackend()
    with Graph(url, GraphConfig(), backend=backend, budget=Budget()) as slow:
        assert question(slow, ids["a"], ids["d"]).complete
        backend.stuck = True
        with pytest.raises(QuestionStopped, match="nothing was found yet when the deadline passed"):
            question(slow, ids["a"], ids["d"], deadline=1.0)


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_a_question_that_found_nothing_in_memory_is_an_error(graph: Graph, question: Callable[..., Any]) -> None:
    ids = write(graph, CHAIN)
    a, d = (graph.concept(ids[end]).node for end in ENDS)  # type: ignore[union-attr]
    graph.refresh()
    assert question(graph, a, d).complete
    cancel = Cancel()
    cancel.cancel()
    for how, why in (({"cancel": cancel}, "the question was cancelled"), ({"deadline": 1e-9}, "the deadline passed")):
        with pytest.raises(QuestionStopped, match=why):
            question(graph, a, d, **how)


def test_a_polarity_whose_candidates_were_not_found_in_time_is_an_error(graph: Graph, url: str) -> None:
    ids = write(graph, CHAIN)
    graph.set_embeddings("m", {ids["a"]: [1, 0], ids["b"]: [1, 1], ids["d"]: [0, 1]})
    backend = StuckBackend()
    with Graph(url, GraphConfig(), backend=backend, budget=Budget()) as slow:
        assert labels(slow.polarity(ids["a"], ids["d"])) == ["b"]
        backend.stuck = True
        with pytest.raises(QuestionStopped, match="nothing was found yet when the deadline passed"):
            slow.polarity(ids["a"], ids["d"], deadline=1.0)


def test_a_search_whose_rows_could_not_be_read_in_time_is_an_error(
    sql_graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(sql_graph, CHAIN)
    assert labels(sql_graph.search("a")) == ["a"]

    def stuck(self: SqlBackend, connection: psycopg.Connection[Row], nodes: object) -> object:
        return connection.execute("SELECT pg_sleep(3600)")

    monkeypatch.setattr(SqlBackend, "rows", stuck)
    with pytest.raises(QuestionStopped, match="nothing was found yet when the deadline passed"):
        sql_graph.search("a", deadline=2.0)
