"""Brings a database's schema forward: numbered plain SQL files, a ledger, a lock, checksums.

A component (`engine`, `graph`, …) is a directory of files `0001_name.sql`, `0002_name.sql`, … without gaps.
All pending files of all components are applied in one transaction under an advisory lock: the schema moves
whole or not at all, any number of processes may migrate at once, and a pooler in transaction mode is no
hindrance.
The ledger `kappa.migrations` is the authority on what was applied. There is no way back, only forward.
"""

import hashlib
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
LOCK = sql["lock"]
APPLIED = sql["applied"]
RECORD = sql["record"]

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

    def __str__(self) -> str:
        return f"{self.component}/{self.number:04d}_{self.name}.sql"


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
        for step in _pending(connection, components):
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
                },
            )
            done.append(step)
    return done


def check(connection: psycopg.Connection[Row], components: Iterable[Component]) -> None:
    """Fail unless the schema is exactly what this program knows."""
    components = list(components)
    if _ledger_exists(connection):
        pending = _pending(connection, components)
    else:
        pending = [step for part in components for step in part.steps]
    if pending:
        raise SchemaTooOld(f"{len(pending)} migrations are pending, beginning with {pending[0]}: run `kg db migrate`")


def _ledger_exists(connection: psycopg.Connection[Row]) -> bool:
    row = connection.execute(LEDGER_EXISTS.sql).fetchone()
    return row is not None and bool(row[0])


def _pending(connection: psycopg.Connection[Row], components: Sequence[Component]) -> list[Migration]:
    pending: list[Migration] = []
    for part in components:
        applied = connection.execute(APPLIED.sql, {"component": part.name}).fetchall()
        if len(applied) > len(part.steps):
            raise SchemaTooNew(
                f"the database has migration {applied[-1][0]:04d} of {part.name!r}, this program knows "
                f"{len(part.steps):04d} at most: it was migrated by a newer version, use that one"
            )
        for (number, name, checksum), step in zip(applied, part.steps, strict=False):
            if (number, checksum) != (step.number, step.checksum):
                raise MigrationChanged(
                    f"{step} differs from {number:04d}_{name}.sql as it was applied: "
                    f"migrations never change, add a new one"
                )
        pending += part.steps[len(applied) :]
    return pending


def _place(step: Migration, error: psycopg.Error) -> str:
    message = error.diag.message_primary or " ".join(str(error).split())
    at = error.diag.statement_position
    return f"line {step.text.count(chr(10), 0, int(at) - 1) + 1}: {message}" if at else message
