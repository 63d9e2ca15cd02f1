"""How a graph is opened: once, and as its owner said."""

import os
import signal
import threading

import psycopg
import pytest

from kappa.graph import Budget, Graph, GraphConfig
from kappa.graph.query import server as database
from tests.conftest import started
from tests.graph.worlds import labels, write
from tests.ground import PATIENCE, eventually


def listeners() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "kappa graph"}


def test_a_graph_opened_without_listening_does_not_listen_inside_a_with_block(url: str) -> None:
    before = listeners()
    with Graph(url, GraphConfig(), budget=Budget()).open(listen=False) as graph:
        assert listeners() == before
        ids = write(graph, [("a", "IS", "b")])
        assert labels(graph.neighbors([ids["a"]])) == ["b"]


def test_a_graph_opened_twice_listens_once_and_is_closed_once(url: str) -> None:
    before = listeners()
    with Graph(url, GraphConfig(), budget=Budget()).open() as graph:
        graph.open()
        assert len(listeners() - before) == 1
        assert graph.wait_for(graph.add_relations([]).epoch, 30)
    assert listeners() == before


def test_a_graph_opened_without_listening_may_listen_later(url: str) -> None:
    with Graph(url, GraphConfig(), budget=Budget()).open(listen=False) as graph:
        graph.open(listen=True)
        written = graph.ontology("world")
        assert graph.wait_for(graph.epoch(), 30)
        assert written in graph.ontologies()


def test_a_graph_is_closed_although_the_server_is_frozen(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its refresh waits for a lock, and the server takes no connection over which it could be cancelled."""
    monkeypatch.setattr(database, "CANCEL_WITHIN", 0.5)
    monkeypatch.setattr(database, "STOP_WITHIN", 1.0, raising=False)
    before, raised = listeners(), list[BaseException]()
    with started(tmp_path_factory) as server:
        url = server.create()
        graph = Graph(url, GraphConfig(), budget=Budget())
        graph.install()

        def close() -> None:
            try:
                graph.close()
            except BaseException as error:
                raised.append(error)

        waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        postmaster = server.embedded.status().pid
        assert postmaster is not None
        with psycopg.connect(url) as holder, psycopg.connect(url, autocommit=True) as other:
            holder.execute("LOCK kappa_graph.relations IN ACCESS EXCLUSIVE MODE")
            graph.open()
            eventually(lambda: other.execute(waiting).fetchone(), what="the refresh waits")
            closing = threading.Thread(target=close)
            os.kill(postmaster, signal.SIGSTOP)
            try:
                closing.start()
                closing.join(PATIENCE)
                ended = not closing.is_alive()
            finally:
                os.kill(postmaster, signal.SIGCONT)
        closing.join(PATIENCE)
        assert (ended, raised) == (True, [])
        eventually(lambda: listeners() == before, what="what was left behind ends when the server goes on")
