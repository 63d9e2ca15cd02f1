"""When a cron expression is due, in its own time zone."""

from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from kappa.engine.errors import ScheduleError
from kappa.engine.model import PRIORITIES, Schedule


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
    for column in ("name", "cron", "kind"):
        text: object = getattr(schedule, column)
        if not isinstance(text, str) or "\0" in text or (text == "" and column != "cron"):
            return ScheduleError(f"a schedule's {column} is a text, not {text!r}")
    if schedule.priority not in PRIORITIES:
        return ScheduleError(f"a priority is a whole number from -32767 to 32767, not {schedule.priority!r}")
    try:
        next_due(schedule.cron, schedule.timezone, datetime.now(UTC))
    except ScheduleError as error:
        return error
    if schedule.missed not in ("fire_once", "skip"):
        return ScheduleError(f"missed is 'fire_once' or 'skip', not {schedule.missed!r}")
    return None


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError):
        raise ScheduleError(f"there is no time zone {name!r}") from None
