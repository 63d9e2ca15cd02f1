"""What a worker holds, written down: a small file for each task, on the disk before its work begins.

Whoever starts in the same directory after a crash finds here what to follow, what to deliver and what to give back.
One agent at a time has the directory; that is what the lock is for.
"""

import fcntl
import logging
import os
import secrets
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ValidationError

from kappa.engine.errors import EngineError
from kappa.engine.fleet import wire
from kappa.engine.tools.run import write_whole

log = logging.getLogger(__name__)


class WorkDirUnusable(EngineError):
    """Another agent works in this directory, or nobody can."""


class Undelivered(BaseModel):
    """How a task ended, where nobody could be told yet."""

    call: str
    body: dict[str, Any]


class Entry(BaseModel):
    """A task that is held. What is large in it, and of no use without the handler, is left out."""

    server: str
    worker: str
    task: wire.Task
    begun_at: float | None = None
    """By the wall's clock: after a crash there is no other."""
    undelivered: Undelivered | None = None

    @classmethod
    def of(cls, server: str, worker: str, task: wire.Task) -> "Entry":
        tool = None if task.tool is None else task.tool.model_copy(update={"inputs": None})
        kept = task.model_copy(update={"payload": None, "checkpoint": None, "tool": tool})
        return cls(server=server, worker=worker, task=kept)

    @property
    def held(self) -> wire.Held:
        return wire.Held(task=self.task.task, token=self.task.token)

    @property
    def seconds_left(self) -> float:
        if self.task.seconds_left >= wire.NO_TIMEOUT:
            return wire.NO_TIMEOUT
        return self.task.seconds_left - (0 if self.begun_at is None else max(0.0, time.time() - self.begun_at))


class Journal:
    """The entries of one work directory, and the lock on it."""

    def __init__(self, work_dir: Path) -> None:
        self.work_dir = work_dir
        self._place = work_dir / "tasks"
        self._lock: int | None = None

    def __enter__(self) -> Self:
        try:
            self.work_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._place.mkdir(exist_ok=True, mode=0o700)
            lock = os.open(self.work_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise WorkDirUnusable(f"the work directory {self.work_dir} can't be used: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise WorkDirUnusable(
                f"a worker with process id {owner} has {self.work_dir}: give this one a --work-dir of its own"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        self._lock = lock
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def name(self) -> str:
        """The worker's name, made once and then kept: after a restart its tasks are still its own."""
        path = self.work_dir / "name"
        with suppress(FileNotFoundError):
            if kept := path.read_text().strip():
                return kept
        host = "".join(sign if sign.isascii() and (sign.isalnum() or sign in ".-") else "-" for sign in _host())
        made = f"{host.strip('.-')[:100] or 'worker'}-{secrets.token_hex(3)}"
        write_whole(path, made.encode())
        return made

    def read(self) -> list[Entry]:
        """Every task that was held when the last agent here ended."""
        found: list[Entry] = []
        for path in sorted(self._place.glob("*.json")):
            try:
                found.append(Entry.model_validate_json(path.read_bytes()))
            except ValidationError as error:
                log.warning("%s is no entry of this version's and is left alone: %s", path, error.errors()[0]["msg"])
        return found

    def write(self, entry: Entry) -> None:
        write_whole(self._path(entry), entry.model_dump_json().encode())
        self._sync()

    def remove(self, entry: Entry) -> None:
        self._path(entry).unlink(missing_ok=True)

    def _path(self, entry: Entry) -> Path:
        return self._place / f"{entry.task.task}-{entry.task.token}.json"

    def _sync(self) -> None:
        number = os.open(self._place, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _host() -> str:
    return socket.gethostname()
