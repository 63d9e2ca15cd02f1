"""Runs tools as containers of an engine on this host, Docker or Podman.

The engine keeps a container and its exit code, so there is no supervisor: whoever waits for a run copies its logs,
keeps its time and measures what it wrote, and the next one goes on where the last one stopped. What the engine can't
tell afterwards stands in the run's private directory: why it was ended, and `exit.json`, written once.

A container is started at most once: creating and starting it are done under a lock in the run's directory.
"""

import fcntl
import json
import os
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kappa.engine.tools.container_engine import (
    CommandUnusable,
    Container,
    ContainerEngine,
    ImageMissing,
    NameTaken,
    Refused,
)
from kappa.engine.tools.container_host import ControlGroup, Witness, engine_url
from kappa.engine.tools.contract import LOG_LIMIT
from kappa.engine.tools.run import (
    LOST,
    MEGABYTE,
    RUNNING,
    Exit,
    Found,
    Identity,
    RunDirectory,
    RunnerUnavailable,
    Spec,
    installation,
    uid_of,
    write_whole,
)
from kappa.engine.tools.supervisor import takes_more

INSIDE = "/kappa"
"""Where a tool sees its directory."""
LOGS_AT_MOST = "64m"
"""What the engine keeps of a run's output: enough that its beginning is still there when it is first asked for."""
LOOK_FIRST = 0.01
LOOK_LAST = 0.25
LOGS_FIRST = 0.05
LOGS_LAST = 0.5
LOGS_WITHIN = 2.0
LAST_LOGS_WITHIN = 20.0
MEASURE_EVERY = 1.0
GONE_FOR = 8.0
"""So long the engine may say that something runs which is no longer there: it has to notice first."""
LOCKED_WITHIN = 60.0
STOP_WITHIN = 30.0
KILLED = 128 + 9
LAST_SIGNAL = 64
NOTHING = "ro,noexec,nosuid,nodev,size=4k"


@dataclass(slots=True)
class Watch:
    """What one who waits for a run has to remember of it."""

    witness: Witness | None = None
    gone_since: float | None = None
    logs_at: float = 0.0
    logs_every: float = LOGS_FIRST
    measure_at: float = 0.0


class ContainerRunner:
    """Containers without a network, without privileges, and with a root that can't be written to."""

    def __init__(self, root: Path, url: str | None = None) -> None:
        self._root = root
        if (url := url or engine_url()) is None:
            raise RunnerUnavailable("there is no container engine here")
        self._engine = ContainerEngine(url)
        self._installation = installation(root)
        self._watches: dict[Identity, Watch] = {}

    def close(self) -> None:
        self._engine.close()

    def name(self, identity: Identity) -> str:
        """Engines are shared, and job ids are not unique between installations."""
        return f"{identity.name}-{self._installation}"

    def start(self, spec: Spec) -> None:
        run = RunDirectory(self._root, spec.identity)
        with _locked(run):
            seen = self._engine.look(self.name(spec.identity))
            if run.read_exit() is not None or (seen is not None and seen.began):
                return
            if run.stop.exists():
                run.write_exit(Exit(stopped=True))
                return
            try:
                if seen is not None:  # made by one who died before it could be started, for a directory of the past
                    self._engine.remove(self.name(spec.identity))
                self._create(spec, run)
                self._engine.start(self.name(spec.identity))
            except NameTaken:
                return  # another one who can't see this lock was quicker: it is found now
            except Refused as refusal:
                run.write_exit(Exit(not_started=_refusal(refusal, spec)))
                self._remove(spec.identity)
            except RunnerUnavailable:
                with suppress(RunnerUnavailable):
                    self._remove(spec.identity)
                raise

    def find(self, identity: Identity) -> Found:
        return self._look(RunDirectory(self._root, identity))[0]

    def wait(self, identity: Identity, seconds: float) -> Found:
        run = RunDirectory(self._root, identity)
        until, pause = time.monotonic() + seconds, LOOK_FIRST
        while True:
            found, seen = self._look(run)
            if seen is not None and found.running and self._keep(run, seen):
                pause = LOOK_FIRST
            left = until - time.monotonic()
            if not found.running or left <= 0:
                return found
            time.sleep(min(pause, left))
            pause = min(2 * pause, LOOK_LAST)

    def stop(self, identity: Identity) -> None:
        run = RunDirectory(self._root, identity)
        with suppress(FileNotFoundError):
            run.stop.touch()
        seen = self._engine.look(self.name(identity))
        if seen is not None and seen.running:
            self._end(run, Exit(stopped=True))
            self._look(run)  # takes its last words
        elif seen is not None and not seen.ended:
            self._remove(identity)

    def remove(self, identity: Identity) -> None:
        self._remove(identity)

    def leftovers(self) -> list[Identity]:
        labels = self._engine.labelled(f"kappa.installation={self._installation}")
        return sorted(Identity(int(each["kappa.job"]), int(each["kappa.attempt"])) for each in labels)

    # What there is

    def _look(self, run: RunDirectory) -> tuple[Found, Container | None]:
        if (ended := run.read_exit()) is not None:
            return Found(running=False, exit=ended), None
        seen = self._engine.look(self.name(run.identity))
        if seen is None:
            # It may have been settled and removed between the two looks.
            return Found(running=False, exit=run.read_exit()), None
        if seen.ended:
            return self._settle(run, seen), seen
        if seen.running:
            return (LOST if self._is_abandoned(run.identity, seen) else RUNNING), seen
        return (RUNNING if _is_locked(run) else LOST), None  # made, and being started, or never to be

    def _is_abandoned(self, identity: Identity, seen: Container) -> bool:
        """Whether the engine says "running" of something that has ended, or whose end nobody will ever tell.

        Podman does so for ever once the monitor of a container was killed.
        """
        watch = self._watches.setdefault(identity, Watch())
        if watch.witness is None or watch.witness.pid != seen.pid:
            watch.witness = Witness.of(seen.pid, seen.id)
        if watch.witness is None and not ControlGroup(self.name(identity)).exists():
            return False  # the engine is elsewhere, and must be believed
        if watch.witness is not None and watch.witness.lives():
            watch.gone_since = None
            return watch.witness.is_orphan()
        if watch.gone_since is None:
            watch.gone_since = time.monotonic()
        return time.monotonic() - watch.gone_since > GONE_FOR

    def _settle(self, run: RunDirectory, seen: Container) -> Found:
        """It has ended: take what it said, and write down how it ended, once."""
        if seen.exit_code < 0:
            return LOST  # the engine doesn't know
        with suppress(FileNotFoundError), _locked(run):
            if (ended := run.read_exit()) is None:
                self._copy_logs(run, LAST_LOGS_WITHIN)
                ended = self._exit(run, seen)
                run.write_exit(ended)
            self._watches.pop(run.identity, None)
            return Found(running=False, exit=ended)
        return Found(running=False, exit=self._exit(run, seen))  # its directory is gone

    def _exit(self, run: RunDirectory, seen: Container) -> Exit:
        code = seen.exit_code
        plain = Exit(signal=code - 128) if 128 < code <= 128 + LAST_SIGNAL else Exit(code=code)
        # If it ended by itself before it could be killed, then that is how it ended.
        if code == KILLED and (why := _read_reason(run)) is not None:
            return replace(why, signal=plain.signal)
        group = ControlGroup(self.name(run.identity))
        if code and (seen.out_of_memory or group.ran_out_of_memory()):
            return replace(plain, out_of_memory=True)
        if code == KILLED and group.was_full(seen.memory):
            return replace(plain, out_of_memory=True)
        return plain

    # What is done while it runs

    def _keep(self, run: RunDirectory, seen: Container) -> bool:
        """Take what it said, and keep its limits; true if it was ended."""
        now, watch = time.monotonic(), self._watches.setdefault(run.identity, Watch())
        if now >= watch.logs_at:
            with suppress(FileNotFoundError), _locked(run):
                self._copy_logs(run, LOGS_WITHIN)
            took = time.monotonic() - now
            # An engine that has to read through a flood for it isn't asked again and again.
            watch.logs_at = time.monotonic() + max(watch.logs_every, 5 * took)
            watch.logs_every = min(2 * watch.logs_every, LOGS_LAST)
        ran = (datetime.now(UTC) - seen.started_at).total_seconds()
        if ran > float(seen.labels["kappa.timeout"]):
            self._end(run, Exit(timed_out=True))
            return True
        if now >= watch.measure_at:
            watch.measure_at = now + MEASURE_EVERY
            most = int(seen.labels["kappa.output_mb"])
            if takes_more(run.path, most * MEGABYTE):
                self._end(run, Exit(over_limit=f"it wrote more than {most} MB"))
                return True
        return False

    def _copy_logs(self, run: RunDirectory, within: float) -> None:
        """Go on where the files end. The lock must be held."""
        files = {stream: run.log(stream) for stream in ("stdout", "stderr")}
        have = {stream: path.stat().st_size if path.exists() else 0 for stream, path in files.items()}
        wanted = frozenset(stream for stream, size in have.items() if size < LOG_LIMIT)
        skip = dict(have)
        if not wanted:
            return
        for stream, piece in self._engine.logs(self.name(run.identity), wanted, within):
            passed = min(skip[stream], len(piece))
            skip[stream] -= passed
            if kept := piece[passed : passed + LOG_LIMIT - have[stream]]:
                with files[stream].open("ab") as file:
                    file.write(kept)
                have[stream] += len(kept)
                if all(have[each] >= LOG_LIMIT for each in wanted):
                    return

    def _end(self, run: RunDirectory, why: Exit) -> None:
        """Kill it: its first process takes all others along. Comes back when nothing of it runs any more."""
        _write_reason(run, why)
        until, pause = time.monotonic() + STOP_WITHIN, LOOK_FIRST
        known = self._watches.get(run.identity, Watch()).witness
        orphaned, complaint = False, None
        while (seen := self._engine.look(self.name(run.identity))) is not None and seen.running:
            witness = Witness.of(seen.pid, seen.id)
            known = known or witness
            if time.monotonic() > until:
                raise RunnerUnavailable(f"{run.identity.name} doesn't end") from complaint
            if known is None or (known.lives() and not known.is_orphan()):
                try:
                    self._engine.kill(self.name(run.identity))
                except RunnerUnavailable as error:
                    complaint = error
            elif witness is not None:
                witness.kill()  # by the engine it takes long: without a monitor it waits in vain for news of the end
                orphaned = True
            elif orphaned or self._is_abandoned(run.identity, seen):
                with suppress(FileNotFoundError), _locked(run):
                    self._copy_logs(run, LOGS_WITHIN)
                self._remove(run.identity)
                return
            time.sleep(pause)
            pause = min(2 * pause, LOOK_LAST)

    def _remove(self, identity: Identity) -> None:
        name = self.name(identity)
        until = time.monotonic() + STOP_WITHIN
        while True:
            try:
                self._engine.remove(name)
                break
            except RunnerUnavailable:
                # Podman needs a second try for one whose monitor was killed.
                if time.monotonic() > until or self._engine.look(name) is None:
                    raise
                time.sleep(LOOK_LAST)
        ControlGroup(name).remove()
        self._watches.pop(identity, None)

    # How it begins

    def _create(self, spec: Spec, run: RunDirectory) -> None:
        if spec.image is None:
            raise Refused("no image is named")
        traits = self._engine.traits()
        uid, gid = os.getuid(), os.getgid()
        if os.geteuid() == 0:
            uid = gid = uid_of(self._root, spec.identity.job_id)
            for path in (run.path, run.output, run.input, *run.input.iterdir(), run.request):
                os.chown(path, uid, gid, follow_symlinks=False)
        limits = spec.limits
        # Before 1.1.8 runc gives a tmpfs the mode of the image's directory, whatever is asked for. Docker can have the
        # run's user own it; Podman knows no such option, but lets the container's directories be changed: see below.
        owner = "" if traits.podman else f",uid={uid},gid={gid}"
        scratch = f"rw,noexec,nosuid,nodev,size={limits.tmp_mb}m,mode=1777{owner}"
        scratches = {path for path in self._engine.volumes(spec.image) if path != INSIDE} | {"/tmp"}  # noqa: S108
        host: dict[str, Any] = {
            "network_mode": "none",
            "read_only": True,
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges"],
            "binds": [f"{run.path}:{INSIDE}:rw,Z"],
            "tmpfs": {
                # On the disk, where the engine would make them, nobody limits what is written to an image's volumes.
                **dict.fromkeys(scratches, scratch),
                # Podman makes these writable where the root is not, executable and without a limit.
                **({"/run": NOTHING, "/var/tmp": NOTHING} if traits.podman else {}),  # noqa: S108
            },
            "cpu_period": 100_000,
            "cpu_quota": int(limits.cpus * 100_000),
            "mem_limit": f"{limits.memory_mb}m",
            "memswap_limit": f"{limits.memory_mb}m",
            "pids_limit": limits.pids,
            "log_config": {"type": "json-file", "config": {"max-size": LOGS_AT_MOST}},
        }
        if traits.podman and traits.plain_cgroups and os.geteuid() == 0:
            host["cgroup_parent"] = ControlGroup(self.name(spec.identity)).path
        command = {"entrypoint": list(spec.argv[:1]), "command": list(spec.argv[1:])} if spec.argv else {}
        self._engine.create(
            self.name(spec.identity), spec.image, host=host, as_self=traits.podman and traits.rootless,
            ulimits={"core": 0, "nofile": 1024, "nproc": max(4096, limits.pids), "fsize": limits.output_mb * MEGABYTE},
            user=f"{uid}:{gid}", working_dir=INSIDE,
            environment={"HOME": INSIDE, "TMPDIR": "/tmp", "KAPPA_DIR": INSIDE, **spec.environment},  # noqa: S108
            labels={
                "kappa.installation": self._installation,
                "kappa.job": str(spec.identity.job_id),
                "kappa.attempt": str(spec.identity.attempt),
                "kappa.timeout": str(spec.timeout),
                "kappa.output_mb": str(limits.output_mb),
            },
            **command,
        )  # fmt: skip
        if traits.podman:
            self._engine.open_directories(self.name(spec.identity), scratches - {"/run", "/var/tmp"})  # noqa: S108


def _refusal(refusal: Refused, spec: Spec) -> str:
    """In words for users."""
    if isinstance(refusal, ImageMissing):
        return f"the tool could not be started: the image {spec.image!r} is not there"
    if isinstance(refusal, CommandUnusable):
        what = f"the command {spec.argv[0]!r}" if spec.argv else "the command"
        return f"the tool could not be started: {what} can't be run in the image {spec.image!r}"
    return f"the tool could not be started: the container engine refuses it ({refusal})"


def _reason(run: RunDirectory) -> Path:
    return run.private / "ended.json"


def _write_reason(run: RunDirectory, why: Exit) -> None:
    """The first reason counts."""
    if not _reason(run).exists():
        with suppress(FileNotFoundError):
            write_whole(_reason(run), json.dumps(asdict(why)).encode())


def _read_reason(run: RunDirectory) -> Exit | None:
    try:
        return Exit(**json.loads(_reason(run).read_bytes()))
    except FileNotFoundError:
        return None


def _lock(run: RunDirectory) -> Path:
    return run.private / "container.lock"


@contextmanager
def _locked(run: RunDirectory) -> Generator[None]:
    """One at a time makes a container, starts it, or writes down what came of it."""
    until = time.monotonic() + LOCKED_WITHIN
    with _lock(run).open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise RunnerUnavailable(f"{run.identity.name} is in another's hands") from None
                time.sleep(LOOK_FIRST)
        yield


def _is_locked(run: RunDirectory) -> bool:
    try:
        with _lock(run).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
