"""`kg admin`: workers and lanes, looked at and steered, and the audit log."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.live import Live

from kappa.app import remote, settings
from kappa.app.api.schemas import AuditPage, FleetPage, LaneView, StatusView
from kappa.app.cli import complete, show, tables, values
from kappa.app.cli.follow import BETWEEN_TRIES, Patience
from kappa.app.remote import Server, ServerNotFound, ServerRefused
from kappa.engine import Executor

app = typer.Typer(no_args_is_help=True, help="For those who run the server: workers, lanes, the audit log.")
workers_app = typer.Typer(invoke_without_command=True)
lanes_app = typer.Typer(invoke_without_command=True)
workers_app.add_typer(lanes_app, name="lanes")
app.add_typer(workers_app, name="workers")

LANES = "/admin/workers/lanes"
LARGEST_PAGE = 500

LaneName = Annotated[
    str, typer.Argument(metavar="NAME", help="The lane.", show_default=False, autocompletion=complete.lanes)
]


@workers_app.callback()
def workers(
    context: typer.Context,
    live: Annotated[bool, typer.Option("--watch", help="Go on looking until ctrl-C.")] = False,
    every: Annotated[
        float,
        typer.Option(
            parser=values.seconds, metavar="DURATION", help="How often to look, with --watch.", show_default="1s"
        ),
    ] = 1.0,
    as_json: show.AsJson = False,
) -> None:
    """Who works, who leads, and what every lane has to do. With --watch and --json, a line for each change.

    Example: kg admin workers --watch
    """
    if context.invoked_subcommand is not None:
        _no_options_before(context, live or as_json)
    elif live:
        _watch(max(every, 0.1), as_json)
    else:
        with remote.open_server(settings.load()) as server:
            now = server.get("/admin/workers/status", StatusView)
        if as_json:
            show.as_json(now)
        else:
            show.out.print(tables.status(now))


@lanes_app.callback()
def lanes(context: typer.Context, as_json: show.AsJson = False) -> None:
    """List the lanes and what they are set to.

    Example: kg admin workers lanes
    """
    if context.invoked_subcommand is not None:
        _no_options_before(context, as_json)
        return
    with remote.open_server(settings.load()) as server:
        found = server.get(LANES, list[LaneView])
    if as_json:
        show.as_json(found)
    else:
        show.out.print(tables.lane_rows(found))


@lanes_app.command()
def edit(
    name: LaneName,
    max_slots: Annotated[int | None, typer.Option(min=1, help="Jobs at once, in the whole cluster.")] = None,
    poll_interval_ms: Annotated[int | None, typer.Option(min=10, help="How often to look without a call.")] = None,
    lease_ttl: Annotated[
        float | None, typer.Option(parser=values.seconds, metavar="DURATION", help="How long a claim holds, as in 60s.")
    ] = None,
    stale_timeout: Annotated[
        float | None,
        typer.Option(
            parser=values.seconds, metavar="DURATION", help="How long a job may report no progress, as in 30m."
        ),
    ] = None,
    executor: Annotated[Executor | None, typer.Option(help="Where the handlers run.")] = None,
    kinds: Annotated[str | None, typer.Option(metavar="A,B", help="The kinds it does; '' for none.")] = None,
    as_json: show.AsJson = False,
) -> None:
    """Change a lane while it works; every worker follows in its next cycle.

    Example: kg admin workers lanes edit tools --max-slots 4 --lease-ttl 90s
    """
    wanted: dict[str, Any] = {
        "max_slots": max_slots, "poll_interval_ms": poll_interval_ms, "lease_ttl": lease_ttl,
        "stale_timeout": stale_timeout, "executor": executor.value if executor else None,
        "kinds": None if kinds is None else values.names(kinds),
    }  # fmt: skip
    changes = {key: value for key, value in wanted.items() if value is not None}
    if not changes:
        raise values.BadInput("nothing to change: name at least one, as in --max-slots 4")
    _change(name, changes, as_json)


@lanes_app.command()
def drain(name: LaneName, as_json: show.AsJson = False) -> None:
    """Let what runs in a lane finish, and claim nothing more.

    Example: kg admin workers lanes drain tools
    """
    _change(name, {"enabled": False}, as_json)


@lanes_app.command()
def resume(name: LaneName, as_json: show.AsJson = False) -> None:
    """Let a drained lane claim again.

    Example: kg admin workers lanes resume tools
    """
    _change(name, {"enabled": True}, as_json)


@app.command()
def fleet(
    limit: Annotated[int, typer.Option(min=1, max=LARGEST_PAGE, help="So many at most.")] = 50,
    after: Annotated[str | None, typer.Option(metavar="NAME", help="Only those that come after this one.")] = None,
    as_json: show.AsJson = False,
) -> None:
    """The fleet: remote workers that gave a sign of life lately.

    Example: kg admin fleet --limit 200
    """
    with remote.open_server(settings.load()) as server:
        page = server.get("/admin/fleet/workers", FleetPage, {"after": after, "limit": limit})
    if as_json:
        show.as_json(page)
        return
    show.out.print(tables.fleet(page.items))
    show.say(f"{page.workers} in all" + ("" if page.next is None else f"; --after {page.next} shows more"))


@app.command()
def audit(
    limit: Annotated[int, typer.Option(min=1, max=LARGEST_PAGE, help="So many at most.")] = 50,
    before: Annotated[int | None, typer.Option(metavar="ID", min=1, help="Only what is older than this.")] = None,
    every_page: Annotated[bool, typer.Option("--all", help="All of it, however much.")] = False,
    as_json: show.AsJson = False,
) -> None:
    """Who did what, the newest first.

    Example: kg admin audit --limit 20
    """
    with remote.open_server(settings.load()) as server:
        page = _audit_page(server, before, LARGEST_PAGE if every_page else limit)
        while every_page and page.next is not None:
            older = _audit_page(server, page.next, LARGEST_PAGE)
            page = AuditPage(items=[*page.items, *older.items], next=older.next)
    if as_json:
        show.as_json(page)
        return
    show.out.print(tables.audit(page.items))
    if page.next is not None:
        show.say(f"there may be more: --before {page.next}, or --all")


def _audit_page(server: Server, before: int | None, limit: int) -> AuditPage:
    return server.get("/audit", AuditPage, {"before": before, "limit": limit})


def _change(name: str, changes: dict[str, Any], as_json: bool) -> None:
    with remote.open_server(settings.load()) as server:
        lane = server.patch(f"{LANES}/{remote.segment(name)}", LaneView, changes)
    if as_json:
        show.as_json(lane)
    else:
        show.out.print(tables.lane_rows([lane]))


def _no_options_before(context: typer.Context, given: bool) -> None:
    if given:
        raise values.BadInput(f"options of {context.invoked_subcommand} stand behind it, not before")


def _watch(every: float, as_json: bool) -> None:
    """Until ctrl-C, also when the server goes away and comes back."""
    configured = settings.load()
    patience = Patience(float("inf"), show.say)
    with _teller(as_json) as tell:
        while True:
            try:
                with remote.open_server(configured) as server:
                    while True:
                        now = server.get("/admin/workers/status", StatusView)
                        patience.reached()
                        tell(now)
                        time.sleep(every)
            except (ServerNotFound, ServerRefused) as error:
                patience.lost(error)
            time.sleep(BETWEEN_TRIES)


@contextmanager
def _teller(as_json: bool) -> Generator[Callable[[StatusView], None]]:
    """A live table on a terminal. Elsewhere what changed: nobody reads the same table each second."""
    if show.out.is_terminal and not as_json:
        with Live(console=show.out, auto_refresh=False) as screen:
            yield lambda now: screen.update(tables.status(now), refresh=True)
        return
    seen: dict[str, Any] | None = None

    def tell(now: StatusView) -> None:
        nonlocal seen
        # A sign of life alone is no news.
        facts = now.model_dump(exclude={"pools": True, "workers": {"__all__": {"seen_at"}}})
        if facts != seen:
            seen = facts
            if as_json:
                show.as_json_line(now)
            else:
                show.out.print(tables.status(now), "")

    yield tell
