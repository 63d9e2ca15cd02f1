"""Faults, one after the other, as the seed says: what, to whom, for how long.

A fault that lasts is undone later, while others begin. The same seed gives the same faults in the same order.
"""

import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

import psycopg

from kappa.engine import IllegalTransition
from kappa.engine.store import holds, jobs, lanes, leadership, maintenance
from kappa.pg import PgError
from tests.chaos import artifacts
from tests.chaos.client import Ledger
from tests.chaos.cluster import BOUNCER, Cluster, WorkerProcess
from tests.chaos.handlers import ALONE, BLOCKER, Plan
from tests.chaos.proxy import Trap, beginning
from tests.chaos.record import CLIENT, Fate

PAUSE = (0.4, 1.2)
"""Seconds between two faults."""
HOLDER_WITHIN = 1.5
FREE_PAGES = artifacts.SIZE // artifacts.PAGE
DISK_FULL = "disk full"
WEIGHTS = {
    "kill": 13,
    "kill leader": 6,
    "kill holder": 6,
    "stop": 10,
    "stop leader": 5,
    "stop holder": 4,
    "drain": 7,
    "cut": 16,
    "cut all": 3,
    "black hole": 9,
    "slow": 9,
    "clock": 7,
    "slots": 9,
    "lane off": 5,
    "server restart": 2,
    "server kill": 2,
    "backend kill": 2,
    DISK_FULL: 5,
    "freeze": 3,
    "freeze leader": 3,
    "freeze at statement": 6,
    "freeze client": 3,
    "server freeze": 1,
    "backend freeze": 2,
    "lost reply": 14,
    "lock row": 5,
    "open cancel": 4,
    "block loop": 3,
    "hold lanes": 3,
}
FREEZE = 5.5
"""Leases for which PostgreSQL stands still. Of the others, those that freeze do so for good."""
CAUGHT_WITHIN = 0.7
HELD_WITHIN = 2.0
UNUSED = {
    "need", "need_the_same", "approve", "auto_approve", "ask_for_approval", "prioritise", "declare_lane", "edit_lane",
    "check_kinds", "put_schedule", "declare_schedule", "drop_schedule", "keep_referred", "make_partitions",
    "delete_expired", "lock_expired", "lock_lanes", "fail_schedule", "keep", "expire", "bury", "lane_of_kind",
    "forget_fleet", "read_workers", "forget_sleepers", "forget_workers",
}  # fmt: skip
"""Blocks of the engine's SQL that no worker or client of a run has a use for, or only every few minutes."""
CHOICES = 3
"""Statements of which the first that comes is taken: some are rare."""
WRITES = re.compile(rb"\b(INSERT|UPDATE|DELETE|COPY|FOR UPDATE|pg_advisory\w+|kappa\.\w+\()")
_MODULES = (jobs, lanes, holds, maintenance, leadership)
assert set().union(*(module.sql for module in _MODULES)) >= UNUSED, "a statement that isn't there can't be unused"
STATEMENTS = {
    f"{query.source.stem}.{name}": query
    for module in _MODULES
    for name, query in sorted(module.sql.items())
    if name not in UNUSED and WRITES.search(query.sql)
}
RUNNING = """
    SELECT id FROM kappa.jobs
     WHERE state = 'running' AND lease_token IS NOT NULL AND kind NOT LIKE '%%parent' AND kind <> %s
     ORDER BY random() LIMIT 1
"""


@dataclass(order=True)
class Undo:
    due: float
    number: int
    what: str
    act: Callable[[], None]


class Faults:
    """Makes faults in a cluster and undoes them."""

    def __init__(
        self, cluster: Cluster, seed: int, say: Callable[[str], None], sorts: Collection[str] = WEIGHTS.keys()
    ) -> None:
        self.done: Counter[str] = Counter()
        self._cluster = cluster
        self._random = random.Random(f"faults {seed}")
        self._say = say
        self._undo: list[Undo] = []
        self._workers = set(cluster.workers)
        self._began = time.monotonic()
        self._leaving: list[WorkerProcess] = []
        self._slots = {name: slots for name, slots in cluster.slots.items() if name != ALONE}
        self._seed = seed
        self._client = cluster.client(None).open()
        self._other = cluster.start_client(seed)
        self.ledger = Ledger("fault")
        self.caught: Counter[str] = Counter()
        """Statements whose reply was lost, or at which a worker froze."""
        self._weights = {sort: weight for sort, weight in WEIGHTS.items() if sort in sorts}
        if cluster.disk.refused is not None:
            self._weights.pop(DISK_FULL, None)
            say(f"WARNING: {not_tested(cluster)}; the other faults come in another order than with it")

    @property
    def count(self) -> int:
        return sum(self.done.values())

    def step(self) -> None:
        """One fault, and the pause after it."""
        # Drawn whatever becomes of it, so that those after it are the same in every run of the seed.
        chance = self._random
        sort = chance.choices(list(self._weights), list(self._weights.values()))[0]
        who = sorted(self._names)[chance.randrange(len(self._names))]
        size, pause = chance.random(), chance.uniform(*PAUSE)
        self.done[sort] += 1
        told = self._make(sort, who, size)
        now = datetime.now(UTC)
        self._say(f"{self.count:>4} {time.monotonic() - self._began:7.1f} s  {now:%T.%f}  {sort}: {told}")
        self._wait(pause)

    def heal(self) -> None:
        """Undo all that lasts; workers that are gone come back, and those that are frozen are killed."""
        for undo in sorted(self._undo):
            undo.act()
        self._undo.clear()
        self._client.close()
        for entry in self._cluster.end_clients():
            self.ledger.add(entry)
        for name in self._cluster.proxy.doors:
            self._cluster.heal(name)
        self._cluster.end_frozen()
        for name in self._names:
            self._replace_if_gone(name)
        for worker in self._leaving:
            self._cluster.retire(worker)

    @property
    def _names(self) -> list[str]:
        return sorted(self._workers)

    @property
    def _doors(self) -> list[str]:
        """Those that something uses which is not frozen."""
        return [name for name in (*self._names, CLIENT, self._other.name, BOUNCER) if name in self._cluster.proxy.doors]

    def _make(self, sort: str, who: str, size: float) -> str:
        cluster, proxy = self._cluster, self._cluster.proxy
        longer_than_lease = cluster.lease * (1.3 + size)
        match sort:
            case "kill" | "kill leader" | "kill holder":
                who = self._whom(who, sort)
                self._kill(who)
                return who
            case "stop" | "stop leader" | "stop holder":
                who = self._whom(who, sort)
                worker = self._replace_if_gone(who)
                worker.signal(signal.SIGSTOP)
                self._later(longer_than_lease, _continues(who), lambda: worker.signal(signal.SIGCONT))
                return f"{who} for {longer_than_lease:.1f} s"
            case "drain":
                self._drain(who)
                return who
            case "cut":
                cluster.cut(who)
                return who
            case "cut all":
                for name in self._doors:
                    cluster.cut(name)
                return "every connection"
            case "black hole":
                doors = [*self._names, "client", BOUNCER]
                door = doors[int(size * len(doors)) % len(doors)]
                if door not in proxy.doors:
                    door = who
                cluster.swallow(door)
                self._later(longer_than_lease, f"{door} is out of the black hole", lambda: cluster.heal(door))
                return f"{door} for {longer_than_lease:.1f} s"
            case "slow":
                cluster.slow_down(who, 0.02 + 0.15 * size)
                self._later(2.0, f"{who} is quick again", lambda: cluster.heal(who))
                return f"{who} by {0.02 + 0.15 * size:.2f} s"
            case "clock":
                offset = int((size - 0.5) * 2 * 86400)
                cluster.shift_clock(who, offset)
                return f"{who} is {offset:+d} s off"
            case "slots" | "lane off":
                return self._edit_lane(sort, size)
            case "server restart":
                cluster.restart_server()
                return "PostgreSQL"
            case "server kill":
                cluster.kill_server()
                return "all of PostgreSQL's processes"
            case "disk full":
                cluster.disk.fill(pages := int(size * 1000) % FREE_PAGES)
                seconds = 1 + 3 * size
                self._later(seconds, "the disk has room", cluster.disk.free)
                return f"{pages} pages are free for {seconds:.1f} s"
            case "freeze" | "freeze leader":
                worker = self._replace_if_gone(self._whom(who, sort))
                worker.freeze()
                return f"{worker.name}, and {self._replace_frozen(worker)} comes"
            case "freeze at statement":
                return self._freeze_at_statement(size)
            case "freeze client":
                frozen = self._other
                frozen.freeze()
                self._other = cluster.start_client(self._seed + self.count)
                return f"{frozen.name}, and {self._other.name} comes"
            case "server freeze":
                kill = size < 0.5
                cluster.freeze_server(FREEZE * cluster.lease, kill=kill)
                return (
                    "all of PostgreSQL's processes, which are then killed" if kill else "all of PostgreSQL's processes"
                )
            case "backend freeze":
                cluster.freeze_backend(FREEZE * cluster.lease, size)
                return "one backend"
            case "lost reply":
                return self._lose_reply(size)
            case "lock row" | "open cancel":
                return self._lock_row(sort, size)
            case "block loop":
                seconds = cluster.lease * (1.5 + size)
                self._enqueue(BLOCKER, Plan(key=f"blocker{self.count}", seconds=seconds))
                return f"somebody's for {seconds:.1f} s"
            case "hold lanes":
                return self._hold_lanes(size)
            case _:
                cluster.kill_backend(size)
                return "one backend"

    def _replace_frozen(self, worker: WorkerProcess) -> str:
        self._workers.remove(worker.name)
        self._undo = [undo for undo in self._undo if undo.what != _continues(worker.name)]
        name = self._cluster.leave_frozen(worker)
        self._workers.add(name)
        return name

    def _freeze_at_statement(self, size: float) -> str:
        """Whoever has such a statement next is frozen when it is done, be its transaction committed or not."""
        workers = {name: self._replace_if_gone(name) for name in self._names}
        name = self._set_traps(size, {door: worker.freeze for door, worker in workers.items()})
        continue_later = {undo.what for undo in self._undo}
        frozen = [
            worker for worker in workers.values() if worker.stopped and _continues(worker.name) not in continue_later
        ]
        if not frozen:
            return name
        return ", ".join(f"{worker.name} at {name}, and {self._replace_frozen(worker)} comes" for worker in frozen)

    def _lose_reply(self, size: float) -> str:
        """Whoever has such a statement next never hears that it was committed."""
        return self._set_traps(size, dict.fromkeys(self._doors))

    def _set_traps(self, size: float, acts: Mapping[str, Callable[[], None] | None]) -> str:
        """At every one of these doors, for one statement after the other until one comes. Its name."""
        names = sorted(STATEMENTS)
        at = int(size * len(names))
        name = ""
        for number in range(CHOICES):
            name = names[(at + number * len(names) // CHOICES) % len(names)]
            caught, sprung = threading.Event(), threading.Event()
            for door, act in acts.items():
                self._cluster.proxy.set_trap(door, Trap(beginning(STATEMENTS[name]), act, caught, sprung))
            if caught.wait(CAUGHT_WITHIN):
                sprung.wait(CAUGHT_WITHIN)
                self.caught[name] += 1
                return name
            caught.set()  # or it might catch one later
        return f"{name}, which did not come"

    def _lock_row(self, sort: str, size: float) -> str:
        """A client locks the row of a job that runs and goes on with something else; or it cancels the job and waits
        with its commit, which in half of the cases never comes."""
        with self._cluster.connect() as connection:
            found = connection.execute(RUNNING, [artifacts.KIND]).fetchone()
        if found is None:
            return "nothing runs"
        job, seconds = found[0], self._cluster.lease * (2.2 + size)
        stack = ExitStack()
        try:
            connection = stack.enter_context(self._cluster.row_locked(job))
        except LookupError as error:
            return str(error)
        if sort == "open cancel":
            with suppress(IllegalTransition, psycopg.errors.LockNotAvailable):  # it ends just now
                self._client.cancel(job, connection=connection)

        def let_go() -> None:
            with suppress(psycopg.OperationalError):
                if sort == "open cancel" and size < 0.5:
                    connection.commit()
            with suppress(psycopg.OperationalError):
                stack.close()

        self._later(seconds, f"job {job} is free", let_go)
        return f"job {job} for {seconds:.1f} s"

    def _enqueue(self, kind: str, plan: Plan) -> None:
        self.ledger.begin([plan])
        with suppress(psycopg.OperationalError, PgError):
            self.ledger.write([plan], Fate.ACKNOWLEDGED, self._client.enqueue(kind, plan).id)

    def _hold_lanes(self, size: float) -> str:
        """A job has all other lanes drained; in half of the cases an operator switches one of them off meanwhile."""
        self._enqueue(ALONE, Plan(key=f"alone{self.count}", seconds=0.3 + size))
        if size < 0.5:
            return "all"
        until = time.monotonic() + HELD_WITHIN
        with self._cluster.connect() as connection:
            held = "SELECT FROM kappa.lanes WHERE held_by IS NOT NULL"
            while connection.execute(held).fetchone() is None and time.monotonic() < until:
                time.sleep(0.02)
        return f"all, and off is {self._edit_lane('lane off', size)}"

    def _whom(self, who: str, sort: str) -> str:
        """The leader, or who holds a batch. Where there is none, whom the seed says."""
        wanted = None
        if sort.endswith("leader"):
            wanted = self._cluster.leader()
        elif sort.endswith("holder"):
            wanted = self._cluster.holder(HOLDER_WITHIN)
        return wanted if wanted in self._workers else who  # a frozen leader may lead for a while yet

    def _kill(self, who: str) -> None:
        worker = self._replace_if_gone(who)
        worker.signal(signal.SIGKILL)
        self._cluster.retire(worker)
        self._cluster.start_worker(who)

    def _drain(self, who: str) -> None:
        """Told to end; a new one takes its place at once, as in a rolling deployment."""
        worker = self._replace_if_gone(who)
        worker.signal(signal.SIGCONT)
        worker.signal(signal.SIGTERM)
        self._leaving.append(worker)
        self._cluster.start_worker(who)

    def _replace_if_gone(self, who: str) -> WorkerProcess:
        worker = self._cluster.workers.get(who)
        if worker is None or not worker.alive:
            if worker is not None:
                self._cluster.retire(worker)
            worker = self._cluster.start_worker(who)
        return worker

    def _edit_lane(self, sort: str, size: float) -> str:
        lane = sorted(self._slots)[int(size * 1000) % len(self._slots)]
        usual = self._slots[lane]
        if sort == "lane off":
            self._write_lane("UPDATE kappa.lanes SET enabled = false WHERE name = %s", lane)
            self._later(2.5, f"{lane} is on", lambda: self._write_lane(ENABLE, lane))
            return lane
        slots = max(1, int(usual * 2 * size)) if lane != "threads" else max(1, int(16 * size))
        self._write_lane("UPDATE kappa.lanes SET max_slots = %s WHERE name = %s", slots, lane)
        self._later(3.0, f"{lane} has {usual} slots", lambda: self._write_lane(RESTORE, usual, lane))
        return f"{lane} has {slots}"

    def _write_lane(self, statement: str, *args: object) -> None:
        with self._cluster.connect() as connection:
            connection.execute(statement.encode(), args)
            connection.execute("SELECT pg_notify('kappa_lane', ''), pg_notify('kappa_wake', '*')")

    def _later(self, seconds: float, what: str, act: Callable[[], None]) -> None:
        self._undo.append(Undo(time.monotonic() + seconds, len(self._undo) + self.count * 1000, what, act))

    def _wait(self, pause: float) -> None:
        until = time.monotonic() + pause
        while True:
            for undo in sorted(self._undo):
                if undo.due <= time.monotonic():
                    self._undo.remove(undo)
                    undo.act()
            for worker in [worker for worker in self._leaving if not worker.alive]:
                self._leaving.remove(worker)
                self._cluster.retire(worker)
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, 0.05))


def _continues(name: str) -> str:
    return f"{name} continues"


def not_tested(cluster: Cluster) -> str:
    """What the schedule lacks here, and why."""
    return "" if cluster.disk.refused is None else f"NOT TESTED: {DISK_FULL} ({cluster.disk.refused})"


ENABLE = "UPDATE kappa.lanes SET enabled = true WHERE name = %s"
RESTORE = "UPDATE kappa.lanes SET max_slots = %s WHERE name = %s"
