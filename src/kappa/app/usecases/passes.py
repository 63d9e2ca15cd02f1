"""What the tokens of fleet workers are good for, remembered for a while and forgotten at once when one changes."""

import asyncio
import hashlib
import hmac
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from kappa.engine.fleet.dispatch import Pass
from kappa.engine.fleet.group import STRANGERS, Group
from kappa.engine.fleet.refusals import Refused
from kappa.engine.fleet.wire import Refusal
from kappa.pg import AsyncPool, Database, Listening, Notification, listen, queries
from kappa.pg.ops import Op, run_async
from kappa.pg.queries import Row

sql = queries.beside(__file__)
FIND_PASSES = sql["find_passes"]

REMEMBERED = 300.0
UNHEARD = 2.0
"""Seconds that a pass is remembered, and while nobody would say that it was revoked."""
MOST = 100_000

_SCHEME = b"bearer "


@dataclass(frozen=True, slots=True)
class _Remembered:
    what: Pass
    until: float


class Passes:
    """The doorman of the fleet."""

    def __init__(self, pool: AsyncPool, database: Database) -> None:
        self._pool = pool
        self._database = database
        self._known: dict[bytes, _Remembered] = {}
        self._hears = False
        self._changes = 0
        self._told: list[Callable[[], None]] = []
        self._look = Group("tokens", self._find, most=STRANGERS)

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator["Passes"]:
        listening = asyncio.create_task(self._listen(), name="passes")
        try:
            yield self
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    def on_change(self, told: Callable[[], None]) -> None:
        self._told.append(told)

    def known(self, authorization: bytes) -> Pass | None:
        found = self._known.get(_digest(authorization))
        return found.what if found is not None and found.until > time.monotonic() else None

    async def admit(self, authorization: bytes) -> Pass:
        if authorization[: len(_SCHEME)].lower() != _SCHEME:
            raise Refused(Refusal.NOT_AUTHENTICATED, "send a token: Authorization: Bearer …")
        row = await self._look(_digest(authorization))
        if row is None:
            raise Refused(Refusal.NOT_AUTHENTICATED, "the token is unknown, expired or revoked")
        if not row[6]:
            raise Refused(Refusal.FORBIDDEN, "the token lacks the permission fleet:work")
        return _pass(row)

    async def _find(self, hashes: list[bytes]) -> list[Row | None]:
        changes = self._changes
        async with self._pool.connection(who="passes") as connection:
            rows = await run_async(connection, Op(FIND_PASSES, {"hashes": list(set(hashes))}, list[Row]))
        found = {bytes(row[0]): row for row in rows}
        if changes == self._changes:  # what was read before a change is not remembered after it
            self._remember(found)
        return [row if (row := found.get(one)) and hmac.compare_digest(bytes(row[0]), one) else None for one in hashes]

    def _remember(self, found: dict[bytes, Row]) -> None:
        if len(self._known) + len(found) > MOST:
            self._known.clear()
        lasts = REMEMBERED if self._hears else UNHEARD
        for digest, row in found.items():
            if row[6]:
                left = lasts if row[5] is None else min(lasts, row[5])
                self._known[digest] = _Remembered(_pass(row), time.monotonic() + left)

    async def _listen(self) -> None:
        async for event in listen(self._database.direct_url, ("kappa_passes",), lost=self._deaf):
            match event:
                case Listening():
                    self._forget()
                    self._hears = True
                case Notification():
                    self._forget()

    def _deaf(self) -> None:
        self._hears = False
        self._forget()

    def _forget(self) -> None:
        self._changes += 1
        self._known.clear()
        for told in self._told:
            told()


def _digest(authorization: bytes) -> bytes:
    return hashlib.sha256(authorization[len(_SCHEME) :].strip()).digest()


def _pass(row: Row) -> Pass:
    _, token_id, kinds, machines, requests, _, _ = row
    return Pass(token_id, None if kinds is None else frozenset(kinds), machines, requests)
