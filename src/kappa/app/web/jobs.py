"""Jobs: the list with its filters, one job with its timeline, and what may be done with it."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from urllib.parse import urlencode

from starlette.responses import Response

from kappa.app.errors import Refused
from kappa.app.kinds.ingestion import INGEST_IMAGE, INGESTION
from kappa.app.permissions import Permission
from kappa.app.usecases import submission
from kappa.app.web.pages import Pages, Visit, way_back
from kappa.app.web.rendering import price
from kappa.engine import Job, JobEvent, JobState

pages = Pages()

PAGE = 50
MANY = 200
"""Children, and moments of a timeline, that a page shows."""
INGESTS = (INGESTION, INGEST_IMAGE)
ESTIMATED = ("documents", "chunks", "words", "tokens", "embeddings", "ocr_pages", "price")
GROUPS: dict[str, list[JobState]] = {
    "live": [state for state in JobState if not state.terminal],
    "ended": [state for state in JobState if state.terminal],
    "unwell": [JobState.FAILED, JobState.TIMED_OUT],
}


@dataclass(frozen=True, slots=True)
class May:
    """What this visitor may do with this job, as it is."""

    approve: bool
    reject: bool
    cancel: bool
    retry: bool
    prioritise: bool

    @classmethod
    def of(cls, visit: Visit, job: Job) -> "May":
        theirs = job.submitted_by == visit.who.name or visit.may(Permission.JOBS_MANAGE)
        any_job, over = visit.may(Permission.WORKERS_MANAGE), job.state.terminal
        before = job.state in (JobState.AWAITING_APPROVAL, JobState.SCHEDULED, JobState.QUEUED)
        decide = job.state is JobState.AWAITING_APPROVAL and visit.may(Permission.JOBS_APPROVE)
        return cls(
            approve=decide and submission.may_approve(visit.who, job.kind),
            reject=decide,
            cancel=not over and job.reason is None and visit.may(Permission.JOBS_CANCEL) and (theirs or any_job),
            retry=over and theirs and visit.may(Permission.JOBS_RETRY) and submission.may_submit(visit.who, job.kind),
            prioritise=before and visit.may(Permission.JOBS_PRIORITISE) and (theirs or any_job),
        )


@dataclass(frozen=True, slots=True)
class Moment:
    """A point of a job's timeline."""

    at: datetime
    what: str
    tone: Literal["", "good", "bad", "warn", "now"] = ""
    detail: str | None = None
    to_come: bool = False


def _estimate(job: Job) -> Any:
    """What is known of what a job will come to, as people read it; the database has an order of its own."""
    told: Any = job.estimate
    if not isinstance(job.estimate, dict):
        return told
    if job.kind in INGESTS:
        told = told | {"price": price(told["price"])}
    ordered = {key: told[key] for key in [*(key for key in ESTIMATED if key in told), *told]}
    return {"pages for OCR" if key == "ocr_pages" else key: value for key, value in ordered.items()}


def _outcome(job: Job) -> tuple[str, str] | None:
    """Where to see what came of a job, and what to call that; None where the result says it all."""
    payload: Any = job.payload
    result: Any = job.result
    if job.state is not JobState.SUCCEEDED:
        return None
    match job.kind:
        case kind if kind in INGESTS:
            return f"/ui/graph?{urlencode({'ontology': payload['ontology']})}", "See what was read"
        case "projection" if result.get("artifact") is not None:
            return f"/ui/graph/map?id={result['artifact']}", "See the map"
        case _:
            return None


@pages.get("/jobs", Permission.JOBS_VIEW)
async def jobs(visit: Visit) -> Response:
    asked = visit.asked("state")
    states = GROUPS.get(asked or "") or ([_state(asked)] if asked else None)
    kind, by = visit.asked("kind"), visit.asked("by")
    found = await visit.services.client.page_jobs(
        states=states, kinds=[kind] if kind else None, lane=visit.asked("lane"), submitted_by=by,
        before=visit.asked_number("before"), limit=PAGE,
    )  # fmt: skip
    lanes = await visit.services.client.lanes()
    return visit.page(
        "jobs.html", jobs=[(job, May.of(visit, job)) for job in found.jobs], next=found.next, lanes=lanes,
        groups=list(GROUPS), short=found.next is not None and len(found.jobs) < PAGE,
        states=list(JobState), kinds=sorted(kind for lane in lanes for kind in lane.kinds),
        live=visit.asked_number("before") is None,
    )  # fmt: skip


@pages.get("/jobs/{job_id:int}", Permission.JOBS_VIEW)
async def job(visit: Visit) -> Response:
    return await _shown(visit, visit.number("job_id"))


@pages.post("/jobs/{job_id:int}/approve", Permission.JOBS_APPROVE)
async def approve(visit: Visit) -> Response:
    return _done(visit, (await visit.services.jobs.approve(visit.who, visit.number("job_id"))).id)


@pages.post("/jobs/{job_id:int}/reject", Permission.JOBS_APPROVE)
async def reject(visit: Visit) -> Response:
    return _done(visit, (await visit.services.jobs.reject(visit.who, visit.number("job_id"))).id)


@pages.post("/jobs/{job_id:int}/cancel", Permission.JOBS_CANCEL)
async def cancel(visit: Visit) -> Response:
    any_job = visit.may(Permission.WORKERS_MANAGE)
    told = await visit.services.jobs.cancel(visit.who, visit.number("job_id"), any_job=any_job)
    return _done(visit, told.id)


@pages.post("/jobs/{job_id:int}/retry", Permission.JOBS_RETRY)
async def retry(visit: Visit) -> Response:
    return _done(visit, (await visit.services.jobs.retry(visit.who, visit.number("job_id"))).id)


@pages.post("/jobs/{job_id:int}/priority", Permission.JOBS_PRIORITISE)
async def prioritise(visit: Visit) -> Response:
    any_job, priority = visit.may(Permission.WORKERS_MANAGE), _priority(visit.word("priority"))
    changed = await visit.services.jobs.prioritise(visit.who, visit.number("job_id"), priority, any_job=any_job)
    return _done(visit, changed.id)


def _done(visit: Visit, job_id: int) -> Response:
    """Back to the list that somebody came from, or to the job."""
    visit.services.overview.forget()
    back = visit.word("back")
    return visit.elsewhere(way_back(back) if back else f"/ui/jobs/{job_id}")


async def _shown(visit: Visit, job_id: int) -> Response:
    services = visit.services
    found = await services.client.show(job_id)
    events, relatives = await services.client.history(job_id, MANY + 1)
    children = [one for one in relatives if one.bond == "child"]
    payload: Any = found.payload
    return visit.page(
        "job.html", job=found, may_do=May.of(visit, found), moments=list(_timeline(found, events)),
        run=payload["run_id"] if found.kind == "tool_run" else None,
        children=children[:MANY], more_children=len(children) > MANY,
        retries=[one for one in relatives if one.bond == "retry"],
        with_detail=visit.may(Permission.WORKERS_VIEW), left_out=visit.asked_number("left_out"),
        estimate=_estimate(found), outcome=_outcome(found) if visit.may(Permission.GRAPH_READ) else None,
    )  # fmt: skip


EVENTS: dict[str, tuple[str, Any]] = {
    "lease_ran_out": ("its lease ran out: {owner} gave no sign of life", "bad"),
    "released": ("{owner} let go of it before its end", "warn"),
    "adopted": ("adopted by {owner}", "warn"),
    "put_back": ("attempt {attempt} ended, on {owner}; another one follows", "warn"),
}


def _timeline(job: Job, events: list[JobEvent]) -> Iterator[Moment]:
    """What is known of a job's way, in its order; at the end what is to come."""
    by = f" by {job.submitted_by}" if job.submitted_by else ""
    yield Moment(job.created_at, f"enqueued{by}", detail=f"in the lane {job.lane}")
    if job.approved_at is not None:
        yield Moment(job.approved_at, f"approved by {job.approved_by}", "good")
    begun = [Moment(job.started_at, "first start")] if job.started_at is not None else []
    for one in events[:MANY]:
        text, tone = EVENTS[one.event]
        said = text.format(owner=one.owner or "its worker", attempt=one.attempt)
        begun.append(Moment(one.at, said, tone, one.detail))
    yield from sorted(begun, key=lambda moment: moment.at)
    if len(events) > MANY:
        yield Moment(events[MANY].at, f"and more that is not shown: these were the first {MANY}", "warn")
    yield from _now_or_end(job)


def _now_or_end(job: Job) -> Iterator[Moment]:
    tries = f"attempt {job.attempt} of {job.max_attempts}"
    if job.finished_at is not None:
        tone: Any = {"succeeded": "good", "cancelled": "warn"}.get(job.state, "bad")
        yield Moment(job.finished_at, job.state.replace("_", " "), tone, job.reason or job.error_summary)
    elif job.state is JobState.RUNNING and job.lease_until is not None:
        details = ["waits for its children"] if job.waiting else []
        details += [f"told to stop: {job.reason}"] if job.reason else []
        runs = f"{tries} runs on" if job.attempt else "taken by"
        said = f"{runs} {job.lease_owner}; its lease ends"
        yield Moment(job.lease_until, said, "now", "; ".join(details) or None, to_come=True)
    elif job.state is JobState.RUNNING:
        yield Moment(job.created_at, "it lost its worker, and waits to be adopted", "bad", to_come=True)
    elif job.run_at is not None:
        yield Moment(job.run_at, "due" if job.attempt == 0 else "due again", "now", job.error_summary, to_come=True)
    elif job.expires_at is not None:
        yield Moment(job.expires_at, "cancelled, if nobody approves it before", "now", to_come=True)
    else:
        yield Moment(job.created_at, f"waits for a slot of the lane {job.lane}", "now", to_come=True)


def _state(text: str) -> JobState:
    try:
        return JobState(text)
    except ValueError:
        raise Refused(f"there is no state {text!r}") from None


def _priority(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Refused(f"a priority is a whole number, not {text!r}") from None
