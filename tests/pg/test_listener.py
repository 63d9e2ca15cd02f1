"""LISTEN that survives its connection."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import psycopg
import pytest

from kappa.pg import Listening, Notification, listen, listener
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
    connection.execute("NOTIFY lane, 'naïve ☃'")
    assert await following(events) == Notification("lane", "naïve ☃")


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


async def test_what_comes_while_it_looks_whether_its_connection_lives_is_heard(
    monkeypatch: pytest.MonkeyPatch, events: Events, connection: psycopg.Connection[tuple[object, ...]]
) -> None:
    monkeypatch.setattr(listener, "PROBE_AFTER", 0.0)  # so that it does nothing but look
    assert await following(events) == Listening()
    heard: list[Notification | Listening] = []
    for number in range(100):
        connection.execute("SELECT pg_notify('lane', %s)", [str(number)])
        heard.append(await following(events))
    assert heard == [Notification("lane", str(number)) for number in range(100)]


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
