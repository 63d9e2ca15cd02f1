"""Races that are forced: slots under claimers that come at once, and batches that meet in the middle.

Each of the latter is also run with its ids as they were given instead of sorted, which has to end in a deadlock: so the
meeting is seen to be one.
"""

from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from kappa.engine import JobState
from kappa.engine.store import jobs, lanes
from kappa.engine.store.jobs import Claimed, Exchanged, Finish, PutBack
from kappa.pg.ops import Op, run
from tests.engine.hands import Connection, outcome, put, rival_with, see, start, take, wait_until_blocked

LANE = "interactive"
BUSY = "SELECT count(*) FROM kappa.jobs WHERE lane = %s AND state = 'running' AND NOT waiting"

Held = list[tuple[int, int]]


def held(*claimed: Claimed) -> Held:
    return [(job.id, job.token) for job in claimed]


def set_slots(connection: Connection, count: int) -> None:
    run(connection, lanes.edit_lane(LANE, {"max_slots": count}))


def busy(connection: Connection) -> int:
    found = connection.execute(BUSY, [LANE]).fetchone()
    assert found is not None
    return found[0]


def exchange(connection: Connection, done: Held, owner: str, capacity: int = 100) -> Exchanged:
    return run(connection, jobs.exchange(done, LANE, owner, capacity))


# Slots


@contextmanager
def lane_held(url: str) -> Generator[Connection, None, None]:
    """The lane's lock in the hand of somebody else, until that one commits."""
    with psycopg.connect(url) as holder:
        run(holder, jobs.lock_lane(LANE))
        yield holder


@pytest.mark.parametrize("capacity", [1, 2, 3, 100])
def test_claimers_that_were_let_in_together_take_no_more_than_the_slots(
    url: str, connection: Connection, capacity: int
) -> None:
    set_slots(connection, 3)
    for _ in range(8):
        put(connection)
    with (
        lane_held(url) as holder,
        rival_with(lambda own: take(own, owner="one", capacity=capacity), url) as one,
        rival_with(lambda own: take(own, owner="two", capacity=capacity), url) as two,
    ):
        wait_until_blocked(connection, 2)
        holder.commit()
        taken = [*outcome(one), *outcome(two)]
    assert len({job.id for job in taken}) == len(taken) == busy(connection) == min(3, 2 * capacity)


@pytest.mark.parametrize("commits", [True, False])
def test_a_claimer_counts_what_an_earlier_one_committed_while_it_waited(
    url: str, connection: Connection, commits: bool
) -> None:
    set_slots(connection, 3)
    for _ in range(8):
        put(connection)
    with psycopg.connect(url) as one:
        assert len(take(one, owner="one", capacity=2)) == 2
        with rival_with(lambda own: take(own, owner="two"), url) as two:
            wait_until_blocked(connection)
            one.commit() if commits else one.rollback()
            assert len(outcome(two)) == (1 if commits else 3)
    assert busy(connection) == 3


def test_claims_that_carry_successes_and_were_let_in_together_take_no_more_than_the_slots(
    url: str, connection: Connection
) -> None:
    set_slots(connection, 4)
    for _ in range(10):
        put(connection)
    first, second = held(*take(connection, owner="one", capacity=2)), held(*take(connection, owner="two", capacity=2))
    with (
        lane_held(url) as holder,
        rival_with(lambda own: exchange(own, first, "one"), url) as one,
        rival_with(lambda own: exchange(own, second, "two"), url) as two,
    ):
        wait_until_blocked(connection, 2)
        holder.commit()
        answers = [outcome(one), outcome(two)]
    assert [answer.lost for answer in answers] == [set(), set()]
    assert [len(answer.claimed) for answer in answers] == [2, 2]
    assert busy(connection) == 4
    assert {see(connection, job).state for job, _ in first + second} == {JobState.SUCCEEDED}


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("carries", [True, False])
def test_slots_that_a_claim_frees_are_its_own_until_it_commits(
    url: str, connection: Connection, commits: bool, carries: bool
) -> None:
    """The second comes with or without a success of its own, while the first has freed one slot and taken it again."""
    set_slots(connection, 2)
    for _ in range(6):
        put(connection)
    first, second = take(connection, capacity=2)
    with psycopg.connect(url) as one:
        claimed, lost, _ = exchange(one, held(first), "one")
        assert (len(claimed), lost) == (1, set())
        with rival_with(lambda own: exchange(own, held(second) if carries else [], "two"), url) as two:
            wait_until_blocked(connection)
            one.commit() if commits else one.rollback()
            claimed, lost, _ = outcome(two)
    assert (len(claimed), lost) == (int(carries), set())
    assert busy(connection) == 2


def test_a_success_that_is_carried_twice_at_once_frees_one_slot(url: str, connection: Connection) -> None:
    """As by a worker that lost the connection, and the answer with it, and asks again."""
    set_slots(connection, 2)
    for _ in range(6):
        put(connection)
    done, _ = take(connection, capacity=2)
    with psycopg.connect(url) as one:
        assert len(exchange(one, held(done), "one")[0]) == 1
        with rival_with(lambda own: exchange(own, held(done), "one"), url) as again:
            wait_until_blocked(connection)
            one.commit()
            assert outcome(again)[:2] == ([], {done.id})
    assert busy(connection) == 2


@pytest.mark.parametrize("commits", [True, False])
def test_a_parent_returns_only_to_a_slot_that_no_claim_at_the_same_time_takes(
    url: str, connection: Connection, commits: bool
) -> None:
    set_slots(connection, 1)
    parent = start(connection)
    put(connection)
    assert run(connection, jobs.release_slot(parent.id, parent.token))

    def come_back(own: Connection) -> bool:
        return bool(run(own, jobs.reacquire_slot(parent.id, parent.token)))

    with psycopg.connect(url) as claimer:
        assert len(take(claimer, owner="two")) == 1
        with rival_with(come_back, url) as back:
            wait_until_blocked(connection)
            claimer.commit() if commits else claimer.rollback()
            assert outcome(back) is not commits
    assert busy(connection) == 1


# Batches

BATCHES: dict[str, Callable[[Held], Op[Any]]] = {
    "mark_started": jobs.mark_started,
    "settle_succeeded": jobs.settle_succeeded,
    "settle": lambda held: jobs.settle([Finish(job, token, JobState.FAILED) for job, token in held]),
    "put_back": lambda held: jobs.put_back([PutBack(job, token, 1.0) for job, token in held]),
    "progress": lambda held: jobs.progress([(job, token, 1.0, 2.0, None) for job, token in held]),
    "exchange": lambda held: jobs.exchange(held, LANE, "one", 0),
}


@contextmanager
def meeting(
    url: str, connection: Connection, ours: Held, one: Op[Any], two: Op[Any]
) -> Generator[tuple[Future[Any], Future[Any]], None, None]:
    """Both batches have begun, and wait; then the row in the middle, for which one at least waits, is let go."""

    def write(op: Op[Any]) -> Callable[[Connection], Any]:
        def act(own: Connection) -> Any:
            own.execute("SET deadlock_timeout = '20ms'")
            return run(own, op)

        return act

    with psycopg.connect(url) as holder:
        holder.execute("SELECT FROM kappa.jobs WHERE id = %s FOR UPDATE", [ours[1][0]])
        with rival_with(write(one), url) as first:
            wait_until_blocked(connection)
            with rival_with(write(two), url) as second:
                wait_until_blocked(connection, 2)
                holder.commit()
                yield first, second


@pytest.fixture
def ours(connection: Connection) -> Held:
    """Three jobs that run, in the order of their ids."""
    set_slots(connection, 3)
    for _ in range(3):
        put(connection, max_attempts=3)
    return sorted(held(*take(connection)))


@pytest.mark.parametrize("name", BATCHES)
def test_batches_that_were_given_in_opposite_orders_do_not_wait_for_each_other(
    url: str, connection: Connection, ours: Held, name: str
) -> None:
    with meeting(url, connection, ours, BATCHES["progress"](ours), BATCHES[name](ours[::-1])) as (one, two):
        assert set(outcome(one)) == {job for job, _ in ours}
        written = outcome(two)
    assert written[:2] == ([], set()) if name == "exchange" else set(written) == {job for job, _ in ours}


def test_settlements_that_were_given_in_opposite_orders_write_each_job_once(
    url: str, connection: Connection, ours: Held
) -> None:
    with meeting(url, connection, ours, BATCHES["settle"](ours), BATCHES["exchange"](ours[::-1])) as (one, two):
        assert outcome(one) == {job for job, _ in ours}
        assert outcome(two)[:2] == ([], {job for job, _ in ours})
    assert {see(connection, job).state for job, _ in ours} == {JobState.FAILED}


@pytest.mark.parametrize("name", BATCHES)
def test_batches_in_opposite_orders_would_wait_for_each_other(
    url: str, connection: Connection, ours: Held, name: str
) -> None:
    batch = BATCHES[name](ours)
    with meeting(
        url, connection, ours, BATCHES["progress"](ours), replace(batch, params=reverse(batch.params))
    ) as both:
        ended = [one.exception(timeout=30) for one in both]
    assert [type(error) for error in ended if error] == [psycopg.errors.DeadlockDetected]


def reverse(params: Mapping[str, Any]) -> dict[str, Any]:
    """The same batch the other way round, as its statement gets it."""
    turned = dict(params)
    for name in ("ids", "tokens"):
        numbers = params[name].strip("{}").split(",") if isinstance(params[name], str) else params[name]
        turned[name] = [int(number) for number in numbers][::-1]
    return turned
