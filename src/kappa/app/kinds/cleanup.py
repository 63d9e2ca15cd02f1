"""The kind `artifact_cleanup`: what has expired goes, in small transactions, each of which leaves everything in order.

An artifact of the graph is one row with its bytes, and so is a document that was handed in. An artifact of a tool run
is a row and a file: the file is written down before it is removed. Backups that no restore will ask for go as well. Its
schedule is approved; what a person asks for, somebody else may have to approve: it deletes what others made.
"""

from datetime import datetime, timedelta
from typing import Annotated

from psycopg import Connection
from pydantic import BaseModel, Field

from kappa.app.kinds import ingestion, restore_files
from kappa.app.kinds.asked import Asked
from kappa.app.settings import Settings
from kappa.engine import Engine, JobContext, Schedule
from kappa.engine.tools import ArtifactStore, artifacts_of
from kappa.engine.tools.expiry import Expiry
from kappa.graph.store import expiry as graph_expiry
from kappa.pg import Database, queries
from kappa.pg.ops import Op, run
from kappa.pg.queries import Row

sql = queries.beside(__file__)
ANY_EXPIRED = sql["any_expired"]
FORGET_UPLOADS = sql["forget_uploads"]

BATCH = 100
HOURLY = Schedule("artifact_cleanup", "7 * * * *", "artifact_cleanup", {})


class CleanUp(Asked):
    tool_artifacts_days: Annotated[float, Field(gt=0, le=36_500)] | None = None
    """What runs left longer ago goes, too; without it, it is kept for ever."""


class CleanUpResult(BaseModel):
    skipped: str | None = None
    """Why there was nothing to do."""
    graph_artifacts: int = 0
    tool_artifacts: int = 0
    """Rows of tool runs' artifacts."""
    files: int = 0
    uploads: int = 0
    """Documents and backups that were handed in, and that no job needs."""


def declare(engine: Engine, settings: Settings) -> None:
    expiry = Expiry(ArtifactStore(artifacts_of(settings.home)))

    def artifact_cleanup(ctx: JobContext, asked: CleanUp | None) -> CleanUpResult:
        return clean_up(ctx, engine.database, expiry, asked or CleanUp())

    engine.job(
        "artifact_cleanup", timeout=timedelta(hours=1), idempotent=True, approval=True, needed=any_expired,
        needs_database=True,
    )(artifact_cleanup)  # fmt: skip
    engine.schedule(HOURLY)


def any_expired(asked: CleanUp | None) -> Op[bool]:
    """For `needed`: whether anything has. Only a run sees files without a row, so there is one a day anyway."""
    days = None if asked is None else asked.tool_artifacts_days
    params = {"keep": None if days is None else timedelta(days=days), "schedule": f"schedule {HOURLY.name}"}
    return Op(ANY_EXPIRED, params, lambda rows: rows[0][0])


def clean_up(ctx: JobContext, database: Database, expiry: Expiry, asked: CleanUp) -> CleanUpResult:
    done = CleanUpResult()

    def report(what: str) -> None:
        ctx.progress(done.graph_artifacts + done.tool_artifacts + done.uploads, None, what)
        ctx.raise_if_cancelled()

    with database.connect() as connection:
        total = graph_expiry.count_expired(connection)
        while deleted := graph_expiry.delete_expired(connection, BATCH):
            done.graph_artifacts += deleted
            ctx.progress(done.graph_artifacts, max(total, done.graph_artifacts), "artifacts of the graph")
            ctx.raise_if_cancelled()
        if asked.tool_artifacts_days is not None:
            keep = timedelta(days=asked.tool_artifacts_days)
            while deleted := expiry.expire(connection, keep):
                done.tool_artifacts += deleted
                report("artifacts of tool runs")
        expiry.record_strays(connection)
        done.files = expiry.remove(connection, lambda: report("files"))
        done.uploads = run(connection, restore_files.forget())
        while forgotten := forget_uploads(connection, BATCH):
            done.uploads += forgotten
            report("uploads")
    if not (done.graph_artifacts or done.tool_artifacts or done.files or done.uploads):
        done.skipped = "nothing has expired"
    return done


def forget_uploads(connection: Connection[Row], most: int, now: datetime | None = None) -> int:
    """Delete some documents that nobody submitted in time, and that no job needs; how many."""
    params = {"kinds": [ingestion.INGESTION, ingestion.INGEST_IMAGE], "most": most, "now": now}
    return len(connection.execute(FORGET_UPLOADS.sql, params).fetchall())
