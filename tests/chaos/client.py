"""The clients of a run: each enqueues in every way there is, and keeps its own ledger of what was acknowledged.

What it does follows from the seed. When a connection breaks on the way it can't know whether the job exists, says so in
the ledger, and goes on. One is a thread of the run; another, `python -m tests.chaos.client`, is a process that may be
frozen at any moment, so its ledger is a file that says beforehand what it is about to do.
"""

import json
import random
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg

from kappa.engine import Client, IllegalTransition, JobState
from kappa.pg import Bounds, PgError
from tests.chaos import artifacts, handlers
from tests.chaos.handlers import QUICK, Plan
from tests.chaos.record import Entry, Fate

KINDS = {
    "loop_again": 40,
    "loop_once": 28,
    "thread_again": 10,
    "thread_once": 8,
    "process_again": 1,
    "process_once": 1,
    "loop_parent": 3,
    "thread_parent": 1,
    "family_parent": 1,
    artifacts.KIND: 6,
}
ENDS = {"ok": 86, "raise": 5, "retry": 4, "snooze": 4, "fail": 1}
EFFECTS = {"both": 25, "inside": 15, "outside": 15, "none": 45}
QUICK_ENDS = {"ok": 970, "raise": 10, "retry": 8, "snooze": 8, "fail": 4}
BURST = (150, 300)
OTHERS = 3
"""In some bursts so many jobs have effects, or last. A lane that sees one last claims no batch for a while."""
CANCELLED = 6
PAUSE = 0.02
PROCESS_BACKLOG = 300
PROCESS_PAUSE = 0.1
LOOK_AGAIN = 0.2


class Ledger:
    """What the client knows, in memory and, if there is one, in a file."""

    def __init__(self, name: str = "", path: Path | None = None) -> None:
        self._entries: dict[str, Entry] = {}
        self._name = name
        self._path = path

    @property
    def entries(self) -> list[Entry]:
        return list(self._entries.values())

    def add(self, entry: Entry) -> None:
        """Of another's ledger."""
        self._entries[entry.key] = entry

    def begin(self, plans: list[Plan], *, ordered: bool = False) -> None:
        """Before it is known what comes of it."""
        self.write(plans, Fate.UNKNOWN, ordered=ordered)

    def write(self, plans: list[Plan], fate: Fate, job: int | None = None, *, ordered: bool = False) -> None:
        batch = f"{self._name} {plans[0].key}" if len(plans) > 1 else None
        entries = [Entry(plan.key, fate, job, batch, ordered) for plan in plans]
        if self._path is not None:
            with self._path.open("a") as file:
                file.write("".join(f"{json.dumps(asdict(entry))}\n" for entry in entries))
        self._entries |= {entry.key: entry for entry in entries}


def read_ledger(path: Path) -> list[Entry]:
    """What a process wrote; the last word on each key counts. The last line may be half."""
    entries: dict[str, Entry] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(json.JSONDecodeError):
            facts = json.loads(line)
            entries[facts["key"]] = Entry(**{**facts, "fate": Fate(facts["fate"])})
    return list(entries.values())


class Enqueuer(threading.Thread):
    """Enqueues as long as fewer than `backlog` jobs live, as far as it can see."""

    def __init__(
        self, client: Client, url: str, seed: int, backlog: int, *, name: str = "j", ledger: Ledger | None = None,
        pause: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(name="chaos-client", daemon=True)
        self.ledger = ledger or Ledger(name)
        self.error: BaseException | None = None
        self._name = name
        self._pause = pause
        self._client = client
        self._url = url
        self._random = random.Random(f"client {seed}" if name == "j" else f"client {name} {seed}")
        self._backlog = backlog
        self._room = 0
        self._acknowledged = 0
        self._made = 0
        self._ending = threading.Event()

    def stop(self) -> None:
        self._ending.set()
        self.join()
        if self.error is not None:
            raise self.error

    @property
    def acknowledged(self) -> int:
        return self._acknowledged

    def run(self) -> None:
        ways = {
            self._one: 50, self._many: 16, self._deduplicated: 10, self._ordered: 12, self._undone: 3, self._later: 12,
            self._burst: 9,
        }  # fmt: skip
        try:
            while not self._ending.is_set():
                if self._room <= 0:
                    self._look()
                    continue
                self._pick(ways)()
                if self._pause:
                    self._ending.wait(self._pause)
        except BaseException as error:
            self.error = error

    def _look(self) -> None:
        """See how many more there may be; when there is no room, or no answer, look again a little later."""
        try:
            self._room = self._backlog - sum(self._client.counts().values())
        except (psycopg.Error, PgError):
            self._room = 0
        if self._room <= 0:
            self._ending.wait(LOOK_AGAIN)

    def _pick(self, weights: dict[Any, int]) -> Any:
        return self._random.choices(list(weights), list(weights.values()))[0]

    def _plan(self) -> tuple[str, Plan]:
        self._made += 1
        kind: str = self._pick(KINDS)
        ends = [self._pick(ENDS) for _ in range(3)]
        seconds = self._random.choice([0, 0, 0, 0, 0.02, 0.2] if kind != "loop_parent" else [0.01])
        children = self._random.randint(1, 3) if "parent" in kind else 0
        plan = Plan(
            key=f"{self._name}{self._made}", effects=self._pick(EFFECTS), ends=ends, seconds=seconds, children=children
        )
        if kind == artifacts.KIND:
            _only_a_file(plan)
        return kind, plan

    def _enter(self, plans: list[Plan], send: Callable[[], Any], *, ordered: bool = False) -> None:
        """Send, and write down what came of it."""
        self._room -= len(plans)
        self.ledger.begin(plans, ordered=ordered)
        try:
            made = send()
        except (psycopg.Error, PgError) as error:
            if isinstance(error, psycopg.ProgrammingError | psycopg.DataError):
                raise
            self.ledger.write(plans, Fate.UNKNOWN, ordered=ordered)
            self._ending.wait(PAUSE)
            return
        job = getattr(made, "id", None)
        if getattr(made, "created", True):
            self.ledger.write(plans, Fate.ACKNOWLEDGED, job, ordered=ordered)
            self._acknowledged += len(plans)
        else:
            self.ledger.write(plans, Fate.EXISTING, job)

    def _one(self) -> None:
        kind, plan = self._plan()
        priority = self._random.choice([0, 0, 0, 5, -5])
        self._enter([plan], lambda: self._client.enqueue(kind, plan, priority=priority))

    def _later(self) -> None:
        kind, plan = self._plan()
        delay = timedelta(seconds=self._random.uniform(0.05, 2))
        self._enter([plan], lambda: self._client.enqueue(kind, plan, delay=delay))

    def _deduplicated(self) -> None:
        kind, plan = self._plan()
        key = f"{self._name} d{self._random.randint(1, 20)}"
        self._enter([plan], lambda: self._client.enqueue(kind, plan, dedup_key=key))

    def _many(self) -> None:
        kind, _ = self._plan()
        plans = [self._plan()[1] for _ in range(self._random.randint(2, 25))]
        for plan in plans:
            plan.children = 1 if "parent" in kind else 0
            if kind == artifacts.KIND:
                _only_a_file(plan)
        at = datetime.now(UTC) + timedelta(seconds=1) if self._random.random() < 0.2 else None
        self._enter(plans, lambda: self._client.enqueue_many(kind, plans, at=at))

    def _burst(self) -> None:
        """Short jobs, more than their lane has slots. In some bursts a few last; of some a few are cancelled."""
        plans: list[Plan] = []
        for _ in range(self._random.randint(*BURST)):
            self._made += 1
            ends = [self._pick(QUICK_ENDS) for _ in range(3)]
            plans.append(Plan(key=f"{self._name}{self._made}", ends=ends, seconds=self._random.choice([0, 0, 0.002])))
        effects, seconds = self._pick({("none", 0): 12, ("inside", 0): 5, ("both", 0): 1, ("none", 0.06): 2})
        for plan in self._random.sample(plans, OTHERS):
            plan.effects, plan.seconds = effects, seconds
        whom = [self._random.random() for _ in range(CANCELLED)] if self._random.random() < 0.5 else []
        self._enter(plans, lambda: self._client.enqueue_many(QUICK, plans))
        if whom:
            self._cancel(whom)

    def _cancel(self, whom: list[float]) -> None:
        """Of what stands as queued in the quick lane, be it in a batch or not: from the oldest, 0, to the newest, 1."""
        try:
            queued = self._client.list_jobs(kinds=[QUICK], states=[JobState.QUEUED], limit=BURST[1])[::-1]
            for place in whom if queued else []:
                with suppress(IllegalTransition):  # it has ended meanwhile
                    self._client.cancel(queued[int(place * place * len(queued))].id)
        except (psycopg.OperationalError, PgError):
            self._ending.wait(PAUSE)

    def _ordered(self) -> None:
        """In the client's own transaction, together with a row of its own."""
        kind, plan = self._plan()

        def send() -> Any:
            with psycopg.connect(self._url, connect_timeout=5) as connection:
                connection.execute("INSERT INTO chaos_orders (key) VALUES (%s)", [plan.key])
                return self._client.enqueue(kind, plan, connection=connection)

        self._enter([plan], send, ordered=True)

    def _undone(self) -> None:
        kind, plan = self._plan()
        self.ledger.write([plan], Fate.UNDONE)
        with suppress(psycopg.OperationalError), psycopg.connect(self._url, connect_timeout=5) as connection:
            self._client.enqueue(kind, plan, connection=connection)
            connection.rollback()


def _only_a_file(plan: Plan) -> None:
    """Nothing but the disk, or the loss of a worker, keeps an artifact's job from its end."""
    plan.effects, plan.ends = "none", []


def main(url: str, ledger: str, name: str, seed: str, lease: str) -> int:
    """A client in a process of its own, until SIGTERM."""
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    with handlers.declare(url, float(lease)).client(bounds=Bounds(0, 2, wait=5.0)) as client:
        kept = Ledger(name, Path(ledger))
        enqueuer = Enqueuer(client, url, int(seed), PROCESS_BACKLOG, name=name, ledger=kept, pause=PROCESS_PAUSE)
        enqueuer.start()
        while enqueuer.is_alive() and not ending.wait(LOOK_AGAIN):
            pass
        enqueuer.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
