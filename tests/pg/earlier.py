"""Clusters as versions before 0.2 made them: `kappa` is the superuser, and as root all of it belongs to `nobody`."""

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psycopg

from kappa.pg.embedded import find_binaries
from kappa.pg.embedded.binaries import Account
from kappa.pg.embedded.cluster import Passage, clean_environment
from tests.ground import PATIENCE

NOBODY = 65534
PASSWORD = "of-an-earlier-version"


def make_earlier_cluster(home: Path, uid: int | None, statements: Sequence[str], databases: Sequence[str] = ()) -> None:
    """Make it, with what the statements make in the database `kappa`, and in the others."""
    place = home / "postgres"
    home.mkdir(mode=0o700)
    place.mkdir(mode=0o711)
    account = None if uid is None else Account("nobody", uid, uid)
    for path in (place / "data", place / "run"):
        path.mkdir(mode=0o700)
        if account is not None:
            os.chown(path, account.uid, account.gid)
    secret = place / "password"
    secret.touch(mode=0o600)
    secret.write_text(PASSWORD)
    binaries = find_binaries() if account is None else find_binaries().reachable_for(account)
    if account is not None:
        os.chown(secret, account.uid, account.gid)
    with Passage(account) as passage:
        command = [
            *(str(binaries.program("initdb")), "-D", passage.path(place / "data"), "-U", "kappa"),
            *("-A", "scram-sha-256", f"--pwfile={passage.path(secret)}", "--encoding=UTF8", "--locale=C.UTF-8"),
            *("--locale-provider=builtin", "--no-instructions", "--no-sync"),
        ]
        made = passage.popen(command, env=clean_environment(), stdout=subprocess.PIPE)
        output, _ = made.communicate()
        assert made.returncode == 0, output.decode()
    if account is not None:
        os.chown(secret, 0, 0)
    with Passage(account) as passage:
        command = [
            *(str(binaries.program("postgres")), "-D", passage.path(place / "data"), "-c", "listen_addresses="),
            *("-c", "unix_socket_directories=../run", "-c", "port=5432", "-c", "fsync=off"),
        ]
        server = passage.popen(command, env=clean_environment(), stdout=subprocess.DEVNULL)
    try:
        with _connect(place / "run", "postgres") as connection:
            for name in ("kappa", *databases):
                connection.execute(f'CREATE DATABASE "{name}"'.encode())
        for name in ("kappa", *databases):
            with _connect(place / "run", name) as connection:
                for statement in statements:
                    connection.execute(statement.encode())
    finally:
        server.terminate()
        server.wait()


def _connect(run: Path, database: str) -> psycopg.Connection[tuple[object, ...]]:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return psycopg.connect(
                host=str(run), port=5432, user="kappa", password=PASSWORD, dbname=database, autocommit=True
            )
        except psycopg.OperationalError:
            assert time.monotonic() < until
            time.sleep(0.05)
