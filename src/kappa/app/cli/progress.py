"""Jobs watched live: bars on a terminal, lines elsewhere, JSON for programs."""

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self

from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from kappa.app.api.schemas import JobView
from kappa.app.cli import show, tables
from kappa.app.cli.follow import Patience, follow
from kappa.app.settings import Settings
from kappa.engine import JobState

Tell = Callable[[JobView], None]


def watch(
    settings: Settings,
    ids: Sequence[int],
    *,
    as_json: bool,
    wait: float,
    teller: Callable[[], AbstractContextManager[Tell]] | None = None,
    goes_on: bool = True,
) -> list[JobView]:
    """The jobs when all of them have ended, shown meanwhile; to people as `teller` does, where they have their own.

    Who is interrupted is told that the work `goes_on`, unless its server ends with this command.
    """
    wanted = list(dict.fromkeys(ids))
    try:
        with _teller(as_json) if teller is None or as_json else teller() as tell:
            return asyncio.run(_follow_all(settings, wanted, Patience(wait, show.say), tell))
    except KeyboardInterrupt:
        for job in wanted if goes_on else ():
            show.say(f"job {job} goes on: `kg job watch {job}` follows it, `kg job cancel {job}` ends it")
        raise


async def _follow_all(settings: Settings, ids: Sequence[int], patience: Patience, tell: Tell) -> list[JobView]:
    return await asyncio.gather(*(follow(settings, job_id, patience, tell) for job_id in ids))


@contextmanager
def _teller(as_json: bool) -> Generator[Tell]:
    if as_json:
        yield show.as_json_line
    elif show.out.is_terminal:
        with Bars() as bars:
            yield bars.tell
    else:
        yield _lines()


def _lines() -> Tell:
    last: dict[int, str] = {}

    def tell(job: JobView) -> None:
        # A renewed lease is a change as well, but not one that reads differently.
        if last.get(job.id) != (text := describe(job)):
            last[job.id] = text
            show.line(text)

    return tell


def describe(job: JobView) -> str:
    """A job in one line."""
    outcome = tables.compact(job.result) if job.state is JobState.SUCCEEDED else tables.progress(job)
    return " ".join(f"job {job.id} {job.state.value} {outcome}".split())


class Bars:
    """A bar for each job, until all have ended."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("job {task.fields[id]} {task.fields[kind]}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[state]}", style="bold", markup=False),
            TextColumn("{task.fields[note]}", markup=False),
            console=show.out,
        )
        self._bars: dict[int, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def tell(self, job: JobView) -> None:
        words: dict[str, Any] = {
            "id": job.id,
            "kind": show.printable(job.kind),
            "state": job.state.value,
            "note": self._note(job),
        }
        if job.id not in self._bars:
            self._bars[job.id] = self._progress.add_task("", start=False, total=None, **words)
        bar = self._bars[job.id]
        total = job.progress.total if job.progress else None
        done = job.progress.done if job.progress else None
        if job.state is JobState.SUCCEEDED:
            # The last report may have been dropped or never made; what succeeded is whole.
            total = done = total or 1.0
        if job.started_at is not None:
            self._progress.start_task(bar)
        self._progress.update(bar, total=total, completed=done or 0.0, **words)
        if job.state.terminal:
            self._progress.stop_task(bar)

    @staticmethod
    def _note(job: JobView) -> str:
        if job.state is JobState.AWAITING_APPROVAL:
            return f"kg job approve {job.id}"
        if job.state is JobState.SUCCEEDED:
            return show.printable(tables.compact(job.result))
        message = job.progress.message if job.progress else None
        return show.printable((tables.progress(job) if job.state.terminal else message) or "")
