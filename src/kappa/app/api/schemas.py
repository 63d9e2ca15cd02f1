"""What goes over the wire. Durations are seconds; times carry their zone."""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

from kappa.engine import Executor, Job, JobState, Needs
from kappa.engine.fleet.wire import Label
from kappa.engine.tools import ToolLimits, ToolRunStatus

if TYPE_CHECKING:
    from kappa.app.usecases.workers import LaneNow
    from kappa.engine.tools import ToolRun

NO_NUL = r"^[^\x00]*$"
JobId = Annotated[int, Field(ge=1, le=2**63 - 1)]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._@-]{0,62}$")]
RoleName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
Kind = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_.:-]{0,127}$")]
Line = Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=NO_NUL)]
Password = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
# Strict: in a body `true` is no number and `"5"` none either.
Seconds = Annotated[float, Field(strict=True, gt=0, le=10 * 365 * 86400, allow_inf_nan=False)]
Priority = Annotated[int, Field(strict=True, ge=-32767, le=32767)]


ToolName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
Version = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,62}$")]
Word = Annotated[str, StringConstraints(max_length=10_000, pattern=NO_NUL)]


class Body(BaseModel):
    """A request's body: what it doesn't know, it refuses."""

    model_config = ConfigDict(extra="forbid")


class NeedsBody(Body):
    cores: Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)] = 0
    memory_mb: Annotated[int, Field(strict=True, ge=0, lt=2**31)] = 0
    labels: list[Label] = Field(default_factory=list[str], max_length=64)

    @property
    def value(self) -> Needs:
        return Needs(self.cores, self.memory_mb, tuple(self.labels))


class EnqueueJob(Body):
    kind: Kind = Field(examples=["self_test"])
    payload: Any = Field(default=None, examples=[{"steps": 3}])
    priority: Priority = 0
    at: AwareDatetime | None = Field(default=None, description="Not before this time")
    delay: Seconds | None = Field(default=None, description="Not before so many seconds are over")
    dedup_key: Line | None = Field(default=None, description="A live job with the same key is given back instead")
    timeout: Seconds | None = None
    max_attempts: Annotated[int, Field(strict=True, ge=1, le=32767)] | None = None
    auto_approve: bool = Field(default=False, strict=True, description="Approve it at once; needs `jobs:approve`")
    needs: NeedsBody | None = Field(default=None, description="What a remote worker must have; for fleet lanes")


class EnqueuedJob(BaseModel):
    id: int
    status: Literal["created", "existing"]


class Progress(BaseModel):
    done: float | None
    total: float | None
    message: str | None


class JobView(BaseModel):
    id: int
    kind: str
    lane: str
    state: JobState
    priority: int
    attempt: int
    max_attempts: int
    payload: Any
    result: Any
    progress: Progress | None
    estimate: Any
    reason: str | None
    error_summary: str | None
    error_detail: str | None = Field(description="The traceback, for those who have `workers:view`")
    submitted_by: str | None
    approved_by: str | None
    dedup_key: str | None
    parent_id: int | None
    retry_of: int | None
    timeout: float | None
    created_at: datetime
    approved_at: datetime | None
    run_at: datetime | None
    expires_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    lease_owner: str | None
    lease_until: datetime | None

    @classmethod
    def of(cls, job: Job, *, with_detail: bool) -> Self:
        reported = (job.progress_done, job.progress_total, job.progress_message)
        done, total, message = reported
        return cls(
            progress=None if reported == (None, None, None) else Progress(done=done, total=total, message=message),
            timeout=None if job.timeout is None else job.timeout.total_seconds(),
            error_detail=job.error_detail if with_detail else None,
            **{
                name: getattr(job, name)
                for name in cls.model_fields
                if name not in ("progress", "timeout", "error_detail")
            },
        )


class JobPage(BaseModel):
    items: list[JobView]
    next: int | None = Field(description="What to give as `before` for the next page; null on the last one")


class CancelJob(Body):
    reason: Line | None = None


class SetPriority(Body):
    priority: Priority


class LaneView(BaseModel):
    name: str
    kinds: list[str]
    max_slots: int
    slots_used: int
    poll_interval_ms: int
    lease_ttl: float
    stale_timeout: float
    enabled: bool
    held_by: int | None = Field(
        default=None, description="The job for which the lane is drained while it runs, whatever `enabled` says"
    )
    executor: Executor
    jobs: dict[JobState, int] = Field(description="Live jobs by state")

    @classmethod
    def of(cls, now: "LaneNow") -> Self:
        lane = now.lane
        return cls(
            name=lane.name,
            kinds=list(lane.kinds),
            max_slots=lane.max_slots,
            slots_used=now.slots_used,
            poll_interval_ms=lane.poll_interval_ms,
            lease_ttl=lane.lease_ttl.total_seconds(),
            stale_timeout=lane.stale_timeout.total_seconds(),
            enabled=lane.enabled,
            held_by=lane.held_by,
            executor=lane.executor,
            jobs=now.jobs,
        )


class EditLane(Body):
    kinds: list[Kind] | None = Field(default=None, max_length=500)
    max_slots: Annotated[int, Field(strict=True, ge=1, le=2**31 - 1)] | None = None
    poll_interval_ms: Annotated[int, Field(strict=True, ge=10, le=3_600_000)] | None = None
    lease_ttl: Annotated[float, Field(strict=True, ge=1, le=86400)] | None = None
    stale_timeout: Seconds | None = None
    enabled: bool | None = Field(
        default=None, strict=True, description="false drains: what runs finishes, nothing is claimed"
    )
    executor: Executor | None = None

    def changes(self) -> dict[str, Any]:
        given = {name: value for name, value in self if value is not None}
        for name in ("lease_ttl", "stale_timeout"):
            if name in given:
                given[name] = timedelta(seconds=given[name])
        if "executor" in given:
            given["executor"] = given["executor"].value
        return given


class WorkerView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    owner: str
    host: str
    pid: int
    lanes: list[str]
    leads: bool
    running: int
    started_at: datetime
    seen_at: datetime


class PoolView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    name: str
    size: int
    in_use: int
    waiting: int


class StatusView(BaseModel):
    version: str
    leader: str | None = Field(description="The worker that does the maintenance; null when none does")
    workers: list[WorkerView]
    lanes: list[LaneView]
    pools: list[PoolView] = Field(description="Connections of the server that answers")


class Me(BaseModel):
    name: str
    permissions: list[str]


class SignIn(Body):
    name: Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=NO_NUL)]
    password: Password


class SessionView(BaseModel):
    name: str
    permissions: list[str]
    expires_at: datetime
    csrf_token: str = Field(description="Goes into the header X-CSRF-Token of every change")


class ChangePassword(Body):
    password: Password


class MakeUser(Body):
    name: Name
    password: Password | None = None
    roles: list[RoleName] = Field(default_factory=list, max_length=100)


class ChangeUser(Body):
    enabled: bool | None = Field(default=None, strict=True)
    password: Password | None = None
    roles: list[RoleName] | None = Field(default=None, max_length=100)


class UserView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    name: str
    enabled: bool
    has_password: bool
    roles: list[str]
    permissions: list[str]
    created_at: datetime


class RoleView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    name: str
    permissions: list[str]
    builtin: bool
    users: int


class PutRole(Body):
    permissions: list[Line] = Field(max_length=500)


class PermissionView(BaseModel):
    name: str
    meaning: str


class MakeToken(Body):
    name: Line
    kinds: list[Kind] | None = Field(default=None, max_length=256, description="For a fleet worker: these kinds alone")
    machines: Annotated[int, Field(strict=True, ge=1, lt=2**31)] | None = Field(
        default=None, description="For fleet workers: so many of them at once"
    )
    requests_per_minute: Annotated[int, Field(strict=True, ge=1, lt=2**31)] | None = Field(
        default=None, description="For fleet workers: so many calls of all of them, at each server"
    )
    scopes: list[Line] | None = Field(default=None, max_length=500, description="Permissions; null: all of one's own")
    lasts: Seconds | None = Field(default=90 * 86400, description="Seconds until it expires; null: never")


class TokenView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: int
    user: str
    name: str
    scopes: list[str] | None
    kinds: list[str] | None
    machines: int | None
    requests_per_minute: int | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class NewTokenView(BaseModel):
    id: int
    expires_at: datetime | None
    token: str = Field(description="The secret. It is shown this once and never again")


class FleetWorkerView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    worker: str
    token_id: int
    kinds: list[str]
    cores: float
    memory_mb: int
    labels: list[str]
    slots: int
    version: str
    started_at: datetime
    seen_at: datetime
    running: int


class FleetPage(BaseModel):
    workers: int = Field(description="How many there are in all")
    items: list[FleetWorkerView]
    next: str | None = Field(description="What to give as `after` for the next page; null on the last one")


class RegisterTool(Body):
    name: ToolName = Field(examples=["word-count"])
    version: Version = Field(examples=["1.0"])
    description: Annotated[str, StringConstraints(max_length=2000, pattern=NO_NUL)] = ""
    argv: list[Word] = Field(default_factory=list[str], max_length=1000, description="The command")
    image: Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=NO_NUL)] | None = Field(
        default=None, description="A container image; without one the command runs as a process"
    )
    limits: ToolLimits = Field(default_factory=ToolLimits)
    timeout: Seconds = 600.0


class ChangeTool(Body):
    version: Version | None = Field(default=None, description="This version; null: all of them")
    enabled: bool


class ToolView(BaseModel):
    model_config = ConfigDict(from_attributes=True, ser_json_timedelta="float")

    name: str
    version: str
    description: str
    image: str | None
    argv: list[str]
    limits: dict[str, Any]
    timeout: timedelta
    enabled: bool
    created_by: str | None
    created_at: datetime


class RegisteredTool(ToolView):
    warning: str | None = Field(description="Set if this server has no sandbox for the tool")


class RunTool(Body):
    version: Version | None = Field(default=None, description="null: the newest that is enabled")
    inputs: Any = Field(default=None, description="Given to the tool in request.json")
    files: dict[str, str] = Field(
        default_factory=dict[str, str], max_length=100, description="Input files by name, in base64"
    )
    priority: Priority = 0
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 1


class ToolRunView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: int
    job_id: int
    tool: str
    version: str
    status: ToolRunStatus
    requested_by: str | None
    requested_at: datetime
    available_at: datetime | None = Field(
        default=None, description="When a queued run that backs off may be claimed; null: now, or it has begun or ended"
    )
    started_at: datetime | None
    finished_at: datetime | None
    attempt: int
    inputs: Any
    outputs: Any
    exit_code: int | None
    reason: str | None
    error_summary: str | None

    @classmethod
    def of(cls, run: "ToolRun") -> Self:
        return cls.model_validate(run)


class ToolRunPage(BaseModel):
    items: list[ToolRunView]
    next: int | None


class ToolLogs(BaseModel):
    attempt: int | None
    stdout: str
    stderr: str
    stdout_next: int = Field(description="Give it as `stdout_from` to read on")
    stderr_next: int


class ArtifactView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    path: str
    media_type: str | None
    size: int
    sha256: str


class AuditEntry(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: int
    at: datetime
    who: str
    action: str
    target: str
    detail: dict[str, Any]
    request_id: str | None


class AuditPage(BaseModel):
    items: list[AuditEntry]
    next: int | None


class Health(BaseModel):
    status: Literal["ok"]


class Ready(BaseModel):
    status: Literal["ready"]
