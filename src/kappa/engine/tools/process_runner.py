"""Runs tools as processes of this host, each behind a supervisor that outlives the worker."""

import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from kappa.engine.tools import sandbox, supervisor
from kappa.engine.tools.run import (
    LOST,
    RUNNING,
    Found,
    Identity,
    RunDirectory,
    RunnerUnavailable,
    Spec,
    directories,
    mark_of,
    uid_of,
    write_whole,
)
from kappa.engine.tools.sandbox import INSIDE, Bubblewrap, SandboxMissing

LOOK_FIRST = 0.005
LOOK_LAST = 0.2
STOP_WITHIN = 30.0
STARTED_WITHIN = 30.0
CLEAN_LOOKS = 5
"""Where a run has no user of its own: so often nothing of it is seen before it counts as gone."""


class ProcessRunner:
    """Processes, sandboxed by bubblewrap; refused where it doesn't work."""

    def __init__(
        self, root: Path, *, sandbox: bool | None = True, shown: Sequence[Path] = (), hidden: Sequence[Path] = ()
    ) -> None:
        """A `sandbox` of None is one where there is one, and False is none: for tools that may do what Kappa may.

        Tools see what is below `shown`, which they may read, but nothing below `hidden`.
        """
        self._root = root
        self._sandbox = sandbox
        self._shown = shown
        self._hidden = hidden
        self._found: Bubblewrap | None = None

    def start(self, spec: Spec) -> None:
        run = RunDirectory(self._root, spec.identity)
        if not self.find(spec.identity).lost:
            return
        bubblewrap = self._bubblewrap()
        uid = uid_of(self._root, spec.identity.job_id) if os.geteuid() == 0 else None
        if uid is not None:
            for path in (run.path, run.output, run.input, *run.input.iterdir(), run.request):
                os.chown(path, uid, uid, follow_symlinks=False)
        inside, command = str(run.path), list(spec.argv)
        most = spec.limits.pids if uid is not None else _processes_of(os.getuid()) + spec.limits.pids
        if bubblewrap is not None:
            inside, most = INSIDE, most + bubblewrap.extra_processes
            hidden = [path.resolve() for path in self._hidden]
            command = bubblewrap.command(
                spec.argv, run.path, uid, tmp_mb=spec.limits.tmp_mb, shown=self._shown, hidden=hidden
            )
            if bubblewrap.filter is not None:
                write_whole(run.filter, bubblewrap.filter)
        facts = {
            "command": command,
            "directory": str(run.path),
            "environment": _environment(spec, inside),
            "mark": mark_of(self._root, spec.identity),
            "limits": asdict(spec.limits),
            "timeout": spec.timeout,
            "sandboxed": bubblewrap is not None,
            # In the sandbox root is what makes the mounts; the tool is somebody else by the time it runs.
            "uid": uid if bubblewrap is None else None,
            "gid": uid if bubblewrap is None else None,
            "nproc": most,
        }
        write_whole(run.spec, json.dumps(facts).encode())
        try:
            _spawn(run)
        except OSError as error:
            raise RunnerUnavailable(f"no supervisor could be started: {error.strerror}") from None
        self._until_supervised(run)

    def find(self, identity: Identity) -> Found:
        run = RunDirectory(self._root, identity)
        if (ended := run.read_exit()) is not None:
            return Found(running=False, exit=ended)
        try:
            with run.lock.open("a") as lock:
                # Shared, so that of two who look at the same time neither takes the other for a supervisor.
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return LOST
        except BlockingIOError:
            return RUNNING
        # It may have ended between the two looks.
        return Found(running=False, exit=run.read_exit())

    def wait(self, identity: Identity, seconds: float) -> Found:
        until, pause = time.monotonic() + seconds, LOOK_FIRST
        while (found := self.find(identity)).running and time.monotonic() < until:
            time.sleep(min(pause, max(0.0, until - time.monotonic())))
            pause = min(2 * pause, LOOK_LAST)
        return found

    def stop(self, identity: Identity) -> None:
        run = RunDirectory(self._root, identity)
        with suppress(FileNotFoundError):
            run.stop.touch()
        if self.wait(identity, STOP_WITHIN).running:
            raise RunnerUnavailable(f"{identity.name} doesn't end")
        self._end_strays(identity)

    def remove(self, identity: Identity) -> None:
        self._end_strays(identity)

    def leftovers(self) -> list[Identity]:
        return directories(self._root)

    def _until_supervised(self, run: RunDirectory) -> None:
        """The supervisor has its lock: from here on the run can be found."""
        until = time.monotonic() + STARTED_WITHIN
        while self.find(run.identity).lost:
            if time.monotonic() > until:
                raise RunnerUnavailable(f"the supervisor of {run.identity.name} didn't begin")
            time.sleep(LOOK_FIRST)

    def _bubblewrap(self) -> Bubblewrap | None:
        """The sandbox, looked for until there is one: it may be installed while this goes on."""
        if self._sandbox is not False and self._found is None:
            try:
                self._found = sandbox.find()
            except SandboxMissing:
                if self._sandbox:
                    raise
        return self._found

    def _end_strays(self, identity: Identity) -> None:
        """Processes of a run whose supervisor was killed before it had ended them all."""
        if self.find(identity).exit is not None:
            return
        if os.geteuid() == 0:
            _end_all_of(uid_of(self._root, identity.job_id))
        mark = f"{supervisor.MARK}={mark_of(self._root, identity)}".encode()
        clean = 0
        while clean < CLEAN_LOOKS:
            clean = 0 if _end_marked(mark) else clean + 1
            time.sleep(LOOK_FIRST)


def _environment(spec: Spec, directory: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TZ") if name in os.environ}
    return {**kept, "HOME": directory, "TMPDIR": "/tmp", "KAPPA_DIR": directory, **spec.environment}  # noqa: S108


def _end_all_of(uid: int) -> None:
    """Kill every process of a run's own user: in one call, from which no fork gets away."""
    killed = False
    while not killed:  # one of them may kill the killer first
        killer = subprocess.run(["/bin/sh", "-c", "kill -s KILL -- -1"], user=uid, group=uid, extra_groups=[],
                                stdin=subprocess.DEVNULL, capture_output=True, check=False, cwd="/")  # fmt: skip
        if killer.returncode > 0:
            raise RunnerUnavailable(f"the processes of user {uid} can't be ended: {killer.stderr.decode().strip()}")
        killed = killer.returncode == 0


def _end_marked(mark: bytes) -> int:
    """Kill who inherited a run's mark. One look may miss those that were born behind its back."""
    found = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid() and _is_marked(entry.name, mark):
            found += 1
            with suppress(OSError):
                os.kill(int(entry.name), signal.SIGKILL)
    return found


def _is_marked(pid: str, mark: bytes) -> bool:
    try:
        return mark in Path("/proc", pid, "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _spawn(run: RunDirectory) -> None:
    child = subprocess.Popen(
        [sys.executable, "-IS", supervisor.__file__, str(run.private)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    child.wait()  # it leaves its real self behind


def _processes_of(uid: int) -> int:
    """How many processes and threads a user has: the limit counts them all."""
    count = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if entry.stat().st_uid == uid:
                    count += sum(1 for _ in (entry / "task").iterdir())
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return count if most == resource.RLIM_INFINITY else min(count, most)
