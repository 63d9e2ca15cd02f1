"""One peer of the graph, run by the peers' own interpreter: `run_peer.py NAME EDGES.npz`.

The edges are undirected pairs of what passes the filter, so that a peer need not filter while it is asked. Questions
come as JSON lines on stdin (`{"do": "reach", "seed": 1, "hops": 2}`, `{"do": "path", "start": 1, "goal": 2, "hops":
6}`) and answers go to stdout: `{"answer": 30000, "seconds": 0.005}`, how many were found, or the path's length, or -1.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np


class Networkx:
    """A breadth-first search by sets over its dictionaries, which is quicker than its own."""

    def __init__(self, nodes: int, a: np.ndarray, b: np.ndarray) -> None:
        import networkx

        self._search = networkx.bidirectional_shortest_path
        self._none = (networkx.NetworkXNoPath, networkx.NodeNotFound)
        self._graph = networkx.Graph()
        self._graph.add_nodes_from(range(nodes))
        self._graph.add_edges_from(zip(a.tolist(), b.tolist(), strict=True))

    def reach(self, seed: int, hops: int) -> int:
        near = self._graph._adj
        seen, frontier = {seed}, {seed}
        for _ in range(hops):
            found: set[int] = set()
            for node in frontier:
                found.update(near[node])
            found -= seen
            seen |= found
            frontier = found
        return len(seen) - 1

    def path(self, start: int, goal: int, hops: int) -> int:
        try:
            length = len(self._search(self._graph, start, goal)) - 1
        except self._none:
            return -1
        return length if length <= hops else -1


class Igraph:
    """`neighborhood` and `get_shortest_path`."""

    def __init__(self, nodes: int, a: np.ndarray, b: np.ndarray) -> None:
        import igraph

        self._graph = igraph.Graph(n=nodes, edges=np.stack((a, b), axis=1))

    def reach(self, seed: int, hops: int) -> int:
        return len(self._graph.neighborhood(seed, order=hops)) - 1

    def path(self, start: int, goal: int, hops: int) -> int:
        length = len(self._graph.get_shortest_path(start, goal)) - 1
        return length if 0 <= length <= hops else -1


class Rustworkx:
    """A breadth-first search over `neighbors`; its own visitors call Python for each edge."""

    def __init__(self, nodes: int, a: np.ndarray, b: np.ndarray) -> None:
        import rustworkx

        self._shortest = rustworkx.graph_dijkstra_shortest_paths
        self._graph = rustworkx.PyGraph(multigraph=True)
        self._graph.add_nodes_from(range(nodes))
        self._graph.extend_from_edge_list(list(zip(a.tolist(), b.tolist(), strict=True)))

    def reach(self, seed: int, hops: int) -> int:
        graph = self._graph
        seen, frontier = {seed}, {seed}
        for _ in range(hops):
            found: set[int] = set()
            for node in frontier:
                found.update(graph.neighbors(node))
            found -= seen
            seen |= found
            frontier = found
        return len(seen) - 1

    def path(self, start: int, goal: int, hops: int) -> int:
        found = self._shortest(self._graph, start, goal, default_weight=1.0)
        length = len(found[goal]) - 1 if goal in found else -1
        return length if length <= hops else -1


class Duckdb:
    """Frontier by frontier, one statement a hop, what was seen kept in numpy."""

    def __init__(self, nodes: int, a: np.ndarray, b: np.ndarray) -> None:
        import duckdb

        self._nodes = nodes
        self._session = duckdb.connect()
        here, there = np.concatenate((a, b)), np.concatenate((b, a))
        order = np.argsort(here, kind="stable")
        given = {"a": here[order], "b": there[order]}  # noqa: F841
        self._session.execute("CREATE TABLE edges AS SELECT a, b FROM given")

    def _hop(self, frontier: np.ndarray, seen: np.ndarray) -> np.ndarray:
        front = {"a": frontier}  # noqa: F841
        near = self._session.execute("SELECT DISTINCT b FROM edges SEMI JOIN front USING (a)").fetchnumpy()["b"]
        fresh = near[~seen[near]]
        seen[fresh] = True
        return fresh

    def reach(self, seed: int, hops: int) -> int:
        seen = np.zeros(self._nodes, np.bool_)
        seen[seed] = True
        frontier, count = np.array([seed]), 0
        for _ in range(hops):
            frontier = self._hop(frontier, seen)
            count += len(frontier)
        return count

    def path(self, start: int, goal: int, hops: int) -> int:
        seen = [np.zeros(self._nodes, np.bool_), np.zeros(self._nodes, np.bool_)]
        front = [np.array([start]), np.array([goal])]
        seen[0][start] = seen[1][goal] = True
        for hop in range(1, hops + 1):
            side = int(len(front[1]) < len(front[0]))
            front[side] = self._hop(front[side], seen[side])
            if seen[1 - side][front[side]].any():
                return hop
        return -1


class DuckdbRecursive(Duckdb):
    """A recursive CTE."""

    def reach(self, seed: int, hops: int) -> int:
        found = self._session.execute(
            "WITH RECURSIVE walk (node, hop) AS (SELECT ?::bigint, 0 UNION "
            "SELECT e.b, w.hop + 1 FROM walk AS w JOIN edges AS e ON e.a = w.node WHERE w.hop < ?) "
            "SELECT count(DISTINCT node) - 1 FROM walk",
            [seed, hops],
        ).fetchone()
        assert found is not None
        return int(found[0])


class Kuzu:
    """Its pattern for shortest paths."""

    def __init__(self, nodes: int, a: np.ndarray, b: np.ndarray) -> None:
        import kuzu

        self._directory = tempfile.TemporaryDirectory(prefix="kappa-kuzu-")
        place = Path(self._directory.name)
        (place / "nodes.csv").write_text("\n".join(map(str, range(nodes))) + "\n")
        (place / "edges.csv").write_text(
            "\n".join([f"{x},{y}" for x, y in zip(a.tolist(), b.tolist(), strict=True)]) + "\n"
        )
        self._database = kuzu.Database(str(place / "graph"))
        self._session = kuzu.Connection(self._database)
        for statement in (
            "CREATE NODE TABLE Concept(id INT64, PRIMARY KEY(id))",
            "CREATE REL TABLE Relates(FROM Concept TO Concept)",
            f"COPY Concept FROM '{place / 'nodes.csv'}' (header=false)",
            f"COPY Relates FROM '{place / 'edges.csv'}' (header=false)",
        ):
            self._session.execute(statement)

    def reach(self, seed: int, hops: int) -> int:
        pattern = f"(a:Concept)-[:Relates* SHORTEST 1..{hops}]-(b:Concept)"
        text = f"MATCH {pattern} WHERE a.id = $seed AND b.id <> $seed RETURN count(*)"
        return self._session.execute(text, {"seed": seed}).get_next()[0]

    def path(self, start: int, goal: int, hops: int) -> int:
        pattern = f"(a:Concept)-[e:Relates* SHORTEST 1..{hops}]-(b:Concept)"
        text = f"MATCH {pattern} WHERE a.id = $start AND b.id = $goal RETURN length(e)"
        found = self._session.execute(text, {"start": start, "goal": goal})
        return found.get_next()[0] if found.has_next() else -1


PEERS = {
    "networkx": Networkx,
    "igraph": Igraph,
    "rustworkx": Rustworkx,
    "DuckDB": Duckdb,
    "DuckDB recursive": DuckdbRecursive,
    "Kùzu": Kuzu,
}


def main() -> None:
    name, edges = sys.argv[1:]
    with np.load(edges) as stored:
        nodes, a, b = int(stored["nodes"]), stored["a"], stored["b"]
    peer = PEERS[name](nodes, a, b)
    print(json.dumps({"loaded": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        ask = getattr(peer, asked.pop("do"))
        began = time.perf_counter()
        answer = ask(**asked)
        print(json.dumps({"answer": answer, "seconds": time.perf_counter() - began}), flush=True)


if __name__ == "__main__":
    main()
