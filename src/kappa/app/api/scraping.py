"""`/metrics` for whoever may see workers, also while the database is away: that is when it is looked at most."""

import asyncio
import hashlib
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import psycopg
from anyio.to_thread import current_default_thread_limiter
from fastapi import Request

from kappa.app.api.routing import Bearer, Cookie, Uses, recognise
from kappa.app.errors import NotInstalled
from kappa.app.metrics import Now
from kappa.app.permissions import Permission
from kappa.app.services import Services
from kappa.app.usecases.workers import LaneNow
from kappa.engine.fleet.refusals import Refused
from kappa.pg import PgError
from kappa.pg.errors import PoolUnreachable

T = TypeVar("T")

DATABASE_WITHIN = 2.0
"""Seconds that a page waits for the database; a scraper gives up after 10 by default."""
REMEMBERED_FOR = 600.0
"""How long a token that could see metrics can do so while nobody can be asked whether it still may."""
REMEMBERED = 100

AWAY = (PgError, psycopg.OperationalError, TimeoutError)


class _Known:
    """Hashes of the tokens that were good for metrics lately."""

    def __init__(self) -> None:
        self._until: dict[bytes, float] = {}

    def remember(self, token: str) -> None:
        while len(self._until) >= REMEMBERED:
            del self._until[min(self._until, key=self._until.__getitem__)]
        self._until[_digest(token)] = time.monotonic() + REMEMBERED_FOR

    def forget(self, token: str) -> None:
        self._until.pop(_digest(token), None)

    def __contains__(self, token: str) -> bool:
        return self._until.get(_digest(token), 0.0) > time.monotonic()


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


async def may_scrape(request: Request, services: Uses, bearer: Bearer, cookie: Cookie) -> None:
    if services.settings.metrics_public:
        return
    known: _Known = _kept(request, "scrapers", _Known)
    token = bearer.credentials if bearer is not None else None
    try:
        who = await _within(DATABASE_WITHIN, recognise(request, services, bearer, cookie))
        who.require(Permission.WORKERS_VIEW)
    except AWAY as error:
        if token is not None and token in known:
            return
        if isinstance(error, TimeoutError):
            raise PoolUnreachable("the database did not say in time whose token it is") from None
        raise
    except Exception:
        if token is not None:
            known.forget(token)
        raise
    if token is not None:
        known.remember(token)


async def page(request: Request, services: Services) -> bytes:
    limiter = current_default_thread_limiter()
    lanes, workers, epoch = await asyncio.gather(_lanes(request, services), _workers(services), _epoch(services))
    return await services.metrics.page(
        Now(
            lanes=lanes,
            fleet_workers=workers,
            pools=services.pools(),
            requests=request.app.state.guard.under_way,
            threads=(limiter.borrowed_tokens, limiter.total_tokens),
            graph_epoch=epoch,
        )
    )


class _Reading:
    """One look at the tables for all who scrape at once; while it hangs, no second one is begun."""

    task: "asyncio.Task[list[LaneNow]] | None" = None


async def _lanes(request: Request, services: Services) -> Sequence[LaneNow] | None:
    reading: _Reading = _kept(request, "reading", _Reading)
    if reading.task is None or reading.task.done():
        reading.task = asyncio.create_task(services.workers.lanes(), name="metrics")
        # Whoever began it may have given up by then.
        reading.task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    await asyncio.wait([reading.task], timeout=DATABASE_WITHIN)
    if not reading.task.done():
        return None
    try:
        return reading.task.result()
    except AWAY:
        return None


async def _workers(services: Services) -> int | None:
    try:
        return await _within(DATABASE_WITHIN, services.fleet_workers.count())
    except (*AWAY, Refused):
        return None


async def _epoch(services: Services) -> int | None:
    try:
        return await _within(DATABASE_WITHIN, services.graph.epoch())
    except (*AWAY, NotInstalled):
        return None


def _kept(request: Request, name: str, make: Any) -> Any:
    state = request.app.state
    if not hasattr(state, name):
        setattr(state, name, make())
    return getattr(state, name)


async def _within(seconds: float, question: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.timeout`, but the answer to a time-out isn't waited for either: a server that hangs gives none."""
    task = asyncio.create_task(question)
    done, _ = await asyncio.wait([task], timeout=seconds)
    if not done:
        task.cancel()
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        raise TimeoutError
    return task.result()
