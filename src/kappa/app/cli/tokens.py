"""`kg token`: tokens made, listed and revoked. A secret is printed once, alone on standard output."""

from typing import Annotated, Any

import typer

from kappa.app import remote, settings
from kappa.app.api.schemas import NewTokenView, TokenView
from kappa.app.cli import complete, show, tables, values

app = typer.Typer(no_args_is_help=True, help="Tokens: what programs show to the server.")


@app.command()
def make(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is for, as in 'CI'.", show_default=False)],
    user: Annotated[str | None, typer.Option("--user", metavar="NAME", help="Whose token, if not one's own.")] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PERMISSION", help="Let it do this alone; may be repeated.", autocompletion=complete.permissions
        ),
    ] = None,
    lasts: Annotated[
        float,
        typer.Option(parser=values.seconds, metavar="DURATION", help="How long it is valid.", show_default="90d"),
    ] = 90 * 86400.0,
    kind: Annotated[
        list[str] | None, typer.Option(help="For a fleet worker: this kind alone; may be repeated.")
    ] = None,
    machines: Annotated[int | None, typer.Option(min=1, help="For fleet workers: so many of them at once.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="For fleet workers: so many calls a minute.")] = None,
    never_expires: Annotated[bool, typer.Option("--never-expires", help="It is valid until it is revoked.")] = False,
    as_json: show.AsJson = False,
) -> None:
    """Make a token. Its secret is all of standard output, and is never shown again.

    Example: export KAPPA_TOKEN=$(kg token make CI --scope jobs:enqueue --scope jobs:view --lasts 30d)
    For a fleet worker: kg token make lab --scope fleet:work --kind tool_run --machines 40
    """
    body: dict[str, Any] = {"name": name, "scopes": scope or None, "lasts": None if never_expires else lasts}
    body |= {"kinds": kind or None, "machines": machines, "requests_per_minute": requests}
    path = "/tokens" if user is None else f"/users/{remote.segment(user)}/tokens"
    with remote.open_server(settings.load()) as server:
        made = server.post(path, NewTokenView, body)
    if as_json:
        show.as_json(made)
        return
    expires = "never expires" if made.expires_at is None else f"expires at {tables.when(made.expires_at)}"
    show.say(f"token {made.id} {expires}; kg token revoke {made.id} ends it. It is shown this once:")
    show.line(made.token)


@app.command(name="list")
def list_tokens(
    user: Annotated[str | None, typer.Option("--user", metavar="NAME", help="Whose tokens, if not one's own.")] = None,
    as_json: show.AsJson = False,
) -> None:
    """List tokens, without their secrets.

    Example: kg token list --user ada
    """
    path = "/tokens" if user is None else f"/users/{remote.segment(user)}/tokens"
    with remote.open_server(settings.load()) as server:
        found = server.get(path, list[TokenView])
    if as_json:
        show.as_json(found)
    else:
        show.out.print(tables.tokens(found))


@app.command()
def revoke(
    ids: Annotated[
        list[int], typer.Argument(metavar="ID", min=1, max=2**63 - 1, help="The tokens.", show_default=False)
    ],
    as_json: show.AsJson = False,
) -> None:
    """Revoke tokens at once.

    Example: kg token revoke 7
    """
    with remote.open_server(settings.load()) as server:
        for token_id in ids:
            server.delete(f"/tokens/{token_id}")
            if not as_json:
                show.line(f"token {token_id} is revoked")
    if as_json:
        show.as_json({"revoked": ids})
