"""The fleet's statements find their rows by index in a crowded database, whatever the statistics say."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from kappa.engine.fleet import store
from kappa.engine.fleet.store import Ending, HeldTask, Update
from kappa.engine.store import maintenance
from kappa.pg.ops import Op, run
from tests.conftest import Server
from tests.engine.fleet.floor import asks, open_lane
from tests.engine.test_plans import Node, Plans, Session

QUEUED = 100_000
RUNNING = 10_000
NEEDY = 2_000
CLAIMS = 200_000
"""Those of a day. No statement here reads the history of jobs, so there is none."""
WINDOW = 1_000

FILL = (
    "ALTER TABLE kappa.jobs SET (autovacuum_enabled = off)",
    f"""INSERT INTO kappa.jobs (lane, kind, state, submitted_by, priority, max_attempts)
        SELECT 'far', 'crunch', 'queued', 'ada', n % 5 - 2, 3 FROM generate_series(1, {QUEUED}) AS n""",
    f"""WITH made AS (INSERT INTO kappa.jobs (lane, kind, state, submitted_by, priority)
                      SELECT 'far', 'crunch', 'queued', 'bob', 9 FROM generate_series(1, {NEEDY}) RETURNING id)
        INSERT INTO kappa.job_needs (job_id, cores, labels) SELECT id, 16, '{{gpu}}' FROM made""",
    """INSERT INTO kappa.jobs (lane, kind, state, submitted_by)
       SELECT 'far', 'crunch', 'queued', 'submitter ' || n FROM generate_series(1, 200) AS n""",
    f"""INSERT INTO kappa.jobs (lane, kind, state, lease_owner, lease_token, lease_until, max_attempts)
        SELECT 'far', 'crunch', 'running', 'fleet:1:w', nextval('kappa.lease_tokens'), now() + interval '1 hour', 3
          FROM generate_series(1, {RUNNING})""",
    """INSERT INTO kappa.fleet_tasks (job_id, token, owner, request_id)
       SELECT id, lease_token, lease_owner, 'request-' || id FROM kappa.jobs WHERE state = 'running'""",
    f"""INSERT INTO kappa.fleet_tasks (job_id, token, owner, request_id, settled_at, state)
        SELECT -n, n, 'fleet:1:w' || n % 1000, 'old-' || n, now(), 'succeeded'
          FROM generate_series(1, {CLAIMS}) AS n""",
)


@pytest.fixture(scope="module")
def crowded(server: Server, template: str) -> Iterator[str]:
    url = server.create(template)
    with psycopg.connect(url, autocommit=True) as filling:
        open_lane(filling, slots=1_000_000)
        for statement in FILL:
            filling.execute(statement.encode())
        run(filling, store.claim([asks("first")], ["crunch"]))  # counts what runs
    yield url
    server.drop(url)


@pytest.fixture(scope="module", params=["without statistics", "with statistics"])
def session(server: Server, crowded: str, request: pytest.FixtureRequest) -> Iterator[Session]:
    with server.superuser(crowded) as opened:
        if request.param == "with statistics":
            opened.execute("ANALYZE kappa.jobs, kappa.fleet_tasks, kappa.job_needs, kappa.fleet_lanes")
        yield opened


@pytest.fixture(scope="module")
def plans(session: Session) -> Plans:
    return Plans(session)


def assert_by_index(nodes: list[Node], most: float) -> None:
    for node in nodes:
        if node.table in ("jobs", "fleet_tasks", "job_needs") or node.table.startswith("finished_jobs"):
            assert node.kind not in ("Seq Scan", "Bitmap Heap Scan"), node
            assert node.visited <= most, node


def held(session: Session, count: int) -> list[HeldTask]:
    found = session.execute(
        "SELECT id, lease_token FROM kappa.jobs WHERE state = 'running' AND attempt_started_at IS NULL"
        " ORDER BY id LIMIT %s",
        [count],
    )
    return [HeldTask(row[0], row[1], "fleet:1:w") for row in found]


@pytest.mark.parametrize("callers", [1, 64])
def test_a_claim_reads_what_it_takes_and_one_look(plans: Plans, callers: int) -> None:
    nodes = plans.of(store.claim([asks(f"w{n}") for n in range(callers)], ["crunch"]))
    # The look for jobs without a submitter; of the jobs that need more than a caller has, none is taken.
    assert_by_index(nodes, WINDOW + NEEDY)
    used = {node.index for node in nodes if node.table == "jobs" and node.index and node.rows}
    assert used == {"jobs_fair", "jobs_queued", "jobs_pkey"}
    changed = [node.rows for node in nodes if node.kind == "ModifyTable" and node.table == "jobs"]
    assert sum(changed) == callers


def test_a_claim_that_finds_the_lane_full_reads_what_runs(plans: Plans, session: Session) -> None:
    with session.transaction(force_rollback=True):
        session.execute("UPDATE kappa.lanes SET max_slots = %s WHERE name = 'far'", [RUNNING + 2])
        nodes = plans.of(store.claim([asks(f"w{n}") for n in range(64)], ["crunch"]))
    assert_by_index(nodes, RUNNING + 1)


def test_a_repeated_request_reads_its_tasks(plans: Plans, session: Session) -> None:
    found = session.execute("SELECT owner, request_id FROM kappa.fleet_tasks WHERE job_id > 0 LIMIT 60").fetchall()
    callers = [asks()._replace(owner=owner, request_id=request) for owner, request in found]
    nodes = plans.of(store.claim(callers, ["crunch"]))
    assert_by_index(nodes, 60)


def test_candidates_are_read_in_order_and_none_is_sorted(plans: Plans, session: Session) -> None:
    query = store.sql["claim"]
    op = Op(query, store.claim([asks(most=50)], ["crunch"]).params, list)
    nodes = plans.of(op)
    assert not [node for node in nodes if node.kind == "Sort" and node.rows > WINDOW]
    fair = [node for node in nodes if node.index == "jobs_fair"]
    assert max(node.visited for node in fair) <= NEEDY + 50


@pytest.mark.parametrize("count", [1, 500])
@pytest.mark.parametrize("what", ["beat", "update", "succeed", "fail", "fail again"])
def test_what_workers_say_finds_its_rows_by_index(plans: Plans, session: Session, what: str, count: int) -> None:
    mine = held(session, count)
    ops: dict[str, Op[Any]] = {
        "beat": store.beat(mine),
        "update": store.update([Update(one, True, 1.0, 2.0, "on", "{}") for one in mine]),
        "succeed": store.settle([Ending(one, "succeeded", "1") for one in mine]),
        "fail": store.settle([Ending(one, "failed", None, "no") for one in mine]),
        "fail again": store.settle([Ending(one._replace(id=-one.token, owner="w"), "failed") for one in mine]),
    }
    assert_by_index(plans.of(ops[what]), count)


def test_the_dead_are_found_by_index(plans: Plans, session: Session) -> None:
    with session.transaction(force_rollback=True):
        session.execute(
            """UPDATE kappa.jobs SET lease_owner = NULL, lease_token = NULL, lease_until = NULL
                WHERE id IN (SELECT id FROM kappa.jobs WHERE state = 'running' LIMIT 300)"""
        )
        nodes = plans.of(maintenance.bury(200))
    assert_by_index(nodes, 300)


@pytest.fixture(params=["never looked at", "seen when it was empty"])
def young(server: Server, template: str, request: pytest.FixtureRequest) -> Iterator[Session]:
    """A session that claimed, and so has its plans, before there was anything; now there are ten thousand tasks."""
    url = server.create(template)
    with server.superuser(url) as session:
        if request.param == "seen when it was empty":
            session.execute("VACUUM ANALYZE kappa.jobs, kappa.fleet_tasks, kappa.job_needs, kappa.fleet_lanes")
        open_lane(session, slots=1_000_000)
        for _ in range(10):
            run(session, store.claim([asks(f"w{n}") for n in range(64)], ["crunch"]))
            run(session, store.beat([HeldTask(1, 1, "nobody")]))
            run(session, store.settle([Ending(HeldTask(1, 1, "nobody"), "succeeded", "1")]))
            run(session, store.update([Update(HeldTask(1, 1, "nobody"), True, 1.0, 2.0, "on", "{}")]))
        with psycopg.connect(url, autocommit=True) as filling:
            for statement in FILL[:1] + FILL[4:6]:
                filling.execute(statement.encode())
        yield session
    server.drop(url)


@pytest.mark.parametrize("what", ["claim", "beat", "update", "succeed"])
def test_plans_of_the_first_hour_serve_when_there_are_ten_thousand_tasks(young: Session, what: str) -> None:
    mine = held(young, 10)
    ops: dict[str, Op[Any]] = {
        "claim": store.claim([asks(f"w{n}") for n in range(64)], ["nothing"]),
        "beat": store.beat(mine),
        "update": store.update([Update(one, True, 1.0, 2.0, "on", "{}") for one in mine]),
        "succeed": store.settle([Ending(one, "succeeded", "1") for one in mine]),
    }
    assert_by_index(Plans(young).of(ops[what]), 64)
