"""Schedules, for people: what is enqueued when. What a schedule enqueues, its maker must be allowed to enqueue.

Its jobs are approved: who may not approve jobs can't make or change one whose kind asks for approval. A run now is a
job of whoever asked for it. Once made, a schedule is the server's: it still fires when its maker has lost a permission.
"""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from psycopg import AsyncConnection

from kappa.app.errors import Conflict
from kappa.app.permissions import Permission
from kappa.app.usecases import audit, submission
from kappa.app.usecases.limits import LiveJobs, check_priority
from kappa.app.usecases.principal import Principal
from kappa.engine import AsyncClient, Engine, Enqueued, Schedule, ScheduleError, UnknownKind
from kappa.engine.schedule import no_schedule, upcoming
from kappa.pg.queries import Row

PREVIEWED = 5


@dataclass(frozen=True, slots=True)
class ScheduleNow:
    """A schedule's row, and what follows from it."""

    schedule: Schedule
    is_declared: bool
    """Whether the program makes it at every start if it is missing."""
    next_times: list[datetime] = field(default_factory=list[datetime])
    """When it is due next: a preview, by this machine's clock where the row doesn't have it yet. None in a list: to
    find them takes milliseconds a schedule."""


class Schedules:
    """The schedules of one engine."""

    def __init__(self, client: AsyncClient, engine: Engine, live: LiveJobs) -> None:
        self._client = client
        self._live = live
        self._engine = engine

    def begin(self) -> AbstractAsyncContextManager[AsyncConnection[Row], bool | None]:
        return self._client.transaction()

    async def list(self, *, after: str = "", limit: int) -> list[ScheduleNow]:
        """So many at most, by name."""
        found = sorted(await self._client.schedules(), key=lambda one: one.name)
        chosen = islice((one for one in found if one.name > after), limit)
        return [ScheduleNow(one, self._is_declared(one)) for one in chosen]

    async def show(self, name: str) -> ScheduleNow:
        return self._now(await self._client.show_schedule(name))

    @audit.refusals("schedule.add")
    async def add(self, who: Principal, schedule: Schedule) -> ScheduleNow:
        await self._check(who, schedule.kind)
        check_priority(who, schedule.priority)
        async with self._client.transaction() as connection:
            made = await self._client.add_schedule(schedule, connection=connection)
            await submission.check(connection, who, made.kind, made.payload)
            await audit.record(
                connection, who, "schedule.add", schedule.name, cron=schedule.cron, timezone=schedule.timezone,
                kind=schedule.kind, payload=schedule.payload, priority=schedule.priority, enabled=schedule.enabled,
                missed=schedule.missed,
            )  # fmt: skip
        return self._now(made)

    @audit.refusals("schedule.edit")
    async def edit(self, who: Principal, name: str, changes: dict[str, Any]) -> ScheduleNow:
        """Change columns of a schedule's row. To pause one is all that needs no leave to enqueue its job."""
        if changes != {"enabled": False}:
            today = await self._client.show_schedule(name)
            await self._check(who, today.kind)
            check_priority(who, changes.get("priority", today.priority))
            if "kind" in changes:
                await self._check(who, changes["kind"])
        async with self._client.transaction() as connection:
            edited = await self._client.edit_schedule(name, connection=connection, **changes)
            if changes != {"enabled": False}:
                # Of the row that is locked now, whatever others have changed meanwhile.
                self._require(who, edited.kind)
                check_priority(who, edited.priority)
                await submission.check(connection, who, edited.kind, edited.payload)
            await audit.record(connection, who, "schedule.edit", name, **changes)
        return self._now(edited)

    @audit.refusals("schedule.run")
    async def run(self, who: Principal, name: str) -> Enqueued:
        """Enqueue its job now. One approval is not one for every time: a kind that asks for it does so here."""
        who.require(Permission.JOBS_ENQUEUE)
        schedule = await self._client.show_schedule(name)
        submission.require(who, schedule.kind)
        check_priority(who, schedule.priority)
        async with self._live.one_more(who), self._client.transaction() as connection:
            done = await self._client.enqueue(
                schedule.kind, schedule.payload, priority=schedule.priority, submitted_by=who.name,
                auto_approve=who.name if who.may(Permission.JOBS_APPROVE) else None, connection=connection,
            )  # fmt: skip
            await submission.check(connection, who, schedule.kind, schedule.payload)
            await audit.record(connection, who, "schedule.run", name, job=done.id)
            return done

    async def delete(self, who: Principal, name: str) -> None:
        if name in self._engine.declared_schedules:
            raise Conflict(f"schedule {name!r} is declared by the server, which would make it anew: pause it instead")
        async with self._client.transaction() as connection:
            if not await self._client.drop_schedule(name, connection=connection):
                raise no_schedule(name)
            await audit.record(connection, who, "schedule.delete", name)

    async def _check(self, who: Principal, kind: str) -> None:
        """Whether somebody may have jobs of this kind enqueued, approved, and whether there is such a kind."""
        self._require(who, kind)
        known = sorted(kind for lane in await self._client.lanes() for kind in lane.kinds)
        if kind not in known:
            raise UnknownKind(f"kind {kind!r} is in no lane: add it to one, or use one of {', '.join(known)}")

    def _require(self, who: Principal, kind: str) -> None:
        who.require(Permission.JOBS_ENQUEUE)
        handler = self._engine.registry.find(kind)
        if handler is not None and handler.approval:
            who.require(Permission.JOBS_APPROVE)
        submission.require(who, kind)

    def _now(self, schedule: Schedule) -> ScheduleNow:
        try:
            times = upcoming(schedule, datetime.now(UTC), PREVIEWED)
        except ScheduleError:  # it was written by other means, and its error says so when it is due
            times = []
        return ScheduleNow(schedule, self._is_declared(schedule), times)

    def _is_declared(self, schedule: Schedule) -> bool:
        return schedule.name in self._engine.declared_schedules
