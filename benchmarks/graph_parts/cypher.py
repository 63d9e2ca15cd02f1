"""What the first proposal asked of Apache AGE: a path of variable length, and frontiers in eight undirected chunks."""

import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import numpy as np
import psycopg

from benchmarks.graph_parts.age import fill_age
from benchmarks.graph_parts.data import ONTOLOGIES, World

Session: TypeAlias = psycopg.Connection[tuple[Any, ...]]
GRAPH = "benchmark"
CHUNKS = 8
MOST_SECONDS = 120
"""Of one statement; who is not done by then has taken at least so long."""


class Age:
    """A graph in AGE, and eight connections to it."""

    def __init__(self, sessions: Sequence[Session], offset: int) -> None:
        self._sessions = sessions
        self._offset = offset

    def variable_length(self, seed: int, hops: int) -> tuple[int | None, float]:
        """Whom it finds must pass; whom it walks through need not, which it has no quick way to ask for."""
        start = self._offset + seed
        text = (
            f"MATCH (a:Concept)-[:RELATES*1..{hops}]-(b:Concept) "
            f"WHERE id(a) = {start} AND id(b) <> {start} AND b.ontology <> 'part {ONTOLOGIES}' RETURN DISTINCT id(b)"
        )
        return _timed(lambda: len(_cypher(self._sessions[0], text)))

    def chunked(self, seed: int, hops: int) -> tuple[int | None, float]:
        """Hop by hop, each frontier in eight parts."""
        return _timed(lambda: self._chunked(seed, hops))

    def _chunked(self, seed: int, hops: int) -> int:
        seen = frontier = {self._offset + seed}
        with ThreadPoolExecutor(CHUNKS) as threads:
            for _ in range(hops):
                nodes = sorted(frontier)
                parts = [part for n in range(CHUNKS) if (part := nodes[n::CHUNKS])]
                found = threads.map(_around, self._sessions, parts)
                frontier = set[int]().union(*found) - seen
                seen = seen | frontier
        return len(seen) - 1


def _around(session: Session, nodes: Sequence[int]) -> set[int]:
    ids = ", ".join(map(str, nodes))
    return _cypher(
        session,
        f"MATCH (a:Concept)-[:RELATES]-(b:Concept) WHERE id(a) IN [{ids}] AND b.ontology <> 'part {ONTOLOGIES}' "
        "RETURN DISTINCT id(b)",
    )


def _cypher(session: Session, text: str) -> set[int]:
    rows = session.execute(
        f"SELECT id::text::bigint FROM ag_catalog.cypher('{GRAPH}', $${text}$$) AS (id ag_catalog.agtype)".encode()
    )
    return {row[0] for row in rows}


def _timed(ask: Callable[[], int]) -> tuple[int | None, float]:
    began = time.perf_counter()
    try:
        found = ask()
    except psycopg.errors.QueryCanceled:
        found = None
    return found, time.perf_counter() - began


@contextmanager
def filled(url: str, world: World) -> Generator[Age]:
    """The same graph in AGE."""
    with ExitStack() as stack:
        sessions = [stack.enter_context(psycopg.connect(url, autocommit=True)) for _ in range(CHUNKS)]
        offset = fill_age(sessions[0], GRAPH, world.nodes, (world.heads, world.tails))
        for session in sessions:
            session.execute("SET search_path = ag_catalog, public")
            session.execute(f"SET statement_timeout = '{MOST_SECONDS}s'".encode())
        yield Age(sessions, offset)


def found_at_the_end(world: World, seed: int, hops: int) -> int:
    """How many pass and are within so many hops, whoever is between."""
    seen = np.zeros(world.nodes + 1, np.bool_)
    seen[seed] = True
    frontier = seen.copy()
    for _ in range(hops):
        near = np.zeros_like(seen)
        near[world.tails[frontier[world.heads]]] = True
        near[world.heads[frontier[world.tails]]] = True
        frontier = near & ~seen
        seen |= near
    return int((seen[1:] & world.passes).sum()) - int(world.passes[seed - 1])
