"""Brings a database's schema forward: numbered plain SQL files, a ledger, a lock, checksums.

A component (`engine`, `graph`, …) is a directory of files `0001_name.sql`, `0002_name.sql`, … without gaps.
All pending files of all components are applied in one transaction under an advisory lock: the schema moves
whole or not at all, any number of processes may migrate at once, and a pooler in transaction mode is no
hindrance.
The ledger `kappa.migrations` is the authority on what was applied. There is no way back, only forward.

A file whose first line is `-- compatible: yes` says that programs which don't know it can go on as before: it only adds
what they don't touch. The ledger keeps that, so an older program starts on a newer schema if every step beyond those it
knows is marked, and refuses it otherwise.
"""

import hashlib
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg

from kappa.pg import queries
from kappa.pg.errors import MigrationChanged, MigrationError, MigrationFailed, SchemaTooNew, SchemaTooOld
from kappa.pg.queries import Row

sql = queries.beside(__file__)
LEDGER_EXISTS = sql["ledger_exists"]
CREATE_SCHEMA = sql["create_schema"]
CREATE_LEDGER = sql["create_ledger"]
LEDGER_KNOWS_COMPATIBLE = sql["ledger_knows_compatible"]
UPGRADE_LEDGER = sql["upgrade_ledger"]
LOCK = sql["lock"]
APPLIED = sql["applied"]
RECORD = sql["record"]

log = logging.getLogger(__name__)

_MARK = re.compile(r"^--[ \t]*compatible\b[^\n]*", re.MULTILINE)
_MARKS = {"-- compatible: yes": True, "-- compatible: no": False}
_FILE = re.compile(r"^(?P<number>\d{4})_(?P<name>[a-z0-9_]+)\.sql$")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of one component."""

    component: str
    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def compatible(self) -> bool:
        """Whether programs that don't know this step can go on."""
        found = _MARK.search(self.text)
        if found is None:
            return False
        if found.start() > 0 or found[0].rstrip() not in _MARKS:
            raise MigrationError(
                f"{self} has the line {found[0]!r}: the mark must be the first line, as `-- compatible: yes` or "
                "`-- compatible: no`"
            )
        return _MARKS[found[0].rstrip()]

    def __str__(self) -> str:
        return f"{self.component}/{self.number:04d}_{self.name}.sql"


@dataclass(frozen=True, slots=True)
class SchemaState:
    """A database's schema beside what this program knows."""

    pending: list[Migration]
    newer: list[str]
    """Steps that this program doesn't know and can do without."""


@dataclass(frozen=True, slots=True)
class Component:
    """The steps of one component, in order."""

    name: str
    steps: tuple[Migration, ...]


def component(name: str, directory: Path) -> Component:
    """Read a component's directory. A file that fits no place in the sequence is an error."""
    steps: list[Migration] = []
    for path in sorted(directory.glob("*.sql")):
        found = _FILE.match(path.name)
        if found is None:
            raise MigrationError(f"{path} is not named like 0001_what_it_does.sql")
        # read_text makes every line end a \n, so a checkout on another system has the same checksum.
        steps.append(Migration(name, int(found["number"]), found["name"], path.read_text(encoding="utf-8")))
    for place, step in enumerate(steps, start=1):
        if step.number != place:
            raise MigrationError(f"{step} stands where number {place:04d} of {name!r} belongs")
        _ = step.compatible  # a bad mark fails here, in its author's tests, not in a migration
    return Component(name, tuple(steps))


def migrate(connection: psycopg.Connection[Row], components: Iterable[Component]) -> list[Migration]:
    """Apply what is pending and say what that was. The caller's connection must be outside a transaction."""
    components = list(components)
    done: list[Migration] = []
    with connection.transaction():
        connection.execute(LOCK.sql)
        # Only when missing: the owner of a database may have made the schema for a role that can't.
        if not _ledger_exists(connection):
            connection.execute(CREATE_SCHEMA.sql)
            connection.execute(CREATE_LEDGER.sql)
        state = _compare(connection, components)
        if state.newer:
            log.info("the schema is newer than this program, and compatible: %s", ", ".join(state.newer))
        if state.pending:
            _upgrade_ledger(connection)
        for step in state.pending:
            try:
                connection.execute(step.text.encode())
            except psycopg.Error as error:
                raise MigrationFailed(f"{step} failed, nothing was changed: {_place(step, error)}") from error
            connection.execute(
                RECORD.sql,
                {
                    "component": step.component,
                    "number": step.number,
                    "name": step.name,
                    "checksum": step.checksum,
                    "compatible": step.compatible,
                },
            )
            done.append(step)
    return done


def examine(connection: psycopg.Connection[Row], components: Iterable[Component]) -> SchemaState:
    """What is pending and what is newer. Fail if this program can't work with the schema even once it is migrated."""
    components = list(components)
    if _ledger_exists(connection):
        return _compare(connection, components)
    return SchemaState([step for part in components for step in part.steps], [])


def check(connection: psycopg.Connection[Row], components: Iterable[Component]) -> list[str]:
    """Fail unless this program can work with the schema, and name the steps that are newer than it."""
    state = examine(connection, components)
    if state.pending:
        raise SchemaTooOld(
            f"{len(state.pending)} migrations are pending, beginning with {state.pending[0]}: run `kg db migrate`"
        )
    return state.newer


def _ledger_exists(connection: psycopg.Connection[Row]) -> bool:
    return _is_true(connection.execute(LEDGER_EXISTS.sql).fetchone())


def _upgrade_ledger(connection: psycopg.Connection[Row]) -> None:
    # Only when something is to be recorded: to change the table takes its owner.
    if _is_true(connection.execute(LEDGER_KNOWS_COMPATIBLE.sql).fetchone()):
        return
    try:
        connection.execute(UPGRADE_LEDGER.sql)
    except psycopg.errors.InsufficientPrivilege:
        raise MigrationFailed(
            "the ledger kappa.migrations can't be upgraded by this role: run `kg db migrate` as the table's owner"
        ) from None


def _is_true(row: Row | None) -> bool:
    return row is not None and bool(row[0])


def _compare(connection: psycopg.Connection[Row], components: Sequence[Component]) -> SchemaState:
    state = SchemaState([], [])
    for part in components:
        applied = connection.execute(APPLIED.sql, {"component": part.name}).fetchall()
        for (number, name, checksum, _), step in zip(applied, part.steps, strict=False):
            if (number, checksum) != (step.number, step.checksum):
                raise MigrationChanged(
                    f"{step} differs from {number:04d}_{name}.sql as it was applied: "
                    f"migrations never change, add a new one"
                )
        known = len(part.steps)
        for number, name, _, compatible in applied[known:]:
            if not compatible:
                raise SchemaTooNew(
                    f"the database has migration {number:04d} of {part.name!r}, this program knows {known:04d} at most"
                    ", and the migration is not marked compatible with older versions: use the version that migrated "
                    "the database, or a newer one"
                )
            state.newer.append(f"{part.name}/{number:04d}_{name}.sql")
        state.pending.extend(part.steps[len(applied) :])
    return state


def _place(step: Migration, error: psycopg.Error) -> str:
    message = error.diag.message_primary or " ".join(str(error).split())
    at = error.diag.statement_position
    return f"line {step.text.count(chr(10), 0, int(at) - 1) + 1}: {message}" if at else message
