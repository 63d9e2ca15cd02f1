"""`kg up`: the server."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kappa.app import settings
from kappa.app.cli import show

if TYPE_CHECKING:
    from kappa.app.serve import Up


def up(
    host: Annotated[str | None, typer.Option(help="The address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.", show_default="8420")
    ] = None,
    api_only: Annotated[bool, typer.Option("--api-only", help="The API alone: no lanes, no maintenance.")] = False,
    no_lanes: Annotated[bool, typer.Option("--no-lanes", help="Claim no jobs here.")] = False,
    no_maintenance: Annotated[bool, typer.Option("--no-maintenance", help="Never lead.")] = False,
    no_api: Annotated[bool, typer.Option("--no-api", help="Lanes and maintenance alone.")] = False,
    workers: Annotated[int, typer.Option(min=0, max=256, help="Run the lanes in so many processes of their own.")] = 0,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
    counts_to: Annotated[Path | None, typer.Option("--counts-to", hidden=True)] = None,
) -> None:
    """Start the server: API, lanes and maintenance in one process. ctrl-C drains and stops it.

    Example: kg up --port 8420 --workers 2
    """
    if no_api and (api_only or workers):
        raise typer.BadParameter("--no-api leaves nothing for --api-only and --workers to do")
    if workers and (no_lanes or api_only):
        raise typer.BadParameter("--workers runs the lanes that --no-lanes and --api-only leave out")
    # The server's libraries take most of a second to load, and no other command needs them.
    from kappa.app import serve

    configured = settings.load()
    for name, meant in settings.mistyped():
        show.say(f"{name} is no setting, and changes nothing" + (f"; was {meant} meant?" if meant else ""))
    given = {key: value for key, value in {"host": host, "port": port}.items() if value is not None}
    any_port = port is None and "port" not in configured.model_fields_set
    options = serve.Options(
        api=not no_api,
        lanes=not (no_lanes or api_only),
        maintenance=not (no_maintenance or api_only),
        workers=workers,
        with_parent=with_parent,
        counts_to=counts_to,
    )
    serve.up(configured.model_copy(update=given), options, show.say, _greet, any_port=any_port)


def _greet(now: "Up") -> None:
    show.out.print(f"Kappa is up at [bold]{now.url}[/bold]")
    lines = {
        "web": f"{now.url}/ui/",
        "API": f"{now.url}/openapi.json",
        "health": f"{now.url}/healthz, /readyz, /metrics",
    }
    if now.options.lanes:
        where = f"in {now.options.workers} processes" if now.options.workers else "here"
        lines["lanes"] = f"{', '.join(now.lanes)} ({where}; kg admin workers shows them)"
        lines["sandbox"] = now.sandbox
    if now.token_file is not None:
        lines["sign in"] = f"with the token in {now.token_file}; kg on this machine does so by itself"
        lines["curl"] = f'curl -H "Authorization: Bearer $(cat {now.token_file})" {now.url}/me'
    else:
        lines["sign in"] = "the user operator is switched off; use a token of somebody else's"
    lines["people"] = "kg user make NAME --role contributor"
    show.fields(lines)
    show.say("ctrl-C stops it when what runs has finished, a second one at once")
