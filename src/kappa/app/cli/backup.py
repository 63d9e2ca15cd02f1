"""`kg backup`, `kg restore`: the graph as one file, and back."""

import sys
from collections.abc import Generator
from pathlib import Path
from typing import Annotated, Any

import httpx2
import typer
from typer.core import TyperGroup

from kappa.app import remote, settings, wiring
from kappa.app.api.schemas import EnqueuedJob
from kappa.app.cli import progress, show, values
from kappa.app.cli.jobs import WAIT
from kappa.app.errors import NotFound
from kappa.app.settings import Settings
from kappa.engine import JobState
from kappa.graph import backup

MODES = {
    backup.Mode.REPLACE: "everything that is in the graph is deleted, and the backup takes its place",
    backup.Mode.KEEP_IDS: "what the backup has becomes what it says, under the same ids; the rest stays",
    backup.Mode.MERGE: "what the backup has and the graph lacks is added; what is there has the last word",
}

File = Annotated[Path, typer.Argument(metavar="FILE", show_default=False, help="The backup.")]


class _MakeUnlessSaid(TyperGroup):
    """`kg backup FILE` is `kg backup make FILE`."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **options: Any) -> Any:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["make", *args]
        return super().make_context(info_name, args, *more, **options)


app = typer.Typer(
    cls=_MakeUnlessSaid,
    no_args_is_help=True,
    help="The graph as one file. `kg backup FILE` writes it, `kg backup verify FILE` looks at one.",
)


@app.command()
def make(
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False, help="Where to.")],
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    as_json: show.AsJson = False,
) -> None:
    """Write the whole graph to a file, while work goes on.

    Of the server that KAPPA_SERVER names, or of the database of the settings, which needs no server. `kg backup FILE`
    is the same.

    Example: kg backup make graph.kappa
    """
    if file.is_dir():
        raise values.BadInput(f"{file} is a directory: name a file in it")
    if file.exists() and not force:
        raise values.BadInput(f"{file} is there already: --force writes over it")
    configured = settings.load()
    size = backup.write_file(_from_server(configured) if configured.server else _from_database(configured), file)
    header, manifest = backup.verify(backup.pieces_of(file))
    _tell(file, size, header, manifest, as_json)


@app.command()
def verify(file: File, as_json: show.AsJson = False) -> None:
    """Say whether a file is a whole backup, and what is in it.

    Example: kg backup verify graph.kappa
    """
    header, manifest = backup.verify(backup.pieces_of(file))
    _tell(file, file.stat().st_size, header, manifest, as_json)


def restore(
    file: File,
    mode: Annotated[backup.Mode, typer.Option(help="What becomes of what is there.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Stay until it has ended.")] = True,
    as_json: show.AsJson = False,
) -> None:
    """Restore a backup into the graph of a running server. Other jobs wait meanwhile.

    Example: kg restore graph.kappa --mode merge
    """
    header, manifest = backup.verify(backup.pieces_of(file))
    _sure(file, mode, header, manifest, yes=yes)
    configured = settings.load()
    with remote.open_client(configured) as client:
        answer = client.post(
            "/restore", params={"mode": mode.value}, content=backup.pieces_of(file),
            headers={"Content-Type": "application/octet-stream"}, timeout=httpx2.Timeout(600, connect=5.0),
        )  # fmt: skip
        made = remote.read(EnqueuedJob, remote.check(answer).content)
    if not wait:
        if as_json:
            show.as_json(made)
        else:
            show.line(f"job {made.id}")
        return
    ended = progress.watch(configured, [made.id], as_json=as_json, wait=WAIT)
    if ended[0].state is not JobState.SUCCEEDED:
        raise typer.Exit(1)


def _from_database(configured: Settings) -> Generator[bytes]:
    if configured.database_url is None:
        place = wiring.embedded_server(configured, show.say).status()
        if not place.data.exists():
            raise NotFound(
                f"{place.home} has no database to back up: KAPPA_HOME or KAPPA_SERVER says where there is one"
            )
    with wiring.open_database(configured, "kg backup", show.say) as database, database.connect() as connection:
        yield from backup.make(connection, lambda table, rows: show.say(f"{table}: {rows:,}"))


def _from_server(configured: Settings) -> Generator[bytes]:
    with remote.open_client(configured) as client, client.stream("POST", "/backup", timeout=600) as answer:
        if not answer.is_success:
            answer.read()
        yield from remote.check(answer).iter_bytes()


def _sure(file: Path, mode: backup.Mode, header: backup.Header, manifest: backup.Manifest, *, yes: bool) -> None:
    if yes:
        return
    concepts = manifest.rows.get("concepts", 0)
    said = f"{file} of {header.made_at:%Y-%m-%d %H:%M} UTC ({concepts:,} concepts): {MODES[mode]}"
    if not sys.stdin.isatty():
        raise values.BadInput(f"{said}; --yes says that this is wanted")
    if not typer.confirm(f"{said}. Go on?", err=True):
        raise typer.Exit(1)


def _tell(file: Path, size: int, header: backup.Header, manifest: backup.Manifest, as_json: bool) -> None:
    if as_json:
        show.as_json({"file": str(file), "bytes": size, **header.model_dump(mode="json"), "rows": manifest.rows})
        return
    made = f"{header.made_at:%Y-%m-%d %H:%M:%S} UTC"
    facts = {"file": file, "bytes": f"{size:,}", "made": made, "epoch": header.epoch}
    show.fields(facts | {name.replace("_", " "): f"{count:,}" for name, count in manifest.rows.items()})
