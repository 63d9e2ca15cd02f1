"""Statements about who leads, and until when."""

from datetime import timedelta

from kappa.pg import queries
from kappa.pg.ops import Op

sql = queries.beside(__file__)
TRY_LEAD = sql["try_lead"]
SHARE_TERM = sql["share_term"]
BEAT = sql["beat"]


def try_lead(owner: str, ttl: timedelta) -> Op[tuple[int | None, list[int]]]:
    """This session's term if nobody else leads, and sessions of the last leader that this role may not end."""
    return Op(TRY_LEAD, {"owner": owner, "ttl": ttl}, lambda rows: (rows[0][0], rows[0][1]))


def share_term(term: int) -> Op[bool]:
    """Whether it is this term still; then it lasts for as long as the transaction."""
    return Op(SHARE_TERM, {"term": term}, lambda rows: rows[0][0])


def beat(term: int) -> Op[bool]:
    """Renew the heartbeat. False if the term is over."""
    return Op(BEAT, {"term": term}, bool)
