"""A session in a handler's transaction is ended once its lease is lost, and not before."""

import logging
from collections.abc import Iterator

import psycopg
import pytest

from kappa.engine import Engine
from kappa.engine.store import jobs, lanes, maintenance
from kappa.engine.testing import maintain
from kappa.pg.ops import run
from tests.engine.hands import Connection, put, reap, start, take
from tests.ground import eventually


@pytest.fixture
def frozen(url: str) -> Iterator[Connection]:
    """A session of a worker that does nothing more."""
    with psycopg.connect(url) as opened:
        yield opened
        opened.close()


def is_there(connection: Connection, session: Connection) -> bool:
    found = connection.execute("SELECT FROM pg_stat_activity WHERE pid = %s", [session.info.backend_pid])
    return bool(found.fetchall())


def end_lost(connection: Connection) -> dict[int, bool]:
    return run(connection, maintenance.end_lost_transactions())


async def test_the_reaper_ends_a_transaction_whose_lease_ran_out(
    engine: Engine, connection: Connection, frozen: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    claimed = start(connection, max_attempts=2)
    run(frozen, jobs.share_lease(claimed.token))
    await maintain(engine, only=lambda name: name == "reaper")
    assert is_there(connection, frozen)
    connection.execute("UPDATE kappa.jobs SET lease_until = now() WHERE state = 'running'")
    with caplog.at_level(logging.WARNING):
        await maintain(engine, only=lambda name: name == "reaper")
    eventually(lambda: not is_there(connection, frozen), what="the session is ended")
    assert f"ended session {frozen.info.backend_pid}" in caplog.text


def test_a_transaction_whose_lease_is_a_batchs_is_let_alone_until_that_is_lost(
    connection: Connection, frozen: Connection
) -> None:
    run(connection, lanes.edit_lane("interactive", {"executor": "async", "max_slots": 4}))
    for _ in range(3):
        put(connection, max_attempts=3)
    claimed = take(connection, light_kinds=["ingestion"])
    assert all(one.light for one in claimed)
    run(frozen, jobs.share_lease(claimed[0].token))
    assert end_lost(connection) == {}
    reap(connection)
    assert end_lost(connection) == {frozen.info.backend_pid: True}


def test_a_lease_with_the_same_number_as_a_lost_one_saves_its_session_and_is_not_harmed(
    url: str, connection: Connection, frozen: Connection
) -> None:
    claimed = start(connection)
    run(frozen, jobs.share_lease(claimed.token - 2**32))
    with psycopg.connect(url) as healthy:
        run(healthy, jobs.share_lease(claimed.token))
        assert end_lost(connection) == {}
        run(connection, jobs.release([(claimed.id, claimed.token)]))
        assert set(end_lost(connection)) == {frozen.info.backend_pid, healthy.info.backend_pid}
        healthy.close()


@pytest.mark.parametrize("token", [1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1])
def test_every_token_has_a_number(connection: Connection, frozen: Connection, token: int) -> None:
    claimed = start(connection)
    connection.execute("UPDATE kappa.jobs SET lease_token = %s WHERE id = %s", [token, claimed.id])
    run(frozen, jobs.share_lease(token))
    assert end_lost(connection) == {}
    run(connection, jobs.release([(claimed.id, token)]))
    assert end_lost(connection) == {frozen.info.backend_pid: True}


def test_a_session_that_waits_for_a_lock_in_a_lost_transaction_is_ended(
    url: str, connection: Connection, frozen: Connection
) -> None:
    """One that its client doesn't wait for any more."""
    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE kappa.auto_approved")
        run(frozen, jobs.share_lease(1))
        frozen.pgconn.send_query(b"SELECT FROM kappa.auto_approved")
        waits = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        eventually(lambda: connection.execute(waits, [frozen.info.backend_pid]).fetchall())
        assert end_lost(connection) == {frozen.info.backend_pid: True}
        eventually(lambda: not is_there(connection, frozen), what="the session is ended")


async def test_a_session_that_may_not_be_ended_is_named(
    engine: Engine, connection: Connection, frozen: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    connection.execute(
        """CREATE FUNCTION public.pg_terminate_backend(int) RETURNS boolean LANGUAGE plpgsql AS $$
           BEGIN RAISE insufficient_privilege; END $$"""
    )
    connection.execute("ALTER FUNCTION kappa.end_lost_transactions SET search_path = public, pg_catalog")
    run(frozen, jobs.share_lease(1))
    await maintain(engine, only=lambda name: name == "reaper")
    assert f"session {frozen.info.backend_pid} is in the transaction of a job whose lease is lost" in caplog.text
    assert is_there(connection, frozen)
