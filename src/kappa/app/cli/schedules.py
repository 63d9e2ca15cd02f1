"""`kg schedule`: what is enqueued when."""

from typing import Annotated, Any

import typer

from kappa.app import remote, settings
from kappa.app.api.schedule_schemas import Missed, SchedulePage, ScheduleView
from kappa.app.api.schemas import EnqueuedJob
from kappa.app.cli import complete, show, tables, values
from kappa.app.remote import segment

app = typer.Typer(no_args_is_help=True, help="Schedules: what is enqueued when. Add, edit, pause, run now.")

LARGEST_PAGE = 500

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The schedule.", show_default=False, autocompletion=complete.schedules)
]
TimeZone = Annotated[str | None, typer.Option("--timezone", metavar="ZONE", help="As in Europe/Berlin; UTC at first.")]
Payload = Annotated[
    str | None, typer.Option(metavar="JSON", help="The job's payload: JSON, @FILE, or - for standard input.")
]
Priority = Annotated[int | None, typer.Option(help="The job's priority; higher is sooner. 0 at first.")]
WhenMissed = Annotated[
    Missed | None,
    typer.Option(
        "--missed",
        help="Times that came while no server led: one job for all of them, as at first, or none.",
    ),
]


@app.command(name="list")
def list_schedules(
    limit: Annotated[int, typer.Option(min=1, max=LARGEST_PAGE, help="So many at most.")] = 50,
    after: Annotated[str | None, typer.Option(metavar="NAME", help="Only those that come after this one.")] = None,
    as_json: show.AsJson = False,
) -> None:
    """List the schedules by name, with their next and last times and what went wrong.

    Example: kg schedule list --limit 200
    """
    with remote.open_server(settings.load()) as server:
        page = server.get("/schedules", SchedulePage, {"after": after, "limit": limit})
    if as_json:
        show.as_json(page)
        return
    if page.items:
        show.out.print(tables.schedules(page.items))
    else:
        show.say("no schedules yet: `kg schedule add` makes one" if after is None else "no more schedules")
    if page.next is not None:
        show.say(f"there may be more: --after {page.next}")


@app.command(name="show")
def show_schedule(name: Name, as_json: show.AsJson = False) -> None:
    """Show everything about a schedule, with its next few times.

    Example: kg schedule show artifact_cleanup
    """
    with remote.open_server(settings.load()) as server:
        _tell(server.get(_path(name), ScheduleView), as_json)


@app.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call it.", show_default=False)],
    cron: Annotated[
        str,
        typer.Argument(
            metavar="CRON",
            help="When: minute, hour, day of month, month, weekday, as in '30 2 * * 1-5'; six fields begin with"
            " the second.",
            show_default=False,
        ),
    ],
    kind: Annotated[
        str,
        typer.Argument(metavar="KIND", help="The kind of job.", show_default=False, autocompletion=complete.kinds),
    ],
    payload: Payload = None,
    timezone: TimeZone = None,
    priority: Priority = None,
    missed: WhenMissed = None,
    paused: Annotated[bool, typer.Option("--paused", help="Let it fire only when it is resumed.")] = False,
    as_json: show.AsJson = False,
) -> None:
    """Make a schedule.

    Example: kg schedule add nightly '30 2 * * *' self_test --timezone Europe/Berlin --payload '{"steps": 3}'
    """  # fmt: skip
    body = _changes(payload, timezone, priority, missed) | {"name": name, "cron": cron, "kind": kind}
    with remote.open_server(settings.load()) as server:
        _tell(server.post("/schedules", ScheduleView, body | ({"enabled": False} if paused else {})), as_json)


@app.command()
def edit(
    name: Name,
    cron: Annotated[str | None, typer.Option(metavar="CRON", help="When, as in '30 2 * * 1-5'.")] = None,
    kind: Annotated[str | None, typer.Option(help="The kind of job.", autocompletion=complete.kinds)] = None,
    payload: Payload = None,
    timezone: TimeZone = None,
    priority: Priority = None,
    missed: WhenMissed = None,
    as_json: show.AsJson = False,
) -> None:
    """Change a schedule. Another expression or time zone moves its next time at once.

    Example: kg schedule edit artifact_cleanup --cron '37 * * * *'
    """
    changes = _changes(payload, timezone, priority, missed)
    changes |= {key: value for key, value in {"cron": cron, "kind": kind}.items() if value is not None}
    if not changes:
        raise values.BadInput("nothing to change: name at least one, as in --cron '0 3 * * *'")
    with remote.open_server(settings.load()) as server:
        _tell(server.patch(_path(name), ScheduleView, changes), as_json)


@app.command()
def pause(name: Name, as_json: show.AsJson = False) -> None:
    """Let a schedule fire no more until it is resumed.

    Example: kg schedule pause artifact_cleanup
    """
    with remote.open_server(settings.load()) as server:
        _tell(server.post(f"{_path(name)}/pause", ScheduleView), as_json)


@app.command()
def resume(name: Name, as_json: show.AsJson = False) -> None:
    """Let a paused schedule fire again; what was due meanwhile is not made up for.

    Example: kg schedule resume artifact_cleanup
    """
    with remote.open_server(settings.load()) as server:
        _tell(server.post(f"{_path(name)}/resume", ScheduleView), as_json)


@app.command(name="run-now")
def run_now(name: Name, as_json: show.AsJson = False) -> None:
    """Enqueue a schedule's job now. When it is due next doesn't change.

    Example: kg schedule run-now artifact_cleanup
    """
    with remote.open_server(settings.load()) as server:
        done = server.post(f"{_path(name)}/run", EnqueuedJob)
    if as_json:
        show.as_json(done)
    else:
        show.line(f"job {done.id} was created")


@app.command()
def delete(name: Name, as_json: show.AsJson = False) -> None:
    """Delete a schedule. Its jobs stay; one that the server declares can be paused only.

    Example: kg schedule delete nightly
    """
    with remote.open_server(settings.load()) as server:
        server.delete(_path(name))
    if as_json:
        show.as_json({"deleted": name})
    else:
        show.line(f"schedule {name} is deleted")


def _path(name: str) -> str:
    return f"/schedules/{segment(name)}"


def _changes(payload: str | None, timezone: str | None, priority: int | None, missed: str | None) -> dict[str, Any]:
    """What was given; a payload may be null."""
    given: dict[str, Any] = {"timezone": timezone, "priority": priority, "missed": missed}
    changes = {name: value for name, value in given.items() if value is not None}
    return changes if payload is None else changes | {"payload": values.payload(payload)}


def _tell(schedule: ScheduleView, as_json: bool) -> None:
    if as_json:
        show.as_json(schedule)
    else:
        show.fields(tables.schedule_fields(schedule))
