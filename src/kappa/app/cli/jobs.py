"""`kg job`: jobs put in, looked at, watched and steered."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import typer

from kappa.app import remote, settings
from kappa.app.api.schemas import EnqueuedJob, JobPage, JobView, Me
from kappa.app.cli import complete, progress, show, tables, values
from kappa.app.remote import Server, ServerRefused
from kappa.engine import JobState

T = TypeVar("T")

app = typer.Typer(no_args_is_help=True, help="Jobs: enqueue, list, show, watch, approve, cancel, retry.")

LARGEST_PAGE = 500

Id = Annotated[
    int,
    typer.Argument(
        metavar="ID", min=1, max=2**63 - 1, help="The job.", show_default=False, autocompletion=complete.jobs
    ),
]
Ids = Annotated[
    list[int],
    typer.Argument(
        metavar="ID", min=1, max=2**63 - 1, help="The jobs, one or more.", show_default=False,
        autocompletion=complete.jobs,
    ),
]  # fmt: skip
Wait = Annotated[
    float,
    typer.Option(
        parser=values.seconds, metavar="DURATION", help="How long a lost server is waited for.", show_default="2m"
    ),
]
WAIT = 120.0


@app.command()
def enqueue(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND", help="The kind of job, as in self_test.", show_default=False, autocompletion=complete.kinds
        ),
    ],
    payload: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="The payload: JSON, @FILE, or - for standard input.", show_default="null"),
    ] = None,
    priority: Annotated[int | None, typer.Option(help="Higher is sooner.", show_default="0")] = None,
    at: Annotated[str | None, typer.Option(parser=values.moment, metavar="TIME", help="Not before this time.")] = None,
    delay: Annotated[
        float | None,
        typer.Option(parser=values.seconds, metavar="DURATION", help="Not before so long, as in 90s."),
    ] = None,
    dedup_key: Annotated[str | None, typer.Option(help="A live job with the same key is taken instead.")] = None,
    timeout: Annotated[
        float | None,
        typer.Option(parser=values.seconds, metavar="DURATION", help="An attempt may take so long."),
    ] = None,
    max_attempts: Annotated[int | None, typer.Option(help="How often it may be begun.")] = None,
    cores: Annotated[float | None, typer.Option(min=0, help="Cores that a fleet worker must have.")] = None,
    memory: Annotated[int | None, typer.Option(metavar="MB", min=0, help="Memory that it must have.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="A label that it must have; may be repeated.")] = None,
    auto_approve: Annotated[bool, typer.Option("--auto-approve", help="Approve it at once.")] = False,
    watch_it: Annotated[bool, typer.Option("--watch", help="Watch it to its end, as `kg job watch` does.")] = False,
    as_json: show.AsJson = False,
) -> None:
    """Put a job in.

    Example: kg job enqueue self_test --payload '{"steps": 5, "seconds": 3}' --watch
    """
    body: dict[str, Any] = {
        "kind": kind, "priority": priority, "at": at, "delay": delay, "dedup_key": dedup_key, "timeout": timeout,
        "max_attempts": max_attempts, "auto_approve": auto_approve or None,
        "payload": None if payload is None else values.payload(payload),
    }  # fmt: skip
    if cores is not None or memory is not None or label:
        body["needs"] = {"cores": cores or 0, "memory_mb": memory or 0, "labels": label or []}
    configured = settings.load()
    with remote.open_server(configured) as server:
        done = server.post("/jobs", EnqueuedJob, {name: value for name, value in body.items() if value is not None})
    made = f"job {done.id} was created" if done.status == "created" else f"job {done.id} has that key and is live"
    if watch_it:
        show.say(made)
        _watch(configured, [done.id], as_json, WAIT)
    elif as_json:
        show.as_json(done)
    else:
        show.line(made)


@app.command(name="list")
def list_jobs(
    state: Annotated[list[JobState] | None, typer.Option(help="Only in this state; may be repeated.")] = None,
    kind: Annotated[
        list[str] | None, typer.Option(help="Only of this kind; may be repeated.", autocompletion=complete.kinds)
    ] = None,
    lane: Annotated[str | None, typer.Option(help="Only in this lane.", autocompletion=complete.lanes)] = None,
    submitted_by: Annotated[str | None, typer.Option(metavar="NAME", help="Only those of this user.")] = None,
    mine: Annotated[bool, typer.Option("--mine", help="Only one's own.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=LARGEST_PAGE, help="So many at most.")] = 50,
    before: Annotated[int | None, typer.Option(metavar="ID", min=1, help="Only those older than this job.")] = None,
    every_page: Annotated[bool, typer.Option("--all", help="All of them, however many.")] = False,
    as_json: show.AsJson = False,
) -> None:
    """List jobs, the newest first.

    Example: kg job list --state failed --state timed_out --mine
    """
    if mine and submitted_by is not None:
        raise typer.BadParameter("--mine and --submitted-by are two ways to say whose")
    with remote.open_server(settings.load()) as server:
        whose = server.get("/me", Me).name if mine else submitted_by
        query: dict[str, Any] = {
            "state": [one.value for one in state or ()], "kind": kind or (), "lane": lane, "submitted_by": whose,
            "before": before, "limit": LARGEST_PAGE if every_page else limit,
        }  # fmt: skip
        page = server.get("/jobs", JobPage, query)
        # A page of one kind or lane may be short: the server looks no further for it than is good for the others.
        while page.next is not None and (every_page or len(page.items) < limit):
            left = LARGEST_PAGE if every_page else limit - len(page.items)
            older = server.get("/jobs", JobPage, query | {"before": page.next, "limit": left})
            page = JobPage(items=[*page.items, *older.items], next=older.next)
    if as_json:
        show.as_json(page)
        return
    if page.items:
        show.out.print(tables.jobs(page.items))
    else:
        show.say("no jobs like that")
    if page.next is not None:
        show.say(f"there may be more: --before {page.next}, or --all")


@app.command(name="show")
def show_job(job_id: Id, as_json: show.AsJson = False) -> None:
    """Show everything about a job.

    Example: kg job show 12
    """
    with remote.open_server(settings.load()) as server:
        job = server.get(f"/jobs/{job_id}", JobView)
    if as_json:
        show.as_json(job)
    else:
        show.fields(tables.job_fields(job))


@app.command()
def watch(ids: Ids, wait: Wait = WAIT, as_json: show.AsJson = False) -> None:
    """Watch jobs to their end; 1 unless all of them succeeded. With --json, a line for each change.

    A server that stops or vanishes meanwhile is waited for. Example: kg job watch 12 13
    """
    _watch(settings.load(), ids, as_json, wait)


@app.command()
def approve(ids: Ids, as_json: show.AsJson = False) -> None:
    """Let jobs that await approval be queued.

    Example: kg job approve 12
    """
    _each(ids, lambda server, job_id: server.post(f"/jobs/{job_id}/approve", JobView), progress.describe, as_json)


@app.command()
def reject(ids: Ids, as_json: show.AsJson = False) -> None:
    """End jobs that await approval.

    Example: kg job reject 12 13
    """
    _each(ids, lambda server, job_id: server.post(f"/jobs/{job_id}/reject", JobView), progress.describe, as_json)


@app.command()
def cancel(
    ids: Ids,
    reason: Annotated[str | None, typer.Option(help="Why; the job keeps it.")] = None,
    as_json: show.AsJson = False,
) -> None:
    """Cancel jobs. One that runs is told to stop, and runs until it did.

    Example: kg job cancel 12 --reason 'the wrong document'
    """
    body = None if reason is None else {"reason": reason}
    _each(ids, lambda server, job_id: server.post(f"/jobs/{job_id}/cancel", JobView, body), _cancelled, as_json)


@app.command()
def retry(ids: Ids, as_json: show.AsJson = False) -> None:
    """Enqueue finished jobs anew. Each becomes a new job.

    Example: kg job retry 12
    """

    def act(server: Server, job_id: int) -> dict[str, Any]:
        return {**server.post(f"/jobs/{job_id}/retry", EnqueuedJob).model_dump(), "retry_of": job_id}

    _each(ids, act, lambda made: f"job {made['id']} was created, a retry of {made['retry_of']}", as_json)


# A negative number is a priority here, not an option.
@app.command(context_settings={"ignore_unknown_options": True})
def priority(
    job_id: Id,
    number: Annotated[
        int, typer.Argument(metavar="N", min=-32767, max=32767, help="Higher is sooner.", show_default=False)
    ],
    as_json: show.AsJson = False,
) -> None:
    """Change the priority of a job that doesn't run yet.

    Example: kg job priority 12 100
    """
    with remote.open_server(settings.load()) as server:
        job = server.patch(f"/jobs/{job_id}/priority", JobView, {"priority": number})
    if as_json:
        show.as_json(job)
    else:
        show.line(f"job {job.id} has priority {job.priority}")


def run_job(
    kind: str, payload: dict[str, Any], *, as_json: bool, wait: bool, auto_approve: bool = False
) -> JobView | None:
    """Put a job in and watch it to its good end; None where it is not waited for."""
    configured = settings.load()
    body = {"kind": kind, "payload": {name: value for name, value in payload.items() if value is not None}}
    with remote.open_server(configured) as server:
        done = server.post("/jobs", EnqueuedJob, body | ({"auto_approve": True} if auto_approve else {}))
        if not wait:
            if as_json:
                show.as_json(done)
            else:
                show.line(f"job {done.id} was created")
            return None
    show.say(f"job {done.id} was created")
    (ended,) = progress.watch(configured, [done.id], as_json=as_json, wait=WAIT)
    if ended.state is not JobState.SUCCEEDED:
        raise typer.Exit(1)
    return ended


def _watch(configured: settings.Settings, ids: Sequence[int], as_json: bool, wait: float) -> None:
    ended = progress.watch(configured, ids, as_json=as_json, wait=wait)
    if any(job.state is not JobState.SUCCEEDED for job in ended):
        raise typer.Exit(1)


def _cancelled(job: JobView) -> str:
    return progress.describe(job) if job.state.terminal else f"job {job.id} is told to stop"


def _each(ids: Sequence[int], act: Callable[[Server, int], T], tell: Callable[[T], str], as_json: bool) -> None:
    """Do the same to each job. One that is refused doesn't keep the others from it."""
    done: list[T] = []
    refused: list[ServerRefused] = []
    with remote.open_server(settings.load()) as server:
        for job_id in dict.fromkeys(ids):
            try:
                done.append(act(server, job_id))
            except ServerRefused as error:
                if error.status == 401 or error.not_now:
                    raise
                refused.append(error)
    if as_json and (done or not refused):
        show.as_json(done)
    elif not as_json:
        for one in done:
            show.line(tell(one))
    for error in refused[:-1]:
        show.err.print(f"kg: {show.printable(error)}", soft_wrap=True, markup=False)
    if refused:
        raise refused[-1]
