"""What was acknowledged, and whether it is what the tables say.

The simulator writes the ledger: every task that it was given, the highest progress that was sent and that was
acknowledged, and how the task ended. When all is quiet the tables are read and compared, row by row.
"""

from collections import Counter
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import psycopg


class End(StrEnum):
    """What became of a task, as far as its worker knows."""

    HELD = "held"
    SETTLING = "settling"
    """`complete_task` was sent and not answered."""
    SETTLED = "settled"
    LOST = "lost"
    """The server said so."""
    DEAD = "dead"
    """Its worker died."""


@dataclass(slots=True)
class Entry:
    """One lease of one task."""

    task: int
    token: int
    worker: str
    mark: str
    """In the result of its settlement."""
    since: float
    sent: float = -1.0
    acknowledged: float = -1.0
    end: End = End.HELD


class Ledger:
    """The simulator's side."""

    def __init__(self) -> None:
        self.entries: dict[tuple[int, int], Entry] = {}
        self.newest: dict[int, Entry] = {}
        self.two_owners: list[str] = []
        self.asking: list[str] = []
        """Workers that have no answer yet to their request for a task."""

    def assigned(self, task: int, token: int, worker: str, now: float) -> Entry:
        """The same again for a repeated request."""
        entry = self.entries.get((task, token))
        if entry is None:
            entry = self.entries[task, token] = Entry(task, token, worker, f"{worker}/{task}/{token}", now)
            self.newest[task] = entry
        elif entry.worker != worker:
            self.two_owners.append(f"task {task}, token {token}: {entry.worker} and {worker}")
        return entry

    def heard(self, entry: Entry, sent_at: float) -> None:
        """A word about a task was accepted: nobody else may have had it when the word was sent."""
        newest = self.newest[entry.task]
        if newest is not entry and sent_at > newest.since:
            self.two_owners.append(f"task {entry.task}: {entry.worker} was heard after {newest.worker} had it")

    def dump(self) -> dict[str, Any]:
        return {
            "entries": [asdict(entry) for entry in self.entries.values()],
            "two_owners": self.two_owners,
            "asking": self.asking,
        }


@dataclass(frozen=True, slots=True)
class Findings:
    """The comparison: counts of each fault, and some of them in words."""

    faults: Counter[str]
    examples: list[str]
    tasks: int
    settled: int
    updated: int

    @property
    def false_deaths(self) -> int:
        return self.faults["false death"]

    @property
    def errors(self) -> int:
        """Everything that the tables and the ledger differ in."""
        return sum(count for name, count in self.faults.items() if name != "false death")


def compare(url: str, said: dict[str, Any]) -> Findings:
    """The tables against what the simulator was told."""
    with psycopg.connect(url, autocommit=True) as connection:
        live = {
            row[0]: row[1:]
            for row in connection.execute(
                "SELECT id, state::text, lease_token, lease_owner, progress_done FROM kappa.jobs WHERE claims > 0"
            )
        }
        done: dict[int, list[tuple[Any, ...]]] = {}
        for row in connection.execute("SELECT id, state::text, progress_done, result FROM kappa.finished_jobs"):
            done.setdefault(row[0], []).append(row[1:])
    entries = [Entry(**{**entry, "end": End(entry["end"])}) for entry in said["entries"]]
    newest: dict[int, Entry] = {}
    for entry in entries:
        if entry.task not in newest or entry.token > newest[entry.task].token:
            newest[entry.task] = entry
    faults: Counter[str] = Counter()
    examples: list[str] = []

    def fault(name: str, text: str) -> None:
        faults[name] += 1
        if faults[name] <= 3:
            examples.append(f"{name}: {text}")

    for text in said["two_owners"]:
        fault("two owners", text)
    for task, rows in done.items():
        if len(rows) > 1 or task in live:
            fault("stored twice", f"task {task}: {len(rows)} times finished, {'also' if task in live else 'not'} live")
    for entry in entries:
        here, there = live.get(entry.task), done.get(entry.task, [])
        what = f"task {entry.task} of {entry.worker}, {entry.end}: live {here}, finished {[row[:2] for row in there]}"
        latest = newest[entry.task] is entry
        match entry.end:
            case End.SETTLED:
                if here is not None or not there:
                    fault("settlement not stored", what)
                elif there[0][0] != "succeeded" or (there[0][2] or {}).get("mark") != entry.mark:
                    fault("settlement not stored as said", what)
            case End.HELD:
                if here is None or here[1] != entry.token or not str(here[2]).endswith(f":{entry.worker}"):
                    fault("false death", what)
            case End.LOST:
                fault("false death", what)
            case End.SETTLING | End.DEAD:
                pass
        if latest and entry.acknowledged >= 0:
            stored = here[3] if here is not None else (there[0][1] if there else None)
            if stored is None or not entry.acknowledged <= stored <= entry.sent:
                fault("update not stored", f"{what}, acknowledged {entry.acknowledged}, sent {entry.sent}")
    known = {(entry.task, entry.token) for entry in entries}
    asking = set(said["asking"])
    for task, (state, token, owner, _) in live.items():
        unheard = state == "running" and token is not None and (task, token) not in known
        if unheard and str(owner).rpartition(":")[2] not in asking:
            fault("orphan", f"task {task} is leased to {owner}, who was never told")
    for task, rows in done.items():
        if task not in newest or rows[0][0] != "succeeded":
            fault("finished by nobody", f"task {task}: {rows[0][0]}")
    return Findings(
        faults,
        examples,
        len(newest),
        sum(entry.end is End.SETTLED for entry in entries),
        sum(entry.acknowledged >= 0 for entry in entries),
    )
