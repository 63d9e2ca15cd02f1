"""How soon a commit is seen, what a refresh costs, and both under a steady load of writes."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.report import Report
from kappa.graph import Budget, Graph, GraphConfig, NewRelation

ROOT = Path(__file__).parents[2]
CHANGES = (10, 100, 1000)
STEADY_RATE, STEADY_EDGES = 20.0, 10
Relations = Callable[[int, str], list[NewRelation]]


def some_relations(graph: Graph, chance: np.random.Generator) -> Relations:
    """Relations between any concepts of the graph."""
    with graph.transaction() as connection:
        keys = [row[0] for row in connection.execute("SELECT key FROM kappa_graph.concepts ORDER BY id")]

    def relations(count: int, kind: str) -> list[NewRelation]:
        pairs = chance.integers(0, len(keys), (count, 2)).tolist()
        return [NewRelation(keys[a], keys[b], kind) for a, b in pairs]

    return relations


def visible(report: Report, size: str, url: str, rounds: int) -> float:
    """From the commit until a process that listens has it; the 95th percentile in milliseconds."""
    with Graph(url, GraphConfig(), budget=Budget()) as graph:
        graph.refresh()
        relations = some_relations(graph, np.random.default_rng(5))
        waits: list[float] = []
        for turn in range(rounds):
            written = graph.add_relations(relations(100, f"NEW_{turn % 5}"))
            began = time.perf_counter()
            assert graph.wait_for(written.epoch, 30)
            waits.append(time.perf_counter() - began)
    report.figure(f"{size}: visible after a commit of 100 edges, median, ms", 1000 * statistics.median(waits))
    late = 1000 * float(np.percentile(waits, 95))
    return report.figure(f"{size}: visible after a commit of 100 edges, p95, ms", late)


def refresh(report: Report, size: str, url: str, rounds: int) -> dict[int, float]:
    """Milliseconds of a refresh after so many changed edges, by their number. A first one of each is not counted."""
    took: dict[int, float] = {}
    graph = Graph(url, GraphConfig(), budget=Budget()).open(listen=False)
    try:
        graph.refresh()
        relations = some_relations(graph, np.random.default_rng(6))
        for count in CHANGES:
            times: list[float] = []
            for _ in range(rounds + 1):
                graph.add_relations(relations(count, "REFRESHED"))
                began = time.perf_counter()
                graph.refresh()
                times.append(time.perf_counter() - began)
            took[count] = report.figure(
                f"{size}: refresh after {count} changed edges, median, ms", 1000 * statistics.median(times[1:])
            )
    finally:
        graph.close()
    return took


def steady(report: Report, size: str, url: str, seconds: float) -> None:
    """A follower of a writer who never rests: how far behind it is, and what it costs."""
    swaps: list[tuple[float, int]] = []
    with Graph(url, GraphConfig(), budget=Budget()) as graph:
        first = graph.refresh()
        assert first is not None
        load = [str(seconds), str(STEADY_RATE), str(STEADY_EDGES)]
        command = [sys.executable, "-m", "benchmarks.graph_parts.writer", url, *load]
        writer = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        try:
            assert writer.stdout.readline().strip() == "ready"
            epoch = graph.refresh() or first
            cpu, began = time.process_time(), time.monotonic()
            while time.monotonic() < began + seconds:
                if graph.wait_for(epoch + 1, 0.5):
                    status = graph.status()
                    assert status is not None
                    assert status.epoch is not None
                    epoch = status.epoch
                    swaps.append((time.time(), epoch))
            cpu, passed = time.process_time() - cpu, time.monotonic() - began
            commits = int(writer.communicate(timeout=60)[0])
        finally:
            writer.kill()
            writer.wait()
        with graph.transaction() as connection:
            taken = connection.execute(
                "SELECT epoch, extract(epoch FROM at)::float8 FROM kappa_graph.epochs WHERE epoch BETWEEN %s AND %s",
                [first + 2, epoch],
            ).fetchall()
    at, epochs = np.array([when for when, _ in swaps]), np.array([number for _, number in swaps])
    lags = [1000 * (at[np.searchsorted(epochs, number)] - taken_at) for number, taken_at in taken]
    what = f"{size}: {commits / passed:.0f} commits/s of {STEADY_EDGES} edges"
    report.figure(f"{what}: visible, median, ms", float(np.median(lags)))
    report.figure(f"{what}: visible, p95, ms", float(np.percentile(lags, 95)))
    report.figure(f"{what}: the follower, share of a core", cpu / passed)
    report.figure(f"{what}: the follower, CPU ms a commit", 1000 * cpu / max(1, commits))
