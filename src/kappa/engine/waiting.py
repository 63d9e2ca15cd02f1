"""Waiting for an event, but not for ever.

Not by `asyncio.wait_for`: up to Python 3.11 it swallows a cancellation that comes together with the event, and a
service that hears many events then never ends.
"""

import asyncio


async def happens(event: asyncio.Event, within: float | None) -> bool:
    """Whether the event was set before the time was over; None waits as long as it takes."""
    try:
        async with asyncio.timeout(within):
            await event.wait()
    except TimeoutError:
        return False
    return True
