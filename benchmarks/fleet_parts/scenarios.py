"""What the fleet goes through. Each scenario has databases and servers of its own; what is compared runs in one run."""

import statistics
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from benchmarks.fleet_parts.ground import NO_SUCH_KIND, Ground, Stand
from benchmarks.fleet_parts.ledger import Findings
from benchmarks.fleet_parts.load import Load
from benchmarks.fleet_parts.records import summary
from benchmarks.fleet_parts.simulator import COUNT_EVERY, UNANSWERED
from benchmarks.report import Report, console

OURS, PLAIN = "kappa", "plain"
CONNECTIONS = 256
BURST = ((0.0, 205), (18 * 60.0, 4608), (15 * 60.0, 9116), (3 * 60.0, 9418))
"""fishtest's own figures: how long each step took, and the workers at its end."""
BURST_BEAT = 120.0
REAP_EVERY = 15.0
WHOLE_FLEET, WHOLE_TIME = 10_000, 10.0


@dataclass(frozen=True)
class Size:
    """How much of it."""

    workers: int
    minutes: float
    beat: float
    dense_beat: float
    storm_beat: float
    quick: bool
    flood: float
    compress: float
    """How many times quicker the burst is than fishtest's."""
    short: float
    """Seconds of a window that is compared with another."""

    @property
    def rounds(self) -> int:
        return 1 if self.quick else 3


@dataclass(frozen=True)
class Row:
    """A line of the table of results."""

    what: str
    design: str
    seconds: float
    read: dict[str, Any]
    costs: "Costs"
    rss: float


@dataclass(frozen=True)
class Costs:
    """Shares of a core; of all that runs on the two cores."""

    server: float
    postgres: float
    others: float


class Bench:
    """One run."""

    def __init__(self, ground: Ground, load: Load, size: Size) -> None:
        self.ground = ground
        self.load = load
        self.size = size
        self.report = Report("bars of the fleet")
        self.rows: list[Row] = []
        self._counted: dict[str, int] = {}
        self.scenarios: dict[str, Callable[[], None]] = {
            "steady": self.steady,
            "dense": self.dense,
            "throughput": self.throughput,
            "storm": self.storm,
            "flood": self.flood,
            "burst": self.burst,
            "half-dies": self.half_dies,
            "kills": self.kills,
            "second": self.second,
        }

    def steady(self) -> None:
        seconds, beside = 60 * self.size.minutes, min(60 * self.size.minutes, 120.0)
        # Before and after: what else the machine does changes with time.
        before, _ = self._hold("steady", PLAIN, self.size.beat, beside)
        read, found = self._hold("steady", OURS, self.size.beat, seconds + 3 * COUNT_EVERY)
        after, _ = self._hold("steady", PLAIN, self.size.beat, beside)
        plain = summary(before["raw"] + after["raw"])
        calls, counts = read["calls"], read["counts"]
        fleet, minutes = (self.size.workers, self.size.minutes) if self.size.quick else (WHOLE_FLEET, WHOLE_TIME)
        self.report.bar("workers with active tasks, the least at any count", read["held"], fleet)
        self.report.bar("minutes in which all of them held one", read["held_seconds"] / 60, minutes)
        lost = counts.get("lost beats", 0) + calls["beat"]["unanswered"] + counts.get("faults", 0)
        self.report.bar("lost beats", lost, 0, at_most=True)
        people = counts.get(UNANSWERED, 0) + sum(
            of["unanswered"] for name, of in calls.items() if name.startswith("people")
        )
        self.report.bar("steady: people's looks that were not answered", people, 0, at_most=True)
        self.report.bar("false deaths", found.false_deaths, 0, at_most=True)
        self.report.bar("differences between ledger and tables", found.errors, 0, at_most=True)
        for part in ("p50", "p99"):
            self.report.figure(f"steady: kappa, beat {part}, ms", calls["beat"][part])
            self.report.figure(f"steady: plain, beat {part}, ms", plain[part])
        self.report.figure("steady: beat p50 / plain design", calls["beat"]["p50"] / plain["p50"])
        self.report.bar("steady: beat p99 / plain design", calls["beat"]["p99"] / plain["p99"], 1.0, at_most=True)

    def dense(self) -> None:
        seconds = 4 * self.size.short
        ours, found = self._hold("dense", OURS, self.size.dense_beat, seconds)
        plain, _ = self._hold("dense", PLAIN, self.size.dense_beat, seconds)
        self._judge("dense", found)
        self._ratio("dense: beat p99 / plain design", ours, plain)

    def _hold(self, what: str, design: str, beat: float, seconds: float) -> tuple[dict[str, Any], Findings]:
        """The whole fleet with a task each, for some time."""
        with self._fleet(what, design, beat, self.size.workers) as stand:
            read = self._window(what, design, stand, seconds)
            found = self.load.settle(stand)
            self._tell_ledger(what, design, found)
        return read, found

    def throughput(self) -> None:
        count = min(CONNECTIONS, self.size.workers)
        console.print(f"[bold]throughput: beats as fast as they are answered, {count} connections[/]")
        rates: dict[str, list[float]] = {OURS: [], PLAIN: []}
        per_beat: list[dict[str, float]] = []
        for _ in range(self.size.rounds):
            for design in (OURS, PLAIN):
                with self.ground.stand(design, 2 * count, lease=600) as stand:
                    self.load.set_up(stand, timers(beat=200))
                    self._counted = {}
                    self._get_ready(design, count)
                    self.load.tell("closed_loop", count=count, seconds=0.5, warm=0.5)
                    before, marks = stand.statements.count(), self._marks(stand)
                    done = self.load.tell("closed_loop", count=count, seconds=self.size.short, warm=0.0)
                    read = self._close("throughput", design, stand, done["begun"], done["ended"], marks)
                    rates[design].append(done["rate"])
                    if design == OURS:
                        time.sleep(1.2)  # a backend says what it did when it has been idle for a second
                        beats = read["calls"]["beat, closed loop"]["count"]
                        after = stand.statements.count()
                        per_beat.append({name: (after[name] - before[name]) / beats for name in after})
                    self.load.hang_up()
        medians = {design: statistics.median(values) for design, values in rates.items()}
        for design, rate in medians.items():
            self.report.figure(f"throughput: {design}, beats/s", rate)
        self.report.bar(f"beats/s at {count} connections / plain design", medians[OURS] / medians[PLAIN], 5.0)
        for name in per_beat[0]:
            self.report.figure(f"throughput: {name} per beat", statistics.median(one[name] for one in per_beat))
        exact = "statements" if "statements" in per_beat[0] else "transactions"
        value = statistics.median(one[exact] for one in per_beat)
        self.report.bar(f"database {exact} per beat under load", value, 0.1, at_most=True)

    def storm(self) -> None:
        seconds = 10.0
        found: dict[str, dict[str, Any]] = {}
        for design in (OURS, PLAIN):
            with self._fleet("storm", design, self.size.storm_beat, self.size.workers) as stand:
                self._window("storm: quiet before", design, stand, self.size.short)
                begun = self.load.tell("storm", seconds=seconds)
                found[design] = self._window("storm", design, stand, seconds, since=begun["begun"])
                self.await_served("storm", design, 120.0)
                took = time.monotonic() - begun["begun"]
                self.report.figure(f"storm: {design}, seconds until all were served", took)
                judged = self.load.settle(stand)
                self._tell_ledger("storm", design, judged)
                if design == OURS:
                    self._judge("storm", judged)
        self._ratio("storm: beat p50 / plain design", found[OURS], found[PLAIN], "p50")
        ratio = found[OURS]["calls"]["beat"]["p99"] / found[PLAIN]["calls"]["beat"]["p99"]
        self.report.bar("storm: beat p99 / semaphore design", ratio, 0.1, at_most=True)

    def await_served(self, what: str, design: str, patience: float) -> None:
        until, left = time.monotonic() + patience, 1
        while time.monotonic() < until and (left := self.load.tell("unserved")["unserved"]):
            time.sleep(0.1)
        self.report.figure(f"{what}: {design}, workers without a task after {patience:.0f} s", left)
        if design == OURS:
            self.report.bar(f"{what}: workers that got no task", left, 0, at_most=True)

    def flood(self) -> None:
        for design in (OURS, PLAIN):
            with self._fleet("flood", design, self.size.storm_beat, self.size.workers) as stand:
                quiet = self._window("flood: quiet before", design, stand, self.size.short)
                marks = self._marks(stand)
                sent = self.load.tell("flood", rate=self.size.flood, seconds=self.size.short, kind=NO_SUCH_KIND)
                end = sent["begun"] + self.size.short
                read = self._close("flood", design, stand, sent["begun"], end, marks)
                self.report.figure(f"flood: {design}, requests for tasks/s", sent["sent"] / self.size.short)
                self.report.figure(f"flood: {design}, held back by the simulator", sent["held back"])
                self.load.settle(stand)
            ratio = read["calls"]["beat"]["p99"] / quiet["calls"]["beat"]["p99"]
            if design == OURS:
                self.report.bar("flood of request_task: beat p99 / quiet", ratio, 2.0, at_most=True)
            else:
                self.report.figure("flood: plain, beat p99 / quiet", ratio)

    def burst(self) -> None:
        """fishtest's morning, with every timer scaled alike."""
        faster = self.size.compress
        share = self.size.workers / BURST[-1][1] if self.size.workers < BURST[-1][1] else 1.0
        reads: dict[str, list[dict[str, Any]]] = {OURS: [], PLAIN: []}
        for design in (OURS, PLAIN):
            first = max(1, int(BURST[0][1] * share))
            with self._fleet("burst", design, BURST_BEAT / faster, first, scale=1 / faster) as stand:
                there = first
                for seconds, workers in BURST[1:]:
                    upto = max(there + 1, int(workers * share))
                    self.load.tell("ramp", first=there, last=upto, seconds=seconds / faster)
                    name = f"burst: {there} → {upto}"
                    reads[design].append(self._window(name, design, stand, seconds / faster))
                    there = upto
                self.await_served("burst", design, 30.0)
                judged = self.load.settle(stand)
                self._tell_ledger("burst", design, judged)
                if design == OURS:
                    self._judge("burst", judged)
        for ours, plain, step in zip(reads[OURS], reads[PLAIN], BURST[1:], strict=True):
            self._ratio(f"burst: beat p99 / plain design, up to {step[1]}", ours, plain)

    def half_dies(self) -> None:
        beat = 2.0 if self.size.quick else 10.0
        count = self.size.workers
        with self._fleet("half dies", OURS, beat, count) as stand:
            self._window("half dies: before", OURS, stand, self.size.short)
            died = time.monotonic()
            tasks: list[int] = self.load.tell("die", first=0, last=count // 2)["tasks"]
            most = 3 * beat + REAP_EVERY + 15
            back, first_back = 0.0, 0.0
            with psycopg.connect(stand.url, autocommit=True) as connection:
                query = "SELECT count(*) FROM kappa.jobs WHERE id = ANY (%s) AND lease_owner = ANY (%s)"
                names = self._owners(connection, tasks)
                while time.monotonic() < died + most:
                    row = connection.execute(query, [tasks, names]).fetchone()
                    assert row is not None
                    if row[0] < len(tasks) and not first_back:
                        first_back = time.monotonic() - died
                    if row[0] == 0:
                        back = time.monotonic() - died
                        break
                    time.sleep(0.5)
            self.report.figure("half dies: tasks of the dead", len(tasks))
            self.report.figure("half dies: seconds until the first came back", first_back)
            self.report.figure("half dies: seconds until all came back (0: not all)", back)
            self._window("half dies: after", OURS, stand, self.size.short)
            judged = self.load.settle(stand)
            self._tell_ledger("half dies", OURS, judged)
            self._judge("half dies", judged)
            self.report.bar("half dies: tasks of the dead that came back, share", 1.0 if back else 0.0, 1.0)

    def _owners(self, connection: "psycopg.Connection[tuple[Any, ...]]", tasks: list[int]) -> list[str]:
        rows = connection.execute("SELECT DISTINCT lease_owner FROM kappa.jobs WHERE id = ANY (%s)", [tasks]).fetchall()
        return [row[0] for row in rows if row[0]]

    def kills(self) -> None:
        """The server ends by SIGTERM, by SIGKILL, and PostgreSQL by SIGKILL, while the fleet goes on."""
        # A lease must outlast the server's absence, as the usual one of a minute does.
        with self._fleet("kills", OURS, self.size.dense_beat, self.size.workers, lease=60.0) as stand:
            quiet = self._window("kills: before", OURS, stand, self.size.short)
            self.report.figure("kills: requests in the worst second before", quiet["worst_second"])
            self._outage("SIGTERM of the server", stand, lambda: stand.server.stop(), stand.server.start)
            self._outage("SIGKILL of the server", stand, stand.server.kill, stand.server.start)
            if self.ground.postgres.may_be_killed:
                postgres = self.ground.postgres
                self._outage("SIGKILL of PostgreSQL", stand, postgres.kill, postgres.start_again)
            else:
                console.print("  [dim]this PostgreSQL is not ours to kill[/]")
            judged = self.load.settle(stand, patience=90)
            self._tell_ledger("kills", OURS, judged)
            self._judge("kills", judged)

    def _outage(self, what: str, stand: Stand, end: Callable[[], object], begin: Callable[[], None]) -> None:
        begun = time.monotonic()
        end()
        begin()
        up = time.monotonic()
        most = 2 * self.size.dense_beat + 60
        while (silent := self._silent(up)) and time.monotonic() < up + most:
            time.sleep(0.2)
        heard_again = 0.0 if silent else time.monotonic() - up
        self.report.bar(f"{what}: workers that were not heard again", silent, 0, at_most=True)
        read = self.load.read(begun, time.monotonic())
        figure = self.report.figure
        figure(f"{what}: seconds away", up - begun)
        figure(f"{what}: seconds until all were heard (0: not all)", heard_again)
        figure(f"{what}: requests in the worst second", read["worst_second"])
        self._tell_counts(what, OURS, read["counts"])
        if "beat" in read["calls"]:
            figure(f"{what}: beat p99, ms", read["calls"]["beat"]["p99"])

    def _silent(self, since: float) -> int:
        heard = self.load.tell("hear", since=since)
        return heard["living"] - heard["heard"]

    def second(self) -> None:
        """Another server process joins, and every other worker goes to it with the task that it has from the first."""
        with self._fleet("second", OURS, self.size.dense_beat, self.size.workers) as stand:
            self._window("second: one server", OURS, stand, self.size.short)
            other, _ = self.ground.server(OURS, stand.url, "second.log")
            try:
                other.start()
                self.load.tell("move", first=0, last=self.size.workers, step=2, port=other.port, people=False)
                self._window("second: two servers", OURS, stand, 2 * self.size.short)
                stand.server.kill()
                self.load.tell("move", first=0, last=self.size.workers, step=1, port=other.port, people=True)
                left = Stand(other, stand.database, stand.url, stand.statements)
                self._window("second: the first one killed", OURS, left, 2 * self.size.short)
                judged = self.load.settle(stand)
                self._tell_ledger("second", OURS, judged)
                self._judge("second", judged)
            finally:
                if other.process is not None:
                    other.stop()

    @contextmanager
    def _fleet(
        self, what: str, design: str, beat: float, count: int, scale: float = 1.0, lease: float = 0.0
    ) -> Generator[Stand]:
        """A server, and so many workers that hold a task each and beat; people look on meanwhile."""
        console.print(f"[bold]{what}, {design}[/]: {count:,} workers, a beat every {beat:g} s")
        its = timers(beat, scale, self.size.quick)
        lasts = 60 * self.size.minutes if what == "steady" else 120.0 if self.size.quick else 300.0
        jobs = int(self.size.workers * (3 + 1.5 * lasts / its["task"]))
        with self.ground.stand(design, jobs, lease=max(3 * beat, lease)) as stand:
            self.load.set_up(stand, its)
            self._counted = {}
            if design == OURS:
                self.load.tell("watch", port=stand.server.port, token=stand.operator, job=stand.a_job(), every=0.1)
                begin, end = self.load.window(min(self.size.short, 5.0))
                self._people(f"{what}: before the fleet", self.load.read(begin, end))
            rss = stand.server.rss_mb
            self._get_ready(design, count)
            self.load.tell("live", first=0, last=count)
            now = stand.server.rss_mb
            self.report.figure(f"{what}: {design}, RSS without connections, MB", rss)
            self.report.figure(f"{what}: {design}, RSS with {count} connections, MB", now)
            try:
                yield stand
            finally:
                self.load.hang_up()

    def _get_ready(self, design: str, count: int) -> None:
        rate, at_once = (1500.0, 64) if design == OURS else (400.0, 4)
        self.load.tell("hello", count=count, rate=rate)
        took = self.load.tell("acquire", first=0, last=count, at_once=at_once)["seconds"]
        self.report.figure(f"{design}: {count} tasks given out, tasks/s", count / max(took, 0.001))

    def _marks(self, stand: Stand) -> Costs:
        """Seconds of a core that were used until now."""
        return Costs(stand.server.cpu_seconds, self.ground.postgres.cpu_seconds(), self.ground.cores.busy_seconds())

    def _window(
        self, what: str, design: str, stand: Stand, seconds: float, since: float | None = None
    ) -> dict[str, Any]:
        """Look on for some time."""
        marks = self._marks(stand)
        begin = since or time.monotonic()
        time.sleep(max(0.0, begin + seconds - time.monotonic()))
        return self._close(what, design, stand, begin, begin + seconds, marks)

    def _close(self, what: str, design: str, stand: Stand, begin: float, end: float, marks: Costs) -> dict[str, Any]:
        now, took = self._marks(stand), time.monotonic() - begin
        read = self.load.read(begin, end)
        server, postgres = (now.server - marks.server) / took, (now.postgres - marks.postgres) / took
        others = max(0.0, (now.others - marks.others) / took - server - postgres - read["cpu"])
        self.rows.append(Row(what, design, end - begin, read, Costs(server, postgres, others), stand.server.rss_mb))
        self._people(what, read)
        self._tell_counts(what, design, read["counts"])
        return read

    def _people(self, what: str, read: dict[str, Any]) -> None:
        for name, found in read["calls"].items():
            if name.startswith("people"):
                for part in ("p50", "p99"):
                    self.report.figure(f"{what}: {name} {part}, ms", found[part])

    def _tell_counts(self, what: str, design: str, counts: dict[str, int]) -> None:
        """What else happened since the last look: refusals, broken connections, and faults."""
        new = {name: count - self._counted.get(name, 0) for name, count in counts.items()}
        self._counted = counts
        for name, count in sorted(new.items()):
            if count and name != "connections":
                self.report.figure(f"{what}: {design}, {name}", count)

    def _ratio(self, name: str, ours: dict[str, Any], plain: dict[str, Any], part: str = "p99") -> None:
        self.report.figure(name, ours["calls"]["beat"][part] / plain["calls"]["beat"][part])

    def _tell_ledger(self, what: str, design: str, found: Findings) -> None:
        figure = self.report.figure
        figure(f"{what}: {design}, tasks in the ledger", found.tasks)
        figure(f"{what}: {design}, settlements and updates acknowledged", found.settled + found.updated)
        figure(f"{what}: {design}, differences to the tables", found.errors)
        figure(f"{what}: {design}, false deaths", found.false_deaths)
        for text in found.examples:
            console.print(f"  [red]{text}[/]")

    def _judge(self, what: str, found: Findings) -> None:
        self.report.bar(f"{what}: acknowledged and not stored once", found.errors, 0, at_most=True)
        self.report.bar(f"{what}: false deaths", found.false_deaths, 0, at_most=True)


def timers(beat: float, scale: float = 1.0, quick: bool = False) -> dict[str, float]:
    """A worker's, from its beat: it reports with every fourth, and a task takes fifteen of them, as fishtest's do.

    In a quick run ten, so that some end.
    """
    return {
        "beat": beat,
        "update": 4 * beat,
        "task": (10 if quick else 15) * beat,
        "backoff": scale,
        "backoff_most": min(15.0 * scale, 0.75 * beat),
        "patience": 60.0 * max(scale, 0.25),
        "connect": 5.0,
        "retry_after": scale,
    }
