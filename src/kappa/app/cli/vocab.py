"""`kg vocab`: relation types, what is measured of them, and their merges."""

from typing import Annotated, Any

import typer

from kappa.app import remote, settings
from kappa.app.api.measure_schemas import MergeView, TypeView
from kappa.app.cli import show, tables
from kappa.app.cli.jobs import run_job

app = typer.Typer(no_args_is_help=True, help="The vocabulary: relation types, what they are worth, and their merges.")

AutoApprove = Annotated[bool, typer.Option("--auto-approve", help="Approve it at once.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Put the job in, and don't watch it.")]


@app.command(name="list")
def list_types(
    merged: Annotated[bool, typer.Option("--merged", help="Also those that were merged into others.")] = False,
    ambiguous: Annotated[bool, typer.Option("--ambiguous", help="Only those of no clear category.")] = False,
    as_json: show.AsJson = False,
) -> None:
    """List relation types: how many relations they have, for or against, and what their targets rest on.

    Example: kg vocab list --ambiguous
    """
    with remote.open_server(settings.load()) as server:
        found = server.get("/graph/vocabulary", list[TypeView])
    shown = [one for one in found if (merged or one.active) and (one.ambiguous or not ambiguous)]
    if as_json:
        show.as_json(shown)
    elif shown:
        show.out.print(tables.types(shown))
    else:
        show.say("no relation types like that")


@app.command()
def refresh(no_wait: NoWait = False, as_json: show.AsJson = False) -> None:
    """Measure every type anew against the categories and the axis from against to for.

    Example: kg vocab refresh
    """
    run_job("vocab_refresh", {}, as_json=as_json, wait=not no_wait)


@app.command()
def remeasure(
    sample: Annotated[int, typer.Option(min=1, max=10_000, help="Relations of each type that are looked at.")] = 100,
    no_wait: NoWait = False,
    as_json: show.AsJson = False,
) -> None:
    """Measure of every type what the targets of its relations rest on.

    Example: kg vocab remeasure --sample 500
    """
    run_job("epistemic_remeasurement", {"sample": sample}, as_json=as_json, wait=not no_wait)


@app.command()
def consolidate(
    target: Annotated[int, typer.Option(min=1, max=65_535, help="So many types are few enough.")] = 40,
    near: Annotated[float, typer.Option(min=0.5, max=1, help="How like each other two must be.")] = 0.8,
    auto_approve: AutoApprove = False,
    no_wait: NoWait = False,
    as_json: show.AsJson = False,
) -> None:
    """Merge types that say the same, until there are few enough. The job awaits approval.

    Example: kg vocab consolidate --target 30 --auto-approve
    """
    payload: dict[str, Any] = {"target": target, "near": near}
    # Who must wait for another's word watches it later.
    wait = auto_approve and not no_wait
    run_job("vocab_consolidate", payload, as_json=as_json, wait=wait, auto_approve=auto_approve)


@app.command()
def merges(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="So many at most.")] = 50, as_json: show.AsJson = False
) -> None:
    """List merges of types, the latest first.

    Example: kg vocab merges
    """
    with remote.open_server(settings.load()) as server:
        found = server.get("/graph/vocabulary/merges", list[MergeView], {"limit": limit})
    if as_json:
        show.as_json(found)
    elif found:
        show.out.print(tables.merges(found))
    else:
        show.say("nothing has been merged")


@app.command()
def merge(
    merged: Annotated[str, typer.Argument(metavar="TYPE", help="The type that goes.", show_default=False)],
    survivor: Annotated[str, typer.Argument(metavar="INTO", help="The type that stays.", show_default=False)],
    as_json: show.AsJson = False,
) -> None:
    """Merge one type into another: all its relations are rewritten. `kg vocab undo` undoes it.

    Example: kg vocab merge PREVENTS REDUCES
    """
    with remote.open_server(settings.load()) as server:
        done = server.post("/graph/vocabulary/merges", MergeView, {"merged": merged, "survivor": survivor}, within=600)
    _tell(done, f"{done.merged} was merged into {done.survivor}: {done.relations} relations; merge {done.id}", as_json)


@app.command()
def undo(
    number: Annotated[int, typer.Argument(metavar="MERGE", min=1, help="Its number.", show_default=False)],
    as_json: show.AsJson = False,
) -> None:
    """Undo a merge, exactly. Of two that have to do with each other, the later one first.

    Example: kg vocab undo 3
    """
    with remote.open_server(settings.load()) as server:
        done = server.post(f"/graph/vocabulary/merges/{number}/undo", MergeView, within=600)
    _tell(done, f"{done.merged} is a type of its own again", as_json)


def _tell(done: MergeView, line: str, as_json: bool) -> None:
    if as_json:
        show.as_json(done)
    else:
        show.line(line)
