"""Every statement of the hot paths finds its rows by index, whatever the statistics say.

The plans are those of the real statements, taken by auto_explain while they run, also from inside of functions, in a
database with a long history and many jobs that are due later. Each runs in a transaction that is undone.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from kappa.engine import JobState
from kappa.engine.store import insight, jobs, lanes, maintenance
from kappa.engine.store.jobs import Finish, NewJob, PutBack
from kappa.pg.ops import Op, run
from kappa.pg.queries import Row
from tests.conftest import Server

Session = Connection[Row]

HISTORY = 1_000_000
SCHEDULED = 100_000
QUEUED = 8_000
RUNNING = 400
RAN_OUT = 25
UNAPPROVED = 60
EXPIRED = 10
LANES = ("interactive", "maintenance", "system", "tools")

FILL = (
    "UPDATE kappa.lanes SET executor = 'async', max_slots = 1000",
    "ALTER TABLE kappa.jobs SET (autovacuum_enabled = off)",
    f"""INSERT INTO kappa.finished_jobs (id, lane, kind, state, priority, payload, created_at, max_attempts, attempt,
                                         finished_at, keep_until)
        SELECT n, 'tools', 'tool_run', 'succeeded', 0, '{{"n": 1}}', now(), 1, 1, now(),
               now() + interval '7 days' * n / {HISTORY}
          FROM generate_series(1, {HISTORY}) AS n""",
    f"""INSERT INTO kappa.jobs (id, lane, kind, state, run_at, dedup_key, max_attempts)
        SELECT {HISTORY} + n, l.name, l.kinds[1], 'scheduled', now() + interval '1 day' + n * interval '1 second',
               CASE WHEN n % 10 = 0 THEN 'later ' || n END, 3
          FROM generate_series(1, {SCHEDULED}) AS n
          JOIN (SELECT row_number() OVER (ORDER BY name) - 1 AS place, * FROM kappa.lanes) AS l ON l.place = n % 4""",
    f"""INSERT INTO kappa.jobs (id, lane, kind, state, priority, max_attempts)
        SELECT 2 * {HISTORY} + n, l.name, l.kinds[1], 'queued', n % 5 - 2, 3
          FROM generate_series(1, {QUEUED}) AS n
          JOIN (SELECT row_number() OVER (ORDER BY name) - 1 AS place, * FROM kappa.lanes) AS l ON l.place = n % 4""",
    f"""INSERT INTO kappa.jobs (id, lane, kind, state, lease_owner, lease_token, lease_until, max_attempts)
        SELECT 3 * {HISTORY} + n, 'tools', 'tool_run', 'running', 'a', nextval('kappa.lease_tokens'),
               now() + CASE WHEN n <= {RAN_OUT} THEN interval '-1 second' ELSE interval '1 hour' END, 3
          FROM generate_series(1, {RUNNING}) AS n""",
    f"""INSERT INTO kappa.jobs (id, lane, kind, state, expires_at)
        SELECT 4 * {HISTORY} + n, 'system', 'restore', 'awaiting_approval',
               now() + CASE WHEN n <= {EXPIRED} THEN interval '-1 second' ELSE interval '1 day' END
          FROM generate_series(1, {UNAPPROVED}) AS n""",
)


@dataclass(frozen=True)
class Node:
    """One node of a plan that was carried out."""

    kind: str
    table: str
    index: str
    rows: float
    """Rows that came out of it, in all its loops."""
    visited: float
    """The same and those that it read and threw away."""


class Plans:
    """Runs statements and keeps the plans that the server tells of."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._notices: list[str] = []
        session.execute("LOAD 'auto_explain'")
        for setting in ("log_nested_statements = on", "log_analyze = on", "log_timing = off", "log_format = json"):
            session.execute(f"SET auto_explain.{setting}".encode())
        session.add_notice_handler(lambda notice: self._notices.append(notice.message_primary or ""))

    def of(self, op: Op[Any]) -> list[Node]:
        """What each node of each plan did while the statement ran. Nothing of it is kept."""
        self._notices.clear()
        with self._session.transaction(force_rollback=True):
            self._session.execute("SET LOCAL client_min_messages = log")
            self._session.execute("SET LOCAL auto_explain.log_min_duration = 0")
            self._session.execute(op.query.sql, op.params, prepare=True, binary=op.binary)
            self._session.execute("SET LOCAL auto_explain.log_min_duration = -1")
        told = [text.partition("plan:\n")[2] for text in self._notices if "plan:\n" in text]
        nodes = [node for text in told for node in walk(json.loads(text)["Plan"])]
        assert nodes, "no plan was told of"
        return nodes


def walk(plan: dict[str, Any]) -> Iterator[Node]:
    loops = plan.get("Actual Loops", 0)
    rows = plan.get("Actual Rows", 0) * loops
    thrown = sum(plan.get(f"Rows Removed by {what}", 0) for what in ("Filter", "Index Recheck")) * loops
    yield Node(plan["Node Type"], plan.get("Relation Name", ""), plan.get("Index Name", ""), rows, rows + thrown)
    for inner in plan.get("Plans", ()):
        yield from walk(inner)


@pytest.fixture(scope="module")
def crowded(server: Server, template: str) -> Iterator[str]:
    """The URL of a database with a long history, filled once for all tests here."""
    url = server.create(template)
    with psycopg.connect(url, autocommit=True) as filling:
        for statement in FILL:
            filling.execute(statement.encode())
        filling.execute("VACUUM kappa.finished_jobs")
    yield url
    server.drop(url)


@pytest.fixture(scope="module", params=["without statistics", "with statistics"])
def statistics(crowded: str, request: pytest.FixtureRequest) -> str:
    with psycopg.connect(crowded, autocommit=True) as connection:
        tables = connection.execute(
            """SELECT relname FROM pg_class WHERE relnamespace = 'kappa'::regnamespace AND relkind IN ('r', 'p')
                  AND (relname = 'jobs' OR relname LIKE 'finished_jobs%')"""
        ).fetchall()
        if request.param == "with statistics":
            connection.execute("ANALYZE kappa.jobs, kappa.finished_jobs")
        else:
            for (table,) in tables:
                connection.execute("SELECT pg_clear_relation_stats('kappa', %s)", [table])
                connection.execute(
                    """SELECT pg_clear_attribute_stats('kappa', tablename::text, attname::text, inherited)
                         FROM pg_stats WHERE schemaname = 'kappa' AND tablename = %s""",
                    [table],
                )
    return request.param


@pytest.fixture(params=["auto", "force_generic_plan"])
def session(server: Server, crowded: str, statistics: str, request: pytest.FixtureRequest) -> Iterator[Session]:
    with server.superuser(crowded) as opened:  # who alone may load auto_explain
        opened.execute("SELECT set_config('plan_cache_mode', %s, false)", [request.param])
        yield opened


@pytest.fixture
def plans(session: Session) -> Plans:
    return Plans(session)


def held(session: Session, count: int) -> list[tuple[int, int]]:
    """Jobs under a lease, with their tokens."""
    found = session.execute(
        "SELECT id, lease_token FROM kappa.jobs WHERE state = 'running' ORDER BY id LIMIT %s", [count]
    )
    return [(row[0], row[1]) for row in found]


def assert_by_index(nodes: list[Node], at_most: float) -> None:
    """No table of jobs is read through, and not many more rows are read than are wanted."""
    of_jobs = [node for node in nodes if node.table == "jobs" or node.table.startswith("finished_jobs")]
    for node in of_jobs:
        # An empty partition may be read through: that is a look at nothing.
        assert node.kind != "Seq Scan" or (node.table != "jobs" and node.visited == 0), node
        assert node.visited <= at_most, node


def changed(nodes: list[Node]) -> list[float]:
    return [node.rows for node in nodes if node.kind == "ModifyTable" and node.table == "jobs"]


def test_the_database_is_as_crowded_as_it_should_be(session: Session) -> None:
    found = session.execute("SELECT state::text, count(*) FROM kappa.all_jobs GROUP BY state").fetchall()
    assert dict(found) == {
        "succeeded": HISTORY,
        "scheduled": SCHEDULED,
        "queued": QUEUED,
        "running": RUNNING,
        "awaiting_approval": UNAPPROVED,
    }


@pytest.mark.parametrize("capacity", [1, 50, 500])
@pytest.mark.parametrize("lane", LANES)
def test_a_claim_reads_what_it_takes_and_sorts_nothing(plans: Plans, lane: str, capacity: int) -> None:
    nodes = plans.of(jobs.claim(lane, "b", capacity))
    taken = {node.index for node in nodes if node.kind in ("Index Scan", "Index Only Scan") and node.table == "jobs"}
    assert taken == {"jobs_fair", "jobs_queued", "jobs_running"}
    assert not [node for node in nodes if "Sort" in node.kind]
    assert_by_index(nodes, at_most=max(capacity, RUNNING))
    assert changed(nodes) == [capacity]


@pytest.mark.parametrize("capacity", [1, 50, 500])
@pytest.mark.parametrize("lane", LANES)
def test_a_claim_of_a_lane_at_rest_reads_what_it_takes_and_sorts_nothing(
    plans: Plans, lane: str, capacity: int
) -> None:
    nodes = plans.of(jobs.claim_at_rest(lane, "b", capacity, KINDS))
    taken = {node.index for node in nodes if node.kind in ("Index Scan", "Index Only Scan") and node.table == "jobs"}
    assert taken == {"jobs_fair", "jobs_queued", "jobs_running"}
    assert not [node for node in nodes if "Sort" in node.kind]
    assert_by_index(nodes, at_most=max(capacity, RUNNING))
    assert changed(nodes) == [capacity]


@pytest.mark.parametrize("capacity", [1, 50])
def test_a_claim_in_turn_reads_a_row_or_two_of_each_submitter_and_sorts_nothing(
    plans: Plans, session: Session, capacity: int
) -> None:
    with session.transaction(force_rollback=True):
        session.execute(
            "UPDATE kappa.jobs SET submitted_by = 'name ' || id % 3 WHERE lane = 'tools' AND state = 'queued'"
        )
        nodes = plans.of(jobs.claim("tools", "b", capacity))
        assert not [node for node in nodes if "Sort" in node.kind]
        assert_by_index(nodes, at_most=RUNNING)
        assert changed(nodes) == [capacity]


def test_a_claim_of_some_kinds_reads_by_index(plans: Plans) -> None:
    nodes = plans.of(jobs.claim("tools", "b", 20, kinds=["tool_run"]))
    assert not [node for node in nodes if "Sort" in node.kind]
    assert_by_index(nodes, at_most=RUNNING)
    assert changed(nodes) == [20]


def test_a_claim_takes_no_more_than_there_are_free_slots(plans: Plans, session: Session) -> None:
    with session.transaction(force_rollback=True):
        session.execute("UPDATE kappa.lanes SET max_slots = %s WHERE name = 'tools'", [RUNNING + 3])
        nodes = plans.of(jobs.claim("tools", "b", 500))
    assert changed(nodes) == [3]
    assert_by_index(nodes, at_most=RUNNING)


def test_a_claim_adopts_no_more_than_was_asked_for(plans: Plans, session: Session) -> None:
    with session.transaction(force_rollback=True):
        assert run(session, maintenance.reap(None)) == RAN_OUT
        nodes = plans.of(jobs.claim("tools", "b", 10))
    # Adoption fills the claim, so that no queued job is looked for. What runs is counted beforehand.
    assert changed(nodes) == [10]
    assert not [node for node in nodes if node.index == "jobs_queued"]
    assert_by_index(nodes, at_most=RUNNING)


def test_a_claim_begins_at_its_floor(plans: Plans, session: Session) -> None:
    with session.transaction(force_rollback=True):
        claimed = run(session, jobs.claim("tools", "b", 500))
        last = max(claimed, key=lambda job: (-job.priority, job.id))
        floor = (-last.priority, last.id)
        nodes = plans.of(jobs.claim("tools", "b", 10, floor=floor, floor_token=last.token))
    assert not [node for node in nodes if "Sort" in node.kind]
    assert_by_index(nodes, at_most=500)
    queued = [node for node in nodes if node.index == "jobs_queued"]
    assert [node.visited for node in queued] == [10]


KINDS = ["ingestion", "projection", "restore", "tool_run"]


@pytest.mark.parametrize("capacity", [1, 50, 500])
def test_a_claim_of_a_batch_reads_what_it_takes_and_changes_no_job(
    plans: Plans, session: Session, capacity: int
) -> None:
    with session.transaction(force_rollback=True):
        first = run(session, jobs.claim("system", "b", 100, light_kinds=KINDS))
        assert all(job.light for job in first)
        nodes = plans.of(jobs.claim("system", "c", capacity, light_kinds=KINDS))
        assert_by_index(nodes, at_most=capacity + len(first))
        assert not [node for node in nodes if "Sort" in node.kind]
        assert changed(nodes) == []
        nodes = plans.of(jobs.settle_succeeded([(job.id, job.token) for job in first]))
        assert_by_index(nodes, at_most=len(first))
        assert changed(nodes) == [len(first)]


def test_the_reaper_reads_the_running_rows_and_no_others(plans: Plans) -> None:
    nodes = plans.of(maintenance.reap(None))
    assert_by_index(nodes, at_most=RUNNING)
    assert changed(nodes) == [RAN_OUT]


def test_the_reaper_takes_no_more_than_a_batch(plans: Plans) -> None:
    nodes = plans.of(maintenance.reap(None, limit=7))
    assert_by_index(nodes, at_most=RUNNING)
    assert changed(nodes) == [7]


def test_promotion_reads_what_is_due(plans: Plans, session: Session) -> None:
    (first,) = session.execute("SELECT min(run_at) FROM kappa.jobs").fetchall()[0]
    nodes = plans.of(maintenance.promote(first + timedelta(seconds=59), limit=30))
    assert_by_index(nodes, at_most=60)
    assert changed(nodes) == [30]


def test_promotion_of_nothing_reads_nothing(plans: Plans) -> None:
    assert_by_index(plans.of(maintenance.promote(None)), at_most=0)


def test_the_next_due_time_is_one_row(plans: Plans) -> None:
    assert_by_index(plans.of(maintenance.next_due(None)), at_most=1)


def test_expiry_reads_what_is_over(plans: Plans) -> None:
    nodes = plans.of(maintenance.expire(None))
    assert_by_index(nodes, at_most=EXPIRED)
    assert changed(nodes) == [EXPIRED]


def test_a_look_at_every_lane_reads_a_row_or_two_of_each(plans: Plans) -> None:
    nodes = plans.of(lanes.look(LANES))
    assert_by_index(nodes, at_most=2 * len(LANES))


HELD = 200


def words(mine: list[tuple[int, int]]) -> dict[str, Op[Any]]:
    """All that an owner writes of its jobs."""
    return {
        "renew": jobs.renew(mine),
        "mark": jobs.mark_started(mine),
        "release": jobs.release(mine),
        "succeed": jobs.settle_succeeded(mine),
        "settle": jobs.settle([Finish(job, token, JobState.FAILED) for job, token in mine]),
        "put back": jobs.put_back([PutBack(job, token, 5.0) for job, token in mine]),
        "progress": jobs.progress([(job, token, 1.0, 2.0, "on") for job, token in mine]),
    }


WORDS = ("renew", "mark", "release", "succeed", "settle", "put back", "progress")


@pytest.mark.parametrize("count", [1, HELD])
@pytest.mark.parametrize("what", WORDS)
def test_what_an_owner_writes_finds_its_rows_by_index(plans: Plans, session: Session, what: str, count: int) -> None:
    nodes = plans.of(words(held(session, count))[what])
    # Through the primary key, or through the index of what runs.
    assert_by_index(nodes, at_most=RUNNING)
    assert changed(nodes) == [count]


@pytest.fixture(params=["never looked at", "seen when it was empty"])
def young(server: Server, template: str, request: pytest.FixtureRequest) -> Iterator[Session]:
    """A session that has its plans from before there was anything; now there are many jobs, and many run."""
    url = server.create(template)
    with server.superuser(url) as session:
        if request.param == "seen when it was empty":
            session.execute("VACUUM ANALYZE kappa.jobs, kappa.finished_jobs, kappa.lanes")
        for op in words([(1, 1)]).values():
            run(session, op)
        with psycopg.connect(url, autocommit=True) as filling:
            for statement in FILL[:2] + FILL[4:6]:
                filling.execute(statement.encode())
        yield session
    server.drop(url)


@pytest.mark.parametrize("what", WORDS)
def test_plans_of_the_first_hour_serve_when_there_are_many_jobs(young: Session, what: str) -> None:
    nodes = Plans(young).of(words(held(young, 10))[what])
    assert_by_index(nodes, at_most=10)
    assert changed(nodes) == [10]


@pytest.mark.parametrize("what", WORDS)
def test_what_an_owner_writes_of_a_batch_reads_its_jobs_and_no_others(young: Session, what: str) -> None:
    claimed = run(young, jobs.claim("system", "b", 10, light_kinds=KINDS))
    assert [job.light for job in claimed] == [True] * 10
    nodes = Plans(young).of(words([(job.id, job.token) for job in claimed])[what])
    assert_by_index(nodes, at_most=10)
    assert max(changed(nodes)) == 10  # what gives no rows back shows none


@pytest.mark.parametrize("what", ["checkpoint", "wait", "wait no more", "cancel", "cancel running"])
def test_what_concerns_one_job_reads_its_row(plans: Plans, session: Session, what: str) -> None:
    (mine,) = held(session, 1)
    ops: dict[str, Op[Any]] = {
        "checkpoint": jobs.checkpoint(*mine, "1"),
        "wait": jobs.release_slot(*mine),
        "wait no more": jobs.reacquire_slot(*mine),
        "cancel": jobs.cancel_before_start(HISTORY + 5, [JobState.SCHEDULED], "no more"),
        "cancel running": jobs.request_cancel(mine[0], "no more"),
    }
    assert_by_index(plans.of(ops[what]), at_most=RUNNING if what == "wait no more" else 1)


def test_approval_and_priority_read_no_other_jobs(plans: Plans) -> None:
    # Through the primary key, or through the index of what awaits approval.
    assert_by_index(plans.of(jobs.approve(4 * HISTORY + UNAPPROVED, "anna")), at_most=UNAPPROVED)
    assert_by_index(plans.of(jobs.prioritise(HISTORY + 5, 9)), at_most=1)


@pytest.mark.parametrize("job", [7, HISTORY // 2, HISTORY + 7])
def test_a_job_is_shown_by_index_wherever_it_is(plans: Plans, job: int) -> None:
    assert_by_index(plans.of(jobs.show(job)), at_most=1)


def test_enqueueing_reads_no_jobs(plans: Plans) -> None:
    assert_by_index(plans.of(jobs.enqueue(NewJob("tool_run", "null", dedup_key="new"))), at_most=1)
    assert_by_index(plans.of(jobs.enqueue_together([NewJob(kind, "null") for kind in KINDS])), at_most=len(KINDS))


def test_a_dedup_key_is_found_by_index(plans: Plans) -> None:
    assert_by_index(plans.of(jobs.enqueued_before(NewJob("tool_run", "null", dedup_key="later 500"))), at_most=1)


def test_children_are_found_by_index(plans: Plans) -> None:
    assert_by_index(plans.of(jobs.children(17, ["a", "b"])), at_most=1)


def test_the_newest_jobs_are_listed_without_reading_the_history(plans: Plans) -> None:
    assert_by_index(plans.of(jobs.list_jobs(limit=50)), at_most=51)


@pytest.mark.parametrize("later", [timedelta(0), timedelta(minutes=5)], ids=["nothing over", "minutes over"])
def test_retention_reads_no_day_but_those_that_have_begun(plans: Plans, session: Session, later: timedelta) -> None:
    (first,) = session.execute("SELECT min(keep_until) FROM kappa.finished_jobs").fetchall()[0]
    now = first - timedelta(seconds=1) + later
    begun = {f"finished_jobs_{at.astimezone(UTC):%Y%m%d}" for at in (first, now)} | {"finished_jobs_rest"}
    values = {"now": now, "limit": 1000, "ids": [1, 2, 3]}
    asking = [query for query in maintenance.sql.values() if "keep_until <=" in query.text]
    assert len(asking) >= 2
    for query in asking:
        op = Op(query, {name: values[name] for name in query.parameters}, len)
        scans = [node for node in plans.of(op) if node.kind.endswith("Scan") and node.visited]
        read = {node.table for node in scans if node.table.startswith("finished_jobs")}
        assert read <= begun, query.name


def test_depths_are_counted_by_index_and_no_further_than_asked(plans: Plans) -> None:
    assert_by_index(plans.of(insight.depths(100)), at_most=100 * len(LANES))


def test_orphans_are_counted_by_index(plans: Plans) -> None:
    assert_by_index(plans.of(insight.orphans(100)), at_most=100)


@pytest.mark.parametrize("asked", [{"states": [JobState.FAILED]}, {"submitted_by": "nobody"}], ids=["unwell", "by"])
def test_a_rare_sort_of_finished_job_is_not_looked_for_in_all_of_them(plans: Plans, asked: dict[str, Any]) -> None:
    history = [node for node in plans.of(jobs.list_jobs(**asked)) if node.table.startswith("finished_jobs")]
    assert max(node.visited for node in history) <= 100
    assert {node.kind for node in history} <= {"Index Scan", "Bitmap Heap Scan", "Seq Scan"}


@pytest.mark.parametrize("asked", [{"kinds": ["restore"]}, {"lane": "system"}, {"kinds": ["no such"]}], ids=str)
def test_a_rare_kind_or_lane_is_looked_for_in_a_stretch_of_history(
    plans: Plans, session: Session, asked: dict[str, Any]
) -> None:
    before, length = HISTORY // 2, 1000
    assert run(session, jobs.stretch(before, length)) == (before - length, before - length)
    assert_by_index(plans.of(jobs.stretch(before, length)), at_most=1)
    assert_by_index(plans.of(jobs.stretch(None, length)), at_most=1)
    assert_by_index(plans.of(jobs.list_jobs(**asked, first=before - length, before=before)), at_most=length)


def test_those_that_wait_for_approval_are_listed_without_a_look_at_history(plans: Plans) -> None:
    nodes = plans.of(jobs.list_jobs(states=[JobState.AWAITING_APPROVAL]))
    assert not [node for node in nodes if node.table.startswith("finished_jobs")]
