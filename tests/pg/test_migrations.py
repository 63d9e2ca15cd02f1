"""Migrations: forward, once, whole or not at all, from however many processes at once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from kappa.pg import migrations
from kappa.pg.errors import (
    MigrationChanged,
    MigrationError,
    MigrationFailed,
    SchemaTooNew,
    SchemaTooOld,
)
from tests.ground import Script, eventually


def write(directory: Path, **steps: str) -> Path:
    directory.mkdir(exist_ok=True)
    for name, text in steps.items():
        (directory / f"{name.removeprefix('_')}.sql").write_text(text)
    return directory


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    return write(
        tmp_path / "steps",
        _0001_first="CREATE TABLE kappa.one (id int PRIMARY KEY);",
        _0002_second="CREATE TABLE kappa.two (id int);\nINSERT INTO kappa.one VALUES (1), (2);",
    )


def tables(url: str) -> set[str]:
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'kappa'")
        return {row[0] for row in rows}


def run(url: str, *components: migrations.Component) -> list[str]:
    with psycopg.connect(url, autocommit=True) as connection:
        return [str(step) for step in migrations.migrate(connection, components)]


def test_pending_steps_are_applied_in_order_and_only_once(empty_url: str, steps: Path) -> None:
    part = migrations.component("part", steps)
    assert run(empty_url, part) == ["part/0001_first.sql", "part/0002_second.sql"]
    assert run(empty_url, part) == []
    assert tables(empty_url) == {"migrations", "one", "two"}


def test_components_are_counted_apart(empty_url: str, steps: Path, tmp_path: Path) -> None:
    run(empty_url, migrations.component("part", steps))
    other = migrations.component("other", write(tmp_path / "other", _0001_mine="CREATE TABLE kappa.mine ()"))
    assert run(empty_url, migrations.component("part", steps), other) == ["other/0001_mine.sql"]


def test_a_failing_step_leaves_nothing_of_the_whole_run_and_says_where_it_failed(empty_url: str, steps: Path) -> None:
    write(steps, _0003_third="CREATE TABLE kappa.three ();\n\nSELECT nonsense FROM kappa.one;")
    with pytest.raises(MigrationFailed, match=r"part/0003_third\.sql failed.*line 3: .*nonsense"):
        run(empty_url, migrations.component("part", steps))
    assert tables(empty_url) == set()


def test_a_changed_file_is_refused(empty_url: str, steps: Path) -> None:
    run(empty_url, migrations.component("part", steps))
    write(steps, _0002_second="CREATE TABLE kappa.two (id bigint);")
    with pytest.raises(MigrationChanged, match=r"part/0002_second\.sql differs"):
        run(empty_url, migrations.component("part", steps))


def test_line_ends_of_another_system_are_no_change(empty_url: str, steps: Path) -> None:
    run(empty_url, migrations.component("part", steps))
    for path in steps.iterdir():
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert run(empty_url, migrations.component("part", steps)) == []


def test_a_newer_schema_is_refused_by_migrate_and_by_check(empty_url: str, steps: Path) -> None:
    run(empty_url, migrations.component("part", steps))
    (steps / "0002_second.sql").unlink()
    older = migrations.component("part", steps)
    with pytest.raises(SchemaTooNew, match=r"has migration 0002 of 'part', this program knows 0001"):
        run(empty_url, older)
    with psycopg.connect(empty_url) as connection, pytest.raises(SchemaTooNew):
        migrations.check(connection, [older])


def test_check_tells_what_is_pending_and_passes_when_nothing_is(empty_url: str, steps: Path) -> None:
    part = migrations.component("part", steps)
    with psycopg.connect(empty_url, autocommit=True) as connection:
        with pytest.raises(SchemaTooOld, match="2 migrations are pending, beginning with part/0001_first"):
            migrations.check(connection, [part])
        migrations.migrate(connection, [part])
        migrations.check(connection, [part])


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("0004_gap", "stands where number 0003"), ("first", "is not named like"), ("0002_again", "stands where")],
)
def test_a_file_that_fits_no_place_is_refused(steps: Path, name: str, complaint: str) -> None:
    (steps / f"{name}.sql").write_text("SELECT 1")
    with pytest.raises(MigrationError, match=complaint):
        migrations.component("part", steps)


def test_the_second_of_two_migrators_waits_and_then_finds_nothing_to_do(empty_url: str, steps: Path) -> None:
    part = migrations.component("part", steps)
    with (
        psycopg.connect(empty_url) as holder,
        psycopg.connect(empty_url, autocommit=True) as watcher,
        ThreadPoolExecutor() as threads,
    ):
        holder.execute(migrations.LOCK.sql)
        rivals = [threads.submit(run, empty_url, part) for _ in range(2)]
        eventually(
            lambda: (
                watcher.execute(
                    "SELECT count(*) = 2 FROM pg_locks JOIN pg_database AS d ON d.oid = database"
                    " WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted"
                ).fetchone()
                == (True,)
            ),
            what="both rivals wait for the lock",
        )
        assert tables(empty_url) == set()
        holder.commit()
        applied = [rival.result() for rival in rivals]
    assert sorted(applied, key=len) == [[], ["part/0001_first.sql", "part/0002_second.sql"]]


MIGRATOR = """
    import pathlib, sys
    import psycopg
    from kappa.pg import component, migrate
    url, steps = sys.argv[1:]
    with psycopg.connect(url, autocommit=True) as connection:
        migrate(connection, [component("part", pathlib.Path(steps))])
"""


def test_a_migrator_killed_in_the_middle_leaves_nothing_behind(empty_url: str, steps: Path) -> None:
    write(steps, _0003_slow="SELECT pg_sleep(600);")
    with (
        Script(MIGRATOR, empty_url, steps) as migrator,
        psycopg.connect(empty_url, autocommit=True) as watcher,
    ):
        asleep = eventually(
            lambda: watcher.execute(
                "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
            ).fetchone(),
            what="the third step runs",
        )
        migrator.kill()
        # The server notices a vanished client only when it next speaks to it.
        watcher.execute("SELECT pg_terminate_backend(%s)", asleep)
        (steps / "0003_slow.sql").unlink()
        assert tables(empty_url) == set()
        assert len(run(empty_url, migrations.component("part", steps))) == 2
