"""The queue beside its peers and beside the limit: `python -m benchmarks.queue [--quick] [--part NAME] [--json FILE]`.

One embedded server with durable defaults, a fresh database for each contender, no-op jobs, full semantics (leases,
fencing, history). What is compared is measured in turns, several times, and the medians are divided; a peer's drain is
the best of all its configurations (with `--quick`, of the one that was best with two processes).
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import psycopg

from benchmarks.databases import create_database
from benchmarks.peers import Peer, available, ceiling, ensure
from benchmarks.peers.driven import Driven
from benchmarks.peers.settings import Settings
from benchmarks.report import Report, console
from kappa.pg.embedded import EmbeddedServer

DRIVER = Path(__file__).parent / "peers" / "drivers" / "run_kappa.py"
BACKLOG = 1_000_000
PARTS = ("idle", "enqueue", "drain", "latency", "growth")
CALLERS, CONNECTIONS = 64, (4, 16)
"""Who enqueue one job at a time on one event loop, as requests to a web server do, and what they share."""


def _kappa(kind: str) -> Driven:
    return Driven(
        Settings(
            name="Kappa",
            command=[sys.executable, str(DRIVER)],
            unfinished=b"select exists (select from kappa.jobs where lane <> 'parked' and state >= 'queued')",
            configs={"batch 500": {"batch": 500}},
            best={1: "batch 500"},
            idle="batch 500",
            env={"KAPPA_BENCH_KIND": kind},
        )
    )


KAPPA = _kappa("noop")
KAPPA_ONCE = _kappa("noop_once")
"""Handlers that aren't idempotent: their one attempt begins when its start is written, which is one more write."""
KAPPA_THREADS = _kappa("noop_thread")


class Bench:
    """One run."""

    def __init__(self, server: EmbeddedServer, quick: bool) -> None:
        self.server = server
        self.rounds = 2 if quick else 3
        self.jobs = 60_000 if quick else 100_000  # of fewer, beginning and end would be a tenth
        self.batch_jobs = 30_000 if quick else 100_000
        self.slow_jobs = 1_000 if quick else 4_000
        self.seconds = 0.5 if quick else 3.0
        self.samples = 50 if quick else 300
        self.idle_seconds = 20.0 if quick else 60.0
        self.finished, self.future = (200_000, 20_000) if quick else (1_000_000, 100_000)
        self.quick = quick
        self.report = Report("bars of the queue")
        self.peers, self.missing = available()
        self._names = 0

    def database(self) -> str:
        """A fresh, empty database."""
        self._names += 1
        name = f"bench_{self._names}"
        return create_database(self.server, name)

    def contender(self, peer: Peer) -> str:
        url = self.database()
        peer.install(url)
        return url

    def run(self, parts: Sequence[str]) -> None:
        ensure()
        for gone in self.missing:
            console.print(f"[bold red]NOT MEASURED: {gone.name}: {gone.reason}[/]")
        for part in parts:
            getattr(self, part)()
        self.report.show()

    def in_turns(
        self, what: str, contenders: dict[str, Callable[[], float]], rounds: int | None = None
    ) -> dict[str, float]:
        """Medians of several rounds in which everyone has a turn."""
        results: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(rounds or self.rounds):
            for name, measure in contenders.items():
                results[name].append(measure())
        return {
            name: self.report.figure(f"{what}: {name}", statistics.median(values)) for name, values in results.items()
        }

    def enqueue(self) -> None:
        console.print("[bold]enqueue, jobs/s[/]")
        everyone = {peer.name: peer for peer in (KAPPA, *self.peers)}
        urls = {name: self.contender(peer) for name, peer in everyone.items()}
        alone: dict[str, Callable[[], float]] = {
            name: partial(peer.enqueue_one, urls[name], self.seconds) for name, peer in everyone.items()
        }
        alone["a bare insert, the limit"] = partial(ceiling.insert_one, self.database(), self.seconds)
        one = self.in_turns("enqueue one", alone, rounds=5)
        crowd = self.in_turns(
            f"enqueue one, {CALLERS} callers",
            {
                f"{name}, {connections} connections": partial(
                    peer.enqueue_crowd, urls[name], self.seconds, CALLERS, connections
                )
                for name, peer in everyone.items()
                for connections in (CONNECTIONS[:1] if self.quick else CONNECTIONS)  # four were everybody's best
            },
        )
        batch = self.in_turns(
            "enqueue batch of 1000",
            {name: lambda p=peer, u=urls[name]: p.enqueue_batch(u, self.batch_jobs) for name, peer in everyone.items()},
        )
        copy = self.report.figure("ceiling: binary COPY", ceiling.copy_in(self.database(), self.batch_jobs))
        self.report.figure("enqueue batch, share of COPY's ceiling", batch["Kappa"] / copy)
        if "PgQueuer" in one:
            self.report.bar("enqueue one, a caller alone / PgQueuer", one["Kappa"] / one["PgQueuer"], 1.5)
            ratio = _best(crowd, "Kappa") / _best(crowd, "PgQueuer")
            self.report.bar(f"enqueue one, {CALLERS} callers / best of PgQueuer", ratio, 1.5)
        best = max(rate for name, rate in batch.items() if name != "Kappa")
        self.report.bar("enqueue batch / best peer", batch["Kappa"] / best, 3.0)

    def drain(self) -> None:
        console.print("[bold]drain, jobs/s[/]")
        with ExitStack() as stack:
            contenders: dict[str, Callable[[], float]] = {}
            for processes in (1, 2):
                for config in KAPPA.configs():
                    name = f"Kappa, {config}, {processes} proc"
                    contenders[name] = self.crew(stack, KAPPA, processes, config)
                if self.quick and processes == 1:  # everybody is quicker with two
                    continue
                contenders[f"raw loop, {processes} proc"] = partial(self.raw_loop, processes)
                for peer in self.peers:
                    every = not self.quick and peer.name != "Procrastinate"
                    for config in peer.configs() if every else [peer.best_config(processes)]:
                        name = f"{peer.name}, {config}, {processes} proc"
                        contenders[name] = self.crew(stack, peer, processes, config)
            contenders["Kappa, not idempotent, 2 proc"] = self.crew(stack, KAPPA_ONCE, 2)
            contenders["Kappa, 16 threads, 1 proc"] = self.crew(stack, KAPPA_THREADS, 1, jobs=self.jobs // 5)
            rates = self.in_turns("drain", contenders)
        ours = _best(rates, "Kappa, batch")
        for name, bar in (("graphile-worker", 1.5), ("PgQueuer", 3.0)):
            if (theirs := _best(rates, name)) > 0:
                self.report.bar(f"drain / best of {name}", ours / theirs, bar)
        self.report.bar("drain / raw loop", ours / _best(rates, "raw loop"), 0.6)

    def raw_loop(self, processes: int) -> float:
        return ceiling.loop(self.database(), self.jobs, processes)

    def crew(
        self, stack: ExitStack, peer: Peer, processes: int, config: str | None = None, jobs: int | None = None
    ) -> Callable[[], float]:
        """Workers on a database of their own; each call drains anew."""
        slow = peer.name == "Procrastinate" or config == "one by one"
        drain = stack.enter_context(peer.crew(self.contender(peer), processes, config))
        return partial(drain, jobs or (self.slow_jobs if slow else self.jobs))

    def latency(self) -> None:
        console.print("[bold]idle pick-up, ms from commit to handler[/]")
        medians: dict[str, list[float]] = {}
        contenders = [(peer, self.contender(peer)) for peer in (KAPPA, *self.peers)]
        for _ in range(self.rounds):
            for peer, url in contenders:
                waits = sorted(peer.latency(url, self.samples))
                medians.setdefault(f"{peer.name} p50", []).append(statistics.median(waits))
                medians.setdefault(f"{peer.name} p99", []).append(waits[int(len(waits) * 0.99) - 1])
        found = {
            name: self.report.figure(f"latency: {name}", statistics.median(values)) for name, values in medians.items()
        }
        theirs = min(found[f"{peer.name} p50"] for peer in self.peers)
        self.report.bar("pick-up p50 / best peer", found["Kappa p50"] / theirs, 1.0, at_most=True)

    @contextmanager
    def no_vacuum(self) -> Generator[None]:
        with closing(psycopg.connect(self.server.superuser_url(database="postgres"), autocommit=True)) as admin:
            admin.execute("ALTER SYSTEM SET autovacuum = off")
            admin.execute("SELECT pg_reload_conf()")
            yield
            admin.execute("ALTER SYSTEM RESET autovacuum")
            admin.execute("SELECT pg_reload_conf()")

    def idle(self) -> None:
        """Everybody's idle workers, each on a database of its own, and nobody else.

        Whoever listens is woken by the notifications of other databases too, when these are many; and what a visit of
        autovacuum commits in a database would be taken for its worker's.
        """
        console.print("[bold]idle, transactions/s of one worker process[/]")
        everyone: list[Peer] = [KAPPA, *self.peers]
        with self.no_vacuum(), ThreadPoolExecutor(len(everyone)) as threads:
            idle = {
                peer.name: threads.submit(peer.idle_tps, self.contender(peer), self.idle_seconds) for peer in everyone
            }
            for name, rate in idle.items():
                self.report.figure(f"idle: {name}", rate.result())
        self.report.bar("idle transactions/s", idle[KAPPA.name].result(), 1.5, at_most=True)

    def growth(self) -> None:
        console.print(
            "[bold]drain of one process with history, with future jobs, with a transaction held open, jobs/s[/]"
        )
        grown = f"{self.finished:,} finished, {self.future:,} future"
        with ExitStack() as stack:
            urls = {name: self.contender(KAPPA) for name in ("empty", grown, "a transaction held open")}
            _fill(urls[grown], self.finished, self.future)
            if not self.quick:
                urls["1,000,000 queued in another lane"] = backlog = self.contender(KAPPA)
                _queue_elsewhere(backlog)
            drain = {name: stack.enter_context(KAPPA.crew(url, 1)) for name, url in urls.items()}
            analyst = stack.enter_context(closing(psycopg.connect(urls["a transaction held open"])))
            analyst.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            analyst.execute("SELECT count(*) FROM kappa.jobs")
            rates = self.in_turns("drain", {name: partial(one, self.jobs) for name, one in drain.items()})
        free = rates["empty"]
        self.report.bar("drain with history and future / empty", rates[grown] / free, 0.9)
        self.report.bar("drain with a transaction held open / free", rates["a transaction held open"] / free, 0.8)


def _best(rates: dict[str, float], prefix: str) -> float:
    return max((rate for name, rate in rates.items() if name.startswith(prefix)), default=0.0)


def _fill(url: str, finished: int, future: int) -> None:
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute(
            "INSERT INTO kappa.finished_jobs (id, lane, kind, state, priority, payload, created_at, max_attempts,"
            " attempt, started_at, finished_at, keep_until) SELECT -n, 'bench', 'noop', 'succeeded', 0, 'null', now(),"
            " 1, 1, now(), now(), now() + interval '2 days' FROM generate_series(1, %s) AS n",
            [finished],
        )
        connection.execute(
            "INSERT INTO kappa.jobs (lane, kind, state, run_at) SELECT 'bench', 'noop', 'scheduled',"
            " now() + interval '1 day' + make_interval(secs => n) FROM generate_series(1, %s) AS n",
            [future],
        )
        connection.execute("VACUUM ANALYZE")


def _queue_elsewhere(url: str) -> None:
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute("INSERT INTO kappa.lanes (name, kinds, enabled) VALUES ('parked', '{parked}', false)")
        connection.execute(
            "INSERT INTO kappa.jobs (lane, kind, state)"
            " SELECT 'parked', 'parked', 'queued' FROM generate_series(1, %s)",
            [BACKLOG],
        )
        connection.execute("VACUUM ANALYZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="smaller data, fewer rounds: a few minutes")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this one; can be given several times")
    parser.add_argument("--json", type=Path, help="write bars and figures to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kappa-bench-") as home:
        server = EmbeddedServer(Path(home), settings={"max_connections": "200"}, say=console.print)
        with server.hold("the benchmark"):
            bench = Bench(server, arguments.quick)
            bench.run(arguments.part or PARTS)
    if arguments.json:
        bench.report.write(arguments.json)


if __name__ == "__main__":
    main()
