"""A task and how it ended, between the words of the wire and those of the engine."""

import json
import math
from typing import Any

from pydantic_core import to_json

from kappa.engine.fleet import wire
from kappa.engine.model import Claimed, JobState
from kappa.engine.store.jobs import Finish, PutBack

Outcome = Finish | PutBack


def seconds_left(task: wire.Task) -> float:
    """Until its time-out; a task may have none."""
    return math.inf if task.seconds_left >= wire.NO_TIMEOUT else task.seconds_left


def claimed_of(task: wire.Task, *, adopted: bool) -> Claimed:
    """A task as the rest of the engine knows it."""
    return Claimed(
        id=task.task, kind=task.kind, payload=to_json(task.payload).decode(),
        attempt=task.attempt if adopted else task.attempt - 1, max_attempts=task.max_attempts, claims=1,
        token=task.token, adopted=adopted, started=adopted, seconds_left=seconds_left(task), cancel_reason=None,
        priority=0, token_floor=None, parent_id=None, waited=0.0, light=False,
    )  # fmt: skip


def settlement(worker: str, outcome: Outcome) -> tuple[str, dict[str, Any]]:
    """Which call says it, and its body."""
    said: dict[str, Any] = {"worker": worker, "task": outcome.id, "token": outcome.token}
    if isinstance(outcome, Finish) and outcome.state is JobState.SUCCEEDED:
        return "complete_task", said | {"result": None if outcome.result is None else json.loads(outcome.result)}
    if isinstance(outcome, PutBack):
        said |= {"outcome": "snooze" if outcome.snoozed else "failed", "after": outcome.delay}
        summary = outcome.summary
    else:
        said["outcome"] = {JobState.CANCELLED: "cancelled", JobState.TIMED_OUT: "timed_out"}.get(outcome.state, "fatal")
        summary = outcome.reason or outcome.summary
    said["summary"] = (summary or "")[: wire.SUMMARY_LIMIT]
    if outcome.detail is not None:
        said["detail"] = outcome.detail[-wire.DETAIL_LIMIT :]
    return "fail_task", said
