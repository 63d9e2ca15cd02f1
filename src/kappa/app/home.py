"""What a running server leaves in the Kappa home for `kg` to find: where it listens, and the operator's token."""

import json
import os
import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kappa.pg.locks import FileLock, is_held


@dataclass(frozen=True, slots=True)
class Running:
    """A server that said it runs."""

    pid: int
    url: str


def make(home: Path, *below: str) -> Path:
    """The home, or a directory in it, for its owner alone."""
    place = home.expanduser()
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in below:
        place /= name
        place.mkdir(exist_ok=True, mode=0o700)
    return place


def token_file(home: Path) -> Path:
    return home.expanduser() / "operator.token"


def read_token(home: Path) -> str | None:
    try:
        return token_file(home).read_text().strip() or None
    except FileNotFoundError:
        return None


def write_token(home: Path, secret: str) -> Path:
    path = token_file(home)
    _write(path, secret + "\n")
    return path


@contextmanager
def announced(home: Path, url: str) -> Generator[None]:
    """Let `kg` on this machine find the server while the block lasts."""
    directory = make(home, "servers")
    path = directory / f"{_new_name()}.json"
    draft = path.with_suffix(".draft")
    with FileLock.wait(draft, lambda: None):
        draft.write_text(json.dumps({"pid": os.getpid(), "url": url}))
        draft.replace(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def running(home: Path) -> list[Running]:
    """The servers of this home that are there, the longest-running first.

    Each holds a lock on what it said. Whether there is a process of its pid would tell nothing: another one may have
    it by now, or the same one in the next container.
    """
    found: list[tuple[float, Running]] = []
    for path in (home.expanduser() / "servers").glob("*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            if is_held(path):
                said = json.loads(path.read_text())
                found.append((path.stat().st_mtime, Running(said["pid"], said["url"])))
            elif not _is_of_earlier_version(path):
                path.unlink(missing_ok=True)
    return [server for _, server in sorted(found, key=lambda one: one[0])]


@contextmanager
def own_directory(home: Path, purpose: str) -> Generator[Path]:
    """An empty directory of this process; gone when the block ends, or when the next one finds its lock free."""
    place = make(home, purpose)
    for left in [path for path in place.iterdir() if path.is_dir()]:
        if not is_held(lock := left.with_suffix(".lock")) and not _is_of_earlier_version(left):
            shutil.rmtree(left, ignore_errors=True)
            lock.unlink(missing_ok=True)
    own = place / _new_name()
    with FileLock.wait(own.with_suffix(".lock"), lambda: None) as lock:
        own.mkdir(mode=0o700)
        try:
            yield own
        finally:
            shutil.rmtree(own, ignore_errors=True)
            lock.path.unlink(missing_ok=True)


def _is_of_earlier_version(path: Path) -> bool:
    """Whether a living server of an earlier version may have this: it held no lock, and gave things its pid's name."""
    return path.stem.isdecimal() and int(path.stem) != os.getpid() and alive(int(path.stem))


def alive(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _new_name() -> str:
    """One that no other process has, also none in another container with the same home."""
    return f"{os.getpid()}-{secrets.token_hex(4)}"


def _write(path: Path, text: str) -> None:
    """Whole or not at all, and only for its owner to read."""
    make(path.parent)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:  # noqa: PTH123
        file.write(text)
    draft.replace(path)
