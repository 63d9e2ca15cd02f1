"""Files and directories that a person named, found, and carried to the server one by one."""

import os
import stat
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from kappa.app.api.ingest_schemas import UPLOADS, UploadedView
from kappa.app.cli import show
from kappa.app.errors import AppError
from kappa.app.remote import Server, ServerRefused

STDIN = "-"
PIECE = 256 * 1024
LONGEST_NAME = 500
OF_THE_DOCUMENT = (413, 422, 501)
"""Refusals that say something of one document, and nothing of the next."""


class NothingToIngest(AppError):
    """No document is left."""


@dataclass(frozen=True, slots=True)
class Found:
    """A document, and what it is called; without a path it is standard input."""

    name: str
    path: Path | None

    @contextmanager
    def opened(self) -> Generator[tuple[BinaryIO, int | None]]:
        """Its bytes, and how many they are."""
        if self.path is None:
            yield sys.stdin.buffer, None
            return
        # Not to wait for ever where a pipe lies in the place of a file.
        number = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        with open(number, "rb") as file:  # noqa: PTH123
            status = os.fstat(number)
            if not stat.S_ISREG(status.st_mode):
                raise NothingToIngest("it is no file")
            yield file, status.st_size


@dataclass(frozen=True, slots=True)
class Missed:
    """What was not taken, and why."""

    name: str
    reason: str


def find(named: Sequence[str], stdin_name: str) -> tuple[list[Found], list[Missed]]:
    """The documents that were named; of a directory all files, whose names and directories don't begin with a dot."""
    found: dict[Path | None, Found] = {}
    missed: list[Missed] = []
    for one in named:
        if one == STDIN:
            found.setdefault(None, Found(stdin_name, None))
            continue
        path = Path(one)
        if path.is_dir():
            before = len(found)
            for file in _below(path, missed):
                found.setdefault(file.resolve(), Found(_name(path, file), file))
            if len(found) == before and not missed:
                missed.append(Missed(one, "there are no files in it"))
        else:
            found.setdefault(path.resolve(), Found(_sendable(path.name), path))
    return list(found.values()), missed


def _below(directory: Path, missed: list[Missed]) -> Iterator[Path]:
    def unreadable(error: OSError) -> None:
        missed.append(Missed(str(error.filename), error.strerror or type(error).__name__))

    for place, below, files in os.walk(directory, onerror=unreadable):
        below[:] = sorted(name for name in below if not name.startswith("."))
        yield from (Path(place, name) for name in sorted(files) if not name.startswith("."))


def _name(directory: Path, file: Path) -> str:
    return _sendable(str(Path(directory.resolve().name, file.relative_to(directory))))


def _sendable(name: str) -> str:
    """A file's name may be any bytes, and its path as long as it likes."""
    return name.encode("utf-8", "replace").decode()[-LONGEST_NAME:]


def carry(server: Server, found: Iterable[Found], missed: list[Missed]) -> list[UploadedView]:
    """Upload them one by one. One that can't be read, here or there, doesn't keep the others from it."""
    documents, uploaded = list(found), list[UploadedView]()
    with _bar(len(documents)) as tell:
        for document in documents:
            try:
                with document.opened() as (file, size):
                    pieces = _pieces(file, size, tell(document, size))
                    uploaded.append(server.upload(UPLOADS, UploadedView, {"name": document.name}, pieces, size))
            except OSError as error:
                missed.append(Missed(document.name, error.strerror or type(error).__name__))
            except NothingToIngest as error:
                missed.append(Missed(document.name, str(error)))
            except ServerRefused as error:
                if error.status not in OF_THE_DOCUMENT:
                    raise
                # The server names the document, and so does the one who tells this.
                missed.append(Missed(document.name, str(error).removeprefix(f"{document.name}: ")))
    return uploaded


def _pieces(file: BinaryIO, size: int | None, sent: Callable[[int], None]) -> Iterator[bytes]:
    left = size
    while left is None or left:
        piece = file.read(PIECE if left is None else min(PIECE, left))
        if not piece:
            if left is None:
                return
            raise NothingToIngest("it became shorter while it was read")
        left = None if left is None else left - len(piece)
        sent(len(piece))
        yield piece


@contextmanager
def _bar(documents: int) -> Generator[Callable[[Found, int | None], Callable[[int], None]]]:
    """A bar for the document that is under way, on a terminal."""
    progress = Progress(
        TextColumn("reading {task.fields[place]} of {task.fields[documents]}", markup=False), BarColumn(),
        DownloadColumn(), TextColumn("{task.fields[name]}", markup=False), console=show.err, transient=True,
        disable=not show.err.is_terminal,
    )  # fmt: skip
    place = 0
    with progress:
        bar = progress.add_task("", total=None, place=0, documents=documents, name="")

        def tell(document: Found, size: int | None) -> Callable[[int], None]:
            nonlocal place
            place += 1
            progress.reset(bar, total=size, place=place, documents=documents, name=show.printable(document.name))
            return lambda count: progress.advance(bar, count)

        yield tell
