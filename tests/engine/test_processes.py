"""Worker processes that are killed, stopped, continued and told to end, as operators and kernels do it."""

import asyncio
import os
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import psutil
import pytest

from kappa.engine import Client, Engine, Job, JobState, WorkerConfig
from kappa.engine.store import maintenance
from kappa.engine.testing import Heard, drain, maintain, working
from kappa.pg.ops import run
from tests.engine.hands import Connection, later
from tests.engine.site import Site
from tests.engine.work import LANE, build
from tests.ground import Script, eventually

ROOT = Path(__file__).parents[2]

WORKER = """
import sys
from datetime import timedelta
from kappa.engine import WorkerConfig
from tests.engine.work import build

url, executor, grace = sys.argv[1:]
build(url, executor, 1.0, 2).run(WorkerConfig(lead=False, grace=timedelta(seconds=float(grace))))
"""

AT_WORK = """
SELECT pid FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
   AND state <> 'idle' AND wait_event IS DISTINCT FROM 'advisory'
"""
"""Sessions that do something, other than to wait at a gate."""
HOUR = timedelta(hours=1)
FOLLOWER = WorkerConfig(lead=False, grace=timedelta(seconds=5))


@pytest.fixture
def engine(url: str) -> Engine:
    """What the worker processes serve, for a worker of the test's own."""
    return build(url, "thread", 1.0, 2)


@pytest.fixture(params=["thread", "async", "process"])
def executor(request: pytest.FixtureRequest) -> str:
    return request.param


def worker(site: Site, executor: str, grace: float = 30) -> Script:
    """A worker process that is ready to be woken."""
    site.do("UPDATE kappa.lanes SET executor = %s WHERE name = %s", executor, LANE)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return Script(WORKER, site.url, executor, grace, env={"PYTHONPATH": path})


def kill(killed: Script) -> None:
    killed.process.kill()
    killed.process.wait(30)  # not for the end of its output: a child may hold that


def runs(site: Site, client: Client, kind: str, **task: object) -> Job:
    """A job that a worker began and whose start is counted."""
    made = client.enqueue(kind, site.task(**task))  # type: ignore[arg-type]
    return eventually(lambda: job if (job := client.show(made.id)).attempt == 1 and site.said else None)


@contextmanager
def frozen_for_good(worker: Script) -> Generator[None]:
    """The worker and its children, stopped at once and never continued."""
    process = psutil.Process(worker.process.pid)
    family = [process, *process.children(recursive=True)]
    for member in family:
        member.suspend()
    try:
        for member in family:
            eventually(lambda member=member: member.status() == psutil.STATUS_STOPPED, what="it is stopped")
        yield
    finally:
        for member in family:
            member.kill()


async def reap(engine: Engine) -> None:
    """Rows that somebody writes at that moment are passed by, so it may need more than one round."""
    heard = Heard(engine)
    until = time.monotonic() + 5
    while not heard.all("reaped") and time.monotonic() < until:
        await maintain(engine, later=HOUR, only=lambda name: name == "reaper")


async def adopt_and_run_again(engine: Engine) -> None:
    """What other workers do once the lease has run out."""
    await reap(engine)
    await drain(engine, FOLLOWER)
    await maintain(engine, later=HOUR, only=lambda name: name == "promoter")
    await drain(engine, FOLLOWER)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        # A zombie that nobody waited for is as dead.
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# Killed


async def test_an_idempotent_job_of_a_killed_worker_runs_again(
    engine: Engine, client: Client, site: Site, executor: str
) -> None:
    site.shut(1)
    with worker(site, executor) as killed:
        job = runs(site, client, "hold_again", gate=1, text="again")
        kill(killed)
    assert (site.state(job.id), site.owner(job.id)) == ("running", job.lease_owner)
    site.open(1)
    await adopt_and_run_again(engine)
    done = client.show(job.id)
    assert (done.state, done.attempt, done.result) == (JobState.SUCCEEDED, 2, "again 2")


async def test_a_job_that_is_not_idempotent_fails_with_its_worker_and_says_so_safely(
    engine: Engine, client: Client, site: Site, executor: str
) -> None:
    site.shut(1)
    with worker(site, executor) as killed:
        job = runs(site, client, "hold", gate=1)
        kill(killed)
    site.open(1)
    await adopt_and_run_again(engine)
    done = client.show(job.id)
    assert (done.state, done.attempt, done.error_summary) == (JobState.FAILED, 1, "the worker that ran it was lost")
    assert site.said == ["began 1"]


async def test_a_start_counts_even_if_the_worker_is_killed_by_the_first_thing_that_the_handler_does(
    engine: Engine, client: Client, site: Site
) -> None:
    with worker(site, "thread") as killed:
        made = client.enqueue("die_at_once", site.task())
        killed.process.wait(30)
    site.do('UPDATE kappa.jobs SET payload = payload || \'{"text": "survive"}\'')
    await adopt_and_run_again(engine)
    assert site.said == []
    assert client.show(made.id).state is JobState.FAILED


@pytest.mark.parametrize("executor", ["thread", "async"])
async def test_a_job_that_kills_every_worker_at_once_begins_once_more_than_it_may_at_most(
    engine: Engine, client: Client, connection: Connection, site: Site, executor: str, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    made = client.enqueue("count_and_die", site.task(text=str(starts)))

    def over(one: Script) -> bool:
        run(connection, maintenance.promote(later(connection, hours=1)))  # it doesn't wait for its backoff
        return one.process.poll() is not None or client.show(made.id).state.terminal

    while not client.show(made.id).state.terminal:
        with worker(site, executor) as next_one:
            eventually(partial(over, next_one))
        await reap(engine)
    done = client.show(made.id)
    assert (done.state, done.attempt, done.max_attempts) == (JobState.FAILED, 3, 3)
    assert 3 <= len(starts.read_bytes()) <= 4


async def test_a_checkpoint_survives_the_kill_of_its_worker(
    engine: Engine, client: Client, site: Site, executor: str
) -> None:
    site.shut(1)
    with worker(site, executor) as killed:
        job = runs(site, client, "carry_on", gate=1)
        kill(killed)
    site.open(1)
    await adopt_and_run_again(engine)
    assert client.show(job.id).result == [2, {"page": 7}]


async def test_nothing_of_a_killed_workers_transaction_is_kept(
    engine: Engine, client: Client, site: Site, executor: str
) -> None:
    site.shut(1)
    with worker(site, executor) as killed:
        job = runs(site, client, "write", gate=1, text="kept")
        kill(killed)
    site.open(1)
    await adopt_and_run_again(engine)
    assert client.show(job.id).attempt == 2
    assert site.written == ["kept 2"]


async def test_what_a_worker_frozen_in_its_handlers_transaction_has_locked_is_free_once_its_lease_is_lost(
    engine: Engine, client: Client, connection: Connection, site: Site, executor: str
) -> None:
    site.shut(1)
    with worker(site, executor) as frozen:
        job = runs(site, client, "write", gate=1)
        with frozen_for_good(frozen):
            await reap(engine)
            with connection.transaction():
                connection.execute("SET LOCAL lock_timeout = '30s'")
                connection.execute("LOCK TABLE written")  # a successor would wait for less
            assert site.written == []
            assert (site.state(job.id), site.owner(job.id)) == ("running", None)


def test_the_children_of_a_killed_worker_are_gone_with_it(engine: Engine, client: Client, site: Site) -> None:
    with worker(site, "process") as killed:
        runs(site, client, "overrun", text="deaf")
        pid = int(site.said[0].split()[1])
        kill(killed)
    try:
        eventually(lambda: not alive(pid), what="a child that is gone", within=10)
    finally:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


async def test_an_adopter_that_was_idle_is_woken_by_the_reaper(engine: Engine, client: Client, site: Site) -> None:
    site.shut(1)
    with worker(site, "thread") as killed:
        job = runs(site, client, "hold", gate=1)
        kill(killed)
    site.do("DELETE FROM kappa.sleepers")
    async with working(engine, FOLLOWER):
        await reap(engine)
        async with engine.async_client() as other:
            done = await other.wait(job.id)
    assert done.state is JobState.FAILED


# Stopped and continued


async def test_a_worker_that_was_stopped_for_longer_than_its_lease_can_change_nothing_afterwards(
    engine: Engine, client: Client, site: Site, executor: str
) -> None:
    site.shut(1)
    with worker(site, executor) as stopped:
        job = runs(site, client, "write", gate=1, text="kept")
        os.kill(stopped.pid, signal.SIGSTOP)
        await reap(engine)
        site.do("UPDATE kappa.jobs SET payload = payload || '{\"gate\": 0}'")
        await drain(engine, FOLLOWER)
        await maintain(engine, later=HOUR, only=lambda name: name == "promoter")
        await drain(engine, FOLLOWER)
        done = client.show(job.id)
        assert (done.state, done.attempt) == (JobState.SUCCEEDED, 2)
        site.open(1)
        os.kill(stopped.pid, signal.SIGCONT)
        stopped.process.send_signal(signal.SIGTERM)
        stopped.end()
    assert client.show(job.id) == done
    assert site.written == ["kept 2"]


async def test_a_worker_that_was_stopped_while_another_runs_its_job_does_not_disturb_it(
    engine: Engine, client: Client, site: Site, executor: str
) -> None:
    site.shut(1)
    with worker(site, executor) as stopped:
        job = runs(site, client, "hold_again", gate=1, text="mine")
        os.kill(stopped.pid, signal.SIGSTOP)
        await reap(engine)
        await drain(engine, FOLLOWER)
        site.do("UPDATE kappa.jobs SET payload = payload || '{\"gate\": 2}'")
        site.shut(2)
        await maintain(engine, later=HOUR, only=lambda name: name == "promoter")
        site.do("UPDATE kappa.lanes SET executor = 'thread'")
        async with working(engine, FOLLOWER) as second, engine.async_client() as other:
            async for seen in other.watch(job.id):
                if seen.attempt == 2:
                    break
            assert seen.lease_owner == second.owner
            site.open(1)
            os.kill(stopped.pid, signal.SIGCONT)
            stopped.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(stopped.end)
            assert site.owner(job.id) == second.owner
            site.open(2)
            done = await other.wait(job.id)
    assert (done.state, done.attempt, done.result) == (JobState.SUCCEEDED, 2, "mine 2")


# Told to end


def test_a_worker_that_is_told_to_end_finishes_what_runs_and_claims_no_more(
    engine: Engine, client: Client, site: Site, executor: str
) -> None:
    site.shut(1)
    with worker(site, executor) as told:
        first = runs(site, client, "hold", gate=1)
        told.process.send_signal(signal.SIGTERM)
        # Two slots, one job: what stops the worker from taking the second is that it was told to end.
        eventually(lambda: not caught(told.pid, signal.SIGTERM), what="a worker that heard it")
        eventually(lambda: not site.rows(AT_WORK), what="the end of a claim that was under way")
        second = client.enqueue("hold", site.task())
        site.open(1)
        told.end()
    assert (client.show(first.id).state, client.show(second.id).state) == (JobState.SUCCEEDED, JobState.QUEUED)


def caught(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal. A worker gives its own up when it was told to end."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


async def test_what_outlasts_the_grace_is_released_and_adopted_before_its_lease_runs_out(
    engine: Engine, client: Client, site: Site, executor: str
) -> None:
    client.edit_lane(LANE, lease_ttl=HOUR)
    site.shut(1)
    with worker(site, executor, grace=0.1) as told:
        job = runs(site, client, "hold_again", gate=1, text="again")
        told.process.send_signal(signal.SIGTERM)
        told.end()
    assert (site.state(job.id), site.owner(job.id)) == ("running", None)
    site.open(1)
    site.do("UPDATE kappa.lanes SET executor = 'thread'")
    await drain(engine, FOLLOWER)
    await maintain(engine, later=HOUR, only=lambda name: name == "promoter")
    await drain(engine, FOLLOWER)
    done = client.show(job.id)
    assert (done.state, done.attempt) == (JobState.SUCCEEDED, 2)


def test_the_child_processes_of_a_worker_end_with_it(engine: Engine, client: Client, site: Site) -> None:
    with worker(site, "process", grace=0.1) as told:
        runs(site, client, "overrun", text="deaf")
        pid = int(site.said[0].split()[1])
        assert alive(pid)
        told.process.send_signal(signal.SIGTERM)
        told.end()
    eventually(lambda: not alive(pid))


def test_an_interrupt_drains_a_worker_too(engine: Engine, client: Client, site: Site) -> None:
    site.shut(1)
    with worker(site, "thread") as told:
        job = runs(site, client, "hold", gate=1)
        told.process.send_signal(signal.SIGINT)
        eventually(lambda: not caught(told.pid, signal.SIGTERM), what="a worker that heard it")
        site.open(1)
        told.end()
    assert client.show(job.id).state is JobState.SUCCEEDED


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_second_signal_ends_a_worker_at_once(
    engine: Engine, client: Client, site: Site, second: signal.Signals
) -> None:
    site.shut(1)
    with worker(site, "thread") as told:
        job = runs(site, client, "hold", gate=1)
        told.process.send_signal(signal.SIGTERM)
        eventually(lambda: not caught(told.pid, signal.SIGTERM), what="a worker that heard it")

        def ended() -> bool:
            told.process.send_signal(second)
            return told.process.poll() is not None

        eventually(ended)
    assert told.process.returncode == -second
    assert site.state(job.id) == "running"
    site.open(1)


# Blocked


async def test_a_handler_that_blocks_the_loop_costs_no_lease_of_its_worker_and_is_named(
    engine: Engine, client: Client, site: Site
) -> None:
    site.shut(1)
    site.shut(2)
    until = "SELECT min(lease_until) FROM kappa.jobs WHERE state = 'running'"
    with worker(site, "async") as blocked:
        beside = runs(site, client, "hold_again", gate=1, text="beside")
        blocking = client.enqueue("block_loop", site.task(gate=2))
        await asyncio.to_thread(site.until_said, "blocks")
        before = site.rows(until)[0]
        await asyncio.to_thread(eventually, lambda: site.rows(until)[0] > before + timedelta(seconds=5))
        assert await asyncio.to_thread(maintain_now, engine) is None
        site.open(2)
        site.open(1)
        for job in (beside.id, blocking.id):
            await asyncio.to_thread(site.until_state, job, "succeeded")
        blocked.process.send_signal(signal.SIGTERM)
        _, complaint = blocked.process.communicate(timeout=60)
    assert [client.show(job).attempt for job in (beside.id, blocking.id)] == [1, 1]
    assert "event loop has been blocked" in complaint
    assert "block_loop" in complaint


def maintain_now(engine: Engine) -> None:
    """What the leader does at this moment: leases that ran out are reaped."""
    asyncio.run(maintain(engine, only=lambda name: name == "reaper"))
