"""Statements for people who look on. None of them reads more than it shows, however many jobs there are."""

from datetime import timedelta

from kappa.engine.model import JobEvent, JobState, Relative
from kappa.pg import queries
from kappa.pg.ops import Op, nothing

sql = queries.beside(__file__)
DEPTHS = sql["depths"]
ORPHANS = sql["orphans"]
UNOFFERED = sql["unoffered"]
SLOTS_USED = sql["slots_used"]
FINISHED_SO_FAR = sql["finished_so_far"]
EVENTS = sql["events"]
RELATIVES = sql["relatives"]
FORGET_EVENTS = sql["forget_events"]

GONE_AFTER = timedelta(minutes=5)
"""A remote worker that was silent for so long is no longer shown, nor counted."""


def depths(limit: int) -> Op[dict[tuple[str, JobState], int]]:
    """Live jobs by lane and state, each counted up to the limit."""
    return Op(DEPTHS, {"limit": limit}, lambda rows: {(row[0], JobState(row[1])): row[2] for row in rows if row[2]})


def orphans(limit: int) -> Op[int]:
    """Running jobs without an owner, counted up to the limit."""
    return Op(ORPHANS, {"limit": limit}, lambda rows: rows[0][0])


def unoffered(limit: int) -> Op[dict[tuple[str, str], int]]:
    """Jobs that wait for a remote worker that there isn't, by lane and kind, counted up to the limit."""
    params = {"limit": limit, "gone_after": GONE_AFTER}
    return Op(UNOFFERED, params, lambda rows: {(row[0], row[1]): row[2] for row in rows})


def slots_used() -> Op[dict[str, int]]:
    """How many slots of each lane are taken. A parent that waits for its children takes none."""
    return Op(SLOTS_USED, {}, lambda rows: {row[0]: row[1] for row in rows})


def finished_so_far() -> Op[int]:
    """A number that grows by one with every job that ends."""
    return Op(FINISHED_SO_FAR, {}, lambda rows: rows[0][0])


def events(job_id: int, limit: int) -> Op[list[JobEvent]]:
    return Op(EVENTS, {"id": job_id, "limit": limit}, lambda rows: [JobEvent(*row) for row in rows])


def relatives(job_id: int, limit: int) -> Op[list[Relative]]:
    return Op(
        RELATIVES,
        {"id": job_id, "limit": limit},
        lambda rows: [Relative(r[0], r[1], JobState(r[2]), r[3]) for r in rows],
    )


def forget_events() -> Op[None]:
    """Those of jobs that are there no more."""
    return Op(FORGET_EVENTS, {}, nothing)
