"""A leader's connection: what is written on it is written in the leader's term, or not at all."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from psycopg import AsyncConnection, AsyncCursor, AsyncTransaction
from psycopg.abc import Params
from psycopg.pq import TransactionStatus

from kappa.engine.store import leadership
from kappa.pg.ops import run_async
from kappa.pg.queries import Row


class TermOver(Exception):
    """Another process leads."""

    def __init__(self, term: int) -> None:
        super().__init__(f"term {term} is over: another process leads")


class TermConnection(AsyncConnection[Row]):
    """Once it has a term, every transaction on it begins by sharing the term's lock. A statement by itself is one too.

    So it doesn't matter where the process was frozen, or for how long.
    """

    term: int | None = None

    def act_in(self, term: int) -> None:
        self.term = term
        self.prepare_threshold = None  # else `run_async` goes by libpq alone, past `execute`

    @asynccontextmanager
    async def transaction(
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> AsyncGenerator[AsyncTransaction]:
        begins = self._is_idle
        async with super().transaction(savepoint_name, force_rollback) as transaction:
            if begins and self.term is not None and not await run_async(self, leadership.share_term(self.term)):
                raise TermOver(self.term)
            yield transaction

    async def execute(
        self, query: Any, params: Params | None = None, *, prepare: bool | None = None, binary: bool = False
    ) -> AsyncCursor[Row]:
        if self.term is None or not self._is_idle:
            return await super().execute(query, params, prepare=prepare, binary=binary)
        async with self.transaction():
            return await super().execute(query, params, prepare=prepare, binary=binary)

    @property
    def _is_idle(self) -> bool:
        return self.pgconn.transaction_status == TransactionStatus.IDLE
