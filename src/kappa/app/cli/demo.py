"""`kg demo`: documents in, questions out, on a server of its own.

The server is a real one, in this process; what the demo does, a thread beside it does over HTTP, as anybody could.
"""

import shutil
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kappa.app import remote, settings
from kappa.app.cli import documents, ingest_progress, progress, show, tour
from kappa.app.cli.ingest import live_jobs, submit, worded
from kappa.app.home import token_file
from kappa.app.settings import LogLevel, Settings
from kappa.engine import JobState
from kappa.pg import KappaError

if TYPE_CHECKING:
    from kappa.app.serve import Up

CORPUS = Path(__file__).parents[1] / "corpus"
ONTOLOGY = "coffee and sleep"


class DemoFailed(KappaError):
    """What the demo shows didn't work."""


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the server running afterwards, until ctrl-C.")] = False,
) -> None:
    """Read twelve short pages into a graph of their own, ask it three questions, and stop.

    Example: kg demo --keep
    """
    from kappa.app import serve

    given = settings.load()
    # The demo never touches what people keep: it has a home below theirs, and asks nobody else's server.
    own = given.model_copy(
        update={
            "home": given.home / "demo", "database_url": None, "database_direct_url": None, "server": None,
            "token": None, "log_level": LogLevel.WARNING, "port": given.port if keep else 0,
        }
    )  # fmt: skip
    show.line(
        "Twelve short pages about coffee and sleep become a graph: no key, no network, nothing to install. They were "
        "written for this demo. Their authors are invented, and they don't agree with each other.\n"
    )
    guide = _Guide(own, keep=keep)
    serve.up(own, serve.Options(), show.say, guide.begin, any_port=True)
    if not guide.end():
        show.say("interrupted; `kg demo` goes on where it was")
        raise typer.Exit(130)
    show.line(f"The server was stopped; its data stays in {own.home.expanduser()}.")


class _Guide(threading.Thread):
    """Shows around, and then stops the server, unless it is to be kept."""

    def __init__(self, own: Settings, *, keep: bool) -> None:
        super().__init__(name="guide", daemon=True)
        self._settings = own
        self._keep = keep
        self._begun = time.monotonic()
        self._now: Up | None = None
        self._failure: BaseException | None = None
        self._done = False

    def begin(self, now: "Up") -> None:
        self._now = now
        self.start()

    def run(self) -> None:
        assert self._now is not None
        try:
            self._show_around(self._now.url)
            self._done = True
        except BaseException as failure:
            self._failure = failure
        if self._failure is not None or not self._keep:
            self._now.stop()

    def end(self) -> bool:
        """Whether all was shown; if not, the server was stopped in the middle of it. Raises what went wrong."""
        self.join(timeout=5)
        match self._failure:
            case None:
                return self._done
            case remote.ServerNotFound():
                return False
            case remote.ServerRefused() if self._failure.not_now:
                return False
            case _:
                raise self._failure

    def _show_around(self, url: str) -> None:
        show.line(f"1. A PostgreSQL and a server of their own are up, after {self._passed():.1f} s.")
        with remote.open_server(self._settings) as server:
            self._ingest(server)
            show.line(
                "\n3. Three questions. Under each answer stand the sentences that it was read from, and their page. "
                "Words in capitals are relations of the graph; NOT_CAUSES is the denial of CAUSES."
            )
            tour.ask(server, ONTOLOGY)
        home = self._settings.home.expanduser()
        show.line(f"\nAll of it took {self._passed():.0f} s.")
        if self._keep:
            show.line(
                f"The server stays up, until ctrl-C. Its pages: {url}/ (sign in with the token in {token_file(home)})"
            )
            asking = f"{_kg()} concept show caffeine; {_kg()} search 'deep sleep'"
            show.line(f"In another terminal: export KAPPA_HOME={home}; {asking}")
        else:
            show.line(f"To look around in it: `{_kg()} demo --keep` leaves the server up, with pages for a browser.")
            show.line(f"With documents of yours: `{_kg()} up`, and in another terminal `{_kg()} ingest PATH`.")

    def _ingest(self, server: remote.Server) -> None:
        missed: list[documents.Missed] = []
        found, _ = documents.find([str(path) for path in sorted(CORPUS.iterdir())], "")
        uploads = documents.carry(server, found, missed)
        if missed:
            raise DemoFailed(f"{missed[0].name} of the corpus can't be read: {missed[0].reason}")
        begun = time.monotonic()
        body: dict[str, Any] = {
            "ontology": ONTOLOGY, "uploads": [str(one.key) for one in uploads], "auto_approve": True,
        }  # fmt: skip
        report = submit(server, body, uploads, missed)
        jobs = live_jobs(report)
        if not jobs:
            show.line("2. The pages are in the graph already, from the last time.")
            return
        if report.job is not None:
            show.line(f"2. Job {report.job} reads the pages: {worded(report.estimate)}.")
        else:
            show.line(f"2. Job {jobs[0]} was interrupted the last time, and goes on where it was.")
        ended = progress.watch(
            self._settings, jobs, as_json=False, wait=0, teller=ingest_progress.teller, goes_on=False
        )
        for job in ended:
            if job.state is not JobState.SUCCEEDED:
                raise DemoFailed(f"job {job.id} ended as {job.state}: {job.error_summary}")
        show.line(f"   It was put into the queue, claimed, run and settled within {time.monotonic() - begun:.1f} s.")

    def _passed(self) -> float:
        return time.monotonic() - self._begun


def _kg() -> str:
    """How this command can be called again: `make demo` puts it on nobody's path."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "kg" and shutil.which("kg") is None else "kg"
