"""The kind `restore`: a backup back into the graph, with all other lanes drained meanwhile.

The change, the job's success and letting the lanes go are one commit. Before it, whatever happens, the graph
is as it was; a worker that is killed leaves its lease, and when that has run out the lanes are let go and the job
begins anew.
"""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Annotated

from pydantic import BaseModel, Field

from kappa.app.kinds import restore_files
from kappa.app.kinds.asked import Asked
from kappa.engine import Engine, JobContext, JobFailed, LanesHeld, Snooze
from kappa.engine.holding import let_go, other_lanes_drained
from kappa.graph import backup
from kappa.graph.errors import BadBackup
from kappa.pg import Database

AGAIN = timedelta(seconds=5)


class Restore(Asked):
    """Which file, and how."""

    file: Annotated[int, Field(ge=1)]
    mode: backup.Mode


class RestoreResult(BaseModel):
    mode: backup.Mode
    epoch: int
    rows: dict[str, int]


def declare(engine: Engine) -> None:
    engine.job("restore", timeout=timedelta(hours=2), idempotent=True, needs_database=True)(
        Restorer(engine.database).restore
    )


class Restorer:
    """Restores into one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def restore(self, ctx: JobContext, asked: Restore) -> RestoreResult | Snooze:
        with self._database.connect() as reading:
            size = restore_files.read_size(reading, asked.file, ctx.job_id)
            if size is None:
                raise JobFailed("the backup of this job is not there any more: restore it anew", retry=False)
            try:
                with other_lanes_drained(ctx, self._database, lambda left: ctx.progress(0, size, _waits(left))):
                    said = _Progress(ctx, size)
                    with ctx.transaction() as connection:
                        done = backup.restore(
                            connection,
                            said.counted(restore_files.pieces(reading, asked.file)),
                            asked.mode,
                            said.step,
                            ctx.raise_if_cancelled,
                        )
                        connection.execute(restore_files.DROP.sql, {"file": asked.file})
                        let_go(connection, ctx)
            except LanesHeld:
                return Snooze(AGAIN)
            except BadBackup as error:
                raise JobFailed(str(error), retry=False) from error
        return RestoreResult(mode=asked.mode, epoch=done.epoch, rows=done.rows)


class _Progress:
    """Bytes that were read, and what is being done."""

    def __init__(self, ctx: JobContext, size: int) -> None:
        self._ctx = ctx
        self._size = size
        self._read = 0
        self._step = "reading"

    def counted(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self._ctx.raise_if_cancelled()
            self._read += len(piece)
            self._tell()
            yield piece

    def step(self, step: str) -> None:
        self._step = step
        self._tell()

    def _tell(self) -> None:
        self._ctx.progress(self._read, self._size, self._step)


def _waits(left: int) -> str:
    return f"waiting for {left} running {'job' if left == 1 else 'jobs'}"
