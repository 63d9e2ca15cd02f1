"""`kg up`: the API, the lanes and the maintenance, from the first listener to the last written outcome.

Signals are handled here, not by uvicorn: it would close its listeners first, and then nobody could be told that the
server drains.
"""

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import AsyncExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import uvicorn
from anyio.to_thread import current_default_thread_limiter, run_sync

from kappa.app import counts, home, logs, tracing, wiring
from kappa.app.api import application
from kappa.app.api.middleware import Guard
from kappa.app.connections import Connections, connection_limit
from kappa.app.door import Door
from kappa.app.errors import AppError, Conflict, NotAuthenticated
from kappa.app.http_protocol import HttpProtocol
from kappa.app.lanes import Lanes, LanesInProcesses, LanesInThread, NoLanes
from kappa.app.mcp import http as mcp
from kappa.app.permissions import Permission
from kappa.app.services import API_SHARE, Services, open_services
from kappa.app.settings import Settings
from kappa.app.usecases.principal import Principal
from kappa.app.web import site
from kappa.engine import Engine, WorkerConfig, run_until_signal, tools
from kappa.engine.loops import loop_factory
from kappa.engine.tools.sandbox import state as sandbox_state
from kappa.pg import Bounds

log = logging.getLogger(__name__)

OPERATOR = "operator"
PORTS_TRIED = 20
BACKLOG = 4096
TICKS = 10
"""Of uvicorn's, in a second."""
LAST_WORDS = 5.0
"""Seconds in which an open stream can still say that the server drains."""

_ITSELF = Principal(0, "kappa", frozenset(Permission))


class CannotListen(AppError):
    """The address is not to be had."""


@dataclass(frozen=True, slots=True)
class Options:
    """Which parts of a server run."""

    api: bool = True
    lanes: bool = True
    maintenance: bool = True
    workers: int = 0
    """So many processes of their own for the lanes; 0 runs them in a thread of the server's."""
    with_parent: bool = False
    """End when standard input does: a parent that was killed can't say good-bye."""
    counts_to: Path | None = None
    """Where a worker process writes what it counts, for its parent's metrics."""


@dataclass(frozen=True, slots=True)
class Up:
    """A server that has begun to listen."""

    url: str
    token_file: Path | None
    options: Options
    lanes: tuple[str, ...]
    sandbox: str
    """What becomes of tools that run as processes."""
    stop: Callable[[], object]
    """Begin to drain; from any thread."""


def up(
    settings: Settings, options: Options, say: Callable[[str], None], greet: Callable[[Up], None], *, any_port: bool
) -> None:
    """Serve until a signal comes, then drain."""
    home.make(settings.home)
    log_lines = logs.writing(settings.log_format, settings.log_level)
    with log_lines, wiring.open_database(settings, "kg up", say) as database:
        database.check_capacity()
        _open_files()
        engine = wiring.build_engine(settings, database)
        wiring.install(engine)
        sandbox = sandbox_state(unsandboxed=not settings.tools_need_sandbox)
        if not sandbox.sandboxed and not options.with_parent:
            log.warning("the sandbox of tools is %s: %s", sandbox.summary, sandbox.reason)
        place = settings.home.expanduser().absolute()
        if not settings.queue_enabled:
            options = replace(options, lanes=False)
        with (
            closing(engine),
            closing(tools.install(engine, place, wiring.tool_runners(settings, place))) as bench,
            bench.sweeping() if not options.workers else nullcontext(),
            asyncio.Runner(loop_factory=loop_factory()) as runner,
        ):
            served = engine.served_lanes if options.lanes else ()
            if options.api:
                with listener(settings.host, settings.port, say, any_port=any_port) as socket_:
                    runner.run(Server(settings, options, engine, served, socket_, sandbox.summary, greet).run())
            else:
                runner.run(_only_lanes(settings, options, engine))


def _open_files() -> None:
    """As many as this process may have: each remote worker is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextmanager
def listener(host: str, port: int, say: Callable[[str], None], *, any_port: bool) -> Generator[socket.socket]:
    """A listening socket. A port that nobody asked for by name may be another one if it is taken."""
    ports = range(port, port + PORTS_TRIED) if any_port and port else [port]
    error: OSError | None = None
    for number in ports:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host, number))
            listening.listen(BACKLOG)
        except (OSError, OverflowError) as refused:
            listening.close()
            error = refused if isinstance(refused, OSError) else OSError(str(refused))
            continue
        if number != port:
            say(f"port {port} is taken; this server has {number}")
        with listening:
            yield listening
        return
    raise CannotListen(f"can't listen on {host}:{port}: {error}; --port takes another one, 0 a free one")


class Server:
    """One process that serves."""

    def __init__(
        self,
        settings: Settings,
        options: Options,
        engine: Engine,
        served: tuple[str, ...],
        listening: socket.socket,
        sandbox: str,
        greet: Callable[[Up], None],
    ) -> None:
        self._settings = settings
        self._options = options
        self._engine = engine
        self._served = served
        self._listening = listening
        self._sandbox = sandbox
        self._greet = greet
        self._stop = asyncio.Event()
        self.guard = Guard()

    def stop(self) -> None:
        """Begin to drain."""
        self._stop.set()

    async def run(self) -> None:
        current_default_thread_limiter().total_tokens = self._settings.threadpool_tokens
        async with AsyncExitStack() as stack:
            compiling = asyncio.create_task(run_sync(site.compile_templates), name="templates")
            services = await stack.enter_async_context(open_services(self._settings, self._engine))
            with_mcp = await stack.enter_async_context(mcp.opened(self._settings))
            token_file = await operator_token(services, self._settings.home)
            with_pages = site.beside(services)
            app = application.build(services, self.guard, lambda api: with_pages(with_mcp(api)), site.large)
            await compiling
            web = _Uvicorn(_uvicorn_config(app), self._listening, _connections(self._settings))
            lanes = self._lanes(services, stack)
            lanes.start()
            serving = asyncio.create_task(web.serve(), name="serve")
            working = asyncio.create_task(lanes.ended(), name="lanes")
            self._on_signals()
            _collect_less()
            with home.announced(self._settings.home, self._url):
                stop = partial(asyncio.get_running_loop().call_soon_threadsafe, self.stop)
                self._greet(Up(self._url, token_file, self._options, self._served, self._sandbox, stop))
                stopping = asyncio.create_task(self._stop.wait())
                await asyncio.wait([serving, working, stopping], return_when=asyncio.FIRST_COMPLETED)
                stopping.cancel()
                self.guard.drain()
                services.fleet.fleet.drain()
            lanes.stop()
            await asyncio.wait([working], timeout=self._settings.grace + 15)
            await self._requests_end()
            web.should_exit = True
            await serving
            if working.done():
                working.result()

    @property
    def _url(self) -> str:
        host, port = self._listening.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def _lanes(self, services: Services, stack: AsyncExitStack) -> Lanes:
        if self._options.workers and self._options.lanes:
            shared = stack.enter_context(home.own_directory(self._settings.home, "metrics"))
            services.metrics.read_shared(shared)
            return LanesInProcesses(_child_command(self._options, shared), self._options.workers)
        if self._options.lanes or self._options.maintenance:
            lanes = LanesInThread(self._engine, worker_config(self._settings, self._options, beside_api=True))
            services.metrics.show_pools(lanes.pools)
            return lanes
        return NoLanes()

    async def _requests_end(self) -> None:
        """Requests under way may end; streams hear that the server drains."""
        until = asyncio.get_running_loop().time() + LAST_WORDS
        while self.guard.under_way and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.05)

    def _on_signals(self) -> None:
        loop = asyncio.get_running_loop()

        def told() -> None:
            log.info("told to stop: what runs has %g s to finish, a second signal ends it now", self._settings.grace)
            self.stop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)  # Python's own handler of ctrl-C would wait for what runs

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, told)


def _collect_less() -> None:
    """Garbage that reference counts don't free is rare here, and a look for it stops the loop: a microsecond for each
    object that is younger than the last look, and a connection is a hundred of them.

    What is there by now stays for good and needs no look. What is new is looked at once, in parts that take
    milliseconds; what has outlasted that, only when there is very much of it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 100, 10)


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers, with a door and bounded connections of ours."""

    def __init__(self, config: uvicorn.Config, listening: socket.socket, connections: Connections) -> None:
        super().__init__(config)
        self._listening = listening
        self._connections = connections
        self._door: Door | None = None

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        speak = partial(HttpProtocol, self._connections, self.config, self.server_state)
        self._door = Door(self._listening, speak, self._connections.make_room)
        self._door.open()

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS == 0:
            self._connections.sweep()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._door is not None:
            self._door.close()
        self._listening.close()
        await super().shutdown()


def _connections(settings: Settings) -> Connections:
    most = connection_limit() if settings.max_connections is None else settings.max_connections
    return Connections(most, settings.max_connections_per_address, settings.proxies)


def _uvicorn_config(app: Callable[..., Awaitable[None]]) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # whoever connects could claim any address
        timeout_keep_alive=180,  # longer than a worker is silent between two beats
        timeout_graceful_shutdown=int(LAST_WORDS),
    )


async def operator_token(services: Services, place: Path) -> Path | None:
    """The file with the operator's token, made if there is none that this database knows."""
    secret = home.read_token(place)
    if secret is not None:
        try:
            await services.credentials.by_token(secret)
            return home.token_file(place)
        except NotAuthenticated:
            pass
    try:
        await services.people.make_user(_ITSELF, OPERATOR, roles=["platform_admin"])
    except Conflict:
        if not (await services.people.user(OPERATOR)).enabled:
            return None  # somebody switched the operator off; that is not undone behind their back
    made = await services.credentials.make_token(
        _ITSELF, f"the operator on {socket.gethostname()}", user=OPERATOR, user_permissions=frozenset()
    )
    return home.write_token(place, made.secret)


def worker_config(settings: Settings, options: Options, *, beside_api: bool) -> WorkerConfig:
    most = max(1, settings.pool_queue - (API_SHARE if beside_api else 0))
    return WorkerConfig(
        lanes=None if options.lanes else (),
        lead=options.maintenance,
        grace=timedelta(seconds=settings.grace),
        pool=Bounds(1, most, settings.pool_wait),
        job_threads=settings.max_concurrent_threads,
        child_set_up=partial(logs.set_up, settings.log_format, settings.log_level),
    )


async def _only_lanes(settings: Settings, options: Options, engine: Engine) -> None:
    worker = engine.worker(worker_config(settings, options, beside_api=False))
    if options.with_parent:
        loop = asyncio.get_running_loop()

        def watch() -> None:
            # Not by sys.stdin: at its end the interpreter waits for that one's lock, in vain, and aborts.
            with suppress(OSError):
                while os.read(0, 4096):
                    pass
            loop.call_soon_threadsafe(worker.stop)

        threading.Thread(target=watch, name="parent", daemon=True).start()
    counted = counts.shared(options.counts_to, engine.signals, worker.pools)
    async with counted, tracing.opened(settings.otel_endpoint, engine.signals):
        await run_until_signal(worker)


def _child_command(options: Options, counts_to: Path) -> list[str]:
    command = ["-m", "kappa.app.cli.entry", "up", "--no-api", "--with-parent", "--counts-to", str(counts_to)]
    return command if options.maintenance else [*command, "--no-maintenance"]
