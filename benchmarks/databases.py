"""Databases on the benchmarks' embedded server."""

from contextlib import closing

import psycopg
from psycopg import sql

from kappa.pg.embedded import ROLE, EmbeddedServer


def create_database(server: EmbeddedServer, name: str) -> str:
    """The URL of a new database of Kappa's own role, which may fill tables here without their triggers."""
    with closing(psycopg.connect(server.superuser_url(database="postgres"), autocommit=True)) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(name), sql.Identifier(ROLE)))
        admin.execute(sql.SQL("GRANT SET ON PARAMETER session_replication_role TO {}").format(sql.Identifier(ROLE)))
    return server.url(database=name, by_socket=True)
