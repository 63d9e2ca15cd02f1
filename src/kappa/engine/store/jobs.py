"""Statements about jobs: in, through a lease, and out.

Whatever an owner writes is guarded by id, state and lease token; what comes back is what was still its own.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from kappa.engine.model import Claimed, Job, JobState, Needs
from kappa.pg import queries
from kappa.pg.ops import Op, interval_text, nothing
from kappa.pg.queries import Query, Row

sql = queries.beside(__file__)
ENQUEUE = sql["enqueue"]
ENQUEUE_NOW = sql["enqueue_now"]
ENQUEUE_SOME = sql["enqueue_some"]
ENQUEUE_TOGETHER = sql["enqueue_together"]
ENQUEUED_BEFORE = sql["enqueued_before"]
LANE_OF_KIND = sql["lane_of_kind"]
NEED = sql["need"]
NEED_THE_SAME = sql["need_the_same"]
COPY_IN = sql["copy_in"]
WAKE = sql["wake"]
ANNOUNCE_DUE = sql["announce_due"]
CLAIM = sql["claim"]
CLAIM_AT_REST = sql["claim_at_rest"]
WRITE_DOWN = sql["write_down"]
MARK_STARTED = sql["mark_started"]
RENEW = sql["renew"]
SETTLE_SUCCEEDED = sql["settle_succeeded"]
SETTLE = sql["settle"]
SETTLE_OWN = sql["settle_own"]
PUT_BACK = sql["put_back"]
RELEASE = sql["release"]
PROGRESS = sql["progress"]
CHECKPOINT = sql["checkpoint"]
READ_CHECKPOINT = sql["read_checkpoint"]
RELEASE_SLOT = sql["release_slot"]
LOCK_LANE = sql["lock_lane"]
SHARE_LEASE = sql["share_lease"]
REACQUIRE_SLOT = sql["reacquire_slot"]
LOCKED = sql["locked"]
CHILDREN = sql["children"]
SPAWN = sql["spawn"]
APPROVE = sql["approve"]
AUTO_APPROVE = sql["auto_approve"]
ASK_FOR_APPROVAL = sql["ask_for_approval"]
AUTO_APPROVED = sql["auto_approved"]
CANCEL_BEFORE_START = sql["cancel_before_start"]
LIVE_CHILDREN = sql["live_children"]
REQUEST_CANCEL = sql["request_cancel"]
PRIORITISE = sql["prioritise"]
SHOW = sql["show"]
SHOW_MANY = sql["show_many"]
KEEP = sql["keep"]
SNOOZES = sql["snoozes"]
LIST_JOBS = sql["list_jobs"]
LIST_LIVE = sql["list_live"]
LIST_UNWELL = sql["list_unwell"]
LIST_OF = sql["list_of"]
STRETCH = sql["stretch"]
COUNT_BY_STATE = sql["count_by_state"]


@dataclass(slots=True)
class NewJob:
    """What goes into a row of `jobs`. The payload is JSON text."""

    kind: str
    payload: str
    priority: int = 0
    submitted_by: str | None = None
    dedup_key: str | None = None
    parent_id: int | None = None
    spawn_key: str | None = None
    retry_of: int | None = None
    run_at: datetime | None = None
    delay: timedelta | None = None
    approval: bool = False
    estimate: str | None = None
    approved_by: str | None = None
    timeout: timedelta | None = None
    max_attempts: int = 1


@dataclass(frozen=True, slots=True)
class Finish:
    """A terminal settlement."""

    id: int
    token: int
    state: JobState
    result: str | None = None
    reason: str | None = None
    summary: str | None = None
    detail: str | None = None
    started: bool = True


@dataclass(frozen=True, slots=True)
class PutBack:
    """A settlement that isn't terminal. Without a delay the job is queued at once."""

    id: int
    token: int
    delay: float = 0.0
    snoozed: bool = False
    summary: str | None = None
    detail: str | None = None
    started: bool = True


class Exchanged(NamedTuple):
    """What a claim brought."""

    claimed: list[Claimed]
    lost: set[int]
    """Of those that came along to be settled: what was no longer the caller's."""
    full: bool
    """Whether all of the lane's slots are taken now."""


_id = attrgetter("id")

Ages = Mapping[int, float]
"""How many seconds ago each job's attempt began, where its start wasn't written at once."""
NEW: Ages = {}


def _first(rows: list[Row]) -> Any:
    return rows[0][0] if rows else None


def _first_column(rows: list[Row]) -> set[int]:
    return {row[0] for row in rows}


def _any(rows: list[Row]) -> bool:
    return bool(rows)


def need(job_id: int, needs: Needs) -> Op[None]:
    params = {"id": job_id, "cores": needs.cores, "memory_mb": needs.memory_mb, "labels": list(needs.labels)}
    return Op(NEED, params, nothing)


def need_the_same(job_id: int, as_job: int) -> Op[None]:
    return Op(NEED_THE_SAME, {"id": job_id, "as": as_job}, nothing)


def is_usual(job: NewJob) -> bool:
    """Whether it is to run as soon as it can, and that is all."""
    return not (
        job.approval or job.dedup_key or job.spawn_key or job.retry_of or job.approved_by
        or job.run_at or job.delay or job.estimate
    )  # fmt: skip


# Who is told of new jobs follows from the connection. A statement that commits by itself wakes the lane only if
# somebody sleeps there, as a NOTIFY takes a lock that all commits share. In a longer transaction, the caller's or one
# of ours, it always does: who will sleep when that commits is unknown.


def enqueue(job: NewJob) -> Op[int | None]:
    """The new job's id; None if the kind has no lane or the job is there already."""
    in_transaction = partial(_enqueue, job, always_notify=True)
    if not is_usual(job):
        return replace(_enqueue(job, always_notify=False), in_transaction=in_transaction)
    params = {
        "kind": job.kind,
        "payload": job.payload,
        "priority": job.priority,
        "submitted_by": job.submitted_by,
        "timeout": job.timeout,
        "max_attempts": job.max_attempts,
    }
    return Op(ENQUEUE_NOW, params, _first, first_number=True, in_transaction=in_transaction)


def _enqueue(job: NewJob, *, always_notify: bool) -> Op[int | None]:
    params = {name: getattr(job, name) for name in NewJob.__slots__} | {"always_notify": always_notify}
    return Op(ENQUEUE, params, _first, first_number=True)


def enqueue_together(usual: Sequence[NewJob]) -> Op[list[int]]:
    """Their ids, in their order. An error if a kind has no lane."""
    params = {
        "kinds": _text_array(job.kind for job in usual),
        "payloads": _text_array(job.payload for job in usual),
        "priorities": _array(job.priority for job in usual),
        "submitters": _text_array(job.submitted_by for job in usual),
        "timeouts": _text_array(interval_text(job.timeout) if job.timeout else None for job in usual),
        "max_attempts": _array(job.max_attempts for job in usual),
    }
    return Op(ENQUEUE_TOGETHER, params, lambda rows: rows[0][0])


def enqueue_some(like: NewJob, payloads: Sequence[str]) -> Op[int | None]:
    """How many; None if the kind has no lane. They are like the one but for their payloads."""
    names = ("kind", "priority", "submitted_by", "run_at", "timeout", "max_attempts")
    params = {name: getattr(like, name) for name in names} | {"payloads": _text_array(payloads)}

    def op(*, always_notify: bool) -> Op[int | None]:
        return Op(ENQUEUE_SOME, params | {"always_notify": always_notify}, _first, first_number=True)

    return replace(op(always_notify=False), in_transaction=partial(op, always_notify=True))


def enqueued_before(job: NewJob) -> Op[int | None]:
    keys = {"dedup_key": job.dedup_key, "parent_id": job.parent_id, "spawn_key": job.spawn_key}
    return Op(ENQUEUED_BEFORE, keys, _first)


def lane_of_kind(kind: str) -> Op[str | None]:
    return Op(LANE_OF_KIND, {"kind": kind}, _first)


def wake(lane: str) -> Op[None]:
    return Op(WAKE, {"lane": lane}, nothing)


def announce_due(run_at: datetime) -> Op[None]:
    return Op(ANNOUNCE_DUE, {"run_at": run_at}, nothing)


def claim(
    lane: str,
    owner: str,
    capacity: int,
    kinds: Sequence[str] | None = None,
    floor: tuple[int, int] = (-32769, 0),
    floor_token: int = 0,
    light_kinds: Sequence[str] | None = None,
) -> Op[list[Claimed]]:
    """Orphans first, then queued jobs, as many as the lane has slots for."""
    op = exchange([], lane, owner, capacity, kinds, floor, floor_token, light_kinds)
    return Op(op.query, op.params, lambda rows: op.read(rows).claimed, binary=True)


def exchange(
    done: Sequence[tuple[int, int]],
    lane: str,
    owner: str,
    capacity: int,
    kinds: Sequence[str] | None = None,
    floor: tuple[int, int] = (-32769, 0),
    floor_token: int = 0,
    light_kinds: Sequence[str] | None = None,
) -> Op[Exchanged]:
    """Settle jobs that succeeded and have nothing to say, and claim others.

    A batch that has only jobs of the light kinds gets one lease for all of them.
    """
    params = {
        "lane": lane,
        "owner": owner,
        "capacity": capacity,
        "kinds": None if kinds is None else _text_array(kinds),
        "light_kinds": None if light_kinds is None else _text_array(light_kinds),
        "floor_rank": floor[0],
        "floor_id": floor[1],
        "floor_token": floor_token,
        **(_arrays(done) if done else {"ids": None, "tokens": None}),
    }
    return Op(CLAIM, params, _exchanged, binary=True)


def claim_at_rest(lane: str, owner: str, capacity: int, kinds: Sequence[str]) -> Op[Exchanged]:
    """As `exchange` with nothing to settle, for a lane that was just woken."""
    params = {"lane": lane, "owner": owner, "capacity": capacity, "kinds": _text_array(kinds)}
    return Op(CLAIM_AT_REST, params, _exchanged, binary=True)


def _exchanged(rows: list[Row]) -> Exchanged:
    full = bool(rows) and rows[-1][0] == 0
    if full:
        rows = rows[:-1]
    lost: set[int] = set()
    while len(lost) < len(rows) and rows[len(lost)][1] is None:
        lost.add(rows[len(lost)][0])
    return Exchanged(list(map(Claimed._make, rows[len(lost) :] if lost else rows)), lost, full)


# A batch locks its rows in the order of its arrays. All are sorted by id, or two of one worker could wait for each
# other.


def _held(query: Query, held: Sequence[tuple[int, int]], read: Callable[[list[Row]], Any]) -> Op[Any]:
    return Op(query, _arrays(held), read)


def _arrays(held: Sequence[tuple[int, int]]) -> dict[str, str]:
    held = sorted(held)
    return {"ids": _array(job for job, _ in held), "tokens": _array(token for _, token in held)}


def _array(numbers: Iterable[int]) -> str:
    """An array as PostgreSQL writes it: much quicker than having every element adapted."""
    return "{" + ",".join(map(str, numbers)) + "}"


def _ages(jobs: Iterable[int], ages: Ages) -> str:
    return "{" + ",".join(str(ages.get(job, 0)) for job in jobs) + "}"


def _text_array(texts: Iterable[str | None]) -> str:
    return "{" + ",".join("NULL" if text is None else _quoted(text) for text in texts) + "}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _kept(text: str | None) -> str | None:
    """A text as PostgreSQL can keep it: it has no NUL, and no half of a character."""
    return text and text.replace("\0", "\\0").encode(errors="backslashreplace").decode()


def write_down(job_id: int, token: int) -> Op[None]:
    """A job that is held by a batch gets its lease in its own row; any other is left as it is."""
    return _held(WRITE_DOWN, [(job_id, token)], nothing)


def mark_started(held: Sequence[tuple[int, int]], ages: Ages = NEW) -> Op[set[int]]:
    return Op(MARK_STARTED, _arrays(held) | {"ages": _ages(sorted(job for job, _ in held), ages)}, _first_column)


class Renewal(NamedTuple):
    """What became of a lease that is still the caller's."""

    cancel_reason: str | None
    renewed: bool
    """False if another session has the job's row locked: the lease could not be renewed yet."""


def renew(held: Sequence[tuple[int, int]]) -> Op[dict[int, Renewal]]:
    """The leases that are still the caller's. One that is missing is lost."""
    return _held(RENEW, held, lambda rows: {row[0]: Renewal(row[1], row[2]) for row in rows})


def release(held: Sequence[tuple[int, int]]) -> Op[set[int]]:
    return _held(RELEASE, held, _first_column)


def settle_succeeded(held: Sequence[tuple[int, int]]) -> Op[set[int]]:
    # The statement gives what was not written, which is nearly always nothing.
    return _held(SETTLE_SUCCEEDED, held, lambda lost: {job for job, _ in held} - _first_column(lost))


def settle(finished: Sequence[Finish], ages: Ages = NEW) -> Op[set[int]]:
    finished = sorted(finished, key=_id)
    params = {
        "ids": _array(one.id for one in finished),
        "tokens": _array(one.token for one in finished),
        "states": [one.state.value for one in finished],
        "results": [one.result for one in finished],
        "reasons": [_kept(one.reason) for one in finished],
        "summaries": [_kept(one.summary) for one in finished],
        "details": [_kept(one.detail) for one in finished],
        "started": [one.started for one in finished],
        "ages": _ages(map(_id, finished), ages),
    }
    return Op(SETTLE, params, _first_column)


def settle_own(finished: Finish, age: float) -> Op[bool]:
    """Settle in the handler's own transaction. True if the lease was still the caller's."""
    params = {
        "id": finished.id,
        "token": finished.token,
        "state": finished.state.value,
        "result": finished.result,
        "reason": _kept(finished.reason),
        "summary": _kept(finished.summary),
        "detail": _kept(finished.detail),
        "started": finished.started,
        "age": age,
    }
    return Op(SETTLE_OWN, params, _first)


def put_back(jobs: Sequence[PutBack], ages: Ages = NEW) -> Op[set[int]]:
    jobs = sorted(jobs, key=_id)
    params = {
        "ids": _array(one.id for one in jobs),
        "tokens": _array(one.token for one in jobs),
        "delays": [one.delay for one in jobs],
        "snoozed": [one.snoozed for one in jobs],
        "summaries": [_kept(one.summary) for one in jobs],
        "details": [_kept(one.detail) for one in jobs],
        "started": [one.started for one in jobs],
        "ages": _ages(map(_id, jobs), ages),
    }
    return Op(PUT_BACK, params, _first_column)


def progress(
    reports: Sequence[tuple[int, int, float | None, float | None, str | None]],
) -> Op[set[int]]:
    """Reports of (id, token, done, total, message)."""
    reports = sorted(reports, key=itemgetter(0))
    columns: list[list[Any]] = [[report[at] for report in reports] for at in range(4)]
    columns.append([_kept(report[4]) for report in reports])
    names = ("ids", "tokens", "done", "total", "messages")
    return Op(PROGRESS, dict(zip(names, columns, strict=True)), _first_column)


def checkpoint(job_id: int, token: int, value: str) -> Op[bool]:
    return Op(CHECKPOINT, {"id": job_id, "token": token, "value": value}, _any)


def read_checkpoint(job_id: int, token: int) -> Op[list[Any]]:
    """A list with the checkpoint, or an empty one if the lease is lost."""
    return Op(READ_CHECKPOINT, {"id": job_id, "token": token}, lambda rows: [row[0] for row in rows])


def release_slot(job_id: int, token: int) -> Op[bool]:
    return Op(RELEASE_SLOT, {"id": job_id, "token": token}, _any)


def lock_lane(lane: str) -> Op[None]:
    return Op(LOCK_LANE, {"lane": lane}, nothing)


def share_lease(token: int) -> Op[None]:
    """Begin a handler's own transaction: it is ended when the lease is lost."""
    return Op(SHARE_LEASE, {"token": token}, nothing)


def reacquire_slot(job_id: int, token: int) -> Op[bool | None]:
    """Whether the job has a slot again; None if its lease is lost."""
    return Op(REACQUIRE_SLOT, {"id": job_id, "token": token}, _first)


def locked(job_ids: Iterable[int]) -> Op[set[int]]:
    """Those whose rows another session has locked at this moment."""
    return Op(LOCKED, {"ids": _array(job_ids)}, _first_column)


def children(parent_id: int, keys: Sequence[str]) -> Op[dict[str, tuple[int, JobState, Any, str | None]]]:
    """For each spawn key: the child's id, state, result and error summary."""
    return Op(
        CHILDREN,
        {"parent_id": parent_id, "keys": list(keys)},
        lambda rows: {row[0]: (row[1], JobState(row[2]), row[3], row[4]) for row in rows},
    )


def spawn(held: tuple[int, int], key: str, new: NewJob) -> Op[tuple[bool, int | None]]:
    """Whether the lease is still the caller's, and the child with that key: a new one if there is none yet."""
    params = {"parent_id": held[0], "token": held[1], "key": key}
    params |= {name: getattr(new, name) for name in ("kind", "payload", "priority", "timeout", "max_attempts")}
    return Op(SPAWN, params, lambda rows: (rows[0][0], rows[0][1]))


def approve(job_id: int, by: str, now: datetime | None = None) -> Op[bool]:
    return Op(APPROVE, {"id": job_id, "by": by, "now": now}, _any)


def auto_approve(submitter: str, *, enabled: bool) -> Op[None]:
    return Op(AUTO_APPROVE if enabled else ASK_FOR_APPROVAL, {"submitter": submitter}, nothing)


def auto_approved() -> Op[list[str]]:
    return Op(AUTO_APPROVED, {}, lambda rows: [row[0] for row in rows])


def cancel_before_start(job_id: int, states: Sequence[JobState], reason: str) -> Op[bool]:
    from_states = [state.value for state in states]
    return Op(CANCEL_BEFORE_START, {"id": job_id, "from_states": from_states, "reason": reason}, _any)


def live_children(job_id: int) -> Op[list[int]]:
    return Op(LIVE_CHILDREN, {"parent_id": job_id}, lambda rows: [row[0] for row in rows])


def request_cancel(job_id: int, reason: str) -> Op[bool]:
    return Op(REQUEST_CANCEL, {"id": job_id, "reason": reason}, _any)


def prioritise(job_id: int, priority: int) -> Op[bool]:
    return Op(PRIORITISE, {"id": job_id, "priority": priority}, _any)


def keep(job_id: int) -> Op[None]:
    """Keep a finished job from being deleted before the transaction ends."""
    return Op(KEEP, {"id": job_id}, nothing)


def snoozes(job_id: int) -> Op[int]:
    """How often a job was snoozed, each of which let it have an attempt more."""
    return Op(SNOOZES, {"id": job_id}, lambda rows: rows[0][0] if rows else 0)


def show(job_id: int) -> Op[Job | None]:
    return Op(SHOW, {"id": job_id}, lambda rows: _seen(rows[0]) if rows else None)


def show_many(job_ids: Sequence[int]) -> Op[list[Job]]:
    return Op(SHOW_MANY, {"ids": list(job_ids)}, lambda rows: [_seen(row) for row in rows])


def list_jobs(
    *,
    states: Sequence[JobState] | None = None,
    kinds: Sequence[str] | None = None,
    lane: str | None = None,
    submitted_by: str | None = None,
    first: int = 0,
    before: int | None = None,
    limit: int = 50,
) -> Op[list[Job]]:
    """The newest first; `before` is the last id of the page before, and none below `first` is looked at."""
    params: dict[str, Any] = {
        "states": [state.value for state in states] if states is not None else None,
        "kinds": list(kinds) if kinds is not None else None,
        "lane": lane,
        "before": before,
        "limit": limit,
    }
    if states and not any(state.terminal for state in states):
        # As text: as a constant of its own type it lets the planner see which partial indexes fit.
        params["states"] = _text_array(state.value for state in states)
        query, params["submitted_by"] = LIST_LIVE, submitted_by
    elif states and JobState.SUCCEEDED not in states:
        query, params["submitted_by"] = LIST_UNWELL, submitted_by
    elif submitted_by is not None:
        query, params["submitted_by"] = LIST_OF, submitted_by
    else:
        query, params["first"] = LIST_JOBS, first
    return Op(query, params, lambda rows: [_job(row) for row in rows])


def lacks_index(
    states: Sequence[JobState] | None, kinds: Sequence[str] | None, lane: str | None, submitted_by: str | None
) -> bool:
    """Whether a list could read all of history to find few: nothing but the id leads to a kind or a lane there."""
    through = not states or JobState.SUCCEEDED in states
    return through and submitted_by is None and (kinds is not None or lane is not None)


def stretch(before: int | None, length: int) -> Op[tuple[int, int | None]]:
    """So many ids down from `before`: the first of them, and what to give as `before` for what is below, if any is."""
    return Op(STRETCH, {"before": before, "length": length}, lambda rows: rows[0] if rows else (0, None))


def count_by_state() -> Op[dict[tuple[str, JobState], int]]:
    return Op(COUNT_BY_STATE, {}, lambda rows: {(row[0], JobState(row[1])): row[2] for row in rows})


def _job(row: Row) -> Job:
    values = list(row)
    values[3] = JobState(values[3])
    return Job(*values)


def _seen(row: Row) -> Job:
    *columns, in_batch = row
    job = _job(tuple(columns))
    return replace(job, state=JobState.RUNNING) if in_batch else job
