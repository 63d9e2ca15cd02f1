"""What the host itself knows of containers: where an engine listens, and what became of a container when its engine
can't tell.
"""

import os
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
CONTROL_GROUPS = Path("/sys/fs/cgroup")
SYSTEM_SOCKETS = (Path("/var/run/docker.sock"), Path("/run/podman/podman.sock"))
CONNECTS_WITHIN = 1.0
EMPTY_WITHIN = 2.0
LOOK_AGAIN = 0.02


def engine_url(environment: Mapping[str, str] = os.environ) -> str | None:
    """The engine of this host: the one that the environment names, or the first that takes a connection.

    One that is named is there even while it is down: its runs wait for it.
    """
    if named := environment.get("DOCKER_HOST"):
        return named
    own = Path(environment.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")
    for path in (*SYSTEM_SOCKETS, own / "docker.sock", own / "podman" / "podman.sock"):
        if _takes_connections(path):
            return f"unix://{path}"
    return None


def _takes_connections(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(CONNECTS_WITHIN)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


class Witness(NamedTuple):
    """The first process of a container, and who will tell the engine of its end, seen while both lived."""

    pid: int
    born: str
    monitor: str

    @classmethod
    def of(cls, pid: int, container_id: str) -> "Witness | None":
        """Nothing if it can't be seen from here: the engine may be elsewhere, and its pids may mean others."""
        try:
            if container_id not in (PROC / str(pid) / "cgroup").read_text():
                return None
        except OSError:
            return None
        facts = _facts(pid)
        return None if facts is None else cls(pid, born=facts[19], monitor=facts[1])

    def lives(self) -> bool:
        facts = _facts(self.pid)
        return facts is not None and facts[19] == self.born

    def is_orphan(self) -> bool:
        """It lives, but belongs to another since its monitor is gone: nobody will ever know how it ends."""
        facts = _facts(self.pid)
        return facts is not None and facts[19] == self.born and (facts[1] != self.monitor or facts[1] == "1")

    def kill(self) -> None:
        """The kernel ends everything in its namespace with it."""
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGKILL)


def _facts(pid: int) -> list[str] | None:
    """The fields of a process after its name; nothing if it has ended."""
    try:
        facts = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if facts[0] in "ZX" else facts


class ControlGroup:
    """A control group around a container's own, which is still there when that one is gone.

    Podman with runc doesn't say that the memory ran out; what is written here does.
    """

    def __init__(self, name: str) -> None:
        self.path = f"/kappa/{name}"

    def exists(self) -> bool:
        return any((base / self.path[1:]).exists() for base in self._bases())

    def ran_out_of_memory(self) -> bool:
        """Version 2 counts what happened below."""
        facts = dict(line.split() for line in _read(CONTROL_GROUPS / self.path[1:] / "memory.events").splitlines())
        return int(facts.get("oom_kill", 0)) > 0

    def was_full(self, memory: int) -> bool:
        """Version 1 only tells the most that was used, to within what each processor has in reserve."""
        most = _read(CONTROL_GROUPS / "memory" / self.path[1:] / "memory.max_usage_in_bytes")
        return 0 < memory * 0.98 <= int(most or 0)

    def remove(self) -> None:
        """Its last process, the monitor, may need a moment to end."""
        until = time.monotonic() + EMPTY_WITHIN
        while left := [base / self.path[1:] for base in self._bases() if (base / self.path[1:]).exists()]:
            for group in left:
                for path in (*group.glob("*/"), group):
                    with suppress(OSError):
                        path.rmdir()
            if time.monotonic() > until:
                return
            time.sleep(LOOK_AGAIN)

    def _bases(self) -> list[Path]:
        return [CONTROL_GROUPS, *CONTROL_GROUPS.glob("*/")]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
