"""Installs the triggers that keep the history, and reads a run's record."""

from datetime import datetime
from typing import Any

import psycopg

from kappa.pg import queries
from tests.chaos import artifacts
from tests.chaos.artifacts import Disk
from tests.chaos.record import (
    BatchWrite,
    Effect,
    Ended,
    Fire,
    LaneEdit,
    LaneHold,
    LaneSwitch,
    Left,
    LeftBatch,
    Live,
    Record,
    Term,
    Write,
)

sql = queries.beside(__file__)
INSTALL = sql["install"]
READ_HISTORY = sql["read_history"]
READ_BATCHES = sql["read_batches"]
READ_LANES = sql["read_lanes"]
READ_SWITCHES = sql["read_switches"]
READ_HOLDS = sql["read_holds"]
READ_TERMS = sql["read_terms"]
READ_SCHEDULES = sql["read_schedules"]
READ_EFFECTS = sql["read_effects"]
READ_ORDERS = sql["read_orders"]
READ_ENDED = sql["read_ended"]
READ_LEFT = sql["read_left"]
READ_LEFT_BATCHES = sql["read_left_batches"]

Connection = psycopg.Connection[tuple[Any, ...]]


def install(connection: Connection) -> None:
    connection.execute(INSTALL.sql)


def read(connection: Connection, disk: Disk) -> Record:
    """Everything that the database and the disk know of the run; the ledger is the client's."""
    return Record(
        history=[_write(row) for row in connection.execute(READ_HISTORY.sql)],
        batches=[_batch(row) for row in connection.execute(READ_BATCHES.sql)],
        lanes=[LaneEdit(*row) for row in connection.execute(READ_LANES.sql)],
        switches=[LaneSwitch(*row) for row in connection.execute(READ_SWITCHES.sql)],
        holds=[LaneHold(*row) for row in connection.execute(READ_HOLDS.sql)],
        terms=[Term(*row) for row in connection.execute(READ_TERMS.sql)],
        fires=[Fire(*row) for row in connection.execute(READ_SCHEDULES.sql)],
        effects=[Effect(*row) for row in connection.execute(READ_EFFECTS.sql)],
        orders={row[0] for row in connection.execute(READ_ORDERS.sql)},
        ended=[Ended(*row) for row in connection.execute(READ_ENDED.sql)],
        left=[Left(*row) for row in connection.execute(READ_LEFT.sql)],
        left_batches=[LeftBatch(*row) for row in connection.execute(READ_LEFT_BATCHES.sql)],
        artifacts=artifacts.read(disk.artifacts),
    )


def _write(row: tuple[Any, ...]) -> Write:
    (
        seq,
        at,
        begun,
        committed,
        xid,
        backend,
        backend_start,
        app,
        writer,
        leads,
        op,
        job,
        lane,
        kind,
        old,
        new,
        passed,
    ) = row
    return Write(
        seq, at, begun, committed, xid, op, job, lane, kind, _live(old), _live(new), app, writer, leads,
        (backend, backend_start) if backend_start else None, tuple(passed or ()),
    )  # fmt: skip


def _batch(row: tuple[Any, ...]) -> BatchWrite:
    old, new, app, writer, leads, backend, backend_start, passed = row[10:]
    return BatchWrite(
        *row[:10], old=tuple(old or ()), new=tuple(new or ()), app=app, writer=writer, leads=leads,
        session=(backend, backend_start) if backend_start else None, passed=tuple(passed or ()),
    )  # fmt: skip


def _live(row: dict[str, Any] | None) -> Live | None:
    if row is None:
        return None
    until, run_at = row.pop("until", None), row.pop("run_at", None)
    return Live(
        **row,
        until=datetime.fromisoformat(until) if until else None,
        run_at=datetime.fromisoformat(run_at) if run_at else None,
    )
