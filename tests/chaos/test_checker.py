"""The checker on histories made by hand: a clean one passes, and each rule sees what breaks it, alone."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.chaos.artifacts import KIND, Artifact, content
from tests.chaos.checker import RULES, check
from tests.chaos.record import (
    CLIENT,
    SERVER,
    BatchWrite,
    Block,
    Effect,
    Ended,
    Entry,
    Fate,
    Fire,
    HandlerRun,
    LaneEdit,
    LaneHold,
    LaneSwitch,
    Left,
    LeftBatch,
    Live,
    Outage,
    Record,
    RowLock,
    Term,
    WorkerLife,
    Write,
)

BEGIN = datetime(2026, 1, 1, 12, tzinfo=UTC)
LEASE = timedelta(seconds=2)
STEP = timedelta(seconds=1)
FULL = "OSError: [Errno 28] No space left on device"
LEADER: dict[str, Any] = {"app": "kappa leader", "writer": "b", "leads": True, "session": (7, BEGIN)}


class Book:
    """A history in the writing. Each write is a transaction of its own, a second after the one before."""

    def __init__(self) -> None:
        self.record = Record(lanes=[LaneEdit(BEGIN, "lane", 1, True)])
        self.now = BEGIN
        self.live: dict[int, Live] = {}
        self.batches: dict[int, BatchWrite] = {}

    def write(self, job: int, new: Live | None, *, op: str | None = None, **facts: Any) -> Write:
        old = self.live.get(job)
        self.now += STEP
        seq = self._next_seq()
        kept: dict[str, Any] = {"begun": self.now, "committed": self.now, "xid": seq, "writer": "a", **facts}
        op = op or ("INSERT" if old is None else "DELETE" if new is None else "UPDATE")
        write = Write(seq=seq, at=self.now, op=op, job=job, lane="lane", old=old, new=new, **kept)
        self.record.history.append(write)
        if new is None:
            self.live.pop(job)
        else:
            self.live[job] = new
        return write

    def _next_seq(self) -> int:
        return 2 * (len(self.record.history) + len(self.record.batches)) + 1

    def batch(self, token: int, *jobs: int, owner: str = "a", **facts: Any) -> BatchWrite:
        """One lease for all of them."""
        self.now += STEP
        until = facts.pop("until", self.now + LEASE)
        seq = self._next_seq()
        kept: dict[str, Any] = {"begun": self.now, "committed": self.now, "xid": seq, "writer": owner, **facts}
        batch = BatchWrite(
            seq, self.now, op="INSERT", token=token, lane="lane", owner=owner, until=until, new=jobs, **kept
        )
        self.record.batches.append(batch)
        self.batches[token] = batch
        return batch

    def leave(self, token: int, *jobs: int, **facts: Any) -> dict[str, Any]:
        """They are no longer the batch's affair; what else the transaction did is to be written with these facts."""
        was = self.batches[token]
        left = tuple(job for job in was.new if job not in jobs)
        seq = self._next_seq()
        now = self.now + STEP
        kept: dict[str, Any] = {"begun": now, "committed": now, "xid": seq, "writer": was.owner, **facts}
        op = "UPDATE" if left else "DELETE"
        self.batches[token] = replace(was, seq=seq, at=now, op=op, old=was.new, new=left, **kept)
        self.record.batches.append(self.batches[token])
        return kept

    def end_in_batch(self, job: int, token: int, **facts: Any) -> None:
        self.end(job, facts=self.leave(token, job, **facts))

    def change(self, job: int, *, facts: dict[str, Any] | None = None, **columns: Any) -> Write:
        return self.write(job, self.live[job]._replace(**columns), **(facts or {}))

    def enqueue(self, job: int, max_attempts: int = 3, state: str = "queued") -> None:
        self.record.ledger.append(Entry(f"j{job}", Fate.ACKNOWLEDGED, job))
        self.write(job, Live(state, max_attempts=max_attempts), writer=None)

    def claim(self, job: int, token: int, owner: str = "a") -> None:
        until = self.now + STEP + LEASE
        self.change(job, state="running", token=token, owner=owner, until=until, facts={"writer": owner})

    def start(self, job: int, *, runs: bool = True) -> None:
        live = self.live[job]
        self.change(job, attempt=live.attempt + 1, started=True, facts={"writer": live.owner})
        if runs:
            self.run(job)

    def run(self, job: int) -> None:
        live = self.live[job]
        assert live.owner is not None
        self.record.runs.append(HandlerRun(job, live.attempt, live.owner, self.now))

    def renew(self, job: int) -> None:
        self.change(job, until=self.now + STEP + LEASE, facts={"writer": self.live[job].owner})

    def live_from_now(self, owner: str) -> None:
        """Until now nobody was there, so that nothing of what came before is judged by what workers could have done."""
        self.record.lives.append(WorkerLife(owner, self.now))

    def outage(self, who: str, seconds: float) -> None:
        self.record.outages.append(Outage(who, self.now, self.now + timedelta(seconds=seconds)))

    def reap(self, job: int) -> None:
        until = self.live[job].until
        assert until is not None
        self.now = max(self.now, until)
        self.change(job, token=None, owner=None, until=None, facts=LEADER)

    def put_back(self, job: int, writer: str = "b", state: str = "scheduled", **columns: Any) -> None:
        gone: dict[str, Any] = {"token": None, "owner": None, "until": None, "started": False}
        self.change(job, state=state, **{**gone, **columns}, facts={"writer": writer})

    def promote(self, job: int) -> None:
        self.change(job, state="queued", facts=LEADER)

    def end(
        self,
        job: int,
        state: str = "succeeded",
        effects: str | None = "both",
        writer: str | None = None,
        kind: str = "kind",
        error: str | None = None,
        facts: dict[str, Any] | None = None,
    ) -> None:
        live = self.live[job]
        attempt = live.attempt + (not live.started)
        if state in ("failed", "timed_out") and not live.started and live.owner:
            self.run(job)
        done = self.write(job, None, **(facts or {"writer": writer or live.owner}))
        ended = Live(state, attempt=attempt, max_attempts=live.max_attempts)
        self.record.history.append(replace(done, seq=done.seq + 1, op="END", old=None, new=ended))
        made = Ended(job, kind, state, attempt, live.max_attempts, f"j{job}", effects=effects, error=error)
        self.record.ended.append(made)
        if state == "succeeded" and effects == "both":
            self.record.effects += [Effect(job, attempt, "inside"), Effect(job, attempt, "outside")]

    def fire(self, job: int, due: datetime, was: datetime | None, late: float = 0.1) -> None:
        next_at = due + timedelta(seconds=5)
        at = due + timedelta(seconds=late)
        self.record.fires.append(Fire(at, "often", was, due, next_at, job, "*/5 * * * * *"))
        self.write(job, Live("queued"), **LEADER)
        self.claim(job, job)
        self.end(job, effects="none")
        self.record.ended[-1] = self.record.ended[-1]._replace(submitted_by="schedule often")

    @property
    def broken(self) -> set[str]:
        return {violation.rule for violation in check(self.record)}


def lost_and_found() -> Book:
    """Job 1 ends as it should. Job 2 loses its worker twice, once before its start was written, and is adopted.

    Job 21 writes an artifact; it is killed before that, its disk is full, then it gets through. Job 22 never does.
    """
    book = Book()
    book.enqueue(1)
    book.enqueue(2)
    book.claim(1, 1)
    book.start(1)
    book.end(1)
    book.claim(2, 2)
    book.record.effects.append(Effect(2, 1, "outside"))
    book.reap(2)
    adopt(book, 2, 3)
    book.put_back(2, state="queued")
    book.claim(2, 4)
    book.start(2)
    book.record.effects.append(Effect(2, 1, "outside"))
    book.reap(2)
    adopt(book, 2, 5)
    book.put_back(2)
    book.promote(2)
    book.claim(2, 6)
    book.end(2)
    book.enqueue(21)
    book.claim(21, 21)
    book.start(21)
    book.record.artifacts.append(Artifact(21, 1, b"half"))
    book.reap(21)
    adopt(book, 21, 22)
    book.put_back(21)
    book.promote(21)
    book.claim(21, 23)
    book.end(21, effects="none", kind=KIND, error=FULL)
    book.record.artifacts.append(Artifact(21, None, content(21)))
    book.enqueue(22, max_attempts=1)
    book.claim(22, 24)
    book.end(22, "failed", effects="none", kind=KIND, error=FULL)
    in_batches(book)
    book.fire(11, BEGIN, None)
    book.fire(12, BEGIN + timedelta(seconds=15), BEGIN + timedelta(seconds=5))
    return book


def in_batches(book: Book) -> None:
    """Of a batch of six, 31 ends well and 32 is put back. 33 lasts, 34 is cancelled while it runs, so they get rows.

    The others are reaped: 35 is adopted; 36, of whose row somebody had a lock, is cancelled by him.
    """
    book.record.lanes = [LaneEdit(BEGIN, "lane", 6, True)]
    for job in range(31, 37):
        book.enqueue(job)
    book.batch(31, 31, 32, 33, 34, 35, 36, until=book.now + 10 * STEP)
    lease = {"state": "running", "token": 31, "owner": "a", "until": book.batches[31].until}
    book.end_in_batch(31, 31)
    book.change(32, state="queued", attempt=1, facts=book.leave(31, 32))
    book.change(33, **lease, facts=book.leave(31, 33))
    book.change(34, **lease, facts={"writer": CLIENT})
    book.change(34, facts={"writer": CLIENT})
    book.end(33)
    book.end(34, "cancelled", facts=book.leave(31, 34))
    book.now += 10 * STEP
    book.change(35, state="running", facts=book.leave(31, 35, 36, **LEADER))
    cancel(book, 36)
    adopt(book, 35, 32)
    book.put_back(35, state="queued")
    book.batch(33, 32, 35, owner="b")
    for job in (32, 35):
        book.end_in_batch(job, 33)
    book.record.lanes.append(LaneEdit(book.now, "lane", 1, True))


def cancel(book: Book, job: int) -> None:
    book.end(job, "cancelled", facts={"writer": CLIENT})


def adopt(book: Book, job: int, token: int, owner: str = "b") -> None:
    book.change(job, token=token, owner=owner, until=book.now + STEP + LEASE, facts={"writer": owner})


def never_ended(book: Book) -> None:
    book.record.ledger.append(Entry("j3", Fate.ACKNOWLEDGED, 3))


def ended_twice(book: Book) -> None:
    book.record.ended.append(book.record.ended[0])


def invented(book: Book) -> None:
    book.record.ledger.pop(0)


def half_a_batch(book: Book) -> None:
    book.record.ledger += [Entry("j1", Fate.UNKNOWN, batch="b"), Entry("x", Fate.UNKNOWN, batch="b")]


def undone_and_there(book: Book) -> None:
    book.record.ledger[0].fate = Fate.UNDONE


def without_its_order(book: Book) -> None:
    book.record.ledger[0].ordered = True


def changed_after_its_end(book: Book) -> None:
    done = next(write for write in book.record.history if write.op == "END")
    book.record.history.append(replace(done, seq=1000, op="TAMPER"))


def effect_twice_in_its_transaction(book: Book) -> None:
    book.record.effects.append(Effect(1, 1, "inside"))


def effect_of_another_attempt(book: Book) -> None:
    book.record.effects.remove(Effect(2, 2, "inside"))
    book.record.effects.append(Effect(2, 1, "inside"))


def effect_of_a_failure(book: Book) -> None:
    book.enqueue(3)
    book.claim(3, 7)
    book.end(3, "failed")
    book.record.effects.append(Effect(3, 1, "inside"))


def effect_that_nothing_explains(book: Book) -> None:
    book.record.effects.append(Effect(1, 1, "outside"))


def last_attempt_twice(book: Book) -> None:
    """Lost before its start was written, and yet it had begun."""
    book.enqueue(3, max_attempts=1)
    book.claim(3, 7)
    book.reap(3)
    adopt(book, 3, 8)
    book.put_back(3, state="queued")
    book.claim(3, 9)
    book.end(3)
    book.record.effects.append(Effect(3, 1, "outside"))


def truncated_artifact(book: Book) -> None:
    book.record.artifacts[-1] = Artifact(21, None, content(21)[:-1])


def artifact_of_wrong_bytes(book: Book) -> None:
    book.record.artifacts[-1] = Artifact(21, None, content(22))


def missing_artifact(book: Book) -> None:
    book.record.artifacts.pop()


def half_an_artifact_of_a_failure(book: Book) -> None:
    book.record.artifacts.append(Artifact(22, None, content(22)[:100]))


def artifact_of_nobody(book: Book) -> None:
    book.record.artifacts.append(Artifact(99, None, content(99)))


def temporary_file_of_an_attempt_that_was_not_lost(book: Book) -> None:
    book.record.artifacts.append(Artifact(21, 2, b""))


def second_temporary_file_of_an_attempt_that_was_lost_once(book: Book) -> None:
    book.record.artifacts.append(Artifact(21, 1, b""))


def failure_that_no_disk_explains(book: Book) -> None:
    book.record.ended = [ended._replace(error=None) if ended.id == 22 else ended for ended in book.record.ended]


def in_two_batches(book: Book) -> None:
    book.enqueue(3)
    book.batch(41, 3)
    book.batch(42, 3)
    book.end_in_batch(3, 42)


def in_a_batch_while_its_row_has_a_lease(book: Book) -> None:
    book.enqueue(3)
    book.claim(3, 41)
    book.batch(42, 3)
    book.end(3)


def in_a_batch_while_it_waits_to_be_adopted(book: Book) -> None:
    book.enqueue(3)
    book.claim(3, 41)
    book.reap(3)
    book.batch(42, 3)
    adopt(book, 3, 43)
    book.end(3)


def claimed_though_a_batch_holds_it(book: Book) -> None:
    book.enqueue(3)
    book.batch(41, 3)
    book.claim(3, 42)
    book.end(3)


def batch_reaped_too_early(book: Book) -> None:
    book.enqueue(3)
    book.batch(41, 3)
    book.change(3, state="running", facts=book.leave(41, 3, **LEADER))
    adopt(book, 3, 42)
    book.end(3)


def written_down_after_it_left_its_batch(book: Book) -> None:
    book.enqueue(3)
    book.batch(41, 3)
    book.change(3, state="queued", facts=book.leave(41, 3))
    book.change(3, state="running", token=41, owner="a", until=book.now + LEASE)
    book.end(3)


def lease_over_a_lease(book: Book) -> None:
    book.enqueue(3)
    book.claim(3, 7)
    book.change(3, token=8, until=book.now + LEASE)
    book.end(3)


def reaped_too_early(book: Book) -> None:
    book.enqueue(3)
    book.claim(3, 7)
    book.change(3, token=None, owner=None, until=None, facts=LEADER)
    adopt(book, 3, 8)
    book.end(3)


def old_token_again(book: Book) -> None:
    book.enqueue(3)
    book.claim(3, 7)
    book.put_back(3, "a", state="queued")
    book.claim(3, 7)
    book.end(3)


def settled_by_a_stale_owner(book: Book) -> None:
    book.enqueue(3)
    book.claim(3, 7, "b")
    book.end(3, writer="a")


def settled_by_somebody_behind_the_pooler(book: Book) -> None:
    book.enqueue(3)
    book.claim(3, 7, "b")
    book.run(3)
    done = book.write(3, None, writer=None)
    book.record.history.append(replace(done, seq=done.seq + 1, op="END", old=None, new=Live("failed", attempt=1)))
    book.record.ended.append(Ended(3, "kind", "failed", 1, 3, "j3"))


def settled_in_no_batch(book: Book) -> None:
    book.enqueue(3)
    book.batch(41, 3)
    book.change(3, state="queued", facts=book.leave(41, 3))
    book.end(3, writer="a")


def settled_in_a_batch_of_another(book: Book) -> None:
    book.enqueue(3)
    book.batch(41, 3, owner="b")
    book.end_in_batch(3, 41, writer="a")


def settled_by_its_owner_with_another_token(book: Book) -> None:
    book.enqueue(3)
    book.batch(41, 3)
    book.end(3, writer="a")


def put_back_in_no_batch(book: Book) -> None:
    book.enqueue(3)
    book.put_back(3, "a")
    book.promote(3)
    book.claim(3, 41)
    book.end(3)


def cancelled_while_a_batch_held_it(book: Book) -> None:
    book.enqueue(3)
    book.batch(41, 3)
    cancel(book, 3)


def attempt_skipped(book: Book) -> None:
    book.enqueue(3)
    book.claim(3, 7)
    book.change(3, attempt=2, started=True)
    book.end(3)


def more_attempts_than_allowed(book: Book) -> None:
    book.enqueue(3, max_attempts=1)
    book.claim(3, 7)
    book.change(3, attempt=1, started=True)
    book.put_back(3, "a", state="queued")
    book.claim(3, 8)
    book.end(3)


def adopted_as_another_attempt(book: Book) -> None:
    book.enqueue(3)
    book.claim(3, 7)
    book.start(3)
    book.reap(3)
    book.change(3, token=8, owner="b", until=book.now + LEASE, attempt=2, facts={"writer": "b"})
    book.end(3)


def queued_before_orphans(book: Book) -> None:
    book.record.lanes.append(LaneEdit(book.now, "lane", 2, True))
    for job in (3, 4, 5):
        book.enqueue(job)
    book.claim(3, 7)
    book.reap(3)
    for job in (4, 5):
        book.claim(job, job + 10)
        book.record.history[-1] = replace(book.record.history[-1], passed=(3,))
        book.end(job)
    adopt(book, 3, 19)
    book.end(3)


def batch_before_orphans(book: Book) -> None:
    book.record.lanes.append(LaneEdit(book.now, "lane", 2, True))
    for job in (3, 4, 5):
        book.enqueue(job)
    book.claim(3, 7)
    book.reap(3)
    for job in (4, 5):
        book.batch(job + 40, job, passed=(3,))
        book.end_in_batch(job, job + 40)
    adopt(book, 3, 49)
    book.end(3)


def batch_of_more_than_slots(book: Book) -> None:
    book.enqueue(3)
    book.enqueue(4)
    book.batch(41, 3, 4)
    for job in (3, 4):
        book.end_in_batch(job, 41)


def batch_beside_a_row_in_one_slot(book: Book) -> None:
    book.enqueue(3)
    book.enqueue(4)
    book.batch(41, 3)
    book.claim(4, 42)
    book.end_in_batch(3, 41)
    book.end(4)


def more_than_slots(book: Book) -> None:
    book.enqueue(3)
    book.enqueue(4)
    book.claim(3, 7)
    book.claim(4, 8)
    book.end(3)
    book.end(4)


def claimed_while_switched_off(book: Book) -> None:
    book.enqueue(3)
    book.record.switches.append(LaneSwitch(book.now, "lane", enabled=False))
    book.claim(3, 7)
    book.end(3)


def claimed_while_held(book: Book) -> None:
    book.enqueue(3)
    book.record.holds.append(LaneHold(book.now, "lane", held=True))
    book.claim(3, 7)
    book.end(3)


def claimed_after_a_hold_though_switched_off(book: Book) -> None:
    book.enqueue(3)
    book.record.holds.append(LaneHold(book.now, "lane", held=True))
    book.record.switches.append(LaneSwitch(book.now, "lane", enabled=False))
    book.record.holds.append(LaneHold(book.now + STEP, "lane", held=False))
    book.now += 2 * STEP
    book.claim(3, 7)
    book.end(3)


def claimed_too_late(book: Book) -> None:
    book.live_from_now("a")
    book.enqueue(3)
    book.now += 3 * LEASE
    book.claim(3, 7)
    book.end(3)


def claimed_too_late_by_all_that_was_healthy(book: Book) -> None:
    """One after the other, each for less than the limit."""
    for owner in ("a", "b"):
        book.live_from_now(owner)
    book.enqueue(3)
    book.outage("a", 3)
    book.now += timedelta(seconds=3)
    book.outage("b", 3)
    book.now += timedelta(seconds=3)
    book.claim(3, 7)
    book.end(3)


def adopted_too_late(book: Book) -> None:
    book.enqueue(3)
    book.claim(3, 7)
    book.reap(3)
    book.live_from_now("b")
    book.record.switches.append(LaneSwitch(book.now, "lane", enabled=False))
    book.now += 3 * LEASE
    adopt(book, 3, 8)
    book.end(3)


def never_claimed_at_all(book: Book) -> None:
    book.live_from_now("a")
    book.enqueue(3)
    book.now += 3 * LEASE
    book.enqueue(4)
    cancel(book, 3)
    cancel(book, 4)


def failed_though_its_handler_never_began(book: Book) -> None:
    """The reply to its start was lost, and its worker, which was well, took the lease for lost."""
    book.live_from_now("a")
    book.enqueue(3, max_attempts=1)
    book.claim(3, 7)
    book.start(3, runs=False)
    book.reap(3)
    adopt(book, 3, 8)
    book.end(3, "failed")


def timed_out_though_its_handler_never_began(book: Book) -> None:
    book.enqueue(3)
    book.claim(3, 7)
    book.end(3, "timed_out")
    book.record.runs.pop()


def ran_again_while_its_worker_was_healthy(book: Book) -> None:
    book.live_from_now("a")
    book.enqueue(3)
    book.claim(3, 7)
    book.start(3)
    book.reap(3)
    adopt(book, 3, 8)
    book.put_back(3, state="queued")
    book.claim(3, 9)
    book.start(3)
    book.end(3)


def ran_again_while_its_worker_was_only_blocked(book: Book) -> None:
    """Its loop stood still, which keeps it from claiming and not from renewing."""
    book.record.blocks.append(Block("a", book.now, book.now + timedelta(minutes=1)))
    ran_again_while_its_worker_was_healthy(book)


def ran_twice_under_one_lease(book: Book) -> None:
    book.enqueue(3)
    book.claim(3, 7)
    book.start(3)
    book.run(3)
    book.end(3)


def fired_twice(book: Book) -> None:
    book.fire(13, BEGIN + timedelta(seconds=15), BEGIN + timedelta(seconds=20))


def fire_forgotten(book: Book) -> None:
    book.fire(13, BEGIN + timedelta(seconds=30), BEGIN + timedelta(seconds=30))


def fired_without_a_job(book: Book) -> None:
    book.record.fires[0] = book.record.fires[0]._replace(job=None)


def leads_out_of_its_term(book: Book) -> None:
    book.enqueue(3, state="scheduled")
    book.change(3, state="queued", facts={**LEADER, "leads": False})
    book.claim(3, 7)
    book.end(3)


def two_leaders_in_turns(book: Book) -> None:
    other = {**LEADER, "session": (8, BEGIN)}
    for job, facts in ((3, LEADER), (4, other), (5, LEADER)):
        book.enqueue(job, state="scheduled")
        book.change(job, state="queued", facts=facts)
        book.claim(job, job + 10)
        book.end(job)


def fired_too_late(book: Book) -> None:
    book.live_from_now("z")
    book.now += timedelta(seconds=10)
    seconds = (book.now - BEGIN).total_seconds()
    book.fire(13, BEGIN + timedelta(seconds=seconds // 5 * 5), BEGIN + timedelta(seconds=20))


def promoted_too_late_by_a_leader_that_is_not_replaced(book: Book) -> None:
    book.record.terms.append(Term(BEGIN, "b"))
    book.outage("b", 60)
    promoted_too_late(book)


def promoted_too_late(book: Book) -> None:
    book.live_from_now("z")
    book.enqueue(3, state="scheduled")
    book.change(3, run_at=book.now + STEP)
    book.now += timedelta(seconds=10)
    book.promote(3)
    book.claim(3, 7)
    book.end(3)


def reaped_too_late(book: Book) -> None:
    book.enqueue(3)
    book.claim(3, 7)
    book.record.lives.append(WorkerLife("a", book.now, book.now))
    book.live_from_now("z")
    book.now += timedelta(seconds=10)
    book.reap(3)
    adopt(book, 3, 8)
    book.end(3)


def left_behind(book: Book) -> None:
    book.enqueue(3)
    book.record.left.append(Left(3, "queued", "j3"))


def batch_left_behind(book: Book) -> None:
    book.record.left_batches.append(LeftBatch(41, [3]))


def drained_too_late(book: Book) -> None:
    book.record.time_to_drain = 1e6


def leaked(book: Book) -> None:
    book.record.leaks.append("a connection is left")


BREACHES: list[tuple[str, Callable[[Book], None]]] = [
    ("ends", never_ended),
    ("ends", ended_twice),
    ("ends", invented),
    ("ends", half_a_batch),
    ("ends", undone_and_there),
    ("ends", without_its_order),
    ("ends", changed_after_its_end),
    ("inside effects", effect_twice_in_its_transaction),
    ("inside effects", effect_of_another_attempt),
    ("inside effects", effect_of_a_failure),
    ("outside effects", effect_that_nothing_explains),
    ("outside effects", last_attempt_twice),
    ("artifacts", truncated_artifact),
    ("artifacts", artifact_of_wrong_bytes),
    ("artifacts", missing_artifact),
    ("artifacts", half_an_artifact_of_a_failure),
    ("artifacts", artifact_of_nobody),
    ("artifacts", temporary_file_of_an_attempt_that_was_not_lost),
    ("artifacts", second_temporary_file_of_an_attempt_that_was_lost_once),
    ("artifacts", failure_that_no_disk_explains),
    ("leases", in_two_batches),
    ("leases", in_a_batch_while_its_row_has_a_lease),
    ("leases", in_a_batch_while_it_waits_to_be_adopted),
    ("leases", claimed_though_a_batch_holds_it),
    ("leases", batch_reaped_too_early),
    ("leases", written_down_after_it_left_its_batch),
    ("leases", lease_over_a_lease),
    ("leases", reaped_too_early),
    ("leases", old_token_again),
    ("fencing", settled_by_a_stale_owner),
    ("fencing", settled_by_somebody_behind_the_pooler),
    ("fencing", settled_in_no_batch),
    ("fencing", settled_in_a_batch_of_another),
    ("fencing", settled_by_its_owner_with_another_token),
    ("fencing", put_back_in_no_batch),
    ("fencing", cancelled_while_a_batch_held_it),
    ("attempts", attempt_skipped),
    ("attempts", more_attempts_than_allowed),
    ("attempts", adopted_as_another_attempt),
    ("adoption", queued_before_orphans),
    ("adoption", batch_before_orphans),
    ("slots", batch_of_more_than_slots),
    ("slots", batch_beside_a_row_in_one_slot),
    ("slots", more_than_slots),
    ("closed lanes", claimed_while_switched_off),
    ("closed lanes", claimed_while_held),
    ("closed lanes", claimed_after_a_hold_though_switched_off),
    ("starvation", claimed_too_late),
    ("starvation", claimed_too_late_by_all_that_was_healthy),
    ("starvation", adopted_too_late),
    ("starvation", never_claimed_at_all),
    ("never started", failed_though_its_handler_never_began),
    ("never started", timed_out_though_its_handler_never_began),
    ("duplicate runs", ran_again_while_its_worker_was_healthy),
    ("duplicate runs", ran_again_while_its_worker_was_only_blocked),
    ("duplicate runs", ran_twice_under_one_lease),
    ("cron", fired_twice),
    ("cron", fire_forgotten),
    ("cron", fired_without_a_job),
    ("leader", leads_out_of_its_term),
    ("leader", two_leaders_in_turns),
    ("leaderless", fired_too_late),
    ("leaderless", promoted_too_late),
    ("leaderless", promoted_too_late_by_a_leader_that_is_not_replaced),
    ("leaderless", reaped_too_late),
    ("drain", left_behind),
    ("drain", batch_left_behind),
    ("drain", drained_too_late),
    ("leaks", leaked),
]


def test_a_clean_history_passes() -> None:
    assert not check(lost_and_found().record)


@pytest.mark.parametrize(("rule", "breach"), BREACHES, ids=lambda value: getattr(value, "__name__", None))
def test_a_breach_is_seen_by_its_rule_alone(rule: str, breach: Callable[[Book], None]) -> None:
    book = lost_and_found()
    breach(book)
    assert book.broken == {rule}


def test_every_rule_is_proved() -> None:
    assert {rule for rule, _ in BREACHES} == RULES.keys()


def test_fewer_slots_forbid_only_new_claims() -> None:
    book = Book()
    book.record.lanes = [LaneEdit(BEGIN, "lane", 2, True)]
    for job in (1, 2, 3):
        book.enqueue(job)
    book.claim(1, 1)
    book.claim(2, 2)
    book.record.lanes.append(LaneEdit(book.now, "lane", 1, True))
    book.end(1)
    book.end(2)
    book.claim(3, 3)
    book.end(3)
    assert not book.broken


def while_the_server_was_away(book: Book) -> None:
    book.live_from_now("a")
    book.enqueue(3)
    book.outage(SERVER, 6)
    book.now += timedelta(seconds=7)
    book.claim(3, 7)
    book.end(3)


def while_its_worker_was_frozen(book: Book) -> None:
    book.live_from_now("a")
    book.enqueue(3)
    book.outage("a", 6)
    book.now += timedelta(seconds=7)
    book.claim(3, 7)
    book.end(3)


def while_nobody_served_its_lane(book: Book) -> None:
    book.record.lives.append(WorkerLife("a", book.now, lanes=("another",)))
    book.enqueue(3)
    book.now += timedelta(seconds=7)
    book.claim(3, 7)
    book.end(3)


def while_its_worker_was_blocked(book: Book) -> None:
    book.live_from_now("a")
    book.enqueue(3)
    book.record.blocks.append(Block("a", book.now, book.now + timedelta(seconds=6)))
    book.now += timedelta(seconds=7)
    book.claim(3, 7)
    book.end(3)


def while_its_lane_was_off(book: Book) -> None:
    book.live_from_now("a")
    book.enqueue(3)
    book.record.switches.append(LaneSwitch(book.now, "lane", enabled=False))
    book.now += timedelta(seconds=7)
    book.record.switches.append(LaneSwitch(book.now, "lane", enabled=True))
    book.claim(3, 7)
    book.end(3)


def while_its_lane_was_held(book: Book) -> None:
    book.live_from_now("a")
    book.enqueue(3)
    book.record.holds.append(LaneHold(book.now, "lane", held=True))
    book.now += timedelta(seconds=7)
    book.record.holds.append(LaneHold(book.now, "lane", held=False))
    book.claim(3, 7)
    book.end(3)


def while_its_lane_was_full(book: Book) -> None:
    book.live_from_now("a")
    book.enqueue(3)
    book.enqueue(4)
    book.claim(3, 7)
    for _ in range(7):
        book.renew(3)
    book.end(3)
    book.claim(4, 8)
    book.end(4)


def while_one_leader_after_the_other_was_lost(book: Book) -> None:
    book.live_from_now("z")
    book.enqueue(3, state="scheduled")
    book.change(3, run_at=book.now + STEP)
    for owner in ("a", "b", "c"):
        book.record.terms.append(Term(book.now, owner))
        book.outage(owner, 60)
        book.now += timedelta(seconds=2.5)
    book.promote(3)
    book.claim(3, 7)
    book.end(3)


def while_it_was_scheduled(book: Book) -> None:
    book.live_from_now("a")
    book.enqueue(3, state="scheduled")
    book.now += timedelta(seconds=7)
    book.promote(3)
    book.claim(3, 7)
    book.end(3)


@pytest.mark.parametrize(
    "wait",
    [
        while_the_server_was_away,
        while_its_worker_was_frozen,
        while_nobody_served_its_lane,
        while_its_worker_was_blocked,
        while_its_lane_was_off,
        while_its_lane_was_held,
        while_its_lane_was_full,
        while_it_was_scheduled,
        while_one_leader_after_the_other_was_lost,
    ],
)
def test_a_job_may_wait(wait: Callable[[Book], None]) -> None:
    book = Book()
    wait(book)
    assert not book.broken


def ran_too_late_for_its_lease(book: Book) -> None:
    """The reply to its claim waited until a blocked loop had time for it."""
    book.live_from_now("a")
    book.enqueue(1)
    book.claim(1, 7)
    book.reap(1)
    adopt(book, 1, 8)
    book.put_back(1, state="queued")
    book.claim(1, 9, "b")
    book.start(1)
    book.record.runs.append(HandlerRun(1, 1, "a", book.now + STEP / 2))
    book.end(1)


def test_a_run_that_began_after_its_lease_was_lost_is_not_the_first() -> None:
    book = Book()
    ran_too_late_for_its_lease(book)
    assert not book.broken


def lost_with_its_worker(book: Book) -> None:
    book.outage("a", 60)


def lost_behind_a_locked_row(book: Book) -> None:
    book.record.row_locks.append(RowLock(1, book.now, book.now + timedelta(seconds=60)))


def lost_with_the_server_away(book: Book) -> None:
    book.outage(SERVER, 60)


@pytest.mark.parametrize("cause", [lost_with_its_worker, lost_behind_a_locked_row, lost_with_the_server_away])
@pytest.mark.parametrize("runs", [False, True], ids=["never begun", "begun"])
def test_a_last_attempt_may_be_lost_for_a_reason(cause: Callable[[Book], None], runs: bool) -> None:
    book = Book()
    book.live_from_now("a")
    book.enqueue(1, max_attempts=1)
    cause(book)
    book.claim(1, 7)
    book.start(1, runs=runs)
    book.reap(1)
    adopt(book, 1, 8)
    book.end(1, "failed")
    assert not book.broken


@pytest.mark.parametrize("cause", [lost_with_its_worker, lost_behind_a_locked_row, lost_with_the_server_away])
def test_a_job_may_run_again_for_a_reason(cause: Callable[[Book], None]) -> None:
    book = Book()
    book.live_from_now("a")
    book.enqueue(1)
    cause(book)
    book.claim(1, 7)
    book.start(1)
    book.reap(1)
    adopt(book, 1, 8)
    book.put_back(1, state="queued")
    book.claim(1, 9, "b")
    book.start(1)
    book.end(1)
    assert not book.broken


def test_a_job_runs_again_when_its_attempt_has_ended() -> None:
    book = Book()
    book.live_from_now("a")
    book.enqueue(1)
    book.claim(1, 7)
    book.start(1)
    book.put_back(1, "a", state="queued")
    book.claim(1, 8)
    book.start(1)
    book.end(1)
    assert not book.broken
