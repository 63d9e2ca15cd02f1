"""LISTEN on a connection of its own that comes back when it is lost.

NOTIFY keeps nothing for those who were away. So a `Listening` event follows every connection, also the first:
whatever happened before it may have been missed, and the caller looks at the tables once.
"""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import AsyncConnection, sql

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
    while True:
        try:
            connection = await AsyncConnection.connect(
                url, autocommit=True, application_name="kappa listen", connect_timeout=10
            )
            async with connection:
                for channel in channels:
                    await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
                retry = FIRST_RETRY
                yield Listening()
                while True:
                    async for notify in connection.notifies(timeout=PROBE_AFTER):
                        yield Notification(notify.channel, notify.payload)
                    await connection.execute(b"")
        except psycopg.OperationalError as error:
            lost()
            log.warning("listener lost its connection, next try in %.1f s: %s", retry, _one_line(error))
            await asyncio.sleep(retry * random.uniform(0.8, 1.2))  # noqa: S311
            retry = min(retry * 2, LAST_RETRY)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
