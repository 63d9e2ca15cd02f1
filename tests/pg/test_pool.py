"""Pools: bounded, never an endless wait, and an error that says who holds what."""

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from kappa.pg import AsyncPool, Bounds, Database, Pool, PoolExhausted, PoolUnreachable
from kappa.pg.errors import PgError, PoolsTooLarge
from tests.ground import PATIENCE, eventually

SMALL = Bounds(1, 2, wait=30)
SHORT = 0.2


def test_an_exhausted_pool_names_itself_its_size_and_its_holders(url: str) -> None:
    def analyse_everything() -> None:
        with pool.connection() as connection:
            connection.execute("SELECT 1")
            entered.wait()
            leave.wait()

    entered, leave = threading.Barrier(3, timeout=PATIENCE), threading.Event()
    with Pool(url, "graph", SMALL) as pool, ThreadPoolExecutor(thread_name_prefix="analyst") as threads:
        busy = [threads.submit(analyse_everything) for _ in range(2)]
        entered.wait()
        with pytest.raises(PoolExhausted) as refusal, pool.connection(wait=SHORT):
            pass
        leave.set()
        for one in busy:
            one.result()
    text = str(refusal.value)
    assert "pool 'graph' (2 connections) had none free within 0.2 s" in text
    assert "analyst_0 in " in text
    assert "analyst_1 in " in text
    assert re.search(r"analyse_everything for \d", text)


async def test_an_exhausted_async_pool_names_the_tasks_that_hold_it(url: str) -> None:
    async with AsyncPool(url, "queue", SMALL) as pool:

        async def claim() -> None:
            async with pool.transaction() as connection:
                await connection.execute("SELECT 1")
                entered.release()
                await leave.wait()

        entered, leave = asyncio.Semaphore(0), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for number in range(2):
                group.create_task(claim(), name=f"lane-{number}")
            await entered.acquire()
            await entered.acquire()
            with pytest.raises(PoolExhausted) as refusal:
                async with pool.connection(wait=SHORT):
                    pass
            leave.set()
    text = str(refusal.value)
    assert "pool 'queue' (2 connections)" in text
    assert "lane-0 in " in text
    assert re.search(r"claim for \d", text)


def test_a_caller_that_waits_gets_the_connection_as_soon_as_it_is_given_back(url: str) -> None:
    with Pool(url, "auth", Bounds(1, 1, wait=30)) as pool, ThreadPoolExecutor() as threads:
        with pool.connection() as first:
            pid = first.info.backend_pid
            waiter = threads.submit(lambda: pool_pid(pool))
            eventually(lambda: pool.use().waiting == 1, what="somebody waits")
        assert waiter.result() == pid


def pool_pid(pool: Pool) -> int:
    with pool.connection() as connection:
        return connection.info.backend_pid


def test_a_hundred_callers_of_two_connections_all_get_their_turn(url: str) -> None:
    with Pool(url, "queue", Bounds(1, 2, wait=30)) as pool, ThreadPoolExecutor(100) as threads:
        pids = list(threads.map(lambda _: pool_pid(pool), range(100)))
    assert len(pids) == 100
    assert len(set(pids)) <= 2


def test_a_crowded_pool_takes_nothing_away_from_its_siblings(url: str) -> None:
    bounds = {"queue": Bounds(1, 2), "graph": Bounds(1, 2)}
    with (
        Database(url, bounds=bounds).pools() as pools,
        pools["graph"].connection(),
        pools["graph"].connection(),
    ):
        with pytest.raises(PoolExhausted, match="pool 'graph'"), pools["graph"].connection(wait=SHORT):
            pass
        with pools["queue"].connection() as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_transaction_commits_at_its_end_and_is_undone_by_an_error(url: str) -> None:
    with Pool(url, "queue", SMALL) as pool:
        with pool.connection() as connection:
            connection.execute("CREATE TABLE t (n int)")
        with pool.transaction() as connection:
            connection.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(ZeroDivisionError), pool.transaction() as connection:
            connection.execute("INSERT INTO t VALUES (2)")
            1 / 0  # noqa: B018
        with pool.connection() as connection:
            assert connection.execute("SELECT n FROM t").fetchall() == [(1,)]


def test_connections_that_the_server_closed_are_never_handed_out(url: str) -> None:
    with Pool(url, "queue", Bounds(2, 2, wait=30)) as pool, psycopg.connect(url, autocommit=True) as killer:
        with pool.connection() as one, pool.connection() as two:
            doomed = [one.info.backend_pid, two.info.backend_pid]
        for pid in doomed:
            killer.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
        for _ in range(4):
            with pool.connection() as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)


async def test_connections_that_the_server_closed_are_never_handed_out_on_the_loop(url: str) -> None:
    async with AsyncPool(url, "queue", Bounds(1, 1, wait=30)) as pool:
        async with pool.connection() as connection:
            doomed = connection.info.backend_pid
        with psycopg.connect(url, autocommit=True) as killer:
            killer.execute("SELECT pg_terminate_backend(%s, 10000)", [doomed])
        async with pool.connection() as connection:
            cursor = await connection.execute("SELECT 1")
            assert await cursor.fetchone() == (1,)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_server_that_isnt_there_gives_a_clear_error_in_time() -> None:
    nowhere = "postgresql://127.0.0.1:1/kappa"
    with pytest.raises(PoolUnreachable, match=r"pool 'auth' reached no server within 0\.2 s: .*refused"):
        Pool(nowhere, "auth", Bounds(1, 2, wait=SHORT)).open()
    with pytest.raises(PgError, match=r"no connection to the database: .*refused"):
        Database(nowhere).connect()


@pytest.mark.parametrize("address", ["garbage secret", "postgresql//ada:secret@host/kappa", "host=x secret"])
def test_an_address_that_makes_no_sense_is_not_repeated(address: str) -> None:
    with pytest.raises(PgError, match="address can't be understood") as refused:
        Database(address).connect()
    assert "secret" not in str(refused.value)


def test_pools_larger_than_the_server_are_refused_with_the_sum(url: str) -> None:
    bounds = {"queue": Bounds(1, 150), "graph": Bounds(1, 100)}
    with (
        pytest.raises(PoolsTooLarge, match=r"may open 250 connections \(queue 150, graph 100\).*gives 197"),
        Database(url, bounds=bounds).pools(),
    ):
        pass


@pytest.mark.parametrize("bounds", [(2, 1, 1.0), (-1, 1, 1.0), (0, 0, 1.0), (1, 1, 0.0)])
def test_impossible_bounds_are_refused(bounds: tuple[int, int, float]) -> None:
    with pytest.raises(ValueError, match="pool"):
        Bounds(*bounds)


def test_a_databases_password_is_not_in_its_repr() -> None:
    assert "secret" not in repr(Database("postgresql://kappa:secret@localhost/kappa"))


def test_the_connection_that_was_given_back_last_is_at_hand_and_counts_as_free(url: str) -> None:
    with Pool(url, "queue", SMALL) as pool:
        with pool.connection() as first:
            assert pool.use().in_use == 1
        assert pool.use().in_use == 0
        with pool.connection() as second:
            assert second is first
            with pool.connection() as other:
                assert other is not first


def test_a_spare_connection_in_the_middle_of_something_goes_back_to_the_pool_to_be_mended(url: str) -> None:
    with Pool(url, "queue", Bounds(1, 1, wait=5)) as pool:
        with pool.connection() as connection:
            connection.execute("BEGIN")
        with pool.connection() as connection:
            assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_a_spare_connection_does_not_outlive_its_pool(url: str) -> None:
    pool = Pool(url, "short lived", SMALL).open()
    with pool.connection() as connection:
        pass
    pool.close()
    assert connection.closed


def test_a_spare_connection_returns_to_the_pool_after_a_while(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kappa.pg.pool.SPARE_FOR", 0.0)
    with Pool(url, "queue", Bounds(2, 2)) as pool:
        pids = {pool_pid(pool) for _ in range(4)}
    assert len(pids) == 2


async def test_a_spare_connection_that_died_is_replaced_on_the_loop_while_nobody_waits_for_ever(url: str) -> None:
    async with AsyncPool(url, "queue", Bounds(1, 1, wait=10)) as pool:
        async with pool.connection() as connection:
            pid = connection.info.backend_pid
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        async with pool.connection() as connection:
            assert connection.info.backend_pid != pid
        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(_use_briefly(pool))
        assert pool.use().in_use == 0


async def _use_briefly(pool: AsyncPool) -> None:
    async with pool.connection() as connection:
        await connection.execute("SELECT 1")


@pytest.mark.parametrize("steps", range(4))
async def test_a_cancellation_that_comes_together_with_the_connection_is_not_forgotten(url: str, steps: int) -> None:
    """The loop needs a few steps to give a connection to whoever waits for it; one of them is the wrong moment."""

    async def stay() -> None:
        async with pool.connection():
            await asyncio.Event().wait()

    async with AsyncPool(url, "queue", Bounds(1, 1, wait=10)) as pool:
        async with pool.connection():
            waiting = asyncio.create_task(stay())
            while not pool.use().waiting:
                await asyncio.sleep(0)
        for _ in range(steps):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting], timeout=5)
        ended = waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert ended
        async with pool.connection() as connection:
            await connection.execute("SELECT 1")


async def test_a_pool_that_is_opened_again_stays_as_it_is(url: str) -> None:
    with Pool(url, "twice", Bounds(1, 1, 0.5)).open() as pool:
        with pool.connection():
            pass  # it is kept outside of the pool from here on
        assert pool.open() is pool
    async with await AsyncPool(url, "twice", Bounds(1, 1, 0.5)).open() as other:
        async with other.connection():
            pass
        assert await other.open() is other
