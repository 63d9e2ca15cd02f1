"""The commands at the top of `kg`, and what `kg` alone says.

A new command is a line in `PLACES`: its module is loaded when it is called, and not before.
"""

from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.main import get_group

from kappa.app.cli.deferred import DeferringGroup, Place

CLI = "kappa.app.cli"

PLACES = {
    "Begin": {
        "up": Place(f"{CLI}.up:up", "Start the server: API, lanes and maintenance in one process."),
        "demo": Place(
            f"{CLI}.demo:demo", "Read twelve short pages into a graph of their own, ask it three questions, and stop."
        ),
        "ingest": Place(f"{CLI}.ingest:ingest", "Read documents into the graph, as one job."),
        "doctor": Place(f"{CLI}.doctor:doctor", "Say what was found on this machine and what follows."),
    },
    "Ask the graph": {
        "search": Place(
            f"{CLI}.graph:search", "Find concepts by words, by what they are like, or by both; the best first."
        ),
        "related": Place(f"{CLI}.graph:related", "Draw what is around a concept as a tree, nearest first."),
        "path": Place(f"{CLI}.graph:path", "Draw the shortest paths between two concepts as chains."),
        "polarity": Place(f"{CLI}.graph:polarity", "Draw where concepts stand between two poles, by their embeddings."),
        "concept": Place(f"{CLI}.graph:concept_app", "Concepts: what they are, and who says so."),
        "projection": Place(
            f"{CLI}.artifacts:projection",
            "Draw a map of concepts by their embeddings, in clusters that are named by their words.",
        ),
        "artifact": Place(f"{CLI}.artifacts:app", "Artifacts: maps, axes and other results that are kept."),
        "vocab": Place(f"{CLI}.vocab:app", "The vocabulary: relation types, what they are worth, and their merges."),
        "ontology": Place(f"{CLI}.ontologies:ontology_app", "Ontologies: what is in them, and their names."),
        "proposal": Place(f"{CLI}.ontologies:proposal_app", "Proposals about ontologies: decide, carry out, undo."),
    },
    "Work": {
        "job": Place(f"{CLI}.jobs:app", "Jobs: enqueue, list, show, watch, approve, cancel, retry."),
        "schedule": Place(f"{CLI}.schedules:app", "Schedules: what is enqueued when. Add, edit, pause, run now."),
        "tool": Place(f"{CLI}.tools:app", "Tools: register, run, follow, take what they made."),
        "worker": Place(f"{CLI}.worker:worker", "Do the tasks of a server's fleet lanes on this machine."),
        "mcp": Place(f"{CLI}.mcp:mcp", "Speak the Model Context Protocol with an agent that starts this command."),
    },
    "Run a server": {
        "admin": Place(f"{CLI}.admin:app", "For those who run the server: workers, lanes, the audit log."),
        "user": Place(f"{CLI}.users:app", "Users: make, list, show, give roles and passwords, switch on and off."),
        "role": Place(f"{CLI}.roles:app", "Roles: sets of permissions. Five are always there."),
        "token": Place(f"{CLI}.tokens:app", "Tokens: what programs show to the server."),
        "backup": Place(
            f"{CLI}.backup:app",
            "The graph as one file. `kg backup FILE` writes it, `kg backup verify FILE` looks at one.",
        ),
        "restore": Place(f"{CLI}.backup:restore", "Restore a backup into the graph of a running server."),
        "db": Place(f"{CLI}.db:app", "The database: the embedded server, its address, its schema."),
    },
}

WAY_IN = """\
Kappa {version}: documents into a knowledge graph, and durable jobs, on nothing but PostgreSQL.

  kg demo                             see it work, on a server of its own that stops again
  kg up                               start the server; ctrl-C stops it

and, with the server up, in another terminal:

  kg ingest PATH… --watch             documents into the graph: files, or whole directories
  kg search TEXT                      ask the graph
  kg job list                         what was done, and what is under way
  kg admin workers                    who works, and how full the lanes are

  kg --help                           all commands; every command has a --help with an example
  kg doctor                           what was found on this machine, and what follows
  kg --install-completion             let the shell complete commands
"""


class Front(DeferringGroup):
    places = PLACES


app = typer.Typer(
    cls=Front,
    pretty_exceptions_enable=False,
    help="Kappa: documents into a knowledge graph, and durable jobs, on nothing but PostgreSQL.",
)


def whole() -> Any:
    """The tree of commands with all of them loaded."""
    tree: Any = get_group(app)
    tree.load_all()
    return tree


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kappa {version('kappa')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    _: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(WAY_IN.format(version=version("kappa")), nl=False)
