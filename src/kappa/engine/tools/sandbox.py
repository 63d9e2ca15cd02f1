"""The sandbox of process tools: whether bubblewrap works here, how it is called, and what it shows of the host.

A tool sees `/usr`, a few files of `/etc`, the paths that the operator names, and its own directory. It has no network,
no capabilities, and no way to more namespaces.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kappa.engine.tools import seccomp
from kappa.engine.tools.run import FIRST_UID, MEGABYTE, RunnerUnavailable
from kappa.engine.tools.supervisor import FILTER_FD

INSIDE = "/tmp/kappa"  # noqa: S108
"""Where a sandboxed tool sees its directory."""
SHM_MB = 64
"""What `/dev/shm` holds, as in Docker."""
UNSANDBOXED = "KAPPA_UNSANDBOXED_TOOLS"
INSTALL = "install bubblewrap 0.8 or newer"
ALLOW = "have bubblewrap 0.8 or newer, and let it make namespaces (in a container: docs/deploy.md has the options)"

_PROBE_TIMEOUT = 30.0
_LINKED_DIRECTORIES = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
_ETC_PATTERNS = (
    "ImageMagick-*", "R", "alternatives", "ca-certificates", "fonts", "group", "hosts", "java-*", "ld.so.cache",
    "ld.so.conf", "ld.so.conf.d", "locale.alias", "localtime", "magic", "mime.types", "nsswitch.conf", "os-release",
    "papersize", "passwd", "perl", "pki/tls/certs", "protocols", "python3*", "services", "ssl/certs", "ssl/openssl.cnf",
    "terminfo", "texmf", "timezone",
)  # fmt: skip
"""What programs need of `/etc`. None of it is anybody's secret."""


class SandboxMissing(RunnerUnavailable):
    """Tools can't be sandboxed here and must not run without a sandbox."""

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason = reason
        self.remedy = remedy
        super().__init__(
            f"process tools are refused on this host because there is no sandbox: {reason}; {remedy}, or set "
            f"{UNSANDBOXED}=yes to run tools without one"
        )


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """How bubblewrap makes a sandbox here."""

    program: str
    filter: bytes | None
    """The system calls that are refused, if they can be."""
    nested: bool
    """As root: a second one, of the tool's own user, in which there are no more namespaces to be had."""

    def command(
        self,
        argv: Sequence[str],
        directory: Path,
        uid: int | None,
        *,
        tmp_mb: int,
        shown: Sequence[Path] = (),
        hidden: Sequence[Path] = (),
        filter_fd: int = FILTER_FD,
    ) -> list[str]:
        """The command of a tool, in a sandbox. As root it runs as another user."""
        last = ["--unshare-user", "--disable-userns"]
        refused = [] if self.filter is None else ["--seccomp", str(filter_fd)]
        outer = [
            self.program, "--die-with-parent", "--new-session",
            "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
            "--proc", "/proc",
            "--dev", "/dev", *_tmpfs(SHM_MB, "/dev/shm"), "--remount-ro", "/dev",  # noqa: S108
            *_tmpfs(tmp_mb, "/tmp"), *_host_mounts(shown, hidden),  # noqa: S108
            "--bind", str(directory), INSIDE, "--chdir", INSIDE, "--remount-ro", "/",
        ]  # fmt: skip
        if uid is None:
            return [*outer, *last, *refused, "--", *argv]
        become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs",
                  "--inh-caps=-all", "--bounding-set=-all", "--"]  # fmt: skip
        caps = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"]
        if not self.nested:
            return [*outer, *caps, *refused, "--", *become, *argv]
        inner = [self.program, "--die-with-parent", *last, "--dev-bind", "/", "/", "--chdir", INSIDE, *refused, "--"]
        return [*outer, *caps, "--", *become, *inner, *argv]

    @property
    def extra_processes(self) -> int:
        """How many of its processes count as the tool's user's."""
        return 1 if self.nested else 0


def find() -> Bubblewrap:
    """The sandbox that works here."""
    program = shutil.which("bwrap")
    if program is None:
        raise SandboxMissing("bubblewrap is not installed", INSTALL)
    errors: list[str] = []
    for nested in [True, False] if os.geteuid() == 0 else [False]:
        found = Bubblewrap(program, seccomp.program(), nested)
        error = _probe_error(found)
        if error is None:
            return found
        errors.append(error)
    raise SandboxMissing(f"{program} doesn't work ({errors[0]})", ALLOW)


class SandboxState(NamedTuple):
    """What becomes of process tools here."""

    sandboxed: bool
    summary: str
    reason: str | None = None
    """What is wrong with the sandbox, if there is none."""
    remedy: str | None = None
    """What to do to have one."""


def state(*, unsandboxed: bool) -> SandboxState:
    """What becomes of process tools here, if the operator lets them run without a sandbox or doesn't."""
    try:
        found = find()
    except SandboxMissing as missing:
        what = f"tools run unsandboxed ({UNSANDBOXED}=yes)" if unsandboxed else "process tools are refused"
        return SandboxState(sandboxed=False, summary=f"none: {what}", reason=missing.reason, remedy=missing.remedy)
    summary = "bubblewrap" if found.filter is not None else "bubblewrap, without seccomp: libseccomp is not installed"
    return SandboxState(sandboxed=True, summary=summary)


def _probe_error(found: Bubblewrap) -> str | None:
    """What is wrong with a sandbox in which a command was run."""
    try:
        done = _probe(found)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return said[-1].removeprefix("bwrap: ") if said else f"exit code {done.returncode}"


def _probe(found: Bubblewrap) -> "subprocess.CompletedProcess[bytes]":
    uid = FIRST_UID - 1 if os.geteuid() == 0 else None
    # A sandbox in which a tool can make a namespace of its own lets it be root there.
    tries = "if unshare --user true 2>/dev/null; then echo it allows user namespaces >&2; exit 1; fi"
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryFile() as file:
        if uid is not None:
            os.chown(directory, uid, uid)
        if found.filter is not None:
            file.write(found.filter)
            file.seek(0)
        number = file.fileno()
        command = found.command(["/bin/sh", "-c", tries], Path(directory), uid, tmp_mb=1, filter_fd=number)
        return subprocess.run(
            command, pass_fds=[number], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            timeout=_PROBE_TIMEOUT, check=False, cwd="/", env={"PATH": os.environ.get("PATH", os.defpath)},
        )  # fmt: skip


def _tmpfs(megabytes: int, path: str) -> list[str]:
    return ["--perms", "1777", "--size", str(megabytes * MEGABYTE), "--tmpfs", path]


def _host_mounts(shown: Sequence[Path], hidden: Sequence[Path]) -> Iterator[str]:
    """What a tool sees of the host, all of it to be read only."""
    shown = [path for path in shown if not any(path.resolve().is_relative_to(one) for one in hidden)]
    yield from ("--ro-bind", "/usr", "/usr")
    for name in _LINKED_DIRECTORIES:
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    settings = [path for pattern in _ETC_PATTERNS for path in sorted(Path("/etc").glob(pattern))]
    # Those directories that bubblewrap makes by itself are closed to a tool with a user of its own.
    for parent in sorted({parent for path in [*settings, *shown] for parent in path.parents[:-1]}):
        yield from ("--perms", "0755", "--dir", str(parent))
    for path in settings:
        yield from ("--ro-bind-try", str(path.resolve()), str(path))
    for path in shown:
        yield from ("--ro-bind-try", str(path), str(path))
    for place in (Path("/usr"), *shown):
        real = place.resolve()
        for path in hidden:
            # Below a path that is a link to elsewhere, what is hidden has another name.
            if path.exists() and path.is_relative_to(real):
                inside = str(place / path.relative_to(real))
                yield from ("--size", "4096", "--tmpfs", inside, "--remount-ro", inside)
