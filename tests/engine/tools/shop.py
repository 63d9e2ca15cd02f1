"""Where tools run in tests: the runners by name, worker processes that stop at a chosen point, the processes of a run.

A worker process is a real one, with the engine and `tools.install` on the test's database. What stops it at a point is
put around the runner or the store of artifacts that it was given, so that all else is as in production.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from kappa.engine import Engine, WorkerConfig, tools
from kappa.engine.testing import drain, maintain
from kappa.engine.tools import ArtifactStore, Bench, Found, Identity, ProcessRunner, Runner, Spec
from kappa.engine.tools.run import RunDirectory, mark_of
from kappa.engine.tools.supervisor import MARK
from tests.engine.tools import containers
from tests.ground import PATIENCE, Script, eventually, require_program

ROOT = Path(__file__).parents[3]
HOUR = timedelta(hours=1)
FOLLOWER = WorkerConfig(lead=False, grace=timedelta(seconds=10))
FIRST = Identity(1, 1)

STARTING, ENDED, COLLECTING = "starting", "ended", "collecting"
"""Where a worker process may be told to stop and say so."""
UNMARKED = "unmarked"
"""It doesn't stop, but is long in writing down what it started."""

WORKER = """
import sys
from tests.engine.tools.shop import work
work(*sys.argv[1:])
"""

WAITS = """
token=$(cat /proc/sys/kernel/random/uuid)
echo "token $token"
echo "so far so good" >&2
while [ ! -e go ]; do sleep 0.02; done
echo "went on"
printf %s "$token" >output/token
head -c 3000000 /dev/zero >output/zeros
printf '{"contract_version": 1, "status": "succeeded", "outputs": {"token": "%s"},
         "artifacts": [{"path": "token"}, {"path": "zeros"}]}' "$token" >result.json
"""
"""A tool that can be told from any other execution of it by its token, and that waits until `go` is there."""


def shell(source: str) -> list[str]:
    return ["/bin/sh", "-c", source]


@dataclass(frozen=True)
class Place:
    """A runner by its name, in a home."""

    name: str
    home: Path

    def runners(self) -> dict[str, Runner]:
        root = self.home / "runs"
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.name == "container":
            return {"container": containers.runner(root)}
        return {"process": ProcessRunner(root, sandbox=self.name == "sandbox", hidden=[self.home])}

    @property
    def image(self) -> str | None:
        return containers.engine().image if self.name == "container" else None

    @property
    def shortest(self) -> float:
        """A time-out, in seconds, within which a run has surely begun."""
        return 4 if self.name == "container" else 1

    @property
    def runner(self) -> Runner:
        return next(iter(self.runners().values()))

    def directory(self, identity: Identity = FIRST) -> RunDirectory:
        return RunDirectory(self.home / "runs", identity)

    def go(self, identity: Identity = FIRST) -> None:
        (self.directory(identity).path / "go").touch()

    def processes(self, identity: Identity = FIRST) -> list[int]:
        """Everything that a run started and that lives."""
        if self.name == "container":
            return containers.processes(self.home / "runs", identity)
        mark = f"{MARK}={mark_of(self.home / 'runs', identity)}".encode()
        return [pid for pid in all_processes() if mark in read(pid, "environ").split(b"\0") and alive(pid)]

    def supervisor(self, identity: Identity = FIRST) -> int | None:
        """The process that stands between the worker and the tool."""
        if self.name == "container":
            return containers.monitor(self.home / "runs", identity)
        private = str(self.directory(identity).private).encode()
        found = [pid for pid in all_processes() if read(pid, "cmdline").rstrip(b"\0").endswith(b"\0" + private)]
        return found[0] if found else None


def place(request: pytest.FixtureRequest, home: Path) -> Place:
    """The place of a fixture's parameter, if what it needs is here."""
    if request.param == "sandbox":
        require_program("bwrap")
    if request.param == "container":
        request.getfixturevalue("podman")
    return Place(request.param, home)


def all_processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def read(pid: int, what: str) -> bytes:
    try:
        return Path("/proc", str(pid), what).read_bytes()
    except OSError:
        return b""


def alive(pid: int) -> bool:
    state = read(pid, "stat").rpartition(b")")[2].split()[:1]
    return state not in ([], [b"Z"], [b"X"])


def resident_kb(pid: int) -> int:
    found = [line for line in read(pid, "status").splitlines() if line.startswith(b"VmRSS")]
    return int(found[0].split()[1]) if found else 0


# Worker processes


class Stops:
    """A runner that stops its worker at a point, for good."""

    def __init__(self, runner: Runner, point: str) -> None:
        self._runner = runner
        self._point = point

    def start(self, spec: Spec) -> None:
        if self._point == STARTING:
            stop(STARTING)
        self._runner.start(spec)

    def find(self, identity: Identity) -> Found:
        return self._runner.find(identity)

    def wait(self, identity: Identity, seconds: float) -> Found:
        found = self._runner.wait(identity, seconds)
        if found.exit is not None and self._point == ENDED:
            stop(ENDED)
        return found

    def stop(self, identity: Identity) -> None:
        self._runner.stop(identity)

    def remove(self, identity: Identity) -> None:
        self._runner.remove(identity)

    def leftovers(self) -> list[Identity]:
        return self._runner.leftovers()


class Stalls(ArtifactStore):
    """A store that takes the first piece of a large artifact and then waits for ever for more."""

    def take(self, source: int, size: int) -> str:
        if size < 1_000_000:
            return super().take(source, size)
        out, into = os.pipe()

        def feed() -> None:
            os.write(into, os.read(source, 60_000))
            stop(COLLECTING)

        threading.Thread(target=feed).start()
        return super().take(out, size)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def stop(point: str) -> None:
    say(point)
    threading.Event().wait()


def work(url: str, home: str, name: str, point: str, grace: str) -> None:
    """A worker process: says `ready`, then what point it stops at."""
    engine = Engine(url)
    at = Place(name, Path(home))
    runners = {kind: Stops(runner, point) for kind, runner in at.runners().items()}
    artifacts = at.home / "artifacts"
    store = Stalls(artifacts) if point == COLLECTING else ArtifactStore(artifacts)
    bench = Bench(engine.database, at.home / "runs", store, runners)

    engine.job(tools.KIND, adoptable=True)(bench.handle)
    engine.signals.subscribe(lambda fact, facts: say("ready") if fact == "asleep" else None)
    mark_after = timedelta(hours=1) if point == UNMARKED else timedelta(milliseconds=20)
    engine.run(WorkerConfig(lead=False, grace=timedelta(seconds=float(grace)), start_mark_after=mark_after))
    bench.close()


def worker(url: str, at: Place, point: str = "", grace: float = 30) -> Script:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    made = Script(WORKER, url, at.home, at.name, point, grace, env={"PYTHONPATH": path})
    assert made.line() == "ready"
    return made


def until(script: Script, said: str) -> None:
    while script.line() != said:
        pass


def kill(killed: Script) -> None:
    """As the kernel does it: no time for a last word."""
    killed.process.send_signal(signal.SIGSTOP)
    killed.process.kill()
    killed.process.wait(PATIENCE)


# What others do


async def adopt(engine: Engine) -> None:
    """Leases run out, and a worker of the test's own takes over what it finds."""
    await maintain(engine, later=HOUR, only=lambda name: name == "reaper")
    await drain(engine, FOLLOWER)


async def try_again(engine: Engine) -> None:
    """What is due later is due now."""
    await maintain(engine, later=HOUR, only=lambda name: name == "promoter")
    await drain(engine, FOLLOWER)


def gone(look: Callable[[], object], what: str) -> None:
    eventually(lambda: not look(), what=what)
