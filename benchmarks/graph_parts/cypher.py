"""What the first proposal asked of Apache AGE: a variable-length path, and frontiers in eight chunks by undirected patterns."""

import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import psycopg

from benchmarks.graph_parts.age import fill_age
from benchmarks.graph_parts.data import ONTOLOGIES, World

GRAPH = "benchmark"
CHUNKS = 8
MOST_SECONDS = 240


class Age:
    """A graph in AGE, and eight connections to it."""

    def __init__(self, sessions: Sequence[psycopg.Connection[tuple[Any, ...]]], offset: int) -> None:
        self._sessions = sessions
        self._offset = offset

    def variable_length(self, seed: int, hops: int) -> tuple[int, float]:
        """Whom it finds must pass; whom it walks through need not, which it has no quick way to ask for."""
        began = time.perf_counter()
        start = self._offset + seed
        found = self._cypher(
            self._sessions[0],
            f"MATCH (a:Concept)-[*1..{hops}]-(b:Concept) "
            f"WHERE id(a) = {start} AND id(b) <> {start} AND b.ontology <> 'part {ONTOLOGIES}' RETURN DISTINCT id(b)",
        )
        return len(found), time.perf_counter() - began

    def chunked(self, seed: int, hops: int) -> tuple[int, float]:
        """Hop by hop, each frontier in eight parts."""
        began = time.perf_counter()
        seen = frontier = {self._offset + seed}
        with ThreadPoolExecutor(CHUNKS) as threads:
            for _ in range(hops):
                nodes = sorted(frontier)
                parts = [part for n in range(CHUNKS) if (part := nodes[n::CHUNKS])]
                found = threads.map(self._around, self._sessions, parts)
                frontier = set[int]().union(*found) - seen
                seen = seen | frontier
        return len(seen) - 1, time.perf_counter() - began

    def _around(self, session: psycopg.Connection[tuple[Any, ...]], nodes: Sequence[int]) -> set[int]:
        ids = ", ".join(map(str, nodes))
        return self._cypher(
            session,
            f"MATCH (a:Concept)-[]-(b:Concept) WHERE id(a) IN [{ids}] AND b.ontology <> 'part {ONTOLOGIES}' "
            "RETURN DISTINCT id(b)",
        )

    def _cypher(self, session: psycopg.Connection[tuple[Any, ...]], text: str) -> set[int]:
        rows = session.execute(
            f"SELECT id::text::bigint FROM ag_catalog.cypher('{GRAPH}', $${text}$$) AS (id ag_catalog.agtype)".encode()
        )
        return {row[0] for row in rows}


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
