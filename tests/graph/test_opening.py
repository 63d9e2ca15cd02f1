"""How a graph is opened: once, and as its owner said."""

import threading

from kappa.graph import Budget, Graph, GraphConfig
from tests.graph.worlds import labels, write


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
