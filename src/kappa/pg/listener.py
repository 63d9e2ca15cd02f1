"""LISTEN on a connection of its own that comes back when it is lost.

NOTIFY keeps nothing for those who were away. So a `Listening` event follows every connection, also the first:
whatever happened before it may have been missed, and the caller looks at the tables once.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import AsyncConnection, sql

from kappa.pg.queries import Row

log = logging.getLogger(__name__)

FIRST_RETRY = 0.1
LAST_RETRY = 5.0
# A connection that a firewall forgot looks idle for ever; asking now and then finds out.
PROBE_AFTER = 30.0


@dataclass(frozen=True, slots=True)
class Notification:
    """Somebody said NOTIFY."""

    channel: str
    payload: str


@dataclass(frozen=True, slots=True)
class Listening:
    """The connection stands from now on; what came before may have been missed."""


async def listen(
    url: str, channels: Sequence[str], *, lost: Callable[[], None] = lambda: None
) -> AsyncGenerator[Notification | Listening]:
    """Events of the channels, for ever, across lost connections.

    The URL must lead to the server itself: a pooler in transaction mode loses notifications. Close the
    iterator (or cancel the task that reads it) to close the connection. `lost` is called when it is lost: nothing is
    heard from then on until the next `Listening`.
    """
    retry = FIRST_RETRY
    heard: deque[Notification] = deque()
    while True:
        try:
            connection = await AsyncConnection.connect(
                url, autocommit=True, application_name="kappa listen", connect_timeout=10
            )
            async with connection:
                heard.clear()
                connection.add_notify_handler(lambda told: heard.append(Notification(told.channel, told.payload)))
                for channel in channels:
                    await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
                retry = FIRST_RETRY
                yield Listening()
                while True:
                    while heard:
                        yield heard.popleft()
                    if await _readable(connection, PROBE_AFTER):
                        _take_in(connection, heard)
                    else:
                        await connection.execute(b"")
        except psycopg.OperationalError as error:
            lost()
            log.warning("listener lost its connection, next try in %.1f s: %s", retry, _one_line(error))
            await asyncio.sleep(retry * random.uniform(0.8, 1.2))  # noqa: S311
            retry = min(retry * 2, LAST_RETRY)


# What psycopg offers for this looks up ten times a second, and is three generators deep: whoever is woken waits for it.


async def _readable(connection: AsyncConnection[Row], seconds: float) -> bool:
    """Whether something came within so long."""
    loop = asyncio.get_running_loop()
    news: asyncio.Future[bool] = loop.create_future()

    def tell(came: bool) -> None:
        if not news.done():
            news.set_result(came)

    socket = connection.fileno()
    loop.add_reader(socket, tell, True)
    timer = loop.call_later(seconds, tell, False)
    try:
        return await news
    finally:
        timer.cancel()
        loop.remove_reader(socket)


def _take_in(connection: AsyncConnection[Row], heard: deque[Notification]) -> None:
    connection.pgconn.consume_input()
    while (told := connection.pgconn.notifies()) is not None:
        encoding = connection.info.encoding
        heard.append(Notification(told.relname.decode(encoding), told.extra.decode(encoding)))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
