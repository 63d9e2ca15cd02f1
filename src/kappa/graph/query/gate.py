"""A semaphore for threads that is fair, and can be waited for until a deadline."""

import threading
from collections import deque


class Gate:
    """A semaphore that lets in who came first, and whose size may change while it is held."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._held = 0
        self._waiting: deque[threading.Condition] = deque()
        self._lock = threading.Lock()

    def resize(self, size: int) -> None:
        with self._lock:
            self._size = size
            self._wake()

    def enter(self, timeout: float) -> bool:
        """Wait for one place, behind everyone who waits already."""
        with self._lock:
            if self._free > 0 and not self._waiting:
                self._held += 1
                return True
            if timeout <= 0:
                return False
            turn = threading.Condition(self._lock)
            self._waiting.append(turn)
            entered = turn.wait_for(lambda: self._free > 0 and self._waiting[0] is turn, timeout)
            self._waiting.remove(turn)
            if entered:
                self._held += 1
            self._wake()
            return entered

    def take(self, want: int) -> int:
        """Up to so many places more, at once, if nobody waits for one."""
        with self._lock:
            taken = 0 if self._waiting else max(0, min(want, self._free))
            self._held += taken
            return taken

    def leave(self, count: int = 1) -> None:
        with self._lock:
            self._held -= count
            self._wake()

    @property
    def _free(self) -> int:
        return self._size - self._held

    def _wake(self) -> None:
        if self._waiting and self._free > 0:
            self._waiting[0].notify()

    @property
    def use(self) -> tuple[int, int, int]:
        """Held, size, waiting."""
        with self._lock:
            return self._held, self._size, len(self._waiting)
