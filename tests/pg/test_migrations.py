"""Migrations: forward, once, whole or not at all, from however many processes at once."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.sql import SQL, Identifier

from kappa.pg import migrations
from kappa.pg.errors import (
    MigrationChanged,
    MigrationError,
    MigrationFailed,
    SchemaTooNew,
    SchemaTooOld,
)
from tests.conftest import Server
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


MARKED = "-- compatible: yes\n"


def test_a_newer_schema_is_accepted_where_every_step_beyond_is_marked_compatible(empty_url: str, steps: Path) -> None:
    older = migrations.component("part", steps)
    write(
        steps,
        _0003_third=MARKED + "ALTER TABLE kappa.one ADD COLUMN more int;",
        _0004_fourth=MARKED + "CREATE TABLE kappa.four ();",
    )
    run(empty_url, migrations.component("part", steps))
    assert run(empty_url, older) == []
    with psycopg.connect(empty_url) as connection:
        found = migrations.check(connection, [older])
    assert found == ["part/0003_third.sql", "part/0004_fourth.sql"]


@pytest.mark.parametrize("mark", ["", "-- compatible: no\n"], ids=["unmarked", "marked no"])
def test_one_step_beyond_that_is_not_marked_compatible_is_refused_by_name(
    empty_url: str, steps: Path, mark: str
) -> None:
    older = migrations.component("part", steps)
    write(
        steps,
        _0003_third=MARKED + "CREATE TABLE kappa.three ();",
        _0004_fourth=mark + "DROP TABLE kappa.one;",
        _0005_fifth=MARKED + "CREATE TABLE kappa.five ();",
    )
    run(empty_url, migrations.component("part", steps))
    with pytest.raises(
        SchemaTooNew, match=r"has migration 0004 of 'part', this program knows 0002 at most.*compatible"
    ):
        run(empty_url, older)
    with psycopg.connect(empty_url) as connection, pytest.raises(SchemaTooNew):
        migrations.check(connection, [older])


def test_what_is_known_is_still_compared_under_a_newer_compatible_schema(empty_url: str, steps: Path) -> None:
    write(steps, _0003_third=MARKED + "CREATE TABLE kappa.three ();")
    run(empty_url, migrations.component("part", steps))
    (steps / "0003_third.sql").unlink()
    write(steps, _0001_first=MARKED + "CREATE TABLE kappa.one (id int PRIMARY KEY);")
    with pytest.raises(MigrationChanged, match=r"part/0001_first\.sql differs"):
        run(empty_url, migrations.component("part", steps))


@pytest.mark.parametrize(
    "text",
    ["-- compatible: maybe\nSELECT 1", "-- compatible\nSELECT 1", "SELECT 1;\n-- compatible: yes\n", "\n" + MARKED],
)
def test_a_mark_that_would_not_count_is_refused(steps: Path, text: str) -> None:
    write(steps, _0003_third=text)
    with pytest.raises(MigrationError, match=r"part/0003_third\.sql.*first line.*-- compatible: yes"):
        migrations.component("part", steps)


FIRST_LEDGER = """
CREATE SCHEMA kappa;
CREATE TABLE kappa.migrations (
    component  text        NOT NULL,
    number     int         NOT NULL,
    name       text        NOT NULL,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (component, number)
);
CREATE TABLE kappa.one (id int PRIMARY KEY);
"""
"""A ledger as it was made before steps could be marked."""
FIRST_RECORD = "INSERT INTO kappa.migrations (component, number, name, checksum) VALUES ('part', %s, %s, %s)"


@pytest.fixture
def ordinary(server: Server, empty_url: str) -> Iterator[str]:
    """The address of the same database for a role that may make schemas in it and nothing else."""
    role = f"ordinary_{conninfo_to_dict(empty_url)['dbname']}"
    with server.superuser(empty_url) as admin:
        admin.execute(SQL("CREATE ROLE {} LOGIN PASSWORD 'ordinary'").format(Identifier(role)))
        database = Identifier(str(admin.info.dbname))
        admin.execute(SQL("GRANT CREATE ON DATABASE {} TO {}").format(database, Identifier(role)))
        yield make_conninfo(empty_url, user=role, password="ordinary")
        admin.execute(SQL("DROP OWNED BY {} CASCADE").format(Identifier(role)))
        admin.execute(SQL("DROP ROLE {}").format(Identifier(role)))


def first_ledger(url: str, part: migrations.Component) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(FIRST_LEDGER)
        connection.execute(FIRST_RECORD, [1, part.steps[0].name, part.steps[0].checksum])


def test_an_earlier_ledger_is_upgraded_by_an_ordinary_role_with_the_next_step(ordinary: str, steps: Path) -> None:
    write(steps, _0003_third=MARKED + "CREATE TABLE kappa.three ();")
    part = migrations.component("part", steps)
    first_ledger(ordinary, part)
    assert run(ordinary, part) == ["part/0002_second.sql", "part/0003_third.sql"]
    with psycopg.connect(ordinary) as connection:
        found = connection.execute("SELECT compatible FROM kappa.migrations ORDER BY number").fetchall()
    assert found == [(False,), (False,), (True,)]


def test_a_role_that_may_only_read_an_earlier_ledger_finds_it_up_to_date(
    empty_url: str, ordinary: str, steps: Path
) -> None:
    (steps / "0002_second.sql").unlink()
    part = migrations.component("part", steps)
    first_ledger(empty_url, part)
    with psycopg.connect(empty_url) as admin:
        role = Identifier(str(conninfo_to_dict(ordinary)["user"]))
        admin.execute(SQL("GRANT USAGE ON SCHEMA kappa TO {}").format(role))
        admin.execute(SQL("GRANT SELECT ON kappa.migrations TO {}").format(role))
    assert run(ordinary, part) == []
    with psycopg.connect(ordinary) as connection:
        assert migrations.check(connection, [part]) == []


def test_a_ledger_that_its_role_can_not_upgrade_is_named(empty_url: str, ordinary: str, steps: Path) -> None:
    part = migrations.component("part", steps)
    first_ledger(empty_url, part)
    with psycopg.connect(empty_url) as admin:
        role = Identifier(str(conninfo_to_dict(ordinary)["user"]))
        admin.execute(SQL("GRANT USAGE, CREATE ON SCHEMA kappa TO {}").format(role))
        admin.execute(SQL("GRANT SELECT, INSERT ON kappa.migrations TO {}").format(role))
    with pytest.raises(MigrationFailed, match=r"kappa\.migrations.*owner"):
        run(ordinary, part)


def test_a_step_that_an_earlier_version_recorded_counts_as_incompatible(empty_url: str, steps: Path) -> None:
    part = migrations.component("part", steps)
    run(empty_url, part)
    with psycopg.connect(empty_url) as connection:
        connection.execute(FIRST_RECORD, [3, "third", "whatever"])
    with pytest.raises(SchemaTooNew, match="migration 0003"):
        run(empty_url, part)


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
