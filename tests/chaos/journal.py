"""A worker's journal: what its process says of itself, in a file that no fault of database or network reaches.

Its clock is the monotonic one, which all processes of a host share and which no fault shifts.
"""

import os
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from tests.chaos.record import Block, HandlerRun, Outage

PATH = "CHAOS_JOURNAL"
PULSE = 0.05
STALL = 0.25
"""Seconds without a turn after which a process counts as having stood still."""


def write(word: str, *facts: float) -> None:
    """In this process or a child of it. A line is written by one call, so lines of several threads don't mix."""
    os.write(_file(os.getpid()), f"{word} {' '.join(map(str, facts))} {time.monotonic()}\n".encode())


def is_first(job: int) -> bool:
    """Whether nobody asked this about the job before, in any process of the run."""
    try:
        Path(os.environ[PATH]).with_name(f"{job}.first").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@cache
def _file(process: int) -> int:
    return os.open(os.environ[PATH], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def watch_turns() -> None:
    """Write down, from a thread of its own, when this process had no turn for a while: a machine that is too busy."""

    def watch() -> None:
        last = time.monotonic()
        while True:
            threading.Event().wait(PULSE)
            now = time.monotonic()
            if now - last > STALL:
                write("stalled", last)
            last = now

    threading.Thread(target=watch, name="chaos-pulse", daemon=True).start()


@dataclass
class Journal:
    """As it was read, with the time of day in place of the monotonic clock's."""

    working: datetime | None = None
    runs: list[HandlerRun] = field(default_factory=list[HandlerRun])
    blocks: list[Block] = field(default_factory=list[Block])
    stalls: list[Outage] = field(default_factory=list[Outage])


def time_of_day(monotonic: float) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=time.monotonic() - monotonic)


def read(path: Path, owner: str) -> Journal:
    journal = Journal()
    for line in path.read_text().splitlines() if path.exists() else ():
        word, *facts = line.split()
        at = time_of_day(float(facts[-1]))
        match word:
            case "working":
                journal.working = at
            case "run":
                journal.runs.append(HandlerRun(int(facts[0]), int(facts[1]), owner, at))
            case "blocked":
                journal.blocks.append(Block(owner, time_of_day(float(facts[0])), at))
            case _:
                journal.stalls.append(Outage(owner, time_of_day(float(facts[0])), at, word))
    return journal
