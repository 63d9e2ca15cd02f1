"""The use cases of one server, put together over their pools."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path

from anyio.to_thread import run_sync

from kappa.app import home, tracing
from kappa.app.answered import Observer
from kappa.app.metrics import Metrics
from kappa.app.settings import Settings
from kappa.app.usecases import graph as knowledge
from kappa.app.usecases.backups import Backups
from kappa.app.usecases.credentials import Credentials
from kappa.app.usecases.curation import Curation
from kappa.app.usecases.fleet import FleetWorkers
from kappa.app.usecases.graph import KnowledgeGraph
from kappa.app.usecases.ingest import Ingestions
from kappa.app.usecases.jobs import Jobs
from kappa.app.usecases.limits import LiveJobs
from kappa.app.usecases.ontologies import Ontologies
from kappa.app.usecases.open_streams import OpenStreams
from kappa.app.usecases.overview import Overview
from kappa.app.usecases.passes import Passes
from kappa.app.usecases.passwords import Passwords
from kappa.app.usecases.people import People
from kappa.app.usecases.schedules import Schedules
from kappa.app.usecases.tools import ToolRuns
from kappa.app.usecases.watching import Watchtower
from kappa.app.usecases.workers import Workers
from kappa.engine import AsyncClient, Engine
from kappa.engine.fleet.asgi import FleetApp
from kappa.engine.fleet.dispatch import Fleet
from kappa.engine.fleet.transfers import Transfers
from kappa.engine.signals import Signals
from kappa.engine.tools import ArtifactStore, artifacts_of
from kappa.graph import GraphConfig
from kappa.pg import AsyncPool, Bounds, PoolUse

API_SHARE = 3
"""Of the pool `queue`: what the API takes. The rest is the worker's."""


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that a route may need."""

    settings: Settings
    client: AsyncClient
    auth: AsyncPool
    credentials: Credentials
    people: People
    jobs: Jobs
    schedules: Schedules
    workers: Workers
    overview: Overview
    watchtower: Watchtower
    open_streams: OpenStreams
    tool_runs: ToolRuns
    fleet: FleetApp
    fleet_workers: FleetWorkers
    graph: KnowledgeGraph
    ingestions: Ingestions
    spool: Path
    """Where a document is while it comes in."""
    curation: Curation
    backups: Backups
    ontologies: Ontologies
    metrics: Metrics
    observers: tuple[Observer, ...]
    """Who is told of every request when it is over."""

    def pools(self) -> tuple[PoolUse, ...]:
        """The pools of the API as they are now."""
        return (self.client.pool_use(), self.auth.use(), self.fleet.fleet.pool.use(), *self.graph.pools())


def graph_config(settings: Settings) -> GraphConfig:
    return GraphConfig(
        workers=settings.graph_workers,
        timeout=settings.graph_timeout,
        pool=settings.bounds["graph"],
        snapshot=settings.graph_snapshot_mb > 0,
        snapshot_bytes=settings.graph_snapshot_mb << 20,
        vectors_bytes=settings.graph_vectors_mb << 20,
    )


@asynccontextmanager
async def _spool(settings: Settings) -> AsyncGenerator[Path]:
    with home.own_directory(settings.home, "spool") as place:
        yield place


@asynccontextmanager
async def open_services(settings: Settings, engine: Engine) -> AsyncGenerator[Services]:
    database, bounds = engine.database, settings.bounds["auth"]
    queue = Bounds(1, min(API_SHARE, settings.pool_queue), settings.pool_wait)
    auth = AsyncPool(database.url, "auth", bounds, behind_pooler=database.behind_pooler)
    spans = tracing.opened(settings.otel_endpoint, engine.signals)
    # Signals of its own: those of the lanes come from another thread.
    fleet = Fleet(database, Signals(), bounds=settings.bounds["fleet"], gate=settings.task_semaphore_size)
    passes = Passes(auth, database)
    metrics = Metrics()
    async with (
        auth,
        engine.async_client(bounds=queue) as client,
        spans as traced,
        passes.opened() as doorman,
        fleet.opened(),
        knowledge.opened(database, graph_config(settings), metrics.asked, settings.questions_per_person) as graph,
        _spool(settings) as spool,
        Overview(client).opened() as overview,
    ):
        passwords = Passwords()
        people = People(auth, passwords)
        await people.install_roles()
        watchtower = Watchtower(client)
        credentials = Credentials(auth, passwords, timedelta(hours=settings.session_hours))
        open_streams = OpenStreams(credentials)
        stop = metrics.listen(engine.signals)
        artifacts = ArtifactStore(artifacts_of(settings.home))
        fleet_app = FleetApp(
            fleet, Transfers(fleet, artifacts, run_sync), doorman, server=version("kappa"), max_body=settings.max_body
        )
        metrics.show_fleet(fleet_app)
        metrics.show_graph(graph)
        live = LiveJobs(client, settings.max_live_jobs)
        ingestions = Ingestions(client, graph, settings, live)
        try:
            yield Services(
                settings=settings,
                client=client,
                auth=auth,
                credentials=credentials,
                people=people,
                jobs=Jobs(client, live),
                schedules=Schedules(client, engine, live),
                workers=Workers(client),
                overview=overview,
                watchtower=watchtower,
                open_streams=open_streams,
                tool_runs=ToolRuns(
                    client,
                    engine,
                    watchtower,
                    artifacts,
                    live,
                    at_once=None if settings.queue_enabled else settings.runner_max_concurrency,
                    need_sandbox=settings.tools_need_sandbox,
                ),
                fleet=fleet_app,
                fleet_workers=FleetWorkers(fleet),
                graph=graph,
                ingestions=ingestions,
                spool=spool,
                curation=Curation(graph),
                backups=Backups(client, database),
                ontologies=Ontologies(client, graph),
                metrics=metrics,
                observers=(metrics.answered,) if traced is None else (metrics.answered, traced.answered),
            )
        finally:
            stop()
            await run_sync(ingestions.close)
            await open_streams.close()
            await watchtower.close()
