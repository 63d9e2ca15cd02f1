"""What a caller asks for, checked and made into a job to be enqueued; written once for both clients.

Whatever is wrong with it is said here, before anything is written.
"""

from datetime import datetime, timedelta
from typing import Any

from kappa.engine.errors import BadPayload, EngineError, UnknownKind
from kappa.engine.model import ATTEMPTS, PRIORITIES, Needs, checked_interval
from kappa.engine.registry import Registry
from kappa.engine.store.jobs import NewJob

LONGEST_TEXT = 2500
LAST_YEAR = 9998
"""One later could be read in no time zone east of its own: a list that has it could not be shown."""


def order(
    registry: Registry,
    kind: str,
    payload: Any,
    priority: int,
    dedup_key: str | None,
    timeout: timedelta | None,
    max_attempts: int | None,
    auto_approve: str | None,
    submitted_by: str | None,
    retry_of: int | None,
) -> NewJob:
    """One job, with the policy of its kind where the caller has none of its own."""
    check_priority(priority)
    for name, text in (("dedup_key", dedup_key), ("auto_approve", auto_approve), ("submitted_by", submitted_by)):
        if text is not None:
            check_text(name, text)
    if max_attempts is not None and max_attempts not in ATTEMPTS:
        raise BadPayload(f"max_attempts is a whole number from 1 to 32767, not {max_attempts!r}")
    _check_timeout(timeout)
    text = registry.dump_payload(kind, payload)
    new = NewJob(
        kind, text, priority, submitted_by, dedup_key, retry_of=retry_of, approved_by=auto_approve,
        timeout=timeout, max_attempts=max_attempts or 1,
    )  # fmt: skip
    handler = registry.find(kind)
    if handler is not None:
        new.approval = handler.approval and auto_approve is None
        new.estimate = handler.dump_estimate(text)
        new.timeout = timeout or handler.timeout
        new.max_attempts = max_attempts or handler.max_attempts
    return new


def order_of_many(
    registry: Registry,
    kind: str,
    priority: int,
    at: datetime | None,
    timeout: timedelta | None,
    submitted_by: str | None,
) -> NewJob:
    """What many jobs of a kind have in common: all but their payloads."""
    handler = registry.find(kind)
    if handler is not None and handler.approval:
        raise EngineError(f"kind {kind!r} asks for approval: enqueue its jobs one by one")
    check_priority(priority)
    if submitted_by is not None:
        check_text("submitted_by", submitted_by)
    _check_time(at)
    _check_timeout(timeout)
    return NewJob(
        kind, "", priority, submitted_by, run_at=at, timeout=timeout or (handler.timeout if handler else None),
        max_attempts=handler.max_attempts if handler else 1,
    )  # fmt: skip


def set_time(new: NewJob, at: datetime | None, delay: timedelta | None) -> None:
    if new.approval:
        raise EngineError(f"kind {new.kind!r} asks for approval: it can't have a time as well")
    if at is not None and delay is not None:
        raise BadPayload("`at` and `delay` both say when: one of them is enough")
    _check_time(at)
    if delay is not None:
        checked_interval("delay", delay, BadPayload)
    new.run_at, new.delay = at, delay


def check_priority(priority: int) -> None:
    if priority not in PRIORITIES:
        raise BadPayload(f"a priority is a whole number from -32767 to 32767, not {priority!r}")


def check_needs(needs: Any) -> None:
    if needs is None:
        return
    if not isinstance(needs, Needs):
        raise BadPayload(f"needs is a Needs, as in Needs(cores=2), not {needs!r}")
    if not 0 <= needs.cores < float("inf") or not 0 <= needs.memory_mb < 2**31:
        raise BadPayload(f"a job needs so many cores and megabytes, not {needs.cores!r} and {needs.memory_mb!r}")
    if "" in needs.labels or any("\0" in label for label in needs.labels):
        raise BadPayload("a label that a job needs is a word")


def in_no_lane(kind: str) -> UnknownKind:
    return UnknownKind(f"kind {kind!r} is in no lane: add it to one before you enqueue it")


def check_text(name: str, text: object) -> None:
    """What PostgreSQL can keep as text, and an index in a row of it."""
    try:
        size = len(text.encode()) if isinstance(text, str) and "\0" not in text else LONGEST_TEXT + 1
    except UnicodeEncodeError:
        size = LONGEST_TEXT + 1
    if size > LONGEST_TEXT:
        raise BadPayload(f"{name} is a text of at most {LONGEST_TEXT} bytes, not {text!r:.100}")


def _check_timeout(timeout: timedelta | None) -> None:
    if timeout is not None and checked_interval("timeout", timeout, BadPayload) <= timedelta(0):
        raise BadPayload(f"timeout must be more than nothing, not {timeout}")


def _check_time(at: Any) -> None:
    if at is None:
        return
    if not isinstance(at, datetime):
        raise BadPayload(f"`at` is a datetime with a time zone, not {at!r}")
    if at.tzinfo is None:
        raise BadPayload("`at` needs a time zone: which hour is meant?")
    if at.year > LAST_YEAR:
        raise BadPayload(f"`at` is in the year {at.year}: {LAST_YEAR} is the last that can be kept")
