"""Schedules over the wire."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, StringConstraints

from kappa.app.api.schemas import NO_NUL, Body, Kind, Priority
from kappa.engine import Schedule

if TYPE_CHECKING:
    from kappa.app.usecases.schedules import ScheduleNow

ScheduleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$")]
Cron = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=NO_NUL)]
TimeZone = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=NO_NUL)]
Missed = Literal["fire_once", "skip"]

CRON = "Minute, hour, day of month, month, weekday; six fields begin with the second"
MISSED = "What becomes of times that came while no server led: one job for all of them, or none"


class AddSchedule(Body):
    name: ScheduleName = Field(examples=["nightly"])
    cron: Cron = Field(description=CRON, examples=["30 2 * * *"])
    kind: Kind = Field(examples=["self_test"])
    payload: Any = Field(default=None, examples=[{"steps": 3}])
    timezone: TimeZone = Field(default="UTC", examples=["Europe/Berlin"])
    priority: Priority = 0
    enabled: bool = Field(default=True, strict=True, description="false: paused until it is resumed")
    missed: Missed = Field(default="fire_once", description=MISSED)

    @property
    def value(self) -> Schedule:
        return Schedule(
            self.name, self.cron, self.kind, self.payload, self.timezone, self.priority, self.enabled, self.missed
        )


class EditSchedule(Body):
    cron: Cron | None = Field(default=None, description=CRON, examples=["30 2 * * *"])
    kind: Kind | None = Field(default=None, examples=["self_test"])
    payload: Any = Field(default=None, description="null, if it is given, is a payload as well")
    timezone: TimeZone | None = Field(default=None, examples=["Europe/Berlin"])
    priority: Priority | None = None
    enabled: bool | None = Field(default=None, strict=True)
    missed: Missed | None = Field(default=None, description=MISSED)

    def changes(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return {name: value for name, value in given.items() if value is not None or name == "payload"}


class ScheduleItem(BaseModel):
    name: str
    cron: str
    timezone: str
    kind: str
    payload: Any
    priority: int
    enabled: bool
    missed: str
    next_at: datetime | None = Field(description="When it is due; null while it is paused")
    last_at: datetime | None = Field(description="The due time that it fired last")
    last_job: int | None = Field(description="The job that it enqueued then")
    failures: int = Field(description="How often in a row it failed to enqueue its job")
    retry_at: datetime | None = Field(description="When that is tried again")
    error: str | None = Field(description="Why it failed")
    is_declared: bool = Field(description="The server makes it at every start if it is missing: it can be paused only")

    @classmethod
    def of(cls, now: "ScheduleNow") -> Self:
        return cls(**{
            name: getattr(now.schedule if hasattr(now.schedule, name) else now, name) for name in cls.model_fields
        })  # fmt: skip


class ScheduleView(ScheduleItem):
    next_times: list[datetime] = Field(
        description="The next few times, as a preview of some years; none while it is paused"
    )


class SchedulePage(BaseModel):
    items: list[ScheduleItem]
    next: str | None = Field(description="What to give as `after` for the next page; null on the last one")
