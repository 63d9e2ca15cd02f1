"""An ingestion watched live: documents and chunks as bars on a terminal, as lines elsewhere."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from pydantic import ValidationError
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from kappa.app.api.schemas import JobView
from kappa.app.cli import progress, show, tables
from kappa.app.kinds.ingested import IngestionResult
from kappa.engine import JobState

_ENDED = re.compile(r"document (\d+) of \d+")
"""How a job of several documents says how many have ended."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How far an ingestion is; the totals are estimated until it has begun."""

    documents: int
    of_documents: int | None
    chunks: int
    of_chunks: int | None

    @classmethod
    def of(cls, job: JobView) -> Self:
        estimate: dict[str, Any] = job.estimate or {}
        if (done := result(job)) is not None:
            return cls(done.documents, estimate.get("documents", done.documents), done.chunks, done.chunks)
        total = job.progress.total if job.progress else None
        ended = _ENDED.match((job.progress.message if job.progress else None) or "")
        return cls(
            int(ended[1]) if ended else 0,
            estimate.get("documents"),
            int((job.progress.done if job.progress else None) or 0),
            estimate.get("chunks") if total is None else int(total),
        )


def result(job: JobView) -> IngestionResult | None:
    """What came of it, once it has succeeded."""
    try:
        return IngestionResult.model_validate(job.result) if job.state is JobState.SUCCEEDED else None
    except ValidationError:
        return None  # a server of another version says it otherwise


def summary(done: IngestionResult) -> str:
    failed = f" ({done.failed_chunks} failed)" if done.failed_chunks else ""
    return (
        f"{show.count(done.documents, 'document')}, {show.count(done.chunks, 'chunk')}{failed}: "
        f"{show.count(done.concepts, 'new concept')}, {show.count(done.relations, 'relation')}, "
        f"{show.count(done.instances, 'quote')}"
    )


def remarks(done: IngestionResult) -> list[str]:
    """What else there is to say of it, a line each."""
    said: list[str] = []
    if done.dropped:
        what = "thing that the provider said was" if done.dropped == 1 else "things that the provider said were"
        said.append(f"{done.dropped:,} {what} dropped, such as quotes that don't stand in the text")
    if done.of_other_models:
        concepts = show.count(done.of_other_models, "concept")
        said.append(
            f"{concepts} of the ontology could be matched by label only: the vectors are another model's; "
            f"`kg job enqueue source_embedding` makes them anew"
        )
    if done.calls:
        cost = f"${done.cost:,.4f}" if done.cost else "no price known, or none"
        tokens = f"{done.tokens_in:,} tokens in and {done.tokens_out:,} out"
        said.append(f"{show.count(done.calls, 'call')} of the provider, {tokens}: {cost}")
    return said


@contextmanager
def teller() -> Generator[progress.Tell]:
    if show.out.is_terminal:
        with _Bars() as bars:
            yield bars.tell
    else:
        yield _lines()


def _lines() -> progress.Tell:
    last: dict[int, str] = {}

    def tell(job: JobView) -> None:
        done = result(job)
        text = progress.describe(job) if done is None else f"job {job.id} succeeded: {summary(done)}"
        if last.get(job.id) != text:
            last[job.id] = text
            show.line(text)
            for remark in remarks(done) if done is not None else ():
                show.line(f"  {remark}")

    return tell


class _Bars:
    """Two bars for each job: documents and chunks."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[what]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=show.out,
        )
        self._bars: dict[int, tuple[TaskID, TaskID]] = {}
        self._results: dict[int, IngestionResult] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        for job_id, done in self._results.items():
            show.line(f"job {job_id} brought {summary(done)}")
            for remark in remarks(done):
                show.line(f"  {remark}")

    def tell(self, job: JobView) -> None:
        if job.id not in self._bars:
            add = self._progress.add_task
            name = f"job {job.id}"
            self._bars[job.id] = (
                add(name, total=None, start=False, what="documents", note=""),
                add(" " * len(name), total=None, start=False, what="chunks", note=""),
            )
        if (done := result(job)) is not None:
            self._results[job.id] = done
        counts = Counts.of(job)
        documents, chunks = self._bars[job.id]
        for bar, done, total, note in (
            (documents, counts.documents, counts.of_documents, self._note(job)),
            (chunks, counts.chunks, counts.of_chunks, ""),
        ):
            if job.started_at is not None:
                self._progress.start_task(bar)
            self._progress.update(bar, completed=done, total=total, note=note)
            if job.state.terminal:
                self._progress.stop_task(bar)

    @staticmethod
    def _note(job: JobView) -> str:
        if job.state is JobState.AWAITING_APPROVAL:
            return f"{job.state.value}: kg job approve {job.id}"
        why = tables.progress(job) if job.state.terminal else ""
        return show.printable(f"{job.state.value} {why}".strip())
