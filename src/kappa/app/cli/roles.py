"""`kg role`: sets of permissions under a name."""

from typing import Annotated

import typer

from kappa.app import remote, settings
from kappa.app.api.schemas import PermissionView, RoleView
from kappa.app.cli import show, tables

app = typer.Typer(no_args_is_help=True, help="Roles: sets of permissions. Five are always there.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The role.", show_default=False)]


@app.command(name="list")
def list_roles(as_json: show.AsJson = False) -> None:
    """List the roles and what they allow.

    Example: kg role list
    """
    with remote.open_server(settings.load()) as server:
        found = server.get("/roles", list[RoleView])
    if as_json:
        show.as_json(found)
    else:
        show.out.print(tables.roles(found))


@app.command()
def permissions(as_json: show.AsJson = False) -> None:
    """List every permission that there is.

    Example: kg role permissions
    """
    with remote.open_server(settings.load()) as server:
        found = server.get("/permissions", list[PermissionView])
    if as_json:
        show.as_json(found)
    else:
        show.out.print(tables.permissions(found))


@app.command()
def put(
    name: Name,
    allowed: Annotated[
        list[str], typer.Argument(metavar="PERMISSION", help="What it allows, and nothing else.", show_default=False)
    ],
    as_json: show.AsJson = False,
) -> None:
    """Make a role, or give it other permissions. Nobody can give what they don't have.

    Example: kg role put auditor account:use audit:view
    """
    with remote.open_server(settings.load()) as server:
        role = server.put(f"/roles/{remote.segment(name)}", RoleView, {"permissions": allowed})
    if as_json:
        show.as_json(role)
    else:
        show.out.print(tables.roles([role]))


@app.command()
def drop(name: Name, as_json: show.AsJson = False) -> None:
    """Remove a role that nobody has.

    Example: kg role drop auditor
    """
    with remote.open_server(settings.load()) as server:
        server.delete(f"/roles/{remote.segment(name)}")
    if as_json:
        show.as_json({"dropped": name})
    else:
        show.line(f"the role {name} is removed")
