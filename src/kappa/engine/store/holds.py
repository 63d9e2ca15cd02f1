"""Statements about lanes that a job holds, so that nothing of them runs beside it."""

from kappa.pg import queries
from kappa.pg.ops import Op, nothing
from kappa.pg.queries import Row

sql = queries.beside(__file__)
LOCK = sql["lock"]
HOLD = sql["hold"]
HELD_BY_ANOTHER = sql["held_by_another"]
LET_GO = sql["let_go"]
FREE = sql["free"]
STILL_RUNNING = sql["still_running"]


def lock() -> Op[None]:
    return Op(LOCK, {}, nothing)


def hold(job: int, token: int) -> Op[list[str] | None]:
    """The lanes that are held from now on; None if the lease is lost."""
    return Op(HOLD, {"job": job, "token": token}, lambda rows: rows[0][1] if rows[0][0] else None)


def held_by_another(job: int) -> Op[int | None]:
    return Op(HELD_BY_ANOTHER, {"job": job}, lambda rows: rows[0][0] if rows else None)


def let_go(job: int, token: int) -> Op[list[str]]:
    """The lanes that are held no more."""
    return Op(LET_GO, {"job": job, "token": token}, _names)


def free() -> Op[list[str]]:
    """The lanes that are held no more because their holders are gone."""
    return Op(FREE, {}, _names)


def still_running(job: int) -> Op[int]:
    """Jobs of the lanes that a job holds."""
    return Op(STILL_RUNNING, {"job": job}, lambda rows: rows[0][0])


def _names(rows: list[Row]) -> list[str]:
    return sorted(row[0] for row in rows)
