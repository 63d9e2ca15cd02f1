"""Whether a file is a whole backup, without a database."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from kappa.graph.backup.archive import PIECE, Header, Manifest, Reader
from kappa.graph.errors import BadBackup


def verify(pieces: Iterable[bytes]) -> tuple[Header, Manifest]:
    """What the backup says of itself, once all of it was read and found true."""
    reader = Reader(pieces)
    rows = dict.fromkeys(reader.header.tables, 0)
    for table, content in reader.tables():
        # In COPY's text form a line end inside of a value is written \n.
        rows[table] = sum(piece.count(b"\n") for piece in content)
    if rows != reader.manifest.rows:
        raise BadBackup("the backup is broken: it has not as many rows as its manifest says")
    return reader.header, reader.manifest


def pieces_of(path: Path) -> Iterator[bytes]:
    """A file, piece by piece."""
    try:
        with path.open("rb") as file:
            while piece := file.read(PIECE):
                yield piece
    except OSError as error:
        raise BadBackup(f"{path} can't be read: {error.strerror}") from None
