"""`kg ingest`: documents into the graph."""

import sys
from decimal import Decimal
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from kappa.app import remote, settings
from kappa.app.api.ingest_schemas import UNNAMED, DuplicateView, EstimateView, SubmittedView, UploadedView
from kappa.app.api.schemas import JobView
from kappa.app.cli import documents, ingest_progress, progress, show, tables
from kappa.app.cli.documents import STDIN, Missed, NothingToIngest
from kappa.app.cli.jobs import WAIT
from kappa.app.remote import Server, ServerRefused
from kappa.app.settings import Settings
from kappa.engine import JobState

ONTOLOGY = "default"


class Refusal(BaseModel):
    name: str
    reason: str


class Report(BaseModel):
    """What `--json` prints."""

    job: int | None
    state: JobState | None
    estimate: EstimateView
    uploads: list[UploadedView]
    duplicates: list[DuplicateView]
    refused: list[Refusal]


def ingest(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH…", help="Files, directories, or - for standard input.", show_default=False),
    ],
    ontology: Annotated[str, typer.Option(help="The part of the graph that they go into.")] = ONTOLOGY,
    auto_approve: Annotated[
        bool, typer.Option("--auto-approve", "-y", help="Approve it at once, whatever the estimate.")
    ] = False,
    watch_it: Annotated[bool, typer.Option("--watch", "-w", help="Watch it to its end.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Read again what is there already.")] = False,
    provider: Annotated[
        str | None, typer.Option(help="Who extracts, as in local.", show_default="the server's")
    ] = None,
    priority: Annotated[int, typer.Option(min=-32767, max=32767, help="Higher is sooner.")] = 0,
    name: Annotated[str, typer.Option(help="What standard input is called.")] = UNNAMED,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it will come to, and submit nothing.")] = False,
    as_json: show.AsJson = False,
) -> None:
    """Read documents into the graph, as one job. Exits with 1 if one of them can't be read; the others go on.

    Example: kg ingest notes/ report.pdf --ontology sleep --auto-approve --watch
    """
    configured = settings.load()
    found, missed = documents.find(paths, name)
    with remote.open_server(configured) as server:
        uploads = documents.carry(server, found, missed)
        _complain(missed)
        if not uploads:
            raise NothingToIngest(f"nothing to ingest: {show.count(len(missed), 'document')} can't be read")
        for upload in uploads:
            for warning in upload.warnings:
                show.say(f"{show.printable(upload.name)}: {show.printable(warning)}")
        if dry_run:
            _dry(uploads, missed, as_json)
            raise typer.Exit(1 if missed else 0)
        body: dict[str, Any] = {
            "ontology": ontology, "uploads": [str(one.key) for one in uploads], "provider": provider,
            "auto_approve": auto_approve, "force": force, "priority": priority,
        }  # fmt: skip
        report = submit(server, body, uploads, missed)
        if report.state is JobState.AWAITING_APPROVAL and not as_json and STDIN not in paths and _wants(report):
            assert report.job is not None
            approved = server.post(f"/jobs/{report.job}/approve", JobView)
            report = report.model_copy(update={"state": approved.state})
        if auto_approve:
            for job in live_jobs(report):
                if server.get(f"/jobs/{job}", JobView).state is JobState.AWAITING_APPROVAL:
                    server.post(f"/jobs/{job}/approve", JobView)
                    show.say(f"job {job}, which has the same content, awaited approval: approved")
    jobs = live_jobs(report)
    if as_json and watch_it:
        show.as_json_line(report)
    elif as_json:
        show.as_json(report)
    else:
        _tell(report)
    whole = watch(configured, jobs, as_json=as_json) if watch_it and jobs else True
    if missed or not whole:
        raise typer.Exit(1)


def submit(server: Server, body: dict[str, Any], uploads: list[UploadedView], missed: list[Missed]) -> Report:
    """The job that was made; or none, where everything is there already."""
    refused = [Refusal(name=one.name, reason=one.reason) for one in missed]
    try:
        done = server.post("/ingest", SubmittedView, {key: value for key, value in body.items() if value is not None})
    except ServerRefused as error:
        if error.code != "already_there":
            raise
        there = [DuplicateView.model_validate(one) for one in error.problem["duplicates"]]
        return Report(
            job=None, state=None, estimate=together([]), uploads=uploads, duplicates=there, refused=refused
        )  # fmt: skip
    return Report(
        job=done.job, state=done.state, estimate=done.estimate, uploads=uploads, duplicates=done.duplicates,
        refused=refused,
    )  # fmt: skip


def live_jobs(report: Report) -> list[int]:
    """The job of this submission, and those that are about to bring what was left out of it."""
    others = [one.job for one in report.duplicates if one.job is not None]
    return list(dict.fromkeys([*([] if report.job is None else [report.job]), *others]))


def together(estimates: list[EstimateView]) -> EstimateView:
    """The sum; its price is known if all prices are."""
    prices = [one.price for one in estimates]
    names = [field for field in EstimateView.model_fields if field != "price"]
    return EstimateView(
        **{field: sum(getattr(one, field) for one in estimates) for field in names},
        price=None if None in prices else sum((one for one in prices if one is not None), Decimal(0)),
    )


def worded(estimate: EstimateView) -> str:
    """An estimate as a person reads it."""
    parts = [
        show.count(estimate.documents, "document"), show.count(estimate.chunks, "chunk"),
        show.count(estimate.words, "word"), f"about {show.count(estimate.tokens, 'token')}",
        show.count(estimate.embeddings, "embedding"),
    ]  # fmt: skip
    if estimate.ocr_pages:
        parts.append(f"{show.count(estimate.ocr_pages, 'page')} to read by OCR")
    return f"{', '.join(parts)}; {_price(estimate.price)}"


def _price(dollars: Decimal | None) -> str:
    if dollars is None:
        return "price not known"
    if not dollars:
        return "free"
    return "less than $0.01" if dollars < Decimal("0.01") else f"about ${dollars:,.2f}"


def _wants(report: Report) -> bool:
    """Whether the person who sits there approves."""
    if not (sys.stdin.isatty() and show.out.is_terminal):
        return False
    show.line(worded(report.estimate))
    return typer.confirm(f"Approve job {report.job}", err=True)


def _tell(report: Report) -> None:
    for one in report.duplicates:
        there = f"document {one.document}" if one.document is not None else f"job {one.job}"
        show.line(f"{one.name} is there already: {there} has the same content")
    if report.job is None:
        others = ", ".join(f"`kg job show {job}`" for job in live_jobs(report))
        on_its_way = f"nothing new to ingest: it is on its way, {others} says how far"
        show.line(on_its_way if others else "nothing new to ingest; --force reads it again")
        return
    show.line(f"job {report.job} is {report.state}: {worded(report.estimate)}")
    if report.state is JobState.AWAITING_APPROVAL:
        show.line(f"`kg job approve {report.job}` lets it begin, `kg job reject {report.job}` ends it")


def watch(configured: Settings, jobs: list[int], *, as_json: bool) -> bool:
    """Whether all of it got into the graph; what didn't has a line."""
    ended = progress.watch(configured, jobs, as_json=as_json, wait=WAIT, teller=ingest_progress.teller)
    results = [ingest_progress.result(job) for job in ended]
    errors = [error for result in results if result is not None for error in result.errors]
    for error in errors:
        show.err.print(f"kg: {show.printable(error)}", soft_wrap=True, markup=False)
    return not errors and all(job.state is JobState.SUCCEEDED for job in ended)


def _dry(uploads: list[UploadedView], missed: list[Missed], as_json: bool) -> None:
    total = together([one.estimate for one in uploads])
    if as_json:
        refused = [Refusal(name=one.name, reason=one.reason) for one in missed]
        show.as_json(
            Report(job=None, state=None, estimate=total, uploads=uploads, duplicates=[], refused=refused)
        )  # fmt: skip
        return
    rows = show.table("document", "type", "bytes", "words", "chunks")
    for one in uploads:
        rows.add_row(
            tables.cell(one.name), tables.cell(one.media_type), f"{one.size:,}", f"{one.estimate.words:,}",
            f"{one.estimate.chunks:,}",
        )  # fmt: skip
    show.out.print(rows)
    show.line(worded(total))


def _complain(missed: list[Missed]) -> None:
    for one in missed:
        show.err.print(f"kg: {show.printable(one.name)}: {show.printable(one.reason)}", soft_wrap=True, markup=False)
