"""Faults, one after the other, as the seed says: what, to whom, for how long.

A fault that lasts is undone later, while others begin. The same seed gives the same faults in the same order.
"""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos import artifacts
from tests.chaos.cluster import Cluster, WorkerProcess

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
}


@dataclass(order=True)
class Undo:
    due: float
    number: int
    what: str
    act: Callable[[], None]


class Faults:
    """Makes faults in a cluster and undoes them."""

    def __init__(self, cluster: Cluster, seed: int, say: Callable[[str], None]) -> None:
        self.done: Counter[str] = Counter()
        self._cluster = cluster
        self._random = random.Random(f"faults {seed}")
        self._say = say
        self._undo: list[Undo] = []
        self._began = time.monotonic()
        self._leaving: list[WorkerProcess] = []
        self._slots = dict(cluster.slots)
        self._weights = dict(WEIGHTS)
        if cluster.disk.refused is not None:
            del self._weights[DISK_FULL]
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
        self._say(f"{self.count:>4} {time.monotonic() - self._began:7.1f} s  {sort}: {told}")
        self._wait(pause)

    def heal(self) -> None:
        """Undo all that lasts; workers that are gone come back."""
        for undo in sorted(self._undo):
            undo.act()
        self._undo.clear()
        for name in self._cluster.proxy.doors:
            self._cluster.proxy.heal(name)
        for name in self._names:
            self._replace_if_gone(name)
        for worker in self._leaving:
            self._cluster.retire(worker)

    @property
    def _names(self) -> list[str]:
        return sorted(name for name in self._cluster.proxy.doors if name.startswith(("worker", "pooled")))

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
                self._later(longer_than_lease, f"{who} continues", lambda: worker.signal(signal.SIGCONT))
                return f"{who} for {longer_than_lease:.1f} s"
            case "drain":
                self._drain(who)
                return who
            case "cut":
                proxy.cut(who)
                return who
            case "cut all":
                for name in proxy.doors:
                    proxy.cut(name)
                return "every connection"
            case "black hole":
                doors = [*self._names, "client", "bouncer"]
                door = doors[int(size * len(doors)) % len(doors)]
                if door not in proxy.doors:
                    door = who
                proxy.swallow(door)
                self._later(longer_than_lease, f"{door} is out of the black hole", lambda: proxy.heal(door))
                return f"{door} for {longer_than_lease:.1f} s"
            case "slow":
                proxy.delay(who, 0.02 + 0.15 * size)
                self._later(2.0, f"{who} is quick again", lambda: proxy.delay(who, 0.0))
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
            case _:
                cluster.kill_backend(size)
                return "one backend"

    def _whom(self, who: str, sort: str) -> str:
        """The leader, or who holds a batch. Where there is none, whom the seed says."""
        if sort.endswith("leader"):
            return self._cluster.leader() or who
        if sort.endswith("holder"):
            return self._cluster.holder(HOLDER_WITHIN) or who
        return who

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
            self._later(1.5, f"{lane} is on", lambda: self._write_lane(ENABLE, lane))
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


def not_tested(cluster: Cluster) -> str:
    """What the schedule lacks here, and why."""
    return "" if cluster.disk.refused is None else f"NOT TESTED: {DISK_FULL} ({cluster.disk.refused})"


ENABLE = "UPDATE kappa.lanes SET enabled = true WHERE name = %s"
RESTORE = "UPDATE kappa.lanes SET max_slots = %s WHERE name = %s"
