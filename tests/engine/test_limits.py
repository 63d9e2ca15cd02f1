"""What a worker gives its jobs at most, and whose jobs need nobody's approval."""

import asyncio
import sys
import threading
from dataclasses import replace
from datetime import timedelta
from typing import NoReturn

import pytest
import uvloop

from kappa.engine import (
    AsyncJobContext,
    Client,
    Engine,
    EngineError,
    Executor,
    JobContext,
    JobFailed,
    JobState,
    Lane,
    WorkerConfig,
)
from kappa.engine.config import cores
from kappa.engine.loops import loop_factory
from kappa.engine.testing import Heard, drain, working
from kappa.engine.threads import BoundedThreads
from kappa.pg import Bounds
from tests.engine import work
from tests.engine.site import HOUR_MS, Site, seen
from tests.engine.work import LANE, Task

FOLLOWER = WorkerConfig(lead=False, grace=timedelta(seconds=5))


def lane(engine: Engine, kind: str, executor: Executor, slots: int = 8) -> None:
    engine.lane(Lane(LANE, kinds=(kind,), max_slots=slots, poll_interval_ms=HOUR_MS, executor=executor))
    engine.install()


# Connections


async def test_handlers_of_both_sorts_and_the_worker_share_the_pools_connections(
    engine: Engine, client: Client, heard: Heard, site: Site
) -> None:
    @engine.job("in_a_thread")
    def in_a_thread(ctx: JobContext) -> None:
        with ctx.transaction() as connection:
            connection.execute("SELECT pg_advisory_xact_lock_shared(%s, 1)", [work.GATES])

    @engine.job("on_the_loop")
    async def on_the_loop(ctx: AsyncJobContext) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("SELECT pg_advisory_xact_lock_shared(%s, 1)", [work.GATES])

    kinds = ("in_a_thread", "on_the_loop")
    engine.lane(Lane(LANE, kinds=kinds, max_slots=16, poll_interval_ms=HOUR_MS))
    engine.install()
    site.shut(1)
    for kind in kinds:
        for _ in range(8):
            client.enqueue(kind)
    async with working(engine, replace(FOLLOWER, pool=Bounds(1, 8, wait=30))):
        await heard.until("claimed", count=16)
        held = """SELECT count(*) FROM pg_locks JOIN pg_database AS d ON d.oid = database
                   WHERE datname = current_database()
                     AND locktype = 'advisory' AND classid = %s AND objid = 1 AND NOT granted"""
        await seen(lambda: site.rows(held, work.GATES) == [4])  # half of eight are the handlers'
        ours = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE %s"
        assert site.rows(ours, "kappa queue%")[0] - client.pool_use().size <= 8
        site.open(1)
        await heard.until("settled", count=16)


# Threads beside the handlers


def most_at_once(ctx: JobContext) -> int:
    """How many of ten calls that wait for each other's company ran at once."""
    inside, most = 0, 0
    lock, crowded = threading.Lock(), threading.Event()

    def call() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
            if inside == 3:
                crowded.set()
        crowded.wait(30)
        with lock:
            inside -= 1

    for done in [ctx.threads.submit(call) for _ in range(10)]:
        done.result()
    return most


@pytest.mark.parametrize("executor", [Executor.THREAD, Executor.PROCESS])
async def test_what_jobs_start_beside_themselves_is_capped(engine: Engine, client: Client, executor: Executor) -> None:
    engine.job("crowd")(most_at_once)
    lane(engine, "crowd", executor, slots=1)
    made = client.enqueue("crowd")
    await drain(engine, replace(FOLLOWER, job_threads=3))
    assert client.show(made.id).result == 3


async def test_the_cap_is_for_all_jobs_of_a_worker_together(engine: Engine, client: Client) -> None:
    gate, begun = threading.Event(), threading.Semaphore(0)

    def call() -> None:
        begun.release()
        gate.wait(30)

    @engine.job("beside")
    async def beside(ctx: AsyncJobContext) -> None:
        await asyncio.get_running_loop().run_in_executor(ctx.threads, call)

    lane(engine, "beside", Executor.ASYNC)
    for _ in range(4):
        client.enqueue("beside")
    async with working(engine, replace(FOLLOWER, job_threads=2)):
        for _ in range(2):
            assert await asyncio.to_thread(begun.acquire, timeout=30)
        await seen(lambda: client.counts().get((LANE, JobState.RUNNING)) == 4)
        assert not begun.acquire(blocking=False)
        gate.set()


def test_a_thread_is_used_again_and_errors_come_to_who_asked() -> None:
    threads = BoundedThreads(2)
    names = {threads.submit(lambda: threading.current_thread().name).result() for _ in range(20)}
    assert len(names) <= 2
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 / 0).result()
    assert sorted(threads.map(abs, [-1, -2, -3])) == [1, 2, 3]
    threads.shutdown()
    with pytest.raises(RuntimeError, match="has ended"):
        threads.submit(abs, 1)


def test_a_worker_gives_jobs_32_threads_and_as_many_processes_as_cores_by_default() -> None:
    assert (WorkerConfig().job_threads, WorkerConfig().processes) == (32, cores())


# Processes


async def test_a_process_lane_runs_no_more_handlers_here_than_there_are_cores(
    engine: Engine, client: Client, site: Site
) -> None:
    engine.job("hold")(work.hold)
    lane(engine, "hold", Executor.PROCESS, slots=8)
    site.shut(1)
    made = [client.enqueue("hold", Task(url=site.url, gate=1)).id for _ in range(3)]
    async with working(engine, replace(FOLLOWER, processes=2)):
        await asyncio.to_thread(site.until_said, "began 1", 2)
        assert client.counts() == {(LANE, JobState.RUNNING): 2, (LANE, JobState.QUEUED): 1}
        site.open(1)
        await seen(lambda: all(client.show(job).state.terminal for job in made))


# Approval


async def test_what_an_auto_approved_submitter_enqueues_waits_for_nobody(engine: Engine, client: Client) -> None:
    @engine.job("import", approval=True)
    async def run_import(ctx: AsyncJobContext) -> None: ...

    lane(engine, "import", Executor.ASYNC)
    client.auto_approve("ada")
    client.auto_approve("ada")
    assert client.auto_approved() == ["ada"]
    hers, his, nobodys = (client.enqueue("import", submitted_by=who) for who in ("ada", "bob", None))
    job = client.show(hers.id)
    assert (job.state, job.approved_by, job.expires_at) == (JobState.QUEUED, "ada", None)
    assert job.approved_at is not None
    assert {client.show(other.id).state for other in (his, nobodys)} == {JobState.AWAITING_APPROVAL}
    client.auto_approve("ada", enabled=False)
    assert client.auto_approved() == []
    assert client.show(client.enqueue("import", submitted_by="ada").id).state is JobState.AWAITING_APPROVAL
    with pytest.raises(EngineError, match="has a name"):
        client.auto_approve("")


# Small things


async def test_a_handler_that_never_returns_may_say_so(engine: Engine, client: Client) -> None:
    @engine.job("refuse")
    async def refuse(ctx: AsyncJobContext) -> NoReturn:
        raise JobFailed("never", retry=False)

    lane(engine, "refuse", Executor.ASYNC)
    made = client.enqueue("refuse")
    await drain(engine, FOLLOWER)
    assert client.show(made.id).error_summary == "never"


@pytest.mark.parametrize("executor", [Executor.THREAD, Executor.ASYNC])
async def test_a_lease_that_the_handler_finds_lost_is_told_of_once(
    engine: Engine, client: Client, heard: Heard, site: Site, executor: Executor
) -> None:
    taken: list[int] = []

    def take_lease_away(job: int) -> None:
        taken.append(job)
        site.do("UPDATE kappa.jobs SET lease_token = NULL, lease_owner = NULL, lease_until = NULL WHERE id = %s", job)

    if executor is Executor.THREAD:

        @engine.job("save", idempotent=True)
        def save(ctx: JobContext) -> None:
            if not taken:
                take_lease_away(ctx.job_id)
                ctx.checkpoint(1)
    else:

        @engine.job("save", idempotent=True)
        async def save_async(ctx: AsyncJobContext) -> None:
            if not taken:
                take_lease_away(ctx.job_id)
                await ctx.checkpoint(1)

    lane(engine, "save", executor, slots=1)
    made = client.enqueue("save")
    # No start is marked however long it takes: a marked one would be retried later, which a leader has to bring about.
    async with working(engine, replace(FOLLOWER, start_mark_after=timedelta(hours=1))):
        await heard.until("lease_lost", job=made.id)
        client.edit_lane(LANE, poll_interval_ms=10)
        await seen(lambda: client.show(made.id).state is JobState.SUCCEEDED)
    assert len(heard.all("lease_lost", job=made.id)) == 1


def test_a_worker_process_uses_uvloop_where_it_is_installed_and_the_standard_loop_where_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert loop_factory() is uvloop.new_event_loop
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert loop_factory() is asyncio.new_event_loop
