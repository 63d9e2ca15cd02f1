"""The short claim of a lane that was just woken gives what the whole one would have given."""

from dataclasses import dataclass

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kappa.engine.model import Claimed
from kappa.engine.store import jobs
from kappa.engine.store.jobs import Exchanged
from kappa.pg.ops import Op, run
from tests.engine.hands import Connection, outcome, put, rival_with, wait_until_blocked

LANE, KINDS = "interactive", ["ingestion", "polarity"]

PUT = """
    INSERT INTO kappa.jobs (lane, kind, state, priority, attempt, max_attempts, claims, attempt_started_at, started_at,
                            lease_owner, lease_token, lease_until, waiting, cancel_reason, timeout)
    SELECT %(lane)s, %(kind)s, %(state)s::kappa.job_state, %(priority)s, %(attempt)s, 5, %(attempt)s,
           CASE WHEN %(state)s::kappa.job_state = 'running' THEN now() END, now(),
           CASE WHEN %(leased)s THEN 'other' END, CASE WHEN %(leased)s THEN nextval('kappa.lease_tokens') END,
           CASE WHEN %(leased)s THEN now() + interval '1 minute' END, %(waiting)s, %(cancelled)s, %(timeout)s::interval
"""


@dataclass(frozen=True)
class There:
    """A job that a claim finds."""

    state: str
    lane: str
    kind: str
    priority: int
    attempt: int
    leased: bool
    waiting: bool
    cancelled: str | None
    timeout: str | None

    @property
    def columns(self) -> dict[str, object]:
        running = self.state == "running"
        return vars(self) | {"leased": running and self.leased, "waiting": running and self.waiting}


jobs_there = st.lists(
    st.builds(
        There,
        state=st.sampled_from(["queued", "queued", "queued", "running"]),
        lane=st.sampled_from([LANE, LANE, LANE, "tools"]),
        kind=st.sampled_from(["ingestion", "polarity", "ingest_image"]),
        priority=st.integers(-2, 2),
        attempt=st.integers(0, 3),
        leased=st.sampled_from([True, True, False]),
        waiting=st.booleans(),
        cancelled=st.sampled_from([None, None, "enough"]),
        timeout=st.sampled_from([None, "90 seconds"]),
    ),
    max_size=8,
)


def given_by(connection: Connection, op: Op[Exchanged]) -> tuple[list[Claimed], bool]:
    """What a claim gives, with its lease's token as 0 and later. Nothing of it is kept."""
    with connection.transaction(force_rollback=True):
        claimed, lost, full = run(connection, op)
    assert not lost
    own = {job.token for job in claimed}
    assert len(own) <= 1
    return [
        job._replace(token=0, token_floor=0 if job.token_floor in own else job.token_floor) for job in sorted(claimed)
    ], full


@settings(
    max_examples=150, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(
    there=jobs_there, slots=st.integers(1, 4), enabled=st.sampled_from([True, True, True, False]),
    executor=st.sampled_from(["async", "async", "thread", "fleet"]), capacity=st.integers(1, 6),
    batch=st.integers(0, 2),
)  # fmt: skip
def test_it_gives_what_the_whole_claim_gives(
    connection: Connection, there: list[There], slots: int, enabled: bool, executor: str, capacity: int, batch: int
) -> None:
    with connection.transaction(force_rollback=True):
        for job in there:
            connection.execute(PUT, job.columns)
        if batch:  # taken by another worker under one lease
            connection.execute("UPDATE kappa.lanes SET max_slots = 4, executor = 'async' WHERE name = %s", [LANE])
            run(connection, jobs.claim(LANE, "other", batch, KINDS, light_kinds=KINDS))
        connection.execute(
            "UPDATE kappa.lanes SET max_slots = %s, enabled = %s, executor = %s WHERE name = %s",
            [slots, enabled, executor, LANE],
        )
        whole = given_by(connection, jobs.exchange([], LANE, "me", capacity, KINDS))
        short = given_by(connection, jobs.claim_at_rest(LANE, "me", capacity, KINDS))
    assert short == whole


def test_a_lane_that_is_not_there_gives_nothing(connection: Connection) -> None:
    assert run(connection, jobs.claim_at_rest("nowhere", "me", 3, KINDS)) == Exchanged([], set(), False)


def test_two_claimers_of_a_lane_at_rest_share_its_slots(url: str, connection: Connection) -> None:
    made = [put(connection) for _ in range(5)]
    with psycopg.connect(url) as first:
        one = run(first, jobs.claim_at_rest(LANE, "one", 1, KINDS))
        with rival_with(lambda own: run(own, jobs.claim_at_rest(LANE, "two", 5, KINDS)), url) as begun:
            wait_until_blocked(connection)
            first.commit()
            two = outcome(begun)
    assert [job.id for job in one.claimed] == made[:1]
    assert (not one.full, [job.id for job in two.claimed], two.full) == (True, made[1:2], True)  # it has two slots


@pytest.mark.parametrize("kinds", [["polarity"], ["nothing"]])
def test_a_kind_without_a_handler_here_is_left_for_others(connection: Connection, kinds: list[str]) -> None:
    put(connection)
    assert run(connection, jobs.claim_at_rest(LANE, "me", 3, kinds)).claimed == []
