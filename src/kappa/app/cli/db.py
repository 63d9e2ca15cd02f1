"""`kg db`: the database server that Kappa brings along."""

import os
import shutil
import signal
import subprocess
from typing import Annotated, Any

import psycopg
import typer
from psycopg.conninfo import conninfo_to_dict

from kappa.app import settings, wiring
from kappa.app.cli import show
from kappa.pg import KappaError, examine, migrate
from kappa.pg.embedded import EmbeddedServer
from kappa.pg.errors import ServerNotRunning

app = typer.Typer(no_args_is_help=True, help="The database: the embedded server, its address, its schema.")

NOT_RUNNING = 3

# What libpq reads in place of arguments; a password on a command line is everyone's to read.
_VARIABLES = {
    "host": "PGHOST",
    "port": "PGPORT",
    "user": "PGUSER",
    "password": "PGPASSWORD",
    "dbname": "PGDATABASE",
    "sslmode": "PGSSLMODE",
    "sslrootcert": "PGSSLROOTCERT",
    "options": "PGOPTIONS",
}


AsSuperuser = Annotated[
    bool,
    typer.Option("--superuser", help="As the embedded server's superuser: extensions, other databases, its settings."),
]


@app.command()
def start(as_json: show.AsJson = False) -> None:
    """Start the embedded server and leave it running.

    Example: kg db start
    """
    server = _embedded("start")
    server.start()
    _print_status(server, as_json)


@app.command()
def stop(
    force: Annotated[bool, typer.Option("--force", help="Also while other processes use it.")] = False,
    as_json: show.AsJson = False,
) -> None:
    """Stop the embedded server.

    Example: kg db stop --force
    """
    server = _embedded("stop")
    try:
        server.stop(force=force)
        was_running = True
    except ServerNotRunning:
        was_running = False
    if as_json:
        show.as_json({"stopped": was_running})
    else:
        show.out.print("stopped" if was_running else "it was not running")


@app.command()
def status(as_json: show.AsJson = False) -> None:
    """Say whether the embedded server runs, where, who uses it, and how its schema compares to this version's.

    Exits with 3 if it doesn't run.

    Example: kg db status --json
    """
    server = _embedded("examine")
    _print_status(server, as_json)
    if not server.status().running:
        raise typer.Exit(NOT_RUNNING)


@app.command()
def url(
    by_socket: Annotated[bool, typer.Option("--socket", help="The address by unix socket.")] = False,
    superuser: AsSuperuser = False,
    as_json: show.AsJson = False,
) -> None:
    """Print the database's address, password included.

    Example: pg_dump "$(kg db url)"
    """
    configured = settings.load()
    if superuser:
        address = _embedded("connect to").superuser_url(by_socket=by_socket)
    elif configured.database_url is not None:
        address = configured.database_url.get_secret_value()
    else:
        address = wiring.embedded_server(configured, show.say).url(by_socket=by_socket)
    if as_json:
        show.as_json({"url": address})
    else:
        typer.echo(address)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def psql(context: typer.Context, superuser: AsSuperuser = False) -> None:
    """Open psql on the database; what follows is passed on.

    Example: kg db psql -c 'select 1'
    """
    configured = settings.load()
    server = _embedded("connect to") if superuser else None
    with wiring.open_database(configured, "kg db psql", show.say) as database:
        program = shutil.which("psql")
        if configured.database_url is None:
            own = wiring.embedded_server(configured, show.say).binaries().program("psql")
            program = str(own) if own.exists() else program
        if program is None:
            raise KappaError("there is no psql on this machine: install PostgreSQL's client")
        target = database.direct_url if server is None else server.superuser_url()
        address = {
            _VARIABLES[name]: str(value) for name, value in conninfo_to_dict(target).items() if name in _VARIABLES
        }
        # ctrl-C is psql's to handle: it cancels a query there.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            done = subprocess.run(
                [program, *context.args],
                env={**os.environ, **address},
                check=False,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        finally:
            signal.signal(signal.SIGINT, before)
    raise typer.Exit(done.returncode)


@app.command(name="migrate")
def migrate_schema(as_json: show.AsJson = False) -> None:
    """Bring the schema up to date.

    Example: kg db migrate
    """
    with (
        wiring.open_database(settings.load(), "kg db migrate", show.say) as database,
        database.connect() as connection,
    ):
        applied = [str(step) for step in migrate(connection, wiring.COMPONENTS)]
    if as_json:
        show.as_json({"applied": applied})
    else:
        show.out.print("\n".join(f"applied {step}" for step in applied) or "the schema is up to date")


def _embedded(verb: str) -> EmbeddedServer:
    configured = settings.load()
    if configured.database_url is not None:
        raise KappaError(f"KAPPA_DATABASE_URL is set: there is no embedded server to {verb}")
    return wiring.embedded_server(configured, show.say)


def _print_status(server: EmbeddedServer, as_json: bool) -> None:
    found = server.status()
    facts: dict[str, Any] = {
        "state": found.state.value,
        "home": found.home,
        "pid": found.pid,
        "port": found.port,
        "data": found.data,
        "log": found.log,
        "pinned": found.pinned,
        "holders": [str(holder) for holder in found.holders],
        "schema": _schema(server) if found.running else None,
    }
    if as_json:
        show.as_json(facts)
    else:
        facts["pinned"] = "yes, it outlives those who use it" if found.pinned else "no"
        facts["holders"] = ", ".join(map(str, found.holders)) or "nobody"
        facts["schema"] = _in_words(facts["schema"])
        show.fields({name: "-" if value is None else value for name, value in facts.items()})


def _schema(server: EmbeddedServer) -> dict[str, Any]:
    """The schema of a server that runs: what is pending, what is newer than this version, or why it can't be used."""
    pending, newer, problem = list[str](), list[str](), None
    try:
        with psycopg.connect(server.url(), autocommit=True, connect_timeout=10) as connection:
            state = examine(connection, wiring.COMPONENTS)
            pending, newer = [str(step) for step in state.pending], state.newer
    except (KappaError, psycopg.Error) as error:
        problem = " ".join(str(error).split())
    return {"pending": pending, "newer": newer, "problem": problem}


def _in_words(schema: dict[str, Any] | None) -> str | None:
    if schema is None:
        return None
    if schema["problem"]:
        return str(schema["problem"])
    said: list[str] = []
    if schema["pending"]:
        said.append(f"{len(schema['pending'])} migrations pending: run `kg db migrate`")
    if schema["newer"]:
        said.append(f"newer than this version and compatible with it: {', '.join(schema['newer'])}")
    return "; ".join(said) or "up to date"
