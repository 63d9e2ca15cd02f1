"""Artifacts: files that handlers write, and the small disk of their own that they are written to.

An artifact's bytes follow from its job's id, so whoever reads one knows whether it is whole. It has its final name only
when all of it is there. The disk is a tmpfs, which only root may mount; elsewhere it is a plain directory that can't be
filled, `refused` says why, and runs pass it on.
"""

import hashlib
import os
import secrets
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

KIND = "artifact"
DIRECTORY = "CHAOS_ARTIFACTS"
CARELESS = "CHAOS_CARELESS"
"""Test-only, in the environment: straight to the final name, and what is half counts as done."""

PAGE = 4096
SIZE = 3 * PAGE
DISK = "64m"
"""Room for what some 50,000 jobs of a run write, and filled in a moment."""

KEEP = 'read -r _; umount "$1" 2>/dev/null || umount -l "$1"'
"""Waits for the end of whoever mounted the disk, however that comes, be it by SIGKILL or a test's time-out."""


class Artifact(NamedTuple):
    """A file as it was found. `attempt` is that of a temporary name; None under the final one."""

    job: int
    attempt: int | None
    content: bytes


def content(job: int) -> bytes:
    return hashlib.shake_256(f"artifact {job}".encode()).digest(SIZE - job % PAGE)


def write(directory: Path, job: int, attempt: int, seconds: float) -> None:
    """Under a temporary name, then renamed. Only an attempt that is killed leaves the temporary name behind."""
    final = directory / f"{job}.{KIND}"
    if os.environ.get(CARELESS):
        with suppress(OSError):
            final.write_bytes(content(job))
        return
    temporary = directory / f"{job}.{attempt}.{secrets.token_hex(4)}.tmp"
    whole = content(job)
    try:
        with temporary.open("xb", buffering=0) as file:
            _write_all(file.fileno(), whole[: len(whole) // 2])
            if seconds:
                threading.Event().wait(seconds)
            _write_all(file.fileno(), whole[len(whole) // 2 :])
            os.fsync(file.fileno())
        temporary.rename(final)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def read(directory: Path) -> list[Artifact]:
    found: list[Artifact] = []
    for path in sorted(directory.iterdir()):
        job, *rest = path.name.split(".")
        found.append(Artifact(int(job), int(rest[0]) if path.suffix == ".tmp" else None, path.read_bytes()))
    return found


class Disk:
    """Where artifacts go."""

    def __init__(self, home: Path) -> None:
        self.artifacts = home / "artifacts"
        self.refused: str | None = "it is not mounted"
        self._home = home
        self._ballast = home / "ballast"
        self._keeper: subprocess.Popen[bytes] | None = None

    def mount(self) -> None:
        self._home.mkdir()
        options = f"size={DISK},mode=0755"
        try:
            made = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", options, "kappa-chaos", str(self._home)],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            self.refused = (
                None if made.returncode == 0 else made.stderr.strip() or f"mount ended with {made.returncode}"
            )
        except OSError as error:
            self.refused = str(error)
        if self.refused is None:
            self._keeper = subprocess.Popen(
                ["sh", "-c", KEEP, "sh", str(self._home)], stdin=subprocess.PIPE, cwd="/", start_new_session=True
            )
        self.artifacts.mkdir()

    def fill(self, pages: int) -> None:
        """Until only so many pages are free: fewer than an artifact has, so that some begin and can't go on."""
        assert self.refused is None, "a disk that others use is not filled"
        zeros = bytes(256 * PAGE)
        with self._ballast.open("ab", buffering=0) as file:
            with suppress(OSError):
                while True:
                    file.write(zeros)
            file.truncate(max(0, file.tell() - pages * PAGE))

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def unmount(self) -> None:
        if self._keeper is not None:
            self._keeper.communicate()
            self._keeper = None
