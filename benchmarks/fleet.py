"""Ten thousand workers over HTTP: `python -m benchmarks.fleet [--quick] [--json FILE] [--scenario NAME] …`.

A simulator in a process of its own, on a core of its own, and on another core a real `kg up`; in the same run the plain
design (synchronous handlers, a thread pool, one statement for each request) on the same tables. Open loop: latency
counts from when a call was due. The run is void if the simulator used more than 70 % of its core.
"""

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.fleet_parts.ground import CannotRun, Cores, Ground, Postgres, preferred, raise_file_limit
from benchmarks.fleet_parts.load import Bottleneck, Load
from benchmarks.fleet_parts.scenarios import Bench, Row, Size
from benchmarks.report import console

SCENARIOS = ("steady", "dense", "throughput", "storm", "flood", "burst", "half-dies", "kills", "second")
QUICK = ("steady", "throughput", "storm", "flood", "kills")
WIDE = 150
FLOODERS = 400
DISTURBED = 0.2
"""Of a core, by processes that are no part of this."""
SHOWN = ("beat", "beat, closed loop", "update_task", "complete_task", "request_task", "request_task refused", "flood")


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # servers end with it
    arguments = _arguments()
    try:
        cores = Cores.choose(arguments.postgres_core)
        raise_file_limit(arguments.workers + FLOODERS)
        with preferred(arguments.nice):
            bench = _run(arguments, cores)
    except (CannotRun, Bottleneck) as error:
        console.print(f"[bold red]{error}[/]")
        sys.exit(2)
    bench.report.figure("the simulator's busiest window, share of its core", bench.load.busiest)
    bench.report.figure("other work, share of a core at most", max(row.costs.others for row in bench.rows))
    _show(bench.rows)
    bench.report.show()
    if arguments.json:
        bench.report.write(arguments.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a small fleet and short windows: a minute or two")
    parser.add_argument("--json", type=Path, help="write bars and figures to this file")
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, help="this one; may be given several times")
    parser.add_argument("--workers", type=int, help="10000; 1000 with --quick")
    parser.add_argument("--minutes", type=float, help="how long steady lasts: 10; with --quick 15 seconds")
    parser.add_argument("--beat", type=float, help="seconds between beats in steady: 120; with --quick 4")
    parser.add_argument("--storm-beat", type=float, help="and in storm and flood: 60, so that the plain design can; 8")
    parser.add_argument("--dense-beat", type=float, help="and in the others: 20, a third of the usual lease; 4")
    parser.add_argument("--flood", type=float, default=3000.0, help="requests for tasks/s in the flood: 3000")
    parser.add_argument("--compress", type=float, help="how many times quicker the burst is: 12; with --quick 120")
    parser.add_argument("--window", type=float, help="seconds of a window that is compared with another: 15; quick 5")
    parser.add_argument("--nice", type=int, default=0, help="of everything that is started, where others work as well")
    parser.add_argument("--logs", type=Path, help="leave the servers' logs in this directory")
    parser.add_argument(
        "--postgres-core", choices=["load", "server", "both", "free"], default="load",
        help="where PostgreSQL runs: beside the simulator (so that the server has its core alone), beside the server, "
        "on both cores, or on the others",
    )  # fmt: skip
    found = parser.parse_args()
    quick = found.quick
    for name, whole, small in (
        ("workers", 10_000, 1000), ("minutes", 10.0, 0.25), ("beat", 120.0, 4.0), ("dense_beat", 20.0, 4.0),
        ("storm_beat", 60.0, 8.0), ("compress", 12.0, 120.0), ("scenario", SCENARIOS, QUICK), ("window", 15.0, 5.0),
    ):  # fmt: skip
        if getattr(found, name) is None:
            setattr(found, name, small if quick else whole)
    return found


def _run(arguments: argparse.Namespace, cores: Cores) -> Bench:
    size = Size(
        workers=arguments.workers,
        minutes=arguments.minutes,
        beat=arguments.beat,
        dense_beat=arguments.dense_beat,
        storm_beat=arguments.storm_beat,
        quick=arguments.quick,
        flood=arguments.flood,
        compress=arguments.compress,
        short=arguments.window,
    )
    console.print(
        f"server on core {cores.server}, simulator on core {cores.load}, "
        f"PostgreSQL on {', '.join(map(str, cores.postgres))}"
    )
    with tempfile.TemporaryDirectory(prefix="kappa-bench-") as place:
        postgres = Postgres(Path(place), cores, os.environ.get("KAPPA_DATABASE_URL"))
        with postgres.running():
            ground = Ground(Path(place), postgres, cores, size.workers, FLOODERS, arguments.logs)
            ground.prepare()
            try:
                with Load(ground) as load:
                    bench = Bench(ground, load, size)
                    for name in arguments.scenario:
                        bench.scenarios[name]()
            finally:
                ground.forget()
    return bench


def _show(rows: list[Row]) -> None:
    table = Table(title="milliseconds from when a call was due", title_justify="left")
    columns = ["call", "calls/s", "p50", "p99", "p99.9", "max", "server", "postgres", "load", "others", "RSS"]
    for column in ("", "", *columns):
        table.add_column(column, justify="left" if column in ("", "call") else "right")
    for row in rows:
        shares = (row.costs.server, row.costs.postgres, row.read["cpu"], row.costs.others)
        costs = (*(f"{share:.0%}" for share in shares), f"{row.rss:,.0f}")
        for name in SHOWN:
            if found := row.read["calls"].get(name):
                times = (f"{found[part]:,.1f}" for part in ("p50", "p99", "p999", "max"))
                head = (row.what, row.design) if costs[0] else ("", "")
                table.add_row(*head, name, f"{found['count'] / row.seconds:,.1f}", *times, *costs)
                costs = ("",) * 5
    (console if console.width >= WIDE else Console(highlight=False, width=WIDE)).print(table)
    if (others := max((row.costs.others for row in rows), default=0.0)) > DISTURBED:
        console.print(
            f"[bold yellow]other work took up to {others:.0%} of a core meanwhile: the figures are worth little[/]"
        )


if __name__ == "__main__":
    main()
