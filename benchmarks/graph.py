"""The graph beside its peers and the limit: `python -m benchmarks.graph [--quick] [--json FILE] [--nodes N] …`.

A random graph with power-law hubs, ten relations for each concept, on an embedded server with durable defaults. The
question is who stands within so many undirected hops, where nine concepts of ten pass the filter. The limit is a
breadth-first search in C over plain arrays. Ours is the walk as a question makes it, with filters, changed lists,
order and cut; a whole call with its rows out of PostgreSQL is shown beside it. All answers must agree.
"""

import argparse
import importlib
import importlib.util
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from benchmarks.databases import create_database
from benchmarks.graph_parts import cypher, data, freshness, parallel
from benchmarks.graph_parts.age import age_settings
from benchmarks.graph_parts.contest import Ask, contest, ratio, timed
from benchmarks.graph_parts.data import ONTOLOGIES, TYPES, World
from benchmarks.graph_parts.limit import Limit
from benchmarks.graph_parts.peers import NAMES, PeerFailed, peers, recursive
from benchmarks.report import Report, console
from kappa.graph import Budget, Cancel, Graph, GraphConfig, Order, Where
from kappa.graph.query.filters import Filter, Limits
from kappa.graph.query.kernel import CKernel, Kernel, NumpyKernel, best
from kappa.graph.query.snapshot import Snapshot, build
from kappa.graph.query.walkers import SnapshotWalker
from kappa.pg.embedded import EmbeddedServer

PASSING = tuple(range(1, ONTOLOGIES))
NINE_TENTHS = Filter(ontologies=PASSING)
HALF_THE_TYPES = Filter(ontologies=PASSING, types=tuple(range(1, TYPES // 2 + 1)))
PATH_HOPS = 6
LIMIT, OTHERS = "limit", (*NAMES, "recursive CTE")


class Ours:
    """A snapshot and a kernel, asked as a question asks them."""

    def __init__(self, snapshot: Snapshot, kernel: Kernel, filters: Filter = NINE_TENTHS) -> None:
        self._snapshot = snapshot
        self._kernel = kernel
        self._filters = filters

    def _walker(self) -> SnapshotWalker:
        return SnapshotWalker(self._snapshot, self._kernel, Limits(time.monotonic() + 60, Cancel()), 10**9)

    def reach(self, seed: int, hops: int) -> int:
        return self._walker().reach(np.array([seed]), hops, self._filters, Order.DEGREE, 100).found

    def path(self, start: int, goal: int, hops: int) -> int:
        way = self._walker().shortest(start, goal, hops, self._filters, (), ())
        return len(way) - 1 if way else -1


class Bench:
    """One run."""

    def __init__(self, arguments: argparse.Namespace, directory: Path) -> None:
        self.quick: bool = arguments.quick
        self.only_parallel: bool = arguments.only_parallel
        self.with_peers: bool = arguments.peers
        self.nodes: int = arguments.nodes
        self.huge: int = arguments.huge
        self.age_nodes: int = arguments.age_nodes
        self.directory = directory
        self.server = EmbeddedServer(directory / "kappa")
        self.rounds = 20 if self.quick else 40
        self.patience = 1.0 if self.quick else 15.0
        self.report = Report("bars of the graph")
        compiled = best()
        self.kernels: list[Kernel] = [compiled] if isinstance(compiled, CKernel) else []
        self.kernels.append(NumpyKernel())
        self.ours = self.kernels[0].name

    def run(self) -> None:
        with self.server.hold("benchmarks.graph"):
            self.in_parallel(data.make(self.nodes // 10, self.nodes))
            if self.only_parallel:
                self.report.show()
                return
            large = self.size(data.make(self.nodes, 10 * self.nodes), bar=True)
            small = self.size(data.make(self.nodes // 10, self.nodes), bar=False)
            # A tenth of the graph, the same change.
            self.report.bar(
                "refresh after 100 edges, ten times the graph / the graph", large[100] / small[100], 2, at_most=True
            )
            if importlib.util.find_spec("benchmarks.graph_parts.vectors"):
                vectors: Any = importlib.import_module("benchmarks.graph_parts.vectors")
                vectors.run(self.report, self.server, self.quick)
        self.age(data.make(self.age_nodes, 10 * self.age_nodes))
        if self.huge:
            self.in_memory(data.make(self.huge, 10 * self.huge))
        self.report.show()

    def in_parallel(self, world: World) -> None:
        """In SQL alone: one worker and several."""
        self.database("graph_parallel")
        url = self.server.url(database="graph_parallel")
        with closing(Graph(url, GraphConfig(snapshot=False), budget=Budget())) as graph:
            graph.install()
        data.fill(url, world)
        parallel.run(self.report, url, world, rounds=4 if self.quick else 12, chunk=GraphConfig().chunk)

    def database(self, name: str) -> str:
        return create_database(self.server, name)

    def size(self, world: World, *, bar: bool) -> dict[int, float]:
        """Everything of one size; what refreshes cost."""
        size = f"{world.nodes:,}"
        console.print(f"[bold]{size} concepts, {world.edges:,} relations[/]")
        url = self.database(f"graph_{world.nodes}")
        graph = Graph(url, GraphConfig(), budget=Budget())
        graph.install()
        data.fill(url, world)
        graph.open(listen=False)
        try:
            began = time.perf_counter()
            graph.refresh()
            self.report.figure(f"{size}: snapshot built, s", time.perf_counter() - began)
            snapshot = graph._keeper.current  # type: ignore[union-attr]
            assert snapshot is not None
            per_edge = self.report.figure(f"{size}: bytes per edge", snapshot.nbytes / snapshot.edges)
            if bar:
                self.report.bar("bytes per edge", per_edge, 20, at_most=True)
            with psycopg.connect(url, autocommit=True) as connection:
                self.hops(size, world, snapshot, connection, bar=bar)
            self.calls(size, graph, world)
        finally:
            graph.close()
        seen = freshness.visible(self.report, size, url, self.rounds)
        if bar:
            self.report.bar("visible after commit, p95, ms", seen, 100, at_most=True)
        took = freshness.refresh(self.report, size, url, self.rounds)
        freshness.steady(self.report, size, url, 3.0 if self.quick else 15.0)
        return took

    def hops(
        self, size: str, world: World, snapshot: Snapshot, connection: psycopg.Connection[Any], *, bar: bool
    ) -> None:
        limit = Limit(world, self.directory)
        with ExitStack() as stack:
            reach: dict[str, Ask] = {LIMIT: timed(limit.reach)}
            path: dict[str, Ask] = {LIMIT: timed(limit.path)}
            for kernel in self.kernels:
                ours = Ours(snapshot, kernel)
                reach[kernel.name], path[kernel.name] = timed(ours.reach), timed(ours.path)
            for peer in self._peers(stack, world) if bar or not self.quick else ():
                reach[peer.name], path[peer.name] = peer.reach, peer.path
            path.pop("DuckDB recursive", None)
            reach["recursive CTE"] = timed(lambda seed, hops: recursive(connection, seed, hops))
            seeds = world.seeds(40)
            for what, some, hops in (
                ("1 hop, degree 100", seeds, 1),
                ("2 hops, degree 100", seeds, 2),
                ("3 hops, degree 100", seeds[:: 10 if self.quick else 4], 3),
                ("1 hop, hub", [world.hub] * 3, 1),
                ("2 hops, hub", [world.hub] * 3, 2),
            ):
                took = contest(self.report, f"{size}: {what}", reach, [(one, hops) for one in some], self.patience)
                if bar and what == "2 hops, degree 100":
                    self.bars(took)
            pairs = [(a, b, PATH_HOPS) for a, b in pairwise(seeds)]
            contest(self.report, f"{size}: shortest path", path, pairs, self.patience)
        self.typed(size, world, snapshot, seeds, peers_too=bar and not self.quick)

    def bars(self, took: dict[str, list[float]]) -> None:
        what = "2 hops, degree 100"
        for name, most in (("c", 3), ("numpy", 5)):
            if name in took:
                self.report.bar(f"{what}: {name} / limit", ratio(took[name], took[LIMIT]), most, at_most=True)
        for name in OTHERS:
            if name in took:
                self.report.bar(f"{what}: {name} / ours", ratio(took[name], took[self.ours]), 1)

    def typed(self, size: str, world: World, snapshot: Snapshot, seeds: list[int], *, peers_too: bool) -> None:
        """Half of the relation types, and the concepts' filter. The others' graphs hold nothing else."""
        half = world.only(TYPES // 2)
        with ExitStack() as stack:
            reach: dict[str, Ask] = {LIMIT: timed(Limit(half, self.directory).reach)}
            for kernel in self.kernels:
                reach[kernel.name] = timed(Ours(snapshot, kernel, HALF_THE_TYPES).reach)
            for peer in self._peers(stack, half) if peers_too else ():
                reach[peer.name] = peer.reach
            contest(self.report, f"{size}: 2 hops, half the types", reach, [(one, 2) for one in seeds], self.patience)

    def _peers(self, stack: ExitStack, world: World) -> list[Any]:
        if not self.with_peers:
            return []
        try:
            return stack.enter_context(peers(world, self.directory))
        except (PeerFailed, subprocess.CalledProcessError, OSError) as error:
            console.print(f"[bold red]NOT MEASURED: {', '.join(NAMES)}: {error}[/]")
            return []

    def calls(self, size: str, graph: Graph, world: World) -> None:
        """A whole question, with the rows of a hundred concepts, in memory and in SQL."""
        cold = Graph(graph.database, GraphConfig(snapshot=False), budget=Budget()).open(listen=False)
        where = Where([f"part {n}" for n in PASSING])
        seeds = world.seeds(self.rounds)[:10]
        try:
            for name, asked in (("snapshot", graph), ("sql", cold)):
                first = _seconds(asked, "neighbors", [seeds[0]], 2, where=where)
                self.report.figure(f"{size}: 2 hops, the first whole call: {name}, ms", 1000 * first)
                times = [_seconds(asked, "neighbors", [seed], 2, where=where) for seed in seeds]
                self.report.figure(f"{size}: 2 hops, whole call: {name}, ms", 1000 * statistics.median(times))
                times = [_seconds(asked, "paths", *pair) for pair in pairwise(seeds)]
                self.report.figure(f"{size}: shortest path, whole call: {name}, ms", 1000 * statistics.median(times))
        finally:
            cold.close()

    def age(self, world: World) -> None:
        """Apache AGE on a server of its own, which has it loaded."""
        if not age_settings():
            console.print("[bold red]NOT MEASURED: AGE: its files are not installed (the group `dev` has them)[/]")
            return
        size = f"{world.nodes:,}"
        console.print(f"[bold]Apache AGE, {size} concepts, {world.edges:,} relations[/]")
        seed = world.seeds(1)[0]
        ours = Ours(build(0, world.rows()), self.kernels[0])
        server = EmbeddedServer(self.directory / "age", settings=age_settings())
        with server.hold("benchmarks.graph"), cypher.filled(server.superuser_url(by_socket=True), world) as age:
            found, variable = age.variable_length(seed, 2)
            assert found in (None, cypher.found_at_the_end(world, seed, 2))
            found, chunked = age.chunked(seed, 2)
            assert found in (None, ours.reach(seed, 2))
            mine = statistics.median(timed(ours.reach)(seed, 2)[1] for _ in range(25))
        self.report.figure(f"AGE, {size}: 2 hops: ours, ms", 1000 * mine)
        self.report.figure(f"AGE, {size}: 2 hops: variable length, ms", 1000 * variable)
        self.report.figure(f"AGE, {size}: 2 hops: eight undirected chunks, ms", 1000 * chunked)
        self.report.bar(f"2 hops, {size} concepts: AGE, variable length / ours", variable / mine, 1000)
        self.report.bar(f"2 hops, {size} concepts: AGE, undirected chunks / ours", chunked / mine, 50_000)

    def in_memory(self, world: World) -> None:
        """A graph of a size that nobody waits to be loaded: the walk beside the limit alone."""
        size = f"{world.nodes:,}"
        console.print(f"[bold]{size} concepts, {world.edges:,} relations, in memory alone[/]")
        began = time.perf_counter()
        snapshot = build(0, world.rows())
        self.report.figure(f"{size}: snapshot built of columns in memory, s", time.perf_counter() - began)
        self.report.figure(f"{size}: bytes per edge", snapshot.nbytes / snapshot.edges)
        limit = Limit(world, self.directory)
        reach = {LIMIT: timed(limit.reach)}
        for kernel in self.kernels:
            reach[kernel.name] = timed(Ours(snapshot, kernel).reach)
        for what, seeds, hops in (
            ("1 hop, degree 100", world.seeds(10), 1),
            ("2 hops, degree 100", world.seeds(10), 2),
            ("3 hops, degree 100", world.seeds(10), 3),
            ("2 hops, hub", [world.hub] * 3, 2),
        ):
            contest(self.report, f"{size}: {what}", reach, [(seed, hops) for seed in seeds], self.patience)


def _seconds(graph: Graph, question: str, *asked: Any, **more: Any) -> float:
    began = time.perf_counter()
    getattr(graph, question)(*asked, **more)
    return time.perf_counter() - began


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # servers end with it
    parser = argparse.ArgumentParser(prog="python -m benchmarks.graph", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds: a minute or two")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write bars and figures to this file")
    parser.add_argument("--nodes", type=int, default=200_000, help="concepts, with ten relations for each: 200000")
    parser.add_argument("--age-nodes", type=int, help="of AGE's graph: 20000; with --quick 2000")
    parser.add_argument("--huge", type=int, help="of a graph in memory alone: 2000000; with --quick none")
    parser.add_argument("--without-peers", dest="peers", action="store_false", help="only the limit, the CTE and AGE")
    parser.add_argument("--only-parallel", action="store_true", help="only SQL by one worker and by several")
    arguments = parser.parse_args()
    for name, whole, small in (("age_nodes", 20_000, 2_000), ("huge", 2_000_000, 0)):
        if getattr(arguments, name) is None:
            setattr(arguments, name, small if arguments.quick else whole)
    with tempfile.TemporaryDirectory(prefix="kappa-bench-") as home, suppress(KeyboardInterrupt):
        bench = Bench(arguments, Path(home))
        bench.run()
        if arguments.json:
            bench.report.write(arguments.json)


if __name__ == "__main__":
    main()
