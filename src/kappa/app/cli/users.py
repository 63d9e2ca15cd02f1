"""`kg user`: who may use the server. A password is typed unseen or read from standard input, never an argument."""

import sys
from typing import Annotated, Any

import typer

from kappa.app import remote, settings
from kappa.app.api.schemas import Me, UserView
from kappa.app.cli import complete, show, tables, values

app = typer.Typer(no_args_is_help=True, help="Users: make, list, show, give roles and passwords, switch on and off.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The user.", show_default=False)]
FromStdin = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from the first line of standard input.")
]


@app.command()
def make(
    name: Name,
    role: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE", help="A role; may be repeated.", autocompletion=complete.roles),
    ] = None,
    password_stdin: FromStdin = False,
    no_password: Annotated[bool, typer.Option("--no-password", help="Ask for none: tokens alone let in.")] = False,
    as_json: show.AsJson = False,
) -> None:
    """Make a user. A terminal is asked for the password; elsewhere the user has none unless it comes by standard input.

    Example: kg user make ada --role contributor
    """
    if password_stdin and no_password:
        raise typer.BadParameter("--password-stdin and --no-password exclude each other")
    password: str | None = None
    if password_stdin:
        password = values.password_from_stdin()
    elif not no_password and sys.stdin.isatty():
        password = values.ask_password(name)
    body: dict[str, Any] = {"name": name, "roles": role or []}
    with remote.open_server(settings.load()) as server:
        made = server.post("/users", UserView, body if password is None else {**body, "password": password})
    if password is None:
        show.say(f"{name} has no password: kg token make NAME --user {name} makes a token")
    _print(made, as_json)


@app.command(name="list")
def list_users(as_json: show.AsJson = False) -> None:
    """List the users.

    Example: kg user list
    """
    with remote.open_server(settings.load()) as server:
        found = server.get("/users", list[UserView])
    if as_json:
        show.as_json(found)
    else:
        show.out.print(tables.users(found))


@app.command(name="show")
def show_user(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The user.", show_default="oneself")] = None,
    as_json: show.AsJson = False,
) -> None:
    """Show a user, or oneself and what one may.

    Example: kg user show ada
    """
    with remote.open_server(settings.load()) as server:
        if name is not None:
            return _print(server.get(_path(name), UserView), as_json)
        me = server.get("/me", Me)
    if as_json:
        return show.as_json(me)
    return show.fields({"name": me.name, "may": "\n".join(me.permissions) or "nothing"})


@app.command()
def roles(
    name: Name,
    wanted: Annotated[
        list[str] | None, typer.Argument(metavar="ROLE", help="Their roles from now on.", show_default=False)
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Take every role away.")] = False,
    as_json: show.AsJson = False,
) -> None:
    """Give a user these roles and no others.

    Example: kg user roles ada curator
    """
    if bool(wanted) == none:
        raise typer.BadParameter("name the roles, or say --none")
    _change(name, {"roles": wanted or []}, as_json)


@app.command()
def password(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Whose.", show_default="one's own")] = None,
    password_stdin: FromStdin = False,
    as_json: show.AsJson = False,
) -> None:
    """Change a password. The user's sessions end.

    Example: kg user password ada
    """
    new = values.password_from_stdin() if password_stdin else values.ask_password(name or "yourself")
    with remote.open_server(settings.load()) as server:
        if name is None:
            name = server.get("/me", Me).name
            server.put_only("/me/password", {"password": new})
        else:
            server.patch(_path(name), UserView, {"password": new})
    if as_json:
        show.as_json({"name": name, "password": "changed"})
    else:
        show.line(f"the password of {name} is changed")


@app.command()
def enable(name: Name, as_json: show.AsJson = False) -> None:
    """Let a user in again.

    Example: kg user enable ada
    """
    _change(name, {"enabled": True}, as_json)


@app.command()
def disable(name: Name, as_json: show.AsJson = False) -> None:
    """Let a user in no more; sessions end, tokens don't count.

    Example: kg user disable ada
    """
    _change(name, {"enabled": False}, as_json)


@app.command()
def drop(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    as_json: show.AsJson = False,
) -> None:
    """Remove a user, with tokens and sessions. Asks on a terminal; elsewhere --yes is needed.

    Example: kg user drop ada --yes
    """
    if not yes:
        if not sys.stdin.isatty():
            raise values.BadInput(f"there is no terminal to ask whether to remove {name}: --yes says so")
        if not typer.confirm(f"Remove {name}, with tokens and sessions?", err=True):
            raise typer.Exit(1)
    with remote.open_server(settings.load()) as server:
        server.delete(_path(name))
    if as_json:
        show.as_json({"dropped": name})
    else:
        show.line(f"{name} is removed")


def _path(name: str) -> str:
    return f"/users/{remote.segment(name)}"


def _change(name: str, changes: dict[str, Any], as_json: bool) -> None:
    with remote.open_server(settings.load()) as server:
        changed = server.patch(_path(name), UserView, changes)
    _print(changed, as_json)


def _print(user: UserView, as_json: bool) -> None:
    if as_json:
        return show.as_json(user)
    return show.fields(
        {
            "name": user.name,
            "state": "enabled" if user.enabled else "disabled",
            "password": "set" if user.has_password else "none",
            "roles": ", ".join(user.roles) or "none",
            "may": "\n".join(user.permissions) or "nothing",
            "since": tables.when(user.created_at),
        }
    )
