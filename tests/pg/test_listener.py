"""LISTEN that survives its connection."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import psycopg
import pytest

from kappa.pg import Listening, Notification, listen
from tests.ground import eventually

Events = AsyncGenerator[Notification | Listening]


async def following(events: Events) -> Notification | Listening:
    return await asyncio.wait_for(anext(events), 30)


@pytest.fixture
async def events(url: str) -> AsyncIterator[Events]:
    opened = listen(url, ["lane", "Odd name"])
    yield opened
    await opened.aclose()


async def test_it_says_when_it_listens_and_then_what_it_hears(
    events: Events, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    assert await following(events) == Listening()
    connection.execute("SELECT pg_notify('lane', 'tools'), pg_notify('Odd name', '')")
    assert await following(events) == Notification("lane", "tools")
    assert await following(events) == Notification("Odd name", "")


async def test_after_a_lost_connection_it_says_that_something_may_have_been_missed(
    events: Events, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    assert await following(events) == Listening()
    connection.execute(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        " WHERE application_name = 'kappa listen' AND datname = current_database()"
    )
    connection.execute("NOTIFY lane, 'lost'")
    assert await following(events) == Listening()
    connection.execute("NOTIFY lane, 'heard'")
    assert await following(events) == Notification("lane", "heard")


async def test_a_closed_listener_leaves_no_connection(
    url: str, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    opened = listen(url, ["lane"])
    assert await following(opened) == Listening()
    await opened.aclose()
    eventually(
        lambda: (
            connection.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE application_name = 'kappa listen' AND datname = current_database()"
            ).fetchone()
            == (0,)
        ),
        what="the connection is gone",
    )
