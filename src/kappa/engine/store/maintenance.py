"""Statements that only the leader runs. Each takes an optional `now`, so that tests can move time."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from kappa.engine.model import Schedule
from kappa.pg import queries
from kappa.pg.ops import Op, count, nothing
from kappa.pg.queries import Row

sql = queries.beside(__file__)
REAP = sql["reap"]
OVER = sql["over"]
NEXT_LEASE_END = sql["next_lease_end"]
PROMOTE = sql["promote"]
BURY = sql["bury"]
END_LOST_TRANSACTIONS = sql["end_lost_transactions"]
FORGET_FLEET = sql["forget_fleet"]
NEXT_DUE = sql["next_due"]
EXPIRE = sql["expire"]
KEEP_REFERRED = sql["keep_referred"]
PAST_PARTITIONS = sql["past_partitions"]
MAKE_PARTITIONS = sql["make_partitions"]
DELETE_EXPIRED = sql["delete_expired"]
LOCK_EXPIRED = sql["lock_expired"]
FORGET_SLEEPERS = sql["forget_sleepers"]
FORGET_WORKERS = sql["forget_workers"]
DUE_SCHEDULES = sql["due_schedules"]
LOCK_DUE_SCHEDULE = sql["lock_due_schedule"]
NEXT_SCHEDULE = sql["next_schedule"]
ADVANCE_SCHEDULE = sql["advance_schedule"]
FAIL_SCHEDULE = sql["fail_schedule"]
PUT_SCHEDULE = sql["put_schedule"]
DECLARE_SCHEDULE = sql["declare_schedule"]
DROP_SCHEDULE = sql["drop_schedule"]
READ_SCHEDULES = sql["read_schedules"]
READ_SCHEDULE = sql["read_schedule"]
LOCK_SCHEDULE = sql["lock_schedule"]
SET_NEXT_AT = sql["set_next_at"]

BATCH = 1000


def _first(rows: list[Row]) -> Any:
    return rows[0][0] if rows else None


def reap(now: datetime | None = None, limit: int = BATCH, spared: Iterable[int] = ()) -> Op[int]:
    return Op(REAP, {"now": now, "limit": limit, "spared": list(spared)}, count)


def over(now: datetime | None = None, limit: int = BATCH) -> Op[list[int]]:
    """Jobs whose leases have run out and were not cleared."""
    return Op(OVER, {"now": now, "limit": limit}, lambda rows: [row[0] for row in rows])


def next_lease_end(now: datetime | None = None) -> Op[float | None]:
    """Seconds until a lease runs out, of those that there are and those that may be given from now on."""
    return Op(NEXT_LEASE_END, {"now": now}, _first)


def end_lost_transactions() -> Op[dict[int, bool]]:
    """End sessions in which a handler's transaction outlived its lease. Their pids; False if it was not allowed."""
    return Op(END_LOST_TRANSACTIONS, {}, dict)


def bury(limit: int = BATCH) -> Op[int]:
    """Settle what a fleet lane left orphaned as lost attempts."""
    return Op(BURY, {"limit": limit}, count)


def forget_fleet() -> Op[None]:
    return Op(FORGET_FLEET, {}, nothing)


def promote(now: datetime | None = None, limit: int = BATCH) -> Op[int]:
    return Op(PROMOTE, {"now": now, "limit": limit}, count)


def next_due(now: datetime | None = None) -> Op[float | None]:
    """Seconds until the next scheduled job is due."""
    return Op(NEXT_DUE, {"now": now}, _first)


def expire(now: datetime | None = None, limit: int = BATCH) -> Op[int]:
    return Op(EXPIRE, {"now": now, "limit": limit}, count)


def keep_referred(now: datetime | None = None) -> Op[int]:
    return Op(KEEP_REFERRED, {"now": now}, count)


def past_partitions(now: datetime | None = None) -> Op[list[str]]:
    """The tables whose day is over."""
    return Op(PAST_PARTITIONS, {"now": now}, lambda rows: [row[0] for row in rows])


def make_partitions(now: datetime | None, days: int) -> Op[int]:
    return Op(MAKE_PARTITIONS, {"now": now, "days": days}, _first)


def lock_expired(now: datetime | None = None, limit: int = 10 * BATCH) -> Op[list[int]]:
    return Op(LOCK_EXPIRED, {"now": now, "limit": limit}, lambda rows: [row[0] for row in rows])


def delete_expired(ids: Sequence[int], now: datetime | None = None) -> Op[int]:
    return Op(DELETE_EXPIRED, {"now": now, "ids": list(ids)}, count)


def forget_workers() -> Op[None]:
    return Op(FORGET_WORKERS, {}, nothing)


def forget_sleepers() -> Op[None]:
    return Op(FORGET_SLEEPERS, {}, nothing)


def due_schedules(now: datetime | None = None) -> Op[list[tuple[Schedule, datetime, datetime]]]:
    """The schedules that are due, each with the database's time and the time it was put as it is."""
    return Op(DUE_SCHEDULES, {"now": now}, lambda rows: [(_schedule(row), row[14], row[15]) for row in rows])


def lock_due_schedule(schedule: Schedule, since: datetime, now: datetime | None = None) -> Op[datetime | None]:
    """Lock a schedule that was read as due and give the database's time. None if it is not as it was read."""
    params = {"name": schedule.name, "since": since, "next_at": schedule.next_at, "now": now}
    return Op(LOCK_DUE_SCHEDULE, params, _first)


def next_schedule(now: datetime | None = None) -> Op[float | None]:
    return Op(NEXT_SCHEDULE, {"now": now}, _first)


def advance_schedule(
    name: str, next_at: datetime, last_at: datetime | None = None, last_job: int | None = None
) -> Op[None]:
    params = {"name": name, "next_at": next_at, "last_at": last_at, "last_job": last_job}
    return Op(ADVANCE_SCHEDULE, params, nothing)


def fail_schedule(name: str, since: datetime, error: str, delay: float, now: datetime | None = None) -> Op[None]:
    return Op(FAIL_SCHEDULE, {"name": name, "since": since, "error": error, "delay": delay, "now": now}, nothing)


def put_schedule(schedule: Schedule, payload: str) -> Op[tuple[Schedule, datetime] | None]:
    """Make or change the schedule: its row, and when it was put as it is."""
    return Op(PUT_SCHEDULE, _params(schedule, payload), _written)


def declare_schedule(schedule: Schedule, payload: str) -> Op[tuple[Schedule, datetime] | None]:
    """Make the schedule; None if there is one of its name."""
    return Op(DECLARE_SCHEDULE, _params(schedule, payload), _written)


def set_next_at(name: str, next_at: datetime) -> Op[None]:
    return Op(SET_NEXT_AT, {"name": name, "next_at": next_at}, nothing)


def _params(schedule: Schedule, payload: str) -> dict[str, Any]:
    params = {name: getattr(schedule, name) for name in ("name", "cron", "timezone", "kind", "priority")}
    return params | {"enabled": schedule.enabled, "missed": schedule.missed, "payload": payload}


def drop_schedule(name: str) -> Op[bool]:
    return Op(DROP_SCHEDULE, {"name": name}, bool)


def read_schedules() -> Op[list[Schedule]]:
    return Op(READ_SCHEDULES, {}, lambda rows: [_schedule(row) for row in rows])


def read_schedule(name: str) -> Op[Schedule | None]:
    return Op(READ_SCHEDULE, {"name": name}, lambda rows: _schedule(rows[0]) if rows else None)


def lock_schedule(name: str) -> Op[Schedule | None]:
    """The schedule, which nobody else changes or fires until the transaction ends."""
    return Op(LOCK_SCHEDULE, {"name": name}, lambda rows: _schedule(rows[0]) if rows else None)


def _written(rows: list[Row]) -> tuple[Schedule, datetime] | None:
    return (_schedule(rows[0]), rows[0][14]) if rows else None


def _schedule(row: Row) -> Schedule:
    name, cron, timezone, kind, payload, *rest = row[:14]
    return Schedule(name, cron, kind, payload, timezone, *rest)
