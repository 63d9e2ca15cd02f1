"""Kappa works as an ordinary role that owns its database; clusters where it was the superuser are changed."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from psycopg import errors as pg_errors

from kappa.app.wiring import COMPONENTS
from kappa.pg import migrate
from kappa.pg.embedded import EmbeddedServer, roles
from kappa.pg.errors import ServerFailed, ServerNotRunning
from tests.conftest import quick_directory
from tests.ground import PATIENCE, eventually
from tests.pg.earlier import NOBODY, make_earlier_cluster

OWNER = NOBODY if os.geteuid() == 0 else None

Session = psycopg.Connection[tuple[object, ...]]

THINGS = [
    "CREATE SCHEMA shop",
    'CREATE TABLE shop."of many words" (id serial PRIMARY KEY, name text UNIQUE, at int GENERATED ALWAYS AS IDENTITY)',
    "CREATE TABLE shop.days (at date) PARTITION BY RANGE (at)",
    "CREATE TABLE shop.day_1 PARTITION OF shop.days FOR VALUES FROM ('2026-01-01') TO ('2026-01-02')",
    "CREATE VIEW shop.seen AS SELECT * FROM shop.days",
    "CREATE MATERIALIZED VIEW shop.counted AS SELECT count(*) FROM shop.days",
    "CREATE SEQUENCE shop.numbers",
    "CREATE TYPE shop.mood AS ENUM ('well')",
    "CREATE TYPE shop.pair AS (a int, b int)",
    "CREATE TYPE shop.span AS RANGE (subtype = float8)",
    "CREATE DOMAIN shop.positive AS int CHECK (VALUE > 0)",
    "CREATE FUNCTION shop.one(a int, OUT b int) LANGUAGE sql SECURITY DEFINER AS 'SELECT a'",
    "CREATE PROCEDURE shop.act(text) LANGUAGE sql AS 'SELECT 1'",
    "CREATE AGGREGATE shop.total(int) (SFUNC = int4pl, STYPE = int)",
    "CREATE FUNCTION shop.equal(int, text) RETURNS boolean LANGUAGE sql AS 'SELECT true'",
    "CREATE OPERATOR shop.=== (LEFTARG = int, RIGHTARG = text, FUNCTION = shop.equal)",
    "CREATE OPERATOR FAMILY shop.family USING btree",
    "CREATE COLLATION shop.plain (locale = 'C')",
    "CREATE TEXT SEARCH CONFIGURATION shop.search (COPY = simple)",
    'CREATE STATISTICS shop.together ON id, at FROM shop."of many words"',
    "CREATE EXTENSION pg_trgm",
    "SELECT lo_create(4711)",
    "CREATE TABLE kept AS SELECT n FROM generate_series(1, 1000) AS n",
]


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with quick_directory(tmp_path_factory) as place:
        yield place


@pytest.fixture
def embedded(home: Path) -> Iterator[EmbeddedServer]:
    made = EmbeddedServer(home, say=print)
    yield made
    with suppress(ServerNotRunning):
        made.stop(force=True)


def ask(session: Session, statement: str) -> list[object]:
    return [row[0] for row in session.execute(statement.encode()).fetchall()]


def owned_by_superuser(session: Session) -> list[object]:
    """Whatever a superuser has in this database that is neither initdb's nor an extension's."""
    return ask(
        session,
        """SELECT pg_describe_object(classid, objid, objsubid)
             FROM (SELECT 'pg_class'::regclass AS classid, oid AS objid, 0 AS objsubid FROM pg_class WHERE relowner = 10
                   UNION ALL SELECT 'pg_proc'::regclass, oid, 0 FROM pg_proc WHERE proowner = 10
                   UNION ALL SELECT 'pg_type'::regclass, oid, 0 FROM pg_type WHERE typowner = 10
                   UNION ALL SELECT 'pg_namespace'::regclass, oid, 0 FROM pg_namespace WHERE nspowner = 10
                   UNION ALL SELECT 'pg_operator'::regclass, oid, 0 FROM pg_operator WHERE oprowner = 10
                   UNION ALL SELECT 'pg_opfamily'::regclass, oid, 0 FROM pg_opfamily WHERE opfowner = 10
                   UNION ALL SELECT 'pg_collation'::regclass, oid, 0 FROM pg_collation WHERE collowner = 10
                   UNION ALL SELECT 'pg_ts_config'::regclass, oid, 0 FROM pg_ts_config WHERE cfgowner = 10
                   UNION ALL SELECT 'pg_statistic_ext'::regclass, oid, 0 FROM pg_statistic_ext WHERE stxowner = 10
                   UNION ALL SELECT 'pg_largeobject'::regclass, oid, 0 FROM pg_largeobject_metadata WHERE lomowner = 10
                  ) AS o
            WHERE objid >= 16384
              AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.classid = o.classid AND d.objid = o.objid
                                 AND d.deptype IN ('e', 'i'))
              AND pg_describe_object(classid, objid, objsubid) NOT LIKE '%toast%'""",
    )


def privileges(session: Session) -> object:
    return session.execute(
        """SELECT rolsuper, rolcreaterole, rolcreatedb, rolreplication, rolbypassrls,
                  (SELECT count(*) FROM pg_auth_members WHERE member = r.oid)
             FROM pg_roles AS r WHERE rolname = current_user"""
    ).fetchone()


def test_kappa_is_an_ordinary_role_that_owns_its_database(embedded: EmbeddedServer) -> None:
    for url in (embedded.start(), embedded.url(by_socket=True)):
        with psycopg.connect(url, autocommit=True) as session:
            assert privileges(session) == (False, False, False, False, False, 0)
            assert ask(session, "SELECT datdba::regrole::text FROM pg_database WHERE datname = 'kappa'") == ["kappa"]
    with psycopg.connect(embedded.url(), autocommit=True) as session:
        migrate(session, COMPONENTS)
        assert ask(session, "SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'kappa'") == ["kappa"]


@pytest.mark.parametrize(
    "statement",
    [
        "COPY (SELECT 1) TO PROGRAM 'true'",
        "CREATE TEMP TABLE t (line text); COPY t FROM PROGRAM 'id'",
        "CREATE TEMP TABLE t (line text); COPY t FROM '/etc/passwd'",
        "SELECT pg_read_file('/etc/passwd')",
        "SELECT pg_ls_dir('.')",
        "SELECT lo_import('/etc/passwd')",
        "ALTER SYSTEM SET log_statement = 'all'",
        "CREATE ROLE other SUPERUSER",
        "CREATE DATABASE other",
        "ALTER ROLE kappa SUPERUSER",
        "ALTER ROLE postgres PASSWORD 'known'",
        "SET ROLE postgres",
        "SET SESSION AUTHORIZATION postgres",
        "CREATE FUNCTION f() RETURNS int LANGUAGE c AS '/lib/x86_64-linux-gnu/libc.so.6', 'getpid'",
        "SELECT rolpassword FROM pg_authid",
        "LOAD '/lib/x86_64-linux-gnu/libc.so.6'",
        "SET session_replication_role = replica",
    ],
)
def test_what_reaches_beyond_the_database_is_refused(url: str, statement: str) -> None:
    with (
        psycopg.connect(url, autocommit=True) as session,
        pytest.raises(pg_errors.InsufficientPrivilege),
    ):
        for one in statement.split("; "):
            session.execute(one.encode())


def test_sessions_of_its_own_can_be_ended_and_those_of_the_superuser_can_not(
    url: str, superuser: psycopg.Connection[tuple[object, ...]]
) -> None:
    with psycopg.connect(url, autocommit=True) as one, psycopg.connect(url, autocommit=True) as other:
        assert one.execute("SELECT pg_terminate_backend(%s, 60000)", [other.info.backend_pid]).fetchone() == (True,)
        with pytest.raises(psycopg.OperationalError):
            other.execute("SELECT 1")
        with pytest.raises(pg_errors.InsufficientPrivilege):
            one.execute("SELECT pg_terminate_backend(%s)", [superuser.info.backend_pid])


def test_the_superusers_password_is_another_one(embedded: EmbeddedServer, home: Path) -> None:
    url = embedded.start()
    with psycopg.connect(embedded.superuser_url()) as session:
        assert ask(session, "SELECT current_setting('is_superuser')") == ["on"]
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(url.replace("//kappa:", "//postgres:"))


def test_a_cluster_whose_kappa_is_the_superuser_is_changed_at_the_next_start_with_all_it_has(
    embedded: EmbeddedServer, home: Path
) -> None:
    make_earlier_cluster(home, OWNER, THINGS, databases=["another one"])
    for _ in range(2):
        embedded.start()
        for database in ("kappa", "another one"):
            with psycopg.connect(embedded.url(database=database), autocommit=True) as session:
                assert session.info.user == "kappa"
                assert privileges(session) == (False, False, False, False, False, 0)
                assert owned_by_superuser(session) == []
                assert session.execute("SELECT count(*), sum(n) FROM kept").fetchone() == (1000, 500500)
                # As an owner can, and nobody else.
                session.execute("ALTER TABLE shop.days ADD COLUMN more int; ALTER TABLE shop.days DROP COLUMN more")
                session.execute("CREATE SCHEMA mine; DROP SCHEMA mine; CREATE TABLE own (); DROP TABLE own")
                session.execute('INSERT INTO shop."of many words" (name) VALUES (gen_random_uuid()::text)')
        with psycopg.connect(embedded.superuser_url()) as session:
            assert ask(session, "SELECT rolname FROM pg_roles WHERE oid >= 16384 OR oid = 10 ORDER BY oid") == [
                "postgres",
                "kappa",
            ]
            owners = "SELECT datdba::regrole::text FROM pg_database WHERE datname IN ('kappa', 'another one')"
            assert ask(session, owners) == ["kappa", "kappa"]
        embedded.stop()


def test_an_address_that_was_noted_down_goes_on(embedded: EmbeddedServer, home: Path) -> None:
    make_earlier_cluster(home, OWNER, [])
    password = (home / "postgres" / "password").read_text()
    embedded.start()
    assert (home / "postgres" / "password").read_text() == password
    assert f"postgresql://kappa:{password}@127.0.0.1:{embedded.status().port}/kappa" == embedded.url()


def test_a_database_that_the_schema_is_in_already_is_migrated_further(embedded: EmbeddedServer, home: Path) -> None:
    make_earlier_cluster(home, OWNER, [])
    embedded.start()
    embedded.stop()
    # As the earlier version had it: everything made by a superuser.
    (home / "postgres" / "superuser-password").rename(home / "postgres" / "superuser-password.made")
    with psycopg.connect(url_of(embedded, home), autocommit=True) as session:
        migrate(session, COMPONENTS)
        assert owned_by_superuser(session) != []
    embedded.stop(force=True)
    with psycopg.connect(embedded.start(), autocommit=True) as session:
        assert owned_by_superuser(session) == []
        assert migrate(session, COMPONENTS) == []


def url_of(embedded: EmbeddedServer, home: Path) -> str:
    """The superuser's address of a server whose change of roles was cut short."""
    made, final = (home / "postgres" / name for name in ("superuser-password.made", "superuser-password"))
    made.rename(final)
    embedded.start()
    url = embedded.superuser_url()
    final.rename(made)
    return url


def test_a_change_of_roles_that_fails_leaves_the_cluster_as_it_was(
    embedded: EmbeddedServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_earlier_cluster(home, OWNER, ["CREATE TABLE kept AS SELECT 1 AS n", "CREATE ROLE postgres"])
    with pytest.raises(ServerFailed, match="the server has a role 'postgres' already"):
        embedded.start()
    password = (home / "postgres" / "password").read_text()
    with psycopg.connect(f"postgresql://kappa:{password}@127.0.0.1:{embedded.status().port}/kappa") as session:
        assert privileges(session) == (True, True, True, True, True, 0)
        assert ask(session, "SELECT n FROM kept") == [1]
        session.execute("DROP ROLE postgres")
    with psycopg.connect(embedded.start()) as session:
        assert privileges(session) == (False, False, False, False, False, 0)


def test_a_table_that_somebody_has_locked_is_named_and_the_next_start_goes_on(
    embedded: EmbeddedServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roles, "LOCK_TIMEOUT", "10ms")
    make_earlier_cluster(home, OWNER, ["CREATE TABLE kept AS SELECT 1 AS n", "CREATE ROLE postgres"])
    with pytest.raises(ServerFailed, match="already"):
        embedded.start()
    password = (home / "postgres" / "password").read_text()
    with psycopg.connect(f"postgresql://kappa:{password}@127.0.0.1:{embedded.status().port}/kappa") as session:
        session.execute("DROP ROLE postgres")
        session.commit()
        session.execute("SELECT * FROM kept")
        with pytest.raises(ServerFailed, match="while it is in use"):
            embedded.start()
    with psycopg.connect(embedded.start()) as session:
        assert privileges(session) == (False, False, False, False, False, 0)


def test_roles_are_not_changed_while_a_session_would_stay_the_superusers(
    embedded: EmbeddedServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of an earlier version's server, which holds no lock, and would own what it makes later."""
    make_earlier_cluster(home, OWNER, ["CREATE TABLE kept AS SELECT 1 AS n", "CREATE ROLE postgres"])
    with pytest.raises(ServerFailed, match="already"):
        embedded.start()
    password = (home / "postgres" / "password").read_text()
    address = f"postgresql://kappa:{password}@127.0.0.1:{embedded.status().port}/kappa"
    monkeypatch.setattr(roles, "LEAVING", 0.0)
    with psycopg.connect(address, autocommit=True, application_name="kappa queue") as session:
        session.execute("DROP ROLE postgres")
        with pytest.raises(ServerFailed, match="while it is in use by kappa queue: end that, and start again"):
            embedded.start()
        session.execute("CREATE TABLE made_later AS SELECT 1 AS n")
    monkeypatch.undo()
    with psycopg.connect(embedded.start()) as session:
        assert (privileges(session), owned_by_superuser(session)) == ((False, False, False, False, False, 0), [])


def test_several_that_start_at_once_change_the_roles_once(embedded: EmbeddedServer, home: Path) -> None:
    make_earlier_cluster(home, OWNER, THINGS)
    with ThreadPoolExecutor(3) as threads:
        starts = [threads.submit(EmbeddedServer(home).start) for _ in range(3)]
        urls = {start.result(timeout=PATIENCE) for start in starts}
    assert len(urls) == 1
    with psycopg.connect(urls.pop()) as session:
        assert (privileges(session), owned_by_superuser(session)) == ((False, False, False, False, False, 0), [])


def test_a_password_that_is_not_that_of_the_data_is_named(embedded: EmbeddedServer, home: Path) -> None:
    embedded.start()
    (home / "postgres" / "superuser-password").write_text("guess")
    with pytest.raises(ServerFailed, match="the server refused a password in"):
        embedded.start()
    eventually(lambda: embedded.status().running)
