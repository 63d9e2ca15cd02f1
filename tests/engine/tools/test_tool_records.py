"""What is written of tools and their runs: at every commit a run says what its job says, and what it kept is whole."""

import asyncio
import itertools
import os
import random
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kappa.app.wiring import COMPONENTS
from kappa.engine import AsyncClient, Engine, JobState, tools
from kappa.engine.testing import drain, maintain, working
from kappa.engine.tools import (
    ArtifactStore,
    Bench,
    Identity,
    ProcessRunner,
    ToolError,
    ToolNotFound,
    ToolRunStatus,
    Tools,
)
from kappa.engine.tools.client import INPUTS_LIMIT
from kappa.pg.migrations import Component, migrate
from tests.engine.site import seen
from tests.engine.tools.conftest import GOOD, script
from tests.engine.tools.shop import FIRST, FOLLOWER, HOUR, Place, adopt, gone, shell, try_again, worker

OK = """echo '{"contract_version": 1, "status": "succeeded"}' >result.json"""
WAIT = "while [ ! -e go ]; do sleep 0.02; done;"


@pytest.fixture
def at(home: Path) -> Place:
    return Place("process", home)


@pytest.fixture
def bench(engine: Engine, at: Place) -> Iterator[Bench]:
    made = tools.install(engine, at.home, at.runners())
    yield made
    made.close()


# A run says what its job says

WATCH = """
CREATE TABLE commits (id serial, run bigint, status text, attempt int);
CREATE FUNCTION kappa.compare(wanted bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    run kappa.all_tool_runs;
    job kappa.all_jobs;
BEGIN
    SELECT * INTO run FROM kappa.all_tool_runs WHERE job_id = wanted;
    SELECT * INTO job FROM kappa.all_jobs WHERE id = wanted;
    IF job.id IS NULL OR job.kind <> 'tool_run' THEN
        RETURN;
    END IF;
    IF (run.status, run.available_at, run.attempt, run.started_at, run.finished_at, run.reason) IS DISTINCT FROM
       (replace(job.state::text, 'scheduled', 'queued')::kappa.job_state, job.run_at, job.attempt, job.started_at,
        job.finished_at, job.reason) THEN
        RAISE EXCEPTION 'job % says %, its run says %', wanted,
            (job.state, job.run_at, job.attempt, job.started_at, job.finished_at, job.reason),
            (run.status, run.available_at, run.attempt, run.started_at, run.finished_at, run.reason);
    END IF;
    INSERT INTO commits (run, status, attempt) VALUES (run.id, run.status, run.attempt);
END $$;
CREATE FUNCTION kappa.compare_job() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM kappa.compare(NEW.id); RETURN NULL; END $$;
CREATE FUNCTION kappa.compare_run() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM kappa.compare(NEW.job_id); RETURN NULL; END $$;
CREATE FUNCTION kappa.compare_outcome() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM kappa.compare(coalesce(NEW.job_id, OLD.job_id)); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER compare AFTER INSERT OR UPDATE ON kappa.jobs
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.kind = 'tool_run') EXECUTE FUNCTION kappa.compare_job();
CREATE CONSTRAINT TRIGGER compare AFTER INSERT OR UPDATE ON kappa.finished_jobs
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.kind = 'tool_run') EXECUTE FUNCTION kappa.compare_job();
CREATE CONSTRAINT TRIGGER compare AFTER INSERT OR UPDATE ON kappa.tool_runs
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION kappa.compare_run();
CREATE CONSTRAINT TRIGGER compare AFTER INSERT OR UPDATE OR DELETE ON kappa.tool_run_outcomes
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION kappa.compare_outcome();
"""


@pytest.fixture
def watched(connection: psycopg.Connection[Any]) -> None:
    connection.execute(WATCH)
    connection.execute("UPDATE kappa.lanes SET max_slots = 6, lease_ttl = '2 seconds' WHERE name = 'tools'")


@pytest.mark.usefixtures("watched")
async def test_a_commit_in_which_a_run_and_its_job_differ_is_seen(
    engine: Engine, toolbox: Tools, connection: psycopg.Connection[Any]
) -> None:
    """That the watch of these tests can bark."""
    await toolbox.register("ok", "1", argv=shell(OK))
    await toolbox.run("ok")
    await drain(engine, FOLLOWER)
    for statement in ("UPDATE kappa.tool_run_outcomes SET status = 'failed'", "DELETE FROM kappa.tool_run_outcomes"):
        with pytest.raises(psycopg.errors.RaiseException, match="says"):
            connection.execute(statement)


@pytest.mark.usefixtures("watched")
async def test_a_run_says_what_its_job_says_at_every_commit_of_a_wild_life(
    url: str, at: Place, connection: psycopg.Connection[Any]
) -> None:
    """Workers killed and told to end, supervisors killed, runs cancelled, tried again, approved and rejected."""
    engine, dice = Engine(url), random.Random(7)
    bench = Bench(engine.database, at.home / "runs", ArtifactStore(at.home / "artifacts"), at.runners())
    engine.job(tools.KIND, adoptable=True, approval=True)(bench.handle)
    sources = {
        "ok": f"{OK}",
        "slow": f"sleep 0.4; {OK}",
        "bad": "exit 1",
        "dead": "kill -9 $PPID",
        "late": "sleep 20",
    }
    async with engine.async_client() as client:
        toolbox = Tools(client)
        for name, source in sources.items():
            timeout = timedelta(seconds=0.6 if name == "late" else 30)
            await toolbox.register(name, "1", argv=shell(source), timeout=timeout)
        names = itertools.cycle(sources)
        for number in range(40):
            run = await toolbox.run(next(names), max_attempts=dice.choice([1, 2]))
            assert run.status is ToolRunStatus.AWAITING_APPROVAL
            if number % 8 == 0:
                await client.reject(run.job_id)
            elif number % 11 == 0:
                await toolbox.cancel(run.id, "before it began")
            else:
                await client.approve(run.job_id, "ada")

        async def upset() -> None:
            """Until everything has ended: cancel this, kill the supervisor of that."""
            while await toolbox.runs(states=[ToolRunStatus.QUEUED, ToolRunStatus.RUNNING]):
                running = await toolbox.runs(states=[ToolRunStatus.RUNNING])
                if running and dice.random() < 0.2:
                    await toolbox.cancel(dice.choice(running).id, "in the middle")
                elif running and (pid := at.supervisor(Identity(dice.choice(running).job_id, 1))):
                    os.kill(pid, signal.SIGKILL)
                await maintain(engine, later=HOUR, only=lambda name: name in ("promoter", "reaper"))
                await asyncio.sleep(0.1)

        with worker(url, at) as killed, worker(url, at, grace=0) as told:
            async with working(engine, FOLLOWER):
                upsetting = asyncio.create_task(upset())
                await seen(
                    lambda: len(connection.execute("SELECT FROM commits WHERE status = 'running'").fetchall()) > 8
                )
                killed.kill()
                told.send_signal(signal.SIGTERM)
                async with asyncio.timeout(60):
                    await upsetting
        ended = await toolbox.runs(limit=100)
    bench.sweep()
    bench.close()
    assert len(ended) == 40
    assert {run.status for run in ended} == {status for status in ToolRunStatus if status.terminal}
    assert all(run.finished_at for run in ended)
    for run in ended:
        if run.status is ToolRunStatus.SUCCEEDED:
            assert run.error_summary is None, run
        else:  # one that was cancelled after an attempt had failed says both
            assert run.error_summary or run.reason, run
    seen_states = connection.execute("SELECT DISTINCT status FROM commits").fetchall()
    assert {status for (status,) in seen_states} == {status.value for status in ToolRunStatus}
    gone(lambda: [pid for run in ended for n in (1, 2) for pid in at.processes(Identity(run.job_id, n))], "all of them")


@pytest.mark.usefixtures("watched")
async def test_a_run_that_backs_off_is_queued_and_says_from_when_it_is_available(
    engine: Engine, toolbox: Tools, async_client: AsyncClient
) -> None:
    await toolbox.register("bad", "1", argv=shell("exit 4"))
    asked = await toolbox.run("bad", max_attempts=2)
    assert (asked.status, asked.available_at) == ("queued", None)
    await drain(engine, FOLLOWER)
    job, run = await async_client.show(asked.job_id), await toolbox.show(asked.id)
    assert (job.state, run.status, run.attempt) == (JobState.SCHEDULED, "queued", 1)
    assert run.available_at == job.run_at is not None
    assert [one.id for one in await toolbox.runs(states=[run.status])] == [asked.id]
    await maintain(engine, later=HOUR, only=lambda name: name == "promoter")
    due = await toolbox.show(asked.id)
    assert (due.status, due.available_at) == ("queued", None)
    await drain(engine, FOLLOWER)
    ended = await toolbox.show(asked.id)
    assert (ended.status, ended.available_at, ended.attempt) == ("failed", None, 2)


def test_a_run_that_backs_off_while_the_schema_is_migrated_is_queued_then(empty_url: str) -> None:
    (engine,) = (part for part in COMPONENTS if part.name == "engine")
    number = next(step.number for step in engine.steps if step.name == "tool_run_status")
    with psycopg.connect(empty_url, autocommit=True) as connection:
        migrate(connection, [Component("engine", engine.steps[: number - 1])])
        connection.execute("""
            INSERT INTO kappa.tools (name, version, argv) VALUES ('wc', '1', '{wc}');
            INSERT INTO kappa.jobs (id, lane, kind, state, run_at)
            VALUES (7, 'tools', 'tool_run', 'scheduled', '2100-01-01 UTC');
            INSERT INTO kappa.tool_runs (job_id, tool, version, status) VALUES (7, 'wc', '1', 'scheduled')""")
        migrate(connection, COMPONENTS)
        rows = connection.execute("SELECT status, available_at = '2100-01-01 UTC' FROM kappa.all_tool_runs").fetchall()
        assert rows == [("queued", True)]


def test_a_run_that_ended_before_the_schema_was_migrated_says_how_and_one_that_was_silent_may_stay_so(
    empty_url: str,
) -> None:
    (engine,) = (part for part in COMPONENTS if part.name == "engine")
    number = next(step.number for step in engine.steps if step.name == "tool_run_outcomes")
    with psycopg.connect(empty_url, autocommit=True) as connection:
        migrate(connection, [Component("engine", engine.steps[: number - 1])])
        connection.execute("""
            INSERT INTO kappa.tools (name, version, argv) VALUES ('wc', '1', '{wc}');
            INSERT INTO kappa.jobs (id, lane, kind, state) VALUES (7, 'tools', 'tool_run', 'queued');
            INSERT INTO kappa.tool_runs (job_id, tool, version, status) VALUES (7, 'wc', '1', 'queued');
            INSERT INTO kappa.tool_runs (job_id, tool, version, status, finished_at, attempt, error_summary)
            VALUES (6, 'wc', '1', 'failed', '2020-01-01 UTC', 2, 'why')""")
        migrate(connection, COMPONENTS)
        rows = connection.execute(
            "SELECT status, finished_at IS NULL, attempt, error_summary FROM kappa.all_tool_runs ORDER BY job_id"
        )
        assert rows.fetchall() == [("failed", False, 2, "why"), ("queued", True, 0, None)]
        silent = connection.execute("SELECT stale_timeout > interval '50 years' FROM kappa.jobs").fetchall()
        assert silent == [(True,)]


async def test_a_run_has_one_attempt_unless_more_are_asked_for(
    toolbox: Tools, engine: Engine, async_client: AsyncClient
) -> None:
    await toolbox.register("ok", "1", argv=shell(OK))
    asked = [await toolbox.run("ok"), await toolbox.run("ok", max_attempts=2)]
    assert [(await async_client.show(run.job_id)).max_attempts for run in asked] == [1, 2]
    assert engine.registry.get("tool_run").max_attempts == 1


@pytest.mark.usefixtures("watched")
async def test_a_run_stays_when_its_job_is_forgotten(
    engine: Engine, toolbox: Tools, connection: psycopg.Connection[Any]
) -> None:
    await toolbox.register("ok", "1", argv=shell(OK))
    await toolbox.run("ok")
    await drain(engine, FOLLOWER)
    await maintain(engine, later=timedelta(days=30))
    assert connection.execute("SELECT count(*) FROM kappa.all_jobs").fetchone() == (0,)
    assert (await toolbox.show(1)).status is ToolRunStatus.SUCCEEDED


async def test_a_job_retried_by_hand_writes_nothing_into_the_run_of_the_first(
    engine: Engine, toolbox: Tools, async_client: AsyncClient
) -> None:
    await toolbox.register("bad", "1", argv=shell("exit 4"))
    asked = await toolbox.run("bad")
    await drain(engine, FOLLOWER)
    before = await toolbox.show(1)
    again = await async_client.retry(asked.job_id)
    await drain(engine, FOLLOWER)
    assert await toolbox.show(1) == before
    job = await async_client.show(again.id)
    assert (job.state, job.error_summary) == (
        JobState.FAILED, "there is no tool run 1 of this job: ask for a new one",
    )  # fmt: skip


# Registering


@pytest.mark.parametrize("name", ["", "Wc", "1wc", "w c", "w/c", "../wc", "w" * 64, "w\0c", "w\nc", "\ud800", "é"])
async def test_a_tool_has_a_plain_name(toolbox: Tools, name: str) -> None:
    with pytest.raises(ToolError):
        await toolbox.register(name, "1", argv=["true"])
    assert await toolbox.tools() == []


@pytest.mark.parametrize("version", ["", ".1", "1 2", "1/2", "v" * 64, "1\0", "1\n"])
async def test_a_version_has_a_plain_name(toolbox: Tools, version: str) -> None:
    with pytest.raises(ToolError):
        await toolbox.register("wc", version, argv=["true"])


@pytest.mark.parametrize(
    "limits",
    [
        {"cpus": 0}, {"cpus": -1}, {"cpus": float("nan")}, {"cpus": 1e9}, {"memory_mb": 1}, {"memory_mb": 10**9},
        {"pids": 0}, {"pids": 10**6}, {"tmp_mb": 0}, {"output_mb": 0}, {"output_mb": "much"}, {"memory": 64},
    ],
)  # fmt: skip
async def test_a_limit_out_of_bounds_is_refused_by_its_name(toolbox: Tools, limits: dict[str, Any]) -> None:
    with pytest.raises(ToolError, match=f"limit {next(iter(limits))}: "):
        await toolbox.register("wc", "1", argv=["true"], limits=limits)


@pytest.mark.parametrize("timeout", [timedelta(0), timedelta(seconds=-1), timedelta(days=8)])
async def test_a_time_out_out_of_bounds_is_refused(toolbox: Tools, timeout: timedelta) -> None:
    with pytest.raises(ToolError, match="time-out"):
        await toolbox.register("wc", "1", argv=["true"], timeout=timeout)


@pytest.mark.parametrize("argv", [[], ["a\0b"], ["\ud800"]])
async def test_a_command_that_cannot_be_run_is_refused(toolbox: Tools, argv: list[str]) -> None:
    with pytest.raises(ToolError):
        await toolbox.register("wc", "1", argv=argv)


async def test_what_a_version_says_never_changes(toolbox: Tools) -> None:
    await toolbox.register("wc", "1", argv=["one"])
    with pytest.raises(ToolError, match="already"):
        await toolbox.register("wc", "1", argv=["two"])
    assert (await toolbox.tool("wc", "1")).argv == ["one"]


async def test_the_newest_version_that_is_switched_on_runs_unless_one_is_named(toolbox: Tools) -> None:
    for version in ("1", "2", "3"):
        await toolbox.register("wc", version, argv=[version])
    await toolbox.set_enabled("wc", "3", enabled=False)
    assert (await toolbox.run("wc")).version == "2"
    assert (await toolbox.run("wc", version="1")).version == "1"
    with pytest.raises(ToolError, match="switched off"):
        await toolbox.run("wc", version="3")
    await toolbox.set_enabled("wc", enabled=False)
    with pytest.raises(ToolNotFound, match="no enabled version"):
        await toolbox.run("wc")


async def test_what_is_not_there_is_said_to_be_not_there(toolbox: Tools) -> None:
    with pytest.raises(ToolNotFound, match="there is no tool 'wc'"):
        await toolbox.run("wc")
    await toolbox.register("wc", "1", argv=["true"])
    with pytest.raises(ToolNotFound, match=r"no version '2' \(it has: 1\)"):
        await toolbox.run("wc", version="2")
    with pytest.raises(ToolNotFound, match="there is no tool 'cw'"):
        await toolbox.set_enabled("cw", enabled=True)
    for ask in (toolbox.show, toolbox.cancel):
        with pytest.raises(ToolNotFound, match="there is no tool run 9"):
            await ask(9)


# Inputs


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "/etc/passwd", "../a", "a\\b", "a\nb", "a\0b", "a" * 256, "é" * 200, "\ud800"]
)
async def test_an_input_file_has_a_plain_name(toolbox: Tools, connection: psycopg.Connection[Any], name: str) -> None:
    await toolbox.register("wc", "1", argv=["true"])
    with pytest.raises(ToolError, match="an input file can't be called"):
        await toolbox.run("wc", files={"good": b"", name: b""})
    assert connection.execute("SELECT FROM kappa.tool_runs").fetchall() == []
    assert connection.execute("SELECT FROM kappa.jobs").fetchall() == []


@pytest.mark.parametrize("inputs", [float("nan"), {"a": float("inf")}, "a\0b", {"a\0": 1}, ["\ud800"]])
async def test_inputs_that_no_database_keeps_are_refused(
    toolbox: Tools, connection: psycopg.Connection[Any], inputs: Any
) -> None:
    await toolbox.register("wc", "1", argv=["true"])
    with pytest.raises(ToolError):
        await toolbox.run("wc", inputs=inputs)
    assert connection.execute("SELECT FROM kappa.tool_runs").fetchall() == []


async def test_too_many_bytes_of_input_are_refused(toolbox: Tools) -> None:
    await toolbox.register("wc", "1", argv=["true"])
    half = bytes(INPUTS_LIMIT // 2)
    with pytest.raises(ToolError, match="64 MB"):
        await toolbox.run("wc", files={"a": half, "b": half, "c": b"x"})


async def test_a_tool_finds_its_inputs_as_they_were_given(engine: Engine, toolbox: Tools) -> None:
    files = {"plain": b"\0\xff\n", "a b": b"", ".hidden": b"x", "é" * 127: b"long", "x" * 255: b"longer"}
    source = """
        import json, os
        request = json.load(open("request.json"))
        found = {name: list(open("input/" + name, "rb").read()) for name in sorted(os.listdir("input"))}
        json.dump({"contract_version": 1, "status": "succeeded",
                   "outputs": [request["inputs"], found, request["input_files"]]}, open("result.json", "w"))
    """
    await toolbox.register("look", "1", argv=script(source))
    await toolbox.run("look", inputs={"é": [1.5, None]}, files=files)
    await drain(engine, FOLLOWER)
    run = await toolbox.show(1)
    assert (run.status, run.error_summary) == (ToolRunStatus.SUCCEEDED, None)
    assert run.outputs == [{"é": [1.5, None]}, {name: list(text) for name, text in files.items()}, sorted(files)]


# Logs and progress


async def test_what_a_run_says_is_there_while_it_runs(
    engine: Engine, toolbox: Tools, at: Place, async_client: AsyncClient
) -> None:
    progress = r'{"done": 1, "total": 4, "message": "a\u0000b\n"}'
    source = f"echo one; echo two >&2; printf '%s' '{progress}' >progress.json;"
    await toolbox.register("talk", "1", argv=shell(f"{source} {WAIT} echo three; {OK}"))
    await toolbox.run("talk")
    async with working(engine, FOLLOWER):
        async with asyncio.timeout(30):
            while len(live := await toolbox.logs(1)) < 2:
                await asyncio.sleep(0.01)
            while (job := await async_client.show(1)).progress_done is None:
                await asyncio.sleep(0.01)
        assert (await toolbox.show(1)).status is ToolRunStatus.RUNNING
        assert [(piece.stream, piece.position, piece.content) for piece in live] == [
            ("stdout", 0, b"one\n"), ("stderr", 0, b"two\n"),
        ]  # fmt: skip
        assert (job.progress_done, job.progress_total, job.progress_message) == (1, 4, "a b")
        at.go()
        await drain(engine, FOLLOWER)
    assert (await toolbox.show(1)).status is ToolRunStatus.SUCCEEDED
    assert [piece.content for piece in await toolbox.logs(1, stream="stdout")] == [b"one\n", b"three\n"]


async def test_of_each_stream_as_much_is_kept_as_fits(engine: Engine, toolbox: Tools) -> None:
    source = f"yes 123456789 | head -c 300000; yes 987654321 | head -c 150000 >&2; {OK}"
    await toolbox.register("talk", "1", argv=shell(source))
    await toolbox.run("talk")
    await drain(engine, FOLLOWER)
    kept = {
        stream: b"".join(p.content for p in await toolbox.logs(1, stream=stream)) for stream in ("stdout", "stderr")
    }
    assert kept == {"stdout": b"123456789\n" * 20_000, "stderr": b"987654321\n" * 15_000}


async def test_who_adopts_a_run_goes_on_with_its_log_where_it_was(
    engine: Engine, toolbox: Tools, at: Place, url: str, bench: Bench
) -> None:
    await toolbox.register("talk", "1", argv=shell(f"echo before; {WAIT} echo after; {OK}"))
    with worker(url, at) as killed:
        await toolbox.run("talk")
        async with asyncio.timeout(30):
            while not await toolbox.logs(1):
                await asyncio.sleep(0.01)
        killed.kill()
    at.go()
    await adopt(engine)
    assert [(p.position, p.content) for p in await toolbox.logs(1)] == [(0, b"before\n"), (7, b"after\n")]


async def test_every_attempt_has_a_log_of_its_own(engine: Engine, toolbox: Tools, bench: Bench, home: Path) -> None:
    await toolbox.register("talk", "1", argv=script("""
        import json
        print("attempt", json.load(open("request.json"))["attempt"])
        exit(1)
    """))  # fmt: skip
    await toolbox.run("talk", max_attempts=2)
    await drain(engine, FOLLOWER)
    await try_again(engine)
    run = await toolbox.show(1)
    assert (run.status, run.attempt, run.exit_code) == (ToolRunStatus.FAILED, 2, 1)
    said = {n: [piece.content for piece in await toolbox.logs(1, attempt=n)] for n in (1, 2, None)}
    assert said == {1: [b"attempt 1\n"], 2: [b"attempt 2\n"], None: [b"attempt 2\n"]}
    bench.sweep()
    assert list((home / "runs").iterdir()) == []


# Artifacts and leftovers


@pytest.fixture
async def two_artifacts(toolbox: Tools) -> None:
    named = '[{"path": "a"}, {"path": "b"}]'
    result = f'{{"contract_version": 1, "status": "succeeded", "artifacts": {named}}}'
    await toolbox.register(
        "two", "1", argv=shell(f"{WAIT} echo >output/a; echo b >output/b; echo '{result}' >result.json")
    )


@pytest.mark.usefixtures("two_artifacts")
async def test_artifacts_are_there_with_the_success_or_not_at_all(
    engine: Engine, toolbox: Tools, at: Place, connection: psycopg.Connection[Any]
) -> None:
    """The database refuses the last of two: then neither is there, and the run has failed."""
    connection.execute("ALTER TABLE kappa.tool_artifacts ADD CONSTRAINT no_b CHECK (path <> 'b')")
    await toolbox.run("two", max_attempts=2)
    async with working(engine, FOLLOWER):
        await seen(lambda: at.runner.find(FIRST).running)
        at.go()
        await drain(engine, FOLLOWER)
    run = await toolbox.show(1)
    assert (run.status, run.outputs, await toolbox.artifacts(1)) == (ToolRunStatus.QUEUED, None, [])
    connection.execute("ALTER TABLE kappa.tool_artifacts DROP CONSTRAINT no_b")
    await maintain(engine, later=HOUR, only=lambda name: name == "promoter")
    async with working(engine, FOLLOWER):
        await seen(lambda: at.runner.find(Identity(1, 2)).running)
        at.go(Identity(1, 2))
        await drain(engine, FOLLOWER)
    assert (await toolbox.show(1)).status is ToolRunStatus.SUCCEEDED
    store = ArtifactStore(at.home / "artifacts")
    for artifact in await toolbox.artifacts(1):
        assert store.place(artifact.sha256).stat().st_size == artifact.size


@pytest.mark.usefixtures("two_artifacts")
async def test_sweeping_takes_only_what_no_job_asks_for(
    engine: Engine, toolbox: Tools, bench: Bench, at: Place, url: str
) -> None:
    await toolbox.register("good", "1", argv=script(GOOD))
    await toolbox.run("good")
    with worker(url, at) as killed:
        await toolbox.run("two")
        await seen(lambda: at.runner.find(Identity(2, 1)).running, "it runs")
        await seen(lambda: at.runner.find(FIRST).exit, "the other has ended")
        async with asyncio.timeout(30):
            while (await toolbox.show(1)).finished_at is None:
                await asyncio.sleep(0.01)
        assert bench.sweep() == [FIRST]
        killed.kill()
    await maintain(engine, later=HOUR, only=lambda name: name == "reaper")
    assert bench.sweep() == []  # an orphan is still asked for
    assert at.runner.find(Identity(2, 1)).running
    at.go(Identity(2, 1))
    await seen(lambda: at.runner.find(Identity(2, 1)).exit, "it has ended")
    assert bench.sweep() == []  # and so is what it left
    await drain(engine, FOLLOWER)
    assert (await toolbox.show(2)).status is ToolRunStatus.SUCCEEDED
    assert bench.sweep() == [Identity(2, 1)]
    assert list((at.home / "runs").iterdir()) == []


async def test_sweeping_ends_a_run_that_is_nobodys(bench: Bench, at: Place) -> None:
    """As after a restore of the database: no job of that number was ever there."""
    identity = Identity(77, 1)
    directory = at.directory(identity)
    for path in (directory.private, directory.path, directory.input, directory.output):
        path.mkdir(parents=True)
    directory.request.touch()
    runner = ProcessRunner(at.home / "runs", sandbox=False)
    runner.start(tools.Spec(identity, ("sleep", "600"), 600))
    await seen(lambda: at.processes(identity), "it runs")
    assert bench.sweep() == [identity]
    assert at.processes(identity) == []
    assert list((at.home / "runs").iterdir()) == []


async def test_sweeping_removes_drafts_that_nobody_writes_any_more(bench: Bench, at: Place) -> None:
    drafts = at.home / "artifacts" / "drafts"
    drafts.mkdir(parents=True)
    for name in ("old", "new"):
        (drafts / name).touch()
    os.utime(drafts / "old", (0, 0))
    bench.sweep()
    assert [path.name for path in drafts.iterdir()] == ["new"]
