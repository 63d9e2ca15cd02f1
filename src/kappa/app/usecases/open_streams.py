"""Answers that go on for as long as they are read: each ends when whoever reads it may no longer.

A request is checked once, when it comes. A stream may outlast its token, session, user or permission by hours, so while
any is open, every credential that opened one is checked again, in turn, every few seconds.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from kappa.app.errors import NotAuthenticated
from kappa.app.usecases.credentials import Credentials
from kappa.app.usecases.principal import Principal
from kappa.pg import PgError

log = logging.getLogger(__name__)

EVERY = 2.0


@dataclass(frozen=True, slots=True)
class Credential:
    """What a request was recognised by."""

    secret: str
    is_cookie: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class _Stream:
    permission: str
    end: Callable[[], object]


class OpenStreams:
    """The streams that are open, by what opened them."""

    def __init__(self, credentials: Credentials, every: float = EVERY) -> None:
        self._credentials = credentials
        self._every = every
        self._streams: defaultdict[Credential, set[_Stream]] = defaultdict(set)
        self._checking: asyncio.Task[None] | None = None

    @contextmanager
    def ended_by(self, end: Callable[[], object], credential: Credential, permission: str) -> Generator[None]:
        """While the block lasts: `end` is called when the credential no longer gives the permission."""
        stream = _Stream(permission, end)
        self._streams[credential].add(stream)
        if self._checking is None:
            self._checking = asyncio.create_task(self._check(), name="open streams")
        try:
            yield
        finally:
            self._streams[credential].discard(stream)
            if not self._streams[credential]:
                del self._streams[credential]

    async def close(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)

    async def _check(self) -> None:
        try:
            while self._streams:
                await asyncio.sleep(self._every)
                for credential in list(self._streams):
                    await self._check_one(credential)
        finally:
            self._checking = None

    async def _check_one(self, credential: Credential) -> None:
        try:
            who = await self._recognise(credential)
        except NotAuthenticated:
            who = None
        except (psycopg.Error, PgError) as error:
            log.warning("whether open streams are still allowed could not be read, next look soon: %s", error)
            return
        for stream in list(self._streams.get(credential, ())):
            if who is None or stream.permission not in who.permissions:
                stream.end()

    async def _recognise(self, credential: Credential) -> Principal:
        if credential.is_cookie:
            return (await self._credentials.by_cookie(credential.secret)).who
        return await self._credentials.by_token(credential.secret)
