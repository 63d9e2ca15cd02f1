"""Removes the bytes of artifacts that no run refers to any more.

What is to be removed is written down first, in the transaction that deletes the rows; then the file is put aside,
looked for once more in the rows, and removed; then the note of it is. Whoever is interrupted anywhere is followed by
the next one, who finds the note. A file that was stored lately is left alone: its row may be still to come.
"""

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from psycopg import Connection

from kappa.engine.tools.collect import ArtifactStore
from kappa.pg import queries
from kappa.pg.queries import Row

sql = queries.beside(__file__)
EXPIRE = sql["expire"]
RECORD_UNKNOWN = sql["record_unknown"]
REMOVALS = sql["removals"]
REFERRED = sql["referred"]
FORGET = sql["forget"]

BATCH = 200
SETTLED = timedelta(days=1)
"""So old must a file be before it is taken for one that no row will come for; no run lasts as long."""


class Expiry:
    """The end of artifacts in one store."""

    def __init__(self, store: ArtifactStore, settled: timedelta = SETTLED) -> None:
        self._store = store
        self._settled = settled.total_seconds()

    def expire(self, connection: Connection[Row], keep: timedelta, now: datetime | None = None) -> int:
        """Delete the rows of some artifacts whose runs ended so long ago; how many. 0 if there are none left."""
        row = connection.execute(EXPIRE.sql, {"keep": keep, "now": now, "limit": BATCH}).fetchone()
        assert row is not None
        return row[0]

    def record_strays(self, connection: Connection[Row]) -> int:
        """Write down what lies in the store without a row, as after a crash between bytes and row."""
        found = 0
        batch: list[str] = []
        for path in self._store.files():
            if self._old(path):
                batch.append(path.name)
            if len(batch) >= BATCH:
                found += self._record(connection, batch)
                batch = []
        return found + self._record(connection, batch)

    def remove(self, connection: Connection[Row], go_on: Callable[[], None] = lambda: None) -> int:
        """Remove what is written down; how many files."""
        removed, after = 0, ""
        while rows := connection.execute(REMOVALS.sql, {"after": after, "limit": BATCH}).fetchall():
            for (sha256,) in rows:
                go_on()
                removed += self._remove(connection, sha256)
                after = sha256
        return removed

    def _record(self, connection: Connection[Row], sums: list[str]) -> int:
        return len(connection.execute(RECORD_UNKNOWN.sql, {"sums": sums}).fetchall()) if sums else 0

    def _remove(self, connection: Connection[Row], sha256: str) -> bool:
        place, aside = self._store.place(sha256), self._store.aside(sha256)
        if self._old(place) and not aside.exists():
            aside.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            place.rename(aside)
            if not self._old(aside):
                # It was stored again between the look and the move. Whoever did so gets it back.
                aside.replace(place)
        gone = False
        if connection.execute(REFERRED.sql, {"sha256": sha256}).fetchone() == (True,):
            # The same content came again meanwhile. By its name it is the same bytes, so either may stand there.
            if aside.exists():
                aside.replace(place)
        else:
            gone = aside.exists()
            aside.unlink(missing_ok=True)
        connection.execute(FORGET.sql, {"sha256": sha256})
        return gone

    def _old(self, path: Path) -> bool:
        try:
            return time.time() - path.stat().st_mtime > self._settled
        except FileNotFoundError:
            return False
