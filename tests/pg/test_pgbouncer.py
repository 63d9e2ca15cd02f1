"""Behind PgBouncer in transaction mode: pools through the pooler, LISTEN beside it."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from kappa.pg import Bounds, Database, component, listen, migrate
from tests.ground import eventually, require_program


@pytest.fixture
def pooled_url(url: str, tmp_path: Path) -> Iterator[str]:
    program = require_program("pgbouncer")
    address = conninfo_to_dict(url)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "users.txt").write_text(f'"{address["user"]}" "{address["password"]}"\n')
    (tmp_path / "pgbouncer.ini").write_text(
        f"[databases]\n* = host={address['host']} port={address['port']}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nunix_socket_dir =\nauth_type = scram-sha-256\n"
        f"auth_file = {tmp_path / 'users.txt'}\npool_mode = transaction\ndefault_pool_size = 2\n"
    )
    # PgBouncer refuses to be root, and another account can't read a test's private directory.
    config: Path = tmp_path / "pgbouncer.ini"
    user = None
    if os.geteuid() == 0:
        user = "nobody"
        shared = Path("/var/tmp") / f"kappa-pgbouncer-{os.getpid()}"
        shutil.copytree(tmp_path, shared)
        config = shared / "pgbouncer.ini"
        config.write_text(config.read_text().replace(str(tmp_path), str(shared)))
        for path in (shared, *shared.iterdir()):
            shutil.chown(path, user)
    process = subprocess.Popen([program, "-q", str(config)], user=user, cwd="/", stderr=subprocess.DEVNULL)
    pooled = make_conninfo(url, port=port)

    def answers() -> bool:
        try:
            psycopg.connect(pooled).close()
        except psycopg.OperationalError:
            return False
        return True

    try:
        eventually(answers, what="PgBouncer answers")
        yield pooled
    finally:
        process.terminate()
        process.wait()
        if user:
            shutil.rmtree(config.parent)


def test_pools_work_through_a_pooler_that_gives_every_transaction_another_session(url: str, pooled_url: str) -> None:
    database = Database(pooled_url, url, {"queue": Bounds(1, 8)})

    def ask(number: int) -> int:
        with pools["queue"].transaction() as connection:
            row = connection.execute("SELECT %s::int + 1", [number]).fetchone()
            assert row is not None
            return int(row[0])

    with database.pools() as pools, ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, range(400))) == [number + 1 for number in range(400)]


def test_migrations_run_through_the_pooler(empty_url: str, pooled_url: str, tmp_path: Path) -> None:
    steps = tmp_path / "steps"
    steps.mkdir()
    (steps / "0001_one.sql").write_text("CREATE TABLE kappa.one ()")
    through = make_conninfo(pooled_url, dbname=empty_url.rsplit("/", 1)[1])
    with psycopg.connect(through, autocommit=True, prepare_threshold=None) as connection:
        assert len(migrate(connection, [component("part", steps)])) == 1


async def test_what_is_notified_through_the_pooler_is_heard_beside_it(url: str, pooled_url: str) -> None:
    database = Database(pooled_url, url, {"queue": Bounds(1, 1)})
    events = listen(database.direct_url, ["lane"])
    await anext(events)
    async with database.async_pools() as pools, pools["queue"].connection() as connection:
        await connection.execute("NOTIFY lane, 'tools'")
    heard = await anext(events)
    await events.aclose()
    assert getattr(heard, "payload", None) == "tools"
