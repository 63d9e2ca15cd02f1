"""Enqueue: one, many, in the caller's own transaction, at a time, with priority, once for each dedup key."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel

from kappa.engine import AsyncClient, BadPayload, Client, Engine, JobContext, JobState, Needs, UnknownKind
from kappa.engine.orders import PRIORITIES
from kappa.engine.store import jobs
from kappa.pg import Bounds
from kappa.pg.ops import run
from tests.engine.hands import Connection, finish, later, outcome, put, rival, rival_with, see, take, wait_until_blocked
from tests.ground import PATIENCE

ROOT = Path(__file__).parents[2]

PAYLOADS: list[Any] = [None, True, 0, -1.5, "", 'naïve ☃ \n\t"\\', [], [1, [2]], {"a": {"b": [None]}}]


class Document(BaseModel):
    url: str
    pages: int = 1


@pytest.fixture
def typed(engine: Engine) -> Engine:
    """An engine whose kind `ingestion` takes a document."""

    @engine.job("ingestion", timeout=timedelta(minutes=3), idempotent=True)
    def ingest(ctx: JobContext, document: Document) -> None: ...

    return engine


def test_the_blocking_client_is_what_is_generated_from_the_async_one() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "unasync.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# One


@pytest.mark.parametrize("payload", PAYLOADS, ids=repr)
def test_a_payload_arrives_as_it_was_sent(client: Client, payload: Any) -> None:
    made = client.enqueue("ingestion", payload)
    assert (made.created, made.status) == (True, "created")
    assert client.show(made.id).payload == payload


def test_a_new_job_is_queued_in_the_lane_of_its_kind(client: Client, connection: Connection) -> None:
    before = later(connection)
    job = client.show(client.enqueue("tool_run", submitted_by="ada").id)
    assert (job.state, job.lane, job.kind, job.submitted_by) == (JobState.QUEUED, "tools", "tool_run", "ada")
    assert (job.priority, job.attempt, job.max_attempts, job.run_at) == (0, 0, 1, None)
    assert before <= job.created_at <= later(connection)


async def test_the_async_client_does_the_same(async_client: AsyncClient) -> None:
    made = await async_client.enqueue("tool_run", {"a": 1}, priority=4, dedup_key="once")
    again = await async_client.enqueue("tool_run", {"a": 2}, dedup_key="once")
    assert (again.id, again.status) == (made.id, "existing")
    job = await async_client.show(made.id)
    assert (job.state, job.payload, job.priority) == (JobState.QUEUED, {"a": 1}, 4)
    assert await async_client.enqueue_many("tool_run", [1, 2, 3]) == 3
    assert await async_client.counts() == {("tools", JobState.QUEUED): 4}


def test_the_policy_of_the_handler_goes_into_the_job(typed: Engine, client: Client) -> None:
    job = client.show(client.enqueue("ingestion", Document(url="a")).id)
    assert (job.timeout, job.max_attempts, job.payload) == (timedelta(minutes=3), 3, {"url": "a", "pages": 1})
    own = client.show(client.enqueue("ingestion", {"url": "a"}, timeout=timedelta(minutes=9), max_attempts=7).id)
    assert (own.timeout, own.max_attempts) == (timedelta(minutes=9), 7)


# Bad ones


@pytest.mark.parametrize(
    ("payload", "fault"),
    [
        ({}, "url: Field required"),
        ({"url": "a", "pages": "many"}, "pages: Input should be a valid integer"),
        (3, "valid"),
    ],
)
def test_a_payload_that_its_type_refuses_gets_a_clear_error_and_no_job(
    typed: Engine, client: Client, payload: Any, fault: str
) -> None:
    with pytest.raises(BadPayload, match="'ingestion' can't take this payload: ") as refused:
        client.enqueue("ingestion", payload)
    assert fault in str(refused.value)
    with pytest.raises(BadPayload, match="'ingestion' can't take this payload: "):
        client.enqueue_many("ingestion", [{"url": "fine"}, payload])
    assert client.list_jobs() == []


BEYOND_JSON = [object(), "a\0b", {"a\0b": 1}, "\udcff", float("nan"), [float("inf")]]


@pytest.mark.parametrize("payload", BEYOND_JSON, ids=["object", "nul", "nul key", "surrogate", "nan", "infinity"])
@pytest.mark.parametrize("known", [True, False])
def test_a_payload_that_the_database_can_not_keep_gets_a_clear_error_and_no_job(
    engine: Engine, client: Client, payload: Any, known: bool
) -> None:
    if known:
        engine.job("ingestion")(lambda ctx, payload: None)
    with pytest.raises(BadPayload, match="ingestion"):
        client.enqueue("ingestion", payload)
    with pytest.raises(BadPayload, match="ingestion"):
        client.enqueue_many("ingestion", [1, payload])
    assert client.list_jobs() == []


def test_a_payload_that_its_own_type_could_not_read_again_is_refused(engine: Engine, client: Client) -> None:
    @engine.job("ingestion")
    def ingest(ctx: JobContext, weights: list[float]) -> None: ...

    with pytest.raises(BadPayload, match="ingestion"):
        client.enqueue("ingestion", [1.0, float("nan")])
    assert client.list_jobs() == []


def test_a_bad_payload_leaves_the_callers_transaction_as_it_was(url: str, client: Client) -> None:
    with psycopg.connect(url) as caller:
        good = client.enqueue("ingestion", connection=caller).id
        with pytest.raises(BadPayload):
            client.enqueue("ingestion", object(), connection=caller)
        with pytest.raises(UnknownKind):
            client.enqueue("nothing", connection=caller)
        with pytest.raises(UnknownKind):
            client.enqueue_many("nothing", [1], connection=caller)
        caller.commit()
    assert [job.id for job in client.list_jobs()] == [good]


@pytest.mark.parametrize("many", [True, False])
@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": 40_000},
        {"priority": -40_000},
        {"timeout": timedelta(seconds=-1)},
        {"at": datetime(2030, 1, 1)},
    ],
    ids=repr,
)
def test_what_a_job_can_not_have_is_refused_in_words(client: Client, wrong: dict[str, Any], many: bool) -> None:
    with pytest.raises(BadPayload, match=next(iter(wrong))):
        if many:
            client.enqueue_many("ingestion", [1], **wrong)
        else:
            client.enqueue("ingestion", **wrong)
    assert client.list_jobs() == []


@pytest.mark.parametrize("attempts", [-1, 40_000])
def test_a_number_of_attempts_that_can_not_be_is_refused_in_words(client: Client, attempts: int) -> None:
    with pytest.raises(BadPayload, match="attempts"):
        client.enqueue("ingestion", max_attempts=attempts)


# Many


THOUSANDS = [0] * 2_001
"""More than go into one statement: with these they all go by COPY."""


@pytest.mark.parametrize("count", [1, 500, 2000, 2001, 2600])
def test_many_arrive_in_order(client: Client, connection: Connection, count: int) -> None:
    assert client.enqueue_many("ingestion", ({"n": n} for n in range(count))) == count
    rows = connection.execute("SELECT payload -> 'n' FROM kappa.jobs ORDER BY id").fetchall()
    assert [n for (n,) in rows] == list(range(count))


def test_thousands_go_by_copy_and_a_few_in_a_statement(client: Client, connection: Connection) -> None:
    connection.execute(
        """CREATE TABLE statements (text text);
           CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
               $$ BEGIN INSERT INTO statements VALUES (current_query()); RETURN NULL; END $$;
           CREATE TRIGGER note AFTER INSERT ON kappa.jobs FOR EACH STATEMENT EXECUTE FUNCTION note()"""
    )
    for count in (3, 10_000):
        client.enqueue_many("ingestion", range(count))
    (few,), (thousands,) = connection.execute("SELECT text FROM statements").fetchall()
    assert "COPY" not in few
    assert thousands.startswith("COPY kappa.jobs")


def test_a_few_large_payloads_are_many(client: Client) -> None:
    assert client.enqueue_many("ingestion", ["x" * 3_000_000, "y" * 3_000_000]) == 2
    assert [job.payload[0] for job in client.list_jobs()] == ["y", "x"]


@pytest.mark.parametrize("more", [[], THOUSANDS], ids=["some", "thousands"])
def test_many_payloads_of_all_sorts_arrive_as_they_were_sent(client: Client, more: list[int]) -> None:
    assert client.enqueue_many("ingestion", more + PAYLOADS) == len(more) + len(PAYLOADS)
    assert [job.payload for job in reversed(client.list_jobs(limit=len(PAYLOADS)))] == PAYLOADS


def test_none_of_many_is_none(client: Client) -> None:
    assert client.enqueue_many("ingestion", []) == 0
    assert client.list_jobs() == []


@pytest.mark.parametrize("more", [[], THOUSANDS], ids=["some", "thousands"])
def test_many_are_the_same_as_as_many_single_ones(client: Client, more: list[int]) -> None:
    at = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    fields: dict[str, Any] = {"priority": -7, "timeout": timedelta(days=2, microseconds=5), "submitted_by": "ada"}
    client.enqueue("ingestion", [1], at=at, **fields)
    one = client.list_jobs()[0]
    client.enqueue_many("ingestion", [*more, [1]], at=at, **fields)
    many = client.list_jobs()[0]
    for name in set(one.__dataclass_fields__) - {"id", "created_at"}:
        assert getattr(many, name) == getattr(one, name), name
    assert (many.state, many.run_at, many.priority) == (JobState.SCHEDULED, at, -7)


def test_many_have_the_policy_of_their_handler(typed: Engine, client: Client) -> None:
    client.enqueue_many("ingestion", [Document(url="a"), {"url": "b", "pages": 2}])
    second, first = client.list_jobs()
    assert [first.payload, second.payload] == [{"url": "a", "pages": 1}, {"url": "b", "pages": 2}]
    assert (first.timeout, first.max_attempts) == (timedelta(minutes=3), 3)


def test_many_are_claimed_by_priority(client: Client, connection: Connection) -> None:
    client.enqueue_many("ingestion", [1], priority=-1)
    client.enqueue_many("ingestion", [2], priority=1)
    assert [job.payload for job in take(connection, capacity=1)] == ["2"]


@pytest.mark.parametrize("count", [1000, 3000])
def test_all_of_many_or_none(client: Client, count: int) -> None:
    def payloads() -> Any:
        yield from range(count)
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        client.enqueue_many("ingestion", payloads())
    assert client.list_jobs() == []


# In the caller's transaction


@pytest.mark.parametrize("many", [0, 1, len(THOUSANDS)])
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_a_job_is_there_if_and_only_if_the_callers_transaction_commits(
    url: str, client: Client, first: bool, commit: bool, many: int
) -> None:
    with psycopg.connect(url) as caller:
        if not first:
            caller.execute("CREATE TABLE own (line text)")
        if many:
            client.enqueue_many("ingestion", [1] * many, connection=caller)
        else:
            client.enqueue("ingestion", 1, connection=caller)
        assert client.list_jobs() == []
        if commit:
            caller.commit()
        else:
            caller.rollback()
    assert {job.payload for job in client.list_jobs()} == ({1} if commit else set())


@pytest.mark.parametrize("commit", [True, False])
async def test_the_same_holds_for_the_async_client(url: str, async_client: AsyncClient, commit: bool) -> None:
    async with await psycopg.AsyncConnection.connect(url) as caller:
        await async_client.enqueue("ingestion", 1, connection=caller)
        await async_client.enqueue_many("ingestion", [2, 3], connection=caller)
        assert await async_client.list_jobs() == []
        if commit:
            await caller.commit()
        else:
            await caller.rollback()
    assert [job.payload for job in await async_client.list_jobs()] == ([3, 2, 1] if commit else [])


def test_every_decision_can_be_part_of_a_transaction(url: str, client: Client, connection: Connection) -> None:
    ended = finish(connection)
    asked, rejected = put(connection, approval=True), put(connection, approval=True)
    queued, cancelled = put(connection), put(connection)
    before = client.list_jobs()
    with psycopg.connect(url) as caller:
        client.approve(asked, "ada", connection=caller)
        client.reject(rejected, connection=caller)
        client.cancel(cancelled, connection=caller)
        client.prioritise(queued, 3, connection=caller)
        client.retry(ended, connection=caller)
        caller.rollback()
    assert client.list_jobs() == before


def put_in(client: Client, caller: Connection, how: str, origin: int) -> None:
    """Put something in on the caller's connection, in every way that there is."""
    match how:
        case "one":
            client.enqueue("ingestion", connection=caller)
        case "with a key":
            client.enqueue("ingestion", dedup_key="once", connection=caller)
        case "with needs":
            client.enqueue("ingestion", needs=Needs(cores=1), connection=caller)
        case "some":
            client.enqueue_many("ingestion", [1, 2], connection=caller)
        case "thousands":
            client.enqueue_many("ingestion", THOUSANDS, connection=caller)
        case "a retry":
            client.retry(origin, connection=caller)
        case _:
            raise AssertionError(how)


WAYS = ["one", "with a key", "with needs", "some", "thousands", "a retry"]


@pytest.mark.parametrize("autocommit", [False, True], ids=["a transaction", "a transaction in autocommit"])
@pytest.mark.parametrize("how", WAYS)
def test_a_lane_that_falls_asleep_before_the_callers_commit_is_woken_by_it(
    url: str, client: Client, connection: Connection, how: str, autocommit: bool
) -> None:
    origin = finish(connection)
    with (
        psycopg.connect(url, autocommit=True) as listening,
        psycopg.connect(url, autocommit=autocommit) as caller,
    ):
        with caller.transaction():
            put_in(client, caller, how, origin)
            connection.execute("INSERT INTO kappa.sleepers VALUES ('interactive', 'one')")
            listening.execute("LISTEN kappa_wake")
        assert [note.payload for note in listening.notifies(timeout=PATIENCE, stop_after=1)] == ["interactive"]


def test_thousands_in_a_transaction_of_the_clients_own_wake_a_lane_that_falls_asleep_before_its_commit(
    url: str, client: Client, connection: Connection
) -> None:
    # The copy waits for the lock, and so does everything that comes after it: the lane falls asleep meanwhile.
    connection.execute(
        """CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
               $$ BEGIN PERFORM pg_advisory_xact_lock(77); RETURN NULL; END $$;
           CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON kappa.jobs DEFERRABLE INITIALLY DEFERRED
               FOR EACH ROW EXECUTE FUNCTION hold()"""
    )
    with psycopg.connect(url) as holder, psycopg.connect(url, autocommit=True) as listening:
        holder.execute("SELECT pg_advisory_xact_lock(77)")
        with rival(lambda: client.enqueue_many("ingestion", THOUSANDS), url) as begun:
            wait_until_blocked(connection)  # at its commit
            connection.execute("INSERT INTO kappa.sleepers VALUES ('interactive', 'one')")
            listening.execute("LISTEN kappa_wake")
            holder.commit()
            assert outcome(begun) == len(THOUSANDS)
        assert [note.payload for note in listening.notifies(timeout=PATIENCE, stop_after=1)] == ["interactive"]


@pytest.mark.parametrize("how", WAYS)
def test_an_enqueue_on_the_callers_connection_needs_none_of_the_pool(
    engine: Engine, url: str, connection: Connection, how: str
) -> None:
    origin = finish(connection)
    with engine.client(bounds=Bounds(0, 1)) as client, client.transaction(), psycopg.connect(url) as caller:
        put_in(client, caller, how, origin)


async def test_nor_does_one_by_the_async_client_join_those_that_go_together(
    engine: Engine, url: str, connection: Connection
) -> None:
    async with (
        engine.async_client(bounds=Bounds(0, 1)) as client,
        client.transaction(),
        await psycopg.AsyncConnection.connect(url) as caller,
    ):
        await client.enqueue("ingestion", 1, connection=caller)
        await client.enqueue_many("ingestion", [2, 3], connection=caller)
        connection.execute("INSERT INTO kappa.sleepers VALUES ('interactive', 'one')")
        with psycopg.connect(url, autocommit=True) as listening:
            listening.execute("LISTEN kappa_wake")
            await caller.commit()
            woken = [note.payload for note in listening.notifies(timeout=PATIENCE, stop_after=1)]
        assert woken == ["interactive"]


# Times and priorities


def test_a_job_for_later_is_scheduled_and_queued_when_its_time_has_come(client: Client, connection: Connection) -> None:
    at = later(connection, hours=2)
    job = client.show(client.enqueue("ingestion", at=at).id)
    assert (job.state, job.run_at) == (JobState.SCHEDULED, at)
    assert take(connection) == []


def test_a_delay_is_counted_from_the_databases_now(client: Client) -> None:
    job = client.show(client.enqueue("ingestion", delay=timedelta(minutes=5)).id)
    assert job.run_at == job.created_at + timedelta(minutes=5)
    assert job.state is JobState.SCHEDULED


def test_a_time_that_is_over_is_now(client: Client, connection: Connection) -> None:
    first = client.enqueue("ingestion", at=later(connection, hours=-1)).id
    second = client.enqueue("ingestion", delay=timedelta(0)).id
    assert [client.show(job_id).state for job_id in (first, second)] == [JobState.QUEUED] * 2


def test_a_time_means_the_same_instant_in_every_zone(client: Client) -> None:
    at = datetime.fromisoformat("2031-01-01T02:00:00+02:00")
    job = client.show(client.enqueue("ingestion", at=at).id)
    assert job.run_at == datetime(2031, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("priority", [PRIORITIES[0], PRIORITIES[-1]])
def test_every_priority_that_is_allowed_works(client: Client, connection: Connection, priority: int) -> None:
    job_id = client.enqueue("ingestion", priority=priority).id
    assert client.show(job_id).priority == priority
    client.prioritise(job_id, 0)
    client.prioritise(job_id, priority)
    assert client.enqueue_many("ingestion", [1], priority=priority) == 1
    assert len(take(connection)) == 2


# Dedup keys


def test_a_live_job_with_the_key_is_given_back_as_existing(client: Client) -> None:
    first = client.enqueue("ingestion", 1, dedup_key="once")
    second = client.enqueue("ingestion", 2, dedup_key="once")
    assert (first.status, second.status, second.id) == ("created", "existing", first.id)
    assert [job.payload for job in client.list_jobs()] == [1]


def test_other_keys_and_no_keys_are_no_obstacle(client: Client) -> None:
    made = [client.enqueue("ingestion", dedup_key=key) for key in ("a", "b", None, None)]
    assert all(one.created for one in made)


@pytest.mark.parametrize("how", ["queued", "scheduled", "awaiting_approval", "running"])
def test_the_key_is_taken_as_long_as_its_job_lives(client: Client, connection: Connection, how: str) -> None:
    more: dict[str, Any] = {"scheduled": {"delay": timedelta(hours=1)}, "awaiting_approval": {"approval": True}}
    first = put(connection, dedup_key="once", **more.get(how, {}))
    if how == "running":
        take(connection)
    assert see(connection, first).state == how
    again = client.enqueue("ingestion", dedup_key="once")
    assert (again.id, again.created) == (first, False)


@pytest.mark.parametrize("state", [state for state in JobState if state.terminal])
def test_the_key_is_free_when_its_job_has_ended(client: Client, connection: Connection, state: JobState) -> None:
    first = finish(connection, state, dedup_key="once")
    again = client.enqueue("ingestion", dedup_key="once")
    assert again.created
    assert again.id != first


def test_the_database_itself_refuses_a_second_live_job_with_the_key(connection: Connection) -> None:
    put(connection, dedup_key="once")
    other = put(connection)
    with pytest.raises(psycopg.errors.UniqueViolation):
        connection.execute("UPDATE kappa.jobs SET dedup_key = 'once' WHERE id = %s", [other])
    assert run(connection, jobs.enqueue(jobs.NewJob("ingestion", "1", dedup_key="once"))) is None


def test_two_who_enqueue_one_key_make_one_job(url: str, client: Client, connection: Connection) -> None:
    with psycopg.connect(url) as one:
        first = client.enqueue("ingestion", 1, dedup_key="once", connection=one)
        with rival(lambda: client.enqueue("ingestion", 2, dedup_key="once"), url) as two:
            wait_until_blocked(connection)
            one.commit()
            second = outcome(two)
    assert (second.id, second.status) == (first.id, "existing")
    assert [job.payload for job in client.list_jobs()] == [1]


def test_who_waited_for_a_key_gets_it_when_the_other_rolls_back(
    url: str, client: Client, connection: Connection
) -> None:
    with psycopg.connect(url) as one:
        client.enqueue("ingestion", 1, dedup_key="once", connection=one)
        with rival_with(lambda own: client.enqueue("ingestion", 2, dedup_key="once", connection=own), url) as two:
            wait_until_blocked(connection)
            one.rollback()
            assert outcome(two).status == "created"
    assert [job.payload for job in client.list_jobs()] == [2]
