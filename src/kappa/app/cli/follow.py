"""Following what a server tells over time, also when it goes away for a while and comes back elsewhere.

The server is looked for anew at each try: one that was restarted may listen on another port. A server that was never
reached is an error at once; one that was lost is waited for.
"""

import asyncio
import math
import time
from collections.abc import Callable

import httpx2

from kappa.app import remote
from kappa.app.api.schemas import JobView
from kappa.app.settings import Settings

BETWEEN_TRIES = 0.5


class Patience:
    """How long a lost server is waited for, and what is said meanwhile: once that it is gone, once that it is back."""

    def __init__(self, seconds: float, say: Callable[[str], None]) -> None:
        self._seconds = seconds
        self._say = say
        self._reached = False
        self._lost_at: float | None = None

    def reached(self) -> None:
        if self._lost_at is not None:
            self._say("the server is back")
        self._reached = True
        self._lost_at = None

    def lost(self, error: remote.ServerNotFound | remote.ServerRefused) -> None:
        """Take the loss in, or raise it if there is no patience left."""
        if not self._reached or (isinstance(error, remote.ServerRefused) and not error.not_now):
            raise error
        if self._lost_at is None:
            self._lost_at = time.monotonic()
            limit = "" if math.isinf(self._seconds) else f"up to {self._seconds:g} s "
            self._say(f"{error}; waiting {limit}for it to come back")
        if time.monotonic() - self._lost_at >= self._seconds:
            raise error


async def follow(settings: Settings, job_id: int, patience: Patience, tell: Callable[[JobView], None]) -> JobView:
    """Tell of the job as it is and each time that it changed; give it back when it has ended."""
    seen: JobView | None = None
    while True:
        try:
            place = remote.find(settings)
            with remote.reaching(place):
                async with (
                    httpx2.AsyncClient(
                        base_url=place.url, headers=place.headers, timeout=remote.TIMEOUT, trust_env=not place.local
                    ) as client,
                    # A job may be as large as its payload and its traceback.
                    client.sse(f"/jobs/{job_id}/events", max_event_size=None) as events,
                ):
                    if not events.response.is_success:
                        await events.response.aread()
                    remote.check(events.response)
                    async for event in events:
                        if event.event != "job":
                            continue
                        patience.reached()
                        job = remote.read(JobView, event.data)
                        if job != seen:
                            seen = job
                            tell(job)
                        if job.state.terminal:
                            return job
        except (remote.ServerNotFound, remote.ServerRefused) as error:
            patience.lost(error)
        await asyncio.sleep(BETWEEN_TRIES)
