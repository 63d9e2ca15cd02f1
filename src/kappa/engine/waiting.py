"""Waiting for an event, but not for ever, and for tasks to end.

Not by `asyncio.wait_for`: up to Python 3.11 it swallows a cancellation that comes together with the event, and a
service that hears many events then never ends.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

CANCEL_AGAIN = 1.0


async def happens(event: asyncio.Event, within: float | None) -> bool:
    """Whether the event was set before the time was over; None waits as long as it takes."""
    try:
        async with asyncio.timeout(within):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def end(tasks: "Iterable[asyncio.Task[Any]]") -> None:
    """Cancel tasks until they have ended, whatever they end with.

    Once is not enough: a statement that is cancelled while its connection breaks raises the connection's error, and a
    service that outlives such errors goes on.
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        done, left = await asyncio.wait(left, timeout=CANCEL_AGAIN)
        for task in done:
            if not task.cancelled():
                task.exception()  # was seen: nobody is to be told that it was not
