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
from tests.chaos.health import END, Health
from tests.chaos.record import (
    CLIENT,
    Ended,
    Entry,
    Fate,
    Fire,
    HandlerRun,
    LaneEdit,
    LaneHold,
    LaneSwitch,
    Live,
    Record,
    Write,
)

DRAIN_WITHIN = 60.0
STARVED_AFTER = 2
"""Leases for which a lane may have work and claim nothing. A worker looks every half second, tries again half a second
after an error, and connects again a second after its connection broke; a lane that stands still does so until a lease,
and the reaper's round after it, are over."""
ROWS_SHOWN = 40
NO_SPACE = os.strerror(errno.ENOSPC)
LOST = "lost"
"""What the engine says of attempts whose worker is gone."""
LEADERLESS_AFTER = 2
"""Leases that what only a leader does may be late, beside the time to replace a leader that is out of order."""

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


Change = list[Write] | LaneEdit | LaneSwitch | LaneHold


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
        self.health = Health(record)
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

    def changes_of_lane(self, lane: str) -> Iterator[tuple[datetime, "Change"]]:
        """Every transaction, edit, switch and hold that concerns a lane, in the order in which others saw them."""
        grouped = defaultdict[int, list[Write]](list)
        jobs = {write.job for write in self.history if write.lane == lane}
        for write in self.history:
            if write.job in jobs and write.op in ("INSERT", "UPDATE", "DELETE"):
                grouped[write.xid].append(write)
        changes: list[tuple[datetime, Change]] = [(writes[-1].committed, writes) for writes in grouped.values()]
        record = self.record
        changes += [(edit.committed, edit) for edit in record.lanes if edit.name == lane]
        changes += [(switch.committed, switch) for switch in record.switches if switch.lane == lane]
        changes += [(hold.committed, hold) for hold in record.holds if hold.lane == lane]
        yield from sorted(changes, key=lambda change: change[0])

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
    found: dict[str, list[Entry]] = defaultdict(list)
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
    """A claim, or a parent's return, never takes a lane above its `max_slots`."""
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


def _slots(write: Write) -> int:
    """How many more slots are taken after a write."""
    taken = write.new is not None and write.after.takes_slot
    return taken - (write.old is not None and write.before.takes_slot)


def _in_force(edits: list[LaneEdit], begin: datetime, end: datetime) -> list[LaneEdit]:
    """Every form that a lane's row had in a span of time."""
    before = [edit for edit in edits if edit.committed <= begin]
    return before[-1:] + [edit for edit in edits if begin < edit.committed <= end]


def closed_lanes(story: Story) -> Found:
    """A lane claims nothing while it is switched off, or held for a job beside which nothing else may run."""
    for lane in story.lanes:
        switches = [(switch.committed, switch.enabled) for switch in story.record.switches if switch.lane == lane]
        holds = [(hold.committed, not hold.held) for hold in story.record.holds if hold.lane == lane]
        for writes in story.by_commit(lane):
            if not any(write.claims for write in writes):
                continue
            span = writes[0].begun - UNSEEN, writes[0].committed
            if not _was_open(switches, *span):
                yield f"lane {lane} claimed while it was switched off", tuple(writes)
            elif not _was_open(holds, *span):
                yield f"lane {lane} claimed while it was held", tuple(writes)


def _was_open(changes: list[tuple[datetime, bool]], begin: datetime, end: datetime) -> bool:
    """Whether a lane was open at any instant of a span. It is, until a change says otherwise."""
    before = [is_open for at, is_open in changes if at <= begin]
    return (before[-1] if before else True) or any(is_open for at, is_open in changes if begin < at <= end)


def starvation(story: Story) -> Found:
    """A lane that has work and a free slot claims in time while a worker is healthy, whatever else goes wrong.

    Only time counts in which some worker was able to claim. An orphan is work for any lane; what is queued only for
    one that is on and not held.
    """
    limit = STARVED_AFTER * story.record.lease
    for lane in story.lanes:
        for begin, end, rows in _idle(story, lane):
            idle = story.health.ready(lane, begin, end)
            if idle > limit:
                text = f"lane {lane} had work and a free slot and claimed nothing for {idle.total_seconds():.1f} s"
                yield f"{text}, {begin:%T.%f} to {end:%T.%f}, while a worker was healthy", tuple(rows)


def _idle(story: Story, lane: str) -> Iterator[tuple[datetime, datetime, list[Write]]]:
    """The spans in which a lane had something to claim and did not, each with the write that ended it, if any."""
    work = _Work()
    since: datetime | None = None
    at = datetime.min.replace(tzinfo=UTC)
    for at, change in story.changes_of_lane(lane):
        if since is not None and isinstance(change, list) and any(write.claims or write.adopts for write in change):
            yield since, at, change
            since = None
        work.apply(change, lane)
        if not work.is_claimable:
            if since is not None:
                yield since, at, change if isinstance(change, list) else []
            since = None
        elif since is None:
            since = at
    if since is not None:
        yield since, at, []


class _Work:
    """What a lane has to do, and whether it may."""

    def __init__(self) -> None:
        self._rows: dict[int, Live] = {}
        self._queued: set[int] = set()
        self._orphans: set[int] = set()
        self._busy: set[int] = set()
        self._max_slots = 0
        self._enabled = True
        self._held = False

    def apply(self, change: "Change", lane: str) -> None:
        match change:
            case LaneEdit():
                self._max_slots = change.max_slots
            case LaneSwitch():
                self._enabled = change.enabled
            case LaneHold():
                self._held = change.held
            case _:
                for write in change:
                    self._write(write, lane)

    def _write(self, write: Write, lane: str) -> None:
        for jobs in (self._queued, self._orphans, self._busy):
            jobs.discard(write.job)
        if write.new is None or write.lane != lane:
            return
        if write.after.state == "queued":
            self._queued.add(write.job)
        if write.after.state == "running" and not write.after.token:
            self._orphans.add(write.job)
        if write.after.takes_slot:
            self._busy.add(write.job)

    @property
    def is_claimable(self) -> bool:
        is_open = self._enabled and not self._held and len(self._busy) < self._max_slots
        return bool(self._orphans) or (is_open and bool(self._queued))


def never_started(story: Story) -> Found:
    """What failed or timed out had begun.

    Only a worker that is lost between the start, which is written first, and the work may leave such a job.
    """
    ran = {run.job for run in story.record.runs}
    for ended in story.record.ended:
        if ended.state not in ("failed", "timed_out") or ended.id in ran:
            continue
        starts = [write for write in story.rows(ended.id) if write.orphans and write.before.started]
        if not any(_lost_for_a_reason(story, write) for write in starts):
            yield f"job {ended.id} {ended.state} and its handler never began: {ended.error}", story.rows(ended.id)


def duplicate_runs(story: Story) -> Found:
    """No handler runs again while the worker that ran it was healthy and had reported nothing."""
    runs: dict[int, list[HandlerRun]] = defaultdict(list)
    for run in sorted(story.record.runs, key=lambda run: run.begin):
        runs[run.job].append(run)
    for job, times in runs.items():
        if len(times) < 2:
            continue
        writes = story.rows(job)
        leases = [write for write in writes if write.op == "UPDATE" and write.after.token and write.gives_lease]
        begun = Counter(token for run in times if (token := _lease_of(run, leases)) is not None)
        for token, count in begun.items():
            if count > 1:
                yield f"job {job} ran {count} times under token {token}", writes
        for lost in [write for write in writes if write.orphans]:
            before = [
                run for run in times if run.begin < lost.committed and _lease_of(run, leases) == lost.before.token
            ]
            after = [run for run in times if run.begin > lost.committed]
            if before and after and not _lost_for_a_reason(story, lost):
                text = f"job {job} ran again at {after[0].begin:%T.%f} though {lost.before.owner}, which ran it at"
                yield f"{text} {before[-1].begin:%T.%f} under token {lost.before.token}, was healthy", writes


def _lease_of(run: HandlerRun, leases: list[Write]) -> int | None:
    """The token of the lease under which a handler began."""
    mine = [write for write in leases if write.after.owner == run.owner and write.begun <= run.begin]
    return mine[-1].after.token if mine else None


def _lost_for_a_reason(story: Story, orphaned: Write) -> bool:
    """Whether its worker could not keep a lease: it, or its way to the row, was out of order until it ran out.

    Renewals come every quarter of a lease, so half of one is enough for a worker that is well.
    """
    until = orphaned.before.until
    if until is None:
        return True
    last = until - story.record.lease
    end = min(until, orphaned.begun)
    if any(lock.job == orphaned.job and lock.begin < end and lock.end > last for lock in story.record.row_locks):
        return True
    return story.health.connected(orphaned.before.owner, last, end) < story.record.lease / 2


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
    """Whoever acted as the leader did so in its term, and no two took turns."""
    acts = [write for write in story.history if write.app == LEADER]
    for write in story.history:
        promoted = write.op == "UPDATE" and (write.before.state, write.after.state) == ("scheduled", "queued")
        if promoted and write.app != LEADER:
            yield f"job {write.job} was promoted by {write.app}", (write,)
    for write in acts:
        if not write.leads:
            yield f"{write.writer or write.session} acted as the leader out of its term", (write,)
            break
    terms = [(session, list(writes)) for session, writes in groupby(acts, key=lambda write: write.session)]
    seen: set[object] = set()
    for (_, before), (session, term) in pairwise(terms):
        seen.add(before[0].session)
        if session in seen:
            yield "two leaders acted in turns", (*before[-3:], *term[:3])
            break


def leaderless(story: Story) -> Found:
    """What only a leader does is done in time while a worker is healthy, whatever became of the leader.

    One that is out of order is replaced in bounded time. Schedules fire, scheduled jobs are queued, and the leases of a
    worker are cleared when it is gone and they ran out.
    """
    limit = LEADERLESS_AFTER * story.record.lease
    for what, due, done, rows in _errands(story):
        late = story.health.led(due, done)
        if late > limit:
            yield f"{what} was {late.total_seconds():.1f} s late at {done:%T.%f}, and a worker was healthy", rows


def _errands(story: Story) -> Iterator[tuple[str, datetime, datetime, tuple[Write, ...]]]:
    """What a leader did or was to do: what, when it was due, and when it was done."""
    over = max((write.committed for write in story.history), default=END)
    for fire in story.record.fires:
        if fire.was is not None and fire.due is not None:
            yield f"schedule {fire.name}", fire.was, fire.begun, ()
    ends = {life.owner: life.end for life in story.record.lives if life.end is not None}
    for job, writes in story.of_job.items():
        locks = [lock for lock in story.record.row_locks if lock.job == job]
        for write, following in pairwise([*writes, None]):
            if write is None or write.new is None or write.op == "END":
                continue
            done = following.committed if following else over
            if any(lock.begin < done and lock.end > write.committed for lock in locks):
                continue
            live = write.after
            if live.state == "scheduled" and live.run_at is not None:
                yield f"job {job}, scheduled,", live.run_at, done, tuple(writes)
            elif live.token and live.until is not None and live.owner in ends:
                gone = max(live.until, ends[live.owner])
                yield f"job {job}, of {live.owner}, which was gone,", gone, done, tuple(writes)


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
    "closed lanes": closed_lanes,
    "starvation": starvation,
    "never started": never_started,
    "duplicate runs": duplicate_runs,
    "cron": cron,
    "leader": leader,
    "leaderless": leaderless,
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


def longest_wait(record: Record) -> float:
    """For how many seconds a lane had work and a free slot, and a worker was healthy, until it claimed."""
    story = Story(record)
    waits = (story.health.ready(lane, begin, end) for lane in story.lanes for begin, end, _ in _idle(story, lane))
    return max(waits, default=timedelta()).total_seconds()


def latest_errand(record: Record) -> float:
    """How many seconds too late, while a worker was healthy, something was done that only a leader does."""
    story = Story(record)
    late = (story.health.led(due, done) for _, due, done, _ in _errands(story))
    return max(late, default=timedelta()).total_seconds()
