"""Handlers and what their contexts do, in threads, on the event loop and in child processes."""

import asyncio
import math
import multiprocessing
import os
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from types import ModuleType

import pytest

from kappa.engine import (
    AsyncJobContext,
    BadPayload,
    Client,
    Engine,
    Executor,
    Job,
    JobContext,
    JobFailed,
    JobState,
    Lane,
    LeaseLost,
    WorkerConfig,
    executors,
    office,
)
from kappa.engine.testing import Heard, drain, maintain, working
from tests.engine.site import HOUR_MS, Site, place, seen, time_is_up
from tests.engine.work import LANE, child_async, outcome_async
from tests.ground import eventually
from tests.leases import lose_lease

HOUR = timedelta(hours=1)
FOLLOWER = WorkerConfig(lead=False, grace=timedelta(seconds=5))
"""Time moves only when the test says so."""


@pytest.fixture(params=[Executor.THREAD, Executor.ASYNC, Executor.PROCESS], ids=lambda executor: executor.value)
def executor(request: pytest.FixtureRequest) -> Executor:
    return request.param


async def ended(engine: Engine, client: Client, kind: str, payload: object = None) -> Job:
    """A job of that kind after a worker had nothing left to do."""
    made = client.enqueue(kind, payload)
    await drain(engine, FOLLOWER)
    return client.show(made.id)


async def promoted(engine: Engine) -> None:
    await maintain(engine, later=24 * HOUR, only=lambda name: name == "promoter")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


RELEASE_AT_GATE = """
CREATE FUNCTION wait_at_release() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(4242, 78);
    RETURN NEW;
END $$;
CREATE TRIGGER wait_at_release BEFORE UPDATE ON kappa.jobs FOR EACH ROW
    WHEN (NEW.waiting AND NOT OLD.waiting) EXECUTE FUNCTION wait_at_release();
"""
RELEASE_WAITS = """
SELECT 1 FROM pg_stat_activity
 WHERE wait_event = 'advisory' AND datname = current_database() AND query LIKE '%%SET waiting = true%%'
"""

# Payloads and results


async def test_payloads_and_results_have_the_types_of_the_handler(
    engine: Engine, client: Client, executor: Executor
) -> None:
    place(engine, executor, "add")
    done = await ended(engine, client, "add", {"left": 2, "right": "3"})
    assert (done.state, done.result) == (JobState.SUCCEEDED, {"total": 5})


def test_a_payload_of_the_wrong_type_is_refused_and_makes_no_job(engine: Engine, client: Client) -> None:
    place(engine, Executor.THREAD, "add")
    with pytest.raises(BadPayload, match="right"):
        client.enqueue("add", {"left": 2})
    assert client.counts() == {}


async def test_a_result_of_the_wrong_type_fails_the_job_and_says_why(
    engine: Engine, client: Client, executor: Executor
) -> None:
    place(engine, executor, "give", idempotent=True)
    done = await ended(engine, client, "give", "not a number")
    assert done.state is JobState.FAILED
    assert "gave a result that isn't one" in (done.error_summary or "")


async def test_a_handler_that_forgets_its_result_fails(engine: Engine, client: Client, executor: Executor) -> None:
    place(engine, executor, "give")
    done = await ended(engine, client, "give", None)
    assert done.state is JobState.FAILED


async def test_a_payload_that_its_type_no_longer_takes_fails_for_good_without_a_run(
    engine: Engine, client: Client, site: Site, executor: Executor
) -> None:
    place(engine, executor, "add", idempotent=True)
    made = client.enqueue("add", {"left": 1, "right": 2})
    site.do("UPDATE kappa.jobs SET payload = '{}' WHERE id = %s", made.id)
    await drain(engine, FOLLOWER)
    done = client.show(made.id)
    assert done.state is JobState.FAILED
    assert "left" in (done.error_summary or "")


async def test_blocking_handlers_run_in_threads_async_ones_on_the_loop_and_process_ones_elsewhere(
    engine: Engine, client: Client, executor: Executor
) -> None:
    place(engine, executor, "where")
    pid, thread = (await ended(engine, client, "where")).result
    assert (pid == os.getpid()) is (executor is not Executor.PROCESS)
    if executor is not Executor.PROCESS:
        assert (thread == threading.get_ident()) is (executor is Executor.ASYNC)


async def test_a_blocking_handler_in_an_async_lane_does_not_block_the_loop(engine: Engine, client: Client) -> None:
    started, free = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @engine.job("block")
    def block(ctx: JobContext) -> None:
        loop.call_soon_threadsafe(started.set)
        assert free.wait(30)

    engine.lane(Lane(LANE, kinds=("block",), executor=Executor.ASYNC))
    engine.install()
    made = client.enqueue("block")
    async with working(engine, FOLLOWER):
        await started.wait()
        free.set()
        await seen(lambda: client.show(made.id).state is JobState.SUCCEEDED)


async def test_a_context_tells_the_facts_of_its_job(engine: Engine, client: Client, executor: Executor) -> None:
    place(engine, executor, "facts", idempotent=True)
    done = await ended(engine, client, "facts")
    assert done.result == [done.id, "facts", LANE, 1, 3, False, False]


# Progress, checkpoints, cancelling


async def test_progress_is_seen_while_the_job_runs(
    engine: Engine, client: Client, site: Site, executor: Executor
) -> None:
    place(engine, executor, "report")
    site.shut(1)
    made = client.enqueue("report", site.task(gate=1))
    async with working(engine, FOLLOWER):
        running = await seen(lambda: job if (job := client.show(made.id)).progress_done is not None else None)
        assert (running.state, running.progress_done, running.progress_total, running.progress_message) == (
            JobState.RUNNING, 3, 10, "reading",
        )  # fmt: skip
        site.open(1)
        await seen(lambda: client.show(made.id).state.terminal)


async def test_the_last_progress_is_kept_with_the_finished_job(
    engine: Engine, client: Client, site: Site, executor: Executor
) -> None:
    place(engine, executor, "report")
    done = await ended(engine, client, "report", site.task())
    assert (done.progress_done, done.progress_message) == (10, "done")


async def test_a_checkpoint_is_read_by_the_next_attempt(engine: Engine, client: Client, executor: Executor) -> None:
    place(engine, executor, "resume", idempotent=True)
    made = client.enqueue("resume")
    await drain(engine, FOLLOWER)
    await promoted(engine)
    await drain(engine, FOLLOWER)
    done = client.show(made.id)
    assert (done.state, done.attempt, done.result) == (JobState.SUCCEEDED, 2, {"page": 7})


async def test_a_running_job_that_is_cancelled_stops_at_its_next_look_with_the_reason_that_was_given(
    engine: Engine, client: Client, site: Site, executor: Executor
) -> None:
    place(engine, executor, "until_cancelled", idempotent=True)
    made = client.enqueue("until_cancelled", site.task())
    async with working(engine, FOLLOWER):
        await asyncio.to_thread(site.until_said, "began")
        assert client.cancel(made.id, "not needed") is JobState.RUNNING
        await seen(lambda: client.show(made.id).state.terminal)
    done = client.show(made.id)
    assert (done.state, done.reason) == (JobState.CANCELLED, "not needed")


@pytest.mark.parametrize("name", ["retry", "snooze", "raise"])
async def test_a_cancelled_job_is_not_put_back_whatever_its_handler_says(
    engine: Engine, client: Client, name: str
) -> None:
    began, free = asyncio.Event(), asyncio.Event()

    @engine.job("slow", idempotent=True)
    async def slow(ctx: AsyncJobContext) -> object:
        began.set()
        await free.wait()
        while not ctx.cancelled:
            await asyncio.sleep(0.001)
        return await outcome_async(ctx, name)

    engine.lane(Lane(LANE, kinds=("slow",), executor=Executor.ASYNC))
    engine.install()
    made = client.enqueue("slow")
    async with working(engine, FOLLOWER):
        await began.wait()
        client.cancel(made.id, "not needed")
        free.set()
        await seen(lambda: client.show(made.id).state is not JobState.RUNNING)
    assert client.show(made.id).state is JobState.CANCELLED


# The handler's own transaction


async def test_writes_in_the_transaction_and_the_settling_commit_together(
    engine: Engine, client: Client, site: Site, executor: Executor
) -> None:
    place(engine, executor, "write")
    site.shut(1)
    made = client.enqueue("write", site.task(gate=1, text="kept"))
    async with working(engine, FOLLOWER):
        await asyncio.to_thread(site.until_said, "wrote 1")
        assert (site.written, site.state(made.id)) == ([], "running")
        site.open(1)
        await seen(lambda: site.state(made.id) == "succeeded")
    assert (site.written, client.show(made.id).result) == (["kept 1"], "kept")


async def test_writes_in_the_transaction_are_undone_when_the_handler_raises(
    engine: Engine, client: Client, site: Site, executor: Executor
) -> None:
    place(engine, executor, "write")
    done = await ended(engine, client, "write", site.task(text="raise"))
    assert (done.state, site.written, site.said) == (JobState.FAILED, [], ["wrote 1"])


async def test_writes_in_the_transaction_are_undone_when_the_handler_asks_for_a_retry(
    engine: Engine, client: Client, site: Site, executor: Executor
) -> None:
    place(engine, executor, "write_and_retry", idempotent=True)
    done = await ended(engine, client, "write_and_retry")
    assert (done.state, site.written) == (JobState.SCHEDULED, [])


async def test_writes_in_the_transaction_are_undone_when_the_lease_was_lost(
    engine: Engine, client: Client, site: Site, executor: Executor
) -> None:
    place(engine, executor, "write", idempotent=True)
    site.shut(1)
    made = client.enqueue("write", site.task(gate=1))
    async with working(engine, FOLLOWER):
        await asyncio.to_thread(site.until_said, "wrote 1")
        await seen(lambda: client.show(made.id).attempt == 1)
        await lose_lease(engine, made.id)
        await seen(lambda: site.state(made.id) == "scheduled")
        site.open(1)
    assert (site.written, site.state(made.id)) == ([], "scheduled")


async def test_blocks_of_the_transaction_share_it_and_one_that_fails_is_undone_alone(
    engine: Engine, client: Client, site: Site, executor: Executor
) -> None:
    place(engine, executor, "write_twice")
    done = await ended(engine, client, "write_twice")
    assert (done.state, site.written) == (JobState.SUCCEEDED, ["first", "second"])


async def test_a_transaction_that_the_database_refuses_at_its_commit_fails_the_job(
    engine: Engine, client: Client, site: Site, executor: Executor
) -> None:
    place(engine, executor, "write_badly")
    made = client.enqueue("write_badly")
    async with working(engine, FOLLOWER):
        await seen(lambda: site.state(made.id) != "queued" and site.owner(made.id) is None)
    done = client.show(made.id)
    assert (done.state, site.written) == (JobState.FAILED, [])
    assert "violates foreign key" not in (done.error_summary or "")
    assert "violates foreign key" in (done.error_detail or "")


async def test_an_async_handler_that_is_cut_off_leaves_no_transaction_open(
    engine: Engine, client: Client, site: Site
) -> None:
    place(engine, Executor.ASYNC, "write", idempotent=True)
    site.shut(1)
    client.enqueue("write", site.task(gate=1))
    async with working(engine, WorkerConfig(lead=False, grace=timedelta(0))):
        await asyncio.to_thread(site.until_said, "wrote 1")
    left = """SELECT query FROM pg_stat_activity
               WHERE datname = current_database() AND state LIKE 'idle in transaction%%'"""
    await seen(lambda: not site.rows(left))


# Outcomes


async def test_a_retry_after_a_while_is_scheduled_for_then_and_counts(
    engine: Engine, client: Client, site: Site, executor: Executor
) -> None:
    place(engine, executor, "outcome", idempotent=True)
    done = await ended(engine, client, "outcome", "retry later")
    assert (done.state, done.attempt) == (JobState.SCHEDULED, 1)
    wait = "SELECT run_at - now() BETWEEN '1 hour 59 minutes' AND '2 hours' FROM kappa.jobs WHERE id = %s"
    assert site.rows(wait, done.id) == [True]


async def test_a_retry_without_a_time_backs_off_a_second_more_or_less(
    engine: Engine, client: Client, site: Site
) -> None:
    place(engine, Executor.THREAD, "outcome", idempotent=True)
    made = client.enqueue("outcome", "retry")
    settled_at = site.rows("SELECT now()")[0]
    await drain(engine, FOLLOWER)
    done = client.show(made.id)
    assert done.run_at is not None
    assert done.run_at - settled_at > timedelta(seconds=0.8)
    assert (done.state, done.attempt, done.error_summary) == (JobState.SCHEDULED, 1, "the handler asked for a retry")


async def test_a_retry_ends_as_failed_when_the_attempts_are_used_up(
    engine: Engine, client: Client, executor: Executor
) -> None:
    place(engine, executor, "outcome", idempotent=True)
    made = client.enqueue("outcome", "retry later", max_attempts=2)
    await drain(engine, FOLLOWER)
    await promoted(engine)
    await drain(engine, FOLLOWER)
    done = client.show(made.id)
    assert (done.state, done.attempt) == (JobState.FAILED, 2)


async def test_a_snooze_uses_up_no_attempt(engine: Engine, client: Client, executor: Executor) -> None:
    place(engine, executor, "outcome")
    made = client.enqueue("outcome", "snooze", max_attempts=1)
    for _ in range(3):
        await drain(engine, FOLLOWER)
        assert client.show(made.id).state is JobState.SCHEDULED
        await promoted(engine)
    await drain(engine, FOLLOWER)
    done = client.show(made.id)
    assert (done.state, done.result) == (JobState.SUCCEEDED, "awake")


async def test_a_job_may_snooze_for_weeks(engine: Engine, client: Client, site: Site) -> None:
    place(engine, Executor.ASYNC, "outcome")
    made = client.enqueue("outcome", "snooze")
    site.do("UPDATE kappa.jobs SET attempt = 32766, max_attempts = 32767, claims = 32767 WHERE id = %s", made.id)
    site.do("UPDATE kappa.jobs SET payload = '\"retry later\"' WHERE id = %s", made.id)
    await drain(engine, FOLLOWER)
    assert client.show(made.id).state is JobState.FAILED


async def test_a_handler_may_cancel_its_own_job(engine: Engine, client: Client, executor: Executor) -> None:
    place(engine, executor, "outcome", idempotent=True)
    done = await ended(engine, client, "outcome", "cancel")
    assert (done.state, done.reason, done.attempt) == (JobState.CANCELLED, "nothing to do", 1)


async def test_an_exception_is_retried_by_policy_with_a_safe_summary_and_its_traceback(
    engine: Engine, client: Client, executor: Executor
) -> None:
    place(engine, executor, "outcome", idempotent=True)
    first = await ended(engine, client, "outcome", "raise")
    assert (first.state, first.attempt) == (JobState.SCHEDULED, 1)
    for _ in range(2):
        await promoted(engine)
        await drain(engine, FOLLOWER)
    done = client.show(first.id)
    assert (done.state, done.attempt, done.error_summary) == (
        JobState.FAILED, 3, "the handler failed with RuntimeError",
    )  # fmt: skip
    assert "swordfish" in (done.error_detail or "")
    assert "work.py" in (done.error_detail or "")


async def test_an_exception_of_a_handler_that_is_not_idempotent_is_final(
    engine: Engine, client: Client, executor: Executor
) -> None:
    place(engine, executor, "outcome")
    done = await ended(engine, client, "outcome", "raise")
    assert (done.state, done.attempt) == (JobState.FAILED, 1)


async def test_the_text_of_a_deliberate_failure_is_shown(engine: Engine, client: Client, executor: Executor) -> None:
    place(engine, executor, "outcome", idempotent=True)
    done = await ended(engine, client, "outcome", "fail")
    assert (done.state, done.error_summary) == (JobState.SCHEDULED, "the file is empty")


async def test_a_deliberate_failure_can_be_final(engine: Engine, client: Client, executor: Executor) -> None:
    place(engine, executor, "outcome", idempotent=True)
    done = await ended(engine, client, "outcome", "fail for good")
    assert (done.state, done.attempt, done.error_summary) == (JobState.FAILED, 1, "there is no such file")


@pytest.mark.parametrize("name", ["exit", "raise bytes", "give bytes", "raise particular"])
async def test_a_handler_that_ends_in_an_odd_way_fails_alone(
    engine: Engine, client: Client, executor: Executor, name: str
) -> None:
    place(engine, executor, "outcome", slots=1)
    odd = client.enqueue("outcome", name)
    next_one = client.enqueue("outcome", "fine")
    await drain(engine, FOLLOWER)
    assert client.show(odd.id).state is JobState.FAILED
    assert client.show(next_one.id).result == "fine"


async def test_the_traceback_of_an_exception_that_cannot_leave_its_process_is_kept(
    engine: Engine, client: Client, executor: Executor
) -> None:
    place(engine, executor, "outcome")
    done = await ended(engine, client, "outcome", "raise particular")
    assert done.error_summary == "the handler failed with Particular"
    assert "the answer is 42" in (done.error_detail or "")


async def test_a_handler_that_can_not_go_to_another_process_fails_for_good_and_says_why(
    engine: Engine, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is inside another function has no name there; one whose module is only here can't be found."""

    def inside(ctx: JobContext) -> None: ...

    def elsewhere(ctx: JobContext) -> None: ...

    module = ModuleType("only_here")
    elsewhere.__module__, elsewhere.__qualname__ = module.__name__, "elsewhere"
    monkeypatch.setattr(module, "elsewhere", elsewhere, raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    place(engine, Executor.PROCESS, "where", slots=1)
    engine.job("inside", idempotent=True)(inside)
    engine.job("elsewhere", idempotent=True)(elsewhere)
    client.edit_lane(LANE, kinds=("where", "inside", "elsewhere"))
    first = client.enqueue("where")
    failing = [client.enqueue(kind).id for kind in ("inside", "elsewhere")]
    last = client.enqueue("where")
    await drain(engine, FOLLOWER)
    for job in failing:
        done = client.show(job)
        assert (done.state, done.attempt) == (JobState.FAILED, 1)
        assert "another process" in (done.error_summary or "")
        assert done.kind in (done.error_detail or "") or "only_here" in (done.error_detail or "")
    # The process that could not do it is none the worse.
    assert client.show(first.id).result[0] == client.show(last.id).result[0]


async def test_a_child_process_that_dies_fails_its_job_and_the_next_one_gets_another(
    engine: Engine, client: Client
) -> None:
    place(engine, Executor.PROCESS, "outcome", slots=1)
    died = client.enqueue("outcome", "end the process")
    next_one = client.enqueue("outcome", "fine")
    await drain(engine, FOLLOWER)
    assert client.show(died.id).state is JobState.FAILED
    assert "ended with code -9" in (client.show(died.id).error_summary or "")
    assert client.show(next_one.id).result == "fine"


@pytest.mark.parametrize("odd", ["many", b"\xff", 1j], ids=["words", "bytes", "imaginary"])
async def test_progress_that_is_no_number_harms_nobody_else(engine: Engine, client: Client, odd: object) -> None:
    @engine.job("odd")
    async def report_odd(ctx: AsyncJobContext) -> None:
        ctx.progress(odd)  # type: ignore[arg-type]
        await asyncio.sleep(0)

    @engine.job("fine")
    async def fine(ctx: AsyncJobContext) -> str:
        return "fine"

    engine.lane(Lane(LANE, kinds=("odd", "fine"), executor=Executor.ASYNC))
    engine.install()
    quick = WorkerConfig(lead=False, progress_every=timedelta(0))
    client.enqueue("odd")
    made = client.enqueue("fine")
    await drain(engine, quick)
    assert client.show(made.id).result == "fine"


async def test_an_async_handler_whose_inner_task_was_cancelled_fails_and_is_not_forgotten(
    engine: Engine, client: Client
) -> None:
    @engine.job("inner")
    async def inner(ctx: AsyncJobContext) -> None:
        waiting = asyncio.create_task(asyncio.Event().wait())
        waiting.cancel()
        await waiting

    engine.lane(Lane(LANE, kinds=("inner",), executor=Executor.ASYNC))
    engine.install()
    done = await ended(engine, client, "inner")
    assert done.state is JobState.FAILED


# Leases


async def test_a_lost_lease_is_told_at_the_next_renewal_and_every_later_write_is_refused(
    engine: Engine, client: Client, heard: Heard, site: Site, executor: Executor
) -> None:
    place(engine, executor, "lose", idempotent=True, ttl=1)
    made = client.enqueue("lose", site.task())
    async with working(engine, FOLLOWER):
        await asyncio.to_thread(site.until_said, "began")
        await seen(lambda: client.show(made.id).attempt == 1)
        await lose_lease(engine, made.id)
        await heard.until("lease_lost", job=made.id)
        await asyncio.to_thread(site.until_said, "tried")
    assert (site.said, site.written) == (["began", "tried"], [])
    assert client.show(made.id).state is JobState.SCHEDULED


async def test_a_lease_that_nobody_has_taken_yet_is_told_lost_by_the_renewal_alone(
    engine: Engine, client: Client, heard: Heard, site: Site, executor: Executor
) -> None:
    """A worker that adopts what was its own hears of it by that. Here it has no room to while its handler runs."""
    place(engine, executor, "lose", idempotent=True, ttl=1, slots=1)
    made = client.enqueue("lose", site.task())
    async with working(engine, FOLLOWER):
        await asyncio.to_thread(site.until_said, "began")
        await seen(lambda: client.show(made.id).attempt == 1)
        site.do("UPDATE kappa.jobs SET lease_owner = NULL, lease_token = NULL, lease_until = NULL")
        await heard.until("lease_lost", job=made.id)
        await asyncio.to_thread(site.until_said, "tried")
    assert next(name for name, _ in heard.facts if name in ("lease_lost", "adopted")) == "lease_lost"
    assert (site.said, site.written) == (["began", "tried"], [])


async def test_an_attempt_that_lost_its_lease_does_not_disturb_the_next_one_in_the_same_worker(
    engine: Engine, client: Client, site: Site, executor: Executor
) -> None:
    place(engine, executor, "write", idempotent=True, ttl=1)
    site.shut(1)
    made = client.enqueue("write", site.task(gate=1, text="kept"))
    async with working(engine, FOLLOWER):
        await asyncio.to_thread(site.until_said, "wrote 1")
        await seen(lambda: client.show(made.id).attempt == 1)
        await lose_lease(engine, made.id)
        await seen(lambda: site.state(made.id) == "scheduled")
        site.do("UPDATE kappa.jobs SET payload = payload || '{\"gate\": 2}'")
        site.shut(2)
        await promoted(engine)
        await asyncio.to_thread(site.until_said, "wrote 2")
        before = client.show(made.id).lease_until
        assert before is not None
        site.open(1)
        await seen(lambda: (now := client.show(made.id).lease_until) and now > before + timedelta(seconds=2))
        site.open(2)
        await seen(lambda: client.show(made.id).state.terminal)
    assert (client.show(made.id).state, site.written) == (JobState.SUCCEEDED, ["kept 2"])


async def test_a_renewal_that_overtakes_the_commit_of_a_handler_does_not_take_the_lease_for_lost(
    engine: Engine, client: Client, heard: Heard, site: Site, executor: Executor
) -> None:
    """The row is gone before the worker hears that its own transaction settled the job."""
    place(engine, executor, "write", timeout=HOUR)
    site.do("""
        CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM pg_advisory_xact_lock_shared(4242, 5);
            RETURN NULL;
        END $$""")
    site.do("""CREATE CONSTRAINT TRIGGER wait_at_gate AFTER INSERT ON written DEFERRABLE INITIALLY DEFERRED
                FOR EACH ROW EXECUTE FUNCTION wait_at_gate()""")
    site.shut(5)
    made = client.enqueue("write", site.task())
    commits = (
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND query = 'COMMIT' AND state = 'active'"
    )
    async with working(engine, FOLLOWER) as worker:
        await seen(lambda: site.rows(commits), what="the commit")
        desk = worker._desk  # pyright: ignore[reportPrivateUsage]
        running = desk.find(made.id)
        assert running is not None
        desk.renewed([running], {})
        assert not running.lost
        site.open(5)
        await seen(lambda: client.show(made.id).state.terminal)
    assert client.show(made.id).state is JobState.SUCCEEDED
    assert not heard.all("lease_lost")


# Time-outs


async def test_a_job_over_its_time_out_ends_timed_out_and_its_work_is_stopped(
    engine: Engine, client: Client, site: Site, executor: Executor
) -> None:
    place(engine, executor, "overrun", idempotent=True, timeout=HOUR)
    made = client.enqueue("overrun", site.task(text="deaf" if executor is Executor.PROCESS else ""))
    async with working(engine, FOLLOWER) as worker:
        pid = await seen(lambda: int(site.said[0].split()[1]) if site.said else 0)
        time_is_up(worker, made.id)
        await seen(lambda: client.show(made.id).state.terminal)
        if executor is Executor.PROCESS:
            await seen(lambda: not alive(pid))
        else:
            await asyncio.to_thread(site.until_said, "stopped")
    done = client.show(made.id)
    assert (done.state, done.attempt, done.error_summary) == (JobState.TIMED_OUT, 1, "the time-out was reached")


async def test_a_job_may_have_a_time_out_of_its_own(
    engine: Engine, client: Client, site: Site, executor: Executor
) -> None:
    place(engine, executor, "overrun", timeout=HOUR)
    made = client.enqueue("overrun", site.task(), timeout=timedelta(milliseconds=500))
    async with working(engine, FOLLOWER):
        await seen(lambda: client.show(made.id).state.terminal)
    assert client.show(made.id).state is JobState.TIMED_OUT


async def test_an_attempt_without_progress_for_as_long_as_its_lane_says_is_stopped_and_tried_again(
    engine: Engine, client: Client, site: Site, executor: Executor
) -> None:
    """The lane is edited while the job runs."""
    place(engine, executor, "overrun", idempotent=True, timeout=HOUR)
    made = client.enqueue("overrun", site.task(text="deaf" if executor is Executor.PROCESS else ""))
    async with working(engine, FOLLOWER):
        pid = await seen(lambda: int(site.said[0].split()[1]) if site.said else 0)
        await seen(lambda: client.show(made.id).attempt == 1)
        client.edit_lane(LANE, stale_timeout=timedelta(milliseconds=50))
        await seen(lambda: client.show(made.id).state is JobState.SCHEDULED)
        if executor is Executor.PROCESS:
            await seen(lambda: not alive(pid))
        else:
            await asyncio.to_thread(site.until_said, "stopped")
    job = client.show(made.id)
    assert (job.attempt, job.error_summary) == (1, "no progress for 0.05 s")


async def test_an_attempt_without_progress_fails_when_it_was_the_last(
    engine: Engine, client: Client, site: Site
) -> None:
    place(engine, Executor.ASYNC, "overrun")
    client.edit_lane(LANE, stale_timeout=timedelta(milliseconds=50))
    done = await ended(engine, client, "overrun", site.task())
    assert (done.state, done.error_summary) == (JobState.FAILED, "no progress for 0.05 s")


@pytest.mark.parametrize("sign", ["progress", "checkpoint", "spawn", "gather", "nothing"])
async def test_the_time_without_progress_begins_anew_with_every_sign_of_it(
    engine: Engine, client: Client, site: Site, sign: str
) -> None:
    go, gone_on = asyncio.Event(), asyncio.Event()

    @engine.job("work")
    async def work(ctx: AsyncJobContext) -> None:
        child = await ctx.spawn("child")
        await go.wait()
        match sign:
            case "progress":
                ctx.progress(1)
            case "checkpoint":
                await ctx.checkpoint(1)
            case "spawn":
                await ctx.spawn("child", key="another")
            case "gather":
                await ctx.gather(child)
            case _:
                pass
        gone_on.set()

    engine.job("child")(lambda ctx: None)
    engine.lane(Lane(LANE, kinds=("work", "child"), max_slots=4, executor=Executor.ASYNC, stale_timeout=HOUR))
    engine.install()
    made = client.enqueue("work")
    async with working(engine, FOLLOWER) as worker:
        await seen(lambda: client.show(made.id).attempt == 1)
        await seen(lambda: client.list_jobs(kinds=["child"], states=["succeeded"]))
        running = worker._desk.find(made.id)  # pyright: ignore[reportPrivateUsage]
        assert running is not None
        before = running.heard_at
        go.set()
        await gone_on.wait()
        assert (running.heard_at > before) is (sign != "nothing")


async def test_a_kind_may_say_for_itself_how_long_it_reports_no_progress(engine: Engine, client: Client) -> None:
    go = asyncio.Event()

    @engine.job("silent", stale_timeout=timedelta.max)
    async def silent(ctx: AsyncJobContext) -> str:
        await go.wait()
        return "done"

    @engine.job("hasty", stale_timeout=timedelta(milliseconds=50))
    async def hasty(ctx: AsyncJobContext) -> None:
        await asyncio.Event().wait()

    engine.lane(Lane(LANE, kinds=("silent", "hasty"), max_slots=2, executor=Executor.ASYNC, stale_timeout=HOUR))
    engine.install()
    client.edit_lane(LANE, stale_timeout=timedelta(milliseconds=50))
    first, second = client.enqueue("silent").id, client.enqueue("hasty").id
    async with working(engine, FOLLOWER):
        await seen(lambda: client.show(second).state is JobState.FAILED)
        go.set()
        await seen(lambda: client.show(first).state is JobState.SUCCEEDED)


async def test_a_parent_that_waits_for_its_children_is_not_stale(engine: Engine, client: Client, site: Site) -> None:
    place(engine, Executor.ASYNC, "parent")
    engine.job("child", stale_timeout=timedelta.max)(child_async)
    engine.lane(Lane("nursery", kinds=("child",), executor=Executor.ASYNC))
    engine.install()
    site.shut(1)
    made = client.enqueue("parent", site.task(gate=1))
    async with working(engine, FOLLOWER) as worker:
        await seen(lambda: client.show(made.id).waiting)
        running = worker._desk.find(made.id)  # pyright: ignore[reportPrivateUsage]
        assert running is not None
        running.heard_at = 0.0
        worker._deadline_nears.set()  # pyright: ignore[reportPrivateUsage]
        await seen(lambda: running.heard_at > 0.0)
        site.open(1)
        await seen(lambda: client.show(made.id).state.terminal)
    assert client.show(made.id).state is JobState.SUCCEEDED


async def test_a_job_without_a_time_out_may_last_as_long_as_it_reports_progress(
    engine: Engine, client: Client, site: Site
) -> None:
    seconds_left: list[float] = []

    @engine.job("endless")
    async def endless(ctx: AsyncJobContext) -> None:
        seconds_left.append(ctx.seconds_left)

    engine.lane(Lane(LANE, kinds=("endless",), executor=Executor.ASYNC))
    engine.install()
    done = await ended(engine, client, "endless")
    assert (done.state, seconds_left) == (JobState.SUCCEEDED, [math.inf])


async def test_a_child_process_is_killed_also_when_the_time_out_comes_while_it_starts(
    engine: Engine, client: Client, site: Site
) -> None:
    place(engine, Executor.PROCESS, "overrun", timeout=timedelta(milliseconds=1))
    made = client.enqueue("overrun", site.task(text="deaf"))
    async with working(engine, FOLLOWER):
        await seen(lambda: client.show(made.id).state is JobState.TIMED_OUT)
        await seen(lambda: not multiprocessing.active_children())


async def test_a_job_over_its_time_out_does_not_succeed_because_its_handler_swallows_the_cancelling(
    engine: Engine, client: Client
) -> None:
    @engine.job("stubborn", timeout=timedelta(milliseconds=100))
    async def stubborn(ctx: AsyncJobContext) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "half of it"
        return "all of it"

    engine.lane(Lane(LANE, kinds=("stubborn",), executor=Executor.ASYNC))
    engine.install()
    done = await ended(engine, client, "stubborn")
    assert (done.state, done.result) == (JobState.TIMED_OUT, None)


async def test_a_handler_that_goes_on_after_its_time_out_holds_neither_job_nor_slot_and_writes_nothing(
    engine: Engine, client: Client, site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "CANCEL_AGAIN", 0.01)
    began, settled, refused, cancels = asyncio.Event(), asyncio.Event(), list[str](), 0

    @engine.job("stubborn")
    async def stubborn(ctx: AsyncJobContext) -> str:
        nonlocal cancels
        async with ctx.transaction() as connection:
            await connection.execute("INSERT INTO written (line) VALUES ('no')")
        began.set()  # one that is cancelled in there is not stubborn
        while not (settled.is_set() and cancels >= executors.CANCELS):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancels += 1
                if cancels == executors.CANCELS:
                    await settled.wait()
        for name, write in (("checkpoint", ctx.checkpoint), ("spawn", ctx.spawn)):
            try:
                await write("stubborn")
            except LeaseLost:
                refused.append(name)
        return "all of it"

    @engine.job("next")
    async def after(ctx: AsyncJobContext) -> None:
        pass

    engine.lane(Lane(LANE, kinds=("stubborn", "next"), max_slots=1, executor=Executor.ASYNC))
    engine.install()
    made = client.enqueue("stubborn")
    async with working(engine, FOLLOWER) as worker:
        await began.wait()
        time_is_up(worker, made.id)
        await seen(lambda: client.show(made.id).state is JobState.TIMED_OUT)
        later = client.enqueue("next")
        await seen(lambda: client.show(later.id).state is JobState.SUCCEEDED)
        await seen(lambda: "can't be stopped" in caplog.text)
        settled.set()
        await seen(lambda: len(refused) == 2)
    assert (refused, site.written, cancels) == (["checkpoint", "spawn"], [], executors.CANCELS)
    assert (client.show(made.id).state, client.show(made.id).result) == (JobState.TIMED_OUT, None)


async def test_a_thread_over_its_time_out_can_write_nothing_more(engine: Engine, client: Client, site: Site) -> None:
    place(engine, Executor.THREAD, "write", timeout=timedelta(milliseconds=300))
    site.shut(1)
    made = client.enqueue("write", site.task(gate=1))
    async with working(engine, FOLLOWER):
        await seen(lambda: client.show(made.id).state.terminal)
        site.open(1)
    assert (client.show(made.id).state, site.written) == (JobState.TIMED_OUT, [])


# Children


async def test_the_results_of_children_come_in_the_order_in_which_they_are_asked_for(
    engine: Engine, client: Client, site: Site, executor: Executor
) -> None:
    place(engine, executor, "parent", "child")
    done = await ended(engine, client, "parent", site.task(count=3))
    assert (done.state, done.result) == (JobState.SUCCEEDED, [20, 10, 0])


async def test_a_child_that_fails_fails_its_parent_with_what_users_may_know(
    engine: Engine, client: Client, site: Site, executor: Executor
) -> None:
    place(engine, executor, "parent", "child")
    done = await ended(engine, client, "parent", site.task(text="fail"))
    assert done.state is JobState.FAILED
    assert "a page is missing" in (done.error_summary or "")


async def test_a_parent_that_runs_again_finds_the_same_children(
    engine: Engine, client: Client, site: Site, executor: Executor
) -> None:
    place(engine, executor, "parent", "child", idempotent=True)
    made = client.enqueue("parent", site.task(text="again", count=2))
    await drain(engine, FOLLOWER)
    await promoted(engine)
    await drain(engine, FOLLOWER)
    done = client.show(made.id)
    assert (done.state, done.attempt, done.result) == (JobState.SUCCEEDED, 2, [10, 0])
    assert len(client.list_jobs(kinds=["child"])) == 2
    assert sorted(site.said) == ["child 0 began", "child 0 ended", "child 1 began", "child 1 ended"]


async def test_a_parent_that_waits_in_a_lane_of_one_slot_lets_its_children_run_there_one_by_one(
    engine: Engine, client: Client, site: Site, executor: Executor
) -> None:
    place(engine, executor, "parent", "child", slots=1)
    site.shut(1)
    made = client.enqueue("parent", site.task(gate=1, count=3))
    async with working(engine, FOLLOWER):
        await asyncio.to_thread(site.until_said, "child 0 began")
        active = "SELECT count(*) FROM kappa.jobs WHERE state = 'running' AND NOT waiting"
        assert (site.rows(active), client.show(made.id).waiting) == ([1], True)
        site.open(1)
        await seen(lambda: client.show(made.id).state.terminal)
    assert client.show(made.id).result == [20, 10, 0]
    began_or_ended = [line.split()[2] for line in site.said]
    assert began_or_ended == ["began", "ended"] * 3


async def test_two_gathers_at_once_in_a_lane_of_one_slot_both_return(
    engine: Engine, client: Client, site: Site
) -> None:
    """The slot belongs to the children until the last gather is done, and then to the parent again."""
    go = [asyncio.Event(), asyncio.Event()]
    returned: list[int] = []
    waiting_at_the_end: list[bool] = []

    @engine.job("parent", timeout=HOUR)
    async def bear(ctx: AsyncJobContext) -> None:
        keys = [await ctx.spawn("child", number) for number in range(2)]

        async def gather(key: str) -> None:
            returned.extend(await ctx.gather(key))

        await asyncio.gather(*map(gather, keys))
        waiting = "SELECT waiting FROM kappa.jobs WHERE id = %s"
        waiting_at_the_end.extend(await asyncio.to_thread(site.rows, waiting, ctx.job_id))

    @engine.job("child")
    async def child(ctx: AsyncJobContext, number: int) -> int:
        await go[number].wait()
        return number

    engine.lane(Lane(LANE, kinds=("parent", "child"), max_slots=1, executor=Executor.ASYNC))
    engine.install()
    made = client.enqueue("parent")
    async with working(engine, FOLLOWER):
        await seen(lambda: client.show(made.id).waiting)
        go[0].set()
        await seen(lambda: returned == [0])
        go[1].set()
        await seen(lambda: client.show(made.id).state.terminal)
    assert client.show(made.id).state is JobState.SUCCEEDED
    assert (returned, waiting_at_the_end) == ([0, 1], [False])


@pytest.mark.parametrize("how", ["nothing", "result", "failure", "cancelled"])
async def test_a_parent_hears_of_the_end_of_a_child_and_need_not_look(
    engine: Engine, client: Client, site: Site, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(office, "LOOK_AT_CHILDREN", HOUR.total_seconds())
    go = {number: asyncio.Event() for number in range(3)}

    @engine.job("parent")
    async def bear(ctx: AsyncJobContext) -> None:
        children = [await ctx.spawn("child", number) for number in go]
        with suppress(JobFailed):
            await ctx.gather(*children)

    @engine.job("child")
    async def child(ctx: AsyncJobContext, number: int) -> int | None:
        await go[number].wait()
        if how == "failure":
            raise JobFailed("a page is missing")
        return number if how == "result" else None

    engine.lane(Lane(LANE, kinds=("parent",), executor=Executor.ASYNC, poll_interval_ms=HOUR_MS))
    begin = how != "cancelled"
    engine.lane(Lane("nursery", kinds=("child",), max_slots=3, executor=Executor.ASYNC, enabled=begin))
    engine.install()
    made = client.enqueue("parent")
    async with working(engine, FOLLOWER):
        await seen(lambda: client.show(made.id).waiting)
        await site.listened_to()
        # One after the other: of the first, the parent may learn by the look with which it begins to wait.
        for job in reversed(client.list_jobs(kinds=["child"])):
            if begin:
                go[job.payload].set()
            else:
                client.cancel(job.id)
            await seen(lambda job=job: client.show(job.id).state.terminal)
        await seen(lambda: client.show(made.id).state.terminal, what="the parent's end")
    assert client.show(made.id).state is JobState.SUCCEEDED


async def test_a_parent_that_gives_up_waiting_has_its_slot_again_before_it_goes_on(
    engine: Engine, client: Client, site: Site
) -> None:
    waiting: list[bool] = []

    @engine.job("parent")
    async def bear(ctx: AsyncJobContext) -> None:
        key = await ctx.spawn("child", site.task(gate=1))
        with suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await ctx.gather(key)
        waiting.extend(await asyncio.to_thread(site.rows, "SELECT waiting FROM kappa.jobs WHERE id = %s", ctx.job_id))
        site.open(1)

    engine.job("child")(child_async)
    engine.lane(Lane(LANE, kinds=("parent", "child"), max_slots=2, executor=Executor.ASYNC))
    engine.install()
    site.shut(1)
    done = await ended(engine, client, "parent")
    assert (done.state, waiting) == (JobState.SUCCEEDED, [False])


async def test_a_parent_that_is_cancelled_when_its_slot_was_just_released_has_it_again(
    engine: Engine, client: Client, site: Site
) -> None:
    """The row says so already, and the reply is not yet read."""
    waiting: list[bool] = []

    @engine.job("parent")
    async def bear(ctx: AsyncJobContext) -> None:
        gather = asyncio.ensure_future(ctx.gather(await ctx.spawn("child", site.task(gate=1))))
        await seen(lambda: site.rows(RELEASE_WAITS), what="a release that is being written")
        # From here to the cancellation the loop stands still.
        site.open(78)
        eventually(lambda: site.rows("SELECT 1 FROM kappa.jobs WHERE id = %s AND waiting", ctx.job_id))
        gather.cancel()
        with suppress(asyncio.CancelledError):
            await gather
        waiting.extend(await asyncio.to_thread(site.rows, "SELECT waiting FROM kappa.jobs WHERE id = %s", ctx.job_id))
        site.open(1)

    engine.job("child")(child_async)
    engine.lane(Lane(LANE, kinds=("parent", "child"), max_slots=2, executor=Executor.ASYNC))
    engine.install()
    site.do(RELEASE_AT_GATE)
    site.shut(78)
    site.shut(1)
    done = await ended(engine, client, "parent")
    assert (done.state, waiting) == (JobState.SUCCEEDED, [False])


async def test_children_that_nobody_spawned_are_not_waited_for(
    engine: Engine, client: Client, executor: Executor
) -> None:
    place(engine, executor, "gather_unknown")
    made = client.enqueue("gather_unknown", timeout=timedelta(seconds=10))
    async with working(engine, FOLLOWER):
        await seen(lambda: client.show(made.id).state.terminal)
    assert client.show(made.id).state is JobState.FAILED


async def test_a_parent_that_is_cancelled_while_it_waits_for_its_children_ends(
    engine: Engine, client: Client, site: Site, executor: Executor
) -> None:
    place(engine, executor, "parent", "child", poll_ms=HOUR_MS)
    site.shut(1)
    made = client.enqueue("parent", site.task(gate=1))
    async with working(engine, FOLLOWER):
        await asyncio.to_thread(site.until_said, "child 0 began")
        await seen(lambda: client.show(made.id).waiting)
        client.cancel(made.id, "not needed")
        await seen(lambda: client.show(made.id).state.terminal)
        assert client.show(made.id).state is JobState.CANCELLED
        site.open(1)


async def test_a_parent_over_its_time_out_stops_to_wait_for_its_children(
    engine: Engine, client: Client, site: Site, executor: Executor
) -> None:
    place(engine, executor, "parent", "child", slots=2)
    site.shut(1)
    made = client.enqueue("parent", site.task(gate=1, text="tell"), timeout=HOUR)
    async with working(engine, FOLLOWER) as worker:
        await asyncio.to_thread(site.until_said, "child 0 began")
        await seen(lambda: client.show(made.id).waiting)
        time_is_up(worker, made.id)
        await seen(lambda: client.show(made.id).state is JobState.TIMED_OUT)
        if executor is not Executor.PROCESS:  # that one is killed
            await asyncio.to_thread(site.until_said, "the parent waits no more")
        site.open(1)


async def test_a_stale_parent_can_have_no_children(engine: Engine, client: Client, site: Site) -> None:
    began, go = asyncio.Event(), asyncio.Event()
    refused: list[Exception] = []

    @engine.job("parent", idempotent=True)
    async def bear(ctx: AsyncJobContext) -> None:
        began.set()
        await go.wait()
        try:
            await ctx.spawn("child")
        except Exception as error:
            refused.append(error)
            raise

    engine.job("child")(lambda ctx: None)
    engine.lane(Lane(LANE, kinds=("parent", "child"), executor=Executor.ASYNC, poll_interval_ms=HOUR_MS))
    engine.install()
    made = client.enqueue("parent")
    async with working(engine, FOLLOWER):
        await began.wait()
        await seen(lambda: client.show(made.id).attempt == 1)
        site.do("UPDATE kappa.jobs SET lease_owner = NULL, lease_token = NULL, lease_until = NULL")
        go.set()
        await seen(lambda: refused)
    assert [type(error).__name__ for error in refused] == ["LeaseLost"]
    assert client.list_jobs(kinds=["child"]) == []
