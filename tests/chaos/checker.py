"""The rules that every run must hold, each a function from the record to what broke it.

Where an instant matters it is that of the commit, which is when others could see a write. Rules give the engine the
benefit of the doubt only where a statement may rightly have seen either of two states.
"""

import errno
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby, pairwise

from tests.chaos import artifacts
from tests.chaos.batches import HELD, LEADER, unfold
from tests.chaos.record import CLIENT, Ended, Entry, Fate, Fire, LaneEdit, Record, Write

DRAIN_WITHIN = 60.0
ROWS_SHOWN = 40
NO_SPACE = os.strerror(errno.ENOSPC)
LOST = "lost"
"""What the engine says of attempts whose worker is gone."""

# A commit's time is taken a little before others can see it.
UNSEEN = timedelta(milliseconds=250)


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule, and the history that broke it."""

    rule: str
    text: str
    rows: tuple[Write, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        told = self.rows if len(self.rows) <= ROWS_SHOWN else [row for row in self.rows if not row.renews]
        shown = "".join(f"\n    {row}" for row in told[-ROWS_SHOWN:])
        return f"{self.rule}: {self.text}{shown}"


Found = Iterator[tuple[str, tuple[Write, ...]]]


class Story:
    """A record, sorted in the ways that rules look at it."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.history = unfold(record)
        self.ended: dict[int, list[Ended]] = defaultdict(list)
        for ended in record.ended:
            self.ended[ended.id].append(ended)
        self.of_job: dict[int, list[Write]] = defaultdict(list)
        for write in self.history:
            self.of_job[write.job].append(write)
        self.left = {left.id for left in record.left}
        self.left_keys = {left.key for left in record.left}

    def rows(self, job: int) -> tuple[Write, ...]:
        return tuple(self.of_job.get(job, ()))

    def by_commit(self, lane: str) -> Iterator[list[Write]]:
        """The transactions that wrote a lane's live jobs, in the order in which they became visible."""
        mine = [write for write in self.history if write.lane == lane and write.op in ("UPDATE", "DELETE")]
        grouped = defaultdict[int, list[Write]](list)
        for write in mine:
            grouped[write.xid].append(write)
        # Of two at the same microsecond the one that gives slots back may have been seen by the other.
        yield from sorted(grouped.values(), key=lambda writes: (writes[0].committed, sum(map(_slots, writes))))

    @property
    def lanes(self) -> set[str]:
        return {write.lane for write in self.history}


def check(record: Record) -> list[Violation]:
    """Every violation of every rule."""
    story = Story(record)
    return [Violation(name, text, rows) for name, rule in RULES.items() for text, rows in rule(story)]


def ends(story: Story) -> Found:
    """Every acknowledged enqueue reached one terminal state; none lost, none invented."""
    by_key: dict[str, list[Ended]] = defaultdict(list)
    for ended in story.record.ended:
        if ended.parent is None and ended.submitted_by is None:
            by_key[ended.key or f"job {ended.id} without a key"].append(ended)
    entries = {entry.key: entry for entry in story.record.ledger}
    for key, made in by_key.items():
        if key not in entries:
            yield f"job {made[0].id} ({key}) was invented", story.rows(made[0].id)
    for entry in entries.values():
        yield from _fate(story, entry, by_key.get(entry.key, []))
    for batch in _batches(entries):
        there = sum(bool(by_key.get(entry.key)) or entry.key in story.left_keys for entry in batch)
        if there not in (0, len(batch)):
            yield f"of the {len(batch)} jobs of batch {batch[0].batch} only {there} exist", ()
    children: dict[tuple[int, str | None], int] = {}
    for ended in story.record.ended:
        if ended.parent is None:
            continue
        if ended.parent not in story.ended and ended.parent not in story.left:
            yield f"child {ended.id} has no parent", story.rows(ended.id)
        other = children.setdefault((ended.parent, ended.spawn_key), ended.id)
        if other != ended.id:
            yield f"children {other} and {ended.id} of job {ended.parent} are the same child", story.rows(ended.id)
    for job, writes in story.of_job.items():
        if len(story.ended.get(job, ())) + (job in story.left) != 1:
            yield f"job {job} is {len(story.ended.get(job, ()))} times among the finished ones", tuple(writes)
        deleted = [write.xid for write in writes if write.op == "DELETE"]
        finished = [write.xid for write in writes if write.op == "END"]
        if deleted != finished or any(write.op == "TAMPER" for write in writes):
            yield (
                f"job {job} left its table and ended in different transactions, or changed after its end",
                tuple(writes),
            )


def _fate(story: Story, entry: Entry, made: list[Ended]) -> Found:
    rows = story.rows(made[0].id) if made else ()
    if entry.key in story.left_keys:
        return  # the rule of draining speaks of it
    if (
        entry.ordered
        and entry.fate in (Fate.UNKNOWN, Fate.ACKNOWLEDGED)
        and bool(made) != (entry.key in story.record.orders)
    ):
        yield f"{entry.key} and the client's own row, of one transaction, are not both there or both not", rows
    match entry.fate:
        case Fate.ACKNOWLEDGED if len(made) != 1:
            yield f"{entry.key} was acknowledged (job {entry.job}) and ended {len(made)} times", rows
        case Fate.ACKNOWLEDGED if made and entry.job is not None and made[0].id != entry.job:
            yield f"{entry.key} was acknowledged as job {entry.job} and is job {made[0].id}", rows
        case Fate.UNKNOWN if len(made) > 1:
            yield f"{entry.key} was enqueued once and ended {len(made)} times", rows
        case Fate.UNDONE | Fate.EXISTING if made:
            yield f"{entry.key} was {entry.fate} and yet is job {made[0].id}", rows
        case Fate.EXISTING if entry.job not in story.ended and entry.job not in story.left:
            yield f"{entry.key} was said to be job {entry.job}, which doesn't exist", ()
        case _:
            pass


def _batches(entries: dict[str, Entry]) -> Iterator[list[Entry]]:
    found: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries.values():
        if entry.batch is not None:
            found[entry.batch].append(entry)
    yield from found.values()


def inside(story: Story) -> Found:
    """What handlers wrote in their job's transaction is there once if the job succeeded, else not at all."""
    written: dict[int, list[int]] = defaultdict(list)
    for effect in story.record.effects:
        if effect.sort == "inside":
            written[effect.job].append(effect.attempt)
    for job, ended in ((job, all_ended[0]) for job, all_ended in story.ended.items()):
        wanted = ended.state == "succeeded" and ended.effects in ("inside", "both")
        if len(written.get(job, ())) != wanted:
            found = len(written.get(job, ()))
            yield f"job {job} {ended.state} and has {found} effects in its transaction, not {wanted:d}", story.rows(job)
        elif wanted and written[job] != [ended.attempt]:
            yield f"job {job} ended with attempt {ended.attempt}, its effect is of {written[job][0]}", story.rows(job)
    for job in written.keys() - story.ended.keys():
        yield f"job {job} has not ended and has an effect in its transaction", story.rows(job)


def outside(story: Story) -> Found:
    """Other effects come once an attempt; one more only where a lease was lost before the start was written."""
    times: dict[tuple[int, int], int] = defaultdict(int)
    for effect in story.record.effects:
        if effect.sort == "outside":
            times[effect.job, effect.attempt] += 1
    for (job, attempt), count in times.items():
        unseen_starts = sum(_may_have_begun(write, attempt) for write in story.of_job.get(job, ()))
        counted = any(write.new is not None and write.after.attempt >= attempt for write in story.of_job.get(job, ()))
        if count > counted + unseen_starts:
            explained = f"{counted:d} counted and {unseen_starts} lost before its start was written"
            yield f"attempt {attempt} of job {job} had its effect {count} times ({explained})", story.rows(job)


def _may_have_begun(write: Write, attempt: int) -> bool:
    """A lease lost with nothing written of the start. The last attempt begins only after that, so it had not begun."""
    return (
        write.orphans
        and not write.before.started
        and write.before.attempt == attempt - 1
        and attempt < write.before.max_attempts
    )


def files(story: Story) -> Found:
    """An artifact is there, whole, if its job succeeded; none is half; only lost attempts leave temporary names."""
    kept = {artifact.job: artifact.content for artifact in story.record.artifacts if artifact.attempt is None}
    for job, ended in ((job, all_ended[0]) for job, all_ended in story.ended.items()):
        if ended.kind != artifacts.KIND:
            continue
        if ended.state == "succeeded" and job not in kept:
            yield f"job {job} succeeded and left no artifact", story.rows(job)
        elif ended.state != "succeeded" and not any(reason in (ended.error or "") for reason in (NO_SPACE, LOST)):
            yield f"job {job} {ended.state} though neither disk nor worker failed: {ended.error}", story.rows(job)
    for job, content in kept.items():
        if content != artifacts.content(job):
            size = len(artifacts.content(job))
            yield f"the artifact of job {job} is not whole: {len(content)} bytes instead of {size}", story.rows(job)
        if job not in story.of_job:
            yield f"an artifact is there of job {job}, which never was", ()
    left = Counter((artifact.job, artifact.attempt) for artifact in story.record.artifacts if artifact.attempt)
    for (job, attempt), count in left.items():
        lost = sum(_lost(write, attempt) for write in story.of_job.get(job, ()))
        if count > lost:
            text = f"attempt {attempt} of job {job} left {count} temporary files and was lost {lost} times"
            yield text, story.rows(job)


def _lost(write: Write, attempt: int) -> bool:
    """Its lease was lost, whether its start was written by then or not."""
    return write.orphans and write.before.attempt + (not write.before.started) == attempt


def leases(story: Story) -> Found:
    """Never two valid leases on a job: one is given only where none is, and taken away only when it ran out."""
    for job, writes in story.of_job.items():
        newest = 0
        for write in writes:
            if write.op != "UPDATE":
                continue
            old, new = write.before.token, write.after.token
            if new and write.batch and write.before.state != "queued":
                yield f"batch {new} took job {job}, which was {write.before.state}", tuple(writes)
            elif new and new != old:
                if old:
                    yield f"job {job} got token {new} while {old} was in force", tuple(writes)
                if new <= newest:
                    yield f"job {job} got token {new} again, or an older one than {newest}", tuple(writes)
                newest = max(newest, new)
            early = write.before.until is not None and write.before.until > write.begun
            if write.app == LEADER and write.orphans and early:
                yield f"job {job} was reaped before its lease ran out", tuple(writes)


def fencing(story: Story) -> Found:
    """Nobody but the holder of the lease in force wrote to a running job; the leader only cleared leases.

    Without one a queued job is claimed and nothing else. The client ends what doesn't run; what runs it only asks to.
    """
    known = {write.writer for write in story.history if write.writer and write.app != LEADER}
    for job, writes in story.of_job.items():
        for write in writes:
            if write.op not in ("UPDATE", "DELETE"):
                continue
            if not write.before.token:
                if not _needs_no_lease(write):
                    yield f"job {job}, {write.before.state}, was written to without a lease", tuple(writes)
            elif write.writer == CLIENT and write.before == write.new:
                continue
            elif write.app == LEADER:
                if not write.orphans:
                    yield f"the leader wrote to job {job} under another's lease", tuple(writes)
            # Behind a pooler writers are not known; that it was none of those who are is.
            elif write.writer != write.before.owner and (write.writer or write.before.owner in known):
                who = write.writer or "somebody behind the pooler"
                yield f"job {job} was written to by {who} under the lease of {write.before.owner}", tuple(writes)


def _needs_no_lease(write: Write) -> bool:
    if write.op == "DELETE":
        return write.writer == CLIENT and write.before.state not in ("running", HELD)
    return write.before.state not in ("queued", HELD) or (write.claims and bool(write.after.token))


def attempts(story: Story) -> Found:
    """Attempts grow one by one, only while running, and stay within what is allowed; a snooze allows one more."""
    for job, writes in story.of_job.items():
        for write in writes:
            if write.new is not None and write.after.attempt > write.after.max_attempts:
                yield f"job {job} has attempt {write.after.attempt} of {write.after.max_attempts}", tuple(writes)
            if write.op != "UPDATE":
                continue
            old, new = write.before, write.after
            grown, allowed = new.attempt - old.attempt, new.max_attempts - old.max_attempts
            if grown not in (0, 1) or (grown and old.state != "running"):
                yield f"job {job} went from attempt {old.attempt} to {new.attempt} while {old.state}", tuple(writes)
            put_back = old.state == "running" and new.state in ("scheduled", "queued")
            if allowed not in (0, 1) or (allowed and not put_back):
                yield f"job {job} may have {new.max_attempts} attempts instead of {old.max_attempts}", tuple(writes)
            if write.adopts and (old.attempt, old.started) != (new.attempt, new.started):
                yield f"job {job} was adopted and its attempt did not keep its number", tuple(writes)


def adoption(story: Story) -> Found:
    """Orphans are adopted before anything queued is claimed.

    One may be passed while its former owner, about to learn that it is late, has a lock on it. One that was there to be
    adopted when a claim was done may not be passed by the next.
    """
    for lane in story.lanes:
        adoptable: dict[int, Write] = {}
        for writes in story.by_commit(lane):
            for write in writes:
                adoptable.pop(write.job, None)
            claim = next((write for write in writes if write.claims), None)
            if claim is None:
                continue
            for job in claim.passed:
                earlier = adoptable.setdefault(job, claim)
                if earlier.committed < claim.begun:
                    text = f"jobs {earlier.job} and {claim.job} were claimed while job {job} waited to be adopted"
                    yield text, (*story.rows(job), earlier, claim)


def slots(story: Story) -> Found:
    """A claim, or a parent's return, never takes a lane above its `max_slots`; a lane that drains claims nothing."""
    for lane in story.lanes:
        edits = [edit for edit in story.record.lanes if edit.name == lane]
        running: dict[int, Write] = {}
        for writes in story.by_commit(lane):
            for write in writes:
                running.pop(write.job, None)
                if write.new is not None and write.after.takes_slot:
                    running[write.job] = write
            if not any(_slots(write) > 0 for write in writes):
                continue
            valid = _in_force(edits, writes[0].begun - UNSEEN, writes[0].committed)
            most = max((edit.max_slots for edit in valid), default=0)
            if len(running) > most:
                yield f"lane {lane} ran {len(running)} jobs in {most} slots", tuple(running.values())
            if any(write.claims for write in writes) and not any(edit.enabled for edit in valid):
                yield f"lane {lane} claimed while it was to drain", tuple(writes)


def _slots(write: Write) -> int:
    """How many more slots are taken after a write."""
    taken = write.new is not None and write.after.takes_slot
    return taken - (write.old is not None and write.before.takes_slot)


def _in_force(edits: list[LaneEdit], begin: datetime, end: datetime) -> list[LaneEdit]:
    """Every form that a lane's row had in a span of time."""
    before = [edit for edit in edits if edit.committed <= begin]
    return before[-1:] + [edit for edit in edits if begin < edit.committed <= end]


def cron(story: Story) -> Found:
    """Every due time fired once; those that passed while nobody led are answered by one firing, of the latest."""
    by_name: dict[str, list[Fire]] = defaultdict(list)
    for fire in story.record.fires:
        by_name[fire.name].append(fire)
    for name, fires in by_name.items():
        fired = sorted(fire.job for fire in fires if fire.job is not None and fire.job not in story.left)
        made = sorted(ended.id for ended in story.record.ended if ended.submitted_by == f"schedule {name}")
        if fired != made:
            yield f"schedule {name} fired {len(fired)} times and made {len(made)} jobs", ()
        expected: datetime | None = None
        for fire in fires:
            for text in _faults_of_fire(fire, expected):
                yield f"schedule {name}: {text}", story.rows(fire.job) if fire.job else ()
            expected = fire.next_at


def _faults_of_fire(fire: Fire, expected: datetime | None) -> Iterator[str]:
    """Schedules of these tests are due every few seconds of the minute."""
    step = int(fire.cron.split()[0].removeprefix("*/"))
    latest = datetime.fromtimestamp(fire.begun.timestamp() // step * step, UTC)
    if expected is not None and fire.was != expected:
        yield f"{expected} was to be next, and {fire.was} was"
    if fire.due is None:
        if fire.was is not None and fire.was <= fire.begun:
            yield f"{fire.was} did not fire"
        return
    if fire.job is None:
        yield f"{fire.due} made no job"
    if fire.due != latest:
        yield f"{fire.due} fired at {fire.begun}, when {latest} was the latest due time"
    if fire.was is not None and fire.due < fire.was:
        yield f"{fire.due} fired again, {fire.was} was next"
    if fire.next_at != fire.due + timedelta(seconds=step):
        yield f"after {fire.due} comes {fire.next_at}"


def leader(story: Story) -> Found:
    """Whoever acted as the leader held the lock while it did, and no two took turns."""
    acts = [write for write in story.history if write.app == LEADER]
    for write in story.history:
        promoted = write.op == "UPDATE" and (write.before.state, write.after.state) == ("scheduled", "queued")
        if promoted and write.app != LEADER:
            yield f"job {write.job} was promoted by {write.app}", (write,)
    for write in acts:
        if not write.leads:
            yield f"{write.writer or write.session} acted as the leader without the lock", (write,)
            break
    terms = [(session, list(writes)) for session, writes in groupby(acts, key=lambda write: write.session)]
    seen: set[object] = set()
    for (_, before), (session, term) in pairwise(terms):
        seen.add(before[0].session)
        if session in seen:
            yield "two leaders acted in turns", (*before[-3:], *term[:3])
            break


def drain(story: Story) -> Found:
    """When the faults have stopped, everything ends, in bounded time."""
    for left in story.record.left:
        yield f"job {left.id} is still {left.state}", story.rows(left.id)
    for batch in story.record.left_batches:
        yield f"batch {batch.token} still holds jobs {batch.ids}", ()
    if story.record.time_to_drain > DRAIN_WITHIN:
        yield f"it took {story.record.time_to_drain:.1f} s until nothing was left", ()


def leaks(story: Story) -> Found:
    """No connection, thread or process outlives the workers."""
    for leak in story.record.leaks:
        yield leak, ()


RULES: dict[str, Callable[[Story], Found]] = {
    "ends": ends,
    "inside effects": inside,
    "outside effects": outside,
    "artifacts": files,
    "leases": leases,
    "fencing": fencing,
    "attempts": attempts,
    "adoption": adoption,
    "slots": slots,
    "cron": cron,
    "leader": leader,
    "drain": drain,
    "leaks": leaks,
}


def adoptions(record: Record) -> int:
    return sum(write.adopts for write in unfold(record))


def met_full_disk(record: Record) -> int:
    """How many jobs had an attempt end by it."""
    return sum(NO_SPACE in (ended.error or "") for ended in record.ended)


def lost_leases(record: Record) -> int:
    return sum(write.orphans for write in unfold(record))
