"""What the application keeps for a time only."""

from datetime import timedelta
from pathlib import Path

import psycopg

from kappa.app import retention, wiring
from kappa.app.settings import Settings
from kappa.engine.testing import maintain
from kappa.pg import Database
from kappa.pg.queries import Row

INSERT = (
    "INSERT INTO kappa.audit (at, who, action, target) "
    "SELECT now() - make_interval(days => %s), 'ada', 'job.cancel', n::text FROM generate_series(1, %s) AS n"
)


async def test_the_audit_log_is_kept_as_long_as_the_setting_says(
    url: str, home: Path, connection: psycopg.Connection[Row]
) -> None:
    engine = wiring.build_engine(Settings(home=home, audit_days=30), Database(url))
    connection.execute(INSERT, [40, 2 * retention.BATCH + 1])
    connection.execute(INSERT, [20, 3])

    async def left(later: timedelta) -> object:
        await maintain(engine, later=later, only=lambda name: name == "retention")
        row = connection.execute("SELECT count(*) FROM kappa.audit").fetchone()
        assert row is not None
        return row[0]

    assert await left(timedelta(0)) == 3
    assert await left(timedelta(days=9)) == 3
    assert await left(timedelta(days=11)) == 0


def test_a_year_is_the_default(home: Path) -> None:
    assert Settings(home=home).audit_days == 365
