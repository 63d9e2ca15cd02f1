"""What a run left behind, as values: the client's ledger, the history of every row, effects, ends.

The checker reads nothing else, so a history made by hand is judged like one of a real run.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from tests.chaos.artifacts import Artifact

CLIENT = "client"
"""Whose writes those of the client are."""

SERVER = "server"
"""Whose outages are everybody's."""


class Live(NamedTuple):
    """A row of `kappa.jobs` before or after a write, as far as rules speak of it."""

    state: str
    token: int | None = None
    owner: str | None = None
    until: datetime | None = None
    attempt: int = 0
    max_attempts: int = 1
    started: bool = False
    waiting: bool = False
    run_at: datetime | None = None

    @property
    def takes_slot(self) -> bool:
        return self.state == "running" and not self.waiting


@dataclass(frozen=True, slots=True)
class Write:
    """One write of one row, by one backend, in one transaction.

    `op` is INSERT, UPDATE or DELETE of a live job, END for its row among the finished ones, TAMPER for a change there.
    """

    seq: int
    at: datetime
    begun: datetime
    committed: datetime
    xid: int
    op: str
    job: int
    lane: str
    kind: str = "kind"
    old: Live | None = None
    new: Live | None = None
    app: str = "kappa queue"
    writer: str | None = None
    leads: bool | None = None
    session: tuple[int, datetime] | None = None
    passed: tuple[int, ...] = ()
    """For a claim: orphans of the lane that could have been adopted when it was done."""
    batch: bool = False
    """What was written is the lease that the job shares with its batch; its own row stayed as it was."""

    @property
    def claims(self) -> bool:
        """A queued job gets its lease."""
        return self.op == "UPDATE" and self.before.state == "queued" and self.after.state == "running"

    @property
    def adopts(self) -> bool:
        """An orphan gets a new one."""
        return (
            self.op == "UPDATE" and self.before.state == "running" and not self.before.token and bool(self.after.token)
        )

    @property
    def gives_lease(self) -> bool:
        """By a claim, by an adoption, or by the claim of a batch."""
        return self.op == "UPDATE" and bool(self.after.token) and self.before.token != self.after.token

    @property
    def orphans(self) -> bool:
        """A lease is cleared and the job still counts as running: reaped, or released by its owner.

        Also when its batch was reaped while somebody, about to cancel it, had a lock on its row.
        """
        cleared = self.op == "UPDATE" and bool(self.before.token) and not self.after.token
        return cleared and (self.after.state == "running" or self.batch)

    @property
    def renews(self) -> bool:
        return (
            self.op == "UPDATE"
            and self.before.token is not None
            and self.before == self.after._replace(until=self.before.until)
        )

    @property
    def before(self) -> Live:
        assert self.old is not None
        return self.old

    @property
    def after(self) -> Live:
        assert self.new is not None
        return self.new

    def __str__(self) -> str:
        def show(live: Live | None) -> str:
            if live is None:
                return "—"
            lease = f" token {live.token} of {live.owner} until {live.until:%T.%f}" if live.until else ""
            waiting = " waiting" if live.waiting else ""
            return f"{live.state} {live.attempt}/{live.max_attempts}{' begun' if live.started else ''}{waiting}{lease}"

        op = "BATCH" if self.batch else self.op
        return (
            f"{self.seq:>7} {self.at:%T.%f} committed {self.committed:%T.%f} xid {self.xid} {op:<6} "
            f"job {self.job} ({self.kind}, {self.lane}) {show(self.old)} → {show(self.new)} "
            f"by {self.writer or 'unknown'} ({self.app}{'' if self.leads is None else f', leads {self.leads}'})"
        )


@dataclass(frozen=True, slots=True)
class BatchWrite:
    """One write of a row of `kappa.batch_leases`: which jobs it held before and after."""

    seq: int
    at: datetime
    begun: datetime
    committed: datetime
    xid: int
    op: str
    token: int
    lane: str
    owner: str
    until: datetime
    old: tuple[int, ...] = ()
    new: tuple[int, ...] = ()
    app: str = "kappa queue"
    writer: str | None = None
    leads: bool | None = None
    session: tuple[int, datetime] | None = None
    passed: tuple[int, ...] = ()


class LaneEdit(NamedTuple):
    committed: datetime
    name: str
    max_slots: int
    enabled: bool


class LaneSwitch(NamedTuple):
    """An operator's word that a lane is to be on or off, whatever else closes it."""

    committed: datetime
    lane: str
    enabled: bool


class LaneHold(NamedTuple):
    """From now on a lane is held, or not any more, for a job beside which nothing else may run."""

    committed: datetime
    lane: str
    held: bool


class WorkerLife(NamedTuple):
    """A worker's time from its first claim to the moment when it was killed or told to end; None if neither came."""

    owner: str
    begin: datetime
    end: datetime | None = None
    leads: bool = True
    """Whether it may."""
    lanes: tuple[str, ...] | None = None
    """Those that it serves; None if all."""


class Term(NamedTuple):
    """From now on this worker leads, until the next term begins."""

    committed: datetime
    owner: str


class Outage(NamedTuple):
    """A span in which a worker, or with SERVER all of them, could not be expected to work, recovery included."""

    who: str
    begin: datetime
    end: datetime
    what: str = ""


class Block(NamedTuple):
    """A span in which a handler kept its worker's event loop from everything else."""

    owner: str
    begin: datetime
    end: datetime


class RowLock(NamedTuple):
    """A span in which a client had a job's row locked."""

    job: int
    begin: datetime
    end: datetime


class HandlerRun(NamedTuple):
    """A handler began, by its own word, which no database and no network can lose."""

    job: int
    attempt: int
    owner: str
    begin: datetime


class Fire(NamedTuple):
    """One change of a schedule's row. `due` and `job` are those of a firing; None where it only moved on."""

    begun: datetime
    name: str
    was: datetime | None
    due: datetime | None
    next_at: datetime | None
    job: int | None
    cron: str


class Effect(NamedTuple):
    """What a handler wrote: `inside` of the job's transaction, or `outside` of any."""

    job: int
    attempt: int
    sort: str


class Ended(NamedTuple):
    """A row of `kappa.finished_jobs`."""

    id: int
    kind: str
    state: str
    attempt: int
    max_attempts: int
    key: str | None = None
    parent: int | None = None
    spawn_key: str | None = None
    submitted_by: str | None = None
    dedup_key: str | None = None
    effects: str | None = None
    error: str | None = None
    """The last one there was, also of a job that succeeded after it."""


class Left(NamedTuple):
    """A row of `kappa.jobs` when the run was over."""

    id: int
    state: str
    key: str | None = None


class LeftBatch(NamedTuple):
    """A row of `kappa.batch_leases` when the run was over."""

    token: int
    ids: list[int]


class Fate(StrEnum):
    """What the client knows of something that it enqueued."""

    ACKNOWLEDGED = "acknowledged"
    UNKNOWN = "unknown"
    """The connection broke on the way: it may or may not exist."""
    EXISTING = "existing"
    """Another live job had the same dedup key; this one was not made."""
    UNDONE = "undone"
    """Enqueued in a transaction that was rolled back."""


@dataclass(slots=True)
class Entry:
    """One enqueue, by the key in its payload."""

    key: str
    fate: Fate
    job: int | None = None
    batch: str | None = None
    ordered: bool = False
    """Enqueued together with a row of `chaos_orders`, in one transaction."""


@dataclass
class Record:
    """Everything about one run."""

    ledger: list[Entry] = field(default_factory=list)
    history: list[Write] = field(default_factory=list)
    batches: list[BatchWrite] = field(default_factory=list)
    lanes: list[LaneEdit] = field(default_factory=list)
    fires: list[Fire] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    orders: set[str] = field(default_factory=set)
    ended: list[Ended] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    left_batches: list[LeftBatch] = field(default_factory=list)
    artifacts: list[Artifact] = field(default_factory=list[Artifact])
    switches: list[LaneSwitch] = field(default_factory=list[LaneSwitch])
    holds: list[LaneHold] = field(default_factory=list[LaneHold])
    lives: list[WorkerLife] = field(default_factory=list[WorkerLife])
    terms: list[Term] = field(default_factory=list[Term])
    outages: list[Outage] = field(default_factory=list[Outage])
    blocks: list[Block] = field(default_factory=list[Block])
    row_locks: list[RowLock] = field(default_factory=list[RowLock])
    runs: list[HandlerRun] = field(default_factory=list[HandlerRun])
    lease: timedelta = timedelta(seconds=2)
    """How long a lease of any lane lasts."""
    leaks: list[str] = field(default_factory=list)
    time_to_drain: float = 0.0
    """Seconds from the last fault's end until nothing was left."""
