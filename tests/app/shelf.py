"""Artifacts of tool runs, as tests leave them behind."""

import os
import time
from pathlib import Path

import psycopg

from kappa.engine.tools import ArtifactStore, artifacts_of
from kappa.pg.queries import Row

Session = psycopg.Connection[Row]


class Shelf:
    """Artifacts of tool runs, as files and as rows."""

    def __init__(self, home: Path, connection: Session) -> None:
        self.store = ArtifactStore(artifacts_of(home))
        self.connection = connection
        connection.execute(
            "INSERT INTO kappa.tools (name, version, argv) VALUES ('wc', '1', '{wc}') ON CONFLICT DO NOTHING"
        )

    def put(self, content: bytes, *, days: float | None, fresh: bool = False) -> str:
        """A file, and a row of a run that ended so many days ago; without days, a file alone."""
        with self.store.draft(len(content)) as draft:
            draft.write(content)
            sha256 = draft.keep()
        if not fresh:
            old = time.time() - 2 * 86400
            os.utime(self.store.place(sha256), (old, old))
        if days is not None:
            self.connection.execute(
                "WITH run AS (INSERT INTO kappa.tool_runs (tool, version, status, finished_at) "
                "VALUES ('wc', '1', 'succeeded', now() - make_interval(secs => %s * 86400)) RETURNING id) "
                "INSERT INTO kappa.tool_artifacts (run_id, path, size, sha256) SELECT id, 'x', %s, %s FROM run",
                [days, len(content), sha256],
            )
        return sha256

    @property
    def files(self) -> set[str]:
        return {path.name for path in self.store.files()}

    @property
    def rows(self) -> set[str]:
        return {row[0] for row in self.connection.execute("SELECT sha256 FROM kappa.tool_artifacts")}

    @property
    def notes(self) -> set[str]:
        return {row[0] for row in self.connection.execute("SELECT sha256 FROM kappa.artifact_removals")}
