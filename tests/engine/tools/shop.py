"""Where tools run in tests: the runners by name, worker processes that stop at a chosen point, the processes of a run.

A worker process is a real one, with the engine and `tools.install` on the test's database. What stops it at a point is
put around the runner or the store of artifacts that it was given, so that all else is as in production.
"""

import multiprocessing
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

import pytest

from kappa.engine import Engine, WorkerConfig, tools
from kappa.engine.testing import drain, maintain
from kappa.engine.tools import ArtifactStore, Bench, Found, Identity, ProcessRunner, Runner, Spec, Tools
from kappa.engine.tools.run import RunDirectory, mark_of, uid_of
from kappa.engine.tools.supervisor import MARK
from tests.engine.tools import containers
from tests.ground import PATIENCE, eventually, require_program

HOUR = timedelta(hours=1)
FOLLOWER = WorkerConfig(lead=False, grace=timedelta(seconds=10))
FIRST = Identity(1, 1)

STARTING, ENDED, COLLECTING = "starting", "ended", "collecting"
"""Where a worker process may be told to stop and say so."""
UNMARKED = "unmarked"
"""It doesn't stop, but is long in writing down what it started."""

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

    async def register(
        self, toolbox: Tools, argv: list[str], name: str = "it", *, timeout: float = 60, **limits: float
    ) -> None:
        """A tool that runs here."""
        await toolbox.register(
            name, "1", argv=argv, image=self.image, limits=limits, timeout=timedelta(seconds=timeout)
        )

    def directory(self, identity: Identity = FIRST) -> RunDirectory:
        return RunDirectory(self.home / "runs", identity)

    def go(self, identity: Identity = FIRST) -> None:
        (self.directory(identity).path / "go").touch()

    def processes(self, identity: Identity = FIRST) -> list[int]:
        """Everything that a run started and that lives."""
        if self.name == "container":
            return containers.processes(self.home / "runs", identity)
        mark = f"{MARK}={mark_of(self.home / 'runs', identity)}".encode()
        return [pid for pid in all_processes() if alive(pid) and mark in read(pid, "environ").split(b"\0")]

    def is_anybody(self, identity: Identity = FIRST) -> bool:
        """Whether a process of a run lives, also one that is ever another by the time it is looked at."""
        if self.name == "container" or os.geteuid() != 0:
            return any(self.processes(identity) for _ in range(20))
        # Nobody can hide from a count that the kernel keeps: with the limit at two, a user who is alone can fork.
        uid = uid_of(self.home / "runs", identity.job_id)
        try:
            forked = subprocess.run(["/bin/sh", "-c", "/bin/true; exit 0"], user=uid, group=uid, extra_groups=[],
                                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (2, 2)),
                                    capture_output=True, check=False)  # fmt: skip
        except OSError:
            return True
        return forked.returncode != 0

    def supervisor(self, identity: Identity = FIRST) -> int | None:
        """The process that stands between the worker and the tool."""
        if self.name == "container":
            return containers.monitor(self.home / "runs", identity)
        private = str(self.directory(identity).private).encode()
        found = [pid for pid in all_processes() if read(pid, "cmdline").rstrip(b"\0").endswith(b"\0" + private)]
        return found[0] if found else None


RUNNERS = ("process", "sandbox", "container")


def place(request: pytest.FixtureRequest, home: Path) -> Iterator[Place]:
    """The place of a fixture's parameter, if what it needs is here. What a test that failed left there is ended."""
    if request.param == "sandbox":
        require_program("bwrap")
    if request.param == "container":
        request.getfixturevalue("podman")
    made = Place(request.param, home)
    yield made
    runner = made.runner
    for identity in runner.leftovers():
        runner.stop(identity)
        runner.remove(identity)


def all_processes() -> Iterator[int]:
    """As they are found, for one that is looked at later may be gone."""
    return (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())


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


class Worker:
    """A worker process, forked from one that has loaded everything already: it is loaded once, not by each of them."""

    def __init__(self, url: str, at: Place, point: str, grace: float) -> None:
        processes = multiprocessing.get_context("forkserver")
        processes.set_forkserver_preload([__name__, "kappa.engine.tools.container_runner"])
        self._lines, said = processes.Pipe(duplex=False)
        self.process = processes.Process(target=work, args=(said, dict(os.environ), url, at, point, grace))
        self.process.start()
        said.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def line(self) -> str:
        """The next thing that it says."""
        assert self._lines.poll(PATIENCE), "it says nothing"
        try:
            return self._lines.recv()
        except EOFError:
            raise AssertionError("the worker ended") from None

    def until(self, said: str) -> None:
        while self.line() != said:
            pass

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """As the kernel does it: no time for a last word."""
        self.send_signal(signal.SIGSTOP)
        self.process.kill()
        self.process.join(PATIENCE)

    def end(self) -> None:
        """Wait for a good end."""
        self.process.join(PATIENCE)
        assert self.process.exitcode == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.is_alive():
            self.kill()
        self.process.close()
        self._lines.close()


_said: Connection | None = None


def say(line: str) -> None:
    assert _said is not None
    _said.send(line)


def stop(point: str) -> None:
    say(point)
    threading.Event().wait()


def work(said: Connection, environment: dict[str, str], url: str, at: Place, point: str, grace: float) -> None:
    """A worker process: says `ready`, then what point it stops at."""
    global _said
    _said = said
    os.environ.clear()
    os.environ.update(environment)
    engine = Engine(url)
    runners = {kind: Stops(runner, point) for kind, runner in at.runners().items()}
    artifacts = at.home / "artifacts"
    store = Stalls(artifacts) if point == COLLECTING else ArtifactStore(artifacts)
    bench = Bench(engine.database, at.home / "runs", store, runners)

    engine.job(tools.KIND, adoptable=True)(bench.handle)
    engine.signals.subscribe(lambda fact, facts: say("ready") if fact == "asleep" else None)
    mark_after = timedelta(hours=1) if point == UNMARKED else timedelta(milliseconds=20)
    engine.run(WorkerConfig(lead=False, grace=timedelta(seconds=grace), start_mark_after=mark_after))
    bench.close()


def worker(url: str, at: Place, point: str = "", grace: float = 30) -> Worker:
    made = Worker(url, at, point, grace)
    assert made.line() == "ready"
    return made


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
