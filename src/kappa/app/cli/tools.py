"""`kg tool`: other people's programs, registered, run and followed."""

import base64
import sys
import time
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from kappa.app import remote, settings
from kappa.app.api.schemas import ArtifactView, JobView, RegisteredTool, ToolLogs, ToolRunPage, ToolRunView, ToolView
from kappa.app.cli import complete, show, tables, values
from kappa.app.remote import Server, segment
from kappa.engine.tools import ToolRunStatus

app = typer.Typer(no_args_is_help=True, help="Tools: register, run, follow, take what they made.")

LOOK_EVERY = 0.5

RunId = Annotated[int, typer.Argument(metavar="RUN", min=1, max=2**63 - 1, help="The run.", show_default=False)]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The tool.", show_default=False, autocompletion=complete.tools)
]
Version = Annotated[str | None, typer.Option(help="This version.", show_default="the newest")]


# What follows the name is the tool's command, options and all.
@app.command(context_settings={"ignore_unknown_options": True})
def add(
    name: Name,
    argv: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND…", help="The command.")] = None,
    version: Annotated[str, typer.Option(help="What it says never changes; a change is a new version.")] = "1",
    image: Annotated[str | None, typer.Option(help="A container image; without one it runs as a process.")] = None,
    description: Annotated[str, typer.Option(help="What it is for.")] = "",
    timeout: Annotated[
        float, typer.Option(parser=values.seconds, metavar="DURATION", help="How long it may run.", show_default="10m")
    ] = 600.0,
    memory_mb: Annotated[int | None, typer.Option(help="Memory.", show_default="1024")] = None,
    cpus: Annotated[float | None, typer.Option(help="CPUs, in a container.", show_default="1")] = None,
    pids: Annotated[int | None, typer.Option(help="Processes and threads.", show_default="256")] = None,
    output_mb: Annotated[int | None, typer.Option(help="What it may leave.", show_default="1024")] = None,
    as_json: show.AsJson = False,
) -> None:
    """Register a tool.

    Example: kg tool add word-count --description 'counts words' -- python3 /usr/local/lib/word_count.py
    """
    limits = {"memory_mb": memory_mb, "cpus": cpus, "pids": pids, "output_mb": output_mb}
    body: dict[str, Any] = {
        "name": name, "version": version, "description": description, "image": image, "argv": argv or [],
        "timeout": timeout, "limits": {key: value for key, value in limits.items() if value is not None},
    }  # fmt: skip
    with remote.open_server(settings.load()) as server:
        made = server.post("/tools", RegisteredTool, body)
    if as_json:
        show.as_json(made)
    else:
        show.line(f"{made.name} {made.version} can be run")
    if made.warning is not None:
        show.say(made.warning)


@app.command(name="list")
def list_tools(as_json: show.AsJson = False) -> None:
    """List the tools, the newest version of each first.

    Example: kg tool list
    """
    with remote.open_server(settings.load()) as server:
        found = server.get("/tools", list[ToolView])
    if as_json:
        show.as_json(found)
        return
    if not found:
        show.say("no tools yet: `kg tool add` registers one")
        return
    rows = show.table("tool", "version", "runs", "time-out", "", "what it is for")
    for tool in found:
        what = tool.image or " ".join(tool.argv)
        off = "" if tool.enabled else "off"
        cells = (tool.name, tool.version, what[:60], tables.span(tool.timeout.total_seconds()), off, tool.description)
        rows.add_row(*map(tables.cell, cells))
    show.out.print(rows)


@app.command()
def run(
    name: Name,
    version: Version = None,
    inputs: Annotated[
        str | None, typer.Option(metavar="JSON", help="The inputs: JSON, @FILE, or - for standard input.")
    ] = None,
    files: Annotated[
        list[Path] | None, typer.Option("--input", metavar="FILE", help="An input file; may be repeated.")
    ] = None,
    priority: Annotated[int, typer.Option(help="Higher is sooner.")] = 0,
    max_attempts: Annotated[int, typer.Option(min=1, max=100, help="How often it may be begun.")] = 1,
    wait: Annotated[bool, typer.Option("--wait", help="Show what it says, and wait for its end.")] = False,
    as_json: show.AsJson = False,
) -> None:
    """Run a tool. With --wait: its output as it comes; 1 unless it succeeded.

    Example: kg tool run word-count --input notes.txt --wait
    """
    body: dict[str, Any] = {
        "version": version, "inputs": None if inputs is None else values.payload(inputs, "--inputs"),
        "files": {path.name: base64.b64encode(_read(path)).decode() for path in files or ()},
        "priority": priority, "max_attempts": max_attempts,
    }  # fmt: skip
    with remote.open_server(settings.load()) as server:
        asked = server.post(f"/tools/{segment(name)}/runs", ToolRunView, body)
        if not wait:
            if as_json:
                show.as_json(asked)
            else:
                show.line(f"run {asked.id} of {asked.tool} {asked.version} is {asked.status.value}")
            return
        show.say(f"run {asked.id} of {asked.tool} {asked.version}")
        try:
            done = _follow(server, asked, aloud=not as_json)
        except KeyboardInterrupt:
            show.say(f"run {asked.id} goes on: `kg tool logs {asked.id}` shows it, `kg tool cancel {asked.id}` ends it")
            raise
    _tell_end(done, as_json)


@app.command()
def runs(
    tool: Annotated[str | None, typer.Option(help="Only of this tool.")] = None,
    status: Annotated[list[ToolRunStatus] | None, typer.Option(help="Only with this status; may be repeated.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="So many at most.")] = 50,
    before: Annotated[int | None, typer.Option(metavar="RUN", min=1, help="Only those older than this run.")] = None,
    as_json: show.AsJson = False,
) -> None:
    """List runs, the newest first.

    Example: kg tool runs --tool word-count --status failed
    """
    query = {"tool": tool, "status": [one.value for one in status or ()], "limit": limit, "before": before}
    with remote.open_server(settings.load()) as server:
        page = server.get("/tool-runs", ToolRunPage, query)
    if as_json:
        show.as_json(page)
        return
    if not page.items:
        show.say("no runs like that")
        return
    rows = show.table("run", "tool", "version", "status", "available", "by", "asked for", "summary")
    for one in page.items:
        available = "" if one.available_at is None else tables.when(one.available_at)
        rows.add_row(
            str(one.id), *map(tables.cell, (one.tool, one.version)), tables.state(one.status),
            *map(tables.cell, (available, one.requested_by or "", tables.when(one.requested_at))),
            tables.cell(one.error_summary or ""),
        )  # fmt: skip
    if all(one.available_at is None for one in page.items):
        rows.columns = [column for column in rows.columns if column.header != "available"]
    show.out.print(rows)


@app.command(name="show")
def show_run(run_id: RunId, as_json: show.AsJson = False) -> None:
    """Show everything about a run.

    Example: kg tool show 7
    """
    with remote.open_server(settings.load()) as server:
        found = server.get(f"/tool-runs/{run_id}", ToolRunView)
    if as_json:
        show.as_json(found)
    else:
        show.fields({name: value for name, value in found.model_dump().items() if value is not None})


@app.command()
def logs(
    run_id: RunId,
    attempt: Annotated[int | None, typer.Option(min=1, help="Of this attempt.", show_default="the last")] = None,
    as_json: show.AsJson = False,
) -> None:
    """Print what a run said: its output on standard output, its errors on standard error.

    Example: kg tool logs 7
    """
    with remote.open_server(settings.load()) as server:
        said = server.get(f"/tool-runs/{run_id}/logs", ToolLogs, {"attempt": attempt})
    if as_json:
        show.as_json(said)
    else:
        _print(said, sys.stdout)


@app.command()
def artifacts(
    run_id: RunId,
    path: Annotated[str | None, typer.Argument(metavar="PATH", help="Take this one.", show_default=False)] = None,
    to: Annotated[Path | None, typer.Option("--to", metavar="FILE", help="Where to; - is standard output.")] = None,
    as_json: show.AsJson = False,
) -> None:
    """List what a run left, or take one of them.

    Example: kg tool artifacts 7 report.html --to report.html
    """
    configured = settings.load()
    if path is None:
        with remote.open_server(configured) as server:
            found = server.get(f"/tool-runs/{run_id}/artifacts", list[ArtifactView])
        if as_json:
            show.as_json(found)
            return
        if not found:
            show.say(f"run {run_id} left nothing")
            return
        rows = show.table("path", "bytes", "type", "sha256")
        for one in found:
            rows.add_row(*map(tables.cell, (one.path, one.size, one.media_type or "", one.sha256[:16])))
        show.out.print(rows)
        return
    target = to or Path(path.rsplit("/", 1)[-1])
    place = f"/tool-runs/{run_id}/artifacts/{'/'.join(map(segment, path.split('/')))}"
    with remote.open_client(configured) as client, client.stream("GET", place) as answer:
        if not answer.is_success:
            answer.read()
        remote.check(answer)
        if str(target) == "-":
            for piece in answer.iter_bytes():
                sys.stdout.buffer.write(piece)
            return
        draft = target.with_name(f".{target.name}.part")
        with draft.open("wb") as file:
            for piece in answer.iter_bytes():
                file.write(piece)
        draft.replace(target)
    show.say(f"{path} is in {target}")


@app.command()
def cancel(
    run_id: RunId,
    reason: Annotated[str | None, typer.Option(help="Why; the run keeps it.")] = None,
    as_json: show.AsJson = False,
) -> None:
    """Cancel a run. One that runs is ended with everything that it started.

    Example: kg tool cancel 7
    """
    body = None if reason is None else {"reason": reason}
    with remote.open_server(settings.load()) as server:
        done = server.post(f"/tool-runs/{run_id}/cancel", ToolRunView, body)
    if as_json:
        show.as_json(done)
    else:
        show.line(f"run {done.id} is {'told to stop' if not done.status.terminal else done.status.value}")


def _follow(server: Server, asked: ToolRunView, *, aloud: bool) -> ToolRunView:
    """Print what the run says until it has ended; not `aloud`, all of it on standard error."""
    said = ToolLogs(attempt=None, stdout="", stderr="", stdout_next=0, stderr_next=0)
    told = ""
    while True:
        now = server.get(f"/tool-runs/{asked.id}", ToolRunView)
        query = {"stdout_from": said.stdout_next, "stderr_from": said.stderr_next}
        said = server.get(f"/tool-runs/{asked.id}/logs", ToolLogs, query)
        _print(said, sys.stdout if aloud else sys.stderr)
        if now.status.terminal:
            return now
        if now.status is ToolRunStatus.RUNNING:
            how_far = tables.progress(server.get(f"/jobs/{asked.job_id}", JobView))
            if how_far != told:
                told = how_far
                show.say(how_far)
        time.sleep(LOOK_EVERY)


def _print(said: ToolLogs, to: TextIO) -> None:
    to.write(show.printable(said.stdout))
    to.flush()
    sys.stderr.write(show.printable(said.stderr))
    sys.stderr.flush()


def _tell_end(done: ToolRunView, as_json: bool) -> None:
    if as_json:
        show.as_json(done)
    elif done.outputs is not None:
        show.line(tables.compact(done.outputs))
    if done.status is not ToolRunStatus.SUCCEEDED:
        show.say(f"run {done.id}: {done.status.value}: {done.error_summary or done.reason or 'no reason given'}")
        raise typer.Exit(1)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise values.BadInput(f"the input {path} can't be read: {error.strerror}") from None
