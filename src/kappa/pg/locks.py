"""File locks that the kernel keeps: held by living processes, freed when the last of them ends, however it ends.

A pid in a file can be stale or belong to somebody else by now; a lock can't. Every question of a
server's life ("does it run?", "who holds it?", "is somebody starting it?") is asked of such a lock.
"""

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

POLL = 0.02


class FileLock:
    """An exclusive lock on a file, made if missing. Child processes that inherit `fd` hold it too."""

    def __init__(self, fd: int, path: Path) -> None:
        self.fd = fd
        self.path = path

    @classmethod
    def take(cls, path: Path) -> Self | None:
        """The lock, or None where another process has it."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if _flock(fd, fcntl.LOCK_EX):
            return cls(fd, path)
        os.close(fd)
        return None

    @classmethod
    def wait(cls, path: Path, on_long_wait: Callable[[], None]) -> Self:
        """The lock, as soon as it is free. `on_long_wait` is called once when that takes a while."""
        told_at = time.monotonic() + 2
        while (lock := cls.take(path)) is None:
            if time.monotonic() > told_at:
                told_at = float("inf")
                on_long_wait()
            time.sleep(POLL)
        return lock

    def release(self) -> None:
        """Give the lock back, for this process; a child that inherited it still holds it."""
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


def is_held(path: Path) -> bool:
    """Whether any process holds the lock. Askers ask with a shared lock, so that they never see each other."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _flock(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def _flock(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
