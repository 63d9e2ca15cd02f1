"""Random lives of jobs, driven by several actors against a plain model of states, leases and slots.

Actors keep every lease token they ever had and use the stale ones too. After each step the database must look as the
model says: every job in exactly one table, what has ended unchanged, no attempt too many, slots respected.

The run is the same each time. For a longer one, with other lives each time:

    KAPPA_STATE_MACHINE_EXAMPLES=2000 make test ARGS='tests/engine/test_state_machine.py --timeout 3600'
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from psycopg import Connection

from kappa.engine import Client, Executor, IllegalTransition, JobState, Lane
from kappa.engine.store import jobs, lanes, maintenance
from kappa.engine.store.jobs import Finish, NewJob, PutBack
from kappa.pg import Database
from kappa.pg.ops import run
from kappa.pg.queries import Row
from tests.engine.hands import renew

Session = Connection[Row]
S = JobState

EXAMPLES = int(os.environ.get("KAPPA_STATE_MACHINE_EXAMPLES", "0"))
LIVES = settings(
    max_examples=EXAMPLES or 80,
    stateful_step_count=100 if EXAMPLES else 40,
    deadline=None,
    derandomize=not EXAMPLES,
    database=None,
    print_blob=True,
    # A shorter life that fails the same way takes longer to find than a test may last.
    phases=[Phase.generate, Phase.shrink] if EXAMPLES else [Phase.generate],
    suppress_health_check=list(HealthCheck),
)

KINDS = {"a": "one", "b": "one", "c": "two"}
VERBS = (
    *("enqueue", "enqueue", "claim", "claim", "claim", "claim", "mark", "mark", "settle", "settle", "put back"),
    *("progress", "checkpoint", "release", "renew", "wait", "wait", "wait no more", "wait no more"),
    *("approve", "reject", "cancel", "retry", "prioritise", "edit lane", "reap", "promote", "expire"),
)
ENDS = (S.SUCCEEDED, S.FAILED, S.TIMED_OUT, S.CANCELLED)
BEFORE_START = (S.AWAITING_APPROVAL, S.SCHEDULED, S.QUEUED)

LIVE_ROWS = """
    SELECT j.id, j.lane, CASE WHEN b.token IS NULL THEN j.state ELSE 'running' END::text, j.attempt, j.max_attempts,
           coalesce(b.owner, j.lease_owner), coalesce(b.token, j.lease_token), j.waiting, j.dedup_key, j.priority,
           j.attempt_started_at IS NOT NULL, j.cancel_reason, j.progress_done, j.checkpoint::text, b.token IS NOT NULL,
           j.claims + (b.token IS NOT NULL)::int
      FROM kappa.jobs AS j
      LEFT JOIN kappa.batch_leases AS b ON j.state = 'queued' AND j.id = ANY (b.ids)
"""


@dataclass
class Life:
    """What the model knows of a job."""

    id: int
    lane: str
    state: JobState
    max_attempts: int
    dedup_key: str | None = None
    priority: int = 0
    attempt: int = 0
    owner: str | None = None
    token: int | None = None
    waiting: bool = False
    started: bool = False
    cancel_reason: str | None = None
    progress: float | None = None
    checkpoint: str | None = None
    claims: int = 0
    light: bool = False
    """Whether its lease is that of a batch and its own row still says that it is queued."""

    def row(self) -> tuple[Any, ...]:
        return (
            self.id, self.lane, self.state.value, self.attempt, self.max_attempts, self.owner, self.token,
            self.waiting, self.dedup_key, self.priority, self.started, self.cancel_reason, self.progress,
            self.checkpoint, self.light, self.claims,
        )  # fmt: skip

    @property
    def takes_slot(self) -> bool:
        return self.state is S.RUNNING and not self.waiting

    @property
    def may_share_a_lease(self) -> bool:
        return self.attempt + 1 < self.max_attempts and self.claims <= self.attempt

    def let_go(self) -> None:
        self.owner = self.token = None
        self.light = False


class Lives(RuleBasedStateMachine):
    """Steps of clients, owners and the leader, in any order."""

    session: Session
    client: Client

    def __init__(self) -> None:
        super().__init__()
        self.session.execute("DELETE FROM kappa.batch_leases")
        self.session.execute("DELETE FROM kappa.jobs")
        self.session.execute("DELETE FROM kappa.finished_jobs")
        self.session.execute("UPDATE kappa.lanes SET max_slots = 2, enabled = true WHERE name IN ('one', 'two')")
        self.slots = {"one": 2, "two": 2}
        self.enabled = {"one": True, "two": True}
        self.lives: dict[int, Life] = {}
        self.ended: dict[int, str] = {}
        """How the rows of finished jobs were when they ended."""
        self.leases: list[tuple[int, int]] = []
        """Every lease that there ever was, as job and token."""
        self.floors: dict[tuple[str, str], int] = {}

    def a_job(self, pick: int) -> Life:
        return self.lives[sorted(self.lives)[pick % len(self.lives)]]

    def a_lease(self, pick: int) -> tuple[Life, int, bool]:
        """Some lease, and whether it is good: a good one, one whose job another has now, or any there ever was."""
        good = [lease for lease in self.leases if self.lives[lease[0]].token == lease[1]]
        lost = [lease for lease in self.leases if self.lives[lease[0]].token not in (None, lease[1])]
        found = (good, lost, self.leases)[pick % 3] or self.leases
        job, token = found[pick % len(found)]
        return self.lives[job], token, self.lives[job].token == token

    def written_down(self, pick: int) -> tuple[Life, int, bool]:
        """Some lease, as it is before anything is written by the job's own row."""
        life, token, good = self.a_lease(pick)
        run(self.session, jobs.write_down(life.id, token))
        life.light = life.light and not good
        return life, token, good

    def end(self, life: Life, state: JobState) -> None:
        life.let_go()
        life.state, life.waiting, life.started = state, False, False

    def clock(self, ahead: timedelta) -> datetime:
        return self.session.execute("SELECT clock_timestamp() + %s", [ahead]).fetchall()[0][0]

    def column(self, name: str, job: int) -> Any:
        return self.session.execute(f"SELECT {name} FROM kappa.jobs WHERE id = %s".encode(), [job]).fetchall()[0][0]

    # One rule with many verbs: with a rule for each, most lives would lack the few that make and claim jobs.

    @initialize(kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=4, max_size=8))
    def begin(self, kinds: list[str]) -> None:
        for at, kind in enumerate(kinds):
            self.enqueue(kind, "now", None, at % 2, 1 + at % 3)

    @rule(
        verb=st.sampled_from(VERBS),
        pick=st.integers(0, 99),
        number=st.integers(0, 11),
        one=st.booleans(),
        other=st.booleans(),
    )
    def step(self, verb: str, pick: int, number: int, one: bool, other: bool) -> None:
        lane, owner = ("one" if pick % 3 else "two"), ("A" if one else "B")
        match verb:
            case "enqueue":
                how = ("now", "now", "later", "approval")[number % 4]
                self.enqueue("abc"[number % 3], how, (None, "x", "y")[pick % 3], pick % 3 - 1, 1 + pick % 3)
            case "approve":
                self.approve(pick)
            case "reject":
                self.reject(pick)
            case "cancel":
                self.cancel(pick, f"reason {number}")
            case "retry":
                self.retry(pick)
            case "prioritise":
                self.prioritise(pick, number % 3 - 1)
            case "edit lane":
                self.edit_lane(lane, 1 + number % 4, enabled=one or other)
            case "claim":
                self.claim(owner, lane, number % 5, with_floor=other, light=bool(number % 2))
            case "reap":
                self.reap(timedelta(seconds=90 if one else 30))
            case "promote":
                self.promote(timedelta(seconds=90 if one else 30))
            case "expire":
                self.expire(timedelta(hours=25 if one else 23))
            case _ if self.leases:
                self.write(verb, pick, number, one, other)

    def write(self, verb: str, pick: int, number: int, one: bool, other: bool) -> None:
        """What an owner does with a lease."""
        match verb:
            case "mark":
                self.mark_started(pick)
            case "progress":
                self.progress(pick, number)
            case "checkpoint":
                self.checkpoint(pick, number)
            case "settle":
                self.settle(pick, ENDS[number % len(ENDS)], started=one, quick=other)
            case "put back":
                self.put_back(pick, 60.0 * (number % 2), snoozed=other, started=one)
            case "release":
                self.release(pick)
            case "renew":
                self.renew_every_lease_there_ever_was()
            case "wait":
                self.begin_waiting(pick)
            case "wait no more":
                self.end_waiting(pick)
            case _:
                raise AssertionError(verb)

    def enqueue(self, kind: str, how: str, dedup_key: str | None, priority: int, max_attempts: int) -> None:
        new = NewJob(kind, "null", priority, dedup_key=dedup_key, max_attempts=max_attempts)
        if how == "later":
            new = replace(new, delay=timedelta(minutes=1))
        elif how == "approval":
            new = replace(new, approval=True)
        made = run(self.session, jobs.enqueue(new))
        holders = [life.id for life in self.live() if dedup_key is not None and life.dedup_key == dedup_key]
        if holders:
            assert made is None
            assert [run(self.session, jobs.enqueued_before(new))] == holders
            return
        assert made is not None
        state = {"now": S.QUEUED, "later": S.SCHEDULED, "approval": S.AWAITING_APPROVAL}[how]
        self.lives[made] = Life(made, KINDS[kind], state, max_attempts, dedup_key, priority)

    def approve(self, pick: int) -> None:
        life = self.a_job(pick)
        if life.state is S.AWAITING_APPROVAL:
            self.client.approve(life.id, "anna", connection=self.session)
            life.state = S.QUEUED
        else:
            with pytest.raises(IllegalTransition, match=f"is {life.state} and can't be queued by an approval"):
                self.client.approve(life.id, "anna", connection=self.session)

    def reject(self, pick: int) -> None:
        life = self.a_job(pick)
        if life.state is S.AWAITING_APPROVAL:
            self.client.reject(life.id, connection=self.session)
            self.end(life, S.CANCELLED)
        else:
            with pytest.raises(IllegalTransition, match=f"is {life.state} and can't be cancelled by a rejection"):
                self.client.reject(life.id, connection=self.session)

    def cancel(self, pick: int, reason: str) -> None:
        life = self.a_job(pick)
        if life.state in BEFORE_START:
            assert self.client.cancel(life.id, reason, connection=self.session) is S.CANCELLED
            self.end(life, S.CANCELLED)
        elif life.state is S.RUNNING:
            assert self.client.cancel(life.id, reason, connection=self.session) is S.RUNNING
            life.cancel_reason, life.light = life.cancel_reason or reason, False
        else:
            with pytest.raises(IllegalTransition, match=f"is {life.state} and can't be cancelled"):
                self.client.cancel(life.id, reason, connection=self.session)

    def retry(self, pick: int) -> None:
        life = self.a_job(pick)
        if not life.state.terminal:
            with pytest.raises(IllegalTransition, match=f"is {life.state}"):
                self.client.retry(life.id, connection=self.session)
            return
        made = self.client.retry(life.id, connection=self.session)
        assert made.created
        self.lives[made.id] = Life(made.id, life.lane, S.QUEUED, life.max_attempts, priority=life.priority)

    def prioritise(self, pick: int, priority: int) -> None:
        life = self.a_job(pick)
        moved = run(self.session, jobs.prioritise(life.id, priority))
        assert moved == (life.state in BEFORE_START)
        if moved:
            life.priority = priority

    def edit_lane(self, lane: str, slots: int, enabled: bool) -> None:
        edited = run(self.session, lanes.edit_lane(lane, {"max_slots": slots, "enabled": enabled}))
        assert edited is not None
        self.slots[lane], self.enabled[lane] = slots, enabled

    def claim(self, owner: str, lane: str, capacity: int, with_floor: bool, light: bool) -> None:
        floor = self.floors.get((owner, lane), 0) if with_floor else 0
        kinds = sorted(KINDS) if light else None
        if floor or light:
            claimed = run(self.session, jobs.claim(lane, owner, capacity, floor_token=floor, light_kinds=kinds))
        else:
            claimed = run(self.session, jobs.claim_at_rest(lane, owner, capacity, sorted(KINDS))).claimed
        mine = [life for life in self.live() if life.lane == lane]
        orphans = {life.id for life in mine if life.state is S.RUNNING and life.token is None}
        adopted = {job.id for job in claimed if job.adopted}
        assert adopted <= orphans
        assert len(adopted) == min(capacity, len(orphans))
        taken = [job.id for job in claimed if not job.adopted]
        queued = sorted((-life.priority, life.id) for life in mine if life.state is S.QUEUED)
        free = self.slots[lane] - sum(life.takes_slot for life in mine)
        room = max(0, min(capacity - len(adopted), free)) if self.enabled[lane] else 0
        assert set(taken) == {job for _, job in queued[:room]}
        light = light and all(self.lives[job].may_share_a_lease for job in taken)
        for job in claimed:
            life = self.lives[job.id]
            assert (job.attempt, job.max_attempts, job.started) == (life.attempt, life.max_attempts, life.started)
            assert job.cancel_reason == life.cancel_reason
            life.state, life.owner, life.token = S.RUNNING, owner, job.token
            life.claims += 1
            assert job.claims == life.claims
            life.light = light and not job.adopted
            assert job.light == life.light
            self.leases.append((job.id, job.token))
        for job in claimed:
            if job.token_floor is not None:
                self.floors[owner, lane] = job.token_floor

    def mark_started(self, pick: int) -> None:
        life, token, good = self.a_lease(pick)
        assert run(self.session, jobs.mark_started([(life.id, token)])) == ({life.id} if good else set())
        if good:
            life.attempt += not life.started
            life.started = True
            life.light = False

    def progress(self, pick: int, done: int) -> None:
        life, token, good = self.a_lease(pick)
        written = run(self.session, jobs.progress([(life.id, token, float(done), 9.0, "on")]))
        assert written == ({life.id} if good else set())
        if good:
            life.progress, life.light = float(done), False

    def checkpoint(self, pick: int, value: int) -> None:
        life, token, good = self.written_down(pick)
        assert run(self.session, jobs.checkpoint(life.id, token, str(value))) == good
        if good:
            life.checkpoint = str(value)
            assert run(self.session, jobs.read_checkpoint(life.id, token)) == [value]

    def settle(self, pick: int, state: JobState, started: bool, quick: bool) -> None:
        life, token, good = self.a_lease(pick)
        if quick:
            state, started = S.SUCCEEDED, True
            written = run(self.session, jobs.settle_succeeded([(life.id, token)]))
        else:
            written = run(self.session, jobs.settle([Finish(life.id, token, state, "1", "why", started=started)]))
        assert written == ({life.id} if good else set())
        if good:
            life.attempt += started and not life.started
            self.end(life, state)

    def put_back(self, pick: int, delay: float, snoozed: bool, started: bool) -> None:
        life, token, good = self.a_lease(pick)
        attempt = life.attempt + (started and not life.started)
        if good and attempt >= life.max_attempts + snoozed:
            return  # attempts are used up: nobody puts such a job back
        back = PutBack(life.id, token, delay, snoozed=snoozed, started=started)
        assert run(self.session, jobs.put_back([back])) == ({life.id} if good else set())
        if good:
            life.attempt, life.max_attempts = attempt, life.max_attempts + snoozed
            self.end(life, S.SCHEDULED if delay else S.QUEUED)

    def release(self, pick: int) -> None:
        life, token, good = self.a_lease(pick)
        assert run(self.session, jobs.release([(life.id, token)])) == ({life.id} if good else set())
        if good:
            life.let_go()

    def renew_every_lease_there_ever_was(self) -> None:
        kept = renew(self.session, self.leases)
        good = {life.id: life.cancel_reason for life in self.live() if life.token is not None}
        assert kept == good
        for life in self.live():
            life.light = False

    def begin_waiting(self, pick: int) -> None:
        life, token, good = self.written_down(pick)
        assert run(self.session, jobs.release_slot(life.id, token)) == good
        life.waiting = life.waiting or good

    def end_waiting(self, pick: int) -> None:
        waiting = [life for life in self.lives.values() if life.waiting]
        if not waiting:
            return
        life = waiting[pick % len(waiting)]
        token = next(token for job, token in reversed(self.leases) if job == life.id)
        good = life.token == token
        busy = sum(other.takes_slot for other in self.live() if other.lane == life.lane)
        good = good and busy < self.slots[life.lane]
        assert bool(run(self.session, jobs.reacquire_slot(life.id, token))) == good
        if good:
            life.waiting = False

    def reap(self, ahead: timedelta) -> None:
        leased = [life for life in self.live() if life.token is not None]
        over = leased if ahead > timedelta(seconds=60) else []
        assert run(self.session, maintenance.reap(self.clock(ahead))) == len(over)
        for life in over:
            life.let_go()

    def promote(self, ahead: timedelta) -> None:
        due = [life for life in self.live() if life.state is S.SCHEDULED and ahead > timedelta(seconds=60)]
        assert run(self.session, maintenance.promote(self.clock(ahead))) == len(due)
        for life in due:
            life.state = S.QUEUED

    def expire(self, ahead: timedelta) -> None:
        over = [life for life in self.live() if life.state is S.AWAITING_APPROVAL and ahead > timedelta(hours=24)]
        assert run(self.session, maintenance.expire(self.clock(ahead))) == len(over)
        for life in over:
            self.end(life, S.CANCELLED)

    def live(self) -> list[Life]:
        return [life for life in self.lives.values() if not life.state.terminal]

    @invariant()
    def every_live_job_is_as_the_model_says(self) -> None:
        rows = sorted(self.session.execute(LIVE_ROWS).fetchall())
        assert rows == sorted(life.row() for life in self.live())

    @invariant()
    def every_finished_job_is_there_once_and_never_changes(self) -> None:
        rows = self.session.execute("SELECT id, state::text, attempt, f::text FROM kappa.finished_jobs AS f").fetchall()
        ended = {life.id: life for life in self.lives.values() if life.state.terminal}
        assert sorted(row[0] for row in rows) == sorted(ended)
        for job, state, attempt, whole in rows:
            assert (state, attempt) == (ended[job].state.value, ended[job].attempt)
            assert self.ended.setdefault(job, whole) == whole

    @invariant()
    def no_job_has_more_attempts_than_it_may(self) -> None:
        over = self.session.execute("SELECT id FROM kappa.all_jobs WHERE attempt > max_attempts").fetchall()
        assert over == []

    @invariant()
    def a_dedup_key_has_one_live_job(self) -> None:
        keys = [life.dedup_key for life in self.live() if life.dedup_key is not None]
        assert len(keys) == len(set(keys))


@pytest.fixture
def stage(url: str) -> Iterator[type[Lives]]:
    """The machine on one database; every life begins with empty tables."""
    with psycopg.connect(url, autocommit=True) as session:
        for name in ("one", "two"):
            kinds = tuple(kind for kind, lane in KINDS.items() if lane == name)
            run(session, lanes.declare_lane(Lane(name, kinds=kinds, executor=Executor.ASYNC)))

        class Staged(Lives):
            pass

        Staged.session = session
        Staged.client = Client(Database(url))
        yield Staged


def test_jobs_leases_and_slots_are_as_a_plain_model_says_whatever_happens(stage: type[Lives]) -> None:
    run_state_machine_as_test(stage, settings=LIVES)
