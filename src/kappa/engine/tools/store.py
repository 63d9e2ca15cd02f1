"""Statements about tools and their runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from kappa.engine.tools.collect import Stored
from kappa.engine.tools.status import ToolRunStatus
from kappa.pg import queries
from kappa.pg.ops import Op, nothing
from kappa.pg.queries import Row

sql = queries.beside(__file__)
PUT_TOOL = sql["put_tool"]
READ_TOOLS = sql["read_tools"]
SET_TOOL_ENABLED = sql["set_tool_enabled"]
MAKE_RUN = sql["make_run"]
PUT_INPUT = sql["put_input"]
TIE_RUN = sql["tie_run"]
READ_RUNS = sql["read_runs"]
BEGIN_RUN = sql["begin_run"]
READ_INPUTS = sql["read_inputs"]
PUT_LOG = sql["put_log"]
LOG_LENGTH = sql["log_length"]
READ_LOGS = sql["read_logs"]
PUT_ARTIFACT = sql["put_artifact"]
READ_ARTIFACTS = sql["read_artifacts"]
PUT_OUTPUTS = sql["put_outputs"]
NOTE_EXIT = sql["note_exit"]
LIVE_ATTEMPTS = sql["live_attempts"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A registered tool. What it says never changes: a change is a new version."""

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


@dataclass(frozen=True, slots=True)
class ToolRun:
    """A run as it was read."""

    id: int
    job_id: int
    tool: str
    version: str
    status: ToolRunStatus
    requested_by: str | None
    requested_at: datetime
    available_at: datetime | None
    """When a run that waits between two attempts may go on; None: now, or it has begun or ended."""
    started_at: datetime | None
    finished_at: datetime | None
    attempt: int
    inputs: Any
    outputs: Any
    exit_code: int | None
    reason: str | None
    error_summary: str | None


@dataclass(frozen=True, slots=True)
class Begun:
    """What an attempt needs to know of its run."""

    run_id: int
    inputs: Any
    tool: str
    version: str
    image: str | None
    argv: list[str]
    limits: dict[str, Any]
    timeout: float


@dataclass(frozen=True, slots=True)
class LogPiece:
    attempt: int
    stream: str
    position: int
    content: bytes


def put_tool(
    name: str, version: str, description: str, image: str | None, argv: Sequence[str], limits: str,
    timeout: timedelta, created_by: str | None,
) -> Op[bool]:  # fmt: skip
    """False if there is that version already."""
    params = {
        "name": name, "version": version, "description": description, "image": image, "argv": list(argv),
        "limits": limits, "timeout": timeout, "created_by": created_by,
    }  # fmt: skip
    return Op(PUT_TOOL, params, bool)


def read_tools(name: str | None = None) -> Op[list[Tool]]:
    """By name, the newest version first."""
    return Op(READ_TOOLS, {"name": name}, lambda rows: [Tool(*row) for row in rows])


def set_tool_enabled(name: str, version: str | None, *, enabled: bool) -> Op[bool]:
    return Op(SET_TOOL_ENABLED, {"name": name, "version": version, "enabled": enabled}, bool)


def make_run(tool: str, version: str, requested_by: str | None, inputs: str) -> Op[int]:
    params = {"tool": tool, "version": version, "requested_by": requested_by, "inputs": inputs}
    return Op(MAKE_RUN, params, lambda rows: rows[0][0])


def put_input(run_id: int, name: str, content: bytes) -> Op[None]:
    return Op(PUT_INPUT, {"run_id": run_id, "name": name, "content": content}, nothing)


def tie_run(run_id: int, job_id: int) -> Op[None]:
    return Op(TIE_RUN, {"run_id": run_id, "job_id": job_id}, nothing)


def read_runs(
    *,
    run_id: int | None = None,
    tool: str | None = None,
    states: Sequence[ToolRunStatus] | None = None,
    requested_by: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> Op[list[ToolRun]]:
    """The newest first; `before` is the last id of the page before."""
    params = {
        "id": run_id, "tool": tool, "requested_by": requested_by, "before": before, "limit": limit,
        "states": [state.value for state in states] if states is not None else None,
    }  # fmt: skip
    return Op(READ_RUNS, params, lambda rows: [_run(row) for row in rows])


def _run(row: Row) -> ToolRun:
    values = list(row)
    values[4] = ToolRunStatus(values[4])
    return ToolRun(*values)


def begin_run(run_id: int, job_id: int) -> Op[Begun | None]:
    """None if that run isn't this job's: a job that was retried by hand has the payload of another's."""
    return Op(BEGIN_RUN, {"run_id": run_id, "job_id": job_id}, lambda rows: Begun(*rows[0]) if rows else None)


def read_inputs(run_id: int) -> Op[dict[str, bytes]]:
    return Op(READ_INPUTS, {"run_id": run_id}, lambda rows: {name: bytes(content) for name, content in rows})


def put_log(run_id: int, attempt: int, stream: str, position: int, content: bytes, job_id: int, token: int) -> Op[None]:
    params = {
        "run_id": run_id, "attempt": attempt, "stream": stream, "position": position, "content": content,
        "job_id": job_id, "token": token,
    }  # fmt: skip
    return Op(PUT_LOG, params, nothing)


def log_length(run_id: int, attempt: int, stream: str) -> Op[int]:
    params = {"run_id": run_id, "attempt": attempt, "stream": stream}
    return Op(LOG_LENGTH, params, lambda rows: rows[0][0])


def read_logs(run_id: int, *, attempt: int | None = None, stream: str | None = None) -> Op[list[LogPiece]]:
    """Of the last attempt unless another one is asked for."""
    params = {"run_id": run_id, "attempt": attempt, "stream": stream}
    return Op(READ_LOGS, params, lambda rows: [LogPiece(*row) for row in rows])


def put_artifact(run_id: int, artifact: Stored) -> Op[None]:
    params = {
        "run_id": run_id, "path": artifact.path, "media_type": artifact.media_type, "size": artifact.size,
        "sha256": artifact.sha256,
    }  # fmt: skip
    return Op(PUT_ARTIFACT, params, nothing)


def read_artifacts(run_id: int) -> Op[list[Stored]]:
    return Op(READ_ARTIFACTS, {"run_id": run_id}, lambda rows: [Stored(*row) for row in rows])


def put_outputs(run_id: int, outputs: str, exit_code: int | None) -> Op[None]:
    return Op(PUT_OUTPUTS, {"run_id": run_id, "outputs": outputs, "exit_code": exit_code}, nothing)


def note_exit(run_id: int, exit_code: int | None, job_id: int, token: int) -> Op[None]:
    params = {"run_id": run_id, "exit_code": exit_code, "job_id": job_id, "token": token}
    return Op(NOTE_EXIT, params, nothing)


def live_attempts(job_ids: Sequence[int]) -> Op[dict[int, int]]:
    """Of these jobs the live ones, each with the attempt that it makes or will make next."""
    return Op(LIVE_ATTEMPTS, {"ids": list(job_ids)}, lambda rows: {row[0]: row[1] for row in rows})
