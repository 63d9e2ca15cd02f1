"""Enqueues of one event loop that are asked for at the same time: one commit, and each caller's own answer."""

import asyncio
from datetime import timedelta

import psycopg
import pytest

from kappa.engine import AsyncClient, Enqueued, JobState, UnknownKind
from kappa.engine.together import ON_THEIR_WAY
from tests.engine.hands import BLOCKED, Connection, wait_until_blocked

KINDS_STAY = 1262568290
"""What an edit of kinds locks, and every enqueue shares."""


async def blocked(witness: Connection, count: int) -> None:
    await asyncio.to_thread(wait_until_blocked, witness, count)


def commits(connection: Connection) -> int:
    (found,) = connection.execute("SELECT count(DISTINCT xmin::text) FROM kappa.jobs").fetchone() or (0,)
    return found


async def lose(witness: Connection, count: int) -> None:
    """End the sessions of so many who are on their way, and see them gone."""
    await blocked(witness, count)
    witness.execute(
        "SELECT pg_terminate_backend(pid, 30000) FROM unnest(%s::int[]) AS pid",
        [[pid for (pid,) in witness.execute(BLOCKED).fetchall()]],
    )


async def test_whoever_comes_while_others_are_on_their_way_shares_a_commit(
    async_client: AsyncClient, connection: Connection
) -> None:
    made = await asyncio.gather(*(async_client.enqueue("ingestion", n) for n in range(50)))
    assert commits(connection) == ON_THEIR_WAY + 1
    assert [(await async_client.show(one.id)).payload for one in made] == list(range(50))
    assert all(one.created for one in made)


async def test_one_caller_after_the_other_goes_at_once(async_client: AsyncClient, connection: Connection) -> None:
    for n in range(5):
        await async_client.enqueue("ingestion", n)
    assert commits(connection) == 5


async def test_each_job_is_what_its_own_caller_asked_for(async_client: AsyncClient, connection: Connection) -> None:
    asked = [
        ("ingestion", {"text": 'quotes " \\ {a,b} NULL'}, 3, 'ada "the" \\ first', timedelta(seconds=1.5), 4),
        ("tool_run", None, -7, None, None, 1),
        ("restore", [1, "NULL"], 0, "NULL", timedelta(days=2), 32767),
        ("polarity", "", 32767, "", None, 2),
    ] * 3
    made = await asyncio.gather(
        *(
            async_client.enqueue(kind, payload, priority=priority, submitted_by=who, timeout=timeout, max_attempts=most)
            for kind, payload, priority, who, timeout, most in asked
        )
    )
    jobs = [await async_client.show(one.id) for one in made]
    assert [(j.kind, j.payload, j.priority, j.submitted_by, j.timeout, j.max_attempts) for j in jobs] == asked
    assert {job.state for job in jobs} == {JobState.QUEUED}
    assert [job.lane for job in jobs[:4]] == ["interactive", "tools", "system", "interactive"]
    assert commits(connection) == ON_THEIR_WAY + 1


async def test_what_the_database_refuses_is_its_own_callers_affair(async_client: AsyncClient) -> None:
    asked = ["ingestion", "ingestion", "ingestion", "nowhere", "tool_run", "elsewhere"]
    found = await asyncio.gather(*(async_client.enqueue(kind) for kind in asked), return_exceptions=True)
    for kind, one in zip(asked, found, strict=True):
        if kind in ("nowhere", "elsewhere"):
            assert isinstance(one, UnknownKind)
            assert kind in str(one)
        else:
            assert isinstance(one, Enqueued)
    assert await async_client.counts() == {("interactive", JobState.QUEUED): 3, ("tools", JobState.QUEUED): 1}


async def test_a_caller_who_gives_up_while_it_waits_puts_nothing_in(
    url: str, async_client: AsyncClient, connection: Connection
) -> None:
    with psycopg.connect(url) as edit:
        edit.execute("SELECT pg_advisory_xact_lock(%s, 0)", [KINDS_STAY])
        first = [asyncio.create_task(async_client.enqueue("ingestion", "first")) for _ in range(ON_THEIR_WAY)]
        await blocked(connection, ON_THEIR_WAY)
        impatient = asyncio.create_task(async_client.enqueue("ingestion", "never"))
        patient = asyncio.create_task(async_client.enqueue("ingestion", "later"))
        await asyncio.sleep(0)
        impatient.cancel()
    made = await asyncio.gather(*first, patient)
    assert impatient.cancelled()
    assert [(await async_client.show(one.id)).payload for one in made] == ["first"] * ON_THEIR_WAY + ["later"]
    assert sum((await async_client.counts()).values()) == len(made)


async def test_who_is_cancelled_on_its_way_leaves_the_way_to_those_who_wait(
    url: str, async_client: AsyncClient, connection: Connection
) -> None:
    with psycopg.connect(url) as edit:
        edit.execute("SELECT pg_advisory_xact_lock(%s, 0)", [KINDS_STAY])
        first = [asyncio.create_task(async_client.enqueue("ingestion")) for _ in range(ON_THEIR_WAY)]
        await blocked(connection, ON_THEIR_WAY)
        waiting = asyncio.create_task(async_client.enqueue("ingestion", "later"))
        await asyncio.sleep(0)
        for one in first:
            one.cancel()
        assert all(
            isinstance(one, asyncio.CancelledError) for one in await asyncio.gather(*first, return_exceptions=True)
        )
    assert (await async_client.show((await waiting).id)).payload == "later"
    assert (await async_client.enqueue("ingestion", "at once")).created
    assert commits(connection) == 2


async def test_a_server_that_goes_away_is_told_to_every_caller_and_the_next_ones_are_served(
    url: str, async_client: AsyncClient, connection: Connection
) -> None:
    with psycopg.connect(url) as edit:
        edit.execute("SELECT pg_advisory_xact_lock(%s, 0)", [KINDS_STAY])
        asked = [asyncio.create_task(async_client.enqueue("ingestion")) for _ in range(ON_THEIR_WAY)]
        await blocked(connection, ON_THEIR_WAY)
        asked += [asyncio.create_task(async_client.enqueue("ingestion")) for _ in range(3)]
        await asyncio.sleep(0)
        await lose(connection, ON_THEIR_WAY)
        await lose(connection, 1)  # those that waited, who are on their way together now
        found = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(one) for one in found if not isinstance(one, psycopg.OperationalError)] == []
    assert (await async_client.enqueue("ingestion")).created
    assert commits(connection) == 1


@pytest.mark.parametrize("many", [3, 40])
async def test_a_lane_that_sleeps_is_woken_once_by_a_commit(
    url: str, async_client: AsyncClient, connection: Connection, many: int
) -> None:
    connection.execute(
        "INSERT INTO kappa.sleepers VALUES ('interactive', 'one'), ('interactive', 'two'), ('tools', 'one')"
    )
    with psycopg.connect(url, autocommit=True) as listening:
        listening.execute("LISTEN kappa_wake")
        await asyncio.gather(*(async_client.enqueue("ingestion") for _ in range(many)))
        told = [notify.payload for notify in listening.notifies(timeout=5, stop_after=commits(connection))]
        assert told == ["interactive"] * commits(connection)
        assert list(listening.notifies(timeout=0)) == []
