"""What runners speak of: a run's identity, its directory, its limits, how it ended. One protocol for all of them."""

import hashlib
import json
import os
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from kappa.engine.errors import EngineError

MEGABYTE = 1024 * 1024
FIRST_UID = 200_000
UIDS = 100_000


class RunnerUnavailable(EngineError):
    """The runner can't take a run now; that is not the run's fault, and it goes back to the queue."""


class Identity(NamedTuple):
    """Which run of which attempt: the same for whoever looks, now and after any crash."""

    job_id: int
    attempt: int

    @property
    def name(self) -> str:
        return f"kappa-{self.job_id}-{self.attempt}"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run may use."""

    cpus: float = 1.0
    memory_mb: int = 1024
    pids: int = 256
    tmp_mb: int = 256
    output_mb: int = 1024
    """All that it may leave in its directory."""


@dataclass(frozen=True, slots=True)
class Spec:
    """Everything that a runner needs to know to begin."""

    identity: Identity
    argv: tuple[str, ...]
    timeout: float
    limits: Limits = Limits()
    image: str | None = None
    environment: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Exit:
    """How a run ended."""

    code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    stopped: bool = False
    out_of_memory: bool = False
    over_limit: str | None = None
    """Which limit it ran into, in words for users."""
    not_started: str | None = None
    """Why it could not even begin."""


class Found(NamedTuple):
    """What a runner knows of a run: nothing (`lost`), that it runs, or how it ended."""

    running: bool
    exit: Exit | None

    @property
    def lost(self) -> bool:
        return not self.running and self.exit is None


LOST = Found(running=False, exit=None)
RUNNING = Found(running=True, exit=None)


class Runner(Protocol):
    """Where runs run. Every call blocks, so it belongs in a thread; every call may be repeated."""

    def start(self, spec: Spec) -> None:
        """Begin, unless a run of this identity is there already. Its directory has been prepared."""
        ...

    def find(self, identity: Identity) -> Found: ...

    def wait(self, identity: Identity, seconds: float) -> Found:
        """As `find`, once it has ended or the time is over."""
        ...

    def stop(self, identity: Identity) -> None:
        """End it, with everything that it started. Comes back when nothing of it runs any more."""
        ...

    def remove(self, identity: Identity) -> None:
        """Forget it: what it left outside of its directory goes."""
        ...

    def leftovers(self) -> list[Identity]:
        """Runs that this runner still knows of."""
        ...


def mark_of(root: Path, identity: Identity) -> str:
    """What everything that a run starts has in its environment: which run, and whose: there may be other Kappas."""
    return f"{identity.name}@{installation(root)}"


def installation(root: Path) -> str:
    """Which Kappa of this host: the one whose runs have their directories here."""
    return hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:12]


def uid_of(root: Path, job_id: int) -> int:
    """As root: a user of its own for a run, whom nobody else is. Jobs that are near each other have different ones."""
    return FIRST_UID + (int(installation(root), 16) + job_id) % UIDS


class RunDirectory:
    """One run's files."""

    def __init__(self, root: Path, identity: Identity) -> None:
        self.identity = identity
        self.path = root / identity.name
        self.input = self.path / "input"
        self.output = self.path / "output"
        self.request = self.path / "request.json"
        self.result = self.path / "result.json"
        self.private = root / f"{identity.name}.private"
        """What the tool must not see or change: specification, lock, logs, how it ended."""
        self.spec = self.private / "spec.json"
        self.filter = self.private / "filter"
        """The system calls that a sandboxed tool can't make, if any are refused."""
        self.lock = self.private / "lock"
        self.stop = self.private / "stop"
        self.exit = self.private / "exit.json"
        self.stdout = self.private / "stdout"
        self.stderr = self.private / "stderr"

    def log(self, stream: str) -> Path:
        return self.stdout if stream == "stdout" else self.stderr

    def read_exit(self) -> Exit | None:
        try:
            return Exit(**json.loads(self.exit.read_bytes()))
        except FileNotFoundError:
            return None

    def write_exit(self, ended: Exit) -> None:
        write_whole(self.exit, json.dumps(asdict(ended)).encode())


def directories(root: Path) -> list[Identity]:
    """The runs that have a directory here."""
    found: list[Identity] = []
    for path in root.glob("kappa-*-*.private"):
        parts = path.name.removesuffix(".private").split("-")
        if len(parts) == 3 and parts[1].isdigit() and parts[2].isdigit():
            found.append(Identity(int(parts[1]), int(parts[2])))
    return sorted(found)


def discard(path: Path) -> None:
    """Remove a directory that a tool filled: as deep as it likes, and closed to its own owner."""
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        subprocess.run(["chmod", "-R", "u+rwx", str(path)], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["rm", "-rf", str(path)], check=False, stderr=subprocess.DEVNULL)


def write_whole(path: Path, content: bytes) -> None:
    """All of it or nothing, and on the disk before it has its name."""
    draft = path.with_name(f".{os.urandom(16).hex()}")  # a name of its own: the other may be as long as names can be
    try:
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> Any:
    return json.loads(path.read_bytes())
