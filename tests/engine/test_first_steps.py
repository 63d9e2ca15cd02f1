"""What a program that is new to the engine does wrong is said in words, where it was done and before it does harm."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import psycopg
import pytest

from kappa.engine import (
    BadPayload,
    Client,
    Engine,
    EngineError,
    Executor,
    JobContext,
    JobState,
    Lane,
    LaneError,
    Needs,
    Retry,
    Schedule,
    ScheduleError,
    Snooze,
    WorkerConfig,
)
from kappa.engine.testing import drain, working
from kappa.pg import PgError
from kappa.pg.errors import SchemaTooOld
from tests.engine.hands import later, put

FOLLOWER = WorkerConfig(lead=False, grace=timedelta(seconds=5))
AGES = timedelta(days=3_000_000)
"""After it comes a year of five digits, which no datetime can hold."""

Session = psycopg.Connection[Any]


def nothing(ctx: JobContext) -> None: ...


def of_kappa(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What Kappa logged: a driver whose statement is cut off at the end may have a word of its own."""
    return [record for record in caplog.records if record.name.startswith("kappa")]


# A database that nobody prepared


def test_a_client_of_a_database_without_the_schema_says_what_to_do(empty_url: str) -> None:
    engine = Engine(empty_url)
    with engine.client() as client:
        for ask in (lambda: client.enqueue("ingestion"), client.list_jobs, client.lanes, lambda: client.cancel(1)):
            with pytest.raises(SchemaTooOld, match=r"engine\.install\(\)"):
                ask()


async def test_so_do_an_async_client_and_a_worker(empty_url: str) -> None:
    engine = Engine(empty_url)
    async with engine.async_client() as client:
        with pytest.raises(SchemaTooOld, match=r"engine\.install\(\)"):
            await client.enqueue("ingestion")
    with pytest.raises(SchemaTooOld, match=r"engine\.install\(\)"):
        await engine.worker(FOLLOWER).run()


def test_a_table_that_is_missing_in_somebody_elses_statement_is_told_as_it_is(client: Client) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable, match="nowhere"), client.transaction() as connection:
        connection.execute("SELECT 1 FROM nowhere")


async def test_a_client_that_was_not_opened_says_how_it_is(engine: Engine) -> None:
    with pytest.raises(PgError, match=r"not open: .*with"):
        engine.client().lanes()
    with pytest.raises(PgError, match=r"not open: .*with"):
        await engine.async_client().lanes()


def test_a_worker_in_a_thread_says_that_signals_are_the_main_threads(engine: Engine) -> None:
    with pytest.raises(EngineError, match=r"main thread.*engine\.worker\(\)"):
        asyncio.run(asyncio.to_thread(engine.run, FOLLOWER))


# Handlers


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"timeout": timedelta(0)}, "timeout"),
        ({"timeout": timedelta(seconds=-1)}, "timeout"),
        ({"timeout": AGES}, "timeout"),
        ({"timeout": 60}, r"timeout of 'greet' is a timedelta.*60"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": -1}, "max_attempts"),
        ({"max_attempts": 40_000}, "max_attempts"),
        ({"max_attempts": "3"}, "max_attempts"),
    ],
    ids=repr,
)
def test_a_handler_with_a_policy_that_can_not_be_is_refused_where_it_is_declared(
    engine: Engine, declared: dict[str, Any], said: str
) -> None:
    with pytest.raises(EngineError, match=said):
        engine.job("greet", **declared)(nothing)
    assert engine.registry.find("greet") is None


@pytest.mark.parametrize("kind", ["", "two words", "1st", "a" * 129, "nul\0"], ids=repr)
def test_a_kind_that_no_lane_could_have_is_refused_where_it_is_declared(engine: Engine, kind: str) -> None:
    with pytest.raises(EngineError, match="kind"):
        engine.job(kind)(nothing)


def test_the_decorator_without_its_kind_is_refused(engine: Engine) -> None:
    with pytest.raises(EngineError, match=r"engine\.job\(\"kind\"\)"):
        engine.job(cast(Any, nothing))


def test_a_handler_that_could_not_be_called_is_refused_where_it_is_declared(engine: Engine) -> None:
    def wants_more(ctx: JobContext, *, page: int) -> None: ...

    for function in (wants_more, 5):
        with pytest.raises(EngineError, match="greet"):
            engine.job("greet")(cast(Any, function))
    assert engine.registry.find("greet") is None


@pytest.mark.parametrize("wrong", [5, 0.5, None, AGES], ids=repr)
@pytest.mark.parametrize("outcome", [Retry, Snooze])
def test_an_outcome_after_what_is_no_time_is_refused_in_the_handler(
    outcome: Callable[..., object], wrong: object
) -> None:
    if outcome is Retry and wrong is None:
        assert outcome(after=wrong) == Retry()  # by the usual backoff
        return
    with pytest.raises(EngineError, match="after"):
        outcome(after=wrong)


async def test_a_job_can_not_put_itself_off_until_nobody_can_read_when(engine: Engine, client: Client) -> None:
    """One whose time no datetime can hold would keep everybody from listing any job."""

    @engine.job("sleep", idempotent=True)
    def sleep(ctx: JobContext) -> Snooze:
        return Snooze(AGES)

    engine.lane(Lane("here", kinds=("sleep",)))
    engine.install()
    client.enqueue("sleep")
    await drain(engine, FOLLOWER)
    assert [job.state for job in client.list_jobs()] == [JobState.SCHEDULED]


# Lanes


@pytest.mark.parametrize(
    ("lane", "said"),
    [
        (lambda: Lane("mail", kinds=cast(Any, "welcome")), r"kinds.*'welcome'"),
        (lambda: Lane("mail", kinds=cast(Any, (5,))), "kinds"),
        (lambda: Lane("mail", ("welcome",), executor=cast(Any, "steam")), "thread, process, async, fleet"),
        (lambda: Lane("mail", ("welcome",), lease_ttl=cast(Any, 60)), "lease_ttl is a timedelta"),
        (lambda: Lane("mail", ("welcome",), stale_timeout=cast(Any, 60)), "stale_timeout is a timedelta"),
        (lambda: Lane("mail", ("welcome",), max_slots=cast(Any, "4")), "max_slots is a whole number"),
        (lambda: Lane("mail", ("welcome",), enabled=cast(Any, "no")), "enabled is True or False"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_lane_of_the_wrong_types_is_refused_where_it_is_declared(lane: Callable[[], Lane], said: str) -> None:
    with pytest.raises(LaneError, match=said):
        lane()


def test_a_lane_may_name_its_executor_and_list_its_kinds() -> None:
    lane = Lane("mail", cast(Any, ["welcome"]), executor=cast(Any, "async"))
    assert lane == Lane("mail", ("welcome",), executor=Executor.ASYNC)
    assert lane.executor is Executor.ASYNC


def test_a_kind_that_is_named_twice_is_in_its_lane_once(client: Client) -> None:
    client.declare_lane(Lane("mail", ("welcome", "welcome")))
    assert client.edit_lane("mail", kinds=["welcome", "goodbye", "welcome"]).kinds == ("welcome", "goodbye")


WRONG_LANES = [
    (Lane("mail", ("tool_run",)), 'kind "tool_run" belongs to lane "tools" already'),
    (Lane("mail", ("welcome",), max_slots=50), "a thread lane has 1 to 16 slots"),
    (Lane("My Mail", ("welcome",)), "name"),
    (Lane("mail", ("two words",)), "kind's name"),
    (Lane("mail", ("welcome",), poll_interval_ms=1), "poll_interval_ms is 10 to 3,600,000"),
    (Lane("mail", ("welcome",), lease_ttl=timedelta(milliseconds=1)), "lease_ttl is a second or more"),
    (Lane("mail", ("welcome",), stale_timeout=timedelta(0)), "stale_timeout"),
    (Lane("mail", ("welcome",), lease_ttl=AGES), "lease_ttl is 36525 days at most"),
]


@pytest.mark.parametrize(("lane", "said"), WRONG_LANES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_lane_that_can_not_be_is_refused_in_words_by_install_as_by_the_client(
    engine: Engine, client: Client, lane: Lane, said: str
) -> None:
    before = client.lanes()
    with pytest.raises(LaneError, match=said):
        client.declare_lane(lane)
    engine.lane(lane)
    with pytest.raises(LaneError, match=said):
        engine.install()
    assert client.lanes() == before


@pytest.mark.parametrize(
    "change",
    [{"kinds": "tool_run"}, {"max_slots": "many"}, {"lease_ttl": 60}, {"lease_ttl": AGES}, {"executor": "steam"}],
    ids=repr,
)
def test_an_edit_of_the_wrong_type_is_refused_in_words(client: Client, change: dict[str, Any]) -> None:
    before = client.lanes()
    with pytest.raises(LaneError, match=f"'tools'.*{next(iter(change))}"):
        client.edit_lane("tools", **change)
    assert client.lanes() == before


def test_a_lane_that_was_written_by_other_means_is_still_read(client: Client, connection: Session) -> None:
    connection.execute("UPDATE kappa.lanes SET stale_timeout = '8000 years' WHERE name = 'tools'")
    assert len(client.lanes()) == 4


@pytest.mark.parametrize(
    ("kinds", "config", "said"),
    [
        ((), FOLLOWER, "no handlers"),
        (("unplaced",), FOLLOWER, "unplaced"),
        (("ingestion",), WorkerConfig(lead=False, lanes=("interactive", "typo")), "typo"),
        (("ingestion",), WorkerConfig(lead=False, lanes=("tools",)), "tools"),
    ],
)
async def test_a_worker_that_has_nothing_to_serve_says_so(
    engine: Engine, caplog: pytest.LogCaptureFixture, kinds: tuple[str, ...], config: WorkerConfig, said: str
) -> None:
    for kind in kinds:
        engine.job(kind)(nothing)
    async with working(engine, config):
        pass
    warned = [record.getMessage() for record in of_kappa(caplog) if record.levelno == logging.WARNING]
    assert [said in text for text in warned] == [True]


@pytest.mark.parametrize(
    ("kinds", "lanes"), [(("ingestion",), None), (("ingestion",), ("interactive",)), ((), ())], ids=repr
)
async def test_a_worker_that_serves_what_it_is_meant_to_warns_of_nothing(
    engine: Engine, caplog: pytest.LogCaptureFixture, kinds: tuple[str, ...], lanes: tuple[str, ...] | None
) -> None:
    for kind in kinds:
        engine.job(kind)(nothing)
    async with working(engine, replace(FOLLOWER, lanes=lanes)):
        pass
    assert not [record for record in of_kappa(caplog) if record.levelno >= logging.WARNING]


# Jobs


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"at": "tomorrow"}, "at"),
        ({"delay": 5}, "delay is a timedelta"),
        ({"delay": AGES}, "delay"),
        ({"timeout": 5}, "timeout is a timedelta"),
        ({"timeout": AGES}, "timeout"),
        ({"at": datetime(2040, 1, 1, tzinfo=UTC), "delay": timedelta(hours=1)}, "at.*delay"),
        ({"dedup_key": "nul \0"}, "dedup_key"),
        ({"dedup_key": "half a pair \ud800"}, "dedup_key"),
        ({"dedup_key": 7}, "dedup_key"),
        ({"dedup_key": "".join(map(chr, range(0x4E00, 0x4E00 + 3000)))}, "dedup_key"),
        ({"submitted_by": "nul \0"}, "submitted_by"),
        ({"auto_approve": True}, "auto_approve"),
        ({"needs": {"cores": 2}}, "needs"),
    ],
    ids=repr,
)
def test_what_a_job_can_not_have_is_refused_before_anything_is_written(
    url: str, client: Client, wrong: dict[str, Any], said: str
) -> None:
    with psycopg.connect(url) as connection:
        with pytest.raises(BadPayload, match=said):
            client.enqueue("ingestion", **wrong, connection=connection)
        assert connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
    assert client.list_jobs() == []


def test_a_delay_of_years_and_a_long_key_are_fine(client: Client, connection: Session) -> None:
    made = client.enqueue("ingestion", delay=timedelta(days=36_000), dedup_key="k" * 2000, needs=Needs())
    due = client.show(made.id).run_at
    assert due is not None
    assert due > later(connection, days=35_999)


@pytest.mark.parametrize("who", ["", None, True, "nul \0"], ids=repr)
def test_an_approval_says_who_gave_it(client: Client, connection: Session, who: Any) -> None:
    job = put(connection, approval=True)
    with pytest.raises(EngineError, match=r"who|by"):
        client.approve(job, by=who)
    assert client.show(job).state is JobState.AWAITING_APPROVAL


def test_states_may_be_given_by_their_names(client: Client) -> None:
    client.enqueue("ingestion")
    for states in ([JobState.QUEUED], ["queued"], ["queued", "failed"]):
        assert len(client.list_jobs(states=cast(Any, states))) == 1
        assert len(client.page_jobs(states=cast(Any, states)).jobs) == 1
    assert client.list_jobs(states=cast(Any, ["failed"])) == []
    for look in (client.list_jobs, client.page_jobs):
        with pytest.raises(ValueError, match="'waiting'"):
            look(states=cast(Any, ["waiting"]))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"priority": 40_000}, "priority"),
        ({"cron": None}, "cron"),
        ({"timezone": None}, "time zone"),
        ({"name": ""}, "name"),
        ({"name": "nul \0"}, "name"),
    ],
    ids=repr,
)
def test_a_schedule_that_can_not_be_is_refused_in_words(
    engine: Engine, client: Client, change: dict[str, Any], said: str
) -> None:
    wrong = replace(Schedule("nightly", "0 3 * * *", "ingestion"), **change)
    with pytest.raises(ScheduleError, match=said):
        client.put_schedule(wrong)
    with pytest.raises(ScheduleError, match=said):
        engine.schedule(wrong)
    assert client.schedules() == []
