"""Job states: one vocabulary, guarded ways between them, and ends that never change."""

import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from kappa.engine import (
    AsyncClient,
    Client,
    Engine,
    IllegalTransition,
    JobContext,
    JobFailed,
    JobNotFound,
    JobState,
    attempt,
)
from kappa.engine.model import TRANSITIONS
from kappa.engine.store import jobs, lanes, maintenance
from kappa.engine.store.jobs import Finish, PutBack
from kappa.engine.testing import maintain
from kappa.pg.ops import Op, run
from tests.engine.hands import (
    TERMINAL,
    Connection,
    every_write_of_an_owner,
    finish,
    in_state,
    later,
    outcome,
    put,
    renew,
    rival_with,
    row,
    running_here,
    see,
    start,
    take,
    wait_until_blocked,
)

BEFORE_START = (JobState.AWAITING_APPROVAL, JobState.SCHEDULED, JobState.QUEUED)
LIVE = (*BEFORE_START, JobState.RUNNING)


def test_the_database_and_the_program_know_the_same_eight_states(connection: Connection) -> None:
    rows = connection.execute("SELECT unnest(enum_range(NULL::kappa.job_state))::text").fetchall()
    words = ["awaiting_approval", "scheduled", "queued", "running", "succeeded", "failed", "timed_out", "cancelled"]
    assert [word for (word,) in rows] == [state.value for state in JobState] == words


def test_terminal_states_are_the_four_that_have_no_way_out() -> None:
    assert tuple(state for state in JobState if state.terminal) == TERMINAL


def _every_operation(connection: Connection, job_id: int, token: int) -> dict[str, Op[Any]]:
    operations: dict[str, Op[Any]] = {
        "approve": jobs.approve(job_id, "ada"),
        "cancel": jobs.cancel_before_start(job_id, BEFORE_START, "enough"),
        "reject": jobs.cancel_before_start(job_id, [JobState.AWAITING_APPROVAL], "rejected"),
        "request_cancel": jobs.request_cancel(job_id, "enough"),
        "prioritise": jobs.prioritise(job_id, 3),
        "expire": maintenance.expire(later(connection, days=2)),
        "promote": maintenance.promote(later(connection, days=2)),
        "reap": maintenance.reap(later(connection, days=2)),
        "claim": jobs.claim("interactive", "two", 100),
        "put_back_at_once": jobs.put_back([PutBack(job_id, token)]),
        "snooze": jobs.put_back([PutBack(job_id, token, 1.0, snoozed=True)]),
    }
    for state in TERMINAL:
        operations[f"settle_{state}"] = jobs.settle([Finish(job_id, token, state)])
    return operations | every_write_of_an_owner(job_id, token)


def test_the_statements_know_every_way_of_the_table_and_no_other(connection: Connection) -> None:
    names = list(_every_operation(connection, 0, 0))
    seen: dict[JobState, set[JobState]] = {state: set() for state in JobState}
    ways_to_run: set[str] = set()
    run(connection, lanes.edit_lane("interactive", {"executor": "async"}))
    begins = [*((state, False) for state in JobState), (JobState.RUNNING, True)]
    for (state, in_batch), name in itertools.product(begins, names):
        connection.execute("DELETE FROM kappa.jobs; DELETE FROM kappa.finished_jobs; DELETE FROM kappa.batch_leases")
        if in_batch:
            put(connection, max_attempts=3)
            ((job_id, token),) = [(job.id, job.token) for job in take(connection, light_kinds=["ingestion"])]
            assert row(connection, job_id, "state") == ("queued",)
        else:
            job_id, token = in_state(connection, state)
        assert see(connection, job_id).state is state
        run(connection, _every_operation(connection, job_id, token)[name])
        after = see(connection, job_id).state
        if after is not state:
            seen[state].add(after)
            if after is JobState.RUNNING:
                ways_to_run.add(name)
    assert seen == {state: set(ways) for state, ways in TRANSITIONS.items()}
    assert ways_to_run == {"claim"}


def test_a_claim_sets_the_state_and_the_whole_lease_at_once(connection: Connection) -> None:
    job_id = put(connection)
    take(connection, owner="one")
    state, owner, token, until = row(connection, job_id, "state", "lease_owner", "lease_token", "lease_until")
    assert (state, owner) == ("running", "one")
    assert token is not None
    assert until is not None


# Approval


@pytest.fixture
def costly(engine: Engine) -> Engine:
    """An engine whose kind `ingestion` asks for approval and says what it costs."""

    @engine.job("ingestion", approval=True, estimate=lambda pages: {"dollars": pages / 10})
    def ingest(ctx: JobContext, pages: int) -> None: ...

    return engine


def test_a_job_that_asks_for_approval_shows_its_estimate_and_is_not_claimed(
    costly: Engine, client: Client, connection: Connection
) -> None:
    job = client.show(client.enqueue("ingestion", 25).id)
    assert (job.state, job.estimate) == (JobState.AWAITING_APPROVAL, {"dollars": 2.5})
    assert (job.approved_by, job.approved_at) == (None, None)
    assert take(connection) == []


def test_an_approved_job_is_queued_and_says_who_approved_it_and_when(
    costly: Engine, client: Client, connection: Connection
) -> None:
    before = later(connection)
    job_id = client.enqueue("ingestion", 25).id
    client.approve(job_id, "ada")
    job = client.show(job_id)
    assert (job.state, job.approved_by, job.expires_at) == (JobState.QUEUED, "ada", None)
    assert job.approved_at is not None
    assert before <= job.approved_at <= later(connection)
    assert [claimed.id for claimed in take(connection)] == [job_id]


def test_who_approved_it_is_still_known_when_the_job_has_ended(connection: Connection) -> None:
    job_id = put(connection, approval=True, estimate='{"dollars": 1}')
    run(connection, jobs.approve(job_id, "ada"))
    (claimed,) = take(connection)
    run(connection, jobs.settle_succeeded([(claimed.id, claimed.token)]))
    job = see(connection, job_id)
    assert (job.state, job.approved_by, job.estimate) == (JobState.SUCCEEDED, "ada", {"dollars": 1})
    assert job.approved_at is not None


def test_a_rejected_job_is_cancelled_with_that_reason(costly: Engine, client: Client) -> None:
    job_id = client.enqueue("ingestion", 25).id
    client.reject(job_id)
    job = client.show(job_id)
    assert (job.state, job.reason, job.started_at, job.attempt) == (JobState.CANCELLED, "rejected", None, 0)
    assert job.finished_at is not None


async def test_a_job_that_nobody_approves_for_24_hours_is_cancelled_as_expired(costly: Engine, client: Client) -> None:
    job_id = client.enqueue("ingestion", 25).id
    await maintain(costly, later=timedelta(hours=23, minutes=59))
    assert client.show(job_id).state is JobState.AWAITING_APPROVAL
    await maintain(costly, later=timedelta(hours=24, seconds=1), only=lambda name: name == "expiry")
    job = client.show(job_id)
    assert (job.state, job.reason, job.estimate) == (JobState.CANCELLED, "expired", {"dollars": 2.5})


def test_how_long_a_job_waits_for_approval_is_a_setting(costly: Engine, client: Client, connection: Connection) -> None:
    connection.execute("UPDATE kappa.engine_settings SET approval_wait = '1 hour'")
    job = client.show(client.enqueue("ingestion", 25).id)
    assert job.expires_at is not None
    assert job.expires_at - job.created_at == timedelta(hours=1)


def test_a_job_can_not_be_approved_after_its_time_even_before_it_is_expired(connection: Connection) -> None:
    job_id = put(connection, approval=True)
    assert not run(connection, jobs.approve(job_id, "ada", now=later(connection, hours=25)))
    assert see(connection, job_id).state is JobState.AWAITING_APPROVAL


def test_a_request_may_bring_its_approval_with_it(costly: Engine, client: Client) -> None:
    job = client.show(client.enqueue("ingestion", 25, auto_approve="ada").id)
    assert (job.state, job.approved_by, job.expires_at) == (JobState.QUEUED, "ada", None)
    assert job.approved_at is not None


def test_a_kind_that_asks_for_no_approval_is_queued_at_once(client: Client) -> None:
    job = client.show(client.enqueue("tool_run").id)
    assert (job.state, job.approved_by, job.approved_at) == (JobState.QUEUED, None, None)


def test_an_approval_that_waits_for_an_expiry_finds_the_job_cancelled(
    url: str, connection: Connection, client: Client
) -> None:
    job_id = put(connection, approval=True)
    with psycopg.connect(url) as sweeper:
        assert run(sweeper, maintenance.expire(later(connection, hours=25))) == 1
        with rival_with(lambda own: client.approve(job_id, "ada", connection=own), url) as approval:
            wait_until_blocked(connection)
            sweeper.commit()
            with pytest.raises(IllegalTransition, match="is cancelled"):
                outcome(approval)
    assert see(connection, job_id).reason == "expired"


def test_an_expiry_passes_over_a_job_that_is_being_approved(url: str, connection: Connection) -> None:
    connection.execute("SET lock_timeout = '5s'")
    job_id = put(connection, approval=True)
    with psycopg.connect(url) as person:
        assert run(person, jobs.approve(job_id, "ada"))
        assert run(connection, maintenance.expire(later(connection, hours=25))) == 0
        person.commit()
    assert run(connection, maintenance.expire(later(connection, hours=25))) == 0
    assert see(connection, job_id).state is JobState.QUEUED


# Times


def test_started_at_is_the_first_real_start_and_no_later_attempt_moves_it(connection: Connection) -> None:
    job_id = put(connection, max_attempts=3)
    (claimed,) = take(connection)
    assert see(connection, job_id).started_at is None
    run(connection, jobs.mark_started([(job_id, claimed.token)]))
    first = see(connection, job_id).started_at
    assert first is not None
    run(connection, jobs.put_back([PutBack(job_id, claimed.token)]))
    assert see(connection, job_id).started_at == first
    (claimed,) = take(connection)
    run(connection, jobs.mark_started([(job_id, claimed.token)]))
    run(connection, jobs.settle_succeeded([(job_id, claimed.token)]))
    job = see(connection, job_id)
    assert (job.started_at, job.attempt) == (first, 2)
    assert job.finished_at is not None
    assert job.finished_at > first


@pytest.mark.parametrize("state", LIVE)
def test_a_live_job_has_no_end(connection: Connection, state: JobState) -> None:
    assert see(connection, in_state(connection, state)[0]).finished_at is None


@pytest.mark.parametrize("state", TERMINAL)
def test_an_ended_job_has_one_and_no_lease(connection: Connection, state: JobState) -> None:
    job = see(connection, in_state(connection, state)[0])
    assert job.finished_at is not None
    assert (job.lease_owner, job.lease_until) == (None, None)


# Ends


@pytest.mark.parametrize("state", TERMINAL)
def test_nothing_changes_a_job_that_has_ended(connection: Connection, state: JobState) -> None:
    job_id, token = in_state(connection, state)
    before = see(connection, job_id)
    for name, operation in _every_operation(connection, job_id, token).items():
        run(connection, operation)
        assert see(connection, job_id) == before, name


@pytest.mark.parametrize("state", TERMINAL)
@pytest.mark.parametrize("verb", ["approve", "reject", "cancel", "prioritise"])
def test_an_ended_job_is_refused_with_an_error_that_names_its_state(
    client: Client, connection: Connection, state: JobState, verb: str
) -> None:
    job_id, _ = in_state(connection, state)
    with pytest.raises(IllegalTransition, match=f"job {job_id} is {state.value} and can't be") as refused:
        _verbs(client)[verb](job_id)
    assert refused.value.now == state


@pytest.mark.parametrize(
    ("state", "verb", "wanted"),
    [
        (JobState.QUEUED, "approve", JobState.QUEUED),
        (JobState.RUNNING, "approve", JobState.QUEUED),
        (JobState.FAILED, "approve", JobState.QUEUED),
        (JobState.QUEUED, "reject", JobState.CANCELLED),
        (JobState.RUNNING, "reject", JobState.CANCELLED),
        (JobState.SUCCEEDED, "cancel", JobState.CANCELLED),
        (JobState.RUNNING, "retry", JobState.QUEUED),
        (JobState.SCHEDULED, "retry", JobState.QUEUED),
    ],
)
def test_an_illegal_transition_names_both_states(
    client: Client, connection: Connection, state: JobState, verb: str, wanted: JobState
) -> None:
    job_id, _ = in_state(connection, state)
    with pytest.raises(IllegalTransition) as refused:
        _verbs(client)[verb](job_id)
    now, _, rest = str(refused.value).partition(" and can't be ")
    assert now == f"job {job_id} is {state.value}"
    assert wanted.value in rest
    assert see(connection, job_id).state is state


def _verbs(client: Client) -> dict[str, Callable[[int], Any]]:
    return {
        "approve": lambda job_id: client.approve(job_id, "ada"),
        "reject": client.reject,
        "cancel": client.cancel,
        "prioritise": lambda job_id: client.prioritise(job_id, 1),
        "retry": client.retry,
        "show": client.show,
    }


@pytest.mark.parametrize("verb", ["approve", "reject", "cancel", "prioritise", "retry", "show"])
def test_a_job_that_is_not_there_is_named(client: Client, verb: str) -> None:
    with pytest.raises(JobNotFound, match="there is no job 999"):
        _verbs(client)[verb](999)


# Rows that can't be


@pytest.mark.parametrize(
    ("state", "change", "constraint"),
    [
        ("queued", "lease_token = 1, lease_owner = 'x', lease_until = now()", "jobs_lease"),
        ("scheduled", "lease_token = 1, lease_owner = 'x', lease_until = now()", "jobs_lease"),
        ("queued", "attempt_started_at = now()", "jobs_lease"),
        ("queued", "waiting = true", "jobs_lease"),
        ("running", "lease_until = NULL", "jobs_lease"),
        ("running", "lease_owner = NULL", "jobs_lease"),
        ("running", "lease_token = NULL", "jobs_lease"),
        ("running", "state = 'queued'", "jobs_lease"),
        ("scheduled", "state = 'succeeded', run_at = NULL", "jobs_live"),
        ("running", "run_at = now()", "jobs_due"),
        ("scheduled", "run_at = NULL", "jobs_due"),
        ("scheduled", "state = 'queued'", "jobs_due"),
        ("queued", "state = 'scheduled'", "jobs_due"),
        ("awaiting_approval", "expires_at = NULL", "jobs_approval"),
        ("awaiting_approval", "state = 'queued'", "jobs_approval"),
        ("queued", "expires_at = now()", "jobs_approval"),
        ("queued", "state = 'failed'", "jobs_live"),
        ("queued", "attempt = max_attempts + 1", "jobs_check"),
        ("queued", "attempt = -1", "jobs_check"),
        ("queued", "max_attempts = 0", "max_attempts"),
        ("queued", "timeout = '0'", "timeout"),
        ("queued", "parent_id = 1", "jobs_spawned"),
    ],
)
def test_the_database_refuses_a_row_that_can_not_be(
    connection: Connection, state: str, change: str, constraint: str
) -> None:
    job_id, _ = in_state(connection, JobState(state))
    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        connection.execute(f"UPDATE kappa.jobs SET {change} WHERE id = %s", [job_id])
    assert constraint in (refused.value.diag.constraint_name or "")


@pytest.mark.parametrize("state", LIVE)
def test_a_job_can_not_end_in_a_state_that_is_no_end(connection: Connection, state: JobState) -> None:
    claimed = start(connection)
    with pytest.raises(psycopg.errors.CheckViolation):
        run(connection, jobs.settle([Finish(claimed.id, claimed.token, state)]))
    assert see(connection, claimed.id).state is JobState.RUNNING


# Cancel, retry, prioritise


@pytest.mark.parametrize("state", BEFORE_START)
def test_a_job_that_does_not_run_is_cancelled_at_once(client: Client, connection: Connection, state: JobState) -> None:
    job_id, _ = in_state(connection, state)
    assert client.cancel(job_id, "enough") is JobState.CANCELLED
    job = client.show(job_id)
    assert (job.state, job.reason, job.attempt, job.started_at) == (JobState.CANCELLED, "enough", 0, None)


def test_a_job_that_runs_is_told_to_stop_and_runs_until_it_did(client: Client, connection: Connection) -> None:
    claimed = start(connection)
    assert client.cancel(claimed.id, "enough") is JobState.RUNNING
    assert client.show(claimed.id).state is JobState.RUNNING
    assert renew(connection, [(claimed.id, claimed.token)]) == {claimed.id: "enough"}


def test_the_first_reason_to_cancel_stays(client: Client, connection: Connection) -> None:
    claimed = start(connection)
    client.cancel(claimed.id, "first")
    client.cancel(claimed.id, "second")
    assert client.show(claimed.id).reason == "first"


@pytest.mark.parametrize("state", TERMINAL)
def test_a_retry_is_a_new_job_that_knows_its_origin(client: Client, connection: Connection, state: JobState) -> None:
    old = finish(
        connection, state, payload='{"a": [1]}', priority=7, timeout=timedelta(minutes=3), max_attempts=3,
        submitted_by="ada",
    )  # fmt: skip
    before = client.show(old)
    made = client.retry(old)
    new = client.show(made.id)
    assert made.created
    assert new.id != old
    assert (new.state, new.retry_of, new.attempt) == (JobState.QUEUED, old, 0)
    for name in ("kind", "payload", "priority", "timeout", "max_attempts", "submitted_by"):
        assert getattr(new, name) == getattr(before, name), name
    assert client.show(old) == before


def test_a_retry_of_a_job_that_snoozed_may_be_attempted_as_often_as_that_was_meant_to(
    client: Client, connection: Connection
) -> None:
    job_id = put(connection, max_attempts=2)
    for _ in range(3):
        (claimed,) = take(connection)
        run(connection, jobs.put_back([PutBack(job_id, claimed.token, 1.0, snoozed=True)]))
        run(connection, maintenance.promote(later(connection, hours=1)))
    client.cancel(job_id)
    assert client.show(job_id).max_attempts == 5
    assert client.show(client.retry(job_id).id).max_attempts == 2


async def test_snoozes_are_forgotten_with_their_job(engine: Engine, connection: Connection) -> None:
    for _ in range(2):
        claimed = start(connection)
        run(connection, jobs.put_back([PutBack(claimed.id, claimed.token, 3600.0, snoozed=True)]))
    run(connection, jobs.cancel_before_start(claimed.id, BEFORE_START, "enough"))
    await maintain(engine, only=lambda name: name == "retention")
    assert len(connection.execute("SELECT FROM kappa.snoozes").fetchall()) == 2
    await maintain(engine, later=timedelta(days=3), only=lambda name: name == "retention")
    assert len(connection.execute("SELECT FROM kappa.snoozes").fetchall()) == 1


def test_a_retry_of_a_rejected_job_has_to_be_approved(costly: Engine, client: Client) -> None:
    rejected = client.enqueue("ingestion", 25).id
    client.reject(rejected)
    assert client.show(client.retry(rejected).id).state is JobState.AWAITING_APPROVAL


def test_a_retry_in_a_transaction_that_is_rolled_back_was_never_made(
    url: str, client: Client, connection: Connection
) -> None:
    old = finish(connection)
    with psycopg.connect(url) as own:
        client.retry(old, connection=own)
        own.rollback()
    assert client.list_jobs(states=LIVE) == []


@pytest.mark.parametrize("state", BEFORE_START)
def test_the_priority_of_a_job_that_does_not_run_can_change(
    client: Client, connection: Connection, state: JobState
) -> None:
    job_id, _ = in_state(connection, state)
    client.prioritise(job_id, 9)
    assert client.show(job_id).priority == 9


def test_a_prioritised_job_is_claimed_first(client: Client, connection: Connection) -> None:
    first, second = put(connection), put(connection)
    client.prioritise(second, 1)
    assert [job.id for job in take(connection, capacity=1)] == [second]
    assert [job.id for job in take(connection, capacity=1)] == [first]


def test_the_priority_of_a_job_that_runs_stays(client: Client, connection: Connection) -> None:
    claimed = start(connection)
    with pytest.raises(IllegalTransition, match="is running"):
        client.prioritise(claimed.id, 9)


# Looking


def test_pages_of_jobs_are_complete_and_do_not_shift_when_jobs_arrive(client: Client, connection: Connection) -> None:
    made = [put(connection) for _ in range(5)] + [finish(connection, kind="ingestion", priority=1) for _ in range(2)]
    pages, before = [], None
    while page := client.list_jobs(before=before, limit=3):
        pages.append([job.id for job in page])
        before = page[-1].id
        put(connection)
    assert [len(page) for page in pages] == [3, 3, 1]
    assert list(itertools.chain.from_iterable(pages)) == made[::-1]


def test_jobs_are_listed_by_state_kind_and_lane(client: Client, connection: Connection) -> None:
    tool = put(connection, kind="tool_run")
    ended = finish(connection, JobState.FAILED)
    queued = put(connection, kind="polarity")
    assert [job.id for job in client.list_jobs(states=[JobState.QUEUED])] == [queued, tool]
    assert [job.id for job in client.list_jobs(states=[JobState.FAILED])] == [ended]
    assert [job.id for job in client.list_jobs(kinds=["tool_run", "polarity"])] == [queued, tool]
    assert [job.id for job in client.list_jobs(lane="interactive")] == [queued, ended]
    assert client.list_jobs(states=[]) == []


def test_a_watcher_sees_each_change_and_then_the_end(client: Client, connection: Connection) -> None:
    job_id = put(connection)
    watch = client.watch(job_id)
    assert next(watch).state is JobState.QUEUED
    (claimed,) = take(connection)
    assert next(watch).state is JobState.RUNNING
    run(connection, jobs.progress([(job_id, claimed.token, 1.0, 4.0, "reading")]))
    seen = next(watch)
    assert (seen.progress_done, seen.progress_total, seen.progress_message) == (1.0, 4.0, "reading")
    run(connection, jobs.settle([Finish(job_id, claimed.token, JobState.SUCCEEDED, '"done"')]))
    assert [(job.state, job.result) for job in watch] == [(JobState.SUCCEEDED, "done")]


def test_waiting_for_a_job_that_has_ended_gives_it_at_once(client: Client, connection: Connection) -> None:
    job_id = finish(connection, JobState.TIMED_OUT)
    assert client.wait(job_id).state is JobState.TIMED_OUT


async def test_a_waiter_gets_the_job_when_it_ends(async_client: AsyncClient, connection: Connection) -> None:
    job_id = put(connection)
    states = []
    async for job in async_client.watch(job_id):
        states.append(job.state)
        if job.state is JobState.QUEUED:
            (claimed,) = take(connection)
        elif job.state is JobState.RUNNING:
            run(connection, jobs.settle([Finish(job_id, claimed.token, JobState.CANCELLED, reason="enough")]))
    assert states == [JobState.QUEUED, JobState.RUNNING, JobState.CANCELLED]
    assert (await async_client.wait(job_id)).reason == "enough"


# Retention


@pytest.mark.parametrize(
    ("state", "kept"),
    [
        (JobState.SUCCEEDED, timedelta(hours=48)),
        (JobState.CANCELLED, timedelta(hours=48)),
        (JobState.FAILED, timedelta(days=7)),
        (JobState.TIMED_OUT, timedelta(days=7)),
    ],
)
async def test_an_ended_job_is_kept_for_its_time_and_then_deleted(
    engine: Engine, client: Client, connection: Connection, state: JobState, kept: timedelta
) -> None:
    job_id = finish(connection, state)
    await maintain(engine, later=kept - timedelta(minutes=1))
    assert client.show(job_id).state is state
    await maintain(engine, later=kept + timedelta(minutes=1))
    with pytest.raises(JobNotFound):
        client.show(job_id)


async def test_how_long_ended_jobs_are_kept_is_a_setting(
    engine: Engine, client: Client, connection: Connection
) -> None:
    connection.execute("UPDATE kappa.engine_settings SET keep_done = '1 hour', keep_failed = '2 hours'")
    done, failed = finish(connection), finish(connection, JobState.FAILED)
    await maintain(engine, later=timedelta(minutes=61))
    assert [job.id for job in client.list_jobs()] == [failed]
    await maintain(engine, later=timedelta(minutes=121))
    assert client.list_jobs() == []
    assert done != failed


async def test_a_job_that_a_live_retry_refers_to_is_not_deleted(
    engine: Engine, client: Client, connection: Connection
) -> None:
    old = finish(connection)
    new = client.retry(old).id
    await maintain(engine, later=timedelta(days=30))
    assert client.show(old).state is JobState.SUCCEEDED
    client.cancel(new)
    await maintain(engine, later=timedelta(days=60))
    assert client.list_jobs() == []


async def test_a_child_of_a_live_parent_is_not_deleted(engine: Engine, client: Client, connection: Connection) -> None:
    parent = put(connection, kind="tool_run")
    child = finish(connection, parent_id=parent, spawn_key="0")
    await maintain(engine, later=timedelta(days=30))
    assert client.show(child).state is JobState.SUCCEEDED
    client.cancel(parent)
    await maintain(engine, later=timedelta(days=60))
    assert client.list_jobs() == []


async def test_live_jobs_are_never_deleted(engine: Engine, client: Client, connection: Connection) -> None:
    made = {put(connection), start(connection).id, put(connection, delay=timedelta(days=300))}
    await maintain(engine, later=timedelta(days=60))
    assert {job.id for job in client.list_jobs()} == made


# What the database can't keep


@pytest.mark.parametrize("text", ["a\0b", "\udcff"], ids=["nul", "surrogate"])
def test_a_result_that_the_database_can_not_keep_fails_its_job(
    engine: Engine, connection: Connection, text: str
) -> None:
    running = running_here(engine, start(connection, max_attempts=3))
    settlement = attempt.of_value(running, text)
    assert isinstance(settlement, Finish)
    assert run(connection, jobs.settle([settlement])) == {running.claimed.id}
    assert see(connection, running.claimed.id).state is JobState.FAILED


@pytest.mark.parametrize("text", ["a\0b", "\udcff"], ids=["nul", "surrogate"])
def test_an_error_with_a_text_that_the_database_can_not_keep_is_kept_without_it(
    engine: Engine, connection: Connection, text: str
) -> None:
    running = running_here(engine, start(connection, max_attempts=1))
    settlement = attempt.of_error(running, JobFailed(text))
    assert isinstance(settlement, Finish)
    assert run(connection, jobs.settle([settlement])) == {running.claimed.id}
    assert see(connection, running.claimed.id).state is JobState.FAILED
