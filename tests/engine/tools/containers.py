"""A Podman of the tests' own: its service on a socket, its storage and settings in a directory, and one image.

The image holds the host's Python and a busybox; nothing is fetched, and nothing of the host's configuration is touched.
"""

import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from kappa.engine.tools import Identity
from kappa.engine.tools.container_runner import ContainerRunner
from tests.ground import eventually, lacking, require_program

IMAGE = "kappa-test:1"
# crun refuses the control groups of some machines that runc takes; locks as files, since the default ones are shared
# by every Podman of this user, whatever its storage.
SETTINGS = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
netns = "none"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
runtime = "runc"
"""


NAMED = "KAPPA_TEST_CONTAINER_ENGINE"
"""Where the session's Podman listens, for processes that tests start."""


class Served(NamedTuple):
    """Where an engine listens, and the image that it has."""

    url: str
    image: str


def engine() -> Served:
    """The session's engine, as the fixture `podman` has started it; in processes that tests start, too."""
    return Served(os.environ[NAMED], IMAGE)


def runner(root: Path) -> ContainerRunner:
    return ContainerRunner(root, engine().url)


def processes(root: Path, identity: Identity) -> list[int]:
    """Everything that runs in a run's container."""
    return _grouped(f"/{runner(root).name(identity)}/libpod-")


def monitor(root: Path, identity: Identity) -> int | None:
    """The conmon that stands between Podman and a run."""
    found = _grouped(f"/{runner(root).name(identity)}/conmon")
    return found[0] if found else None


def _grouped(group: str) -> list[int]:
    """The processes of a control group that live."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                dead = (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
                if not dead and group in (entry / "cgroup").read_text():
                    found.append(int(entry.name))
    return found


class Podman:
    """A Podman that serves from a directory."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.socket = place / "engine.sock"
        self.url = f"unix://{self.socket}"
        program = require_program("podman")
        require_program("runc")
        self._command = [
            program, "--root", str(place / "root"), "--runroot", str(place / "run"), "--tmpdir", str(place / "tmp"),
        ]  # fmt: skip
        settings = place / "containers.conf"
        settings.write_text(SETTINGS)
        self._env = {**os.environ, "CONTAINERS_CONF": str(settings)}
        self._service: subprocess.Popen[bytes] | None = None

    def serve(self) -> None:
        with (self.place / "service.log").open("ab") as log:
            self._service = subprocess.Popen(
                [*self._command, "system", "service", "--time=0", self.url],
                env=self._env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True,
                cwd=self.place,  # monitors leave a file `oom` wherever they are
            )  # fmt: skip
        eventually(self.socket.exists, what="Podman's socket")

    def down(self) -> None:
        """The engine is gone; its containers stay."""
        if self._service is not None:
            self._service.send_signal(signal.SIGKILL)
            self._service.wait()
            self._service = None
        self.socket.unlink(missing_ok=True)

    def do(self, *args: str, check: bool = True) -> str:
        """Podman's own command, past the service."""
        done = subprocess.run(
            [*self._command, *args], env=self._env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def clear(self) -> None:
        """Leave nothing: no container, no mount, no file."""
        self.do("rm", "--force", "--all", "--time", "0", check=False)
        self.down()
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        for point in sorted((line.split()[1] for line in mounts), reverse=True):
            if point.startswith(str(self.place)):
                subprocess.run(["umount", "--lazy", point], check=False)
        shutil.rmtree(self.place, ignore_errors=True)


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    """A Podman with the image, for the whole session."""
    if os.geteuid() != 0:
        lacking("Podman as root")
    # Not below pytest's directory: a socket's path may have a hundred characters only.
    made = Podman(Path(tempfile.mkdtemp(prefix="kappa-podman-")))
    try:
        archive = made.place / "image.tar"
        pack_image(archive)
        made.do("import", str(archive), IMAGE)
        archive.unlink()
        made.serve()
        os.environ[NAMED] = made.url
        yield made
    finally:
        os.environ.pop(NAMED, None)
        made.clear()


@pytest.fixture(scope="session")
def container_runner_factory(podman: Podman) -> Callable[[Path], ContainerRunner]:
    """Makes the runner of a directory of runs."""
    return lambda root: ContainerRunner(root, podman.url)


def pack_image(archive: Path) -> None:
    """A root file system: busybox, and the host's own Python with what it is linked with."""
    python = Path("/usr/bin/python3").resolve()
    library = Path("/usr/lib") / python.name
    if not library.is_dir():
        lacking("Debian's python3")
    with tarfile.open(archive, "w") as tar:
        pack_busybox(tar)
        tar.add(python, "usr/bin/python3")
        tar.add(library, f"usr/lib/{python.name}", filter=_wanted)
        for path in sorted(_linked_with([python, *(library / "lib-dynload").glob("*.so")])):
            tar.add(path.resolve(), str(path).lstrip("/"))


def pack_busybox(tar: tarfile.TarFile, more: Mapping[str, int | str | None] | None = None) -> None:
    """The directories that every root has, and one program by its many names; `more`: other modes, links, or None."""
    busybox = require_program("busybox")
    root = {"tmp": 0o1777, "kappa": 0o755, "etc": 0o755, "proc": 0o755, "sys": 0o755, **(more or {})}
    for name, mode in root.items():
        if not isinstance(mode, int):
            if mode is not None:
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, mode
                tar.addfile(link)
            continue
        made = tarfile.TarInfo(name)
        made.type, made.mode = tarfile.DIRTYPE, mode
        tar.addfile(made)
    tar.add(busybox, "bin/busybox")
    for applet in subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split():
        if applet == "busybox":
            continue
        link = tarfile.TarInfo(f"bin/{applet}")
        link.type, link.linkname = tarfile.SYMTYPE, "busybox"
        tar.addfile(link)


def _wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    left_out = {"__pycache__", "dist-packages", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "test", "tkinter"}
    if left_out & set(Path(entry.name).parts) or "config-" in entry.name or entry.issym():
        return None
    return entry


def _linked_with(programs: list[Path]) -> set[Path]:
    said = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=True).stdout
    words = (word for line in said.splitlines() for word in line.split() if word.startswith("/"))
    return {Path(word) for word in words if not word.endswith(":")}
