"""Calls that are written together: the answer follows the commit, and one bad word spoils no other."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import psycopg
import pytest

from kappa.engine import JobState
from kappa.engine.fleet import wire
from kappa.engine.fleet.dispatch import Fleet
from kappa.engine.fleet.group import Group
from kappa.engine.fleet.refusals import Refused
from kappa.engine.fleet.store import Ended, Ending, Given
from kappa.engine.fleet.wire import Refusal
from kappa.pg import Bounds
from tests.engine.fleet.floor import (
    PASS,
    Connection,
    answer,
    blocked,
    enters,
    held,
    open_lane,
    parks,
    put,
    server,
    started,
    until,
)
from tests.engine.hands import row, see

T = TypeVar("T")


@pytest.fixture(autouse=True)
def lane(connection: Connection) -> None:
    open_lane(connection)


@pytest.fixture
def other(url: str) -> Iterator[Connection]:
    with psycopg.connect(url) as opened:
        yield opened


def kill(connection: Connection, what: str) -> None:
    """End the session that runs such a statement."""
    killed = connection.execute(
        """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE %s""",
        [f"%{what}%"],
    )
    assert killed.fetchall() != []


def says(given: Given, **words: object) -> wire.UpdateTask:
    return wire.UpdateTask.model_validate({"worker": "w", "task": given.id, "token": given.token, **words})


async def settles(fleet: Fleet, given: Given, result: str = "1") -> Ended:
    return await fleet.settle(Ending(held(given), "succeeded", result))


@pytest.mark.parametrize("call", ["update", "complete"])
async def test_nobody_is_answered_before_the_commit(
    url: str, connection: Connection, other: Connection, call: str
) -> None:
    given, fine = started(connection), started(connection)
    async with server(url) as fleet:

        async def say(one: Given) -> object:
            if call == "update":
                return await fleet.update(PASS, says(one, done=5))
            return await settles(fleet, one)

        other.execute("SELECT FROM kappa.jobs WHERE id = %s FOR UPDATE", [given.id])
        first = asyncio.create_task(say(given))
        await until(lambda: blocked(connection))
        second = asyncio.create_task(say(fine))
        assert not first.done()
        kill(connection, f"fleet_{'settle' if call == 'complete' else call}")
        with pytest.raises(Refused) as refused:
            await first
        assert refused.value.code is Refusal.UNAVAILABLE
        assert refused.value.retry_after
        assert row(connection, given.id, "state", "progress_done") == ("running", None)
        # What came meanwhile goes with the next statement, on another connection, and so does the repeat.
        await second
        other.rollback()
        await say(given)
    if call == "complete":
        assert {see(connection, one.id).state for one in (given, fine)} == {JobState.SUCCEEDED}
    if call == "update":
        assert [row(connection, one.id, "progress_done") for one in (given, fine)] == [(5.0,), (5.0,)]


async def test_what_comes_while_a_statement_runs_goes_with_the_next(
    url: str, connection: Connection, other: Connection
) -> None:
    tasks = [started(connection) for _ in range(20)]
    async with server(url) as fleet:
        other.execute("SELECT FROM kappa.jobs WHERE id = %s FOR UPDATE", [tasks[0].id])
        first = asyncio.create_task(fleet.update(PASS, says(tasks[0], done=1)))
        await until(lambda: blocked(connection))
        rest = [asyncio.create_task(fleet.update(PASS, says(one, done=n))) for n, one in enumerate(tasks)]
        await asyncio.sleep(0)
        other.rollback()
        await asyncio.gather(first, *rest)
        assert (fleet.updates.calls, fleet.updates.statements) == (21, 2)
    found = connection.execute("SELECT progress_done FROM kappa.jobs ORDER BY id").fetchall()
    assert [done for (done,) in found] == list(map(float, range(20)))


async def test_a_bad_word_is_refused_alone(url: str, connection: Connection, other: Connection) -> None:
    tasks = [started(connection) for _ in range(40)]
    async with server(url) as fleet:
        other.execute("SELECT FROM kappa.jobs WHERE id = %s FOR UPDATE", [tasks[0].id])
        first = asyncio.create_task(settles(fleet, tasks[0]))
        await until(lambda: blocked(connection))
        bad = {7: '"a\\u0000b"', 23: "NaN", 24: '{"a": Infinity}'}
        rest = [asyncio.create_task(settles(fleet, one, bad.get(n, "1"))) for n, one in enumerate(tasks[1:], 1)]
        await asyncio.sleep(0)
        other.rollback()
        answers = await asyncio.gather(first, *rest, return_exceptions=True)
        for n, said in enumerate(answers):
            if n in bad:
                assert isinstance(said, Refused)
                assert (said.code, said.retry_after) == (Refusal.BAD_REQUEST, None)
            else:
                assert isinstance(said, Ended)
        # Found by halves: each bad one costs a few statements, and not one for every call.
        assert fleet.settlements.statements < 40
    states = [see(connection, one.id).state for one in tasks]
    assert [n for n, state in enumerate(states) if state is JobState.RUNNING] == list(bad)


async def test_words_about_one_task_in_one_statement_are_one(
    url: str, connection: Connection, other: Connection
) -> None:
    given, held_up = started(connection), started(connection)
    async with server(url) as fleet:
        other.execute("SELECT FROM kappa.jobs WHERE id = %s FOR UPDATE", [held_up.id])
        first = asyncio.create_task(fleet.update(PASS, says(held_up, done=1)))
        await until(lambda: blocked(connection))
        said = [says(given, done=1, total=9, message="one"), says(given, done=2), says(given, checkpoint=[1])]
        updates = [asyncio.create_task(fleet.update(PASS, one)) for one in said]
        await asyncio.sleep(0)
        other.rollback()
        assert await asyncio.gather(first, *updates) == [None] * 4
        assert fleet.updates.statements == 2
    shown = see(connection, given.id)
    assert (shown.progress_done, shown.progress_total, shown.progress_message) == (2.0, 9.0, "one")
    assert shown.checkpoint == [1]


async def test_of_two_ends_in_one_statement_the_first_counts(
    url: str, connection: Connection, other: Connection
) -> None:
    given, held_up = started(connection), started(connection)
    async with server(url) as fleet:
        other.execute("SELECT FROM kappa.jobs WHERE id = %s FOR UPDATE", [held_up.id])
        first = asyncio.create_task(settles(fleet, held_up))
        await until(lambda: blocked(connection))
        endings = [Ending(held(given), "failed", None, "no"), Ending(held(given), "succeeded", "1")]
        settled = [asyncio.create_task(fleet.settle(one)) for one in endings]
        await asyncio.sleep(0)
        other.rollback()
        assert [one.state for one in await asyncio.gather(first, *settled)] == ["succeeded", "failed", "failed"]
        assert fleet.settlements.statements == 2
    assert see(connection, given.id).state is JobState.FAILED


async def test_a_database_that_was_away_is_found_again(
    url: str, connection: Connection, request: pytest.FixtureRequest
) -> None:
    admin: Connection = request.getfixturevalue("server").admin
    given = started(connection)
    name = psycopg.sql.Identifier(url.rsplit("/", 1)[1])
    async with server(url, bounds=Bounds(1, 5, wait=5)) as fleet:
        parked = await parks(fleet)
        admin.execute(psycopg.sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
        connection.execute(
            """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE datname = current_database() AND pid <> pg_backend_pid()"""
        )
        calls = [fleet.update(PASS, says(given, done=1)), settles(fleet, given), fleet.beat(PASS, beats(given))]
        for said in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(said, Refused)
            assert said.code is Refusal.UNAVAILABLE
            assert said.retry_after
        fleet.room.wake()
        with pytest.raises(Refused, match="try again"):
            await answer(parked)
        admin.execute(psycopg.sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name))
        made = put(connection)
        assert [one.id for one in await patiently(lambda: asks(fleet))] == [made]
        assert (await patiently(lambda: settles(fleet, given))).state == "succeeded"


def beats(*tasks: Given) -> wire.Beat:
    return wire.Beat(worker="w", tasks=[wire.Held(task=one.id, token=one.token) for one in tasks])


async def asks(fleet: Fleet) -> list[Given]:
    return await answer(await enters(fleet))


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """As a worker does it that was told to try again."""
    while True:
        try:
            return await call()
        except Refused:
            await asyncio.sleep(0.05)


async def test_a_writer_that_breaks_leaves_nobody_waiting() -> None:
    gate = asyncio.Event()

    async def write(batch: list[int]) -> list[int]:
        await gate.wait()
        if batch == [0]:
            raise ZeroDivisionError
        return batch

    group: Group[int, int] = Group("test", write)
    said = [asyncio.create_task(group(n)) for n in range(3)]
    for _ in range(3):
        await asyncio.sleep(0)
    writer = next(task for task in asyncio.all_tasks() if task.get_name() == "fleet test")
    late = asyncio.create_task(group(9))
    await asyncio.sleep(0)
    writer.cancel()
    answers = await asyncio.gather(*said, late, return_exceptions=True)
    assert all(isinstance(one, Refused) and one.code is Refusal.UNAVAILABLE for one in answers)
    gate.set()
    assert await group(5) == 5


async def test_a_lock_on_something_other_than_the_tasks_keeps_only_those_calls_from_being_written_that_need_it(
    url: str, connection: Connection, other: Connection
) -> None:
    given = [started(connection) for _ in range(5)]
    async with server(url) as fleet:
        other.execute("SELECT FROM kappa.fleet_tasks WHERE job_id = %s FOR UPDATE", [given[1].id])
        said = await asyncio.gather(*(settles(fleet, one) for one in given), return_exceptions=True)
        assert [isinstance(one, Refused) for one in said] == [False, True, False, False, False]
        other.rollback()
        assert (await settles(fleet, given[1])).state == "succeeded"
