"""The program that stands between a worker and a tool, and outlives the worker.

It runs as `python -IS supervisor.py PRIVATE_DIRECTORY` in a session of its own, imports the standard library only, and
holds a lock in the directory for as long as it lives: whoever finds the lock free and no `exit.json` knows that the
attempt is lost. It never trusts the tool: both outputs are read to their end and cut, the time is kept here, and at the
end nothing that the tool started is left.
"""

import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

LOG_LIMIT = 200_000
LOOK_EVERY = 0.1
LOCK_WITHIN = 6.0
MEASURE_EVERY = 1.0
LONGEST_PAUSE = 1.0
"""Between two checks of the process tree. A tool can make them slow, but not rare."""
SANDBOX_PROCESSES = 4
SANDBOX_MEMORY = 16 * 1024 * 1024
"""What bubblewrap's own processes hold at most."""
PIECE = 65536
BLOCK = 4096
MARK = "KAPPA_RUN"
"""In the environment of everything that the tool starts."""
FILTER_FD = 100
"""The descriptor from which bubblewrap reads which system calls are refused."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    if os.fork():
        os._exit(0)  # nobody's child: whoever started it can go, and need not bury it
    os.setsid()
    private = Path(sys.argv[1])
    lock = (private / "lock").open("a")
    if not take(lock):
        return  # another one supervises this run
    if (private / "exit.json").exists() or not is_at(lock, private / "lock"):
        return  # it has ended, or its directory was made anew while this one was on its way
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # stopping is asked for by a file, which no stranger can write
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    spec: dict[str, Any] = json.loads((private / "spec.json").read_bytes())
    ended = Run(private, spec).run()
    draft = private / ".exit.json"
    with draft.open("w") as file:
        json.dump(ended, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(private / "exit.json")


def take(lock: IO[str]) -> bool:
    """Lock it, unless another supervisor has it. Who only looks has it for an instant."""
    until = time.monotonic() + LOCK_WITHIN
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.002)
        else:
            return True


def is_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


class Run:
    """One run of one tool."""

    def __init__(self, private: Path, spec: dict[str, Any]) -> None:
        self._private = private
        self._spec = spec
        self._limits: dict[str, Any] = spec["limits"]
        self._deadline = time.monotonic() + spec["timeout"]
        self._output = Path(spec["directory"])
        self._kept = {"stdout": 0, "stderr": 0}
        self._logs = {name: (private / name).open("ab", buffering=0) for name in self._kept}

    def run(self) -> dict[str, Any]:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        if (self._private / "stop").exists():
            return {"stopped": True}
        try:
            child = subprocess.Popen(
                self._spec["command"],
                cwd=self._spec["directory"],
                env={**self._spec["environment"], MARK: self._spec["mark"]},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                pass_fds=self._filter(),
                preexec_fn=self._confine,
                user=self._spec["uid"],
                group=self._spec["gid"],
                extra_groups=[] if self._spec["uid"] is not None else None,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return {"not_started": f"the tool could not be started: {os.strerror(getattr(error, 'errno', 0) or 0)}"}
        why = self._follow(child)
        end_everything(child)
        self._drain_all(child)  # not before: a child that goes on writing would never let this end
        code = child.wait()
        ended: dict[str, Any] = {"code": code} if code >= 0 else {"signal": -code}
        if why == "stop":
            ended["stopped"] = True
        elif why == "time":
            ended["timed_out"] = True
        elif why is not None:
            ended["over_limit"] = why
        elif self._spec["sandboxed"] and 128 < code <= 128 + signal.SIGRTMAX:
            ended = {"signal": code - 128}  # as bubblewrap tells what its child died of
        return ended

    def _filter(self) -> list[int]:
        """The descriptors that bubblewrap is given. It closes them before the tool begins."""
        path = self._private / "filter"
        if not path.exists():
            return []
        number = os.open(path, os.O_RDONLY)
        os.dup2(number, FILTER_FD)
        os.close(number)
        return [FILTER_FD]

    def _confine(self) -> None:
        """In the child, before it becomes the tool."""
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        memory = self._limits["memory_mb"] * 1024 * 1024
        size = self._limits["output_mb"] * 1024 * 1024
        for what, limit in (
            (resource.RLIMIT_AS, memory),
            (resource.RLIMIT_FSIZE, size),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_NOFILE, 1024),
            (resource.RLIMIT_NPROC, self._spec["nproc"]),
        ):
            _, most = resource.getrlimit(what)
            limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
            resource.setrlimit(what, (limit, limit))

    def _follow(self, child: "subprocess.Popen[bytes]") -> str | None:
        """Read its outputs until it has ended; or say why it must end now."""
        assert child.stdout is not None
        assert child.stderr is not None
        names = {child.stdout.fileno(): "stdout", child.stderr.fileno(): "stderr"}
        poller = select.poll()
        for number in names:
            os.set_blocking(number, False)
            poller.register(number, select.POLLIN)
        measure_at = time.monotonic() + MEASURE_EVERY
        check_tree_at = time.monotonic()
        while True:
            for number, _ in poller.poll(LOOK_EVERY * 1000):
                if self._drain(number, names[number]) == 0:
                    poller.unregister(number)
                    del names[number]
            reap(child.pid)
            if child.poll() is not None:
                return None
            if not names:
                time.sleep(LOOK_EVERY)  # it closed both outputs and goes on
            if (self._private / "stop").exists():
                return "stop"
            if time.monotonic() >= self._deadline:
                return "time"
            if (begun := time.monotonic()) >= check_tree_at:
                if (why := self._exceeded_limit()) is not None:
                    return why
                now = time.monotonic()
                check_tree_at = now + min(LONGEST_PAUSE, max(LOOK_EVERY, 3 * (now - begun)))
            if time.monotonic() >= measure_at:
                measure_at = time.monotonic() + MEASURE_EVERY
                if takes_more(self._output, self._limits["output_mb"] * 1024 * 1024):
                    return f"it wrote more than {self._limits['output_mb']} MB"

    def _exceeded_limit(self) -> str | None:
        """Which limit the whole process tree exceeds: those that the kernel keeps are for each process."""
        pids, memory = self._limits["pids"], self._limits["memory_mb"] * 1024 * 1024
        max_tasks, max_bytes = pids, memory
        if self._spec["sandboxed"]:
            max_tasks, max_bytes = pids + SANDBOX_PROCESSES, memory + SANDBOX_MEMORY
        tree, tasks = descendants()
        if tasks > max_tasks:
            return f"it had more than {pids} processes and threads"
        # The resident size counts shared pages for each process, but is cheap to read.
        if sum(map(resident_bytes, tree)) > max_bytes and sum(map(proportional_bytes, tree)) > max_bytes:
            return f"its processes held more than {self._limits['memory_mb']} MB together"
        return None

    def _drain_all(self, child: "subprocess.Popen[bytes]") -> None:
        for name, stream in (("stdout", child.stdout), ("stderr", child.stderr)):
            assert stream is not None
            while self._drain(stream.fileno(), name):
                pass

    def _drain(self, number: int, name: str) -> int | None:
        """Read a piece, keep what fits. Gives its length, 0 at the end of the stream, None if nothing is there now."""
        try:
            piece = os.read(number, PIECE)
        except BlockingIOError:
            return None
        if room := LOG_LIMIT - self._kept[name]:
            self._logs[name].write(piece[:room])
            self._kept[name] += len(piece[:room])
        return len(piece)


def end_everything(tool: "subprocess.Popen[bytes]") -> None:
    """Kill the tool's process group, and every descendant wherever it went: they are all ours by adoption.

    A killed process hands its children on when it gets to run again, which on a busy machine is later than any look at
    the list of ours. So the end is when the kernel knows of no child at all, the tool's own process among them.
    """
    while True:
        if tool.poll() is None:
            kill(os.killpg, tool.pid)
        for pid in children():
            kill(os.kill, pid)
        reap(tool.pid)
        if tool.poll() is not None and not has_children():
            return
        time.sleep(0.01)


def kill(how: Callable[[int, int], None], pid: int) -> None:
    try:
        how(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def children() -> list[int]:
    """The processes whose parent this one is, born or adopted."""
    me = os.getpid()
    try:
        return list(map(int, Path(f"/proc/self/task/{me}/children").read_text().split()))
    except FileNotFoundError:  # a kernel without the list
        names = [path.name for path in Path("/proc").iterdir()]
        return [int(name) for name in names if name.isdigit() and _parent(name) == me]


def descendants() -> tuple[list[int], int]:
    """All processes below this one, and how many tasks (processes and threads) they have."""
    listed = Path("/proc/thread-self/children").exists()
    parents = {} if listed else {int(name): _parent(name) for name in _names("/proc") if name.isdigit()}
    found = children()
    tasks = 0
    for pid in found:  # which grows
        try:
            threads = _names(f"/proc/{pid}/task")
            tasks += len(threads)
            for thread in threads if listed else []:
                found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
        except OSError:
            continue  # it has ended
        found += [child for child, parent in parents.items() if parent == pid]
    return found, tasks


def _names(directory: str) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]


def resident_bytes(pid: int) -> int:
    """Bytes that a process has in memory or in swap, shared ones included."""
    return _bytes_in(f"/proc/{pid}/status", (b"VmRSS:", b"VmSwap:")) or 0


def proportional_bytes(pid: int) -> int:
    """The same, of shared ones its share."""
    counted = _bytes_in(f"/proc/{pid}/smaps_rollup", (b"Pss:", b"SwapPss:"))
    return resident_bytes(pid) if counted is None else counted


def _bytes_in(path: str, names: tuple[bytes, ...]) -> int | None:
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError:
        return None
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(names))


def _parent(pid: str) -> int:
    try:
        return int(Path("/proc", pid, "stat").read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def reap(but_not: int) -> None:
    """Bury adopted descendants that have ended. The tool itself is waited for by who started it."""
    for pid in children():
        if pid != but_not:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue


def takes_more(directory: Path, most: int) -> bool:
    """Whether what is below a directory takes more bytes than this, links not followed.

    A tool may go deeper than paths or descriptors reach, so only one directory is open at a time; and what is empty
    counts as a block, so that no tree is endless.
    """
    total = 0
    descent = Descent(directory)
    try:
        while descent.here is not None:
            below: list[str] = []
            try:
                with os.scandir(descent.here) as entries:
                    for entry in entries:
                        found = entry.stat(follow_symlinks=False)
                        total += max(found.st_blocks * 512, BLOCK)
                        if total > most:
                            return True
                        if stat.S_ISDIR(found.st_mode):
                            below.append(entry.name)
            except OSError:
                pass  # it changes while it is looked at
            descent.go_on(below)
    finally:
        descent.close()
    return False


class Descent:
    """Through all directories below one, each entered from its parent, and left to it."""

    def __init__(self, top: Path) -> None:
        self._top = top
        self._names: list[str] = []
        self._left: list[list[str]] = []
        """On each level, which directories haven't been entered."""
        self._inodes: list[int] = []
        self.here: int | None = None
        self._move(os.fspath(top))

    def close(self) -> None:
        if self.here is not None:
            os.close(self.here)
            self.here = None

    def go_on(self, below: list[str]) -> None:
        """To the next directory, if there is one; these are in the present one."""
        self._left.append(below)
        self._inodes.append(self._inode())
        while self._left:
            if not self._left[-1]:
                self._rise()
            elif self._move(name := self._left[-1].pop()):
                self._names.append(name)
                return
        self.close()

    def _rise(self) -> None:
        self._left.pop()
        self._inodes.pop()
        if not self._left:
            return
        self._names.pop()
        if self._move("..") and self._inode() == self._inodes[-1]:
            return
        # It was moved or removed while it was looked at: back from the top, as far as the way still exists.
        self.close()
        if not self._move(os.fspath(self._top)):
            self._left.clear()
            return
        for depth, name in enumerate(self._names):
            if not self._move(name):
                del self._names[depth:], self._left[depth + 1 :], self._inodes[depth + 1 :]
                break

    def _inode(self) -> int:
        assert self.here is not None
        return os.fstat(self.here).st_ino

    def _move(self, place: str) -> bool:
        try:
            there = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=self.here)
        except OSError:
            return False
        self.close()
        self.here = there
        return True


if __name__ == "__main__":
    main()
