"""How much one person may ask for: priority, live jobs."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from kappa.app.errors import Throttled
from kappa.app.permissions import Permission
from kappa.app.usecases.principal import Principal
from kappa.engine import AsyncClient
from kappa.pg import queries
from kappa.pg.ops import Op, run_async

sql = queries.beside(__file__)
LIVE_JOBS = sql["live_jobs"]

TRUSTED_FOR = 1.0
"""Seconds for which a count of somebody's live jobs is not repeated, unless there is no room left by it."""
TRY_AGAIN = 30.0


def check_priority(who: Principal, priority: int | None) -> None:
    """To be before others is a right of its own; to be behind them is nobody's business."""
    if priority is not None and priority > 0:
        who.require(Permission.JOBS_PRIORITISE)


@dataclass(slots=True)
class _Account:
    room: int = 0
    counted_at: float = float("-inf")
    under_way: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class LiveJobs:
    """How many jobs that are not over each person may have: those that run, wait, and await approval.

    Children of a job are not counted: one submission may have thousands, and they are bounded by what was uploaded.
    Those who run the server (`workers:manage`) have as many as they like. Each server counts for itself: with several,
    what is asked of all of them in the same second may go beyond the limit.
    """

    def __init__(self, client: AsyncClient, most: int) -> None:
        self._client = client
        self._most = most
        self._accounts: dict[str, _Account] = {}

    @asynccontextmanager
    async def one_more(self, who: Principal, owner: str | None = None) -> AsyncGenerator[None]:
        """Around what makes a job of this person, or by this person one of `owner`'s.

        Not within a transaction: it may take a connection.
        """
        if who.may(Permission.WORKERS_MANAGE):
            yield
            return
        name = owner or who.name
        account = self._accounts.setdefault(name, _Account())
        async with account.lock:
            if account.room <= 0 or time.monotonic() - account.counted_at > TRUSTED_FOR:
                account.counted_at = time.monotonic()
                account.room = self._most - account.under_way - await self._count(name)
            if account.room <= 0:
                raise Throttled(
                    f"{name} has {self._most} jobs that are not over, and no more are allowed: "
                    "wait until some have ended, or cancel some",
                    TRY_AGAIN,
                )
            account.room -= 1
            account.under_way += 1
        try:
            yield
        finally:
            account.under_way -= 1

    async def _count(self, name: str) -> int:
        async with self._client.transaction() as connection:
            op = Op(LIVE_JOBS, {"name": name, "most": self._most}, lambda rows: int(rows[0][0]))
            return await run_async(connection, op)
