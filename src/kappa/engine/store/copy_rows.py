"""Rows of `jobs` in COPY's binary format.

The jobs of one call differ in their payloads only, so everything around a payload is made once. This is several times
quicker than adapting each value of each row.
"""

import struct
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from kappa.engine.store.jobs import NewJob

SIGNATURE = b"PGCOPY\n\xff\r\n\0" + struct.pack("!ii", 0, 0)
END = struct.pack("!h", -1)
COLUMNS = 9
CHUNK = 200
"""Rows in a piece: the server takes one in while the next is made."""

_JSONB = struct.Struct("!iB")

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def rows(lane: str, new: NewJob, payloads: Iterable[str]) -> Iterator[bytes]:
    """The whole stream, in pieces: jobs that are like `new` but for their payloads."""
    state = "queued" if new.run_at is None else "scheduled"
    head = struct.pack("!h", COLUMNS) + _text(lane) + _text(new.kind) + _text(state) + _small(new.priority)
    tail = _text(new.submitted_by) + _instant(new.run_at) + _interval(new.timeout)
    tail += _field(struct.pack("!i", new.max_attempts))
    yield SIGNATURE
    piece: list[bytes] = []
    for payload in payloads:
        data = payload.encode()
        # A jsonb value begins with its version.
        piece += (head, _JSONB.pack(len(data) + 1, 1), data, tail)
        if len(piece) >= CHUNK * 4:
            yield b"".join(piece)
            piece.clear()
    yield b"".join(piece) + END


def _field(data: bytes | None) -> bytes:
    return struct.pack("!i", -1) if data is None else struct.pack("!i", len(data)) + data


def _text(value: str | None) -> bytes:
    return _field(None if value is None else value.encode())


def _small(value: int) -> bytes:
    return _field(struct.pack("!h", value))


def _instant(value: datetime | None) -> bytes:
    return _field(None if value is None else struct.pack("!q", (value - _EPOCH) // _MICROSECOND))


def _interval(value: timedelta | None) -> bytes:
    return _field(None if value is None else struct.pack("!qii", value // _MICROSECOND, 0, 0))
