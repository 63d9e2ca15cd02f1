"""A step in SQL: how much one statement may bring, and how many workers take part."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from uuid import UUID

import pytest

from kappa.graph import Budget, Cancel, Graph, GraphConfig, Where
from kappa.graph.query import server
from kappa.graph.query.backend import SqlBackend
from kappa.graph.query.filters import TOO_MANY, WHY, Limits
from tests.graph.worlds import write
from tests.ground import PATIENCE, eventually

MOST = 10
LEAVES = 3 * MOST
STARS = 6


class Recorded(SqlBackend):
    """Notes how much each statement brought, and how many ran at once; each waits until so many do."""

    def __init__(self, at_once: int = 1) -> None:
        self.brought: list[int] = []
        self.running = self.most_running = 0
        self._barrier = threading.Barrier(at_once)
        self._lock = threading.Lock()

    def expand(self, *args: Any) -> Any:
        with self._lock:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        self._barrier.wait(PATIENCE)
        found = super().expand(*args)
        with self._lock:
            self.running -= 1
            self.brought.append(len(found))
        return found

    def edges(self, *args: Any) -> Any:
        found = super().edges(*args)
        self.brought.append(len(found[0]))
        return found


@pytest.fixture
def stars(url: str) -> dict[str, UUID]:
    """Hubs around a middle, each with leaves of its own."""
    graph = Graph(url, GraphConfig(snapshot=False), budget=Budget()).open(listen=False)
    edges = [("middle", "HAS", f"hub {n}") for n in range(STARS)]
    edges += [(f"hub {n}", "HAS", f"leaf {n} {m}") for n in range(STARS) for m in range(LEAVES)]
    ids = write(graph, edges)
    graph.close()
    return ids


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def ask_with(opened: ExitStack, url: str, backend: SqlBackend, budget: Budget | None = None, **config: Any) -> Graph:
    graph = Graph(url, GraphConfig(snapshot=False, **config), backend=backend, budget=budget or Budget(8))
    opened.callback(graph.close)
    return graph.open(listen=False)


@pytest.mark.parametrize("where", [None, Where(["world"])], ids=["everything", "an ontology"])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_no_statement_brings_more_than_its_bound_and_the_answer_says_so(
    opened: ExitStack, url: str, stars: dict[str, UUID], chunk: int, where: Where | None
) -> None:
    backend = Recorded()
    graph = ask_with(opened, url, backend, chunk=chunk, chunk_rows=MOST, workers=1)
    answer = graph.neighbors([stars["middle"]], 2, "out", where=where, limit=1000)
    assert max(backend.brought) == MOST
    assert not answer.complete
    assert [one.why for one in answer.skipped] == [WHY[TOO_MANY]]
    assert answer.found == len(answer.items) == STARS + MOST * -(-STARS // chunk)
    backend.brought.clear()
    way = graph.paths(stars["middle"], stars["leaf 0 0"], 2, where=where)
    assert max(backend.brought) <= MOST
    assert way.complete or [one.why for one in way.skipped] == [WHY[TOO_MANY]]


def test_within_the_bound_nothing_is_missing(opened: ExitStack, url: str, stars: dict[str, UUID]) -> None:
    graph = ask_with(opened, url, Recorded(), chunk=1, chunk_rows=LEAVES + 1, workers=1)
    answer = graph.neighbors([stars["middle"]], 2, "out", limit=1000)
    assert (answer.complete, answer.found) == (True, STARS + STARS * LEAVES)


def test_alone_a_question_has_every_worker_for_a_large_step(
    opened: ExitStack, url: str, stars: dict[str, UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the statements waits until four run: with fewer workers none would come to an end."""
    monkeypatch.setattr(server, "HELP_WITHIN", PATIENCE)  # on a busy machine connections take a while
    backend = Recorded(4)
    graph = ask_with(opened, url, backend, Budget(4), chunk=1, workers=4)
    hubs = [stars[f"hub {n}"] for n in range(4)]
    answer = graph.neighbors(hubs, 1, "out", limit=1000)
    assert (answer.complete, answer.found) == (True, 4 * LEAVES)
    assert backend.most_running == 4


def test_beside_others_a_question_has_what_is_free(opened: ExitStack, url: str, stars: dict[str, UUID]) -> None:
    for taken in (2, 3):
        backend, budget = Recorded(4 - taken), Budget(4)
        graph = ask_with(opened, url, backend, budget, chunk=1, workers=4)
        limits = Limits(float("inf"), Cancel())
        with ExitStack() as others:
            for _ in range(taken):
                others.enter_context(budget.question(limits, 0))
            answer = graph.neighbors([stars[f"hub {n}"] for n in range(4)], 1, "out", limit=1000)
        assert answer.complete
        assert backend.most_running == 4 - taken


def test_nobody_borrows_while_a_question_waits() -> None:
    budget, limits = Budget(4), Limits(float("inf"), Cancel())
    over = threading.Event()

    def ask() -> None:
        with budget.question(limits, PATIENCE):
            over.wait(PATIENCE)

    with budget.question(limits, 0) as first:
        with first.more(10) as helpers:
            assert helpers == 3
            waiting = threading.Thread(target=ask)
            waiting.start()
            eventually(lambda: budget.use.waiting == 1)
            with first.more(10) as none:
                assert none == 0
        eventually(lambda: budget.use.waiting == 0)
        with first.more(10) as fewer:
            assert fewer == 2
        over.set()
        waiting.join(PATIENCE)
