"""`kg ontology`, `kg proposal`: the named parts of the graph, and what should become of them."""

import json
import sys
from typing import Annotated

import typer

from kappa.app import remote, settings
from kappa.app.api.ontology_schemas import OntologyDetail, ProposalView
from kappa.app.api.schemas import EnqueuedJob
from kappa.app.cli import progress, show, values
from kappa.app.cli.jobs import WAIT
from kappa.engine import JobState
from kappa.graph.model import ProposalState

ontology_app = typer.Typer(no_args_is_help=True, help="Ontologies: what is in them, and their names.")
proposal_app = typer.Typer(no_args_is_help=True, help="Proposals about ontologies: decide, carry out, undo.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The ontology.", show_default=False)]
Number = Annotated[int, typer.Argument(metavar="ID", min=1, max=2**63 - 1, help="The proposal.", show_default=False)]
Waits = Annotated[bool, typer.Option("--wait/--no-wait", help="Stay until the job has ended.")]


@ontology_app.command(name="list")
def list_ontologies(as_json: show.AsJson = False) -> None:
    """List the ontologies, and how much is in each.

    Example: kg ontology list
    """
    with remote.open_server(settings.load()) as server:
        found = server.get("/graph/masses", list[OntologyDetail])
    if as_json:
        show.as_json(found)
        return
    rows = show.table("name", "documents", "concepts", "evidence", "relations")
    for one in found:
        counts = (one.documents, one.concepts, one.evidence, one.relations)
        rows.add_row(show.printable(one.name), *(f"{count:,}" for count in counts))
    show.out.print(rows)


@ontology_app.command(name="show")
def show_ontology(name: Name, as_json: show.AsJson = False) -> None:
    """Show an ontology, and how much is in it.

    Example: kg ontology show 'coffee and sleep'
    """
    with remote.open_server(settings.load()) as server:
        found = server.get(f"/graph/ontologies/{remote.segment(name)}", OntologyDetail)
    if as_json:
        show.as_json(found)
    else:
        show.fields(found.model_dump())


@ontology_app.command()
def rename(
    name: Name,
    new_name: Annotated[str, typer.Argument(metavar="NEW", help="Its new name.", show_default=False)],
    as_json: show.AsJson = False,
) -> None:
    """Give an ontology another name. Its concepts keep their ids.

    Example: kg ontology rename 'coffee and sleep' coffee
    """
    with remote.open_server(settings.load()) as server:
        done = server.patch(f"/graph/ontologies/{remote.segment(name)}", OntologyDetail, {"name": new_name})
    if as_json:
        show.as_json(done)
    else:
        show.line(f"{name} is {done.name} now")


@ontology_app.command()
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    as_json: show.AsJson = False,
) -> None:
    """Delete an ontology with its documents and concepts, for good.

    Example: kg ontology delete coffee --yes
    """
    with remote.open_server(settings.load()) as server:
        path = f"/graph/ontologies/{remote.segment(name)}"
        found = server.get(path, OntologyDetail)
        if not yes:
            said = f"Delete {found.name}, with {found.documents:,} documents and {found.concepts:,} concepts?"
            if not sys.stdin.isatty():
                raise values.BadInput(f"{said} --yes says that this is wanted")
            if not typer.confirm(said, err=True):
                raise typer.Exit(1)
        server.delete(path)
    if as_json:
        show.as_json({"deleted": found.name})
    else:
        show.line(f"{found.name} is deleted")


@ontology_app.command()
def anneal(wait: Waits = True, as_json: show.AsJson = False) -> None:
    """Have all ontologies looked at; what should be changed becomes a proposal.

    Example: kg ontology anneal
    """
    _job("/graph/annealing", wait=wait, as_json=as_json)


@proposal_app.command(name="list")
def list_proposals(
    state: Annotated[ProposalState | None, typer.Option(help="Only those that are so.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="So many at most.")] = 100,
    as_json: show.AsJson = False,
) -> None:
    """List proposals, the newest first.

    Example: kg proposal list --state pending
    """
    with remote.open_server(settings.load()) as server:
        found = server.get("/graph/proposals", list[ProposalView], {"state": state, "limit": limit})
    if as_json:
        show.as_json(found)
        return
    rows = show.table("id", "state", "what")
    for one in found:
        rows.add_row(str(one.id), one.state, show.printable(_what(one)))
    show.out.print(rows)


@proposal_app.command(name="show")
def show_proposal(number: Number, as_json: show.AsJson = False) -> None:
    """Show a proposal, and what speaks for it.

    Example: kg proposal show 7
    """
    with remote.open_server(settings.load()) as server:
        found = server.get(f"/graph/proposals/{number}", ProposalView)
    if as_json:
        show.as_json(found)
        return
    told = {name: value for name, value in found.model_dump().items() if value is not None}
    show.fields({"what": _what(found)} | told | {"body": json.dumps(found.body), "scores": json.dumps(found.scores)})


@proposal_app.command()
def approve(number: Number, as_json: show.AsJson = False) -> None:
    """Say yes to a proposal; `kg proposal execute` has it carried out.

    Example: kg proposal approve 7
    """
    _decide(number, "approve", as_json)


@proposal_app.command()
def reject(number: Number, as_json: show.AsJson = False) -> None:
    """Say no, for good.

    Example: kg proposal reject 7
    """
    _decide(number, "reject", as_json)


@proposal_app.command()
def execute(number: Number, wait: Waits = True, as_json: show.AsJson = False) -> None:
    """Have an approved proposal carried out.

    Example: kg proposal execute 7
    """
    _job(f"/graph/proposals/{number}/execute", wait=wait, as_json=as_json)


@proposal_app.command()
def undo(number: Number, wait: Waits = True, as_json: show.AsJson = False) -> None:
    """Have what was carried out undone.

    Example: kg proposal undo 7
    """
    _job(f"/graph/proposals/{number}/undo", wait=wait, as_json=as_json)


def _decide(number: int, verb: str, as_json: bool) -> None:
    with remote.open_server(settings.load()) as server:
        done = server.post(f"/graph/proposals/{number}/{verb}", ProposalView)
    if as_json:
        show.as_json(done)
    else:
        show.line(f"proposal {done.id} is {done.state}: {_what(done)}")


def _job(path: str, *, wait: bool, as_json: bool) -> None:
    configured = settings.load()
    with remote.open_server(configured) as server:
        made = server.post(path, EnqueuedJob)
    if wait:
        ended = progress.watch(configured, [made.id], as_json=as_json, wait=WAIT)
        if ended[0].state is not JobState.SUCCEEDED:
            raise typer.Exit(1)
    elif as_json:
        show.as_json(made)
    else:
        show.line(f"job {made.id}")


def _what(one: ProposalView) -> str:
    name = one.body.get("name", one.ontology)
    match one.kind:
        case "merge":
            return f"merge {name} into {one.body.get('into')}"
        case "split":
            return f"split {len(one.body.get('concepts', ()))} concepts off {name} as {one.body.get('new_name')}"
        case "rename":
            return f"rename {name} to {one.body.get('new_name')}"
        case "dissolve":
            return f"dissolve {name}"
