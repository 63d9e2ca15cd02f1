"""Schedules: each due time fires once in the cluster, in its own time zone, and a failure is said and mended."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, Connection, sql

from kappa.engine import (
    BadPayload,
    Client,
    Engine,
    JobContext,
    JobState,
    Lane,
    Schedule,
    ScheduleError,
    ScheduleExists,
    ScheduleNotFound,
)
from kappa.engine.maintenance.services import Cron
from kappa.engine.schedule import due_times, last_due, next_due, upcoming
from kappa.engine.testing import Heard, working
from kappa.pg import queries
from kappa.pg.ops import Op
from kappa.pg.queries import Row
from tests.app.patience import blocked

Session = Connection[Row]
Leader = AsyncConnection[Row]

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
EVERY_MINUTE = Schedule("often", "* * * * *", "tool_run", {"tool": "sweep"})


@pytest.fixture
async def leader(url: str) -> AsyncIterator[Leader]:
    """A connection such as a leader has."""
    async with await AsyncConnection.connect(url, autocommit=True) as opened:
        yield opened


@pytest.fixture
async def rival(url: str) -> AsyncIterator[Leader]:
    """The connection of another who believes that it leads."""
    async with await AsyncConnection.connect(url, autocommit=True) as opened:
        yield opened


@pytest.fixture
def cron(engine: Engine) -> Cron:
    return Cron(engine.registry, engine.signals)


@pytest.fixture
def start(connection: Session) -> datetime:
    """The database's time, at which all schedules of the test are made: else a minute could begin in between."""
    found = connection.execute("SELECT now()").fetchone()
    assert found is not None
    connection.execute(
        sql.SQL(
            """CREATE FUNCTION made_at_the_start() RETURNS trigger LANGUAGE plpgsql AS
                   $$ BEGIN NEW.since := {}; RETURN NEW; END $$;
               CREATE TRIGGER made_at_the_start BEFORE INSERT OR UPDATE ON kappa.schedules
                   FOR EACH ROW EXECUTE FUNCTION made_at_the_start()"""
        ).format(sql.Literal(found[0]))
    )
    return found[0]


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type]


def the_one(client: Client) -> Schedule:
    (schedule,) = client.schedules()
    return schedule


def fired(client: Client) -> int:
    return len(client.list_jobs(limit=1000))


async def test_a_schedule_fires_at_its_due_time_with_its_payload_and_priority(
    client: Client, cron: Cron, leader: Leader, start: datetime, heard: Heard
) -> None:
    client.put_schedule(Schedule("often", "* * * * *", "tool_run", {"tool": "sweep"}, priority=7))
    await cron.run_once(leader, start)
    assert fired(client) == 0
    due = next_due("* * * * *", "UTC", start)
    await cron.run_once(leader, due + timedelta(seconds=1))
    (job,) = client.list_jobs()
    assert (job.kind, job.payload, job.priority, job.state) == ("tool_run", {"tool": "sweep"}, 7, JobState.QUEUED)
    assert job.submitted_by == "schedule often"
    schedule = the_one(client)
    assert (schedule.last_at, schedule.last_job, schedule.next_at) == (due, job.id, due + MINUTE)
    assert heard.all("fired") == [{"schedule": "often", "due": due, "job": job.id}]


async def test_a_due_time_fires_once_however_often_it_is_looked_at(
    client: Client, cron: Cron, leader: Leader, rival: Leader, start: datetime
) -> None:
    client.put_schedule(EVERY_MINUTE)
    await cron.run_once(leader, start)
    due = next_due("* * * * *", "UTC", start)
    for connection in (leader, rival, leader, rival):
        await cron.run_once(connection, due)
    assert fired(client) == 1
    await cron.run_once(rival, due + MINUTE)
    assert fired(client) == 2


async def test_two_who_act_at_once_fire_a_due_time_once(
    client: Client, cron: Cron, leader: Leader, rival: Leader, start: datetime
) -> None:
    client.put_schedule(EVERY_MINUTE)
    await cron.run_once(leader, start)
    due = next_due("* * * * *", "UTC", start)
    async with leader.transaction():
        await cron.run_once(leader, due)
        # The first has fired and not committed; the rival neither waits for it nor fires.
        await cron.run_once(rival, due)
        assert fired(client) == 0
    await cron.run_once(rival, due)
    assert fired(client) == 1


async def test_many_at_the_same_time_fire_a_due_time_once(
    client: Client, cron: Cron, leader: Leader, rival: Leader, connection: Session, start: datetime
) -> None:
    client.put_schedule(EVERY_MINUTE)
    await cron.run_once(leader, start)
    due = next_due("* * * * *", "UTC", start)
    with connection.transaction():
        connection.execute("SELECT FROM kappa.schedules FOR UPDATE")
        await asyncio.gather(cron.run_once(leader, due), cron.run_once(rival, due))
        assert fired(client) == 0
    for _ in range(3):
        await asyncio.gather(cron.run_once(leader, due), cron.run_once(rival, due))
    assert fired(client) == 1


async def test_a_leader_that_is_lost_before_it_committed_leaves_the_due_time_to_the_next(
    client: Client, cron: Cron, leader: Leader, rival: Leader, connection: Session, start: datetime
) -> None:
    client.put_schedule(EVERY_MINUTE)
    await cron.run_once(leader, start)
    due = next_due("* * * * *", "UTC", start)
    await leader.execute("BEGIN")
    await cron.run_once(leader, due)
    connection.execute("SELECT pg_terminate_backend(%s, 5000)", [leader.info.backend_pid])
    await leader.close()
    await cron.run_once(rival, due)
    assert fired(client) == 1
    assert the_one(client).last_at == due


async def test_a_leader_that_is_lost_after_it_committed_leaves_nothing_to_the_next(
    client: Client, cron: Cron, leader: Leader, rival: Leader, connection: Session, start: datetime
) -> None:
    client.put_schedule(EVERY_MINUTE)
    await cron.run_once(leader, start)
    due = next_due("* * * * *", "UTC", start)
    await cron.run_once(leader, due)
    connection.execute("SELECT pg_terminate_backend(%s, 5000)", [leader.info.backend_pid])
    await cron.run_once(rival, due + timedelta(seconds=30))
    assert fired(client) == 1


async def test_times_that_were_missed_fire_once(client: Client, cron: Cron, leader: Leader, start: datetime) -> None:
    client.put_schedule(Schedule("often", "*/10 * * * *", "tool_run", missed="fire_once"))
    await cron.run_once(leader, start)
    first = next_due("*/10 * * * *", "UTC", start)
    await cron.run_once(leader, first + 5 * HOUR + 5 * MINUTE)
    assert fired(client) == 1
    schedule = the_one(client)
    assert (schedule.last_at, schedule.next_at) == (first + 5 * HOUR, first + 5 * HOUR + 10 * MINUTE)


async def test_times_that_were_missed_are_skipped_where_that_is_wanted(
    client: Client, cron: Cron, leader: Leader, start: datetime
) -> None:
    client.put_schedule(Schedule("often", "*/10 * * * *", "tool_run", missed="skip"))
    await cron.run_once(leader, start)
    first = next_due("*/10 * * * *", "UTC", start)
    await cron.run_once(leader, first + 5 * HOUR + 5 * MINUTE)
    assert fired(client) == 0
    assert the_one(client).next_at == first + 5 * HOUR + 10 * MINUTE
    await cron.run_once(leader, first + 5 * HOUR + 10 * MINUTE + timedelta(seconds=5))
    assert fired(client) == 1


async def test_a_time_that_came_while_nobody_led_since_the_schedule_was_made_is_a_missed_one(
    client: Client, cron: Cron, leader: Leader, start: datetime
) -> None:
    client.put_schedule(EVERY_MINUTE)
    await cron.run_once(leader, start + 3 * MINUTE)
    assert fired(client) == 1


async def test_a_disabled_schedule_does_not_fire_nor_make_up_for_it_later(
    client: Client, cron: Cron, leader: Leader, start: datetime
) -> None:
    client.put_schedule(Schedule("often", "* * * * *", "tool_run", enabled=False))
    for minutes in range(5):
        await cron.run_once(leader, start + minutes * MINUTE)
    assert fired(client) == 0
    client.put_schedule(EVERY_MINUTE)
    await cron.run_once(leader, start)
    assert fired(client) == 0
    await cron.run_once(leader, start + MINUTE)
    assert fired(client) == 1


async def test_a_schedule_that_is_disabled_when_it_is_due_does_not_fire(
    client: Client, cron: Cron, leader: Leader, start: datetime
) -> None:
    client.put_schedule(EVERY_MINUTE)
    await cron.run_once(leader, start)
    client.put_schedule(Schedule("often", "* * * * *", "tool_run", enabled=False))
    assert await cron.run_once(leader, start + 2 * MINUTE) is None
    assert fired(client) == 0


async def test_a_changed_expression_counts_from_now_on(
    client: Client, cron: Cron, leader: Leader, start: datetime
) -> None:
    client.put_schedule(EVERY_MINUTE)
    await cron.run_once(leader, start)
    client.put_schedule(Schedule("often", "0 0 1 1 *", "tool_run"))
    await cron.run_once(leader, start + 2 * MINUTE)
    assert fired(client) == 0
    assert the_one(client).next_at == next_due("0 0 1 1 *", "UTC", start)


async def test_a_changed_payload_does_not_lose_a_time_that_is_due(
    client: Client, cron: Cron, leader: Leader, start: datetime
) -> None:
    client.put_schedule(EVERY_MINUTE)
    await cron.run_once(leader, start)
    due = next_due("* * * * *", "UTC", start)
    client.put_schedule(Schedule("often", "* * * * *", "tool_run", {"tool": "mop"}))
    await cron.run_once(leader, due)
    (job,) = client.list_jobs()
    assert job.payload == {"tool": "mop"}


def test_another_expression_moves_the_next_time_at_once(client: Client, start: datetime) -> None:
    assert client.put_schedule(EVERY_MINUTE).next_at == next_due("* * * * *", "UTC", start)
    edited = client.edit_schedule("often", cron="0 0 1 1 *")
    assert edited == client.show_schedule("often") == the_one(client)
    assert edited.next_at == next_due("0 0 1 1 *", "UTC", start)
    moved = client.edit_schedule("often", timezone="Asia/Tokyo")
    assert moved.next_at == next_due("0 0 1 1 *", "Asia/Tokyo", start)
    assert client.edit_schedule("often", priority=3, payload={"tool": "mop"}).next_at == moved.next_at


def test_a_paused_schedule_has_no_next_time_and_gets_one_when_it_is_resumed(client: Client, start: datetime) -> None:
    due = next_due("* * * * *", "UTC", start)
    client.put_schedule(EVERY_MINUTE)
    paused = client.edit_schedule("often", enabled=False)
    assert (paused.enabled, paused.next_at, upcoming(paused, start, 3)) == (False, None, [])
    resumed = client.edit_schedule("often", enabled=True)
    assert (resumed.enabled, resumed.next_at) == (True, due)
    assert upcoming(resumed, start, 3) == [due, due + MINUTE, due + 2 * MINUTE]
    assert upcoming(resumed, due + 5 * MINUTE, 2) == [due, due + 6 * MINUTE], "one that is overdue is the first"


def test_a_schedule_whose_payload_is_taken_no_more_can_be_paused_and_says_so_when_it_is_resumed(
    engine: Engine, client: Client, connection: Session
) -> None:
    client.put_schedule(Schedule("old", "* * * * *", "polarity", {"depth": "deep"}))
    connection.execute("UPDATE kappa.schedules SET failures = 3, error = 'too deep', retry_at = now()")

    @engine.job("polarity")
    def polarity(ctx: JobContext, payload: dict[str, int]) -> None: ...

    paused = client.edit_schedule("old", enabled=False)
    assert (paused.enabled, paused.failures, paused.error) == (False, 3, "too deep")
    for change in ({"enabled": True}, {"cron": "5 * * * *"}, {"payload": {"depth": "deeper"}}):
        with pytest.raises(BadPayload, match="'polarity' can't take this payload: depth"):
            client.edit_schedule("old", **change)
    mended = client.edit_schedule("old", enabled=True, payload={"depth": 3})
    assert (mended.failures, mended.error, mended.retry_at) == (0, None, None)


def test_an_edit_is_refused_with_what_is_wrong_and_changes_nothing(client: Client) -> None:
    before = client.put_schedule(EVERY_MINUTE)
    with pytest.raises(ScheduleNotFound, match="no schedule 'rarely'"):
        client.edit_schedule("rarely", cron="0 * * * *")
    with pytest.raises(ScheduleError, match="has no 'next_at' \\(it has: cron, "):
        client.edit_schedule("often", next_at=None)
    with pytest.raises(ScheduleError, match="nothing to change"):
        client.edit_schedule("often")
    with pytest.raises(ScheduleError, match=r"'daily' is not a cron expression: .*; it has five fields"):
        client.edit_schedule("often", cron="daily")
    with pytest.raises(ScheduleError, match="use a name such as UTC or Europe/Berlin"):
        client.edit_schedule("often", timezone="CEST/Summer")
    with pytest.raises(ScheduleExists, match="a schedule 'often' already"):
        client.add_schedule(Schedule("often", "0 * * * *", "tool_run"))
    assert client.show_schedule("often") == before


async def test_an_edit_waits_while_the_leader_fires_and_then_counts(
    client: Client, cron: Cron, leader: Leader, rival: Leader, connection: Session, start: datetime
) -> None:
    client.put_schedule(EVERY_MINUTE)
    due = next_due("* * * * *", "UTC", start)
    async with leader.transaction():
        await cron.run_once(leader, due)
        editing = asyncio.create_task(asyncio.to_thread(client.edit_schedule, "often", cron="0 0 1 1 *"))
        await blocked(connection, 1)
    edited = await editing
    assert (edited.last_at, edited.next_at) == (due, next_due("0 0 1 1 *", "UTC", start))
    await cron.run_once(rival, due + 3 * MINUTE)
    assert fired(client) == 1


async def test_a_run_now_is_a_job_like_the_others_and_moves_nothing(
    client: Client, cron: Cron, leader: Leader, start: datetime
) -> None:
    before = client.put_schedule(Schedule("often", "* * * * *", "tool_run", {"tool": "sweep"}, priority=4))
    run = client.run_schedule("often", submitted_by="ada")
    job = client.show(run.id)
    assert (job.kind, job.payload, job.priority, job.submitted_by) == ("tool_run", {"tool": "sweep"}, 4, "ada")
    assert client.show_schedule("often") == before
    await cron.run_once(leader, next_due("* * * * *", "UTC", start))
    assert fired(client) == 2
    client.edit_schedule("often", enabled=False)
    assert client.show(client.run_schedule("often").id).submitted_by == "schedule often"
    with pytest.raises(ScheduleNotFound):
        client.run_schedule("rarely")


def test_a_run_now_is_part_of_the_callers_transaction(client: Client, connection: Session) -> None:
    client.put_schedule(EVERY_MINUTE)
    with pytest.raises(ZeroDivisionError), connection.transaction():
        client.run_schedule("often", connection=connection)
        client.edit_schedule("often", cron="0 * * * *", connection=connection)
        raise ZeroDivisionError
    assert (fired(client), the_one(client).cron) == (0, "* * * * *")


def test_a_run_now_of_a_kind_that_asks_for_approval_waits_for_it_if_it_is_not_approved(
    engine: Engine, client: Client
) -> None:
    @engine.job("polarity", approval=True)
    def polarity(ctx: JobContext) -> None: ...

    client.put_schedule(Schedule("costly", "* * * * *", "polarity"))
    states = [client.show(client.run_schedule("costly", approved=one).id).state for one in (True, False)]
    assert states == [JobState.QUEUED, JobState.AWAITING_APPROVAL]


async def test_a_dropped_schedule_fires_no_more(client: Client, cron: Cron, leader: Leader, start: datetime) -> None:
    client.put_schedule(EVERY_MINUTE)
    await cron.run_once(leader, start)
    assert client.drop_schedule("often")
    assert not client.drop_schedule("often")
    await cron.run_once(leader, start + 2 * MINUTE)
    assert (fired(client), client.schedules()) == (0, [])


async def test_the_leader_knows_when_the_next_time_is_due(
    client: Client, cron: Cron, leader: Leader, start: datetime
) -> None:
    assert await cron.run_once(leader, start) is None
    client.put_schedule(EVERY_MINUTE)
    client.put_schedule(Schedule("rarely", "0 0 1 1 *", "tool_run"))
    due = next_due("* * * * *", "UTC", start)
    assert await cron.run_once(leader, start) == pytest.approx((due - start).total_seconds())


async def test_a_schedule_that_fails_to_launch_backs_off_and_says_so_and_recovers(
    client: Client, cron: Cron, leader: Leader, start: datetime
) -> None:
    client.put_schedule(Schedule("stray", "0 * * * *", "stray"))
    client.put_schedule(Schedule("good", "0 * * * *", "tool_run"))
    await cron.run_once(leader, start)
    due = next_due("0 * * * *", "UTC", start)
    await cron.run_once(leader, due)
    good, stray = client.schedules()
    assert (good.failures, good.error, fired(client)) == (0, None, 1)
    assert (stray.failures, stray.last_at, stray.next_at) == (1, None, due)
    assert stray.error is not None
    assert "'stray' is in no lane" in stray.error
    assert stray.retry_at is not None
    assert timedelta(seconds=0.8) <= stray.retry_at - due <= timedelta(seconds=1.2)

    await cron.run_once(leader, stray.retry_at - timedelta(milliseconds=1))
    assert client.schedules()[1].failures == 1
    wait = await cron.run_once(leader, stray.retry_at)
    again = client.schedules()[1]
    assert again.retry_at is not None
    assert (again.failures, again.retry_at > stray.retry_at + timedelta(seconds=1)) == (2, True)
    assert wait == pytest.approx((again.retry_at - stray.retry_at).total_seconds())

    client.edit_lane("tools", kinds=["tool_run", "stray"])
    await cron.run_once(leader, again.retry_at)
    mended = client.schedules()[1]
    assert (mended.failures, mended.error, mended.retry_at) == (0, None, None)
    assert (mended.last_at, mended.next_at) == (due, due + HOUR)
    assert [job.kind for job in client.list_jobs(kinds=["stray"])] == ["stray"]


async def test_the_waits_of_a_failing_schedule_grow_up_to_a_minute(
    client: Client, cron: Cron, leader: Leader, start: datetime
) -> None:
    client.put_schedule(Schedule("stray", "0 * * * *", "stray"))
    await cron.run_once(leader, start)
    at = next_due("0 * * * *", "UTC", start)
    waits: list[float] = []
    for _ in range(9):
        await cron.run_once(leader, at)
        retry_at = the_one(client).retry_at
        assert retry_at is not None
        waits.append((retry_at - at).total_seconds())
        at = retry_at
    for attempt, wait in enumerate(waits):
        assert min(60, 2**attempt) * 0.8 <= wait <= min(60, 2**attempt) * 1.2


async def test_an_expression_that_got_into_the_table_by_hand_fails_only_its_own_schedule(
    client: Client, cron: Cron, leader: Leader, connection: Session, start: datetime
) -> None:
    connection.execute(
        "INSERT INTO kappa.schedules (name, cron, timezone, kind) VALUES"
        " ('a', 'every day', 'UTC', 'tool_run'), ('b', '* * * * *', 'Mars/Olympus', 'tool_run')"
    )
    client.put_schedule(EVERY_MINUTE)
    await cron.run_once(leader, start)
    await cron.run_once(leader, start + MINUTE)
    assert fired(client) == 1
    errors = {schedule.name: schedule.error for schedule in client.schedules()}
    assert errors["often"] is None
    assert "'every day' is not a cron expression" in (errors["a"] or "")
    assert "no time zone 'Mars/Olympus'" in (errors["b"] or "")


@dataclass
class Picky:
    """A payload whose check has a fault of its own."""

    depth: int

    def __post_init__(self) -> None:
        {}[self.depth]


async def test_a_fault_in_a_payloads_own_check_fails_only_its_schedule(
    engine: Engine, client: Client, cron: Cron, leader: Leader, connection: Session, start: datetime
) -> None:
    @engine.job("polarity")
    def polarity(ctx: JobContext, payload: Picky) -> None: ...

    connection.execute(
        """INSERT INTO kappa.schedules (name, cron, kind, payload)
           VALUES ('a', '* * * * *', 'polarity', '{"depth": 1}')"""
    )
    client.put_schedule(EVERY_MINUTE)
    await cron.run_once(leader, start)
    await cron.run_once(leader, start + MINUTE)
    assert fired(client) == 1
    assert client.schedules()[0].failures == 1


async def test_a_payload_that_its_handler_no_longer_takes_is_said(
    engine: Engine, client: Client, cron: Cron, leader: Leader, start: datetime
) -> None:
    client.put_schedule(Schedule("old", "* * * * *", "polarity", {"depth": "deep"}))

    @engine.job("polarity")
    def polarity(ctx: JobContext, payload: dict[str, int]) -> None: ...

    await cron.run_once(leader, start)
    await cron.run_once(leader, start + MINUTE)
    assert "'polarity' can't take this payload" in (the_one(client).error or "")


ANY_LANE = queries.Query(
    "any_lane", Path(), b"SELECT EXISTS (SELECT FROM kappa.lanes WHERE name = %(name)s::text)", ("name",)
)


async def test_a_schedule_makes_no_job_where_its_kind_says_that_there_is_nothing_to_do(
    engine: Engine, client: Client, cron: Cron, leader: Leader, start: datetime, heard: Heard
) -> None:
    def needed(payload: str) -> Op[bool] | None:
        return None if payload == "always" else Op(ANY_LANE, {"name": payload}, lambda rows: rows[0][0])

    @engine.job("polarity", needed=needed)
    def polarity(ctx: JobContext, payload: str) -> None: ...

    for name in ("always", "tools", "nowhere"):
        client.put_schedule(Schedule(name, "* * * * *", "polarity", name))
    await cron.run_once(leader, start)
    due = next_due("* * * * *", "UTC", start)
    await cron.run_once(leader, due)
    assert {job.payload for job in client.list_jobs()} == {"always", "tools"}
    assert heard.all("not_needed") == [{"schedule": "nowhere", "due": due}]
    found = {schedule.name: schedule for schedule in client.schedules()}
    assert (found["nowhere"].last_at, found["nowhere"].last_job, found["nowhere"].failures) == (due, None, 0)
    assert {schedule.next_at for schedule in found.values()} == {due + MINUTE}
    client.declare_lane(Lane("nowhere", kinds=("wandering",)))
    await cron.run_once(leader, due + MINUTE)
    assert fired(client) == 5


async def test_nothing_is_locked_while_a_program_says_whether_a_job_is_needed(
    engine: Engine, client: Client, cron: Cron, leader: Leader, start: datetime, url: str
) -> None:
    """It may take longer than the leader may leave a transaction idle, and the other due schedules must not wait."""
    states = list[str]()

    def needed(payload: object) -> None:
        with psycopg.connect(url) as other:
            other.execute("SELECT FROM kappa.schedules FOR UPDATE NOWAIT")
            found = other.execute("SELECT state FROM pg_stat_activity WHERE pid = %s", [leader.info.backend_pid])
            states.extend(row[0] for row in found)

    engine.job("polarity", needed=needed)(lambda ctx: None)
    client.put_schedule(Schedule("a", "* * * * *", "polarity"))
    client.put_schedule(EVERY_MINUTE)
    await cron.run_once(leader, start)
    await cron.run_once(leader, start + MINUTE)
    assert [schedule.error for schedule in client.schedules()] == [None, None]
    assert (fired(client), states) == (2, ["idle"])


async def test_a_schedule_that_is_edited_while_a_program_says_whether_its_job_is_needed_does_not_fire(
    engine: Engine, client: Client, cron: Cron, leader: Leader, start: datetime
) -> None:
    def needed(payload: object) -> None:
        client.edit_schedule("a", enabled=False)

    engine.job("polarity", needed=needed)(lambda ctx: None)
    client.put_schedule(Schedule("a", "* * * * *", "polarity"))
    await cron.run_once(leader, start)
    await cron.run_once(leader, start + MINUTE)
    assert (fired(client), the_one(client).enabled, the_one(client).error) == (0, False, None)


async def test_a_question_that_can_not_be_asked_fails_only_its_schedule(
    engine: Engine, client: Client, cron: Cron, leader: Leader, start: datetime
) -> None:
    wrong = queries.Query("wrong", Path(), b"SELECT 1 / 0", ())

    @engine.job("polarity", needed=lambda payload: Op(wrong, {}, bool))
    def polarity(ctx: JobContext, payload: Any) -> None: ...

    client.put_schedule(Schedule("a", "* * * * *", "polarity"))
    client.put_schedule(EVERY_MINUTE)
    await cron.run_once(leader, start)
    await cron.run_once(leader, start + MINUTE)
    assert [job.kind for job in client.list_jobs()] == ["tool_run"]
    assert "division by zero" in (client.schedules()[0].error or "")


@pytest.mark.parametrize(
    ("schedule", "complaint"),
    [
        (Schedule("x", "every day", "tool_run"), "'every day' is not a cron expression"),
        (Schedule("x", "61 * * * *", "tool_run"), "'61 \\* \\* \\* \\*' is not a cron expression"),
        (Schedule("x", "", "tool_run"), "'' is not a cron expression"),
        (Schedule("x", "0 0 30 2 *", "tool_run"), "'0 0 30 2 \\*' is"),
        (Schedule("x", "* * * * *", "tool_run", timezone="Mars/Olympus"), "no time zone 'Mars/Olympus'"),
        (Schedule("x", "* * * * *", "tool_run", timezone="Europe"), "no time zone 'Europe'"),
        (Schedule("x", "* * * * *", "tool_run", timezone=""), "no time zone ''"),
        (Schedule("x", "* * * * *", "tool_run", timezone="../etc"), "no time zone"),
        (Schedule("x", "* * * * *", "tool_run", missed="often"), "'fire_once' or 'skip', not 'often'"),
    ],
    ids=lambda value: None if isinstance(value, str) else f"{value.cron} {value.timezone} {value.missed}",
)
def test_a_schedule_that_makes_no_sense_is_refused(client: Client, schedule: Schedule, complaint: str) -> None:
    with pytest.raises(ScheduleError, match=complaint):
        client.put_schedule(schedule)
    assert client.schedules() == []


@pytest.mark.parametrize(
    ("cron", "timezone", "after", "wanted"),
    [
        # Nine in the morning there, whatever the hour is here.
        ("0 9 * * *", "America/New_York", utc(2026, 3, 7, 12), [utc(2026, 3, 7, 14), utc(2026, 3, 8, 13)]),
        ("0 9 * * *", "Asia/Kolkata", utc(2026, 3, 7, 12), [utc(2026, 3, 8, 3, 30), utc(2026, 3, 9, 3, 30)]),
        # 02:30 isn't on the clock that night: it fires when the clocks have gone forward, and once.
        (
            "30 2 * * *",
            "Europe/Berlin",
            utc(2026, 3, 28, 12),
            [utc(2026, 3, 29, 1), utc(2026, 3, 30, 0, 30), utc(2026, 3, 31, 0, 30)],
        ),
        # 02:30 is twice on the clock that night: it fires once.
        (
            "30 2 * * *",
            "Europe/Berlin",
            utc(2026, 10, 24, 12),
            [utc(2026, 10, 25, 0, 30), utc(2026, 10, 26, 1, 30), utc(2026, 10, 27, 1, 30)],
        ),
        # What is due every hour is due every hour.
        (
            "30 * * * *",
            "Europe/Berlin",
            utc(2026, 10, 24, 23),
            [utc(2026, 10, 24, 23, 30), utc(2026, 10, 25, 0, 30), utc(2026, 10, 25, 1, 30), utc(2026, 10, 25, 2, 30)],
        ),
    ],
)
def test_due_times_follow_the_clock_of_their_time_zone(
    cron: str, timezone: str, after: datetime, wanted: list[datetime]
) -> None:
    times = due_times(cron, timezone, after)
    assert [next(times) for _ in wanted] == wanted
    at = after
    for due in wanted:
        # As the leader asks: from wherever it is now, again and again.
        assert next_due(cron, timezone, at) == due
        assert next_due(cron, timezone, due - timedelta(seconds=1)) == due
        at = due + timedelta(seconds=2)
    assert last_due(cron, timezone, wanted[0], wanted[-1] + timedelta(seconds=1)) == wanted[-1]


@pytest.mark.parametrize(
    "cron", ["* * * * * *", "*/7 * * * *", "0 3 * * *", "* 1-3 * * *", "0 0 29 2 *", "* * 3 1 * *", "30 2 L * *"]
)
def test_the_last_due_time_before_an_instant_is_the_one_with_none_after_it(cron: str) -> None:
    until = utc(2026, 10, 26, 5, 0, 30)
    # However long nobody led: to count ten years of seconds would keep the leader from everything else.
    first = next_due(cron, "Europe/Berlin", utc(2016, 1, 1))
    last = last_due(cron, "Europe/Berlin", first, until)
    assert first < last <= until
    assert next_due(cron, "Europe/Berlin", last - timedelta(seconds=1)) == last
    assert next_due(cron, "Europe/Berlin", last) > until
    assert last_due(cron, "Europe/Berlin", last, until) == last


def test_a_time_that_is_twice_on_the_clock_is_due_once_also_when_asked_in_between() -> None:
    for minutes in (35, 60, 75, 89):
        between = utc(2026, 10, 25, 0) + minutes * MINUTE
        assert next_due("30 2 * * *", "Europe/Berlin", between) == utc(2026, 10, 26, 1, 30), between


async def test_a_schedule_fires_once_on_each_day_around_a_clock_change(
    client: Client, cron: Cron, leader: Leader, heard: Heard
) -> None:
    client.put_schedule(Schedule("nightly", "30 2 * * *", "tool_run", timezone="Europe/Berlin"))
    # Far ahead; every forty minutes for three days, so that one look falls into the hour that comes twice.
    start = at = utc(2032, 10, 30, 12, 20)
    while at < utc(2032, 11, 2, 12):
        await cron.run_once(leader, at)
        at += timedelta(minutes=40)
    assert [facts["due"] for facts in heard.all("fired") if facts["due"] > start] == [
        utc(2032, 10, 31, 0, 30),
        utc(2032, 11, 1, 1, 30),
        utc(2032, 11, 2, 1, 30),
    ]


async def test_a_worker_that_leads_fires_a_schedule_that_is_put_in_while_it_runs(
    engine: Engine, client: Client, connection: Session, heard: Heard
) -> None:
    done: list[Any] = []

    @engine.job("tool_run")
    def tool_run(ctx: JobContext, payload: Any) -> None:
        done.append(payload)

    async with working(engine):
        await heard.until("leading")
        client.put_schedule(Schedule("soon", "0 0 1 1 *", "tool_run", "swept"))
        connection.execute("UPDATE kappa.schedules SET next_at = now() - interval '1 second'")
        connection.execute("SELECT pg_notify('kappa_due', '0')")
        job = (await heard.until("fired"))["job"]
        await heard.until("settled", job=job)
    assert done == ["swept"]
