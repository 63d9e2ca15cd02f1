"""When a cron expression is due, in its own time zone."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from kappa.engine.errors import BadPayload, ScheduleError
from kappa.engine.model import Schedule


def due_times(cron: str, timezone: str, after: datetime) -> Iterator[datetime]:
    """The due times after an instant, for ever. Clock changes are handled as Debian's cron does."""
    local = after.astimezone(_zone(timezone))
    try:
        for due in CronSim(cron, local):
            # Begun inside the hour that comes twice, it starts with the first of the two, which is over.
            if (instant := due.astimezone(UTC)) > after:
                yield instant
    except CronSimError as error:
        raise ScheduleError(f"{cron!r} is not a cron expression: {error}") from None


def next_due(cron: str, timezone: str, after: datetime) -> datetime:
    for due in due_times(cron, timezone, after):
        return due
    raise ScheduleError(f"{cron!r} is never due")


def last_due(cron: str, timezone: str, first: datetime, until: datetime) -> datetime:
    """The latest due time in a span that begins with one."""
    latest = first
    for due in due_times(cron, timezone, first):
        if due > until:
            break
        latest = due
    return latest


def first_fault(schedule: Schedule) -> ScheduleError | None:
    """What is wrong with a schedule, if anything."""
    try:
        next_due(schedule.cron, schedule.timezone, datetime.now(UTC))
    except ScheduleError as error:
        return error
    if schedule.missed not in ("fire_once", "skip"):
        return ScheduleError(f"missed is 'fire_once' or 'skip', not {schedule.missed!r}")
    return None


def interval(name: str, value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise BadPayload(f"{name} must be more than nothing, not {value}")
    return value


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise ScheduleError(f"there is no time zone {name!r}") from None
