"""The commands at the top of `kg`."""

from dataclasses import asdict
from importlib.metadata import version
from typing import Annotated

import typer

from kappa.app import settings
from kappa.app.cli import (
    admin,
    artifacts,
    backup,
    db,
    graph,
    jobs,
    mcp,
    ontologies,
    roles,
    show,
    tokens,
    tools,
    users,
    vocab,
)
from kappa.app.cli.demo import demo
from kappa.app.cli.up import up
from kappa.app.cli.worker import worker
from kappa.app.usecases import doctor as examination

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Kappa: documents into a knowledge graph, and durable jobs, on nothing but PostgreSQL.",
)
app.command()(up)
app.command()(worker)
app.command()(demo)
app.command(help=mcp.HELP)(mcp.mcp)
app.command()(graph.search)
app.command()(graph.related)
app.command()(graph.path)
app.command()(graph.polarity)
app.command()(artifacts.projection)
app.add_typer(graph.concept_app, name="concept")
app.add_typer(vocab.app, name="vocab")
app.add_typer(artifacts.app, name="artifact")
app.add_typer(jobs.app, name="job")
app.add_typer(tools.app, name="tool")
app.add_typer(admin.app, name="admin")
app.add_typer(users.app, name="user")
app.add_typer(roles.app, name="role")
app.add_typer(tokens.app, name="token")
app.add_typer(db.app, name="db")
app.add_typer(ontologies.ontology_app, name="ontology")
app.add_typer(ontologies.proposal_app, name="proposal")
app.add_typer(backup.app, name="backup")
app.command()(backup.restore)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kappa {version('kappa')}")
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


@app.command()
def doctor(as_json: show.AsJson = False) -> None:
    """Say what was found on this machine and what follows. Exits with 1 if something must be mended."""
    found = examination.examine(settings.load(), show.say)
    if as_json:
        show.as_json([asdict(finding) for finding in found])
    else:
        show.findings(found)
    if any(finding.level is examination.Level.PROBLEM for finding in found):
        raise typer.Exit(1)
