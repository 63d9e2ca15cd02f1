"""Contract v1 between Kappa and a tool: what it is given, and what it must leave behind.

A tool finds `request.json` and `input/` in its directory, and leaves `result.json` and `output/` there. Whatever it
leaves is somebody else's: everything here is checked, and what is wrong with it is said in words that anybody may read.
"""

import math
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from kappa.engine.errors import EngineError

VERSION = 1
PROGRESS_LIMIT = 10_000
RESULT_LIMIT = 1024 * 1024
"""Bytes that `result.json` may have."""
LOG_LIMIT = 200_000
"""Bytes that are kept of each of stdout and stderr."""
ARTIFACTS_LIMIT = 1000
SUMMARY_LIMIT = 500

_Path = Annotated[str, StringConstraints(min_length=1, max_length=1024)]


class ContractBroken(EngineError):
    """A tool didn't keep to the contract; the text may be shown to users."""


class Request(BaseModel):
    """`request.json`: what is asked of the tool."""

    contract_version: Literal[1] = VERSION
    run_id: int
    job_id: int
    attempt: int
    tool: str
    version: str
    inputs: Any = Field(description="The inputs that were given with the run, as JSON")
    input_files: list[str] = Field(default_factory=list[str], description="The files in `input/`, by name")
    timeout_seconds: float = Field(description="How long the tool may run")


class Progress(BaseModel):
    """`progress.json`, if the tool likes to say how far it is."""

    done: Annotated[float, Field(allow_inf_nan=False)]
    total: Annotated[float, Field(allow_inf_nan=False)] | None = None
    message: Annotated[str, StringConstraints(max_length=SUMMARY_LIMIT)] | None = None


class Artifact(BaseModel):
    """A file that the tool made and wants to be kept."""

    model_config = ConfigDict(extra="forbid")

    path: _Path = Field(description="Relative, under `output/`, without `..`")
    media_type: Annotated[str, StringConstraints(max_length=200)] | None = None


class Result(BaseModel):
    """`result.json`: how it went."""

    model_config = ConfigDict(extra="forbid")

    contract_version: Literal[1]
    status: Literal["succeeded", "failed"]
    outputs: Any = None
    error_summary: Annotated[str, StringConstraints(max_length=SUMMARY_LIMIT)] | None = Field(
        default=None, description="What went wrong, for users to read"
    )
    artifacts: Annotated[list[Artifact], Field(max_length=ARTIFACTS_LIMIT)] = Field(default_factory=list[Artifact])


def read_result(text: bytes | None) -> Result:
    """The result that a tool left, if it is one."""
    if text is None:
        raise ContractBroken("the tool left no result.json")
    if len(text) > RESULT_LIMIT:
        raise ContractBroken(f"result.json is larger than {RESULT_LIMIT} bytes")
    try:
        result = Result.model_validate_json(text)
    except (ValidationError, ValueError, RecursionError) as error:
        raise ContractBroken(f"result.json is not valid: {_fault(error)}") from None
    for artifact in result.artifacts:
        artifact_parts(artifact.path)
    if fault := _unkeepable([result.outputs, result.error_summary, [a.media_type for a in result.artifacts]]):
        raise ContractBroken(f"result.json is not valid: {fault}")
    return result


def one_line(text: str) -> str:
    """A tool's words for a line on somebody's screen: nothing that moves a cursor or breaks the line."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


def _unkeepable(value: Any) -> str | None:
    """What in a JSON value no database keeps. How deep it goes was limited when it was read."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value)
        return _unkeepable([*items.keys(), *items.values()])
    if isinstance(value, list):
        return next(filter(None, map(_unkeepable, cast("list[Any]", value))), None)
    if isinstance(value, float) and not math.isfinite(value):
        return "it has a number that is none, or infinite"
    if isinstance(value, str) and "\0" in value:
        return "it has a NUL character"
    return None


def artifact_parts(path: str) -> tuple[str, ...]:
    """The parts of an artifact's path below `output/`."""
    pure = PurePosixPath(path)
    parts = pure.parts[1:] if pure.parts[:1] == ("output",) else pure.parts
    if pure.is_absolute() or not parts or any(part in ("..", ".") or "\0" in part or "\\" in part for part in parts):
        raise ContractBroken(f"artifact path {path!r} is not a relative path under output/")
    return parts


def _fault(error: Exception) -> str:
    if isinstance(error, ValidationError):
        fault = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in fault["loc"])
        return f"{where}: {fault['msg']}" if where else fault["msg"]
    return "it is nested too deeply" if isinstance(error, RecursionError) else "it is not JSON"
