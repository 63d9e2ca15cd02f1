"""Statements about files that were handed in."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from psycopg import Connection

from kappa.graph.identity import kept
from kappa.pg import queries
from kappa.pg.queries import Row

sql = queries.beside(__file__)
ADD = sql["add"]
KEEP = sql["keep"]
FIND = sql["find"]
BYTES = sql["bytes"]
KEPT_BYTES = sql["kept_bytes"]


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that was handed in, and what was counted in it. Pages that need OCR are guessed at."""

    key: UUID
    owner: str
    name: str
    sha256: bytes
    size: int
    media_type: str
    words: int
    chunks: int
    ocr_pages: int


def add(connection: Connection[Row], upload: Upload, data: bytes, keep: timedelta) -> None:
    """Keep it; one that is kept already is kept for as long as if it had just come."""
    params = {
        "key": upload.key, "owner": kept(upload.owner), "name": kept(upload.name), "sha256": upload.sha256,
        "media_type": upload.media_type, "bytes": data, "words": upload.words, "chunks": upload.chunks,
        "ocr_pages": upload.ocr_pages, "keep": keep,
    }  # fmt: skip
    connection.execute(ADD.sql, params, binary=True)


def keep(connection: Connection[Row], keys: Sequence[UUID], keep: timedelta) -> dict[UUID, Upload]:
    """Those that are there; each is kept for so long from now on."""
    return _found(connection.execute(KEEP.sql, {"keys": list(keys), "keep": keep}).fetchall())


def find(connection: Connection[Row], keys: Sequence[UUID]) -> dict[UUID, Upload]:
    return _found(connection.execute(FIND.sql, {"keys": list(keys)}).fetchall())


def kept_bytes(connection: Connection[Row], owner: str, but: UUID | None) -> int:
    """How much somebody has handed in that is kept; without this one."""
    row = connection.execute(KEPT_BYTES.sql, {"owner": kept(owner), "but": but}).fetchone()
    return int(row[0]) if row is not None else 0


def read_bytes(connection: Connection[Row], key: UUID) -> bytes | None:
    row = connection.execute(BYTES.sql, {"key": key}, binary=True).fetchone()
    return None if row is None else row[0]


def _found(rows: list[Row]) -> dict[UUID, Upload]:
    return {row[0]: Upload(*row) for row in rows}
