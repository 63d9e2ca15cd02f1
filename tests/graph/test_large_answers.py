"""Rows of large answers are built by one thread at a time, and few of them are remembered."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest

from kappa.graph import Budget, Graph, GraphConfig, Neighbors
from tests.graph.worlds import write
from tests.ground import PATIENCE, eventually

LEAVES = 300
STAR = [("hub", "HAS", f"leaf {n}") for n in range(LEAVES)]


@pytest.fixture
def budget() -> Budget:
    return Budget()


@pytest.fixture
def graph(url: str, budget: Budget) -> Iterator[Graph]:
    made = Graph(url, GraphConfig(cached_rows=LEAVES + 10), budget=budget).open(listen=False)
    yield made
    made.close()


@pytest.fixture
def star(graph: Graph) -> dict[str, UUID]:
    ids = write(graph, STAR)
    graph.refresh()
    return ids


def test_a_large_answer_waits_for_its_turn_and_a_small_one_does_not(
    graph: Graph, budget: Budget, star: dict[str, UUID]
) -> None:
    assert budget.builders.enter(0)
    with ThreadPoolExecutor(3) as threads:
        questions = [
            threads.submit(graph.neighbors, [star["hub"]], 2, limit=LEAVES, deadline=100),
            threads.submit(graph.related, star["hub"], 1, limit=LEAVES, deadline=100),
            threads.submit(graph.subgraph, [star["hub"]], 1, limit=LEAVES, deadline=100),
        ]
        eventually(lambda: budget.builders.use[2] == len(questions), what="all of them wait")
        assert len(graph.neighbors([star["hub"]], 2, limit=20).items) == 20
        assert not any(one.done() for one in questions)
        budget.builders.leave()
        neighbors, related, subgraph = (one.result(PATIENCE) for one in questions)
    assert len(neighbors.items) == len(related.items) == LEAVES
    assert len(subgraph.relations) == LEAVES
    assert budget.builders.use == (0, 1, 0)


@pytest.mark.usefixtures("time_for_rows")
def test_who_has_no_turn_by_the_deadline_answers_without_the_rows(
    graph: Graph, budget: Budget, star: dict[str, UUID]
) -> None:
    assert budget.builders.enter(0)
    answer = graph.neighbors([star["hub"]], 2, limit=LEAVES, deadline=6)
    budget.builders.leave()
    assert (answer.complete, answer.items, answer.found) == (False, (), LEAVES)
    assert [one.what for one in answer.skipped] == [f"the rows of {LEAVES} concepts"]


def test_ways_are_the_lowest_whatever_is_around(graph: Graph) -> None:
    """Two ways of one length to a concept: by the lower concept before it, and the lower type between."""
    ids = write(graph, [("a", "Z", "b"), ("a", "Y", "c"), ("c", "X", "d"), ("b", "W", "d"), ("b", "V", "d"),
                        ("d", "U", "e"), ("a", "T", "a")])  # fmt: skip
    graph.refresh()
    ways = {one.concept.label: (one.hop, one.types) for one in graph.related(ids["a"], 3).items}
    numbers = {one.name: one.number for one in graph.relation_types()}
    lower = min(("W", "V"), key=numbers.__getitem__)
    assert ways == {"b": (1, ("Z",)), "c": (1, ("Y",)), "d": (2, ("Z", lower)), "e": (3, ("Z", lower, "U"))}


def test_remembered_answers_have_so_many_rows_together(graph: Graph, star: dict[str, UUID]) -> None:
    def ask(limit: int) -> Neighbors:
        return graph.neighbors([star["hub"]], limit=limit)

    large, small = ask(LEAVES), ask(10)
    assert ask(LEAVES) is large
    assert ask(10) is small
    one_more = ask(11)
    assert ask(11) is one_more
    assert ask(10) is small
    assert ask(LEAVES) is not large
