"""What people and agents do with jobs. One's own jobs are one's own; those of others need `jobs:manage`.

Which jobs somebody may have made or run is for `submission` to say.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Any, TypeVar

from psycopg import AsyncConnection

from kappa.app.errors import Forbidden, Refused
from kappa.app.permissions import Permission
from kappa.app.usecases import audit, submission
from kappa.app.usecases.limits import LiveJobs, check_priority
from kappa.app.usecases.principal import Principal
from kappa.engine import AsyncClient, Enqueued, Job, JobState, Needs
from kappa.pg.queries import Row

T = TypeVar("T")


class Jobs:
    """Jobs of one engine, for people."""

    def __init__(self, client: AsyncClient, live: LiveJobs) -> None:
        self._client = client
        self._live = live

    def begin(self) -> AbstractAsyncContextManager[AsyncConnection[Row], bool | None]:
        return self._client.transaction()

    @audit.refusals("job.enqueue")
    async def enqueue(
        self,
        who: Principal,
        kind: str,
        payload: Any,
        *,
        priority: int = 0,
        at: datetime | None = None,
        delay: timedelta | None = None,
        dedup_key: str | None = None,
        timeout: timedelta | None = None,
        max_attempts: int | None = None,
        auto_approve: bool = False,
        needs: Needs | None = None,
    ) -> Enqueued:
        """Put a job in. Approving it along the way, and a priority above 0, need their permissions."""
        check_priority(who, priority)
        if auto_approve:
            who.require(Permission.JOBS_APPROVE)
        if dedup_key is not None and dedup_key.startswith(submission.RESERVED):
            raise Refused(f"dedup_key must not begin with {submission.RESERVED!r}")
        async with self._live.one_more(who):
            return await submission.enqueue(
                self._client, who, kind, payload, priority=priority, at=at, delay=delay, dedup_key=dedup_key,
                timeout=timeout, max_attempts=max_attempts, auto_approve=who.name if auto_approve else None,
                needs=needs,
            )  # fmt: skip

    @audit.refusals("job.approve")
    async def approve(self, who: Principal, job_id: int) -> Job:
        """Let a job run that awaits approval. It takes what enqueueing one takes."""
        submission.require_permissions(who, (await self._client.show(job_id)).kind)
        async with self._client.transaction() as connection:
            await self._client.approve(job_id, who.name, connection=connection)
            await audit.record(connection, who, "job.approve", job_id)
        return await self._client.show(job_id)

    async def reject(self, who: Principal, job_id: int) -> Job:
        async with self._client.transaction() as connection:
            await self._client.reject(job_id, connection=connection)
            await audit.record(connection, who, "job.reject", job_id)
        return await self._client.show(job_id)

    async def cancel(self, who: Principal, job_id: int, reason: str | None = None, *, any_job: bool = False) -> Job:
        """Cancel a job; one that runs is told to stop, and stays `running` until it did."""

        async def act(connection: AsyncConnection[Row]) -> JobState:
            text = reason or f"cancelled by {who.name}"
            return await self._client.cancel(job_id, text, connection=connection)

        await self._act(who, job_id, "job.cancel", act, any_job=any_job, reason=reason)
        return await self._client.show(job_id)

    @audit.refusals("job.retry")
    async def retry(self, who: Principal, job_id: int) -> Enqueued:
        """Enqueue a finished job anew; the new job is its submitter's as well. It takes what enqueueing it takes."""
        job = await self._client.show(job_id)

        async def act(connection: AsyncConnection[Row]) -> Enqueued:
            submission.require(who, job.kind)
            approved = who.may(Permission.JOBS_APPROVE)  # one approval is not one for every time
            done = await self._client.retry(job_id, approved=approved, connection=connection)
            await submission.check(connection, who, job.kind, job.payload)
            return done

        check_priority(who, job.priority)
        async with self._live.one_more(who, job.submitted_by):
            return await self._act(who, job_id, "job.retry", act)

    async def prioritise(self, who: Principal, job_id: int, priority: int, *, any_job: bool = False) -> Job:
        async def act(connection: AsyncConnection[Row]) -> None:
            await self._client.prioritise(job_id, priority, connection=connection)

        await self._act(who, job_id, "job.prioritise", act, any_job=any_job, priority=priority)
        return await self._client.show(job_id)

    async def _act(
        self,
        who: Principal,
        job_id: int,
        action: str,
        act: Callable[[AsyncConnection[Row]], Awaitable[T]],
        *,
        any_job: bool = False,
        **detail: Any,
    ) -> T:
        if not any_job and not who.may(Permission.JOBS_MANAGE):
            job = await self._client.show(job_id)
            if job.submitted_by != who.name:
                raise Forbidden(f"job {job_id} is not {who.name}'s, and {who.name} lacks {Permission.JOBS_MANAGE}")
        async with self._client.transaction() as connection:
            done = await act(connection)
            await audit.record(connection, who, action, job_id, **detail)
            return done
