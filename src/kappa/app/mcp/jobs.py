"""Jobs, as tools for agents."""

from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Any, Self

import anyio
from mcp.server.mcpserver import Context
from pydantic import AwareDatetime, BaseModel, Field

from kappa.app.api.schemas import EnqueuedJob, JobId, JobPage, JobView, Kind, Line, Priority, Progress, Seconds
from kappa.app.mcp.api import Api
from kappa.app.mcp.server import ADDS, CHANGES, ENDS, READS, Server
from kappa.engine import JobState

TheJob = Annotated[JobId, Field(description="The job's id")]

PATIENCE = 50.0
"""Seconds; many clients give a call a minute."""


class JobSummary(BaseModel):
    """A job in a list; show_job has all of it."""

    id: int
    kind: str
    lane: str
    state: JobState
    priority: int
    attempt: int
    progress: Progress | None
    reason: str | None
    error_summary: str | None
    submitted_by: str | None
    created_at: datetime
    finished_at: datetime | None

    @classmethod
    def of(cls, job: JobView) -> Self:
        return cls(**{name: getattr(job, name) for name in cls.model_fields})


class JobList(BaseModel):
    items: list[JobSummary]
    next: int | None = Field(description="What to give as `before` for the next page; null on the last one")


def offer(server: Server, api: Api) -> None:
    tools = JobTools(api)
    server.offer(tools.enqueue_job, ADDS)
    server.offer(tools.list_jobs, READS)
    server.offer(tools.show_job, READS)
    server.offer(tools.wait_for_job, READS)
    server.offer(tools.approve_job, CHANGES)
    server.offer(tools.reject_job, ENDS)
    server.offer(tools.cancel_job, ENDS)
    server.offer(tools.retry_job, ADDS)
    server.offer(tools.prioritise_job, CHANGES)


class JobTools:
    """Each is one call of the API, but for the one that waits."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def enqueue_job(
        self,
        kind: Annotated[Kind, Field(description="What sort of job: the lanes of workers/status list the kinds")],
        payload: Annotated[Any, Field(description="What this kind takes, as JSON", examples=[{"steps": 3}])] = None,
        priority: Annotated[Priority, Field(description="Higher is sooner")] = 0,
        at: Annotated[AwareDatetime | None, Field(description="Not before this time, with its zone")] = None,
        delay: Annotated[Seconds | None, Field(description="Not before so many seconds are over")] = None,
        dedup_key: Annotated[Line | None, Field(description="A live job with this key is given back instead")] = None,
        timeout: Annotated[Seconds | None, Field(description="Seconds that an attempt may take")] = None,
        max_attempts: Annotated[int | None, Field(ge=1, le=32767, description="Attempts before it has failed")] = None,
        auto_approve: Annotated[bool, Field(description="Approve it at once; needs jobs:approve")] = False,
    ) -> EnqueuedJob:
        """Put a job in and return its id at once; the job runs later, and survives crashes and restarts.

        Use wait_for_job to see it through. `status` is "existing" if a live job had the same dedup_key: nothing
        was added then, and the id is that job's.
        """
        return await self._api.post(
            "/jobs",
            EnqueuedJob,
            {
                "kind": kind, "payload": payload, "priority": priority, "at": at.isoformat() if at else None,
                "delay": delay, "dedup_key": dedup_key, "timeout": timeout, "max_attempts": max_attempts,
                "auto_approve": auto_approve,
            },
        )  # fmt: skip

    async def list_jobs(
        self,
        state: Annotated[list[JobState] | None, Field(description="Only jobs in any of these states")] = None,
        kind: Annotated[list[Kind] | None, Field(description="Only jobs of any of these kinds")] = None,
        lane: Annotated[Line | None, Field(description="Only jobs of this lane")] = None,
        submitted_by: Annotated[Line | None, Field(description="Only jobs that this user put in")] = None,
        before: Annotated[JobId | None, Field(description="`next` of the page before")] = None,
        limit: Annotated[int, Field(ge=1, le=500, description="Jobs on a page")] = 20,
    ) -> JobList:
        """List jobs, live and finished, the newest first, a page at a time.

        A page of one kind or lane may be short, or empty, and yet have a `next`: call again with it to look further.
        """
        asked = {"state": state and [str(one) for one in state], "kind": kind, "lane": lane,
                 "submitted_by": submitted_by, "before": before, "limit": limit}  # fmt: skip
        page = await self._api.get("/jobs", JobPage, asked)
        return JobList(items=[JobSummary.of(job) for job in page.items], next=page.next)

    async def show_job(self, job_id: TheJob) -> JobView:
        """Show a job whole: state, payload, progress, result or error, who put it in and who approved it."""
        return await self._api.get(f"/jobs/{job_id}", JobView)

    async def wait_for_job(
        self,
        ctx: Context[Any, Any],
        job_id: TheJob,
        seconds: Annotated[float, Field(ge=0, le=3600, description="How long to wait at most")] = PATIENCE,
    ) -> JobView:
        """Wait until a job has ended or the time is up, with progress, and return the job as it is then.

        Look at `state`: succeeded, failed and cancelled are ends. If it is another, call again to go on waiting.
        """
        job = await self._api.get(f"/jobs/{job_id}", JobView)
        told = -1.0
        with anyio.move_on_after(seconds):
            async with aclosing(self._api.events(f"/jobs/{job_id}/events", "job", JobView)) as jobs:
                async for job in jobs:
                    report = job.progress or Progress(done=None, total=None, message=None)
                    done = report.done or 0.0
                    if done > told:  # the protocol wants it to grow, and a second attempt begins anew
                        told = done
                        await ctx.report_progress(done, report.total, report.message or str(job.state))
        return job

    async def approve_job(self, job_id: TheJob) -> JobView:
        """Approve a job that is awaiting_approval, so that it is queued. Its `estimate` says what it will cost."""
        return await self._api.post(f"/jobs/{job_id}/approve", JobView)

    async def reject_job(self, job_id: TheJob) -> JobView:
        """Reject a job that is awaiting_approval: it ends as cancelled, with the reason "rejected"."""
        return await self._api.post(f"/jobs/{job_id}/reject", JobView)

    async def cancel_job(
        self,
        job_id: TheJob,
        reason: Annotated[Line | None, Field(description="Why, for those who look at it later")] = None,
    ) -> JobView:
        """Cancel a job. One that runs is told to stop and stays `running` until it did: wait_for_job sees it end."""
        return await self._api.post(f"/jobs/{job_id}/cancel", JobView, {"reason": reason})

    async def retry_job(self, job_id: TheJob) -> EnqueuedJob:
        """Enqueue a job that has ended anew. The answer has the id of the new job, whose `retry_of` is the old one."""
        return await self._api.post(f"/jobs/{job_id}/retry", EnqueuedJob)

    async def prioritise_job(
        self, job_id: TheJob, priority: Annotated[Priority, Field(description="Higher is sooner")]
    ) -> JobView:
        """Change the priority of a job that doesn't run yet."""
        return await self._api.patch(f"/jobs/{job_id}/priority", JobView, {"priority": priority})
