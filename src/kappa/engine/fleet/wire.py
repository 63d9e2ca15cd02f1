"""What is said between a fleet's workers and their server: the bodies of `/fleet/v1`, and why a call is refused.

Both ends import this module, so it imports nothing of either.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

PROTOCOL = 1
PREFIX = "/fleet/v1/"

NO_TIMEOUT = 1e9
"""Seconds, about 31 years. A number, because workers of protocol 1 expect one."""
MAX_TASKS_PER_REQUEST = 64
MAX_TASKS_PER_BEAT = 1000
MAX_WAIT = 60.0
SUMMARY_LIMIT = 1000
DETAIL_LIMIT = 20_000

Worker = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", description="A name that is one's own")]
RequestId = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$", description="New for every request")]
Kind = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.:-]{0,127}$")]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:=/-]{0,62}$")]
TaskId = Annotated[int, Field(ge=1, lt=2**63)]


class Refusal(StrEnum):
    """Why a call was not done: the `code` of the problem. What can be tried again says when, in `Retry-After`."""

    BUSY = "busy"
    DRAINING = "draining"
    UNAVAILABLE = "unavailable"
    LIMITED = "limited"
    TOO_MANY_MACHINES = "too_many_machines"
    NOT_AUTHENTICATED = "not_authenticated"
    FORBIDDEN = "forbidden"
    LOST = "lost"
    BAD_REQUEST = "bad_request"
    TOO_LARGE = "too_large"
    NOT_FOUND = "not_found"
    NO_SUCH_METHOD = "no_such_method"


class Said(BaseModel):
    """Anything that is said. Words that are not known are refused: a typing error must not pass for a wish."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Able(Said):
    """What a worker can do."""

    kinds: Annotated[list[Kind], Field(min_length=1, max_length=256)]
    cores: float = Field(default=1, ge=0, le=1_000_000)
    memory_mb: int = Field(default=0, ge=0, le=2**31 - 1)
    labels: Annotated[list[Label], Field(max_length=64)] = []


class Hello(Able):
    """A worker says who it is. Nothing depends on it but what it is told in return."""

    worker: Worker
    version: str = Field(default="", max_length=64)
    slots: int = Field(default=1, ge=1, le=10_000)


class Welcome(BaseModel):
    protocol: int = PROTOCOL
    server: str
    kinds: list[str] = Field(description="Of the declared kinds: those that the token allows and a fleet lane has")
    beat_seconds: float = Field(description="How often to beat; three that are missed lose the tasks")
    lease_seconds: float
    wait_seconds: float = Field(description="How long `request_task` may wait at most")
    tasks_per_request: int = MAX_TASKS_PER_REQUEST
    tasks_per_beat: int = MAX_TASKS_PER_BEAT
    max_body: int
    accepts_stale_timeout: bool = Field(default=False, description="Whether `update_task` may have a `stale_timeout`")


class RequestTask(Able):
    worker: Worker
    request_id: RequestId
    count: int = Field(default=1, ge=1, le=MAX_TASKS_PER_REQUEST)
    wait: float = Field(default=0, ge=0, le=MAX_WAIT, description="Seconds to wait for a task if there is none")


class Tool(BaseModel):
    """What a worker needs to know of a tool run."""

    run_id: int
    tool: str
    version: str
    image: str | None
    argv: list[str]
    limits: dict[str, Any]
    timeout_seconds: float
    inputs: Any
    input_files: list[str]


class Task(BaseModel):
    """A job under a lease of this worker's."""

    task: int = Field(description="The job's id")
    token: int = Field(description="The lease's token; goes with every word about this task")
    kind: str
    lane: str
    payload: Any
    attempt: int = Field(description="The number that the attempt will have once it has begun")
    max_attempts: int
    seconds_left: float = Field(
        description=f"Until the time-out, counted from the attempt's start; {NO_TIMEOUT:.0f} if there is none"
    )
    lease_seconds: float
    checkpoint: Any = None
    tool: Tool | None = None


class Tasks(BaseModel):
    tasks: list[Task]
    retry_after: float | None = Field(default=None, description="Seconds until it makes sense to ask again")


class Held(Said):
    task: TaskId
    token: TaskId


class Beat(Said):
    worker: Worker
    tasks: Annotated[list[Held], Field(max_length=MAX_TASKS_PER_BEAT)] = []


class Verdict(StrEnum):
    """What a worker must know of a task of its. `ok` is not said."""

    LOST = "lost"
    CANCEL = "cancel"
    TIMED_OUT = "timed_out"


class Notice(BaseModel):
    task: int
    verdict: Verdict
    reason: str | None = None


class Beaten(BaseModel):
    beat_seconds: float
    notices: list[Notice] = Field(description="Tasks to stop; those that are not named are well")


class UpdateTask(Held):
    """How far a task is. Values are totals, not differences: said twice they are true once."""

    worker: Worker
    started: bool = Field(default=False, description="The work begins now: the attempt counts from here")
    stale_timeout: float | None = Field(
        default=None, gt=0, le=NO_TIMEOUT, allow_inf_nan=False,
        description="Seconds that the task may report no progress, where its kind has a limit of its own. Only for a "
        "server that `accepts_stale_timeout`",
    )  # fmt: skip
    done: float | None = Field(default=None, allow_inf_nan=False)
    total: float | None = Field(default=None, allow_inf_nan=False)
    message: str | None = Field(default=None, max_length=SUMMARY_LIMIT)
    checkpoint: Any = None


class Updated(BaseModel):
    cancel: str | None = Field(default=None, description="Why the task is to stop, if it is")


class CompleteTask(Held):
    worker: Worker
    result: Any = None


class ToolOutcome(Said):
    """How a tool run ended, for `complete_task` of the kind `tool_run`: its `result`."""

    outputs: Any = None
    exit_code: int | None = None
    artifacts: list["Uploaded"] = []


class Uploaded(Said):
    """An artifact that was uploaded before."""

    path: str = Field(min_length=1, max_length=1024)
    media_type: str | None = Field(default=None, max_length=255)
    size: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class FailTask(Held):
    worker: Worker
    outcome: Literal["failed", "fatal", "snooze", "cancelled", "timed_out"] = Field(
        default="failed",
        description="`failed` is tried again while attempts are left, `fatal` is not; `snooze` comes back later and "
        "uses no attempt up",
    )
    summary: str = Field(default="", max_length=SUMMARY_LIMIT, description="Shown to users")
    detail: str | None = Field(default=None, max_length=DETAIL_LIMIT, description="Kept for operators")
    after: float | None = Field(default=None, ge=0, le=366 * 86400, description="Seconds until the next attempt")


class ReleaseTask(Held):
    """The worker can't go on: another one shall."""

    worker: Worker
    started: bool = Field(default=True, description="Whether the work had begun; if not, no attempt is used up")


class Settled(BaseModel):
    state: str = Field(description="The job's state now")
