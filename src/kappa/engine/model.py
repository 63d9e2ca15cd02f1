"""What the engine speaks of: jobs, their states and the ways between them, lanes, schedules, outcomes."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from kappa.engine.errors import EngineError, LaneError

MAX_LANE_SLOTS = 16
MAX_ASYNC_SLOTS = 1000
PRIORITIES = range(-32767, 32768)
ATTEMPTS = range(1, 32768)
LONGEST = timedelta(days=36_525)
"""No job waits or runs for longer: a century. A time too far off could be read by nobody, nor any list that has it."""


def checked_interval(name: str, value: object, refusal: type[EngineError] = EngineError) -> timedelta:
    """A span of time that a job can have, or an error that says what is wrong with it."""
    if not isinstance(value, timedelta):
        raise refusal(f"{name} is a timedelta, not {value!r}")
    if value > LONGEST:
        raise refusal(f"{name} is {LONGEST.days} days at most, not {value}")
    return value


class JobState(StrEnum):
    """Where a job is on its way; equal to its name, as in `job.state == "queued"`."""

    AWAITING_APPROVAL = "awaiting_approval"
    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        return not TRANSITIONS[self]


_S = JobState

TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    _S.AWAITING_APPROVAL: frozenset({_S.QUEUED, _S.CANCELLED}),
    _S.SCHEDULED: frozenset({_S.QUEUED, _S.CANCELLED}),
    _S.QUEUED: frozenset({_S.RUNNING, _S.CANCELLED}),
    _S.RUNNING: frozenset({_S.SUCCEEDED, _S.FAILED, _S.TIMED_OUT, _S.CANCELLED, _S.SCHEDULED, _S.QUEUED}),
    _S.SUCCEEDED: frozenset(),
    _S.FAILED: frozenset(),
    _S.TIMED_OUT: frozenset(),
    _S.CANCELLED: frozenset(),
}
"""Every way there is. The statements guard them; this table names them, and tests compare the two."""


class Executor(StrEnum):
    """Where a lane's handlers run."""

    THREAD = "thread"
    PROCESS = "process"
    ASYNC = "async"
    FLEET = "fleet"


@dataclass(frozen=True, slots=True)
class Lane:
    """A row of `lanes`: which kinds, how many at once, how often to look."""

    name: str
    kinds: tuple[str, ...] = ()
    max_slots: int = 1
    poll_interval_ms: int = 2000
    lease_ttl: timedelta = timedelta(seconds=60)
    stale_timeout: timedelta = timedelta(minutes=30)
    enabled: bool = True
    executor: Executor = Executor.THREAD
    held_by: int | None = None
    """The job that holds the lane for as long as it runs, whatever `enabled` says; only read."""

    @property
    def is_open(self) -> bool:
        """Whether anything is claimed from it."""
        return self.enabled and self.held_by is None

    def __post_init__(self) -> None:
        """Types, and names where they stand for what they name; numbers are the database's to judge."""
        kinds: Any = self.kinds
        if isinstance(kinds, str) or not all(isinstance(kind, str) for kind in kinds):
            raise LaneError(f"lane {self.name!r}: kinds are names, as in kinds=('welcome', 'goodbye'), not {kinds!r}")
        object.__setattr__(self, "kinds", tuple(dict.fromkeys(kinds)))
        try:
            object.__setattr__(self, "executor", Executor(self.executor))
        except ValueError:
            known = ", ".join(Executor)
            raise LaneError(f"lane {self.name!r}: executor is one of {known}, not {self.executor!r}") from None
        for column in ("max_slots", "poll_interval_ms"):
            number: object = getattr(self, column)
            if not isinstance(number, int) or isinstance(number, bool):
                raise LaneError(f"lane {self.name!r}: {column} is a whole number, not {number!r}")
        for column in ("lease_ttl", "stale_timeout"):
            span: object = getattr(self, column)
            if not isinstance(span, timedelta):
                raise LaneError(f"lane {self.name!r}: {column} is a timedelta, not {span!r}")
        if self.enabled not in (True, False):
            raise LaneError(f"lane {self.name!r}: enabled is True or False, not {self.enabled!r}")


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it was read."""

    id: int
    lane: str
    kind: str
    state: JobState
    priority: int
    payload: Any
    created_at: datetime
    submitted_by: str | None
    dedup_key: str | None
    parent_id: int | None
    spawn_key: str | None
    retry_of: int | None
    run_at: datetime | None
    estimate: Any
    expires_at: datetime | None
    approved_by: str | None
    approved_at: datetime | None
    timeout: timedelta | None
    max_attempts: int
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    lease_owner: str | None
    lease_until: datetime | None
    waiting: bool
    reason: str | None
    result: Any
    progress_done: float | None
    progress_total: float | None
    progress_message: str | None
    checkpoint: Any
    error_summary: str | None
    error_detail: str | None


@dataclass(frozen=True, slots=True)
class JobPage:
    """Jobs, the newest first, and where older ones begin."""

    jobs: list[Job]
    next: int | None
    """What to give as `before` for older ones; None if there are none. A page may be short, or empty, and have it."""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Something that happened to a job that runs: `lease_ran_out`, `released`, `adopted` or `put_back`."""

    at: datetime
    event: str
    attempt: int
    owner: str | None
    detail: str | None


@dataclass(frozen=True, slots=True)
class Relative:
    """A child of a job, or a live retry of it."""

    id: int
    kind: str
    state: JobState
    bond: str


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """A worker as it last gave a sign of life."""

    owner: str
    host: str
    pid: int
    lanes: list[str]
    leads: bool
    started_at: datetime
    seen_at: datetime
    running: int


@dataclass(frozen=True, slots=True)
class Needs:
    """What a job needs of the remote worker that does it. Only fleet lanes look at it."""

    cores: float = 0
    memory_mb: int = 0
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What became of an enqueue: a new job, or the live one with the same `dedup_key`."""

    id: int
    created: bool

    @property
    def status(self) -> str:
        return "created" if self.created else "existing"


class Claimed(NamedTuple):
    """A job under a lease of this worker's."""

    id: int
    kind: str
    payload: str
    attempt: int
    max_attempts: int
    claims: int
    token: int
    adopted: bool
    started: bool
    seconds_left: float
    cancel_reason: str | None
    priority: int
    token_floor: int | None
    parent_id: int | None
    waited: float
    """Seconds from when it could be claimed until it was."""
    light: bool
    """Whether its lease is that of a batch, and stands in no row of its own yet."""


@dataclass(frozen=True, slots=True)
class Retry:
    """An outcome: try again, as an attempt that counts, after a while or by the usual backoff."""

    after: timedelta | None = None
    summary: str = "the handler asked for a retry"

    def __post_init__(self) -> None:
        if self.after is not None:
            checked_interval("after", self.after)


@dataclass(frozen=True, slots=True)
class Snooze:
    """An outcome: not yet. Runs again after a while; the attempt doesn't use up any."""

    after: timedelta

    def __post_init__(self) -> None:
        checked_interval("after", self.after)


@dataclass(frozen=True, slots=True)
class Cancel:
    """An outcome: this job ends as `cancelled`."""

    reason: str


@dataclass(frozen=True, slots=True)
class Schedule:
    """A row of `schedules`: when to enqueue what."""

    name: str
    cron: str
    kind: str
    payload: Any = None
    timezone: str = "UTC"
    priority: int = 0
    enabled: bool = True
    missed: str = "fire_once"
    next_at: datetime | None = None
    last_at: datetime | None = None
    last_job: int | None = None
    failures: int = 0
    retry_at: datetime | None = None
    error: str | None = None
