"""Leadership: one leads, others stand by, and who lost the session lost the means to act."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import LiteralString

import psycopg
import pytest
from psycopg import AsyncConnection, Connection

from kappa.engine import Engine, Schedule, WorkerConfig
from kappa.engine.maintenance.leader import Leader
from kappa.engine.maintenance.services import Cron, Reaper, Service
from kappa.engine.signals import Signals
from kappa.engine.store import maintenance
from kappa.engine.testing import Heard, working
from kappa.pg.ops import run
from kappa.pg.queries import Row
from tests.ground import PATIENCE, Script, eventually

Session = Connection[Row]

OFTEN = 0.05


class Diary:
    """A service that writes down who acted. Told to pause, it waits in the middle of its act."""

    name = "diary"
    every = 0.02
    aside = False

    def __init__(self, who: str) -> None:
        self.who = who
        self.pid = 0
        self.in_the_middle = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def run_once(self, connection: AsyncConnection[Row], now: datetime | None = None) -> float | None:
        self.pid = connection.info.backend_pid
        if not self.go_on.is_set():
            self.in_the_middle.set()
            await self.go_on.wait()
        await connection.execute("INSERT INTO diary (who, pid) VALUES (%s, pg_backend_pid())", [self.who])
        return None


class DiaryAside(Diary):
    """The same for what may take long."""

    name = "diary aside"
    aside = True


class Faulty:
    """A service with a fault."""

    name = "faulty"
    every = 0.02
    aside = False

    async def run_once(self, connection: AsyncConnection[Row], now: datetime | None = None) -> float | None:
        raise KeyError("a fault in a service")


class Slow:
    """A service that waits in the middle of a statement for as long as somebody has its lock."""

    name = "slow"
    every = 0.02
    aside = True
    waits = "SELECT pg_advisory_xact_lock(1, 1)"
    inside: LiteralString = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND query = %s"

    async def run_once(self, connection: AsyncConnection[Row], now: datetime | None = None) -> float | None:
        await connection.execute(self.waits)
        return None


class Node:
    """A would-be leader with signals of its own."""

    def __init__(self, url: str, who: str, *services: Service) -> None:
        self.engine = Engine(url)
        self.heard = Heard(self.engine)
        self.diary = Diary(who)
        self.leader = Leader(url, [*services, self.diary], self.engine.signals, OFTEN)


@asynccontextmanager
async def standing(node: Node) -> AsyncGenerator[Node]:
    running = asyncio.create_task(node.leader.run())
    try:
        yield node
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        node.heard.stop()


@pytest.fixture
def watcher(url: str) -> Iterator[Session]:
    """A session to look at the others from."""
    with psycopg.connect(url, autocommit=True) as opened:
        opened.execute("CREATE TABLE diary (at bigint GENERATED ALWAYS AS IDENTITY, who text, pid int)")
        yield opened


def sessions(watcher: Session) -> dict[int, tuple[str, bool, bool]]:
    """Of every session of a leader or standby: its state, and whether it has a snapshot or a transaction."""
    rows = watcher.execute(
        """SELECT pid, state, backend_xmin IS NOT NULL OR backend_xid IS NOT NULL, xact_start IS NOT NULL
             FROM pg_stat_activity WHERE application_name = 'kappa leader' AND datname = current_database()"""
    )
    return {row[0]: (row[1], row[2], row[3]) for row in rows}


async def standby_of(watcher: Session, leading: Node) -> int:
    """The pid of the one session that stands by, seen once it has asked for the lock."""

    def look() -> int | None:
        rows = watcher.execute(
            """SELECT pid FROM pg_stat_activity
                WHERE application_name = 'kappa leader' AND datname = current_database() AND pid <> %s
                  AND query LIKE '%%pg_try_advisory_lock%%'""",
            [leading.diary.pid],
        ).fetchall()
        return rows[0][0] if rows else None

    found = await asyncio.to_thread(eventually, look, what="a standby")
    assert found is not None
    return found


async def until_acted(watcher: Session, who: str, after: int = 0) -> int:
    """Wait for an entry of somebody's, and give its place."""

    def look() -> int | None:
        found = watcher.execute("SELECT min(at) FROM diary WHERE who = %s AND at > %s", [who, after]).fetchone()
        return found[0] if found else None

    found = await asyncio.to_thread(eventually, look, what=f"an act of {who}")
    assert found is not None
    return found


def authors(watcher: Session, after: int = 0) -> set[str]:
    return {row[0] for row in watcher.execute("SELECT DISTINCT who FROM diary WHERE at > %s", [after])}


def last_entry(watcher: Session) -> int:
    found = watcher.execute("SELECT coalesce(max(at), 0) FROM diary").fetchone()
    assert found is not None
    return found[0]


def terminate(watcher: Session, pid: int) -> None:
    watcher.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


async def test_only_one_of_two_leads(url: str, watcher: Session) -> None:
    async with standing(Node(url, "a")) as first:
        await first.heard.until("leading")
        await until_acted(watcher, "a")
        async with standing(Node(url, "b")) as second:
            await standby_of(watcher, first)
            seen = last_entry(watcher)
            await until_acted(watcher, "a", after=seen + 5)
            assert (first.leader.leading, second.leader.leading) == (True, False)
            assert authors(watcher) == {"a"}


async def test_the_services_run_on_the_very_session_that_holds_the_lock(url: str, watcher: Session) -> None:
    async with standing(Node(url, "a")) as node:
        await node.heard.until("leading")
        await until_acted(watcher, "a")
        holders = watcher.execute(
            """SELECT l.pid FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database
                WHERE l.locktype = 'advisory' AND l.granted AND d.datname = current_database()"""
        ).fetchall()
        writers = watcher.execute("SELECT DISTINCT pid FROM diary").fetchall()
        assert holders == writers == [(node.diary.pid,)]


async def test_a_standby_takes_over_when_the_leaders_session_ends(url: str, watcher: Session) -> None:
    async with standing(Node(url, "a")) as first:
        await first.heard.until("leading")
        await until_acted(watcher, "a")
        first.diary.go_on.clear()
        async with standing(Node(url, "b")) as second:
            await standby_of(watcher, first)
            # The first must not be quicker than the second to come back: it is held in the middle of an act.
            await first.diary.in_the_middle.wait()
            terminate(watcher, first.diary.pid)
            await second.heard.until("leading")
            await until_acted(watcher, "b")
            assert second.leader.leading


async def test_a_leader_that_lost_its_session_in_the_middle_of_an_act_does_not_finish_it(
    url: str, watcher: Session
) -> None:
    async with standing(Node(url, "a")) as first:
        await first.heard.until("leading")
        await until_acted(watcher, "a")
        first.diary.go_on.clear()
        await first.diary.in_the_middle.wait()
        async with standing(Node(url, "b")) as second:
            terminate(watcher, first.diary.pid)
            await second.heard.until("leading")
            taken_over = await until_acted(watcher, "b")
            first.diary.go_on.set()
            await first.heard.until("not_leading")
            assert not first.leader.leading
            seen = last_entry(watcher)
            await until_acted(watcher, "b", after=seen + 5)
            assert authors(watcher, after=taken_over) == {"b"}


async def test_a_leader_that_lost_its_session_stands_by_again_and_leads_when_it_can(url: str, watcher: Session) -> None:
    async with standing(Node(url, "a")) as first, standing(Node(url, "b")) as second:
        nodes = {"a": first, "b": second}
        await asyncio.wait(
            [asyncio.create_task(node.heard.until("leading")) for node in nodes.values()],
            return_when=asyncio.FIRST_COMPLETED,
        )
        for _ in range(4):
            (who,) = [name for name, node in nodes.items() if node.leader.leading]
            leading = nodes[who]
            lost = len(leading.heard.all("not_leading"))
            seen = last_entry(watcher)
            await until_acted(watcher, who, after=seen)
            seen = last_entry(watcher)
            terminate(watcher, leading.diary.pid)
            await leading.heard.until("not_leading", count=lost + 1)
            await asyncio.to_thread(eventually, lambda: any(node.leader.leading for node in nodes.values()))
        assert not (first.leader.leading and second.leader.leading)


async def test_the_only_node_leads_again_after_it_lost_its_session(url: str, watcher: Session) -> None:
    async with standing(Node(url, "a")) as node:
        await node.heard.until("leading")
        await until_acted(watcher, "a")
        seen = last_entry(watcher)
        terminate(watcher, node.diary.pid)
        await node.heard.until("not_leading")
        await node.heard.until("leading", count=2)
        await until_acted(watcher, "a", after=seen)


async def test_a_standby_holds_no_snapshot_and_waits_for_no_lock(url: str, watcher: Session) -> None:
    async with standing(Node(url, "a")) as first:
        await first.heard.until("leading")
        await until_acted(watcher, "a")
        async with standing(Node(url, "b")):
            pid = await standby_of(watcher, first)

            def idle() -> bool:
                return sessions(watcher).get(pid) == ("idle", False, False)

            await asyncio.to_thread(eventually, idle, what="a standby without a snapshot")
            ungranted = watcher.execute("SELECT pid FROM pg_locks WHERE NOT granted AND pid = %s", [pid]).fetchall()
            assert ungranted == []


async def test_a_leader_between_its_acts_holds_no_snapshot(url: str, watcher: Session) -> None:
    async with standing(Node(url, "a")) as node:
        await node.heard.until("leading")
        await until_acted(watcher, "a")

        def idle() -> bool:
            return sessions(watcher).get(node.diary.pid) == ("idle", False, False)

        await asyncio.to_thread(eventually, idle, what="a leader without a snapshot")


async def test_a_fault_in_one_service_keeps_no_other_from_its_work(url: str, watcher: Session) -> None:
    async with standing(Node(url, "a", Faulty())) as node:
        await node.heard.until("leading")
        await until_acted(watcher, "a")
        seen = last_entry(watcher)
        await until_acted(watcher, "a", after=seen)
        assert node.leader.leading


ORPHAN = """
    INSERT INTO kappa.jobs (lane, kind, state, lease_owner, lease_token, lease_until)
    VALUES ('tools', 'tool_run', 'running', 'gone', nextval('kappa.lease_tokens'), now() - interval '1 minute')
"""
ORPHANS = "SELECT count(*) FROM kappa.jobs WHERE state = 'running' AND lease_token IS NULL"


async def reaps(watcher: Session) -> None:
    before = watcher.execute(ORPHANS).fetchone()
    watcher.execute(ORPHAN)
    await asyncio.to_thread(eventually, lambda: watcher.execute(ORPHANS).fetchone() != before, what="a lease reaped")


async def test_the_reaper_does_not_wait_for_a_service_that_takes_long(url: str, watcher: Session) -> None:
    watcher.execute("SELECT pg_advisory_lock(1, 1)")
    async with standing(Node(url, "a", Slow(), Reaper(Signals(), 0.02))):

        def waits() -> bool:
            return watcher.execute(Slow.inside, [Slow.waits]).fetchone() is not None

        await asyncio.to_thread(eventually, waits, what="a service in the middle of its work")
        await reaps(watcher)
        assert waits()
        watcher.execute("SELECT pg_advisory_unlock(1, 1)")


async def test_the_reaper_does_not_wait_for_a_program_that_asks_itself_whether_a_job_is_needed(
    url: str, watcher: Session
) -> None:
    asked, answer, answered = threading.Event(), threading.Event(), list[bool]()
    node = Node(url, "a")

    def needed(payload: object) -> None:
        asked.set()
        answered.append(answer.wait(PATIENCE))

    node.engine.job("tool_run", needed=needed)(lambda ctx: None)
    with node.engine.client() as client:
        client.put_schedule(Schedule("always", "0 0 1 1 *", "tool_run"))
    watcher.execute("UPDATE kappa.schedules SET next_at = now() - interval '1 second'")
    reaper, cron = Reaper(node.engine.signals, 0.02), Cron(node.engine.registry, node.engine.signals)
    node.leader = Leader(url, [cron, reaper], node.engine.signals, OFTEN)
    async with standing(node):
        try:
            assert await asyncio.to_thread(asked.wait, 30)
            await reaps(watcher)
        finally:
            answer.set()
        await node.heard.until("fired")
    assert answered == [True]


async def test_what_takes_long_is_done_by_one_leader_at_a_time(url: str, watcher: Session) -> None:
    watcher.execute("SELECT pg_advisory_lock(1, 1)")

    def inside() -> int:
        return len(watcher.execute(Slow.inside, [Slow.waits]).fetchall())

    with psycopg.connect(url, autocommit=True) as rest:
        # What is left of a leader that lost its first session, and not yet the second.
        assert run(rest, maintenance.try_lead_aside())
        async with standing(Node(url, "b", Slow())) as node:
            await node.heard.until("leading")
            await until_acted(watcher, "b")
            aside = """SELECT query FROM pg_stat_activity
                        WHERE datname = current_database() AND application_name = 'kappa leader aside'"""
            asked = [("SELECT pg_try_advisory_lock(1262568295, 0)",)]
            await asyncio.to_thread(eventually, lambda: watcher.execute(aside).fetchall() == asked)
            assert inside() == 0
            rest.close()
            await asyncio.to_thread(eventually, lambda: inside() == 1)
            watcher.execute("SELECT pg_advisory_unlock(1, 1)")


async def test_a_leader_that_lost_its_session_leaves_also_what_takes_long_to_the_next(
    url: str, watcher: Session
) -> None:
    async with standing(Node(url, "a", DiaryAside("a aside"))) as first:
        await until_acted(watcher, "a aside")
        first.diary.go_on.clear()
        await first.diary.in_the_middle.wait()
        async with standing(Node(url, "b", DiaryAside("b aside"))) as second:
            terminate(watcher, first.diary.pid)
            await second.heard.until("leading")
            first.diary.go_on.set()
            await first.heard.until("not_leading")
            since = await until_acted(watcher, "b aside")
            await until_acted(watcher, "b aside", after=since + 5)
            assert authors(watcher, after=since) <= {"b", "b aside"}


LEADING_PROCESS = """
    import sys
    from kappa.engine import Engine

    engine = Engine(sys.argv[1])
    engine.signals.subscribe(lambda name, facts: print(name, flush=True) if name == "leading" else None)
    engine.run()
"""


async def test_a_standby_takes_over_from_a_process_that_was_killed(url: str, engine: Engine, heard: Heard) -> None:
    with Script(LEADING_PROCESS, url) as other:
        assert await asyncio.to_thread(other.line) == "leading"
        async with working(engine, WorkerConfig(lead_every=timedelta(seconds=1))):
            assert heard.all("leading") == []
            other.kill()
            async with asyncio.timeout(10):
                await heard.until("leading")
    assert len(heard.all("leading")) == 1


async def test_a_worker_that_may_not_lead_never_does(url: str, engine: Engine, heard: Heard, watcher: Session) -> None:
    async with working(engine, WorkerConfig(lead=False, lead_every=timedelta(milliseconds=10))):
        async with standing(Node(url, "a")) as node:
            await node.heard.until("leading")
            await until_acted(watcher, "a")
        assert sessions(watcher).keys() <= {node.diary.pid}
    assert heard.all("leading") == []
