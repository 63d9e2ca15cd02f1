"""Claims of the fleet: repeated, raced, bounded by slots, matched, and shared between submitters."""

import itertools
import json
from collections import Counter
from typing import Any

import psycopg
import pytest

from kappa.engine.fleet import store
from kappa.engine.fleet.dispatch import Pass
from kappa.engine.fleet.store import Ending, Update
from kappa.engine.store import jobs, lanes, maintenance
from kappa.pg.ops import run
from tests.engine.fleet.floor import (
    CLAIMS,
    PASS,
    Connection,
    answer,
    asks,
    beat,
    claim,
    enters,
    held,
    open_lane,
    put,
    running,
    server,
    settle,
    started,
    take,
)
from tests.engine.hands import later, outcome, rival_with, row, see, wait_until_blocked


@pytest.fixture(autouse=True)
def lane(connection: Connection) -> None:
    open_lane(connection)


# Repeats


def test_a_repeated_request_gets_the_same_tasks_and_a_new_lease(connection: Connection) -> None:
    for _ in range(5):
        put(connection)
    first = take(connection, most=3)
    connection.execute("UPDATE kappa.jobs SET lease_until = now() WHERE state = 'running'")
    again = take(connection, most=3)
    assert {(one.id, one.token) for one in again} == {(one.id, one.token) for one in first}
    assert len(first) == 3
    assert running(connection) == 3
    for one in first:
        (left,) = connection.execute("SELECT lease_until - now() FROM kappa.jobs WHERE id = %s", [one.id]).fetchall()[0]
        assert left.total_seconds() > 30


@pytest.mark.parametrize("commits", [True, False])
def test_a_request_that_is_repeated_on_another_server_at_the_same_moment(
    url: str, connection: Connection, commits: bool
) -> None:
    for _ in range(5):
        put(connection)
    with psycopg.connect(url) as one:
        first = take(one, most=2)
        with rival_with(lambda own: take(own, most=2), url) as two:
            wait_until_blocked(connection)
            one.commit() if commits else one.rollback()
            again = outcome(two)
    assert len(again) == 2
    assert running(connection) == 2
    assert ({job.token for job in again} == {job.token for job in first}) is commits


def test_a_request_that_is_repeated_after_its_task_was_settled_gets_nothing_new(connection: Connection) -> None:
    for _ in range(3):
        put(connection)
    (given,) = take(connection)
    settle(connection, Ending(held(given), "succeeded", "1"))
    assert take(connection) == []
    assert running(connection) == 0


def test_a_request_that_had_nothing_may_have_something_later(connection: Connection) -> None:
    assert take(connection) == []
    made = put(connection)
    assert [one.id for one in take(connection)] == [made]


def test_a_repeat_beside_others_takes_no_share_of_theirs(connection: Connection) -> None:
    for _ in range(4):
        put(connection)
    (first,) = take(connection, "one")
    given = claim(connection, asks("one"), asks("two", most=2))
    assert Counter(one.place for one in given) == {0: 1, 1: 2}
    assert [(one.id, one.token) for one in given if one.place == 0] == [(first.id, first.token)]


# Fencing


@pytest.mark.parametrize("thief", [(PASS, "other"), (Pass(2), "w")], ids=["another worker", "another token"])
def test_the_right_numbers_in_the_wrong_hands_are_good_for_nothing(
    connection: Connection, thief: tuple[Pass, str]
) -> None:
    given = started(connection)
    who, worker = thief
    stolen = held(given, worker, who)
    before = row(connection, given.id, "state", "lease_until", "lease_owner", "attempt", "progress_done", "checkpoint")
    assert beat(connection, stolen) == [(0, "lost", None)]
    assert run(connection, store.update([Update(stolen, True, 1.0, 2.0, "mine", "{}")])) == {}
    for ending in ("succeeded", "kept", "failed", "fatal", "cancelled", "timed_out", "snooze", "released", "lost"):
        assert settle(connection, Ending(stolen, ending, "1")) == [None]
    assert run(connection, store.held_run(stolen)) is None
    after = row(connection, given.id, "state", "lease_until", "lease_owner", "attempt", "progress_done", "checkpoint")
    assert after == before
    # The owner's own settlement is not told to others either.
    assert settle(connection, Ending(held(given), "succeeded", "1")) != [None]
    assert settle(connection, Ending(stolen, "succeeded", "1")) == [None]


def test_a_stale_token_changes_nothing_after_the_task_was_reaped_and_given_to_another(connection: Connection) -> None:
    stale = started(connection, max_attempts=3)
    run(connection, maintenance.reap(later(connection, hours=1)))
    assert beat(connection, held(stale)) == [(0, "lost", None)]
    assert run(connection, maintenance.bury()) == 1
    assert settle(connection, Ending(held(stale), "succeeded", "1")) == [None]
    run(connection, maintenance.promote(later(connection, hours=1)))
    (mine,) = take(connection, "other", "r2")
    assert mine.id == stale.id
    assert mine.token != stale.token
    assert beat(connection, held(stale)) == [(0, "lost", None)]
    assert run(connection, store.update([Update(held(stale), False, 1.0, None, None, None)])) == {}
    assert settle(connection, Ending(held(stale), "succeeded", "1")) == [None]
    assert take(connection, request=f"for-{stale.id}") == []
    assert row(connection, mine.id, "lease_owner") == (PASS.owner("other"),)


async def test_two_servers_never_give_one_job_to_two_workers(url: str, connection: Connection) -> None:
    made = {put(connection, f"somebody {n % 7}") for n in range(100)}
    async with server(url) as one, server(url) as two:
        callers = [
            await enters((one, two)[n % 2], f"w{n}", f"r{n}", count=1 + n % 3, wait=0) for n in range(90)
        ]  # fmt: skip
        given = [task for caller in callers for task in await answer(caller)]
    assert {task.id for task in given} == made
    assert len(given) == len(made)
    owners = connection.execute("SELECT id, lease_owner FROM kappa.jobs WHERE state = 'running'").fetchall()
    assert len(owners) == 100


# Slots


def slots(connection: Connection, count: int, lane: str = "far") -> None:
    run(connection, lanes.edit_lane(lane, {"max_slots": count}))


@pytest.mark.parametrize("counts", [(1, 1, 1), (2, 2), (64,)])
def test_claims_of_two_servers_take_no_more_than_the_slots(
    url: str, connection: Connection, counts: tuple[int, ...]
) -> None:
    slots(connection, 3)
    for _ in range(10):
        put(connection)
    callers = [asks(f"w{n}", most=most) for n, most in enumerate(counts)]
    others = [asks(f"v{n}", most=most) for n, most in enumerate(counts)]
    with psycopg.connect(url) as holder:
        holder.execute(CLAIMS)
        with (
            rival_with(lambda own: claim(own, *callers), url) as one,
            rival_with(lambda own: claim(own, *others), url) as two,
        ):
            wait_until_blocked(connection, 2)
            holder.commit()
            taken = [*outcome(one), *outcome(two)]
    assert len({job.id for job in taken}) == len(taken) == running(connection) == 3


def test_the_bound_is_found_again_after_it_was_lost(connection: Connection) -> None:
    slots(connection, 4)
    for _ in range(10):
        put(connection)
    assert len(take(connection, request="r1", most=3)) == 3
    connection.execute("DELETE FROM kappa.fleet_lanes")  # as after a crash
    assert len(take(connection, request="r2", most=3)) == 1
    connection.execute("DELETE FROM kappa.fleet_lanes")
    assert take(connection, request="r3") == []


def test_slots_that_were_freed_are_used_again(connection: Connection) -> None:
    slots(connection, 2)
    for _ in range(6):
        put(connection)
    for turn in range(3):
        given = take(connection, request=f"r{turn}", most=5)
        assert len(given) == 2
        settle(connection, *(Ending(held(one), "succeeded") for one in given))
    assert running(connection) == 0


def test_fewer_slots_and_more_slots_count_from_the_next_claim_on(connection: Connection) -> None:
    for _ in range(20):
        put(connection)
    assert len(take(connection, request="r1", most=4)) == 4
    slots(connection, 3)
    assert take(connection, request="r2") == []
    slots(connection, 6)
    assert len(take(connection, request="r3", most=9)) == 2
    connection.execute("UPDATE kappa.lanes SET enabled = false WHERE name = 'far'")
    slots(connection, 9)
    assert take(connection, request="r4") == []
    connection.execute("UPDATE kappa.lanes SET enabled = true WHERE name = 'far'")
    assert len(take(connection, request="r5", most=9)) == 3
    assert running(connection) == 9


def test_what_others_claimed_while_the_lane_was_theirs_takes_its_slots(connection: Connection) -> None:
    for _ in range(20):
        put(connection)
    slots(connection, 5)
    (one,) = take(connection)
    settle(connection, Ending(held(one), "succeeded"))
    connection.execute("UPDATE kappa.lanes SET executor = 'thread' WHERE name = 'far'")
    assert len(run(connection, jobs.claim("far", "beside the database", 4))) == 4
    assert take(connection, request="r2") == []
    connection.execute("UPDATE kappa.lanes SET executor = 'fleet' WHERE name = 'far'")
    assert len(take(connection, request="r3", most=3)) == 1
    assert running(connection) == 5


def test_orphans_that_were_moved_to_the_lane_take_its_slots(connection: Connection) -> None:
    for _ in range(20):
        put(connection)
    slots(connection, 5)
    assert len(take(connection)) == 1
    for _ in range(3):
        put(connection, kind="polarity")
    claimed = run(connection, jobs.claim("interactive", "gone", 2))
    run(connection, jobs.release([(one.id, one.token) for one in claimed]))
    with connection.transaction():
        connection.execute("UPDATE kappa.lanes SET kinds = '{ingestion,ingest_image}' WHERE name = 'interactive'")
        connection.execute("UPDATE kappa.lanes SET kinds = kinds || '{polarity}' WHERE name = 'far'")
    assert running(connection) == 3
    assert len(take(connection, request="r2", most=3)) == 2
    assert running(connection) == 5


# Matching


BIG: dict[str, Any] = {"cores": 8, "memory_mb": 64_000, "labels": ["gpu", "disk=ssd"]}


@pytest.mark.parametrize(
    ("worker", "does"),
    [
        (BIG, True),
        (BIG | {"cores": 9, "labels": ["gpu", "x", "disk=ssd"]}, True),
        (BIG | {"cores": 7.5}, False),
        (BIG | {"memory_mb": 63_999}, False),
        (BIG | {"labels": ["gpu"]}, False),
        ({}, False),
    ],
)
def test_a_job_goes_only_to_who_has_what_it_needs(connection: Connection, worker: dict[str, Any], does: bool) -> None:
    made = put(connection, "ada", needs=BIG)
    unnamed = put(connection, needs=BIG)
    given = claim(connection, asks(most=5, **worker))
    assert {one.id for one in given} == ({made, unnamed} if does else set())


def test_jobs_that_nobody_can_do_keep_nobody_from_the_others(connection: Connection) -> None:
    for submitter in ("ada", None):
        for _ in range(5):
            put(connection, submitter, needs=BIG, priority=9)
    rest = {put(connection, submitter) for submitter in ("ada", "bob", None) for _ in range(2)}
    given = claim(connection, *(asks(f"w{n}") for n in range(9)))
    assert {one.id for one in given} == rest


def test_a_mixed_crowd_is_served_in_one_claim_each_with_what_it_can_do(connection: Connection) -> None:
    gpu = [put(connection, "ada", needs={"labels": ["gpu"]}) for _ in range(3)]
    wide = [put(connection, "bob", needs={"cores": 16}) for _ in range(3)]
    small, only = put(connection), [asks("big", cores=32), asks("none"), asks("gpu", labels=["gpu"], most=2)]
    given = claim(connection, *only)
    by_place = {place: {one.id for one in given if one.place == place} for place in range(3)}
    assert by_place[2] <= {*gpu, small}
    assert len(by_place[2]) == 2
    assert by_place[0] <= {*wide, small}
    assert by_place[1] <= {small}
    assert sum(map(len, by_place.values())) >= 3


def test_jobs_that_no_single_caller_can_do_are_not_gone_through_one_by_one(connection: Connection) -> None:
    """Each caller has one half of what they need. Their number must not show in what the claim does."""
    connection.execute(
        """WITH made AS (INSERT INTO kappa.jobs (lane, kind, state, submitted_by, priority)
                         SELECT 'far', 'crunch', 'queued', 'ada', 9 FROM generate_series(1, 3000) RETURNING id)
           INSERT INTO kappa.job_needs (job_id, cores, labels) SELECT id, 16, '{gpu}' FROM made"""
    )
    mine = put(connection, "bob")
    before = candidates_calls(connection)
    given = claim(connection, asks("wide", cores=32), asks("gpu", labels=["gpu"]))
    assert [one.id for one in given] == [mine]
    assert candidates_calls(connection) - before < 20


def candidates_calls(connection: Connection) -> int:
    connection.execute("SELECT pg_stat_force_next_flush()")
    connection.execute("SET track_functions = 'all'")
    found = connection.execute(
        "SELECT calls FROM pg_stat_user_functions WHERE funcname = 'fleet_candidates'"
    ).fetchall()
    return found[0][0] if found else 0


def test_a_claim_knows_only_the_kinds_that_it_was_asked_for(connection: Connection) -> None:
    open_lane(connection, "wide", ["dig", "fly"])
    for kind in ("crunch", "dig", "fly"):
        for submitter in ("ada", None):
            put(connection, submitter, kind=kind)
    given = claim(connection, asks(most=20), kinds=["crunch", "fly", "other"])
    assert Counter(one.kind for one in given) == {"crunch": 2, "fly": 2}
    assert {one.lane for one in given} == {"far", "wide"}


def test_lanes_of_others_and_lanes_that_are_drained_give_nothing(connection: Connection) -> None:
    open_lane(connection, "drained", ["dig"], enabled=False)
    put(connection, kind="dig")
    put(connection, kind="ingestion")
    assert claim(connection, asks(most=9), kinds=["dig", "ingestion"]) == []


# Shares

_turns = itertools.count()


def serve(connection: Connection, times: int, most: int = 1) -> list[str | None]:
    """Whose jobs so many claims give."""
    given = [one for _ in range(times) for one in take(connection, request=f"turn-{next(_turns)}", most=most)]
    return [see(connection, one.id).submitted_by for one in given]


def test_no_lane_waits_for_another_to_be_empty(connection: Connection) -> None:
    open_lane(connection, "wide", ["fly"])
    for kind in ("crunch", "fly") * 64:
        put(connection, kind=kind)
    given = [claim(connection, asks(request=f"turn-{next(_turns)}"), kinds=["crunch", "fly"]) for _ in range(64)]
    assert {one.lane for (one,) in given} == {"far", "wide"}  # by chance of 2^-63 only one of them


def test_who_has_few_jobs_is_not_behind_who_has_a_thousand(connection: Connection) -> None:
    for _ in range(1000):
        put(connection, "ada")
    for _ in range(3):
        put(connection, "bob")
    assert Counter(serve(connection, 1, most=10)) == {"ada": 7, "bob": 3}


@pytest.mark.parametrize("crowd", ["ada", None, "", "zoe"])
def test_turns_go_on_across_claims_whoever_has_most(url: str, connection: Connection, crowd: str | None) -> None:
    for _ in range(40):
        put(connection, crowd)
    for _ in range(3):
        put(connection, "bob")
        put(connection, None if crowd else "eve")
    rest = {"bob", None if crowd else "eve"}
    with psycopg.connect(url, autocommit=True) as second:
        order = [served for n in range(9) for served in serve((connection, second)[n % 2], 1)]
    assert Counter(order) == {crowd: 3, **dict.fromkeys(rest, 3)}
    for turn in range(0, 9, 3):
        assert set(order[turn : turn + 3]) == {crowd, *rest}


def test_a_submitter_without_a_name_is_served(connection: Connection) -> None:
    made = {put(connection, ""), put(connection, None)}
    assert {one.id for one in take(connection, most=5)} == made


def test_priority_then_age_among_ones_own_jobs(connection: Connection) -> None:
    made = {priority: [put(connection, "ada", priority=priority) for _ in range(2)] for priority in (0, 5, -3)}
    put(connection, "bob", priority=99)
    order = [given.id for n in range(7) for given in take(connection, request=f"r{n}")]
    mine = [job for job in order if see(connection, job).submitted_by == "ada"]
    assert mine == [*made[5], *made[0], *made[-3]]


def test_jobs_without_a_submitter_are_found_behind_any_number_of_others(connection: Connection) -> None:
    fill = """INSERT INTO kappa.jobs (lane, kind, state, submitted_by, priority)
              SELECT 'far', %s, 'queued', %s, 9 FROM generate_series(1, 2500)"""
    connection.execute("UPDATE kappa.lanes SET kinds = '{crunch,dig}', max_slots = 10000 WHERE name = 'far'")
    connection.execute(fill, ["dig", None])
    mine = put(connection)
    # Nobody here does the kind of those before it: then all of them are looked at.
    assert [one.id for one in take(connection)] == [mine]
    # There is always something else to do: then a look at a time goes further down.
    connection.execute(fill, ["crunch", "ada"])
    mine = put(connection, priority=-5)
    given = {one.id for n in range(20) for one in take(connection, request=f"next-{n}")}
    assert mine in given


# Attempts


def test_a_claim_is_no_attempt_and_the_first_sign_of_life_is_one(connection: Connection) -> None:
    put(connection, max_attempts=2)
    (given,) = take(connection)
    assert given.attempt == 1
    assert row(connection, given.id, "attempt", "attempt_started_at", "started_at") == (0, None, None)
    run(connection, store.update([Update(held(given), False, 1.0, None, None, None)]))
    assert row(connection, given.id, "attempt") == (0,)
    for _ in range(2):
        run(connection, store.update([Update(held(given), True, None, None, None, None)]))
        assert row(connection, given.id, "attempt") == (1,)
    begun = row(connection, given.id, "attempt_started_at", "started_at")
    assert None not in begun
    for _ in range(2):
        beat(connection, held(given))
    assert row(connection, given.id, "attempt_started_at", "started_at") == begun
    assert row(connection, given.id, "attempt") == (1,)


# Machines


def register(connection: Connection, *names: str, most: int | None = 1) -> set[str]:
    machines = [
        {
            "owner": PASS.owner(name), "pass": PASS.id, "worker": name, "kinds": ["crunch"], "cores": 1,
            "memory_mb": 0, "labels": [], "slots": 1, "version": "", "most": most,
        }
        for name in names
    ]  # fmt: skip
    return run(connection, store.register(json.dumps(machines)))


@pytest.mark.parametrize("commits", [True, False])
def test_two_machines_that_register_at_once_are_not_both_the_last(
    url: str, connection: Connection, commits: bool
) -> None:
    with psycopg.connect(url) as one:
        assert register(one, "a") == {PASS.owner("a")}
        with rival_with(lambda own: register(own, "b"), url) as two:
            wait_until_blocked(connection)
            one.commit() if commits else one.rollback()
            assert outcome(two) == (set() if commits else {PASS.owner("b")})
    assert len(register(connection, "a", "b")) == 1


def test_machines_are_counted_as_they_come_and_known_ones_stay(connection: Connection) -> None:
    assert len(register(connection, "a", "b", "c", "d", most=3)) == 3
    assert register(connection, "a", "b", "c", "d", most=3) == {PASS.owner(name) for name in "abc"}
    assert len(register(connection, *"efgh", most=None)) == 4
    connection.execute("DELETE FROM kappa.fleet_workers")  # as after a crash
    assert len(register(connection, "d", most=3)) == 1


@pytest.mark.parametrize("change", [{"enabled": False}, {"executor": "async"}, {"max_slots": 1}])
def test_a_claim_that_waited_for_a_lane_goes_by_the_lane_as_it_is_then(
    url: str, connection: Connection, change: dict[str, Any]
) -> None:
    for _ in range(3):
        put(connection)
    with psycopg.connect(url) as holder:
        run(holder, jobs.lock_lane("far"))
        with rival_with(lambda own: take(own, most=3), url) as claiming:
            wait_until_blocked(connection)
            for column, value in change.items():
                statement = psycopg.sql.SQL("UPDATE kappa.lanes SET {} = %s WHERE name = 'far'")
                connection.execute(statement.format(psycopg.sql.Identifier(column)), [value])
            holder.commit()
            assert len(outcome(claiming)) == (1 if "max_slots" in change else 0)
