"""What an attempt's end means for its job: the policy of retries, written once for every executor."""

import random
import traceback
from datetime import timedelta
from inspect import iscoroutine
from typing import Any

from kappa.engine.context import Running
from kappa.engine.errors import AttemptLost, BadPayload, JobCancelled, JobFailed, JobTimedOut
from kappa.engine.model import Cancel, JobState, Retry, Snooze
from kappa.engine.store.jobs import Finish, PutBack
from kappa.pg import KappaError

BACKOFF_BASE = 1.0
BACKOFF_CAP = 60.0
BACKOFF_JITTER = 0.2

DETAIL_LIMIT = 20_000

CLAIMS_BEYOND_ATTEMPTS = 10
"""How often a job may be claimed and vanish with its worker before it was seen to start. Only the first such claim can
have begun the work: after it, a start is written before it happens."""


class Untold(Exception):
    """Stands for an exception that can't leave its process; only the name of its type and its traceback do."""

    def __init__(self, type_name: str) -> None:
        super().__init__(type_name)
        self.type_name = type_name


def backoff(attempt: int) -> float:
    """Seconds to wait after an attempt: exponential, capped, with jitter."""
    wait = min(BACKOFF_CAP, BACKOFF_BASE * 2 ** min(max(0, attempt - 1), 30))
    return min(BACKOFF_CAP, wait * random.uniform(1 - BACKOFF_JITTER, 1 + BACKOFF_JITTER))  # noqa: S311


def of_value(running: Running, value: Any) -> Finish | PutBack:
    """The settlement for what a handler returned."""
    job_id, token = running.held
    if running.unawaited and (missing := _missing_await(running)):
        return Finish(job_id, token, JobState.FAILED, summary=missing)
    match value:
        case None if running.handler.may_return_nothing:
            return Finish(job_id, token, JobState.SUCCEEDED)
        case Retry(after, summary):
            return _again(running, summary, None, after)
        case Snooze() if running.cancel_reason is not None:
            return Finish(job_id, token, JobState.CANCELLED, reason=running.cancel_reason)
        case Snooze(after):
            return PutBack(job_id, token, max(after.total_seconds(), 0.001), snoozed=True)
        case Cancel(reason):
            return Finish(job_id, token, JobState.CANCELLED, reason=reason)
        case _:
            try:
                result = running.handler.dump_result(value)
            except BadPayload as error:
                summary = _forgotten_coroutine(running, value) or str(error)
                return Finish(job_id, token, JobState.FAILED, summary=summary)
            return Finish(job_id, token, JobState.SUCCEEDED, result)


def of_error(running: Running, error: BaseException) -> Finish | PutBack:
    """The settlement for what a handler raised."""
    job_id, token = running.held
    if isinstance(error, JobCancelled):
        if running.stopped:
            return timed_out(running)
        return Finish(job_id, token, JobState.CANCELLED, reason=running.cancel_reason or str(error))
    if isinstance(error, JobTimedOut):
        return timed_out(running)
    if isinstance(error, AttemptLost):
        return _again(running, str(error) or "the attempt was lost", None, None)
    if running.unawaited and (missing := _missing_await(running)):
        error.add_note(missing)
    detail = "".join(traceback.format_exception(error))[-DETAIL_LIMIT:]
    if isinstance(error, BadPayload) or (isinstance(error, JobFailed) and not error.retry):
        return Finish(job_id, token, JobState.FAILED, summary=str(error), detail=detail)
    return _again(running, _safe_summary(error), detail, None)


def timed_out(running: Running) -> Finish:
    job_id, token = running.held
    return Finish(job_id, token, JobState.TIMED_OUT, summary="the time-out was reached")


def stale(running: Running, limit: float) -> Finish | PutBack:
    """The settlement for an attempt that reported no progress for too long."""
    return _again(running, f"no progress for {limit:g} s", None, None)


def lost(running: Running) -> Finish | PutBack:
    """The settlement for an attempt whose owner is gone and of which no runner knows anything."""
    claimed = running.claimed
    if claimed.started:
        if claimed.seconds_left <= 0:
            return timed_out(running)
        return _again(running, "the worker that ran it was lost", None, None)
    if claimed.cancel_reason is not None:
        reason = claimed.cancel_reason
        return Finish(claimed.id, claimed.token, JobState.CANCELLED, reason=reason, started=False)
    if claimed.claims >= claimed.max_attempts + CLAIMS_BEYOND_ATTEMPTS:
        summary = f"it was claimed {claimed.claims} times, and every worker was lost before it was seen to start"
        return Finish(claimed.id, claimed.token, JobState.FAILED, summary=summary, started=False)
    return PutBack(claimed.id, claimed.token, started=False)


def _missing_await(running: Running) -> str | None:
    """What to tell the author of a handler on the loop that called its context and didn't wait for it."""
    if not running.handler.is_async or not (names := running.never_awaited()):
        return None
    calls = ", ".join(f"`await ctx.{name}(...)`" for name in dict.fromkeys(names))
    kind = running.handler.kind
    return f"the handler of {kind!r} called its context without `await`, which does nothing: write {calls}"


def _forgotten_coroutine(running: Running, value: Any) -> str | None:
    """What to tell the author of a handler that returned a coroutine in place of its result."""
    if not iscoroutine(value):
        return None
    value.close()
    remedy = "await it" if running.handler.is_async else "declare the handler with `async def` and await it"
    return f"the handler of {running.handler.kind!r} returned a coroutine that never ran: {remedy}"


def _again(running: Running, summary: str, detail: str | None, after: timedelta | None) -> Finish | PutBack:
    job_id, token = running.held
    if running.cancel_reason is not None:
        return Finish(job_id, token, JobState.CANCELLED, reason=running.cancel_reason, summary=summary, detail=detail)
    if running.attempt >= running.claimed.max_attempts:
        return Finish(job_id, token, JobState.FAILED, summary=summary, detail=detail)
    delay = backoff(running.attempt) if after is None else max(after.total_seconds(), 0.001)
    return PutBack(job_id, token, delay, summary=summary, detail=detail)


def _safe_summary(error: BaseException) -> str:
    """What users may see. The text of an unknown exception can hold anything; that of Kappa's own is meant for them."""
    if isinstance(error, KappaError):
        return str(error)
    name = error.type_name if isinstance(error, Untold) else type(error).__name__
    return f"the handler failed with {name}"
