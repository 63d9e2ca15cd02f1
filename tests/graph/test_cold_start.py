"""While something is brought into memory the database answers, and nobody waits for what a deadline doesn't cover."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from kappa.graph import Budget, Graph, GraphConfig, NewRelation
from kappa.graph.query import reading
from kappa.graph.query.vector_keeper import VectorKeeper
from kappa.pg.queries import Row
from tests.graph.worlds import labels, write
from tests.ground import PATIENCE, eventually

Session = psycopg.Connection[Row]

CHAIN = [("a", "IS", "b"), ("b", "IS", "c"), ("c", "IS", "d")]


class Gate:
    """Holds a step until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        really = getattr(owner, name)

        def held(*args: Any) -> Any:
            self.reached.set()
            assert self.opened.wait(PATIENCE)
            return really(*args)

        monkeypatch.setattr(owner, name, held)

    def wait(self) -> None:
        assert self.reached.wait(PATIENCE)

    def open(self) -> None:
        self.opened.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[object, str], Gate]]:
    made: list[Gate] = []

    def hold(owner: object, name: str) -> Gate:
        made.append(Gate(monkeypatch, owner, name))
        return made[-1]

    yield hold
    for one in made:
        one.open()


Hold = Callable[[object, str], Gate]


@pytest.fixture
def world(sql_graph: Graph) -> dict[str, Any]:
    ids = write(sql_graph, CHAIN)
    sql_graph.set_embeddings("m", {ids["a"]: [1, 0], ids["b"]: [1, 1], ids["d"]: [0, 1]})
    return dict(ids)


def test_while_the_snapshot_is_built_every_question_is_answered_in_sql(
    url: str, world: dict[str, Any], gate: Hold
) -> None:
    building = gate(reading, "read_all")
    with Graph(url, GraphConfig(), budget=Budget()) as graph:
        building.wait()
        a, d = world["a"], world["d"]
        assert labels(graph.neighbors([a], 2)) == ["b", "c"]
        for answer in (
            graph.neighbors([a], 2, relation_types=["IS"], min_epoch=graph.epoch()),
            graph.related(a, deadline=20),
            graph.subgraph([a]),
            graph.diversity(a),
            graph.paths(a, d),
            graph.enriched_path(a, d),
            graph.polarity(a, d),
        ):
            assert (answer.served_by, answer.complete) == ("sql", True)
        assert graph.neighbors([a], 3).found == 3
        building.open()
        assert graph.wait_for(graph.epoch(), PATIENCE)
        assert graph.neighbors([a], 2).served_by == "snapshot"


def test_without_listening_the_first_question_has_the_snapshot_built_and_does_not_wait_for_it(
    url: str, world: dict[str, Any], gate: Hold
) -> None:
    building = gate(reading, "read_all")
    with Graph(url, GraphConfig(), budget=Budget()).open(listen=False) as graph:
        for _ in range(3):
            assert graph.neighbors([world["a"]], 2).served_by == "sql"
        building.wait()
        building.open()
        eventually(lambda: graph.neighbors([world["a"]], 2).served_by == "snapshot")
        assert graph.status().builds == 1  # type: ignore[union-attr]


def test_a_snapshot_that_is_built_anew_is_not_waited_for(
    url: str, sql_graph: Graph, world: dict[str, Any], gate: Hold, connection: Session
) -> None:
    with Graph(url, GraphConfig(), budget=Budget()) as graph:
        assert graph.wait_for(graph.epoch(), PATIENCE)
        building = gate(reading, "read_all")
        connection.execute("INSERT INTO kappa_graph.changes (kind) VALUES ('reload')")
        building.wait()
        written = sql_graph.add_relations([NewRelation(world["a"], world["d"], "IS")])
        assert labels(graph.neighbors([world["a"]], 1)) == ["b"]
        newer = graph.neighbors([world["a"]], 1, min_epoch=written.epoch)
        assert (newer.served_by, labels(newer)) == ("sql", ["b", "d"])
        building.open()


def test_a_refresh_that_takes_its_time_is_not_waited_for_until_the_deadline(
    url: str, sql_graph: Graph, world: dict[str, Any], gate: Hold
) -> None:
    with Graph(url, GraphConfig(), budget=Budget()).open(listen=False) as graph:
        graph.refresh()
        refreshing = gate(reading, "read_changes")
        written = sql_graph.add_relations([NewRelation(world["a"], world["d"], "IS")])
        newer = graph.neighbors([world["a"]], min_epoch=written.epoch)
        assert (newer.served_by, labels(newer)) == ("sql", ["b", "d"])
        assert refreshing.reached.is_set()
        refreshing.open()


def test_while_embeddings_are_read_a_search_reads_them_through(url: str, world: dict[str, Any], gate: Hold) -> None:
    building = gate(VectorKeeper, "_build")
    with Graph(url, GraphConfig(), budget=Budget()) as graph:
        for text in (None, "b"):
            answer = graph.search(text, vector=[1, 0], model="m", min_similarity=0.5)
            assert (answer.served_by, answer.complete) == ("sql", True)
            assert sorted(labels(answer)) == ["a", "b"]
        building.wait()
        building.open()
        eventually(lambda: graph.search(vector=[1, 0], model="m").served_by == "snapshot")


def test_embeddings_that_somebody_else_brings_up_to_date_are_read_through(
    url: str, sql_graph: Graph, world: dict[str, Any], gate: Hold
) -> None:
    graph = Graph(url, GraphConfig(), budget=Budget()).open(listen=False)
    eventually(lambda: graph.search(vector=[1, 0], model="m").served_by == "snapshot")
    refreshing = gate(VectorKeeper, "_next")
    sql_graph.set_embeddings("m", {world["c"]: [1, 0]})

    def ask() -> list[str]:
        return labels(graph.search(vector=[1, 0], model="m", min_similarity=0.9, min_epoch=sql_graph.epoch()))

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(ask)
        refreshing.wait()
        assert ask() == ["a", "c"]
        refreshing.open()
        assert first.result(PATIENCE) == ["a", "c"]
    graph.close()


def test_settings_that_somebody_has_locked_keep_no_question_waiting(url: str, world: dict[str, Any]) -> None:
    with Graph(url, GraphConfig(), budget=Budget()).open(listen=False) as graph, psycopg.connect(url) as holder:
        holder.execute("LOCK kappa_graph.graph_settings IN ACCESS EXCLUSIVE MODE")
        assert labels(graph.neighbors([world["a"]], 2)) == ["b", "c"]
        assert labels(graph.search("a")) == ["a"]


def waiting_for_locks(connection: Session) -> list[Row]:
    return connection.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    ).fetchall()


def test_a_graph_is_closed_although_somebody_keeps_its_snapshot_waiting(
    url: str, world: dict[str, Any], connection: Session
) -> None:
    with psycopg.connect(url) as holder:
        holder.execute("LOCK kappa_graph.relations IN ACCESS EXCLUSIVE MODE")
        graph = Graph(url, GraphConfig(), budget=Budget()).open()
        eventually(lambda: waiting_for_locks(connection))
        closing = threading.Thread(target=graph.close, daemon=True)
        closing.start()
        closing.join(PATIENCE)
        assert not closing.is_alive()


def test_a_graph_is_closed_although_somebody_keeps_its_embeddings_waiting(
    url: str, world: dict[str, Any], connection: Session
) -> None:
    with psycopg.connect(url) as holder, ThreadPoolExecutor(1) as threads:
        graph = Graph(url, GraphConfig(snapshot=False), budget=Budget()).open(listen=False)
        holder.execute("LOCK kappa_graph.concepts IN ACCESS EXCLUSIVE MODE")
        asking = threads.submit(lambda: graph.search(vector=[1, 0], model="m", deadline=1.0))
        assert asking.exception(PATIENCE) is not None
        eventually(lambda: len(waiting_for_locks(connection)) == 1)
        closing = threading.Thread(target=graph.close, daemon=True)
        closing.start()
        closing.join(PATIENCE)
        assert not closing.is_alive()


def test_embeddings_that_can_not_be_brought_into_memory_are_read_through(
    graph: Graph, url: str, connection: Session, gate: Hold
) -> None:
    ids = write(graph, CHAIN)
    graph.set_embeddings("m", {ids["a"]: [1, 0], ids["b"]: [0, 1]})
    reading = gate(VectorKeeper, "_build")
    with (
        Graph(url, GraphConfig(patience=PATIENCE), budget=Budget()).open(listen=False) as other,
        ThreadPoolExecutor(1) as asking,
    ):
        answer = asking.submit(other.search, vector=[1, 0], model="m", deadline=2 * PATIENCE)
        reading.wait()
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND state = 'idle in transaction' AND query LIKE 'BEGIN%'"
        )
        reading.open()
        found = answer.result(PATIENCE)
    assert (labels(found), found.complete, found.served_by) == (["a", "b"], True, "sql")
