"""`kg worker`: does a server's jobs on this machine, over HTTP and without a database."""

import asyncio
import logging
import os
import signal
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import SecretStr, ValidationError

from kappa.app import home, logs, remote, settings, wiring
from kappa.app.cli import show, values
from kappa.app.cli.values import BadInput
from kappa.app.settings import LogFormat, Settings
from kappa.pg import Database

if TYPE_CHECKING:
    from kappa.engine.fleet.agent import Agent, AgentConfig
    from kappa.engine.fleet.journal import Journal
    from kappa.engine.fleet.link import Place
    from kappa.engine.fleet.tool_attempt import FleetBench
    from kappa.engine.fleet.wire import Welcome
    from kappa.engine.registry import Registry

log = logging.getLogger(__name__)

NO_DATABASE = "postgresql://a-fleet-worker-has-no-database.invalid/"

_OPTIONS = {"worker": "name", "memory_mb": "memory-mb", "url": "server"}
"""What a field of the wire is called on the command line."""


def worker(
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="The server.", show_default="KAPPA_SERVER, or the one here")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            help="The token. Here others on this machine can see it: KAPPA_TOKEN and --token-file are better.",
            show_default="KAPPA_TOKEN",
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="A file with the token in it.")
    ] = None,
    slots: Annotated[int, typer.Option(min=1, max=10_000, help="So many tasks at once.")] = 1,
    name: Annotated[
        str | None, typer.Option(help="What the server calls this worker.", show_default="made once, then kept")
    ] = None,
    kinds: Annotated[
        str | None,
        typer.Option(metavar="KINDS", help="Only these kinds, with commas between.", show_default="all that it can"),
    ] = None,
    labels: Annotated[
        str | None, typer.Option(metavar="LABELS", help="What it has that jobs may need, as in gpu,zone=a.")
    ] = None,
    cores: Annotated[
        float | None, typer.Option(min=0, help="Cores that a job may need.", show_default="those of this machine")
    ] = None,
    memory_mb: Annotated[
        int | None,
        typer.Option(
            "--memory-mb",
            min=0,
            help="Memory that a job may need.",
            show_default="the machine's or container's",
        ),
    ] = None,
    handlers: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION", help="What declares its handlers on an engine.", show_default="KAPPA_HANDLERS"
        ),
    ] = None,
    work_dir: Annotated[
        Path | None,
        typer.Option(
            "--work-dir", metavar="DIR", help="Where it works, and no other.", show_default="KAPPA_HOME/worker"
        ),
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(
            parser=values.seconds, metavar="DURATION", help="What running tasks get at the end.", show_default="30s"
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End as soon as there is nothing to do.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Log in JSON, as KAPPA_LOG_FORMAT=json does.")] = False,
) -> None:
    """Do the tasks of a server's fleet lanes on this machine. ctrl-C drains and stops it; a second one ends it at once.

    Example: KAPPA_TOKEN=… kg worker --server https://kappa.example.org --slots 4
    """
    if token is not None and token_file is not None:
        raise typer.BadParameter("--token and --token-file are two ways to say the same")
    if token_file is not None:
        token = _token_in(token_file)
    given = {
        "server": server, "token": None if token is None else SecretStr(token), "handlers": handlers, "grace": grace,
        "log_format": LogFormat.JSON if as_json else None,
    }  # fmt: skip
    configured = settings.load().model_copy(
        update={field: value for field, value in given.items() if value is not None}
    )
    found = remote.find(configured)
    place = (work_dir or home.make(configured.home) / "worker").expanduser().absolute()
    # What does the work takes a while to load, and no other command needs it.
    from kappa.engine.fleet.agent import AgentConfig
    from kappa.engine.fleet.journal import Journal
    from kappa.engine.fleet.link import Place
    from kappa.engine.fleet.wire import Able
    from kappa.engine.tools import CONTAINERS, KIND, runners_here, sandbox

    engine = wiring.build_engine(configured, Database(NO_DATABASE))
    registry = engine.registry
    known = sorted({*registry.remote_kinds, KIND})
    tools = sandbox.state(unsandboxed=not configured.tools_need_sandbox)
    with_containers = "container" in runners_here(place)
    # A worker that refuses every tool is done with each at once, and would get them all.
    runs_none = not tools.sandboxed and configured.tools_need_sandbox and not with_containers
    wanted = [kind for kind in known if kind != KIND or not runs_none] if kinds is None else values.names(kinds)
    if strange := [kind for kind in wanted if kind not in known]:
        there = f"(there are: {', '.join(known)})"
        if strange[0] in registry.kinds:
            raise BadInput(f"{strange[0]!r} needs the database, which a worker has not: `kg up` does it {there}")
        raise BadInput(f"there is no handler for {strange[0]!r} here {there}")
    with closing(engine), logs.writing(configured.log_format, configured.log_level), Journal(place) as journal:
        if not tools.sandboxed:
            log.warning("the sandbox of tools is %s: %s", tools.summary, tools.reason)
        own = [CONTAINERS] if KIND in wanted and with_containers else []
        try:
            able = Able(
                kinds=wanted,
                cores=float(os.cpu_count() or 1) if cores is None else cores,
                memory_mb=_memory_mb() if memory_mb is None else memory_mb,
                labels=sorted({*values.names(labels or ""), *own}),
            )
            at = Place(url=found.url, token=found.token, worker=name or journal.name(), direct=found.local)
        except ValidationError as error:
            fault = error.errors(include_url=False, include_input=False)[0]
            option = _OPTIONS.get(word := str(fault["loc"][0]), word)
            raise BadInput(f"--{option} can't be that: {fault['msg']}") from None
        config = AgentConfig(able, slots, version("kappa"), configured.grace, once)
        with remote.reaching(found):
            _run(config, at, journal, registry, configured)


def _run(config: "AgentConfig", place: "Place", journal: "Journal", registry: "Registry", configured: Settings) -> None:
    from kappa.engine.fleet.link import Refused
    from kappa.engine.loops import loop_factory

    bench = _bench(config, place, journal, configured)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_work(config, place, journal, registry, bench))
    except Refused as error:
        raise remote.ServerRefused(error.status, error.code, f"{place.url}: {error}") from None
    finally:
        if bench is not None:
            bench.close()


def _bench(config: "AgentConfig", place: "Place", journal: "Journal", configured: Settings) -> "FleetBench | None":
    """What runs tools, if this worker does."""
    from kappa.engine.fleet.files import Files
    from kappa.engine.fleet.tool_attempt import FleetBench
    from kappa.engine.tools import KIND

    if KIND not in config.able.kinds:
        return None
    runs = journal.work_dir / "runs"
    runs.mkdir(exist_ok=True, mode=0o700)
    return FleetBench(runs, wiring.tool_runners(configured, journal.work_dir), Files(place))


async def _work(
    config: "AgentConfig", place: "Place", journal: "Journal", registry: "Registry", bench: "FleetBench | None"
) -> None:
    from kappa.engine.fleet.agent import Agent
    from kappa.engine.fleet.link import Link

    def greet(welcome: "Welcome") -> None:
        _greet(config, place, journal, welcome, bench.runners if bench is not None else [])

    async with Link(place) as link:
        agent = Agent(config, link, journal, registry, bench, greet)
        _stop_on_signals(agent)
        await agent.run()


def _stop_on_signals(agent: "Agent") -> None:
    loop = asyncio.get_running_loop()

    def told() -> None:
        log.info("told to stop: draining; a second signal ends it at once")
        agent.stop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)


def _greet(config: "AgentConfig", place: "Place", journal: "Journal", welcome: "Welcome", runners: list[str]) -> None:
    able = config.able
    lines = {
        "kinds": ", ".join(welcome.kinds) or "none of its own that a fleet lane has and its token allows",
        "slots": f"{config.slots}, with {able.cores:g} cores and {able.memory_mb} MB",
        "beats": f"every {welcome.beat_seconds:g} s",
        "works in": journal.work_dir,
    }
    if able.labels:
        lines["labels"] = ", ".join(able.labels)
    if runners:
        lines["tools"] = f"run as {' or '.join(runners)}"
    show.out.print(f"Worker [bold]{place.worker}[/bold] of {show.printable(place.url)}, Kappa {welcome.server}")
    show.fields(lines)
    show.say("ctrl-C drains and stops it")


def _token_in(path: Path) -> str:
    try:
        token = path.expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"the token file {path} can't be read: {getattr(error, 'strerror', error)}") from None
    if not token:
        raise BadInput(f"the token file {path} is empty")
    return token


_MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Where the kernel says what a container may have, in either of its ways."""


def _memory_mb() -> int:
    """This machine's, or this container's if it may have less."""
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for place in _MEMORY_LIMITS:
        with suppress(OSError, ValueError):  # not there, or `max`
            most = min(most, int(Path(place).read_text()))
    return most // (1024 * 1024)
