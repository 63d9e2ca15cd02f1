"""The change clock: epochs are seen in their order, in whatever order transactions began, wrote and committed."""

import threading
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest

from kappa.graph import Graph, NewConcept, NewRelation
from kappa.graph.query import reading
from kappa.graph.store import clock, concepts, ontologies
from kappa.pg.queries import Row
from tests.graph.worlds import labels, write
from tests.ground import eventually

Session = psycopg.Connection[Row]


@pytest.fixture
def rivals(url: str) -> Iterator[tuple[Session, Session]]:
    with psycopg.connect(url) as first, psycopg.connect(url) as second:
        yield first, second


def waits_for_a_lock(watcher: Session, waiting: Session) -> bool:
    row = watcher.execute(
        "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s", [waiting.info.backend_pid]
    ).fetchone()
    return bool(row and row[0])


def add(session: Session, label: str) -> None:
    world = ontologies.get(session, "world")
    concepts.upsert(session, world.number, world.id, [NewConcept(label)])


def test_who_took_the_lower_epoch_and_commits_last_is_waited_for(
    graph: Graph, rivals: tuple[Session, Session], connection: Session
) -> None:
    graph.ontology("world")
    first, second = rivals
    add(first, "early")
    add(second, "late")
    lower = clock.take_epoch(first)
    # The second can't have a number before the first is seen, so no reader can meet a higher one first.
    with psycopg.connect(graph.database.url) as helper:
        helper.autocommit = True
        done: list[int] = []
        thread = threading.Thread(target=lambda: done.append(clock.take_epoch(second)))
        thread.start()
        eventually(lambda: waits_for_a_lock(helper, second), what="the second waits for the first")
        assert clock.now(connection) < lower
        first.commit()
        thread.join()
    assert done[0] > lower
    assert clock.now(connection) == lower
    second.commit()
    assert clock.now(connection) == done[0]


def test_a_snapshot_misses_nothing_of_transactions_that_overlap(
    graph: Graph, rivals: tuple[Session, Session], connection: Session
) -> None:
    graph.ontology("world")
    graph.refresh()
    first, second = rivals
    add(first, "begun first")
    add(second, "begun second")
    second.commit()
    seen = graph.refresh()
    assert seen == clock.now(connection)
    status = graph.status()
    assert status is not None
    assert status.nodes == 1
    first.commit()
    later = graph.refresh()
    assert later is not None
    assert seen is not None
    assert later > seen
    status = graph.status()
    assert status is not None
    assert status.nodes == 2


def test_plain_sql_writes_have_epochs_too(graph: Graph, connection: Session) -> None:
    ids = write(graph, [("a", "IS", "b"), ("b", "IS", "c")])
    graph.refresh()
    before = clock.now(connection)
    connection.execute("UPDATE kappa_graph.relations SET confidence = 10 WHERE confidence = 100")
    connection.execute("DELETE FROM kappa_graph.concepts WHERE label = 'c'")
    assert clock.now(connection) == before + 2
    assert graph.refresh() == before + 2
    assert labels(graph.neighbors([ids["a"]], 5)) == ["b"]


def test_what_changes_nothing_has_no_epoch(graph: Graph, connection: Session) -> None:
    write(graph, [("a", "IS", "b")])
    before = clock.now(connection)
    write(graph, [("a", "IS", "b", 0.5)])
    connection.execute("UPDATE kappa_graph.relations SET confidence = 10 WHERE false")
    assert clock.now(connection) == before


def test_a_transaction_has_one_epoch_and_one_that_fails_none(graph: Graph, connection: Session) -> None:
    graph.ontology("world")
    before = clock.now(connection)
    with graph.transaction() as writer:
        first = graph.add_concepts("world", [NewConcept("a")], connection=writer)
        second = graph.add_concepts("world", [NewConcept("b")], connection=writer)
    assert first.epoch == second.epoch == clock.now(connection) > before
    with pytest.raises(RuntimeError, match="no"), graph.transaction() as writer:
        graph.add_concepts("world", [NewConcept("c")], connection=writer)
        raise RuntimeError("no")
    assert clock.now(connection) == first.epoch
    with connection.transaction():
        add(connection, "kept")
        with connection.transaction(force_rollback=True):
            add(connection, "undone")
    graph.refresh()
    status = graph.status()
    assert status is not None
    assert status.nodes == 3


def test_a_truncation_is_seen(graph: Graph, connection: Session) -> None:
    ids = write(graph, [("a", "IS", "b")])
    assert labels(graph.neighbors([ids["a"]])) == ["b"]
    connection.execute("TRUNCATE kappa_graph.relations CASCADE")
    graph.refresh()
    assert labels(graph.neighbors([ids["a"]])) == []


def test_a_snapshot_older_than_the_log_is_built_anew(graph: Graph, connection: Session) -> None:
    ids = write(graph, [("a", "IS", "b")])
    graph.refresh()
    write(graph, [("b", "IS", "c")])
    assert clock.prune(connection, timedelta(0)) > 0
    assert clock.prune(connection, timedelta(0)) == 0
    assert reading.read_changes(connection, 1, 1000) is None
    graph.refresh()
    assert labels(graph.neighbors([ids["a"]], 2)) == ["b", "c"]
    status = graph.status()
    assert status is not None
    assert status.builds == 2


def test_an_endpoint_that_moves_is_followed(graph: Graph, connection: Session) -> None:
    ids = write(graph, [("a", "IS", "b"), ("x", "IS", "y")])
    graph.refresh()
    connection.execute(
        "UPDATE kappa_graph.relations SET to_id = (SELECT id FROM kappa_graph.concepts WHERE label = 'y') "
        "WHERE to_id = (SELECT id FROM kappa_graph.concepts WHERE label = 'b')"
    )
    graph.refresh()
    assert labels(graph.neighbors([ids["a"]])) == ["y"]
    assert labels(graph.neighbors([ids["b"]])) == []


def test_a_commit_is_heard_of_and_seen(url: str) -> None:
    with Graph(url) as listening:
        listening.refresh()  # the first one is a build
        ids = write(listening, [("a", "IS", "b")])
        for at in range(5):
            written = listening.add_relations([NewRelation(ids["a"], ids["b"], f"IS_{at}")])
            assert listening.wait_for(written.epoch)
        status = listening.status()
        assert status is not None
        assert status.refreshes >= 5


def test_read_your_writes(graph: Graph) -> None:
    ids = write(graph, [("a", "IS", "b")])
    graph.refresh()
    more = write(graph, [("b", "IS", "c")])
    written = graph.add_relations([NewRelation(more["c"], ids["a"], "IS")])
    old = graph.neighbors([ids["a"]], 2)
    assert old.as_of_epoch < written.epoch
    assert labels(old) == ["b"]
    new = graph.neighbors([ids["a"]], 2, min_epoch=written.epoch)
    assert new.as_of_epoch >= written.epoch
    assert labels(new) == ["b", "c"]
