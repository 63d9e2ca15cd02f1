"""Who asks for tasks and waits: parked without a connection, woken at once and in order, never for nothing.

The lanes here are never polled, so that nothing but a wake-up wakes. Claims are held up where they wait for the lock of
all claims, or at their end, where they have seen that there is nothing and write that down.
"""

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel

from kappa.engine.fleet import dispatch, store, waiting_room, wire
from kappa.engine.fleet.dispatch import Fleet
from kappa.engine.fleet.refusals import Refused
from kappa.engine.fleet.store import Ending
from kappa.engine.fleet.wire import Refusal
from kappa.engine.maintenance.services import Promoter
from kappa.engine.signals import Signals
from tests.engine.fleet.floor import (
    CLAIMS,
    PASS,
    Connection,
    answer,
    beat,
    blocked,
    enters,
    heard_everything,
    held,
    open_lane,
    parks,
    put,
    running,
    server,
    settle,
    take,
    until,
)
from tests.engine.hands import later


@pytest.fixture(autouse=True)
def lane(connection: Connection) -> None:
    open_lane(connection)


@pytest.fixture
def other(url: str) -> Iterator[Connection]:
    with psycopg.connect(url) as opened:
        yield opened


@contextmanager
def claims_held(other: Connection) -> Iterator[None]:
    other.execute(CLAIMS)
    try:
        yield
    finally:
        other.rollback()


@contextmanager
def claims_held_at_their_end(connection: Connection, other: Connection) -> Iterator[None]:
    """Where they have looked and found nothing."""
    take(connection, request="so that there is a row")
    other.execute("SELECT FROM kappa.fleet_lanes WHERE lane = 'far' FOR UPDATE")
    try:
        yield
    finally:
        other.rollback()


async def test_hundreds_are_parked_on_no_connection(url: str, connection: Connection) -> None:
    async with server(url, gate=10) as fleet:
        callers = [await enters(fleet, f"w{n}", f"r{n}") for n in range(300)]
        await until(lambda: fleet.room.waiting == 300)
        await until(lambda: fleet.pool.use().in_use == 0)
        put(connection)
        assert len(await answer(callers[0])) == 1
        assert not any(caller.answer.done() for caller in callers[1:])
        assert fleet.room.waiting == 299


async def test_a_job_that_is_enqueued_elsewhere_wakes_the_oldest(url: str, connection: Connection) -> None:
    async with server(url) as fleet:
        callers = [await parks(fleet, f"w{n}", f"r{n}") for n in range(3)]
        for n in range(3):
            made = put(connection)
            assert [one.id for one in await answer(callers[n])] == [made]
            assert sum(caller.answer.done() for caller in callers) == n + 1


async def test_many_jobs_wake_as_many(url: str, connection: Connection) -> None:
    """More than one claim serves."""
    async with server(url) as fleet:
        callers = [await enters(fleet, f"w{n}", f"r{n}") for n in range(150)]
        await until(lambda: fleet.room.waiting == 150)
        with connection.transaction():
            made = {put(connection) for _ in range(140)}
        given = [one.id for caller in callers[:140] for one in await answer(caller)]
        assert set(given) == made
        assert fleet.room.waiting == 10


async def test_who_was_made_to_wait_its_turn_comes_before_a_younger_one_who_was_not(
    url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_room, "IN_VAIN", 15)
    monkeypatch.setattr(waiting_room, "PACE", 30)
    monkeypatch.setattr(dispatch, "LOOK_AGAIN", 60)
    loop = asyncio.get_running_loop()
    time, ahead = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: time() + ahead)
    async with server(url) as fleet:
        first = await parks(fleet, "first", "r1")
        older = await enters(fleet, "older", "r2")
        # There was nothing a moment ago: it gets its turn later.
        await until(lambda: list(fleet.room._hopeless) == [older])  # pyright: ignore[reportPrivateUsage]
        ahead = 20.0
        younger = await parks(fleet, "younger", "r3")
        assert fleet.room.waiting == 2
        ahead = 35.0
        await until(lambda: fleet.room.waiting == 3)
        for caller in (first, older, younger):
            made = put(connection)
            assert [one.id for one in await answer(caller)] == [made]


async def test_an_older_caller_of_more_kinds_comes_before_younger_ones(
    url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "LOOK_AGAIN", 3600)
    open_lane(connection, "wide", ["dig"])
    async with server(url) as fleet:
        await heard_everything(fleet, connection)
        before = fleet.claims
        first = await parks(fleet, "w1", "r1")
        both = await parks(fleet, "w2", "r2", kinds=["crunch", "dig"])
        third = await parks(fleet, "w3", "r3")
        await until(lambda: fleet.claims == before + 5)  # one for each, and for two of them nobody slept before
        for caller in (first, both, third):
            put(connection)
            assert len(await answer(caller)) == 1


async def test_a_job_that_only_a_later_caller_can_do_finds_it(url: str, connection: Connection) -> None:
    async with server(url) as fleet:
        for n in range(70):
            await enters(fleet, f"w{n}", f"r{n}")
        await until(lambda: fleet.room.waiting == 70)
        able = await parks(fleet, "able", "r", labels=["gpu"])
        with connection.transaction():
            made = put(connection, needs={"labels": ["gpu"]})
        assert [one.id for one in await answer(able)] == [made]
        assert fleet.room.waiting == 70


async def test_what_becomes_due_wakes(url: str, connection: Connection) -> None:
    async with server(url) as fleet:
        caller = await parks(fleet)
        made = put(connection, delay=timedelta(hours=1))
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as leader:
            await Promoter(Signals()).run_once(leader, later(connection, hours=2))
        assert [one.id for one in await answer(caller)] == [made]


async def test_what_was_given_back_wakes(url: str, connection: Connection) -> None:
    put(connection)
    (given,) = take(connection, "another", "r")
    async with server(url) as fleet:
        caller = await parks(fleet)
        settle(connection, Ending(held(given, "another"), "released"))
        assert [one.id for one in await answer(caller)] == [given.id]


async def test_a_retry_wakes_when_its_backoff_is_over(url: str, connection: Connection) -> None:
    put(connection, max_attempts=2)
    (given,) = take(connection, "another", "r")
    beat(connection, held(given, "another"))
    async with server(url) as fleet:
        caller = await parks(fleet)
        settle(connection, Ending(held(given, "another"), "failed", None, "no"))
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as leader:
            await Promoter(Signals()).run_once(leader, later(connection, hours=2))
        assert [(one.id, one.attempt) for one in await answer(caller)] == [(given.id, 2)]


async def test_lanes_that_are_made_or_enabled_later_are_found(url: str, connection: Connection) -> None:
    async with server(url) as fleet:
        caller = await parks(fleet, kinds=["crunch", "dig"])
        alone = await parks(fleet, "alone", "r2", kinds=["fly"])
        open_lane(connection, "wide", ["dig"])
        made = put(connection, kind="dig")
        assert [one.id for one in await answer(caller)] == [made]
        open_lane(connection, "high", ["fly"], enabled=False)
        made = put(connection, kind="fly")
        await heard_everything(fleet, connection)
        assert not alone.answer.done()
        connection.execute("UPDATE kappa.lanes SET enabled = true WHERE name = 'high'")
        connection.execute("SELECT pg_notify('kappa_lane', 'high')")
        assert [one.id for one in await answer(alone)] == [made]


async def test_a_lost_listener_is_made_up_for(url: str, connection: Connection) -> None:
    async with server(url) as fleet:
        caller = await parks(fleet)
        connection.execute(
            """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE datname = current_database() AND application_name = 'kappa listen'"""
        )
        made = put(connection)
        assert [one.id for one in await answer(caller)] == [made]


async def test_the_poll_finds_what_nobody_was_told_of(url: str, connection: Connection) -> None:
    connection.execute("UPDATE kappa.lanes SET poll_interval_ms = 50 WHERE name = 'far'")
    async with server(url) as fleet:
        caller = await parks(fleet)
        connection.execute("INSERT INTO kappa.jobs (lane, kind, state) VALUES ('far', 'crunch', 'queued')")
        assert len(await answer(caller)) == 1


# Wake-ups that meet a claim


async def test_a_job_that_comes_while_a_claim_finds_nothing_is_not_missed(
    url: str, connection: Connection, other: Connection
) -> None:
    async with server(url) as fleet:
        known = await parks(fleet, "known", "r0")  # from now on this server is told
        put(connection)
        assert len(await answer(known)) == 1
        with claims_held_at_their_end(connection, other):
            caller = await enters(fleet)
            await until(lambda: blocked(connection))
            made = put(connection)
            await heard_everything(fleet, connection)
        assert [one.id for one in await answer(caller)] == [made]


async def test_a_job_that_comes_while_the_parked_are_looked_after_is_not_missed(
    url: str, connection: Connection, other: Connection
) -> None:
    async with server(url) as fleet:
        caller = await parks(fleet)
        await heard_everything(fleet, connection)
        with claims_held_at_their_end(connection, other):
            fleet.room.wake()
            await until(lambda: blocked(connection))
            made = put(connection)
            await heard_everything(fleet, connection)
        assert [one.id for one in await answer(caller)] == [made]


# Ends


async def test_a_wait_that_ends_has_an_answer_that_says_when_to_come_again(url: str) -> None:
    async with server(url) as fleet:
        nothing = await answer(await enters(fleet, wait=0.05))
        assert fleet.room.waiting == 0
        for at_once, low, high in ((False, 2, 8), (True, 0, 0)):
            said = wire.Tasks.model_validate_json(await fleet.tasks(nothing, at_once=at_once))
            assert said.tasks == []
            assert said.retry_after is not None
            assert low <= said.retry_after <= high


class TaskOfProtocol1(BaseModel):
    """What workers of the first release read."""

    task: int
    token: int
    kind: str
    lane: str
    payload: Any
    attempt: int
    max_attempts: int
    seconds_left: float
    lease_seconds: float
    checkpoint: Any = None
    tool: wire.Tool | None = None


async def test_a_worker_that_knows_of_no_endless_task_can_read_one(url: str, connection: Connection) -> None:
    assert wire.PROTOCOL == 1, "a later protocol may do without this"
    put(connection)
    put(connection, timeout=timedelta(minutes=1))
    async with server(url) as fleet:
        given = await answer(await enters(fleet, count=2))
        said = json.loads(await fleet.tasks(given, at_once=True))["tasks"]
    assert [TaskOfProtocol1.model_validate(one).seconds_left for one in said] == [wire.NO_TIMEOUT, 60]


async def test_a_wait_that_ends_while_a_task_is_claimed_gives_that_task(
    url: str, connection: Connection, other: Connection
) -> None:
    async with server(url) as fleet:
        caller = await parks(fleet)
        with claims_held(other):
            made = put(connection)
            await until(lambda: blocked(connection))
            fleet.room._nothing_for(caller)  # pyright: ignore[reportPrivateUsage] - as its timer does
            assert not caller.answer.done()
        assert [one.id for one in await answer(caller)] == [made]


async def test_who_hangs_up_leaves_the_room_and_nothing_is_claimed(url: str, connection: Connection) -> None:
    async with server(url) as fleet:
        gone, stays = await parks(fleet, "w1", "r1"), await parks(fleet, "w2", "r2")
        await until(lambda: not gone.is_served, "a moment without a claim")
        fleet.room.leave(gone)
        assert fleet.room.waiting == 1
        made = put(connection)
        assert [one.id for one in await answer(stays)] == [made]
        assert await answer(gone) == []
        assert running(connection) == 1


async def test_who_hangs_up_in_the_middle_of_a_claim_gets_it_with_the_repeat(
    url: str, connection: Connection, other: Connection
) -> None:
    made = put(connection)
    async with server(url) as fleet:
        with claims_held(other):
            gone = await enters(fleet)
            await until(lambda: blocked(connection))
            fleet.room.leave(gone)
            again = await enters(fleet)
            assert again is not gone
        assert [one.id for one in await answer(again)] == [made]
        assert running(connection) == 1


async def test_a_repeat_outlives_the_connection_of_the_first(
    url: str, connection: Connection, other: Connection
) -> None:
    """The server hears of the end of a connection after the same request came on a new one."""
    made = put(connection)
    async with server(url) as fleet:
        with claims_held(other):
            first = await enters(fleet)
            await until(lambda: blocked(connection))
            again = await enters(fleet)
            fleet.room.leave(first)
            assert not again.answer.done()
        assert [one.id for one in await answer(again)] == [made]
        parked = await parks(fleet, request="r2")
        assert await enters(fleet, request="r2") is parked
        fleet.room.leave(parked)
        assert fleet.room.waiting == 1
        fleet.room.leave(parked)
        assert fleet.room.waiting == 0


async def test_draining_sends_everybody_away_and_gives_nothing_out(
    url: str, connection: Connection, other: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "LOOK_AGAIN", 3600)
    async with server(url) as fleet:
        await heard_everything(fleet, connection)
        before = fleet.claims
        parked = await parks(fleet, "w1", "r1")
        await until(lambda: fleet.claims == before + 2)  # its own, and another because nobody slept before
        with claims_held(other):
            served = await enters(fleet, "w2", "r2")
            await until(lambda: blocked(connection))
            behind = await enters(fleet, "w3", "r3")
            made = [put(connection), put(connection), put(connection)]
            fleet.drain()
            assert await answer(parked) == []
            with pytest.raises(Refused) as refused:
                await answer(behind)
            assert refused.value.code is Refusal.DRAINING
            with pytest.raises(Refused):
                await enters(fleet, "w4", "r4")
        # Its claim was under way: a task that is claimed for it is told.
        assert {one.id for one in await answer(served)} <= set(made)
        assert running(connection) == len(await answer(served))


async def test_whoever_waits_when_the_server_ends_has_an_answer(
    url: str, connection: Connection, other: Connection
) -> None:
    with claims_held(other):
        async with server(url) as fleet:
            served = await enters(fleet)
            await until(lambda: blocked(connection))
        with pytest.raises(Refused) as refused:
            await answer(served)
    assert refused.value.code is Refusal.UNAVAILABLE
    assert refused.value.retry_after


# Seats


async def full(fleet: Fleet, connection: Connection, seats: int) -> list[Any]:
    """So many callers whose claim is held up."""
    callers = [await enters(fleet, "first", "r")]
    await until(lambda: blocked(connection))
    return callers + [await enters(fleet, f"w{n}", f"r{n}") for n in range(seats - 1)]


async def test_callers_beyond_the_seats_are_refused(url: str, connection: Connection, other: Connection) -> None:
    async with server(url, gate=1) as fleet:
        with claims_held(other):
            callers = await full(fleet, connection, 64)
            assert fleet.room.full
            with pytest.raises(Refused) as refused:
                await enters(fleet, "late", "r")
            assert refused.value.code is Refusal.BUSY
        await until(lambda: fleet.room.waiting == len(callers))
        assert not fleet.room.full


async def test_those_on_their_way_in_take_seats(url: str, connection: Connection, other: Connection) -> None:
    """Hundreds of unknown workers that come at once wait to be known first; no more than the seats may."""
    async with server(url, gate=1) as fleet:
        other.execute("SELECT pg_advisory_xact_lock(1262568294, 0)")  # registrations wait for it
        arriving = [asyncio.create_task(enters(fleet, f"w{n}", f"r{n}")) for n in range(200)]
        await until(lambda: blocked(connection))
        await until(lambda: sum(task.done() for task in arriving) == 200 - 64)
        other.rollback()
        came = await asyncio.gather(*arriving, return_exceptions=True)
        refused = [one for one in came if isinstance(one, Refused)]
        assert len(refused) == 200 - 64
        assert {one.code for one in refused} == {Refusal.BUSY}
        assert len({one.retry_after for one in refused}) > 100  # they don't come back together


# One sort of call can't keep another waiting


async def test_beats_updates_and_settlements_are_written_while_claims_wait(
    url: str, connection: Connection, other: Connection
) -> None:
    made = [put(connection) for _ in range(3)]
    given = take(connection, most=3)
    assert {one.id for one in given} == set(made)
    async with server(url) as fleet:
        with claims_held(other):
            callers = [await enters(fleet, f"x{n}", f"r{n}") for n in range(100)]
            await until(lambda: blocked(connection))
            tasks = [wire.Held(task=one.id, token=one.token) for one in given]
            assert await fleet.beat(PASS, wire.Beat(worker="w", tasks=tasks)) == []
            one = wire.UpdateTask(worker="w", task=given[0].id, token=given[0].token, done=1)
            assert await fleet.update(PASS, one) is None
            ended = await fleet.settle(Ending(held(given[1]), "succeeded", "1"))
            assert ended.state == "succeeded"
            assert not any(caller.answer.done() for caller in callers)


@pytest.mark.parametrize("what", ["read", "registration"])
async def test_what_is_rare_takes_no_connection_from_beats(
    url: str, connection: Connection, other: Connection, what: str
) -> None:
    """However many of them there are, and however long they take."""
    put(connection)
    (given,) = take(connection)
    async with server(url) as fleet:
        other.execute("LOCK TABLE kappa.fleet_workers, kappa.tool_inputs")
        makers: dict[str, Callable[[int], Any]] = {
            "read": lambda n: fleet.do(store.read_input(n, "a", 0, 1)),
            "registration": lambda n: fleet.hello(PASS, wire.Hello(worker=f"w{n}", kinds=["crunch"])),
        }
        rare = [asyncio.create_task(makers[what](n)) for n in range(30)]
        await until(lambda: blocked(connection))
        tasks = [wire.Held(task=given.id, token=given.token)]
        assert await fleet.beat(PASS, wire.Beat(worker="w", tasks=tasks)) == []
        assert fleet.pool.use().waiting == 0
        assert not any(task.done() for task in rare)
        other.rollback()
        await asyncio.gather(*rare)


async def believes(fleet: Fleet, **able: Any) -> None:
    """Ask until the server believes that there is nothing; it also makes sure that an enqueue tells it."""
    for turn in itertools.count():
        assert await answer(await enters(fleet, request=f"in-vain-{turn}", wait=0, **able)) == []
        if fleet._asleep and fleet.room._in_vain:  # pyright: ignore[reportPrivateUsage]
            return


async def test_a_claim_in_vain_speaks_for_those_who_can_do_no_more_until_something_comes(
    url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_room, "IN_VAIN", 1000.0)
    monkeypatch.setattr(dispatch, "LOOK_AGAIN", 0.0)
    later_on = put(connection, run_at=datetime.now(UTC) + timedelta(hours=1))
    async with server(url) as fleet:
        await heard_everything(fleet, connection)

        async def asks_for_any(request: str, wait: float = 0, **able: Any) -> list[int]:
            return [one.id for one in await answer(await enters(fleet, request=request, wait=wait, **able))]

        await believes(fleet, cores=2)
        # Queued behind everybody's back.
        connection.execute(
            "UPDATE kappa.jobs SET state = 'queued', run_at = NULL, queued_at = now() WHERE id = %s", [later_on]
        )
        assert await asks_for_any("r2", cores=1) == []
        assert await asks_for_any("r3", cores=4) == [later_on]
        made = put(connection)
        assert await asks_for_any("r4", wait=60) == [made]
        assert await asks_for_any("r5") == []
        assert await asks_for_any("r4") == [made]  # what is one's own already is given whatever is believed


async def test_who_had_no_hope_is_served_first_when_something_comes(
    url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_room, "IN_VAIN", 1000.0)
    monkeypatch.setattr(waiting_room, "PACE", 1000.0)
    monkeypatch.setattr(dispatch, "LOOK_AGAIN", 0.0)
    async with server(url) as fleet:
        await heard_everything(fleet, connection)
        await believes(fleet)
        hopeless = await enters(fleet, request="r2", wait=60)
        await until(lambda: not fleet.room._fresh, "a caller who is set aside")  # pyright: ignore[reportPrivateUsage]
        made = put(connection)
        assert [one.id for one in await answer(hopeless)] == [made]


@pytest.mark.parametrize("outcome", ["succeeded", "fatal", "failed", "released"])
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_slot_of_a_full_lane_that_is_free_again_is_given_at_once(
    url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch, outcome: str, *, elsewhere: bool
) -> None:
    monkeypatch.setattr(dispatch, "LOOK_AGAIN", 0.0)
    connection.execute("UPDATE kappa.lanes SET max_slots = 1 WHERE name = 'far'")
    async with server(url) as fleet:
        await believes(fleet)
        made = [put(connection), put(connection)]
        (given,) = await answer(await enters(fleet, "w1"))
        first = await parks(fleet, "w2")
        await heard_everything(fleet, connection)  # nothing that was said before wakes anybody from here on
        second = await parks(fleet, "w3")
        ending = Ending(held(given, "w1"), outcome)
        await (asyncio.to_thread(settle, connection, ending) if elsewhere else fleet.settle(ending))
        (next_one,) = await answer(first)
        assert next_one.id == (made[1] if outcome != "released" else made[0])
        assert not second.answer.done()
        assert running(connection) == 1


async def test_a_slot_of_a_lane_that_was_not_full_wakes_nobody(url: str, connection: Connection) -> None:
    connection.execute("UPDATE kappa.lanes SET max_slots = 2 WHERE name = 'far'")
    async with server(url) as fleet:
        await believes(fleet)
        put(connection)
        (given,) = await answer(await enters(fleet, "w1"))
        await parks(fleet, "w2")
        with psycopg.connect(url, autocommit=True) as listener:
            listener.execute("LISTEN kappa_wake")
            settle(connection, Ending(held(given, "w1"), "succeeded"))
            connection.execute("SELECT pg_notify('kappa_wake', 'the next')")
            told = list(listener.notifies(stop_after=1))
            assert told[0].payload == "the next"
