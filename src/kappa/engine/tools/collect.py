"""Takes what a tool left out of its directory: the result, and the artifacts, each whole or not at all.

The tool may have left anything: links that lead out, devices, pipes that never end, a file that grows. Nothing here
follows a link, blocks, or reads more than it was told to.
"""

import hashlib
import os
import stat
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from pydantic import ValidationError

from kappa.engine.tools.contract import (
    PROGRESS_LIMIT,
    RESULT_LIMIT,
    Artifact,
    ContractBroken,
    Progress,
    artifact_parts,
)
from kappa.engine.tools.run import RunDirectory

PIECE = 1024 * 1024
ABANDONED_AFTER = 3600.0
"""Seconds. A draft is written to all the time until it gets its name."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An artifact that is wholly stored."""

    path: str
    media_type: str | None
    size: int
    sha256: str


class ArtifactStore:
    """Files by their content: a name means whole bytes."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def place(self, sha256: str) -> Path:
        return self._root / sha256[:2] / sha256

    def aside(self, sha256: str) -> Path:
        """Where a file waits for its removal."""
        return self._root / "removed" / sha256

    def files(self) -> Iterator[Path]:
        """Everything that is stored, each under its SHA-256."""
        yield from self._root.glob("[0-9a-f][0-9a-f]/" + 64 * "[0-9a-f]")

    def sweep(self) -> None:
        """Remove drafts whose writers are gone: nobody has written to them for long."""
        for draft in (self._root / "drafts").glob("*"):
            with suppress(FileNotFoundError):
                if time.time() - draft.stat().st_mtime > ABANDONED_AFTER:
                    draft.unlink()

    def take(self, source: int, size: int) -> str:
        """Store what is read from a file; gives its SHA-256. More or fewer bytes than it had at first are refused."""
        with self.draft(size) as draft:
            while piece := os.read(source, PIECE):
                draft.write(piece)
            return draft.keep()

    @contextmanager
    def draft(self, size: int) -> Generator["Draft"]:
        """A file to write so many bytes to. It is nothing until it is kept."""
        drafts = self._root / "drafts"
        drafts.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = drafts / os.urandom(16).hex()
        with path.open("xb") as file:
            try:
                yield Draft(self, path, file, size)
            finally:
                path.unlink(missing_ok=True)


class Draft:
    """An artifact that is being written."""

    def __init__(self, store: ArtifactStore, path: Path, file: BinaryIO, size: int) -> None:
        self._store = store
        self._path = path
        self._file = file
        self._size = size
        self._written = 0
        self._digest = hashlib.sha256()

    def write(self, piece: bytes) -> None:
        self._written += len(piece)
        if self._written > self._size:
            raise ContractBroken("an artifact grew while it was collected")
        self._digest.update(piece)
        self._file.write(piece)

    def keep(self) -> str:
        """Durable and under its name, which is given."""
        if self._written < self._size:
            raise ContractBroken("an artifact shrank while it was collected")
        self._file.flush()
        os.fsync(self._file.fileno())
        sha256 = self._digest.hexdigest()
        place = self._store.place(sha256)
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path.replace(place)
        _sync_directory(place.parent)
        return sha256


def read_result(run: RunDirectory) -> bytes | None:
    """`result.json` as the tool left it, one byte over the limit at most."""
    return _read(run.path, "result.json", RESULT_LIMIT)


def read_progress(run: RunDirectory) -> Progress | None:
    """What the tool says of its progress. It may be writing at this moment: what is no sense yet is nothing."""
    try:
        text = _read(run.path, "progress.json", PROGRESS_LIMIT)
        return None if text is None else Progress.model_validate_json(text)
    except (ContractBroken, ValidationError, ValueError):
        return None


def store_artifacts(run: RunDirectory, artifacts: list[Artifact], store: ArtifactStore, most: int) -> list[Stored]:
    """Every artifact that the result names, stored. They may have so many bytes together."""
    with closing(each_artifact(run, artifacts, most)) as found:
        return [Stored(one.path, one.media_type, one.size, store.take(one.number, one.size)) for one in found]


class Opened(NamedTuple):
    """An artifact in its run's directory, open for as long as it is looked at."""

    path: str
    media_type: str | None
    size: int
    number: int


def each_artifact(run: RunDirectory, artifacts: list[Artifact], most: int) -> Generator[Opened]:
    """One artifact after the other. They may have so many bytes together."""
    left = most
    for artifact in artifacts:
        parts = artifact_parts(artifact.path)
        try:
            number = _open_file(run.output, parts, artifact.path)
        except FileNotFoundError:
            raise ContractBroken(f"artifact {artifact.path!r} is not there") from None
        try:
            size = os.fstat(number).st_size
            if size > left:
                raise ContractBroken(f"the artifacts are larger than {most // 1024 // 1024} MB together")
            left -= size
            yield Opened("/".join(parts), artifact.media_type, size, number)
        finally:
            os.close(number)


def _read(base: Path, name: str, limit: int) -> bytes | None:
    try:
        number = _open_file(base, (name,), name)
    except FileNotFoundError:
        return None
    with open(number, "rb") as file:  # noqa: PTH123
        return file.read(limit + 1)


def _open_file(base: Path, parts: tuple[str, ...], name: str) -> int:
    """A regular file below a directory, opened without following any link on the way."""
    opened: list[int] = []
    try:
        opened.append(os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW))
        for part in parts[:-1]:
            opened.append(os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=opened[-1]))
            os.close(opened.pop(0))
        number = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=opened[-1])
    except FileNotFoundError:
        raise
    except OSError:
        raise ContractBroken(f"{name!r} is not a plain file in plain directories") from None
    finally:
        for place in opened:
            os.close(place)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise ContractBroken(f"{name!r} is not a plain file")
    return number


def _sync_directory(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
