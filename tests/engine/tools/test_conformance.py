"""What every runner promises, whatever is killed: a run goes on, is found again, and is settled once."""

import asyncio
import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kappa.engine import AsyncClient, Engine, WorkerConfig, tools
from kappa.engine.testing import Heard, drain, working
from kappa.engine.tools import (
    ArtifactStore,
    Bench,
    Identity,
    Runner,
    RunnerUnavailable,
    Spec,
    ToolRun,
    ToolRunStatus,
    Tools,
)
from tests.engine.site import seen
from tests.engine.tools import shop
from tests.engine.tools.shop import (
    COLLECTING,
    ENDED,
    FIRST,
    FOLLOWER,
    STARTING,
    UNMARKED,
    WAITS,
    Place,
    adopt,
    alive,
    gone,
    shell,
    try_again,
    worker,
)

SECOND = Identity(1, 2)


@pytest.fixture(params=shop.RUNNERS)
def at(request: pytest.FixtureRequest, home: Path) -> Iterator[Place]:
    yield from shop.place(request, home)


@pytest.fixture
def bench(engine: Engine, at: Place) -> Iterator[Bench]:
    made = tools.install(engine, at.home, at.runners())
    yield made
    made.close()


class Floor:
    """A test's side: one tool, asked for once, and what is seen of it."""

    def __init__(self, tools: Tools, at: Place) -> None:
        self.tools = tools
        self.at = at

    async def ask(self, source: str, *, max_attempts: int = 1, timeout: float = 60) -> ToolRun:
        await self.at.register(self.tools, shell(source), timeout=timeout)
        return await self.tools.run("it", max_attempts=max_attempts)

    async def show(self) -> ToolRun:
        return await self.tools.show(1)

    async def said(self, stream: str = "stdout", attempt: int | None = None) -> str:
        return b"".join(p.content for p in await self.tools.logs(1, stream=stream, attempt=attempt)).decode()

    async def token(self, count: int = 1) -> str:
        """What the tool said at its start, as its own log has it."""
        log = self.at.directory().stdout
        return await seen(lambda: log.exists() and log.read_text().startswith("token ") and log.read_text().split()[1])

    async def is_whole(self, token: str, attempt: int = 1) -> None:
        """It succeeded, once, with everything that this very execution made."""
        run = await self.show()
        facts = (run.status, run.attempt, run.outputs, run.exit_code, run.error_summary)
        assert facts == (ToolRunStatus.SUCCEEDED, attempt, {"token": token}, 0, None)
        assert await self.said() == f"token {token}\nwent on\n"
        assert await self.said("stderr") == "so far so good\n"
        store = ArtifactStore(self.at.home / "artifacts")
        kept = {a.path: store.place(a.sha256).read_bytes() for a in await self.tools.artifacts(1)}
        assert kept == {"token": token.encode(), "zeros": bytes(3_000_000)}

    def is_gone(self, bench: Bench, *identities: Identity) -> None:
        for identity in identities or (FIRST,):
            gone(lambda: self.at.processes(identity), f"the processes of {identity}")  # noqa: B023
        bench.sweep()
        assert bench.sweep() == []
        assert list((self.at.home / "runs").iterdir()) == []


@pytest.fixture
def floor(toolbox: Tools, at: Place) -> Floor:
    return Floor(toolbox, at)


# The worker is killed


async def test_a_run_whose_worker_is_killed_before_the_start_is_lost_and_said_so(
    engine: Engine, floor: Floor, bench: Bench, url: str, at: Place
) -> None:
    with worker(url, at, STARTING) as killed:
        await floor.ask(WAITS)
        killed.until(STARTING)
        killed.kill()
    await adopt(engine)
    run = await floor.show()
    assert (run.status, run.attempt) == (ToolRunStatus.FAILED, 1)
    assert run.error_summary == "the run was lost with its host or its supervisor"
    floor.is_gone(bench)


async def test_a_run_that_may_be_tried_again_is_when_its_worker_is_killed_before_the_start(
    engine: Engine, floor: Floor, bench: Bench, url: str, at: Place
) -> None:
    with worker(url, at, STARTING) as killed:
        await floor.ask("touch go;" + WAITS, max_attempts=2)
        killed.until(STARTING)
        await seen(lambda: attempt(url) == 1, "the start is counted")
        killed.kill()
    await adopt(engine)
    run = await floor.show()
    assert (run.status, run.attempt) == (ToolRunStatus.QUEUED, 1)
    await try_again(engine)
    run = await floor.show()
    assert (run.status, run.attempt, run.error_summary) == (ToolRunStatus.SUCCEEDED, 2, None)
    floor.is_gone(bench, FIRST, SECOND)


def attempt(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT attempt FROM kappa.jobs").fetchone()
    return row[0] if row else 0


async def test_a_run_whose_worker_is_killed_while_it_runs_goes_on_and_is_adopted(
    engine: Engine, floor: Floor, bench: Bench, url: str, at: Place, heard: Heard
) -> None:
    with worker(url, at) as killed:
        await floor.ask(WAITS, max_attempts=2)
        token = await floor.token()
        await seen(lambda: attempt(url) == 1, "the start is counted")
        killed.kill()
    before = (await floor.show()).started_at
    adopting = asyncio.create_task(adopt(engine))
    await heard.until("adopted")
    assert (await floor.show()).status is ToolRunStatus.RUNNING
    at.go()
    await adopting
    await floor.is_whole(token)
    assert (await floor.show()).started_at == before
    floor.is_gone(bench)


async def test_a_run_that_began_before_its_start_was_written_down_is_found_and_not_begun_again(
    engine: Engine, floor: Floor, bench: Bench, url: str, at: Place
) -> None:
    with worker(url, at, UNMARKED) as killed:
        await floor.ask(WAITS, max_attempts=2)
        token = await floor.token()
        assert (await floor.show()).attempt == 0
        killed.kill()
    adopting = asyncio.create_task(adopt(engine))
    await seen(lambda: attempt(url) == 1, "it is claimed anew")
    at.go()
    await adopting
    await floor.is_whole(token)
    floor.is_gone(bench)


@pytest.mark.parametrize("point", [ENDED, COLLECTING])
async def test_a_run_whose_worker_is_killed_after_the_exit_is_settled_from_what_it_left(
    engine: Engine, floor: Floor, bench: Bench, url: str, at: Place, point: str
) -> None:
    with worker(url, at, point) as killed:
        await floor.ask(WAITS)
        token = await floor.token()
        at.go()
        killed.until(point)
        killed.kill()
    assert await floor.tools.artifacts(1) == []
    assert at.runner.find(FIRST).exit is not None
    await adopt(engine)
    await floor.is_whole(token)
    floor.is_gone(bench)


async def test_the_time_of_a_run_is_counted_from_its_first_start_however_often_it_is_adopted(
    engine: Engine, floor: Floor, bench: Bench, url: str, at: Place
) -> None:
    """Two workers take the whole time-out together; none of them alone does."""
    with worker(url, at) as killed:
        await floor.ask(WAITS, timeout=at.shortest)
        await floor.token()
        killed.kill()
    adopted_at = datetime.now(UTC)
    await adopt(engine)
    run = await floor.show()
    assert (run.status, run.attempt, run.error_summary) == (ToolRunStatus.TIMED_OUT, 1, "the time-out was reached")
    assert run.finished_at
    # The worker that adopts gives it ten seconds to be found, but its supervisor counts on.
    assert run.finished_at - adopted_at < timedelta(seconds=10)
    floor.is_gone(bench)


async def test_a_worker_told_to_end_releases_its_run_and_another_adopts_it(
    engine: Engine, floor: Floor, bench: Bench, url: str, at: Place, heard: Heard
) -> None:
    with worker(url, at, grace=0.1) as ended:
        await floor.ask(WAITS)
        token = await floor.token()
        ended.send_signal(signal.SIGTERM)
        await asyncio.to_thread(ended.end)
    assert at.runner.find(FIRST).running
    adopting = asyncio.create_task(drain(engine, FOLLOWER))  # at once: no lease has to run out
    await heard.until("adopted")
    at.go()
    await adopting
    await floor.is_whole(token)
    floor.is_gone(bench)


async def test_two_adoptions_one_after_the_other_lose_nothing(
    engine: Engine, floor: Floor, bench: Bench, url: str, at: Place
) -> None:
    with worker(url, at, grace=0.1) as first:
        await floor.ask(WAITS)
        token = await floor.token()
        first.send_signal(signal.SIGTERM)
        await asyncio.to_thread(first.end)
    with worker(url, at, COLLECTING) as second:
        at.go()
        second.until(COLLECTING)
        second.kill()
    await adopt(engine)
    await floor.is_whole(token)
    floor.is_gone(bench)


# The supervisor is killed

FAMILY = """
/usr/bin/python3 -c '
import os, signal, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
if not os.fork():
    time.sleep(600)
if not os.fork():
    os.setsid()
    time.sleep(600)
if not os.fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    time.sleep(600)
print("token family", flush=True)
time.sleep(600)
'
"""
"""A child that ignores SIGTERM, one that left the session, and one whose parents are gone."""

SLOW_FAMILY = """
sh -c '
setsid sleep 600 &
chrt --idle --pid 0 $!
chrt --idle --pid 0 $PPID
echo token elsewhere
chrt --idle --pid 0 $$
wait
'
exit 0
"""
"""Two parents, and a child that left their session: when nobody else wants the core, each gets to die."""


@pytest.mark.parametrize("max_attempts", [1, 2])
async def test_a_run_whose_supervisor_is_killed_is_a_lost_attempt_with_nothing_left_of_it(
    engine: Engine, floor: Floor, bench: Bench, at: Place, max_attempts: int
) -> None:
    async with working(engine, FOLLOWER):
        await floor.ask(FAMILY, max_attempts=max_attempts)
        await floor.token()
        kill_supervisor(at)
        await floor_settles(floor)
        gone(at.processes, "what the supervisor left behind")
    run = await floor.show()
    lost = ToolRunStatus.FAILED if max_attempts == 1 else ToolRunStatus.QUEUED
    assert (run.status, run.attempt, run.error_summary) == (lost, 1, "the supervisor of the run was lost")
    floor.is_gone(bench)


async def test_nothing_is_left_of_a_run_whose_worker_and_supervisor_are_both_killed(
    engine: Engine, floor: Floor, bench: Bench, url: str, at: Place
) -> None:
    with worker(url, at) as killed:
        await floor.ask(FAMILY)
        await floor.token()
        killed.kill()
    kill_supervisor(at)
    await adopt(engine)
    gone(at.processes, "what the supervisor left behind")
    run = await floor.show()
    assert (run.status, run.attempt) == (ToolRunStatus.FAILED, 1)
    assert run.error_summary == "the run was lost with its host or its supervisor"
    floor.is_gone(bench)


def kill_supervisor(at: Place) -> None:
    pid = at.supervisor()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    gone(lambda: alive(pid), "the supervisor")


async def floor_settles(floor: Floor) -> None:
    async with asyncio.timeout(30):
        while not (run := await floor.show()).status.terminal and run.available_at is None:
            await asyncio.sleep(0.005)


# Cancelled, and out of time


async def test_a_queued_run_that_is_cancelled_never_begins(
    engine: Engine, floor: Floor, bench: Bench, at: Place
) -> None:
    await floor.ask(WAITS)
    await floor.tools.cancel(1, "not needed")
    run = await floor.show()
    assert (run.status, run.reason, run.started_at) == (ToolRunStatus.CANCELLED, "not needed", None)
    await drain(engine, FOLLOWER)
    assert not at.directory().path.exists()


async def test_a_cancelled_run_ends_with_everything_that_it_started(
    engine: Engine, floor: Floor, bench: Bench, at: Place
) -> None:
    async with working(engine, FOLLOWER):
        await floor.ask(FAMILY)
        await floor.token()
        await floor.tools.cancel(1, "enough")
        await floor_settles(floor)
        assert at.processes() == []
    run = await floor.show()
    assert (run.status, run.reason, run.attempt) == (ToolRunStatus.CANCELLED, "enough", 1)
    floor.is_gone(bench)


async def test_a_run_cancelled_while_nobody_looks_after_it_is_ended_by_who_adopts_it(
    engine: Engine, floor: Floor, bench: Bench, url: str, at: Place
) -> None:
    with worker(url, at) as killed:
        await floor.ask(FAMILY)
        await floor.token()
        killed.kill()
    await floor.tools.cancel(1, "enough")
    await adopt(engine)
    assert at.processes() == []
    run = await floor.show()
    assert (run.status, run.reason, run.attempt) == (ToolRunStatus.CANCELLED, "enough", 1)
    floor.is_gone(bench)


async def test_a_run_out_of_time_ends_with_everything_that_it_started(
    engine: Engine, floor: Floor, bench: Bench, at: Place
) -> None:
    await floor.ask(FAMILY, timeout=at.shortest)
    await drain(engine, FOLLOWER)
    run = await floor.show()
    assert (run.status, run.error_summary, run.attempt) == (ToolRunStatus.TIMED_OUT, "the time-out was reached", 1)
    gone(at.processes, "what ran out of time")
    floor.is_gone(bench)


@pytest.mark.parametrize("at", ["process"], indirect=True)
async def test_a_supervisor_keeps_the_time_though_no_worker_looks_after_it(
    engine: Engine, floor: Floor, bench: Bench, url: str, at: Place
) -> None:
    with worker(url, at) as killed:
        await floor.ask(FAMILY, timeout=3)
        await floor.token()
        killed.kill()
    gone(lambda: at.runner.find(FIRST).running, "the run")
    assert at.processes() == []
    await adopt(engine)
    assert (await floor.show()).status is ToolRunStatus.TIMED_OUT
    floor.is_gone(bench)


@pytest.mark.parametrize("at", ["process"], indirect=True)
async def test_a_family_that_is_slow_to_die_is_waited_for(
    engine: Engine, floor: Floor, bench: Bench, url: str, at: Place
) -> None:
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(everywhere)})  # with its supervisor on one core, where it runs when nobody else does
    try:
        with worker(url, at) as killed:
            await floor.ask(SLOW_FAMILY, timeout=3)
            await floor.token()
            killed.kill()
        gone(lambda: at.runner.find(FIRST).running, "the run")
        assert at.processes() == []
    finally:
        os.sched_setaffinity(0, everywhere)
    await adopt(engine)
    assert (await floor.show()).status is ToolRunStatus.TIMED_OUT
    floor.is_gone(bench)


# A runner that is away


class Away:
    """A runner that can be away: nothing can be begun, found, or stopped."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.away = True
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        self.asked += 1
        if self.away:
            raise RunnerUnavailable("nobody answers")
        return getattr(self._runner, name)


class NoStart(Away):
    """A runner that knows its runs but can take no more."""

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name) if name == "start" else getattr(self._runner, name)


@pytest.mark.parametrize("how", [NoStart, Away])
async def test_a_run_whose_runner_is_away_goes_back_to_the_queue_and_loses_no_attempt(
    engine: Engine, async_client: AsyncClient, at: Place, how: type[Away]
) -> None:
    runners = {kind: how(runner) for kind, runner in at.runners().items()}
    bench = tools.install(engine, at.home, runners)
    floor = Floor(Tools(async_client), at)
    await floor.ask("touch go;" + WAITS)
    await drain(engine, FOLLOWER)
    run, job = await floor.show(), await async_client.show(1)
    assert (run.status, run.error_summary) == (ToolRunStatus.QUEUED, None)
    assert job.attempt < job.max_attempts
    for runner in runners.values():
        runner.away = False
    await try_again(engine)
    assert (await floor.show()).status is ToolRunStatus.SUCCEEDED
    floor.is_gone(bench)
    bench.close()


async def test_a_run_goes_on_while_its_runner_is_away(engine: Engine, async_client: AsyncClient, at: Place) -> None:
    ((kind, runner),) = at.runners().items()
    shy = Away(runner)
    shy.away = False
    bench = tools.install(engine, at.home, {kind: shy})  # type: ignore[dict-item]
    floor = Floor(Tools(async_client), at)
    async with working(engine, FOLLOWER):
        await floor.ask(WAITS)
        token = await floor.token()
        shy.away, shy.asked = True, 0
        await seen(lambda: shy.asked >= 2, "it is asked again")
        assert (await floor.show()).status is ToolRunStatus.RUNNING
        shy.away = False
        at.go()
        await floor_settles(floor)
    await floor.is_whole(token)
    floor.is_gone(bench)
    bench.close()


async def test_a_run_goes_on_while_the_database_is_away(
    engine: Engine, floor: Floor, bench: Bench, at: Place, connection: Any
) -> None:
    async with working(engine, FOLLOWER):
        await floor.ask(WAITS)
        token = await floor.token()
        for _ in range(3):
            # With a wait: a session that was told to end but hasn't yet would take the test's own next statement.
            await asyncio.to_thread(
                connection.execute,
                "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid()",
            )
        at.go()
        await floor_settles(floor)
    await floor.is_whole(token)
    floor.is_gone(bench)


async def test_starting_what_is_there_already_changes_nothing(
    engine: Engine, floor: Floor, bench: Bench, at: Place
) -> None:
    async with working(engine, WorkerConfig(lead=False)):
        await floor.ask(WAITS)
        token = await floor.token()
        spec = Spec(FIRST, tuple(shell("echo second")), 60, image=at.image)
        at.runner.start(spec)
        at.go()
        await floor_settles(floor)
        at.runner.start(spec)
    await floor.is_whole(token)
    floor.is_gone(bench)
