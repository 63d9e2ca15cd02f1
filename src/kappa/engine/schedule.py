"""When a cron expression is due, in its own time zone."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from kappa.engine.errors import ScheduleError, ScheduleNotFound
from kappa.engine.model import PRIORITIES, Schedule

COLUMNS = ("cron", "timezone", "kind", "payload", "priority", "enabled", "missed")
"""What of a schedule can be changed."""
PREVIEWED = timedelta(days=3653)
"""How far ahead a preview looks: to find the times of an expression that is rarely due takes long."""
FIELDS = (
    "it has five fields: minute, hour, day of month, month, weekday, as in '30 2 * * 1-5'; or six, which begin with "
    "the second"
)


def due_times(cron: str, timezone: str, after: datetime) -> Iterator[datetime]:
    """The due times after an instant, for ever. Clock changes are handled as Debian's cron does."""
    local = after.astimezone(_zone(timezone))
    try:
        for due in CronSim(cron, local):
            # Begun inside the hour that comes twice, it starts with the first of the two, which is over.
            if (instant := due.astimezone(UTC)) > after:
                yield instant
    except CronSimError as error:
        raise ScheduleError(f"{cron!r} is not a cron expression: {error}; {FIELDS}") from None


def next_due(cron: str, timezone: str, after: datetime) -> datetime:
    for due in due_times(cron, timezone, after):
        return due
    raise ScheduleError(f"{cron!r} is never due")


def last_due(cron: str, timezone: str, first: datetime, until: datetime) -> datetime:
    """The latest due time in a span that begins with one."""
    span = timedelta(minutes=1)
    # Back from its end, in longer and longer steps: years of an expression that is due each second are long to count.
    while until - span > first:
        if (latest := _last_between(cron, timezone, until - span, until)) is not None:
            return latest
        span *= 4
    return _last_between(cron, timezone, first, until) or first


def _last_between(cron: str, timezone: str, after: datetime, until: datetime) -> datetime | None:
    latest = None
    for due in due_times(cron, timezone, after):
        if due > until:
            break
        latest = due
    return latest


def upcoming(schedule: Schedule, now: datetime, most: int) -> list[datetime]:
    """When it is due next, for people to look at: none while it is paused. One that is overdue is the first.

    Those after the first are as many as come within some years.
    """
    if not schedule.enabled:
        return []
    times = [] if schedule.next_at is None else [schedule.next_at]
    after = max([*times, now])
    for due in islice(due_times(schedule.cron, schedule.timezone, after), most - len(times)):
        if times and due > after + PREVIEWED:
            break
        times.append(due)
    return times


def check_changes(changes: Mapping[str, object]) -> None:
    """What may be changed of a schedule, and is."""
    unknown = [column for column in changes if column not in COLUMNS]
    if unknown:
        raise ScheduleError(f"a schedule has no {unknown[0]!r} (it has: {', '.join(COLUMNS)})")
    if not changes:
        raise ScheduleError(f"nothing to change: name at least one of {', '.join(COLUMNS)}")


def no_schedule(name: str) -> ScheduleNotFound:
    return ScheduleNotFound(f"there is no schedule {name!r}")


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
        raise ScheduleError(f"there is no time zone {name!r}: use a name such as UTC or Europe/Berlin") from None
