"""The checker on histories made by hand: a clean one passes, and each rule sees what breaks it, alone."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.chaos.artifacts import KIND, Artifact, content
from tests.chaos.checker import RULES, check
from tests.chaos.record import Effect, Ended, Entry, Fate, Fire, LaneEdit, Left, Live, Record, Write

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

    def write(self, job: int, new: Live | None, *, op: str | None = None, **facts: Any) -> Write:
        old = self.live.get(job)
        self.now += STEP
        seq = len(self.record.history) + 1
        kept: dict[str, Any] = {"begun": self.now, "committed": self.now, "xid": seq, "writer": "a", **facts}
        op = op or ("INSERT" if old is None else "DELETE" if new is None else "UPDATE")
        write = Write(seq=seq, at=self.now, op=op, job=job, lane="lane", old=old, new=new, **kept)
        self.record.history.append(write)
        if new is None:
            self.live.pop(job)
        else:
            self.live[job] = new
        return write

    def change(self, job: int, *, facts: dict[str, Any] | None = None, **columns: Any) -> Write:
        return self.write(job, self.live[job]._replace(**columns), **(facts or {}))

    def enqueue(self, job: int, max_attempts: int = 3, state: str = "queued") -> None:
        self.record.ledger.append(Entry(f"j{job}", Fate.ACKNOWLEDGED, job))
        self.write(job, Live(state, max_attempts=max_attempts), writer=None)

    def claim(self, job: int, token: int, owner: str = "a") -> None:
        until = self.now + STEP + LEASE
        self.change(job, state="running", token=token, owner=owner, until=until, facts={"writer": owner})

    def start(self, job: int) -> None:
        live = self.live[job]
        self.change(job, attempt=live.attempt + 1, started=True, facts={"writer": live.owner})

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
    ) -> None:
        live = self.live[job]
        attempt = live.attempt + (not live.started)
        done = self.write(job, None, writer=writer or live.owner)
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
    book.fire(11, BEGIN, None)
    book.fire(12, BEGIN + timedelta(seconds=15), BEGIN + timedelta(seconds=5))
    return book


def adopt(book: Book, job: int, token: int, owner: str = "b") -> None:
    book.change(job, token=token, owner=owner, until=book.now + STEP + LEASE, facts={"writer": owner})


def never_ended(book: Book) -> None:
    book.record.ledger.append(Entry("j3", Fate.ACKNOWLEDGED, 3))


def ended_twice(book: Book) -> None:
    book.record.ended.append(book.record.ended[0])


def invented(book: Book) -> None:
    book.record.ledger.pop(0)


def half_a_batch(book: Book) -> None:
    book.record.ledger += [Entry("j1", Fate.UNKNOWN, batch=1), Entry("x", Fate.UNKNOWN, batch=1)]


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
    done = book.write(3, None, writer=None)
    book.record.history.append(replace(done, seq=done.seq + 1, op="END", old=None, new=Live("failed", attempt=1)))
    book.record.ended.append(Ended(3, "kind", "failed", 1, 3, "j3"))


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
    book.record.lanes.append(LaneEdit(BEGIN, "lane", 2, True))
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


def more_than_slots(book: Book) -> None:
    book.enqueue(3)
    book.enqueue(4)
    book.claim(3, 7)
    book.claim(4, 8)
    book.end(3)
    book.end(4)


def claimed_while_draining(book: Book) -> None:
    book.enqueue(3)
    book.record.lanes.append(LaneEdit(book.now, "lane", 1, False))
    book.claim(3, 7)
    book.end(3)


def fired_twice(book: Book) -> None:
    book.fire(13, BEGIN + timedelta(seconds=15), BEGIN + timedelta(seconds=20))


def fire_forgotten(book: Book) -> None:
    book.fire(13, BEGIN + timedelta(seconds=30), BEGIN + timedelta(seconds=30))


def fired_without_a_job(book: Book) -> None:
    book.record.fires[0] = book.record.fires[0]._replace(job=None)


def leads_without_the_lock(book: Book) -> None:
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


def left_behind(book: Book) -> None:
    book.enqueue(3)
    book.record.left.append(Left(3, "queued", "j3"))


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
    ("leases", lease_over_a_lease),
    ("leases", reaped_too_early),
    ("leases", old_token_again),
    ("fencing", settled_by_a_stale_owner),
    ("fencing", settled_by_somebody_behind_the_pooler),
    ("attempts", attempt_skipped),
    ("attempts", more_attempts_than_allowed),
    ("attempts", adopted_as_another_attempt),
    ("adoption", queued_before_orphans),
    ("slots", more_than_slots),
    ("slots", claimed_while_draining),
    ("cron", fired_twice),
    ("cron", fire_forgotten),
    ("cron", fired_without_a_job),
    ("leader", leads_without_the_lock),
    ("leader", two_leaders_in_turns),
    ("drain", left_behind),
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
