"""Statements about lanes."""

from collections.abc import Sequence
from typing import Any

import psycopg

from kappa.engine.errors import LaneError
from kappa.engine.model import Executor, Lane, WorkerSeen, checked_interval
from kappa.pg import queries
from kappa.pg.ops import Op, nothing
from kappa.pg.queries import Row

sql = queries.beside(__file__)
READ_LANES = sql["read_lanes"]
LOCK_LANES = sql["lock_lanes"]
LOOK = sql["look"]
DECLARE_LANE = sql["declare_lane"]
EDIT_LANE = sql["edit_lane"]
CHECK_KINDS = sql["check_kinds"]
FALL_ASLEEP = sql["fall_asleep"]
WAKE_UP = sql["wake_up"]
LEAVE = sql["leave"]
SIGN_OF_LIFE = sql["sign_of_life"]
READ_WORKERS = sql["read_workers"]

COLUMNS = ("kinds", "max_slots", "poll_interval_ms", "lease_ttl", "stale_timeout", "enabled", "executor")

RULES = {
    "lanes_name_check": "its name begins with a letter and has up to 63 small letters, digits, _ and -",
    "lane_kinds_kind_check": "a kind's name begins with a letter and has up to 128 letters, digits and any of _ . : -",
    "lanes_poll_interval_ms_check": "poll_interval_ms is 10 to 3,600,000",
    "lanes_lease_ttl_check": "lease_ttl is a second or more",
    "lanes_stale_timeout_check": "stale_timeout is more than nothing",
} | dict.fromkeys(
    ("lanes_max_slots_check", "lanes_thread_slots", "lanes_async_slots"),
    "a thread lane has 1 to 16 slots, an async lane 1 to 1,000",
)
"""What the constraints of a lane mean."""


def refused(name: str, error: psycopg.IntegrityError | psycopg.errors.LockNotAvailable) -> LaneError:
    """What the database has against a lane, in words."""
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return LaneError(
            f"lane {name!r} can't have its kinds changed now: another transaction is at their jobs; try again"
        )
    message = RULES.get(error.diag.constraint_name or "", error.diag.message_primary or "refused")
    return LaneError(f"lane {name!r} can't be so: {message}")


def _lane(row: Row) -> Lane:
    name, kinds, slots, poll, ttl, stale, enabled, executor, held_by = row[:9]
    return Lane(name, tuple(kinds), slots, poll, ttl, stale, enabled, Executor(executor), held_by)


def read_lanes() -> Op[list[Lane]]:
    return Op(READ_LANES, {}, lambda rows: [_lane(row) for row in rows])


def lock_lanes() -> Op[None]:
    return Op(LOCK_LANES, {}, nothing)


def look(names: Sequence[str]) -> Op[list[tuple[Lane, bool]]]:
    """The lanes' rows, each with whether there is something to claim."""
    return Op(LOOK, {"names": list(names)}, lambda rows: [(_lane(row), row[9]) for row in rows])


def declare_lane(lane: Lane) -> Op[None]:
    """Make the lane if there is none; one that exists only learns the kinds that it lacks."""
    _check_spans(lane)
    params = {column: getattr(lane, column) for column in COLUMNS}
    params |= {"name": lane.name, "kinds": list(lane.kinds), "executor": lane.executor.value}
    return Op(DECLARE_LANE, params, nothing)


def edit_lane(name: str, changes: dict[str, Any]) -> Op[Lane | None]:
    _check_spans(Lane(name, **{column: value for column, value in changes.items() if value is not None}))
    params = {column: changes.get(column) for column in COLUMNS} | {"name": name}
    if params["kinds"] is not None:
        params["kinds"] = list(dict.fromkeys(params["kinds"]))
    return Op(EDIT_LANE, params, lambda rows: _lane(rows[0]) if rows else None)


def _check_spans(lane: Lane) -> None:
    """Not where a lane is read: one that was written by other means must not keep anybody from reading the rest."""
    for column in ("lease_ttl", "stale_timeout"):
        checked_interval(f"lane {lane.name!r}: {column}", getattr(lane, column), LaneError)


def check_kinds() -> Op[None]:
    """Find now what the end of the transaction would find: a kind with jobs and no lane."""
    return Op(CHECK_KINDS, {}, nothing)


def fall_asleep(lane: str, owner: str) -> Op[None]:
    return Op(FALL_ASLEEP, {"lane": lane, "owner": owner}, nothing)


def wake_up(lane: str, owner: str) -> Op[None]:
    return Op(WAKE_UP, {"lane": lane, "owner": owner}, nothing)


def sign_of_life(owner: str, host: str, pid: int, lanes: Sequence[str]) -> Op[None]:
    return Op(SIGN_OF_LIFE, {"owner": owner, "host": host, "pid": pid, "lanes": list(lanes)}, nothing)


def read_workers() -> Op[list[WorkerSeen]]:
    """The workers that gave a sign of life within the last minute."""
    return Op(READ_WORKERS, {}, lambda rows: [WorkerSeen(*row) for row in rows])


def leave(owner: str) -> Op[None]:
    return Op(LEAVE, {"owner": owner}, nothing)
