"""Calls of an async handler's context that nobody awaits: the attempt fails and says so."""

import asyncio
from typing import Any

import pytest

from kappa.engine import AsyncJobContext, Client, Engine, Executor, Job, JobState, Lane, Retry, WorkerConfig
from kappa.engine.testing import drain
from tests.engine.site import Site
from tests.engine.work import LANE

FOLLOWER = WorkerConfig(lead=False)
CALLS: dict[str, tuple[Any, ...]] = {
    "checkpoint": ({"page": 7},),
    "last_checkpoint": (),
    "spawn": ("child",),
    "gather": ("#1",),
}


@pytest.fixture(autouse=True)
def lane(engine: Engine) -> None:
    engine.lane(Lane(LANE, kinds=("careless", "child"), executor=Executor.ASYNC))

    @engine.job("child")
    async def child(ctx: AsyncJobContext) -> int:
        return ctx.job_id


async def ended(engine: Engine, client: Client, kind: str = "careless") -> Job:
    engine.install()
    made = client.enqueue(kind)
    await drain(engine, FOLLOWER)
    return client.show(made.id)


@pytest.mark.parametrize("name", CALLS)
async def test_a_handler_that_does_not_await_a_method_of_its_context_fails_for_good(
    engine: Engine, client: Client, name: str
) -> None:
    @engine.job("careless", idempotent=True)
    async def careless(ctx: AsyncJobContext) -> None:
        getattr(ctx, name)(*CALLS[name])

    done = await ended(engine, client)
    assert (done.state, done.attempt) == (JobState.FAILED, 1)
    summary = done.error_summary or ""
    assert "'careless'" in summary
    assert f"`await ctx.{name}(...)`" in summary


@pytest.mark.parametrize("value", [7, Retry()], ids=["a result", "a retry"])
async def test_it_fails_whatever_it_returns(engine: Engine, client: Client, value: object) -> None:
    @engine.job("careless", idempotent=True)
    async def careless(ctx: AsyncJobContext) -> Any:
        ctx.checkpoint(1)  # pyright: ignore[reportUnusedCoroutine]
        await ctx.spawn("child")
        return value

    done = await ended(engine, client)
    assert (done.state, done.attempt, done.result) == (JobState.FAILED, 1, None)
    assert "await ctx.checkpoint(...)" in (done.error_summary or "")


async def test_what_it_wrote_in_its_transaction_is_undone(engine: Engine, client: Client, site: Site) -> None:
    @engine.job("careless")
    async def careless(ctx: AsyncJobContext) -> None:
        ctx.checkpoint(1)  # pyright: ignore[reportUnusedCoroutine]
        async with ctx.transaction() as connection:
            await connection.execute("INSERT INTO written (line) VALUES ('no')")

    assert (await ended(engine, client)).state is JobState.FAILED
    assert site.written == []


async def test_an_exception_stays_what_it_is_and_its_traceback_names_the_missing_await(
    engine: Engine, client: Client
) -> None:
    @engine.job("careless")
    async def careless(ctx: AsyncJobContext) -> None:
        ctx.checkpoint(1)  # pyright: ignore[reportUnusedCoroutine]
        raise RuntimeError("first")

    done = await ended(engine, client)
    assert done.error_summary == "the handler failed with RuntimeError"
    assert "await ctx.checkpoint(...)" in (done.error_detail or "")


async def test_calls_that_are_awaited_in_any_way_are_as_good(engine: Engine, client: Client) -> None:
    @engine.job("careless")
    async def careful(ctx: AsyncJobContext) -> list[Any]:
        first = asyncio.create_task(ctx.spawn("child", key="task"))
        together = await asyncio.gather(ctx.spawn("child", key="gathered"), first)
        async with asyncio.TaskGroup() as group:
            in_group = group.create_task(ctx.spawn("child", key="in a group"))
        in_time = await asyncio.wait_for(ctx.spawn("child", key="in time"), 30)
        await asyncio.shield(ctx.checkpoint({"page": 7}))
        given_up = asyncio.create_task(ctx.checkpoint("never"))
        given_up.cancel()
        await asyncio.wait([given_up])
        ctx.checkpoint("never").close()
        return [*together, in_group.result(), in_time, await ctx.last_checkpoint()]

    done = await ended(engine, client)
    assert (done.state, done.error_summary) == (JobState.SUCCEEDED, None)
    assert done.result == ["gathered", "task", "in a group", "in time", {"page": 7}]


async def test_a_blocking_handler_that_returns_a_coroutine_is_told_to_be_async(engine: Engine, client: Client) -> None:
    async def work() -> int:
        return 1

    engine.job("careless")(lambda ctx: work())
    done = await ended(engine, client)
    assert done.state is JobState.FAILED
    assert "`async def`" in (done.error_summary or "")


async def test_an_async_handler_that_returns_a_coroutine_of_its_own_is_told_to_await_it(
    engine: Engine, client: Client
) -> None:
    async def work() -> int:
        return 1

    @engine.job("careless")
    async def careless(ctx: AsyncJobContext) -> Any:
        return work()

    done = await ended(engine, client)
    assert done.state is JobState.FAILED
    assert "await it" in (done.error_summary or "")
