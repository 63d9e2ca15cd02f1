"""A worker that restarts on a schema which a later version has migrated."""

import shutil
from pathlib import Path

import psycopg
import pytest

from kappa.engine import Client, Engine, JobContext, JobState, Lane, WorkerConfig
from kappa.engine import engine as own
from kappa.engine.testing import drain
from kappa.pg import component, migrate
from kappa.pg.errors import SchemaTooNew


def migrated_by_a_later_version(url: str, place: Path, text: str) -> None:
    shutil.copytree(Path(own.__file__).parent / "migrations", place)
    (place / f"{len(own.COMPONENT.steps) + 1:04d}_later.sql").write_text(text)
    with psycopg.connect(url, autocommit=True) as connection:
        assert len(migrate(connection, [component("engine", place)])) == 1


@pytest.fixture
def worker(url: str, engine: Engine) -> Engine:
    engine.lane(Lane("here", kinds=("add",)))

    @engine.job("add")
    def add(ctx: JobContext, numbers: list[int]) -> int:
        return sum(numbers)

    return engine


async def test_an_older_worker_starts_and_works_on_a_newer_schema_that_is_marked_compatible(
    url: str, worker: Engine, client: Client, tmp_path: Path
) -> None:
    migrated_by_a_later_version(
        url, tmp_path / "later", "-- compatible: yes\nALTER TABLE kappa.jobs ADD COLUMN colour text;"
    )
    worker.install()
    made = client.enqueue("add", [1, 2])
    await drain(worker, WorkerConfig(lead=False))
    assert (client.show(made.id).state, client.show(made.id).result) == (JobState.SUCCEEDED, 3)


def test_an_older_worker_refuses_a_newer_schema_that_is_not_marked(url: str, worker: Engine, tmp_path: Path) -> None:
    migrated_by_a_later_version(url, tmp_path / "later", "ALTER TABLE kappa.jobs ADD COLUMN colour text;")
    with pytest.raises(SchemaTooNew, match="not marked compatible"):
        worker.install()
