"""Ends that come also when something is in the way."""

import asyncio

from kappa.engine.waiting import end


async def test_a_task_that_outlives_a_cancellation_is_cancelled_again() -> None:
    refusals = 0

    async def stubborn() -> None:
        nonlocal refusals
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                refusals += 1
                if refusals == 2:
                    raise

    async def broken() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ConnectionError("lost")

    tasks = [asyncio.create_task(stubborn()), asyncio.create_task(broken())]
    await asyncio.sleep(0)
    await end(tasks)
    assert all(task.done() for task in tasks)
    assert refusals == 2
