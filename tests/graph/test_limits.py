"""Deadlines, cancelling, the budget: nothing runs on, nobody waits for ever, the pool is never exhausted."""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import LiteralString

import psycopg
import pytest
from psycopg import Connection
from psycopg.conninfo import make_conninfo

from kappa.graph import Budget, Cancel, Graph, GraphBusy, GraphConfig, GraphFailed, NewRelation
from kappa.graph.config import from_environment
from kappa.graph.errors import BadQuestion, EpochNotReached, QuestionStopped
from kappa.graph.query.backend import SqlBackend, Way
from kappa.graph.query.filters import Limits
from kappa.graph.query.gate import Gate
from kappa.graph.store.adjacency import Allowed, Ints
from kappa.pg import Bounds
from kappa.pg.queries import Row
from tests.graph.worlds import labels, write
from tests.ground import eventually

Session = psycopg.Connection[Row]


FOR_EVER = 3600
"""Seconds: a test that waits for it is ended by its own time-out."""


class SlowBackend(SqlBackend):
    """The same graph on a server that takes its time."""

    def __init__(self, seconds: float, first_free: int = 0) -> None:
        self._seconds = seconds
        self._free = first_free
        self.began = threading.Event()

    def expand(self, connection: Connection[Row], way: Way, frontier: Ints, allowed: Allowed, most: int) -> Ints:
        if self._free > 0:
            self._free -= 1
        else:
            self.began.set()
            connection.execute("SELECT pg_sleep(%s)", [self._seconds])
        return super().expand(connection, way, frontier, allowed, most)


class FailingBackend(SqlBackend):
    """Fails for some nodes."""

    def __init__(self, failing: Sequence[int], statement: LiteralString = "SELECT 1 / 0") -> None:
        self._failing = set(failing)
        self._statement: LiteralString = statement

    def expand(self, connection: Connection[Row], way: Way, frontier: Ints, allowed: Allowed, most: int) -> Ints:
        if self._failing & set(frontier.tolist()):
            connection.execute(self._statement)
        return super().expand(connection, way, frontier, allowed, most)


@pytest.fixture
def opened(url: str) -> Iterator[list[Graph]]:
    graphs: list[Graph] = []
    yield graphs
    for graph in graphs:
        graph.close()


def asked_of(opened: list[Graph], url: str, backend: SqlBackend, **config: object) -> Graph:
    graph = Graph(url, GraphConfig(**config), backend=backend, budget=Budget())  # type: ignore[arg-type]
    opened.append(graph.open())
    return graph


def running(connection: Session) -> list[Row]:
    return connection.execute(
        "SELECT state, query FROM pg_stat_activity "
        "WHERE application_name = 'kappa graph' AND datname = current_database() AND state <> 'idle'"
    ).fetchall()


CHAIN = [("a", "IS", "b"), ("b", "IS", "c"), ("c", "IS", "d")]


@pytest.mark.usefixtures("time_for_rows")
def test_a_deadline_gives_what_was_found_and_nothing_runs_on(
    graph: Graph, url: str, opened: list[Graph], connection: Session
) -> None:
    ids = write(graph, CHAIN)
    slow = asked_of(opened, url, SlowBackend(FOR_EVER, first_free=2))
    slow.neighbors([ids["d"]], direction="out")
    answer = slow.neighbors([ids["a"]], 3, "out", deadline=4.0)
    assert not answer.complete
    assert (answer.skipped[0].what, answer.skipped[0].why) == ("what is beyond hop 1", "the deadline passed")
    assert labels(answer) == ["b"]
    assert running(connection) == []


@pytest.mark.parametrize("chunk", [2_000, 1])
def test_a_statement_that_somebody_else_ends_gives_what_was_found(
    graph: Graph, url: str, opened: list[Graph], connection: Session, chunk: int
) -> None:
    ids = write(graph, [*CHAIN, ("a", "IS", "x")])
    slow = asked_of(opened, url, SlowBackend(FOR_EVER, first_free=1), chunk=chunk)
    sleeping = (
        "SELECT pid, query_start FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
    )
    with ThreadPoolExecutor(1) as threads:
        asking = threads.submit(lambda: slow.neighbors([ids["a"]], 3, "out"))
        ended: set[Row] = set()
        while not asking.done():
            for one in {*connection.execute(sleeping)} - ended:
                ended.add(one)
                connection.execute("SELECT pg_cancel_backend(%s)", one[:1])
        answer = asking.result()
    assert ended
    assert not answer.complete
    assert sorted(labels(answer)) == ["b", "x"]


@pytest.mark.usefixtures("time_for_rows")
def test_a_question_in_parallel_ends_everywhere_at_its_deadline(
    graph: Graph, url: str, opened: list[Graph], connection: Session
) -> None:
    ids = write(graph, [("hub", "HAS", f"n{n}") for n in range(12)])
    slow = asked_of(opened, url, SlowBackend(FOR_EVER, first_free=1), chunk=2)
    answer = slow.neighbors([ids["hub"]], 2, "out", deadline=4.0)
    assert not answer.complete
    assert len(answer.items) == 12
    assert running(connection) == []


def test_who_goes_away_takes_the_statement_along(
    graph: Graph, url: str, opened: list[Graph], connection: Session
) -> None:
    ids = write(graph, CHAIN)
    backend = SlowBackend(FOR_EVER)
    slow = asked_of(opened, url, backend)
    cancel = Cancel()
    with ThreadPoolExecutor(1) as threads:
        asking = threads.submit(lambda: slow.neighbors([ids["a"]], 3, cancel=cancel))
        assert backend.began.wait(30)
        eventually(lambda: [one for one in running(connection) if "pg_sleep" in one[1]])
        cancel.cancel()
        with pytest.raises(QuestionStopped, match="the question was cancelled"):
            asking.result()
    assert running(connection) == []


def test_some_workers_failing_is_a_part_and_all_of_them_an_error(graph: Graph, url: str, opened: list[Graph]) -> None:
    ids = write(graph, [("hub", "HAS", f"n{n}") for n in range(8)] + [("n7", "HAS", "far"), ("n0", "HAS", "lost")])
    nodes = {name: graph.concept(key).node for name, key in ids.items()}  # type: ignore[union-attr]
    some = asked_of(opened, url, FailingBackend([nodes["n0"]]), chunk=1)
    answer = some.neighbors([ids["hub"]], 2, "out")
    assert not answer.complete
    assert "division by zero" in answer.skipped[0].why
    assert "far" in labels(answer)
    none = asked_of(opened, url, FailingBackend(list(nodes.values())), chunk=1)
    with pytest.raises(GraphFailed, match="division by zero"):
        none.neighbors([ids["hub"]], 2, "out")


@pytest.mark.parametrize("chunk", [1, 2_000], ids=["several statements", "one statement"])
def test_a_question_that_loses_its_connections_says_so_and_the_next_one_is_answered(
    graph: Graph, url: str, opened: list[Graph], chunk: int
) -> None:
    ids = write(graph, [("hub", "HAS", f"n{n}") for n in range(4)] + [("n0", "HAS", "far")])
    nodes = {name: graph.concept(key).node for name, key in ids.items()}  # type: ignore[union-attr]
    end = "SELECT pg_terminate_backend(pg_backend_pid())"
    backend = FailingBackend([nodes[f"n{n}"] for n in range(4)], end)
    losing = asked_of(opened, url, backend, chunk=chunk)
    with pytest.raises(GraphFailed, match=r"terminating connection|server closed the connection"):
        losing.neighbors([ids["hub"]], 2, "out")
    assert labels(losing.neighbors([ids["hub"]], 1, "out")) == ["n0", "n1", "n2", "n3"]


def test_a_server_without_connections_for_helpers_holds_up_nobody(
    graph: Graph, url: str, opened: list[Graph], superuser: Session
) -> None:
    ids = write(graph, [("hub", "HAS", f"n{n}") for n in range(12)] + [(f"n{n}", "HAS", f"m{n}") for n in range(12)])
    superuser.execute("CREATE ROLE narrow LOGIN PASSWORD 'narrow' CONNECTION LIMIT 1")
    superuser.execute("GRANT USAGE ON SCHEMA kappa_graph TO narrow")
    superuser.execute("GRANT SELECT ON ALL TABLES IN SCHEMA kappa_graph TO narrow")
    one = make_conninfo(url, user="narrow", password="narrow")
    alone = asked_of(opened, one, SqlBackend(), chunk=1)
    answer = alone.neighbors([ids["hub"]], 2, "out", deadline=20)
    assert (answer.complete, answer.found) == (True, 24)
    alone.close()
    superuser.execute("DROP OWNED BY narrow")
    superuser.execute("DROP ROLE narrow")


def test_a_hundred_questions_at_once(graph: Graph, url: str, opened: list[Graph], connection: Session) -> None:
    ids = write(graph, [("hub", "HAS", f"n{n}") for n in range(30)] + [(f"n{n}", "HAS", f"m{n}") for n in range(30)])
    asked = asked_of(opened, url, SlowBackend(0.01), chunk=3, pool=Bounds(1, 20))
    assert asked._own_pool
    most = 0
    gate = threading.Barrier(101)

    def ask(n: int) -> int:
        gate.wait()
        return asked.neighbors([ids[f"n{n % 30}"]], 2).found

    with ThreadPoolExecutor(100) as threads:
        asking = [threads.submit(ask, n) for n in range(100)]
        gate.wait()
        while not all(one.done() for one in asking):
            # A health check answers meanwhile, from the same pool.
            assert asked.epoch() > 0
            use = asked.budget()
            most = max(most, use.busy + use.lanes_busy)
            assert use.busy <= 8
            assert use.busy + use.lanes_busy <= 18
        assert {one.result() for one in asking} == {31}
    assert most > 1
    assert asked.budget().waiting == 0


def test_who_came_first_is_first() -> None:
    gate = Gate(1)
    assert gate.enter(1)
    turns: list[int] = []
    threads: list[threading.Thread] = []

    def wait(n: int) -> None:
        assert gate.enter(30)
        turns.append(n)
        gate.leave()

    for n in range(6):
        threads.append(threading.Thread(target=wait, args=(n,)))
        threads[-1].start()
        eventually(lambda n=n: gate.use[2] == n + 1)
    # Nobody passes those who wait, and nobody takes more than its own while they do.
    assert not gate.enter(0)
    assert gate.take(5) == 0
    gate.leave()
    for thread in threads:
        thread.join()
    assert turns == list(range(6))
    assert gate.use == (0, 1, 0)


def test_who_gave_up_waiting_holds_up_nobody() -> None:
    gate = Gate(1)
    assert gate.enter(1)
    assert not gate.enter(0.01)
    waiting = threading.Thread(target=lambda: gate.enter(30))
    waiting.start()
    eventually(lambda: gate.use[2] == 1)
    gate.leave()
    waiting.join()
    assert gate.use == (1, 1, 0)


def test_without_a_worker_in_time_a_question_goes_the_sequential_way() -> None:
    budget = Budget(workers=1, pool=4)
    limits = Limits(time.monotonic() + 30, Cancel())
    with budget.question(limits, 0.01) as first:
        assert not first.sequential
        with first.more(3) as more:
            assert more == 0
        with budget.question(limits, 0.01) as second:
            assert second.sequential
            with second.more(3) as more:
                assert more == 0
            short = Limits(time.monotonic() + 0.05, Cancel())
            with pytest.raises(GraphBusy, match="none of 1 graph workers"), budget.question(short, 0.01):
                pass
    assert budget.use.busy == budget.use.lanes_busy == 0


def test_workers_and_lanes_leave_two_connections_to_others() -> None:
    for pool in (1, 2, 3, 5, 20, 50):
        for workers in (1, 8, 32):
            use = Budget(workers, pool).use
            assert 1 <= use.workers <= workers
            assert use.workers + use.lanes <= max(1, pool - 2)


def test_settings_of_the_database_count_at_once_and_the_environment_without_them(url: str) -> None:
    config = from_environment({"KAPPA_GRAPH_WORKERS": "3", "KAPPA_GRAPH_TIMEOUT": "7", "KAPPA_GRAPH_SNAPSHOT_MB": "5"})
    assert (config.workers, config.timeout, config.snapshot_bytes) == (3, 7.0, 5 << 20)
    graph = Graph(url, GraphConfig(workers=3, timeout=7, settings_for=timedelta(0)), budget=Budget())
    graph.open(listen=False)
    ids = write(graph, CHAIN)
    graph.neighbors([ids["a"]], 2)
    assert graph.budget().workers == 3
    graph.edit_settings(workers=5, timeout=9)
    assert (graph.settings().workers, graph.settings().timeout) == (5, 9.0)
    graph.neighbors([ids["a"]], 2)
    assert graph.budget().workers == 5
    graph.edit_settings()
    graph.neighbors([ids["a"]], 2)
    assert graph.budget().workers == 3
    with pytest.raises(BadQuestion, match="33 graph workers"):
        graph.edit_settings(workers=33)
    with pytest.raises(BadQuestion, match="4 s"):
        graph.edit_settings(timeout=4)
    with pytest.raises(BadQuestion, match="no number"):
        from_environment({"KAPPA_GRAPH_WORKERS": "many"})
    graph.close()


def test_variables_of_similar_programs_count_where_ours_are_unset() -> None:
    others = {"PARALLEL_QUERY_MAX_WORKERS": "4", "PARALLEL_QUERY_TIMEOUT_SECONDS": "60"}
    config = from_environment(others)
    assert (config.workers, config.timeout) == (4, 60.0)
    config = from_environment({**others, "KAPPA_GRAPH_WORKERS": "2", "KAPPA_GRAPH_TIMEOUT": ""})
    assert (config.workers, config.timeout) == (2, 60.0)
    for name, value in (
        ("PARALLEL_QUERY_MAX_WORKERS", "33"),
        ("PARALLEL_QUERY_MAX_WORKERS", "2.5"),
        ("KAPPA_GRAPH_WORKERS", "2.5"),
        ("PARALLEL_QUERY_TIMEOUT_SECONDS", "4"),
        ("PARALLEL_QUERY_TIMEOUT_SECONDS", "nan"),
    ):
        with pytest.raises(BadQuestion, match=f"{name} is '{value}': it must be"):
            from_environment({name: value})


def test_a_graph_too_large_for_memory_is_asked_in_sql(url: str) -> None:
    small = Graph(url, GraphConfig(snapshot_bytes=100), budget=Budget()).open(listen=False)
    ids = write(small, CHAIN)
    answer = small.neighbors([ids["a"]], 3)
    assert answer.served_by == "sql"
    assert labels(answer) == ["b", "c", "d"]
    assert small.refresh() is None
    status = small.status()
    assert status is not None
    assert (status.state, status.bytes) == ("too large", 0)
    small.close()


def test_a_snapshot_that_grows_too_large_is_given_up(url: str) -> None:
    graph = Graph(url, GraphConfig(snapshot_bytes=40_000), budget=Budget()).open(listen=False)
    ids = write(graph, CHAIN)
    graph.refresh()
    assert graph.neighbors([ids["a"]], 3).served_by == "snapshot"
    write(graph, [("a", "HAS", f"n{n}") for n in range(2_000)])
    graph.refresh()
    status = graph.status()
    assert status is not None
    assert status.state == "too large"
    answer = graph.neighbors([ids["a"]], 3, limit=10)
    assert (answer.served_by, answer.found) == ("sql", 2_003)
    graph.close()


def test_an_epoch_that_never_comes_is_an_error_and_not_an_old_answer(graph: Graph, sql_graph: Graph) -> None:
    ids = write(graph, CHAIN)
    for asked in (graph, sql_graph):
        with pytest.raises(EpochNotReached, match="epoch 999"):
            asked.neighbors([ids["a"]], deadline=3, min_epoch=999)


def test_a_one_hop_answer_is_remembered_until_something_changes(graph: Graph, connection: Session) -> None:
    ids = write(graph, CHAIN)
    graph.refresh()
    first = graph.neighbors([ids["a"]])
    assert graph.neighbors([ids["a"]]) is first
    assert graph.neighbors([ids["a"]], direction="in") is not first
    write(graph, [("a", "HAS", "e")])
    graph.refresh()
    assert labels(graph.neighbors([ids["a"]])) == ["b", "e"]
    # The label of a remembered concept is a change as well.
    connection.execute("UPDATE kappa_graph.concepts SET label = 'E' WHERE label = 'e'")
    graph.refresh()
    assert labels(graph.neighbors([ids["a"]])) == ["b", "E"]


def test_what_is_found_is_bounded_and_says_so(url: str) -> None:
    graph = Graph(url, GraphConfig(max_found=20), budget=Budget()).open(listen=False)
    cold = Graph(url, GraphConfig(snapshot=False, max_found=20, chunk_rows=10), budget=Budget()).open(listen=False)
    ids = write(graph, [("hub", "HAS", f"n{n}") for n in range(50)] + [("hub", "IS", "x")])
    for asked in (graph, cold):
        answer = asked.neighbors([ids["hub"]], 2)
        assert not answer.complete
        assert "more was found" in answer.skipped[0].why
        asked.close()


def test_a_compaction_loses_nothing_that_comes_meanwhile(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from kappa.graph.query import keeper

    monkeypatch.setattr(keeper, "LEAST_TO_COMPACT", 10)
    begun, go_on = threading.Event(), threading.Event()
    really = keeper.compact

    def slowly(old: keeper.Snapshot) -> keeper.Snapshot:
        made = really(old)
        begun.set()
        assert go_on.wait(30)
        return made

    monkeypatch.setattr(keeper, "compact", slowly)
    graph = Graph(url, GraphConfig(), budget=Budget()).open(listen=False)
    ids = write(graph, CHAIN)
    graph.refresh()
    write(graph, [("a", "HAS", f"n{n}") for n in range(20)])
    graph.refresh()
    assert begun.wait(30)
    more = write(graph, [("d", "IS", "e")])
    graph.delete_relations([(ids["a"], ids["b"], "IS")])
    graph.refresh()
    go_on.set()
    graph.close()
    status = graph.status()
    assert status is not None
    assert (status.compactions, status.builds, status.edges) == (1, 1, 23)
    reopened = Graph(url, GraphConfig(), budget=Budget()).open(listen=False)
    reopened._keeper._current = graph._keeper._current  # type: ignore[union-attr]
    assert labels(reopened.neighbors([more["e"]], 9)) == ["c", "d", "b"]
    reopened.close()


def test_a_relation_written_while_the_snapshot_is_built_is_not_lost(url: str) -> None:
    graph = Graph(url, GraphConfig(), budget=Budget()).open(listen=False)
    ids = write(graph, CHAIN)
    with psycopg.connect(url) as late:
        late.execute("UPDATE kappa_graph.relations SET confidence = 50")
        graph.refresh()
        written = graph.add_relations([NewRelation(ids["d"], ids["a"], "IS")])
        late.commit()
    graph.refresh()
    status = graph.status()
    assert status is not None
    assert status.epoch is not None
    assert status.epoch > written.epoch
    graph.close()
