"""Degrees that were counted before are used while they are true, and no longer."""

from collections.abc import Callable

import numpy as np
import psycopg
import pytest

from kappa.graph import Graph, NewRelation
from kappa.graph.query.degrees import MOST_NODES, KnownDegrees
from kappa.graph.store.adjacency import Ints
from tests.graph.worlds import write


def ints(*numbers: int) -> Ints:
    return np.array(numbers, np.int64)


def saying(changed: Ints | None) -> Callable[[int], Ints | None]:
    return lambda _: changed


@pytest.fixture
def known() -> KnownDegrees:
    """Nodes 1, 2 and 9 at epoch 5."""
    made = KnownDegrees()
    made.come_to(5, saying(None))
    made.learn(5, ints(1, 2, 9), ints(10, 0, 90))
    return made


def test_what_was_counted_is_known(known: KnownDegrees) -> None:
    assert known.find(5, ints(9, 3, 2, 1, 1000)).tolist() == [90, -1, 0, 10, -1]


def test_another_epoch_knows_nothing(known: KnownDegrees) -> None:
    assert known.find(4, ints(1)).tolist() == [-1]
    assert known.find(6, ints(1)).tolist() == [-1]
    known.learn(4, ints(1), ints(7))
    known.come_to(4, saying(ints(1)))
    assert known.find(5, ints(1)).tolist() == [10]


def test_what_was_touched_is_forgotten(known: KnownDegrees) -> None:
    known.come_to(6, saying(ints(1, 5000)))
    assert known.find(6, ints(1, 2, 9)).tolist() == [-1, 0, 90]


def test_all_is_forgotten_where_the_log_cannot_tell(known: KnownDegrees) -> None:
    known.come_to(6, saying(None))
    assert known.find(6, ints(1, 2, 9)).tolist() == [-1, -1, -1]


def test_who_was_slower_changes_nothing(known: KnownDegrees) -> None:
    def meanwhile(_: int) -> Ints:
        known.come_to(7, saying(ints()))
        return ints(1)

    known.come_to(6, meanwhile)
    assert known.find(6, ints(1)).tolist() == [-1]
    assert known.find(7, ints(1)).tolist() == [10]


def test_memory_has_a_bound(known: KnownDegrees) -> None:
    known.learn(5, ints(3, MOST_NODES, -1), ints(30, 1, 1))
    assert known.find(5, ints(3, MOST_NODES)).tolist() == [30, -1]


def degrees(graph: Graph, seed: object) -> dict[str, int]:
    return {item.concept.label: item.degree for item in graph.neighbors([seed], 2).items}  # type: ignore[list-item]


def test_answers_in_sql_follow_every_write(graph: Graph, sql_graph: Graph, url: str) -> None:
    ids = write(graph, [("a", "KNOWS", "b"), ("b", "KNOWS", "c"), ("c", "KNOWS", "d"), ("d", "KNOWS", "e")])
    assert degrees(sql_graph, ids["a"]) == {"b": 2, "c": 2}
    graph.add_relations([NewRelation(ids["e"], ids["c"], "KNOWS")])
    assert degrees(sql_graph, ids["a"]) == {"b": 2, "c": 3}
    graph.delete_concepts([ids["d"]])
    assert degrees(sql_graph, ids["a"]) == {"b": 2, "c": 2}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "UPDATE kappa_graph.relations SET to_id = from_id "
            "WHERE from_id = (SELECT max(from_id) FROM kappa_graph.relations)"
        )
        assert degrees(sql_graph, ids["a"]) == {"b": 2, "c": 1}
        # The log begins later than what is known.
        graph.add_relations([NewRelation(ids["e"], ids["b"], "KNOWS")])
        connection.execute("DELETE FROM kappa_graph.epochs WHERE epoch < (SELECT max(epoch) FROM kappa_graph.epochs)")
    assert degrees(sql_graph, ids["a"]) == {"b": 3, "c": 1, "e": 3}
