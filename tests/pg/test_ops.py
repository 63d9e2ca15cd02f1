"""Operations on both sorts of connections, by a cursor or by the short way."""

import asyncio
import gc
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kappa.pg import AsyncPool, Bounds
from kappa.pg.ops import Op, kept, run, run_async
from kappa.pg.queries import Queries, Row
from tests.ground import eventually

SQL = """
-- name: sum
SELECT %(a)s::int + %(b)s::int, %(text)s::text, %(flag)s::boolean, %(span)s::interval, %(list)s::int[]

-- name: number
SELECT nullif(%(a)s::int + %(b)s::int, 0)

-- name: broken
SELECT 1 / %(a)s::int

-- name: slow
SELECT pg_sleep(60), %(a)s::int

-- name: nothing
DO $$ BEGIN END $$
"""


def op(name: str, binary: bool = False, first_number: bool = False, **params: Any) -> Op[list[Row]]:
    return Op(Queries(Path("some.sql"), SQL)[name], params, lambda rows: rows, binary, first_number)


def number(a: int = 40, b: int = 2) -> Op[Any]:
    return Op(op("number").query, {"a": a, "b": b}, lambda rows: rows[0][0] if rows else None, first_number=True)


def plain_sum(binary: bool = False) -> Op[list[Row]]:
    return op("sum", binary, a=40, b=2, text="it's", flag=True, span=timedelta(days=1, microseconds=3), list=None)


RESULT = [(42, "it's", True, timedelta(days=1, microseconds=3), None)]


@pytest.fixture
def pool(url: str) -> AsyncPool:
    return AsyncPool(url, "queue", Bounds(1, 2))


@pytest.mark.parametrize("binary", [False, True])
async def test_every_way_gives_the_same_rows(url: str, pool: AsyncPool, binary: bool) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        assert run(connection, plain_sum(binary)) == RESULT
        with connection.transaction():
            assert run(connection, plain_sum(binary)) == RESULT
    async with pool, pool.connection() as session:
        for _ in range(3):
            assert await run_async(session, plain_sum(binary)) == RESULT
        async with session.transaction():
            assert await run_async(session, plain_sum(binary)) == RESULT


@pytest.mark.parametrize(("a", "b", "found"), [(40, 2, 42), (-7, 0, -7), (1, -1, None)])
async def test_a_number_or_nothing_is_the_same_by_every_way(
    url: str, pool: AsyncPool, a: int, b: int, found: int | None
) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        assert run(connection, number(a, b)) == found
        with connection.transaction():
            assert run(connection, number(a, b)) == found
    async with pool, pool.connection() as session:
        assert await run_async(session, number(a, b)) == found


async def test_a_parameter_that_needs_an_adapter_gets_one(pool: AsyncPool) -> None:
    listed = op("sum", a=1, b=1, text=None, flag=None, span=None, list=[1, 2])
    async with pool, pool.connection() as session:
        assert await run_async(session, listed) == [(2, None, None, None, [1, 2])]


async def test_a_statement_without_rows_gives_none(pool: AsyncPool) -> None:
    async with pool, pool.connection() as session:
        assert await run_async(session, op("nothing")) == []


async def test_a_statement_that_was_forgotten_is_prepared_again(url: str, pool: AsyncPool) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(2):
            assert run(connection, number()) == 42
            connection.execute("DEALLOCATE ALL")
    async with pool, pool.connection() as session:
        for _ in range(2):
            assert await run_async(session, plain_sum()) == RESULT
            await session.execute("DEALLOCATE ALL")


async def test_an_error_is_the_servers_own_and_the_connection_goes_on(url: str, pool: AsyncPool) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            run(connection, op("broken", first_number=True, a=0))
        assert run(connection, number()) == 42
    async with pool, pool.connection() as session:
        with pytest.raises(psycopg.errors.DivisionByZero):
            await run_async(session, op("broken", a=0))
        assert await run_async(session, plain_sum()) == RESULT


async def test_a_caller_that_is_cancelled_leaves_no_connection_in_the_middle_of_a_statement(
    url: str, pool: AsyncPool
) -> None:
    async def wait_long() -> None:
        async with pool.connection() as session:
            await run_async(session, op("slow", a=1))

    def asleep() -> list[Any]:
        return admin.execute(
            "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
        ).fetchall()

    async with pool:
        with psycopg.connect(url, autocommit=True) as admin:
            waiting = asyncio.create_task(wait_long())
            async with asyncio.timeout(30):
                while not asleep():
                    await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            eventually(lambda: not asleep(), what="the statement's end")
        async with pool.connection() as session:
            assert await run_async(session, plain_sum()) == RESULT


@pytest.mark.parametrize("binary", [False, True])
async def test_an_operation_that_is_kept_gives_the_same_every_time(pool: AsyncPool, binary: bool) -> None:
    again = kept(plain_sum(binary))
    async with pool, pool.connection() as session:
        for _ in range(3):
            assert await run_async(session, again) == RESULT
        await session.execute("DEALLOCATE ALL")
        assert await run_async(session, again) == RESULT
        assert await run_async(session, plain_sum(not binary)) == RESULT


async def test_a_connection_that_was_closed_is_kept_by_nobody(url: str) -> None:
    connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
    assert await run_async(connection, plain_sum()) == RESULT
    await connection.close()
    gone = weakref.ref(connection)
    del connection
    gc.collect()
    assert gone() is None
