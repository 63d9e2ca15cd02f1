"""Leadership: one leads, others stand by, and who lost the session lost the means to act."""

import asyncio
import signal
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import LiteralString

import psycopg
import pytest
from psycopg import AsyncConnection, Connection, sql

from kappa.engine import Client, Engine, JobState, Schedule, WorkerConfig
from kappa.engine.maintenance.leader import Leader
from kappa.engine.maintenance.services import Cron, Reaper, Service
from kappa.engine.signals import Signals
from kappa.engine.store import jobs, lanes, leadership
from kappa.engine.store.jobs import NewJob
from kappa.engine.testing import Heard, working
from kappa.pg.ops import run
from kappa.pg.queries import Row
from tests.engine.hands import wait_until_blocked
from tests.ground import PATIENCE, Script, eventually

Session = Connection[Row]

OFTEN = 0.05
LONG = timedelta(minutes=10)
SHORT = timedelta(milliseconds=600)


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

    def __init__(self, url: str, who: str, *services: Service, ttl: timedelta = LONG) -> None:
        self.engine = Engine(url)
        self.heard = Heard(self.engine)
        self.diary = Diary(who)
        self.leader = Leader(url, [*services, self.diary], self.engine.signals, OFTEN, ttl, who)


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
    """The pid of the one session that stands by, seen once it has tried to lead."""

    def look() -> int | None:
        rows = watcher.execute(
            """SELECT pid FROM pg_stat_activity
                WHERE application_name = 'kappa leader' AND datname = current_database() AND pid <> %s
                  AND query LIKE '%%kappa.try_lead%%'""",
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


async def test_the_services_run_on_the_session_that_has_the_term(url: str, watcher: Session) -> None:
    async with standing(Node(url, "a")) as node:
        await node.heard.until("leading")
        await until_acted(watcher, "a")
        leaders = watcher.execute("SELECT pid FROM kappa.leadership").fetchall()
        assert leaders == watcher.execute("SELECT DISTINCT pid FROM diary").fetchall() == [(node.diary.pid,)]


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


async def test_a_lease_that_is_given_while_the_reaper_rests_is_reaped_when_it_runs_out(
    url: str, watcher: Session
) -> None:
    """Its next round by itself is an hour away, and nobody tells it of the lease."""
    run(watcher, lanes.edit_lane("interactive", {"lease_ttl": timedelta(seconds=1)}))
    node = Node(url, "a")
    node.leader = Leader(url, [Reaper(node.engine.signals, 3600.0), node.diary], node.engine.signals, OFTEN, LONG)
    async with standing(node):
        await until_acted(watcher, "a")  # so the reaper has had its first round
        run(watcher, jobs.enqueue(NewJob("polarity", "null")))
        assert len(run(watcher, jobs.claim("interactive", "gone", 1))) == 1
        await node.heard.until("reaped")


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
    node.leader = Leader(url, [cron, reaper], node.engine.signals, OFTEN, LONG)
    async with standing(node):
        try:
            assert await asyncio.to_thread(asked.wait, 30)
            await reaps(watcher)
        finally:
            answer.set()
        await node.heard.until("fired")
    assert answered == [True]


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


# Terms and heartbeats


@pytest.fixture
def other(url: str) -> Iterator[Session]:
    with psycopg.connect(url, autocommit=True) as opened:
        yield opened


def lead(session: Session, owner: str = "test", ttl: timedelta = LONG) -> int | None:
    return run(session, leadership.try_lead(owner, ttl))[0]


def let_heartbeat_run_out(watcher: Session) -> None:
    watcher.execute("UPDATE kappa.leadership SET heartbeat_at = clock_timestamp() - ttl - interval '1 second'")


def usurp(session: Session) -> None:
    """Begin a term without ending anybody's session, as a standby does that may not."""
    session.execute(
        """UPDATE kappa.leadership
              SET term = term + 1, owner = 'test', pid = pg_backend_pid(), heartbeat_at = clock_timestamp(),
                  backend_start = (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid())"""
    )


def test_a_term_is_taken_only_when_the_session_is_gone_or_its_heartbeat_is_old(
    url: str, connection: Session, other: Session
) -> None:
    with psycopg.connect(url, autocommit=True) as first:
        assert lead(first) == 1
        assert lead(other) is None
    eventually(lambda: lead(other) == 2, what="a term after a session that ended")
    assert lead(connection) is None
    let_heartbeat_run_out(connection)
    assert lead(connection) == 3
    assert not run(connection, leadership.beat(2))
    assert run(connection, leadership.beat(3))


def test_a_heartbeat_from_before_the_clock_was_set_back_is_none(connection: Session, other: Session) -> None:
    assert lead(other) == 1
    connection.execute("UPDATE kappa.leadership SET heartbeat_at = clock_timestamp() + interval '1 hour'")
    assert lead(connection) == 2


def test_what_a_leader_has_begun_is_ended_before_the_next_leads(url: str, watcher: Session, other: Session) -> None:
    term = lead(other)
    assert term
    with psycopg.connect(url) as aside, psycopg.connect(url) as bystander:
        assert run(aside, leadership.share_term(term))
        aside.execute("INSERT INTO diary (who) VALUES ('late')")
        bystander.execute("SELECT 1")
        let_heartbeat_run_out(watcher)
        assert lead(watcher) == 2
        for ended in (aside, other):
            with pytest.raises(psycopg.OperationalError):
                ended.execute("SELECT 1")
        bystander.commit()
    assert authors(watcher) == set()


def test_a_session_of_another_database_is_never_ended(url: str, connection: Session) -> None:
    with psycopg.connect(url, dbname="postgres", autocommit=True) as stranger:
        connection.execute(
            """UPDATE kappa.leadership AS l SET pid = a.pid, backend_start = a.backend_start
                 FROM pg_stat_activity AS a WHERE a.pid = %s""",
            [stranger.info.backend_pid],
        )
        assert lead(connection) == 1
        assert stranger.execute("SELECT 1").fetchone() == (1,)


def test_who_may_not_end_the_last_leaders_sessions_leads_when_they_write_nothing_more(
    url: str, superuser: Session, watcher: Session, other: Session
) -> None:
    term = lead(other)
    assert term
    role = sql.Identifier(f"stranger_{watcher.info.backend_pid}")
    superuser.execute(sql.SQL("CREATE ROLE {0}; GRANT USAGE ON SCHEMA kappa TO {0}").format(role))
    superuser.execute(sql.SQL("GRANT {} TO {}").format(role, sql.Identifier(watcher.info.user)))
    watcher.execute(sql.SQL("GRANT SELECT, UPDATE ON kappa.leadership TO {}").format(role))
    try:
        with psycopg.connect(url, autocommit=True) as stranger:
            stranger.execute(sql.SQL("SET ROLE {}").format(role))
            assert lead(stranger) is None
            let_heartbeat_run_out(watcher)
            with other.transaction():
                assert run(other, leadership.share_term(term))
                assert run(stranger, leadership.try_lead("b", LONG)) == (None, [other.info.backend_pid])
            assert run(stranger, leadership.try_lead("b", LONG)) == (term + 1, [other.info.backend_pid])
        assert not run(other, leadership.share_term(term))
    finally:
        superuser.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(role))


async def test_a_standby_that_may_not_end_the_last_leaders_sessions_says_so_and_leads(
    url: str, watcher: Session, other: Session, caplog: pytest.LogCaptureFixture
) -> None:
    lead(other)
    watcher.execute(
        """CREATE FUNCTION public.pg_terminate_backend(int) RETURNS boolean LANGUAGE plpgsql AS $$
           BEGIN RAISE insufficient_privilege; END $$"""
    )
    watcher.execute("ALTER FUNCTION kappa.try_lead SET search_path = public, pg_catalog")
    let_heartbeat_run_out(watcher)
    async with standing(Node(url, "b")) as node:
        await node.heard.until("leading")
    assert f"may not end its sessions (pid {other.info.backend_pid})" in caplog.text


@pytest.mark.parametrize("aside", [False, True], ids=["promptly", "aside"])
async def test_a_leader_whose_term_is_over_writes_nothing_more(url: str, watcher: Session, *, aside: bool) -> None:
    """Its sessions live, and its heartbeat is not yet due."""
    slow = DiaryAside("a")
    async with standing(Node(url, "a", slow)) as node:
        await until_acted(watcher, "a")
        for diary in (node.diary, slow):
            diary.go_on.clear()
            await diary.in_the_middle.wait()
        usurp(watcher)
        seen = last_entry(watcher)
        (slow if aside else node.diary).go_on.set()
        await node.heard.until("not_leading")
        assert authors(watcher, after=seen) == set()


async def test_a_service_that_takes_long_does_not_stop_the_heartbeat(url: str, watcher: Session) -> None:
    slow = Slow()
    slow.aside = False
    watcher.execute("SELECT pg_advisory_lock(1, 1)")

    def waits() -> bool:
        return watcher.execute(Slow.inside, [Slow.waits]).fetchone() is not None

    def heartbeat() -> datetime:
        found = watcher.execute("SELECT heartbeat_at FROM kappa.leadership").fetchone()
        assert found is not None
        return found[0]

    async with standing(Node(url, "a", slow, ttl=SHORT)):
        await asyncio.to_thread(eventually, waits, what="a service in the middle of its work")
        for _ in range(4):
            before = heartbeat()
            await asyncio.to_thread(eventually, lambda before=before: heartbeat() > before, what="a heartbeat")
        assert waits()
        watcher.execute("SELECT pg_advisory_unlock(1, 1)")


async def test_a_leader_that_is_silent_is_not_shown_as_the_leader(engine: Engine, heard: Heard, url: str) -> None:
    async with working(engine, WorkerConfig(leader_ttl=LONG)) as worker:
        await heard.until("leading")
        with psycopg.connect(url, autocommit=True) as watcher:
            assert [(one.owner, one.leads) for one in run(watcher, lanes.read_workers())] == [(worker.owner, True)]
            let_heartbeat_run_out(watcher)
            assert [(one.owner, one.leads) for one in run(watcher, lanes.read_workers())] == [(worker.owner, False)]


FROZEN_LEADER = """
    import sys
    from datetime import timedelta
    from kappa.engine import Engine, WorkerConfig

    def say(*words):
        print(*words, flush=True)

    def needed(payload):
        say("needed")
        sys.stdin.readline()

    engine = Engine(sys.argv[1])
    engine.job("tool_run", needed=needed)(lambda ctx: None)
    engine.signals.subscribe(lambda name, facts: say(name) if name in ("leading", "not_leading") else None)
    # Once it has lost its term it isn't to lead again before the test is over.
    engine.run(WorkerConfig(lanes=(), lead_every=timedelta(minutes=10), leader_ttl=timedelta(seconds=1)))
"""
STANDBY = WorkerConfig(lanes=(), lead_every=timedelta(milliseconds=100))


async def test_a_standby_takes_over_from_a_process_that_is_frozen(
    url: str, engine: Engine, client: Client, heard: Heard, watcher: Session
) -> None:
    with Script(FROZEN_LEADER, url) as frozen:
        assert await asyncio.to_thread(frozen.line) == "leading"
        frozen.process.send_signal(signal.SIGSTOP)
        due = client.enqueue("polarity", delay=timedelta(milliseconds=10)).id
        watcher.execute(ORPHAN)
        async with working(engine, STANDBY):
            await heard.until("leading")
            await heard.until("promoted")
            await heard.until("reaped")
        assert client.show(due).state is JobState.QUEUED


async def test_a_standby_fires_what_a_frozen_leader_was_about_to_fire(
    url: str, engine: Engine, client: Client, heard: Heard, watcher: Session
) -> None:
    """The frozen leader has the schedule's row locked."""
    client.put_schedule(Schedule("always", "0 0 1 1 *", "tool_run"))
    watcher.execute("UPDATE kappa.schedules SET next_at = now() - interval '1 second'")
    with Script(FROZEN_LEADER, url) as frozen:
        said = {await asyncio.to_thread(frozen.line), await asyncio.to_thread(frozen.line)}
        assert said == {"leading", "needed"}
        frozen.process.send_signal(signal.SIGSTOP)
        async with working(engine, STANDBY):
            await heard.until("fired")


ACTS = """
    CREATE TABLE acts (pid int);
    CREATE FUNCTION note_act() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN INSERT INTO acts VALUES (pg_backend_pid()); RETURN NULL; END $$;
    CREATE TRIGGER jobs_note_act AFTER UPDATE ON kappa.jobs FOR EACH ROW EXECUTE FUNCTION note_act();
"""


@pytest.mark.parametrize("ended", [True, False], ids=["its sessions were ended", "its sessions live"])
async def test_a_leader_that_was_frozen_and_goes_on_stops_to_lead_before_it_writes_anything(
    url: str, engine: Engine, client: Client, heard: Heard, watcher: Session, *, ended: bool
) -> None:
    watcher.execute(ACTS)
    with Script(FROZEN_LEADER, url) as frozen:
        assert await asyncio.to_thread(frozen.line) == "leading"
        its_sessions = sessions(watcher).keys()
        due = client.enqueue("polarity", delay=timedelta(seconds=2)).id  # it knows of that
        frozen.process.send_signal(signal.SIGSTOP)
        if ended:
            async with working(engine, STANDBY):
                await heard.until("promoted")
        else:
            usurp(watcher)
            watcher.execute("SELECT pg_sleep_until(run_at) FROM kappa.jobs")
        frozen.process.send_signal(signal.SIGCONT)
        assert await asyncio.to_thread(frozen.line) == "not_leading"
    assert client.show(due).state is (JobState.QUEUED if ended else JobState.SCHEDULED)
    assert its_sessions.isdisjoint(row[0] for row in watcher.execute("SELECT pid FROM acts"))


async def test_a_worker_that_may_not_lead_never_does(url: str, engine: Engine, heard: Heard, watcher: Session) -> None:
    async with working(engine, WorkerConfig(lead=False, lead_every=timedelta(milliseconds=10))):
        async with standing(Node(url, "a")) as node:
            await node.heard.until("leading")
            await until_acted(watcher, "a")
        assert sessions(watcher).keys() <= {node.diary.pid}
    assert heard.all("leading") == []


async def test_a_service_that_waits_for_a_lock_stops_neither_the_others_nor_the_term(
    engine: Engine, client: Client, heard: Heard, url: str
) -> None:
    """What nobody approved in time can't be moved to the history while somebody has that locked."""
    with psycopg.connect(url) as other:
        unapproved = run(other, jobs.enqueue(NewJob("ingestion", "null", approval=True)))
        assert unapproved is not None
        other.execute("UPDATE kappa.jobs SET expires_at = now()")
        other.commit()
        other.execute("LOCK TABLE kappa.finished_jobs")
        async with working(engine, WorkerConfig(lanes=())):
            await heard.until("leading")
            await asyncio.to_thread(wait_until_blocked, other)
            due = client.enqueue("ingestion", delay=timedelta(milliseconds=1)).id
            await heard.until("promoted")
            other.rollback()
            await asyncio.to_thread(eventually, lambda: client.show(unapproved).state is JobState.CANCELLED)
            assert not heard.all("not_leading")
    assert client.show(due).state is JobState.QUEUED
