"""A steady writer in a process of its own: `python -m benchmarks.graph_parts.writer URL SECONDS RATE EDGES`."""

import sys
import time

import numpy as np

from benchmarks.graph_parts.freshness import some_relations
from kappa.graph import Budget, Graph, GraphConfig


def main() -> None:
    url, seconds, rate, edges = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    chance = np.random.default_rng(11)
    graph = Graph(url, GraphConfig(snapshot=False), budget=Budget()).open(listen=False)
    try:
        relations = some_relations(graph, chance)
        graph.add_relations(relations(edges, "STEADY"))
        print("ready", flush=True)
        began = time.monotonic()
        commits = 0
        while (now := time.monotonic()) < began + seconds:
            due = began + commits / rate
            if due > now:
                time.sleep(due - now)
            graph.add_relations(relations(edges, "STEADY"))
            commits += 1
    finally:
        graph.close()
    print(commits, flush=True)


if __name__ == "__main__":
    main()
