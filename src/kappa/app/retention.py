"""What the application keeps for a time only; the leader deletes it."""

from datetime import datetime, timedelta

from kappa.pg import queries
from kappa.pg.ops import Op, count

sql = queries.beside(__file__)
FORGET_AUDIT = sql["forget_audit"]

BATCH = 1000


def forget_audit(keep: timedelta, now: datetime | None = None) -> Op[int]:
    """Delete some entries of the audit log that are older; how many."""
    return Op(FORGET_AUDIT, {"keep": keep, "now": now, "limit": BATCH}, count)
