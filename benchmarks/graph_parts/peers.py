"""The other engines: each in a process of the peers' environment, and PostgreSQL's recursive CTE.

The filter is done beforehand for all of them but the CTE: few can filter what they walk through.
"""

import json
import subprocess
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import psycopg

from benchmarks.graph_parts.data import ONTOLOGIES, World
from benchmarks.peers.environment import PYTHON, ensure_python

DRIVER = Path(__file__).parent / "drivers" / "run_peer.py"
NAMES = ("igraph", "DuckDB", "DuckDB recursive", "Kùzu", "networkx", "rustworkx")

RECURSIVE = """
WITH RECURSIVE walk (node, hop) AS (
    SELECT %(seed)s::bigint, 0
    UNION
    SELECT c.id, w.hop + 1
      FROM walk AS w
     CROSS JOIN LATERAL (SELECT to_id AS node FROM kappa_graph.relations WHERE from_id = w.node UNION ALL
                         SELECT from_id FROM kappa_graph.relations WHERE to_id = w.node) AS near
      JOIN kappa_graph.concepts AS c ON c.id = near.node AND c.ontology_id < %(ontologies)s
     WHERE w.hop < %(hops)s
)
SELECT count(DISTINCT node) - 1 FROM walk
"""


class PeerFailed(RuntimeError):
    """A peer that came to its end before its answer."""


class Peer:
    """An engine in a process of its own, which takes the time itself."""

    def __init__(self, name: str, edges: Path) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [str(PYTHON), str(DRIVER), name, str(edges)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def wait_loaded(self) -> None:
        self._hear()

    def reach(self, seed: int, hops: int) -> tuple[int, float]:
        return self._ask(do="reach", seed=seed - 1, hops=hops)

    def path(self, start: int, goal: int, hops: int) -> tuple[int, float]:
        return self._ask(do="path", start=start - 1, goal=goal - 1, hops=hops)

    def _ask(self, **question: object) -> tuple[int, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        said = self._hear()
        return said["answer"], said["seconds"]

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerFailed(f"{self.name}: {self._process.stderr.read()[-2000:].strip()}")
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def peers(world: World, directory: Path) -> Generator[list[Peer]]:
    """All of them, with the graph loaded."""
    ensure_python()
    edges = directory / f"edges-{world.nodes}-{world.edges}.npz"
    a, b = world.pairs()
    np.savez(edges, nodes=world.nodes, a=a, b=b)
    with ExitStack() as stack:
        started = [stack.enter_context(Peer(name, edges)) for name in NAMES]
        for peer in started:
            peer.wait_loaded()
        yield started
    edges.unlink()


def recursive(connection: psycopg.Connection[tuple[Any, ...]], seed: int, hops: int) -> int:
    """What PostgreSQL does by itself."""
    row = connection.execute(RECURSIVE, {"seed": seed, "hops": hops, "ontologies": ONTOLOGIES}).fetchone()
    assert row is not None
    return row[0]
