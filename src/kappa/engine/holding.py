"""For a job beside which nothing else may run: the other lanes are drained while it has its lease.

What holds is the lease. Whoever ends in order lets go; when a holder is killed, its lease runs out, and the reaper's
next round lets go. Whether a person has switched a lane on or off is another fact: nothing is claimed from a lane that
is held, and what the person wants counts afterwards.
"""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from psycopg import Connection

from kappa.engine.context import JobContext
from kappa.engine.errors import LanesHeld, LeaseLost
from kappa.engine.store import holds, jobs
from kappa.pg import Database
from kappa.pg.ops import run
from kappa.pg.queries import Row

LOOK = 0.2
"""Seconds between two looks at what still runs."""


@contextmanager
def other_lanes_drained(
    ctx: JobContext, database: Database, told: Callable[[int], None] = lambda left: None
) -> Generator[list[str]]:
    """Nothing is claimed in any other lane, and what ran there has ended; `told` hears how much is left.

    Raises `LanesHeld` where another job holds lanes. A block that raises lets go; one that succeeds calls `let_go` in
    the job's own transaction, so that the lanes are let go by the commit of what was done.
    """
    with database.connect() as connection:
        names = _hold(connection, ctx)
        try:
            while left := run(connection, holds.still_running(ctx.job_id)):
                told(left)
                ctx.raise_if_cancelled()
                time.sleep(LOOK)
            yield names
        except BaseException:
            run(connection, holds.let_go(*ctx.held))
            raise


def let_go(connection: Connection[Row], ctx: JobContext) -> None:
    """Let the lanes go when this transaction commits."""
    run(connection, holds.let_go(*ctx.held))


def _hold(connection: Connection[Row], ctx: JobContext) -> list[str]:
    run(connection, jobs.write_down(*ctx.held))
    with connection.transaction():
        run(connection, holds.lock())
        run(connection, holds.free())
        if (other := run(connection, holds.held_by_another(ctx.job_id))) is not None:
            raise LanesHeld(f"job {other} holds the lanes")
        names = run(connection, holds.hold(*ctx.held))
    if names is None:
        raise LeaseLost(f"the lease of job {ctx.job_id} is lost: it can hold no lanes")
    for name in names:
        # Whoever was in the middle of a claim when the lane was still open has committed it now.
        run(connection, jobs.lock_lane(name))
    return names
