"""What the engine logs of a job says which one it is about: its id, attempt, lane and kind."""

import asyncio
import logging
from contextlib import suppress
from datetime import timedelta

import psycopg
import pytest

from kappa.engine import AsyncJobContext, Client, Engine, Executor, JobContext, JobState, Lane, WorkerConfig, executors
from kappa.engine.testing import Heard, working
from tests.engine.site import HOUR_MS, Site, seen, time_is_up
from tests.engine.work import LANE

KIND = "step"
FOLLOWER = WorkerConfig(lead=False, grace=timedelta(seconds=5), progress_every=timedelta(0))

REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'no';
END $$;
"""
OUTCOMES = "CREATE TRIGGER refuse BEFORE INSERT ON kappa.finished_jobs FOR EACH ROW EXECUTE FUNCTION refuse()"
REPORTS = "CREATE TRIGGER refuse BEFORE UPDATE OF progress_done ON kappa.jobs FOR EACH ROW EXECUTE FUNCTION refuse()"


def place(engine: Engine, executor: Executor) -> None:
    engine.lane(Lane(LANE, kinds=(KIND,), executor=executor, poll_interval_ms=HOUR_MS))
    engine.install()


def facts(caplog: pytest.LogCaptureFixture, text: str) -> list[dict[str, object]]:
    """Those of every line that has the text."""
    names = ("job", "attempt", "lane", "kind")
    lines = [record for record in caplog.records if text in record.getMessage()]
    return [{name: getattr(line, name) for name in names if hasattr(line, name)} for line in lines]


def of(job: int, attempt: int = 1) -> dict[str, object]:
    return {"job": job, "attempt": attempt, "lane": LANE, "kind": KIND}


async def test_of_an_outcome_that_the_database_refuses(
    engine: Engine, client: Client, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    engine.job(KIND)(lambda ctx: "a result")
    place(engine, Executor.THREAD)
    site.do(REFUSE)
    site.do(OUTCOMES)
    made = client.enqueue(KIND)
    async with working(engine, FOLLOWER):
        await seen(lambda: facts(caplog, "its outcome can't be written"))
    assert facts(caplog, "the database refuses its outcome") == [of(made.id)]
    assert facts(caplog, "its outcome can't be written") == [of(made.id)]


async def test_of_a_report_that_the_database_refuses(
    engine: Engine, client: Client, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    said = asyncio.Event()

    @engine.job(KIND)
    async def report(ctx: AsyncJobContext) -> None:
        ctx.progress(1)
        await said.wait()

    place(engine, Executor.ASYNC)
    site.do(REFUSE)
    site.do(REPORTS)
    made = client.enqueue(KIND)
    async with working(engine, FOLLOWER):
        await seen(lambda: facts(caplog, "the database refuses a report"))
        said.set()
    assert facts(caplog, "the database refuses a report") == [of(made.id)]


@pytest.mark.parametrize("executor", [Executor.THREAD, Executor.ASYNC])
async def test_of_a_transaction_that_broke(
    engine: Engine, client: Client, site: Site, caplog: pytest.LogCaptureFixture, executor: Executor
) -> None:
    def cut(pid: int) -> None:
        site.do("SELECT pg_terminate_backend(%s, 5000)", pid)

    if executor is Executor.THREAD:

        @engine.job(KIND)
        def in_thread(ctx: JobContext) -> None:
            with ctx.transaction() as connection:
                pass
            cut(connection.info.backend_pid)
    else:

        @engine.job(KIND)
        async def on_loop(ctx: AsyncJobContext) -> None:
            async with ctx.transaction() as connection:
                pass
            cut(connection.info.backend_pid)

    place(engine, executor)
    made = client.enqueue(KIND)
    async with working(engine, FOLLOWER):
        await seen(lambda: facts(caplog, "its transaction ended with"))
    assert facts(caplog, "its transaction ended with") == [of(made.id)]


async def test_of_a_handler_that_goes_on_after_its_time(
    engine: Engine, client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "CANCEL_AGAIN", 0.01)
    began, seen_all = asyncio.Event(), asyncio.Event()

    @engine.job(KIND)
    async def stubborn(ctx: AsyncJobContext) -> None:
        began.set()
        while not seen_all.is_set():
            with suppress(asyncio.CancelledError):
                await seen_all.wait()

    place(engine, Executor.ASYNC)
    made = client.enqueue(KIND)
    async with working(engine, FOLLOWER) as worker:
        await began.wait()
        time_is_up(worker, made.id)
        await seen(lambda: facts(caplog, "can't be stopped"))
        seen_all.set()
    assert facts(caplog, "still running") == [of(made.id)] * executors.CANCELS
    assert facts(caplog, "can't be stopped") == [of(made.id)]


async def test_of_a_later_attempt_the_line_says_which(
    engine: Engine, client: Client, site: Site, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    go = asyncio.Event()

    @engine.job(KIND, idempotent=True)
    async def wait(ctx: AsyncJobContext) -> None:
        await go.wait()

    place(engine, Executor.ASYNC)
    made = client.enqueue(KIND)
    site.do("UPDATE kappa.jobs SET attempt = 1, claims = 1, started_at = now()")  # as a first attempt leaves it
    client.edit_lane(LANE, lease_ttl=timedelta(seconds=1))
    async with working(engine, FOLLOWER):
        await seen(lambda: client.show(made.id).attempt == 2)
        site.do("UPDATE kappa.jobs SET lease_token = nextval('kappa.lease_tokens'), lease_owner = 'another'")
        await heard.until("lease_lost", job=made.id)
        go.set()
    assert facts(caplog, "the lease is lost") == [of(made.id, attempt=2)]


async def test_of_a_claim_that_failed_the_line_says_in_which_lane(
    engine: Engine, client: Client, site: Site, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    engine.job(KIND)(lambda ctx: None)
    place(engine, Executor.THREAD)
    claims = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()"
    async with working(engine, FOLLOWER):
        await heard.until("asleep", lane=LANE)
        with psycopg.connect(site.url) as other:
            other.execute("SELECT pg_advisory_xact_lock(1262568289, hashtext(%s))", [LANE])
            made = client.enqueue(KIND)
            (pid,) = await seen(lambda: site.rows(claims), what="a claim that waits for the lane")
            site.do("SELECT pg_terminate_backend(%s, 5000)", pid)
            await seen(lambda: facts(caplog, "no claim, next try soon"))
        await seen(lambda: client.show(made.id).state is JobState.SUCCEEDED)
    lines = [record for record in caplog.records if "no claim, next try soon" in record.getMessage()]
    assert {(line.levelno, line.lane) for line in lines} == {(logging.WARNING, LANE)}  # type: ignore[attr-defined]
