"""A host that vanishes is noticed within seconds, at both ends."""

import psycopg
import pytest

from kappa.pg import AsyncPool, Bounds, Pool, keepalive

SETTINGS = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout")


def _asked(connection: psycopg.Connection[tuple[object, ...]]) -> list[object]:
    rows = [connection.execute("SELECT current_setting(%s)", [name]).fetchone() for name in SETTINGS]
    return [row[0] for row in rows if row]


def test_the_server_looks_after_a_pooled_session(url: str) -> None:
    with Pool(url, "test", Bounds(1, 1)) as pool, pool.connection() as connection:
        assert _asked(connection) == ["15", "5", "3", "30000"]


async def test_and_after_one_of_an_event_loop(url: str) -> None:
    async with AsyncPool(url, "test", Bounds(1, 1)) as pool, pool.connection() as connection:
        row = await (await connection.execute("SELECT current_setting('tcp_keepalives_idle')")).fetchone()
    assert row == ("15",)


def test_what_the_url_says_is_left_as_it_is(url: str) -> None:
    own = f"{url}?keepalives_idle=77&options=-c%20tcp_keepalives_idle%3D88%20-c%20work_mem%3D5MB"
    with Pool(own, "test", Bounds(1, 1)) as pool, pool.connection() as connection:
        assert connection.execute("SELECT current_setting('work_mem')").fetchone() == ("5MB",)
        assert _asked(connection) == ["88", "5", "3", "30000"]
        assert connection.info.get_parameters()["keepalives_idle"] == "77"


def test_and_so_is_what_the_environment_says(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c work_mem=6MB")
    with Pool(url, "test", Bounds(1, 1)) as pool, pool.connection() as connection:
        assert connection.execute("SELECT current_setting('work_mem')").fetchone() == ("6MB",)
        assert _asked(connection)[0] == "15"


def test_a_pooler_is_sent_nothing_for_the_server(url: str) -> None:
    assert "options" not in keepalive.options(url, direct=False)
    with Pool(url, "test", Bounds(1, 1), behind_pooler=True) as pool, pool.connection() as connection:
        assert connection.info.get_parameters()["tcp_user_timeout"] == "30000"
        assert _asked(connection)[0] != "15"
