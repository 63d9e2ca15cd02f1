"""The two roles of an embedded cluster: a superuser for its upkeep, and the ordinary one that Kappa works as.

The ordinary role owns its database and all in it. It can make no roles and no databases, and has no way to the
server's files and programs. In clusters of earlier versions `kappa` was the superuser; `demote` makes it what it is
elsewhere.
"""

import time
from collections.abc import Callable
from contextlib import suppress

import psycopg
from psycopg import errors as pg_errors
from psycopg import sql
from psycopg.sql import Identifier, Literal

from kappa.pg import queries
from kappa.pg.errors import ServerFailed

SUPERUSER = "postgres"
ROLE = "kappa"
DATABASE = "kappa"

LOCK_TIMEOUT = "5s"

statements = queries.beside(__file__)
WHAT_IS_THERE = statements["what_is_there"]
IS_FIRST_SUPERUSER = statements["is_first_superuser"]
DATABASES = statements["databases"]
OWNED_BY_FIRST_SUPERUSER = statements["owned_by_first_superuser"]
OTHER_SESSIONS = statements["other_sessions"]
END_OTHER_SESSIONS = statements["end_other_sessions"]

LEAVING = 1.0
"""Seconds that a session which was closed has to be gone."""

Session = psycopg.Connection[tuple[object, ...]]


class InUse(ServerFailed):
    """Others have sessions that would stay the superuser's."""


def ensure(connection: Session, password: str) -> None:
    """The ordinary role and its database, made if they are missing. As the superuser; several may be at it."""
    role, database = connection.execute(WHAT_IS_THERE.sql, {"role": ROLE, "database": DATABASE}).fetchone() or (0, 0)
    if not role:
        with suppress(pg_errors.DuplicateObject, pg_errors.UniqueViolation):
            connection.execute(_make_role(password))
    if not database:
        with suppress(pg_errors.DuplicateDatabase, pg_errors.UniqueViolation):
            connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(Identifier(DATABASE), Identifier(ROLE)))


def demote(connect: Callable[[str, str], Session], password: str, superuser_password: str) -> None:
    """Make the cluster of an earlier version one with both roles: `connect` takes a role and a database.

    The superuser gets another name, and an ordinary role takes over its name, its password and what it owns. Who
    knows the old address goes on. Each database is done whole or not at all, and what was done is left alone. Refused
    while an earlier version is connected: its sessions would stay the superuser's, and so would what they make.
    """
    try:
        connection = connect(SUPERUSER, "postgres")
    except psycopg.OperationalError:
        with _connect_home(connect) as connection:
            _refuse_others(connection)
            _split(connection, password, superuser_password)
        connection = connect(SUPERUSER, "postgres")
    with connection:
        connection.execute(END_OTHER_SESSIONS.sql)  # of who came in between
        databases = connection.execute(DATABASES.sql).fetchall()
        for name, give_away in databases:
            if give_away:
                _own_database(connection, str(name))
    for name, _ in databases:
        with connect(SUPERUSER, str(name)) as other, other.transaction():
            _give_away(other)


def _connect_home(connect: Callable[[str, str], Session]) -> Session:
    try:
        return connect(ROLE, DATABASE)
    except psycopg.OperationalError:
        return connect(ROLE, "postgres")  # it was never made


def _refuse_others(connection: Session) -> None:
    until = time.monotonic() + LEAVING
    while names := [str(name) for (name,) in connection.execute(OTHER_SESSIONS.sql).fetchall()]:
        if time.monotonic() > until:
            raise InUse(", ".join(dict.fromkeys(names)))
        time.sleep(0.02)


def _split(connection: Session, password: str, superuser_password: str) -> None:
    (is_first,) = connection.execute(IS_FIRST_SUPERUSER.sql).fetchone() or (False,)
    if not is_first:
        raise ServerFailed(
            f"the password of the server's superuser {SUPERUSER!r} is missing: put the file `superuser-password` back"
        )
    try:
        with connection.transaction():
            # No role can rename itself.
            other = Identifier("kappa_renames")
            connection.execute(sql.SQL("CREATE ROLE {} SUPERUSER").format(other))
            connection.execute(sql.SQL("SET LOCAL SESSION AUTHORIZATION {}").format(other))
            connection.execute(sql.SQL("ALTER ROLE {} RENAME TO {}").format(Identifier(ROLE), Identifier(SUPERUSER)))
            connection.execute(
                sql.SQL("ALTER ROLE {} PASSWORD {}").format(Identifier(SUPERUSER), Literal(superuser_password))
            )
            connection.execute(_make_role(password))
            connection.execute("RESET SESSION AUTHORIZATION")
            connection.execute(sql.SQL("DROP ROLE {}").format(other))
            if connection.info.dbname == DATABASE:
                _own_database(connection, DATABASE)
                _give_away(connection)
    except pg_errors.DuplicateObject:
        raise ServerFailed(
            f"the server has a role {SUPERUSER!r} already, which is the superuser's name from now on: rename it, and "
            f"start again"
        ) from None


def _make_role(password: str) -> sql.Composed:
    return sql.SQL(
        "CREATE ROLE {} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS PASSWORD {}"
    ).format(Identifier(ROLE), Literal(password))


def _own_database(connection: Session, name: str) -> None:
    connection.execute(sql.SQL("ALTER DATABASE {} OWNER TO {}").format(Identifier(name), Identifier(ROLE)))


def _give_away(connection: Session) -> None:
    """In a transaction: all that the superuser owns in this database."""
    connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(Literal(LOCK_TIMEOUT)))
    for (statement,) in connection.execute(OWNED_BY_FIRST_SUPERUSER.sql, {"role": ROLE}).fetchall():
        connection.execute(str(statement).encode())
