"""What a running server leaves in the Kappa home for `kg` to find: where it listens, and the operator's token."""

import json
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Running:
    """A server that said it runs."""

    pid: int
    url: str


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
    path = _directory(home) / f"{os.getpid()}.json"
    _write(path, json.dumps({"pid": os.getpid(), "url": url}))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def running(home: Path) -> list[Running]:
    """The servers of this home whose process is there, the longest-running first."""
    found: list[tuple[float, Running]] = []
    for path in _directory(home).glob("*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            said = json.loads(path.read_text())
            if alive(said["pid"]):
                found.append((path.stat().st_mtime, Running(said["pid"], said["url"])))
            else:
                path.unlink(missing_ok=True)
    return [server for _, server in sorted(found, key=lambda one: one[0])]


@contextmanager
def own_directory(home: Path, purpose: str) -> Generator[Path]:
    """An empty directory of this process; gone when the block ends, or when the next one finds its process gone."""
    place = home.expanduser() / purpose
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    for left in place.iterdir():
        if left.name == str(os.getpid()) or (left.name.isdigit() and not alive(int(left.name))):
            shutil.rmtree(left, ignore_errors=True)
    own = place / str(os.getpid())
    own.mkdir(mode=0o700)
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _directory(home: Path) -> Path:
    return home.expanduser() / "servers"


def alive(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _write(path: Path, text: str) -> None:
    """Whole or not at all, and only for its owner to read."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:  # noqa: PTH123
        file.write(text)
    draft.replace(path)
