"""Leases that are lost on purpose."""

from psycopg import AsyncConnection

from kappa.engine import Engine
from kappa.engine.testing import Heard, maintain


async def lose_lease(engine: Engine, job: int) -> None:
    """A started job's lease ends now, and the reaper takes it.

    A renewal may come between, so it may need more than one round. The lease of who adopts the job meanwhile is not
    over: that is why nobody pretends that an hour has passed.
    """
    heard = Heard(engine)
    async with await AsyncConnection.connect(engine.database.direct_url, autocommit=True) as connection:
        while not heard.all("reaped"):
            await connection.execute("UPDATE kappa.jobs SET lease_until = now() WHERE id = %s", [job])
            await maintain(engine, only=lambda name: name == "reaper")
