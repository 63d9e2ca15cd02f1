"""Jobs over HTTP."""

import asyncio
import json
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Annotated

from fastapi import Path, Query, Request, Response
from starlette.responses import StreamingResponse

from kappa.app.api.routing import Routes, Uses, Who
from kappa.app.api.schemas import (
    CancelJob,
    EnqueuedJob,
    EnqueueJob,
    JobId,
    JobPage,
    JobView,
    Kind,
    Line,
    SetPriority,
)
from kappa.app.permissions import Permission
from kappa.engine import Job, JobState

KEEP_ALIVE = 15.0

routes = Routes("jobs", "/jobs")

JobPath = Annotated[JobId, Path()]

EVENT = {
    "type": "object",
    "description": "One server-sent event; the data of `job` is a JobView as JSON",
    "properties": {"event": {"enum": ["job", "draining"]}, "data": {"type": "string"}},
    "required": ["event", "data"],
}


@routes.post("", Permission.JOBS_ENQUEUE, 404, 429, status_code=201, responses={200: {"model": EnqueuedJob}})
async def enqueue(services: Uses, who: Who, body: EnqueueJob, response: Response) -> EnqueuedJob:
    """Put a job in. 201 says that it was made, 200 that a live job has the same `dedup_key`.

    Needs the permissions of its kind as well.
    """
    done = await services.jobs.enqueue(
        who, body.kind, body.payload, priority=body.priority, at=body.at, delay=_seconds(body.delay),
        dedup_key=body.dedup_key, timeout=_seconds(body.timeout), max_attempts=body.max_attempts,
        auto_approve=body.auto_approve, needs=None if body.needs is None else body.needs.value,
    )  # fmt: skip
    response.headers["Location"] = f"/jobs/{done.id}"
    if not done.created:
        response.status_code = 200
    return EnqueuedJob(id=done.id, status="created" if done.created else "existing")


@routes.get("", Permission.JOBS_VIEW)
async def list_jobs(
    services: Uses,
    who: Who,
    state: Annotated[list[JobState] | None, Query(description="Any of these states")] = None,
    kind: Annotated[list[Kind] | None, Query(description="Any of these kinds")] = None,
    lane: Annotated[Line | None, Query()] = None,
    submitted_by: Annotated[Line | None, Query()] = None,
    before: Annotated[JobId | None, Query(description="`next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> JobPage:
    """Jobs, the newest first, a page at a time.

    With a kind or a lane, 300,000 ids are looked through for a page: it may be short, or empty, and yet have a `next`.
    """
    found = await services.client.page_jobs(
        states=state, kinds=kind, lane=lane, submitted_by=submitted_by, before=before, limit=limit
    )
    with_detail = who.may(Permission.WORKERS_VIEW)
    return JobPage(items=[JobView.of(job, with_detail=with_detail) for job in found.jobs], next=found.next)


@routes.get("/{job_id}", Permission.JOBS_VIEW, 404)
async def show(services: Uses, who: Who, job_id: JobPath) -> JobView:
    """One job, whole."""
    return JobView.of(await services.client.show(job_id), with_detail=who.may(Permission.WORKERS_VIEW))


@routes.get(
    "/{job_id}/events",
    Permission.JOBS_VIEW,
    404,
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": EVENT}}}},
)
async def events(services: Uses, who: Who, job_id: JobPath, request: Request) -> StreamingResponse:
    """The job as server-sent events: as it is now, and each time that it changed, until it has ended."""
    await services.client.show(job_id)  # a job that isn't there is a 404, not an empty stream
    stream = _events(request, services.watchtower.watch(job_id), with_detail=who.may(Permission.WORKERS_VIEW))
    return StreamingResponse(stream, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


@routes.post("/{job_id}/approve", Permission.JOBS_APPROVE, 404, 409)
async def approve(services: Uses, who: Who, job_id: JobPath) -> JobView:
    """Let a job that awaits approval be queued. Needs the permissions of its kind as well."""
    return JobView.of(await services.jobs.approve(who, job_id), with_detail=who.may(Permission.WORKERS_VIEW))


@routes.post("/{job_id}/reject", Permission.JOBS_APPROVE, 404, 409)
async def reject(services: Uses, who: Who, job_id: JobPath) -> JobView:
    """End a job that awaits approval as cancelled, with the reason `rejected`."""
    return JobView.of(await services.jobs.reject(who, job_id), with_detail=who.may(Permission.WORKERS_VIEW))


@routes.post("/{job_id}/cancel", Permission.JOBS_CANCEL, 404, 409)
async def cancel(services: Uses, who: Who, job_id: JobPath, body: CancelJob | None = None) -> JobView:
    """Cancel a job. One that runs is told to stop, and stays `running` until it did."""
    job = await services.jobs.cancel(who, job_id, body.reason if body else None)
    return JobView.of(job, with_detail=who.may(Permission.WORKERS_VIEW))


@routes.post("/{job_id}/retry", Permission.JOBS_RETRY, 404, 409, 429, status_code=201)
async def retry(services: Uses, who: Who, job_id: JobPath, response: Response) -> EnqueuedJob:
    """Enqueue a finished job anew. It is a new job, that knows its origin as `retry_of`.

    Needs the permissions of its kind as well.
    """
    done = await services.jobs.retry(who, job_id)
    response.headers["Location"] = f"/jobs/{done.id}"
    return EnqueuedJob(id=done.id, status="created")


@routes.patch("/{job_id}/priority", Permission.JOBS_PRIORITISE, 404, 409)
async def prioritise(services: Uses, who: Who, job_id: JobPath, body: SetPriority) -> JobView:
    """Change the priority of a job that doesn't run yet. Higher is sooner."""
    job = await services.jobs.prioritise(who, job_id, body.priority)
    return JobView.of(job, with_detail=who.may(Permission.WORKERS_VIEW))


async def _events(request: Request, jobs: AsyncGenerator[Job], *, with_detail: bool) -> AsyncGenerator[str]:
    """Events, with a word now and then that keeps proxies from hanging up. A server that drains ends them."""
    guard = request.app.state.guard
    news = asyncio.ensure_future(anext(jobs))
    quiet = 0.0
    try:
        while True:
            done, _ = await asyncio.wait([news], timeout=1.0)
            if done:
                try:
                    job = news.result()
                except StopAsyncIteration:
                    return
                data = JobView.of(job, with_detail=with_detail).model_dump_json()
                yield f"event: job\ndata: {data}\n\n"
                news = asyncio.ensure_future(anext(jobs))
                quiet = 0.0
                if not guard.draining or job.state.terminal:
                    continue
            # Also right after an event: a job that reports all the time is never quiet.
            if guard.draining:
                yield f"event: draining\ndata: {json.dumps('the server is about to stop: connect again')}\n\n"
                return
            quiet += 1.0
            if quiet >= KEEP_ALIVE:
                yield ": still here\n\n"
                quiet = 0.0
    finally:
        news.cancel()
        await asyncio.gather(news, return_exceptions=True)
        await jobs.aclose()


def _seconds(value: float | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)
