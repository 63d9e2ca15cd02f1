"""What a server counts, as Prometheus reads it. docs/metrics.md lists every name, and a test keeps that list whole.

Things that happen are counted where they happen, by the engine's signals and the API's middleware; things that are so
at one instant are read when somebody scrapes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kappa.app.answered import METHODS, Answered
from kappa.app.counts import JOB_SECONDS, Counts, EngineCounts, SharedCounts, provider_counts
from kappa.app.usecases.graph import KnowledgeGraph
from kappa.app.usecases.workers import LaneNow
from kappa.engine import JobState
from kappa.engine.fleet.asgi import FleetApp
from kappa.engine.signals import Signals
from kappa.pg import PoolUse

HTTP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
QUESTION_SECONDS = (*HTTP_SECONDS, 30, 60, 120)
LIVE = tuple(state for state in JobState if not state.terminal)


class HttpMetrics:
    """Requests, counted."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "kappa_http_requests", "Requests that are over.", ("route", "method", "status"), registry=registry
        )
        self._seconds = Histogram(
            "kappa_http_request_seconds", "Until the answer to a request began.", ("route", "method"),
            registry=registry, buckets=HTTP_SECONDS,
        )  # fmt: skip

    def answered(self, one: Answered) -> None:
        method = one.method if one.method in METHODS else "other"
        self._requests.labels(one.route, method, str(one.status) if one.status else "none").inc()
        self._seconds.labels(one.route, method).observe(one.until_answer)


class GraphMetrics:
    """Questions to the graph, counted."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._questions = Counter(
            "kappa_graph_questions", "Questions that are over.", ("question", "outcome"), registry=registry
        )
        self._seconds = Histogram(
            "kappa_graph_question_seconds", "From when a question came until its answer was ready.", ("question",),
            registry=registry, buckets=QUESTION_SECONDS,
        )  # fmt: skip

    def asked(self, question: str, outcome: str, seconds: float) -> None:
        self._questions.labels(question, outcome).inc()
        self._seconds.labels(question).observe(seconds)


LANE = ("kind", "lane")

COUNTED: dict[str, tuple[str, tuple[str, ...]]] = {
    "kappa_job_attempts": ("Attempts begun.", LANE),
    "kappa_job_outcomes": ("Attempts whose outcome was written, by the state the job went to.", (*LANE, "state")),
    "kappa_leases_lost": ("Leases that an attempt here lost.", LANE),
    "kappa_adoptions": ("Jobs taken over from workers that were lost.", LANE),
    "kappa_leader_changes": ("Changes of leadership here.", ("to",)),
    "kappa_leases_reaped": ("Leases that ran out and were cleared here.", ()),
    "kappa_jobs_promoted": ("Scheduled jobs that were queued here when they were due.", ()),
    "kappa_schedules_fired": ("Jobs that schedules enqueued here.", ()),
    "kappa_provider_calls": ("Calls of providers, each try for itself.", ("provider", "outcome")),
    "kappa_provider_bad_answers": ("Answers of providers that could not be used.", ("provider",)),
    "kappa_provider_call_seconds": ("Seconds that calls of providers took together.", ("provider",)),
    "kappa_provider_waits": ("Calls that had to wait for their turn.", ("provider",)),
    "kappa_provider_wait_seconds": ("Seconds that they waited together.", ("provider",)),
    "kappa_provider_tokens": ("Tokens that providers counted.", ("provider", "model", "direction")),
    "kappa_provider_cost_dollars": ("What calls cost, where the price is known.", ("provider", "model")),
}
GAUGED: dict[str, str] = {
    "kappa_provider_calls_in_flight": "Calls of a provider under way.",
    "kappa_provider_calls_limit": "Calls of a provider that may be under way.",
    "kappa_provider_calls_waiting": "Calls that wait for their turn.",
    "kappa_provider_circuits_open": "Addresses of a provider that are not called, as they are down.",
}
SPREAD = {
    "kappa_job_wait_seconds": "From when a job could be claimed until it was.",
    "kappa_job_run_seconds": "From the claim of a job until its outcome was written.",
}


def _counted(counts: Counts) -> Iterable[Metric]:
    for name, (meaning, labels) in COUNTED.items():
        family = CounterMetricFamily(name, meaning, labels=labels)
        known = {values: value for (of, values), value in counts.counters.items() if of == name}
        if not labels:
            known.setdefault((), 0)
        if name == "kappa_leader_changes":
            known = {("leading",): 0, ("standby",): 0} | known
        for values, value in known.items():
            family.add_metric(values, value)
        yield family
    for name, meaning in GAUGED.items():
        family = GaugeMetricFamily(name, meaning, labels=("provider",))
        for (of, values), value in counts.gauges.items():
            if of == name:
                family.add_metric(values, value)
        yield family
    for name, meaning in SPREAD.items():
        family = HistogramMetricFamily(name, meaning, labels=LANE)
        for (of, values), spread in counts.spreads.items():
            if of == name:
                bounds = [*(str(bound) for bound in JOB_SECONDS), "+Inf"]
                buckets = list(zip(bounds, accumulate(spread.counts), strict=True))
                family.add_metric(values, buckets, spread.total)
        yield family
    yield GaugeMetricFamily("kappa_leader", "1 if the leader is of this server.", int(counts.leads))


@dataclass(frozen=True, slots=True)
class Now:
    """What is so at the instant of a scrape."""

    lanes: Sequence[LaneNow] | None
    """None if the database did not say."""
    fleet_workers: int | None
    pools: Sequence[PoolUse]
    requests: int
    threads: tuple[float, float]
    """Of the pool for what blocks: in use, and how many there may be."""
    graph_epoch: int | None = None


@dataclass
class _Families:
    """Metric families in the making, by name."""

    all: dict[str, Metric] = field(default_factory=dict[str, Metric])

    def gauge(self, name: str, meaning: str, value: float, **labels: str) -> None:
        self._add(name, GaugeMetricFamily, meaning, value, labels)

    def counter(self, name: str, meaning: str, value: float, **labels: str) -> None:
        self._add(name, CounterMetricFamily, meaning, value, labels)

    def _add(self, name: str, family: Any, meaning: str, value: float, labels: dict[str, str]) -> None:
        if name not in self.all:
            self.all[name] = family(name, meaning, labels=list(labels))
        self.all[name].add_metric(list(labels.values()), value)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def _instant(now: Now) -> Iterable[Metric]:
    made = _Families()
    made.gauge("kappa_build_info", "1; the label says which version this is.", 1, version=version("kappa"))
    made.gauge("kappa_database_up", "1 if the database could be read for this page.", int(now.lanes is not None))
    for one in now.lanes or ():
        lane = one.lane.name
        for state in LIVE:
            made.gauge("kappa_queue_jobs", "Jobs that are not over.", one.jobs.get(state, 0), lane=lane, state=state)
        made.gauge("kappa_lane_slots_used", "Slots that are taken, in the whole cluster.", one.slots_used, lane=lane)
        made.gauge("kappa_lane_slots_max", "Jobs that may run, in the whole cluster.", one.lane.max_slots, lane=lane)
        made.gauge(
            "kappa_lane_enabled", "0 while the lane is drained, or held by a job.", int(one.lane.is_open), lane=lane
        )
    if now.fleet_workers is not None:
        made.gauge("kappa_fleet_workers", "Remote workers that gave a sign of life lately.", now.fleet_workers)
    if now.graph_epoch is not None:
        made.gauge("kappa_graph_epoch", "The latest epoch of the graph in the database.", now.graph_epoch)
    made.gauge("kappa_http_requests_in_flight", "Requests under way, but for health and metrics.", now.requests)
    made.gauge("kappa_http_threads_in_use", "Threads that do blocking work of the API.", now.threads[0])
    made.gauge("kappa_http_threads_max", "Threads that may do so.", now.threads[1])
    return made.all.values()


def _pools(pools: Iterable[PoolUse]) -> Iterable[Metric]:
    made = _Families()
    for pool in pools:
        name = pool.name
        made.gauge("kappa_pool_connections", "Connections that are open.", pool.size, pool=name)
        made.gauge("kappa_pool_connections_in_use", "Connections that somebody holds.", pool.in_use, pool=name)
        made.gauge("kappa_pool_connections_max", "Connections that may be open.", pool.most, pool=name)
        made.gauge("kappa_pool_waiting", "Callers that wait for a connection now.", pool.waiting, pool=name)
        made.counter("kappa_pool_waits", "Callers that had to wait for a connection.", pool.waits, pool=name)
        made.counter("kappa_pool_wait_seconds", "Seconds that they waited together.", pool.waited, pool=name)
    return made.all.values()


def _fleet(fleet: FleetApp | None) -> Iterable[Metric]:
    made = _Families()
    if fleet is None:
        return ()
    room, groups = fleet.fleet.room, fleet.fleet.groups
    made.gauge("kappa_fleet_waiting", "Requests for tasks that wait for one.", room.waiting)
    for (call, answer), count in list(fleet.answers.items()):
        made.counter("kappa_fleet_calls", "Calls of remote workers.", count, call=call, answer=answer)
    for group in groups:
        made.counter("kappa_fleet_written", "Calls that were written.", group.calls, sort=group.name)
        made.counter("kappa_fleet_statements", "Statements that wrote them.", group.statements, sort=group.name)
    return made.all.values()


def _graph(graph: KnowledgeGraph | None) -> Iterable[Metric]:
    now = graph.now() if graph is not None else None
    if now is None:
        return ()
    made, snapshot, budget = _Families(), now.snapshot, now.budget
    for state in ("off", "absent", "ready", "too large"):
        is_so = int(state == snapshot.state)
        made.gauge("kappa_graph_snapshot_state", "1 for the state that the snapshot is in.", is_so, state=state)
    if snapshot.epoch is not None:
        made.gauge("kappa_graph_snapshot_epoch", "The epoch that the snapshot is at.", snapshot.epoch)
    made.gauge("kappa_graph_snapshot_nodes", "Concepts in the snapshot.", snapshot.nodes)
    made.gauge("kappa_graph_snapshot_edges", "Relations in the snapshot.", snapshot.edges)
    made.gauge("kappa_graph_snapshot_bytes", "Memory that the snapshot takes.", snapshot.bytes)
    made.gauge("kappa_graph_snapshot_changed_edges", "Edges laid over it since.", snapshot.changed_edges)
    made.gauge("kappa_graph_refresh_seconds", "What the last refresh took.", snapshot.last_refresh)
    made.counter("kappa_graph_snapshot_builds", "How often it was read whole.", snapshot.builds)
    made.counter("kappa_graph_snapshot_refreshes", "How often it followed changes.", snapshot.refreshes)
    made.counter("kappa_graph_snapshot_compactions", "How often changes were merged into it.", snapshot.compactions)
    for one in now.vectors:
        made.gauge("kappa_graph_vectors", "Embeddings in memory.", one.concepts, model=one.model)
        made.gauge("kappa_graph_vectors_bytes", "Memory that they take.", one.bytes, model=one.model)
    made.gauge("kappa_graph_workers_max", "Graph workers of this server.", budget.workers)
    made.gauge("kappa_graph_workers_busy", "Graph workers that work.", budget.busy)
    made.gauge("kappa_graph_lanes_max", "Sequential lanes beside the workers.", budget.lanes)
    made.gauge("kappa_graph_lanes_busy", "Sequential lanes that are taken.", budget.lanes_busy)
    made.gauge("kappa_graph_waiting", "Questions that wait for their turn.", now.waiting)
    return made.all.values()


class _Page(Collector):
    """Families, as one page."""

    def __init__(self, *sources: Iterable[Metric]) -> None:
        self._sources = sources

    def collect(self) -> Iterable[Metric]:
        for metric in chain(*self._sources):
            # When a series began is of no use to Prometheus, and makes the page half as long again.
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


class Metrics:
    """All that one server has to say."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._engine = EngineCounts()
        self._counts: Callable[[], Counts] = self._engine.now
        self._of_fleet = EngineCounts()
        self._fleet: FleetApp | None = None
        self._worker_pools: Callable[[], Sequence[PoolUse]] = lambda: ()
        # Not the tokens of the API's threads: whoever looks why those are all taken must get an answer.
        self._turn = CapacityLimiter(1)
        self._graph: KnowledgeGraph | None = None
        self.answered = HttpMetrics(self._registry).answered
        self.asked = GraphMetrics(self._registry).asked

    def listen(self, signals: Signals) -> Callable[[], None]:
        """Begin to count; call what comes back to end it."""
        return signals.subscribe(self._engine.hear)

    def read_shared(self, directory: Path) -> None:
        """The lanes run in processes of their own, and count there."""
        self._counts = SharedCounts(directory).now

    def show_fleet(self, fleet: FleetApp) -> None:
        """What the fleet does through this server."""
        self._fleet = fleet
        fleet.fleet.signals.subscribe(self._of_fleet.hear)

    def show_graph(self, graph: KnowledgeGraph) -> None:
        """The graph that this server answers from."""
        self._graph = graph

    def show_pools(self, pools: Callable[[], Sequence[PoolUse]]) -> None:
        """The pools of a worker in this process, beside those of the API."""
        self._worker_pools = pools

    async def page(self, now: Now) -> bytes:
        return await run_sync(self._render, now, limiter=self._turn)

    def _render(self, now: Now) -> bytes:
        counts = Counts()
        counts.add(self._counts())
        counts.add(self._of_fleet.now())
        counts.add(provider_counts())
        workers = _together([*self._worker_pools(), *counts.pools])
        page = CollectorRegistry()
        instant = (_instant(now), _pools([*now.pools, *workers]), _fleet(self._fleet), _graph(self._graph))
        page.register(_Page(_counted(counts), *instant, self._registry.collect()))
        return generate_latest(page)


def _together(pools: Iterable[PoolUse]) -> Iterable[PoolUse]:
    """The pools of all workers of this server, by name, under names that no pool of the API has."""
    found: dict[str, PoolUse] = {}
    for pool in pools:
        name = f"worker {pool.name}"
        before = found.get(name, PoolUse(name, 0, 0, 0, 0, 0, 0))
        found[name] = PoolUse(
            name, before.size + pool.size, before.in_use + pool.in_use, before.waiting + pool.waiting,
            before.most + pool.most, before.waits + pool.waits, before.waited + pool.waited,
        )  # fmt: skip
    return found.values()
