"""The graph beside the limit: `python -m benchmarks.graph [--quick] [--json FILE]`.

One embedded server with durable defaults and a random graph with power-law hubs. The limit is a direction-optimising
breadth-first search in C over plain CSR arrays, which does nothing else: no filter tables, no changed lists, no
order, no answer. Ours is the whole walk as a question makes it, up to the ordered and cut ids; what a whole call
costs, with its rows out of PostgreSQL, is shown beside it.
"""

import argparse
import ctypes
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import psycopg
from psycopg import sql

from benchmarks.report import Report, console
from kappa.graph import Budget, Cancel, Graph, GraphConfig, NewRelation, Order, Where
from kappa.graph.query.filters import Filter, Limits
from kappa.graph.query.kernel import CKernel, Kernel, NumpyKernel, best
from kappa.graph.query.snapshot import Snapshot
from kappa.graph.query.walkers import SnapshotWalker
from kappa.pg.embedded import EmbeddedServer

LIMIT_SOURCE = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#define BIT(s, n) ((s)[(n) >> 6] >> ((n) & 63) & 1)
#define SET(s, n) ((s)[(n) >> 6] |= (uint64_t)1 << ((n) & 63))
/* `ptr` and `nbr` are both directions in one list. */
int64_t reach(const int64_t *ptr, const int32_t *nbr, const uint8_t *ok, int32_t nodes, int32_t seed, int hops,
              int32_t *found)
{
    size_t words = (nodes + 63) / 64;
    uint64_t *seen = calloc(words, 8), *front = malloc(words * 8);
    int64_t from = 0, to = 1, count = 1;
    found[0] = seed;
    SET(seen, seed);
    for (int hop = 0; hop < hops && from < to; hop++) {
        int64_t edges = 0;
        if (to - from > nodes / 64)
            for (int64_t f = from; f < to; f++) edges += ptr[found[f] + 1] - ptr[found[f]];
        if (edges > ptr[nodes] / 10) {
            memset(front, 0, words * 8);
            for (int64_t f = from; f < to; f++) SET(front, found[f]);
            for (int32_t n = 0; n < nodes; n++) {
                if (BIT(seen, n) || !ok[n]) continue;
                for (int64_t i = ptr[n]; i < ptr[n + 1]; i++)
                    if (BIT(front, nbr[i])) { found[count++] = n; break; }
            }
            for (int64_t f = to; f < count; f++) SET(seen, found[f]);
        } else {
            for (int64_t f = from; f < to; f++)
                for (int64_t i = ptr[found[f]]; i < ptr[found[f] + 1]; i++) {
                    int32_t n = nbr[i];
                    if (BIT(seen, n) || !ok[n]) continue;
                    SET(seen, n);
                    found[count++] = n;
                }
        }
        from = to;
        to = count;
    }
    free(seen);
    free(front);
    return count - 1;
}
"""


class Limit:
    """The quickest walk there is."""

    def __init__(self, graph: Snapshot, directory: Path) -> None:
        source, library = directory / "limit.c", directory / "limit.so"
        source.write_text(LIMIT_SOURCE)
        subprocess.run(["cc", "-O3", "-march=native", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
        self._reach = ctypes.CDLL(str(library)).reach
        self._reach.restype = ctypes.c_int64
        everyone = np.arange(graph.nodes, dtype=np.int32)
        both = (graph.out.gather(everyone)[:2], graph.into.gather(everyone)[:2])
        ends = [np.concatenate(part) for part in zip(*both, strict=True)]
        order = np.argsort(ends[0], kind="stable")
        self._nbr = np.ascontiguousarray(ends[1][order])
        self._ptr = np.zeros(graph.nodes + 1, np.int64)
        np.cumsum(np.bincount(ends[0], minlength=graph.nodes), out=self._ptr[1:])
        self._ok = np.isin(graph.group, np.arange(1, 10)).astype(np.uint8)
        self._found = np.empty(graph.nodes, np.int32)
        self._nodes = graph.nodes

    def reach(self, seed: int, hops: int) -> int:
        def at(array: np.ndarray) -> ctypes.c_void_p:
            return ctypes.c_void_p(array.ctypes.data)

        return self._reach(
            at(self._ptr), at(self._nbr), at(self._ok), ctypes.c_int32(self._nodes), ctypes.c_int32(seed), hops,
            at(self._found),
        )  # fmt: skip


NINE_TENTHS = Filter(ontologies=tuple(range(1, 10)))
"""Of ten ontologies nine: nine nodes of ten pass."""


def fill(url: str, nodes: int, edges: int) -> None:
    """A random graph whose ends follow a power law, made by the server itself."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute("SELECT setseed(0.25)")
        connection.execute(
            "INSERT INTO kappa_graph.ontologies (key, name) SELECT gen_random_uuid(), 'part ' || n "
            "FROM generate_series(1, 10) AS n"
        )
        connection.execute(
            "INSERT INTO kappa_graph.relation_types (name) SELECT 'TYPE_' || n FROM generate_series(1, 20) AS n"
        )
        connection.execute(
            "INSERT INTO kappa_graph.concepts (key, ontology_id, label) "
            "SELECT gen_random_uuid(), 1 + n %% 10, 'concept ' || n FROM generate_series(1, %s) AS n",
            [nodes],
        )
        connection.execute(
            # 7919 is prime: nodes of one degree don't stand side by side.
            "INSERT INTO kappa_graph.relations (from_id, to_id, type_id, confidence) "
            "SELECT 1 + (7919 * floor(%(n)s * random() ^ 2.5)::bigint) %% %(n)s, "
            "       1 + (7919 * floor(%(n)s * random() ^ 2.5)::bigint) %% %(n)s, "
            "       1 + floor(20 * random())::int, floor(101 * random())::int "
            "  FROM generate_series(1, %(m)s) ON CONFLICT DO NOTHING",
            {"n": nodes, "m": edges},
        )
        connection.execute("VACUUM ANALYZE kappa_graph.relations, kappa_graph.concepts")


class Bench:
    """One run."""

    def __init__(self, server: EmbeddedServer, quick: bool, directory: Path) -> None:
        self.server = server
        self.quick = quick
        self.directory = directory
        self.rounds = 15 if quick else 40
        self.report = Report("bars of the graph")

    def database(self, name: str) -> str:
        with closing(psycopg.connect(self.server.url(database="postgres"), autocommit=True)) as admin:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.server.url(database=name, by_socket=True)

    def run(self) -> None:
        # The bar is of this size, in a quick run as well.
        self.size(200_000, 2_000_000, bar=True)
        if not self.quick:
            self.size(20_000, 200_000, bar=False)
        self.report.show()

    def size(self, nodes: int, edges: int, *, bar: bool) -> None:
        console.print(f"[bold]{nodes:,} nodes, {edges:,} edges[/]")
        url = self.database(f"graph_{nodes}")
        graph = Graph(url, GraphConfig(), budget=Budget())
        graph.install()
        console.print("  filling …")
        fill(url, nodes, edges)
        graph.open(listen=False)
        try:
            began = time.perf_counter()
            graph.refresh()
            self.report.figure(f"{nodes:,}: snapshot built, s", time.perf_counter() - began)
            snapshot = graph._keeper.current  # type: ignore[union-attr]
            assert snapshot is not None
            per_edge = self.report.figure(f"{nodes:,}: bytes per edge", snapshot.nbytes / snapshot.edges)
            if bar:
                self.report.bar("bytes per edge", per_edge, 20, at_most=True)
            self.hops(nodes, snapshot, bar=bar)
            self.calls(nodes, graph, snapshot)
        finally:
            graph.close()
        self.freshness(nodes, url, bar=bar)

    def seeds(self, snapshot: Snapshot) -> list[int]:
        near = np.flatnonzero((snapshot.degree >= 90) & (snapshot.degree <= 110))
        return near[:: max(1, len(near) // self.rounds)][: self.rounds].tolist()

    def hops(self, nodes: int, snapshot: Snapshot, *, bar: bool) -> None:
        """Everyone in turns, each seed once; medians are compared."""
        limit = Limit(snapshot, self.directory)
        kernels: list[Kernel] = [NumpyKernel()]
        if isinstance(compiled := best(), CKernel):
            kernels.insert(0, compiled)
        hub = int(snapshot.degree.argmax())
        for what, seeds, hops in (
            ("1 hop, degree 100", self.seeds(snapshot), 1),
            ("2 hops, degree 100", self.seeds(snapshot), 2),
            ("3 hops, degree 100", self.seeds(snapshot), 3),
            ("2 hops, hub", [hub] * 5, 2),
        ):
            took: dict[str, list[float]] = {"limit": [], **{kernel.name: [] for kernel in kernels}}
            for seed in seeds:
                found = limit.reach(seed, hops)
                took["limit"].append(timed(lambda seed=seed, hops=hops: limit.reach(seed, hops)))
                for kernel in kernels:
                    walker = SnapshotWalker(snapshot, kernel, Limits(time.monotonic() + 60, Cancel()), 10**7)
                    start = snapshot.ids[seed : seed + 1]
                    ask = lambda w=walker, s=start, h=hops: w.reach(s, h, NINE_TENTHS, Order.DEGREE, 100)  # noqa: E731
                    assert ask().found == found
                    took[kernel.name].append(timed(ask))
            median = {name: 1000 * statistics.median(times) for name, times in took.items()}
            for name, value in median.items():
                self.report.figure(f"{nodes:,}: {what}: {name}, ms", value)
            if bar and what == "2 hops, degree 100":
                for name, most in (("c", 3), ("numpy", 5)):
                    if name in median:
                        self.report.bar(f"{what}: {name} / limit", median[name] / median["limit"], most, at_most=True)

    def calls(self, nodes: int, graph: Graph, snapshot: Snapshot) -> None:
        """A whole question, with the rows of a hundred concepts, in memory and in SQL."""
        cold = Graph(graph.database, GraphConfig(snapshot=False), budget=Budget()).open(listen=False)
        where = Where([f"part {n}" for n in range(1, 10)])
        try:
            for name, asked in (("snapshot", graph), ("sql", cold)):
                ids = [int(snapshot.ids[seed]) for seed in self.seeds(snapshot)[:10]]
                asked.neighbors([ids[0]], 2, where=where)
                times = [timed(lambda i=i, a=asked: a.neighbors([i], 2, where=where)) for i in ids]
                self.report.figure(f"{nodes:,}: 2 hops, whole call: {name}, ms", 1000 * statistics.median(times))
                pairs = list(pairwise(ids))
                times = [timed(lambda p=p, a=asked: a.paths(p[0], p[1])) for p in pairs]
                self.report.figure(f"{nodes:,}: shortest path, whole call: {name}, ms", 1000 * statistics.median(times))
        finally:
            cold.close()

    def freshness(self, nodes: int, url: str, *, bar: bool) -> None:
        """From the commit until a process that listens has it, and what a refresh of a hundred edges costs."""
        chance = np.random.default_rng(5)
        with closing(psycopg.connect(url, autocommit=True)) as connection:
            keys = [row[0] for row in connection.execute("SELECT key FROM kappa_graph.concepts LIMIT 5000").fetchall()]
        with Graph(url, GraphConfig(), budget=Budget()) as graph:
            graph.refresh()
            waits: list[float] = []
            refreshes: list[float] = []
            for turn in range(self.rounds):
                pairs = chance.integers(0, len(keys), (100, 2)).tolist()
                written = graph.add_relations([NewRelation(keys[a], keys[b], f"NEW_{turn}") for a, b in pairs])
                began = time.perf_counter()
                assert graph.wait_for(written.epoch, 30)
                waits.append(time.perf_counter() - began)
                status = graph.status()
                assert status is not None
                refreshes.append(status.last_refresh)
        visible = self.report.figure(
            f"{nodes:,}: visible after commit, p95, ms", 1000 * float(np.percentile(waits, 95))
        )
        self.report.figure(f"{nodes:,}: visible after commit, median, ms", 1000 * statistics.median(waits))
        self.report.figure(f"{nodes:,}: refresh of 100 edges, median, ms", 1000 * statistics.median(refreshes))
        if bar:
            self.report.bar("visible after commit, p95, ms", visible, 100, at_most=True)


def timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.graph", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, one size")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        server = EmbeddedServer(Path(home) / "kappa")
        with server.hold("benchmarks.graph"):
            bench = Bench(server, arguments.quick, Path(home))
            bench.run()
    if arguments.json:
        bench.report.write(arguments.json)


if __name__ == "__main__":
    main()
