"""The benchmark of the graph runs, its data are what it says, and engines that disagree are found out."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import networkx
import numpy as np
import pytest

from benchmarks.graph import Ours
from benchmarks.graph_parts import cypher, data
from benchmarks.graph_parts.age import age_settings
from benchmarks.graph_parts.contest import Disagreement, contest, ratio
from benchmarks.graph_parts.limit import Limit
from benchmarks.graph_parts.parallel import EACH, asked_by
from benchmarks.report import Report
from kappa.graph.query.kernel import NumpyKernel
from kappa.graph.query.snapshot import build

ROOT = Path(__file__).parents[1]


def test_each_of_a_crowd_asks_as_many_questions_as_are_counted() -> None:
    for number in range(24):
        assert len(asked_by(number, [1, 2, 3, 4, 5])) == EACH


@pytest.mark.timeout(300)  # seconds of work, but of processes that may have to share their cores with many others
def test_a_tiny_run_writes_every_bar(tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("KAPPA_")}
    running = subprocess.Popen(
        [
            sys.executable, "-m", "benchmarks.graph", "--quick", "--nodes", "2000", "--age-nodes", "200",
            "--huge", "3000", "--without-peers", "--json", str(tmp_path / "graph.json"),
        ],
        cwd=ROOT, env=clean, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        text, _ = running.communicate(timeout=200)
    except subprocess.TimeoutExpired:
        running.terminate()  # not killed: it ends the servers that it started
        text, _ = running.communicate(timeout=60)
    assert running.returncode == 0, text
    written = json.loads((tmp_path / "graph.json").read_text())
    assert set(written) == {"bars", "figures"}
    wanted = {
        "bytes per edge",
        "2 hops, degree 100: numpy / limit",
        "2 hops, degree 100: recursive CTE / ours",
        "visible after commit, p95, ms",
        "refresh after 100 edges, ten times the graph / the graph",
    }
    if age_settings():
        wanted |= {
            "2 hops, 200 concepts: AGE, variable length / ours",
            "2 hops, 200 concepts: AGE, undirected chunks / ours",
        }
    assert wanted <= set(written["bars"])
    assert all(set(bar) == {"value", "bar", "ok"} for bar in written["bars"].values())
    assert written["bars"]["bytes per edge"]["ok"]
    assert written["figures"]["2,000: 2 hops, whole call: sql, ms"] > 0
    assert written["figures"]["3,000: 3 hops, degree 100: limit, ms"] > 0


def test_everybody_is_given_the_same_graph(tmp_path: Path) -> None:
    world = data.make(500, 2_000)
    a, b = world.pairs()
    judge = networkx.Graph(zip(a.tolist(), b.tolist(), strict=True))
    judge.add_nodes_from(range(world.nodes))
    limit, ours = Limit(world, tmp_path), Ours(build(0, world.rows()), NumpyKernel())
    seeds = world.seeds(10)
    assert world.hub == 1 + int(np.argmax(world.degree * world.passes))
    for start, goal in pairwise(seeds):
        for hops in (1, 2, 3):
            found = len(networkx.single_source_shortest_path_length(judge, start - 1, cutoff=hops)) - 1
            assert limit.reach(start, hops) == ours.reach(start, hops) == found
        length = networkx.shortest_path_length(judge, start - 1, goal - 1)
        assert limit.path(start, goal, 6) == ours.path(start, goal, 6) == length
    whole = networkx.Graph(zip(world.heads.tolist(), world.tails.tolist(), strict=True))
    near = set(networkx.single_source_shortest_path_length(whole, seeds[0], cutoff=2)) - {seeds[0]}
    assert cypher.found_at_the_end(world, seeds[0], 2) == sum(world.passes[node - 1] for node in near)


def test_a_wrong_answer_stops_the_run() -> None:
    with pytest.raises(Disagreement, match="the other found 4, the first one 3"):
        contest(Report(""), "x", {"one": lambda *_: (3, 0.1), "the other": lambda *_: (4, 0.1)}, [(1, 2)], 1.0)


def test_who_is_too_slow_sits_out_and_is_compared_by_what_it_answered() -> None:
    times = iter([1.0, 4.0, 5.0])
    took = contest(
        Report(""), "x", {"quick": lambda *_: (1, next(times)), "slow": lambda *_: (1, 20.0)}, [(1,), (2,), (3,)], 4.0
    )
    assert took == {"quick": [1.0, 4.0], "slow": [20.0]}
    assert ratio(took["slow"], took["quick"]) == 20.0
