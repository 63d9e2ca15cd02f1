"""Every metric moves by its cause; who may see them; and the pages that speak of them know them all."""

import asyncio
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from anyio import to_thread
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.parser import text_string_to_metric_families

from kappa.app import counts, wiring
from kappa.app.api import application, scraping
from kappa.app.api.middleware import Guard
from kappa.app.counts import JOB_SECONDS, Counts, EngineCounts, SharedCounts
from kappa.app.services import open_services
from kappa.app.settings import Settings
from kappa.engine import AsyncJobContext, Engine, JobContext, JobFailed, Lane, Schedule, WorkerConfig
from kappa.engine.signals import Signals
from kappa.engine.testing import Heard, drain, maintain, working
from kappa.graph import Answer
from kappa.graph.ingest.extraction import BadExtraction
from kappa.graph.ingest.providers import PROCESS, ProviderConfig, make
from kappa.pg import Database
from tests.app import worlds
from tests.app.conftest import Site, Up
from tests.app.patience import becomes, begun
from tests.conftest import Server
from tests.graph.ingest.provider_server import KEY, TOKENS_IN, ProviderServer, Said
from tests.ground import PATIENCE, Script, eventually
from tests.leases import lose_lease

ROOT = Path(__file__).parents[2]
HOUR = timedelta(hours=1)
FOLLOWER = WorkerConfig(lead=False, grace=timedelta(seconds=5))

Page = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> Page:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def scraped(client: httpx2.AsyncClient) -> Page:
    answer = await client.get("/metrics")
    assert answer.status_code == 200, answer.text
    return parsed(answer.text)


def value(page: Page, name: str, **labels: str) -> float | None:
    return page.get((name, frozenset(labels.items())))


class Gate:
    """Keeps handlers where they are until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Semaphore(0)
        self.open = threading.Event()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page waits for the database, unless a test says otherwise."""
    monkeypatch.setattr(scraping, "DATABASE_WITHIN", PATIENCE)


@pytest.fixture
def engine(site: Site, gate: Gate) -> Engine:
    """The site's engine with a lane of handlers that do what a test wants."""

    @site.engine.job("quick")
    async def quick(ctx: AsyncJobContext) -> None: ...

    @site.engine.job("bad")
    async def bad(ctx: AsyncJobContext) -> None:
        raise JobFailed("it is bad", retry=False)

    @site.engine.job("held", idempotent=True)
    def held(ctx: JobContext) -> None:
        gate.reached.release()
        gate.open.wait(30)

    @site.engine.job("in_transaction")
    def in_transaction(ctx: JobContext) -> None:
        with ctx.transaction():
            gate.reached.release()
            gate.open.wait(30)

    site.engine.lane(Lane("here", kinds=("quick", "bad", "held", "in_transaction"), max_slots=3))
    site.engine.install()
    return site.engine


async def reached(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.reached.acquire, timeout=30)


async def enqueue(site: Site, *kinds: str) -> list[int]:
    return [(await site.services.client.enqueue(kind)).id for kind in kinds]


# Jobs


async def test_attempts_outcomes_waits_and_runs_are_counted_by_kind_and_lane(
    site: Site, engine: Engine, operator: httpx2.AsyncClient
) -> None:
    await enqueue(site, "quick", "quick", "bad")
    await drain(engine, FOLLOWER)
    page = await scraped(operator)
    quick, bad = {"kind": "quick", "lane": "here"}, {"kind": "bad", "lane": "here"}
    assert value(page, "kappa_job_attempts_total", **quick) == 2
    assert value(page, "kappa_job_attempts_total", **bad) == 1
    assert value(page, "kappa_job_outcomes_total", **quick, state="succeeded") == 2
    assert value(page, "kappa_job_outcomes_total", **bad, state="failed") == 1
    for name in ("kappa_job_wait_seconds", "kappa_job_run_seconds"):
        assert value(page, f"{name}_count", **quick) == 2
        assert value(page, f"{name}_bucket", **quick, le="+Inf") == 2
        assert (value(page, f"{name}_sum", **quick) or 0) > 0


def test_a_histogram_puts_each_value_under_its_bound() -> None:
    counted = EngineCounts()
    for seconds in (0.0005, 0.001, 0.0011, 7200, 100_000):
        counted.hear("claimed", {"job": 1, "kind": "a", "lane": "b", "waited": seconds})
    spread = counted.now().spreads["kappa_job_wait_seconds", ("a", "b")]
    assert spread.counts == [2, 1, *[0] * (len(JOB_SECONDS) - 3), 1, 1]
    assert spread.total == pytest.approx(107200.0026)


async def test_a_job_that_waited_long_is_seen_to_have(
    site: Site, engine: Engine, operator: httpx2.AsyncClient, connection: psycopg.Connection[Any]
) -> None:
    await enqueue(site, "quick")
    connection.execute("UPDATE kappa.jobs SET created_at = now() - interval '1 hour'")
    await drain(engine, FOLLOWER)
    page = await scraped(operator)
    assert 100 < (value(page, "kappa_job_wait_seconds_sum", kind="quick", lane="here") or 0) < 4000
    assert value(page, "kappa_job_wait_seconds_bucket", kind="quick", lane="here", le="60.0") == 0


async def test_the_queue_and_the_slots_are_those_of_the_tables(
    site: Site, engine: Engine, operator: httpx2.AsyncClient, gate: Gate
) -> None:
    heard = Heard(engine)
    async with working(engine, FOLLOWER):
        await enqueue(site, "held")
        await reached(gate)
        await site.services.client.edit_lane("here", max_slots=1)
        await enqueue(site, "quick", "quick")
        await site.services.client.enqueue("quick", delay=HOUR)
        page = await scraped(operator)
        depth = {state: value(page, "kappa_queue_jobs", lane="here", state=state) for state in ("queued", "running")}
        assert depth == {"queued": 2, "running": 1}
        assert value(page, "kappa_queue_jobs", lane="here", state="scheduled") == 1
        assert value(page, "kappa_queue_jobs", lane="here", state="awaiting_approval") == 0
        assert value(page, "kappa_lane_slots_used", lane="here") == 1
        assert value(page, "kappa_lane_slots_max", lane="here") == 1
        assert value(page, "kappa_lane_enabled", lane="here") == 1
        await site.services.client.edit_lane("here", enabled=False)
        assert value(await scraped(operator), "kappa_lane_enabled", lane="here") == 0
        gate.open.set()
        await heard.until("settled", kind="held")
    assert value(await scraped(operator), "kappa_lane_slots_used", lane="here") == 0


async def test_a_parent_that_waits_for_its_children_runs_and_takes_no_slot(
    site: Site, engine: Engine, operator: httpx2.AsyncClient, gate: Gate
) -> None:
    @engine.job("family")
    async def family(ctx: AsyncJobContext) -> None:
        await ctx.gather(await ctx.spawn("held"))

    site.engine.lane(Lane("here", kinds=("family",)))
    site.engine.install()
    await site.services.client.edit_lane("here", max_slots=1)
    async with working(engine, FOLLOWER):
        await enqueue(site, "family")
        await reached(gate)
        page = await scraped(operator)
        assert value(page, "kappa_queue_jobs", lane="here", state="running") == 2
        assert value(page, "kappa_lane_slots_used", lane="here") == 1
        gate.open.set()


async def test_the_workers_of_the_fleet_that_gave_a_sign_of_life_are_counted(
    operator: httpx2.AsyncClient, connection: psycopg.Connection[Any]
) -> None:
    assert value(await scraped(operator), "kappa_fleet_workers") == 0
    connection.execute(
        """INSERT INTO kappa.fleet_workers
               (owner, pass, worker, kinds, cores, memory_mb, labels, slots, version, seen_at)
           SELECT 'w' || n, 1, 'w' || n, '{}', 1, 1, '{}', 1, '1', now() - n * interval '30 minutes'
             FROM generate_series(0, 2) AS n"""
    )
    connection.execute("UPDATE kappa.fleet_workers SET seen_at = now() WHERE owner = 'w1'")
    assert value(await scraped(operator), "kappa_fleet_workers") == 2


async def test_a_lost_lease_and_its_reaping_and_the_adoption_are_counted(
    site: Site, engine: Engine, operator: httpx2.AsyncClient, gate: Gate, connection: psycopg.Connection[Any]
) -> None:
    await site.services.client.edit_lane("here", lease_ttl=timedelta(seconds=5))
    (job,) = await enqueue(site, "held")
    heard = Heard(engine)
    async with working(engine, FOLLOWER):
        await reached(gate)
        await begun(site.services.client, job)
        await lose_lease(engine, job)
        await heard.until("lease_lost", job=job)
        await heard.until("adopted", job=job)
        await heard.until("settled", job=job)
        gate.open.set()
    page = await scraped(operator)
    held = {"kind": "held", "lane": "here"}
    assert value(page, "kappa_leases_reaped_total") == 1
    assert value(page, "kappa_leases_lost_total", **held) == 1
    assert value(page, "kappa_adoptions_total", **held) == 1
    assert value(page, "kappa_job_outcomes_total", **held, state="scheduled") == 1
    assert value(page, "kappa_job_run_seconds_count", **held) == 0, "who adopts a lost attempt did not run it"


async def test_promotions_and_schedules_are_counted(site: Site, engine: Engine, operator: httpx2.AsyncClient) -> None:
    client = site.services.client
    for kappas in await client.schedules():
        await client.drop_schedule(kappas.name)
    await client.enqueue("quick", delay=HOUR)
    await client.put_schedule(Schedule("often", "* * * * *", "quick"))
    await maintain(engine)
    before = await scraped(operator)
    await maintain(engine, later=2 * HOUR)
    after = await scraped(operator)
    for name in ("kappa_jobs_promoted_total", "kappa_schedules_fired_total"):
        assert (value(after, name) or 0) - (value(before, name) or 0) == 1, name


async def test_who_leads_and_each_change_of_it_is_counted(
    site: Site, engine: Engine, operator: httpx2.AsyncClient, connection: psycopg.Connection[Any]
) -> None:
    heard = Heard(engine)
    assert value(await scraped(operator), "kappa_leader") == 0
    async with working(engine, WorkerConfig(lead_every=timedelta(milliseconds=50))):
        await heard.until("leading")
        page = await scraped(operator)
        assert (value(page, "kappa_leader"), value(page, "kappa_leader_changes_total", to="leading")) == (1, 1)
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'kappa leader'"
        )
        await heard.until("not_leading")
        await heard.until("leading", count=2)
        page = await scraped(operator)
        assert value(page, "kappa_leader_changes_total", to="standby") == 1
        assert value(page, "kappa_leader_changes_total", to="leading") == 2
    assert value(await scraped(operator), "kappa_leader") == 0


# Pools and threads


async def test_a_pool_in_use_and_the_waits_for_it_are_seen(site: Site, operator: httpx2.AsyncClient) -> None:
    pool, auth = site.services.auth, {"pool": "auth"}
    async with AsyncExitStack() as stack:
        most = site.services.settings.pool_auth
        for _ in range(most - 1):  # one is left for the token of whoever looks
            await stack.enter_async_context(pool.connection())
        page = await scraped(operator)
        assert value(page, "kappa_pool_connections_in_use", **auth) == most - 1
        assert value(page, "kappa_pool_connections_max", **auth) == most
        assert (value(page, "kappa_pool_connections", **auth) or 0) >= most - 1
        assert value(page, "kappa_pool_waiting", **auth) == 0
    before = pool.use().waits
    async with AsyncExitStack() as stack:
        for _ in range(most):
            await stack.enter_async_context(pool.connection())
        waiter = asyncio.create_task(_borrow(pool))
        await becomes(lambda: pool.use().waiting == 1)
        assert value(parsed((await _page(site)).decode()), "kappa_pool_waiting", **auth) == 1
    await waiter
    page = await scraped(operator)
    assert (value(page, "kappa_pool_waits_total", **auth) or 0) > before
    assert (value(page, "kappa_pool_wait_seconds_total", **auth) or 0) > 0
    assert value(page, "kappa_pool_connections_max", pool="queue") is not None


async def _borrow(pool: Any) -> None:
    async with pool.connection():
        pass


async def _page(site: Site) -> bytes:
    """The page as it is when no connection is left to ask who wants it."""
    from kappa.app.metrics import Now

    return await site.services.metrics.page(Now(None, None, [site.services.auth.use()], 0, (0, 0)))


async def test_the_pools_of_a_worker_in_this_process_are_seen(
    site: Site, engine: Engine, operator: httpx2.AsyncClient, gate: Gate
) -> None:
    async with working(engine, FOLLOWER) as worker:
        site.services.metrics.show_pools(worker.pools)
        await enqueue(site, "in_transaction")
        await reached(gate)
        page = await scraped(operator)
        assert value(page, "kappa_pool_connections_in_use", pool="worker queue handlers") == 1
        assert (value(page, "kappa_pool_connections_max", pool="worker queue") or 0) >= 1
        gate.open.set()


async def test_threads_that_block_for_the_api_are_seen(site: Site, operator: httpx2.AsyncClient, gate: Gate) -> None:
    blocking = asyncio.create_task(to_thread.run_sync(lambda: (gate.reached.release(), gate.open.wait(30))))
    await reached(gate)
    page = await scraped(operator)
    gate.open.set()
    await blocking
    assert value(page, "kappa_http_threads_in_use") == 1
    assert (value(page, "kappa_http_threads_max") or 0) >= 1
    assert value(await scraped(operator), "kappa_http_threads_in_use") == 0


async def test_a_page_comes_though_every_thread_of_the_api_is_taken(
    site: Site, operator: httpx2.AsyncClient, gate: Gate
) -> None:
    limiter = to_thread.current_default_thread_limiter()
    tokens = [object() for _ in range(int(limiter.total_tokens))]
    for token in tokens:
        limiter.acquire_on_behalf_of_nowait(token)
    try:
        page = await scraped(operator)
    finally:
        for token in tokens:
            limiter.release_on_behalf_of(token)
    assert value(page, "kappa_http_threads_in_use") == value(page, "kappa_http_threads_max")


# The graph


async def test_questions_are_counted_by_name_and_outcome(site: Site, operator: httpx2.AsyncClient, url: str) -> None:
    ids, _ = await worlds.populate(operator)
    for body in ({"concept": "Otter"}, {"concept": ids["Otter"]}, {"concept": "Yeti"}, {"concept": "no\x00"}):
        await operator.post("/query/related", json=body)
    with psycopg.connect(url) as holder:
        holder.execute("LOCK TABLE kappa_graph.concepts")
        await operator.post("/query/path", json={"start": ids["Otter"], "goal": ids["Sea"], "deadline": 3})
    page = await scraped(operator)

    def counted(question: str, outcome: str) -> float | None:
        return value(page, "kappa_graph_questions_total", question=question, outcome=outcome)

    assert (counted("related", "complete"), counted("related", "refused")) == (2, 1)
    assert (counted("path", "stopped"), counted("path", "complete")) == (1, None)
    assert value(page, "kappa_graph_question_seconds_count", question="related") == 3
    assert (value(page, "kappa_graph_question_seconds_sum", question="path") or 0) > 0.5


async def test_what_a_question_is_over_with_tells_how_it_went(site: Site, operator: httpx2.AsyncClient) -> None:
    def partial(asking: Any) -> Answer:
        return Answer(0, False, (), "sql")

    def failing(asking: Any) -> Answer:
        raise RuntimeError("planted")

    graph = site.services.graph
    await graph.ask("neighbors", partial, lambda answer: answer.complete)
    with pytest.raises(RuntimeError):
        await graph.ask("neighbors", failing, lambda answer: answer.complete)
    page = await scraped(operator)
    for outcome in ("partial", "failed"):
        assert value(page, "kappa_graph_questions_total", question="neighbors", outcome=outcome) == 1


async def test_the_graph_in_memory_and_how_far_it_is_behind_are_seen(site: Site, operator: httpx2.AsyncClient) -> None:
    _, epoch = await worlds.populate(operator)
    await operator.post("/query/neighbors", json={"seeds": ["Otter"], "min_epoch": epoch})
    await operator.post("/query/search", json={"like": "Otter", "min_epoch": epoch})
    page = await becomes(lambda: _with_vectors(operator), what="the embeddings are in memory")
    assert (value(page, "kappa_graph_epoch"), value(page, "kappa_graph_snapshot_epoch")) == (epoch, epoch)
    assert (value(page, "kappa_graph_snapshot_nodes"), value(page, "kappa_graph_snapshot_edges")) == (7, 7)
    assert (value(page, "kappa_graph_snapshot_bytes") or 0) > 100
    assert value(page, "kappa_graph_snapshot_state", state="ready") == 1
    assert value(page, "kappa_graph_snapshot_state", state="too large") == 0
    grown = [value(page, f"kappa_graph_snapshot_{what}_total") or 0 for what in ("builds", "refreshes")]
    assert sum(grown) >= 1
    assert value(page, "kappa_graph_snapshot_compactions_total") == 0
    assert value(page, "kappa_graph_snapshot_changed_edges") is not None
    assert value(page, "kappa_graph_refresh_seconds") is not None
    assert value(page, "kappa_graph_vectors", model="waters") == 6
    assert (value(page, "kappa_graph_vectors_bytes", model="waters") or 0) > 0


async def _with_vectors(client: httpx2.AsyncClient) -> Page | None:
    page = await scraped(client)
    return page if value(page, "kappa_graph_vectors", model="waters") else None


async def test_workers_lanes_and_who_waits_for_them_are_seen(
    site: Site, operator: httpx2.AsyncClient, url: str
) -> None:
    ids, epoch = await worlds.populate(operator)
    await operator.post("/query/neighbors", json={"seeds": ["Otter"], "min_epoch": epoch})
    await operator.patch("/admin/graph/settings", json={"workers": 2})
    body = {"seeds": [ids["Otter"]], "max_hops": 2, "deadline": 60}
    await becomes(lambda: _workers(operator, body, 2), what="the new number of workers counts")
    askers = [await site.client(role) for role in ("read_only", "contributor", "curator")]  # with six places each
    with psycopg.connect(url) as holder:
        holder.execute("LOCK TABLE kappa_graph.concepts")
        asked = [asyncio.create_task(askers[n % 3].post("/query/neighbors", json=body)) for n in range(20)]
        page = await becomes(lambda: _crowded(operator), what="two workers and sixteen lanes")
    assert {(await one).status_code for one in asked} == {200}
    assert value(page, "kappa_graph_workers_max") == 2
    assert (value(page, "kappa_graph_lanes_max"), value(page, "kappa_graph_lanes_busy")) == (16, 16)
    assert value(page, "kappa_pool_connections_max", pool="graph") == 20
    page = await scraped(operator)
    assert (value(page, "kappa_graph_workers_busy"), value(page, "kappa_graph_waiting")) == (0, 0)


async def _workers(client: httpx2.AsyncClient, body: dict[str, Any], wanted: int) -> bool:
    await client.post("/query/neighbors", json=body)
    return value(await scraped(client), "kappa_graph_workers_max") == wanted


async def _crowded(client: httpx2.AsyncClient) -> Page | None:
    page = await scraped(client)
    seen = [value(page, f"kappa_graph_{what}") for what in ("workers_busy", "lanes_busy", "waiting")]
    return page if seen == [2, 16, 2] else None


# Providers


async def test_calls_of_providers_their_waits_tokens_and_cost_are_counted(operator: httpx2.AsyncClient) -> None:
    before = await scraped(operator)
    await asyncio.to_thread(ask_a_provider)
    page = await scraped(operator)

    def more(name: str, **labels: str) -> float:
        return (value(page, name, **labels) or 0) - (value(before, name, **labels) or 0)

    assert more("kappa_provider_calls_total", provider="openai", outcome="answered") == 2
    assert more("kappa_provider_bad_answers_total", provider="openai") == 1
    assert more("kappa_provider_call_seconds_total", provider="openai") > 0
    model = {"provider": "openai", "model": "gpt-4.1-mini"}
    assert more("kappa_provider_tokens_total", **model, direction="in") == 2 * TOKENS_IN
    assert more("kappa_provider_cost_dollars_total", **model) == pytest.approx(2 * (1200 * 0.4 + 300 * 1.6) / 1e6)
    assert value(page, "kappa_provider_calls_limit", provider="openai") == 8
    assert value(page, "kappa_provider_calls_in_flight", provider="openai") == 0
    assert value(page, "kappa_provider_circuits_open", provider="openai") == 0
    assert (
        value(page, "kappa_provider_waits_total", provider="openai")
        == PROCESS.counters["kappa_provider_waits", ("openai",)]
    )


# Requests


async def test_requests_are_counted_by_route_method_and_status(site: Site, operator: httpx2.AsyncClient) -> None:
    for path in ("/jobs/1", "/jobs/2", "/jobs/nonsense", "/no/such/path", "/and/another"):
        await operator.get(path)
    await operator.head("/healthz")
    await operator.delete("/healthz")
    await operator.request("BREW", "/healthz")
    page = await scraped(operator)
    job = {"route": "/jobs/{job_id}", "method": "GET"}
    assert value(page, "kappa_http_requests_total", **job, status="404") == 2
    assert value(page, "kappa_http_requests_total", **job, status="422") == 1
    assert value(page, "kappa_http_request_seconds_count", **job) == 3
    assert value(page, "kappa_http_requests_total", route="unmatched", method="GET", status="404") == 2
    assert value(page, "kappa_http_requests_total", route="/healthz", method="HEAD", status="200") == 1
    assert value(page, "kappa_http_requests_total", route="/healthz", method="DELETE", status="405") == 1
    assert value(page, "kappa_http_requests_total", route="/healthz", method="other", status="405") == 1


async def test_requests_under_way_are_seen(
    site: Site, operator: httpx2.AsyncClient, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scraped(operator)  # its token is known from now on
    with psycopg.connect(url) as holder:
        holder.execute("LOCK TABLE kappa.jobs")
        monkeypatch.setattr(scraping, "DATABASE_WITHIN", 0.5)
        slow = asyncio.create_task(operator.get("/jobs/1"))
        await becomes(lambda: site.guard.under_way == 1)
        pending = asyncio.create_task(operator.get("/metrics"))  # its look at the tables waits as well, for a while
        page = parsed((await pending).text)
        assert value(page, "kappa_http_requests_in_flight") == 1
        assert value(page, "kappa_database_up") == 0
    monkeypatch.setattr(scraping, "DATABASE_WITHIN", PATIENCE)
    assert (await slow).status_code == 404
    assert value(await scraped(operator), "kappa_http_requests_in_flight") == 0


async def test_the_time_of_a_stream_is_that_until_its_answer_began(
    site: Site, operator: httpx2.AsyncClient, gate: Gate, engine: Engine
) -> None:
    (job,) = await enqueue(site, "quick")
    streaming = asyncio.create_task(operator.get(f"/jobs/{job}/events"))
    await becomes(lambda: site.guard.under_way == 1)
    await drain(engine, FOLLOWER)
    assert (await streaming).status_code == 200
    page = await scraped(operator)
    assert value(page, "kappa_http_request_seconds_count", route="/jobs/{job_id}/events", method="GET") == 1


# Who may see it, and when


async def test_the_page_is_prometheus_own_and_knows_the_process(operator: httpx2.AsyncClient) -> None:
    answer = await operator.get("/metrics")
    assert answer.headers["content-type"] == CONTENT_TYPE_LATEST
    page = parsed(answer.text)
    assert value(page, "kappa_database_up") == 1
    assert any(name == "kappa_build_info" for name, _ in page)
    assert (value(page, "process_resident_memory_bytes") or 0) > 0
    assert "_created" not in answer.text


@pytest.mark.parametrize(("role", "status"), [(None, 401), ("admin", 403), ("platform_admin", 200)])
async def test_metrics_need_the_permission_to_see_workers(site: Site, role: str | None, status: int) -> None:
    assert (await (await site.client(role)).get("/metrics")).status_code == status


async def test_a_setting_opens_them_to_everybody(url: str, home: Path) -> None:
    async with served(url, Settings(home=home, metrics_public=True)) as site:
        assert (await (await site.client(None)).get("/metrics")).status_code == 200


@asynccontextmanager
async def served(url: str, settings: Settings) -> AsyncIterator[Site]:
    engine = wiring.build_engine(settings, Database(url, bounds=settings.bounds))
    guard = Guard()
    async with AsyncExitStack() as stack:
        stack.callback(engine.close)
        services = await stack.enter_async_context(open_services(settings, engine))
        yield Site(services, engine, guard, application.build(services, guard), stack)


async def test_they_are_answered_while_the_server_drains(site: Site, operator: httpx2.AsyncClient) -> None:
    site.guard.drain()
    assert (await operator.get("/me")).status_code == 503
    assert value(await scraped(operator), "kappa_database_up") == 1


@pytest.fixture
def away(url: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Makes the database refuse everybody."""
    name = url.rsplit("/", 1)[1]
    allow = psycopg.sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")

    def refuse() -> None:
        server.admin.execute(allow.format(psycopg.sql.Identifier(name), False))
        server.admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        # Nobody will answer, however long a page waits.
        monkeypatch.setattr(scraping, "DATABASE_WITHIN", 0.2)

    yield refuse
    # Else the pools of the site would wait for their connections before they close.
    server.admin.execute(allow.format(psycopg.sql.Identifier(name), True))


async def test_without_the_database_the_page_says_what_the_process_knows(
    site: Site, engine: Engine, operator: httpx2.AsyncClient, away: Callable[[], None]
) -> None:
    await enqueue(site, "quick")
    await drain(engine, FOLLOWER)
    assert value(await scraped(operator), "kappa_database_up") == 1
    away()
    page = await scraped(operator)
    assert value(page, "kappa_database_up") == 0
    assert value(page, "kappa_job_attempts_total", kind="quick", lane="here") == 1
    assert not any(name == "kappa_queue_jobs" for name, _ in page)


async def test_without_the_database_only_a_token_that_was_good_lately_is(
    url: str, home: Path, away: Callable[[], None]
) -> None:
    async with served(url, Settings(home=home, pool_wait=3)) as site:
        operator = await site.client("platform_admin")
        revoked, never = await site.client("admin"), await site.client(token="kappa_" + "A" * 43)
        assert (await operator.get("/metrics")).status_code == 200
        assert (await revoked.get("/metrics")).status_code == 403
        away()
        assert (await operator.get("/metrics")).status_code == 200
        assert (await operator.get("/jobs")).status_code == 503
        for client in (revoked, never):
            refused = await client.get("/metrics")
            assert (refused.status_code, refused.json()["code"]) == (503, "database_unavailable")


async def test_a_token_that_is_refused_is_forgotten(
    site: Site, operator: httpx2.AsyncClient, away: Callable[[], None], connection: psycopg.Connection[Any]
) -> None:
    assert (await operator.get("/metrics")).status_code == 200
    connection.execute("DELETE FROM kappa.tokens")
    assert (await operator.get("/metrics")).status_code == 401
    away()
    assert (await operator.get("/metrics")).status_code == 503


async def test_a_database_that_hangs_is_waited_for_only_a_while(
    site: Site, operator: httpx2.AsyncClient, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await operator.get("/metrics")).status_code == 200
    monkeypatch.setattr(scraping, "DATABASE_WITHIN", 0.2)
    with psycopg.connect(url) as holder:
        holder.execute("LOCK TABLE kappa.jobs, kappa.tokens")
        pages = await asyncio.gather(*(scraped(operator) for _ in range(3)))
        assert {value(page, "kappa_database_up") for page in pages} == {0}
    assert await becomes(lambda: _up(operator))


async def _up(client: httpx2.AsyncClient) -> bool:
    return value(await scraped(client), "kappa_database_up") == 1


# Worker processes


def metrics_of(up: Up) -> Page:
    with up.client() as client:
        return parsed(client.get("/metrics").raise_for_status().text)


def test_what_worker_processes_count_is_on_the_page_of_their_server_also_when_one_was_killed(
    start_up: Callable[..., Up], home: Path
) -> None:
    left = home / "metrics" / "999999999"
    left.mkdir(parents=True)
    up = start_up("--workers", "2")
    assert not left.exists(), "what a killed server left is cleaned up by the next"
    (directory,) = (path for path in (home / "metrics").iterdir() if path.is_dir())

    def done(count: int) -> float | None:
        labels = {"kind": "self_test", "lane": "checks", "state": "succeeded"}
        return value(metrics_of(up), "kappa_job_outcomes_total", **labels) == count

    def run(count: int) -> None:
        with up.client() as client:
            for _ in range(count):
                client.post("/jobs", json={"kind": "self_test", "payload": {"steps": 1}}).raise_for_status()

    run(5)
    eventually(lambda: done(5), what="five outcomes on the page")
    page = metrics_of(up)
    assert value(page, "kappa_job_run_seconds_count", kind="self_test", lane="checks") == 5
    assert (value(page, "kappa_pool_connections_max", pool="worker queue") or 0) >= 2
    eventually(lambda: value(metrics_of(up), "kappa_leader") == 1, what="one of them leads")
    killed = next(path for path in directory.glob("*.json") if Counts.load(path.read_text()).counters)
    os.kill(int(killed.stem), signal.SIGKILL)
    # Its file is read once more and goes; the counts stay.
    eventually(lambda: done(5) and not killed.exists(), what="a file that is gone")
    run(2)
    eventually(lambda: done(7), what="seven outcomes on the page")
    assert up.stop() == 0
    assert not directory.exists()


COUNTING = """
    import asyncio, sys
    from pathlib import Path
    from kappa.app import counts
    from kappa.engine.signals import Signals

    async def main():
        signals = Signals()
        async with counts.shared(Path(sys.argv[1]), signals, list):
            for _ in range(int(sys.argv[2])):
                signals.emit("claimed", job=1, kind="a", lane="b", waited=0.5)
            signals.emit("leading")
            print("counted", flush=True)
            await asyncio.to_thread(sys.stdin.readline)

    asyncio.run(main())
"""


def test_the_last_count_of_a_process_that_ends_is_kept_and_added_once(tmp_path: Path) -> None:
    shared = SharedCounts(tmp_path)
    key = ("kappa_job_attempts", ("a", "b"))
    with Script(COUNTING, tmp_path, 3) as first, Script(COUNTING, tmp_path, 4) as second:
        assert (first.line(), second.line()) == ("counted", "counted")
        first.tell()
        first.end()
        eventually(lambda: shared.now().counters.get(key) == 7)
        assert shared.now().leads, "the second one still does"
        second.tell()
        second.end()
        for _ in range(3):
            now = shared.now()
            assert (now.counters[key], now.leads, sum(now.spreads["kappa_job_wait_seconds", ("a", "b")].counts)) == (
                *(7, False),
                7,
            )
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_frozen_does_not_count_as_the_leader(tmp_path: Path) -> None:
    shared = SharedCounts(tmp_path)
    written = tmp_path / f"{os.getpid()}.json"
    written.write_text(Counts(leads=True).dump())
    assert shared.now().leads
    os.utime(written, (0, 0))
    assert not shared.now().leads


def test_counts_are_the_same_after_a_way_through_a_file() -> None:
    counted = EngineCounts()
    counted.hear("claimed", {"job": 1, "kind": "a", "lane": "b", "waited": 0.5})
    counted.hear("reaped", {"count": 3})
    assert Counts.load(counted.now().dump()).dump() == counted.now().dump()


def test_what_was_so_in_a_process_that_is_gone_is_so_no_more(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    said = Counts({("happened", ("x",)): 2}, gauges={("is so", ("x",)): 1})
    for pid in (gone.pid, os.getpid()):
        (tmp_path / f"{pid}.json").write_text(said.dump())
    shared = SharedCounts(tmp_path)
    for _ in range(2):
        now = shared.now()
        assert (now.counters["happened", ("x",)], now.gauges["is so", ("x",)]) == (4, 1)


async def test_a_worker_process_shares_what_it_asked_of_providers(tmp_path: Path) -> None:
    async with counts.shared(tmp_path, Signals(), list):
        await asyncio.to_thread(ask_a_provider)
    said = Counts.load(await asyncio.to_thread((tmp_path / f"{os.getpid()}.json").read_text))
    assert said.counters["kappa_provider_calls", ("openai", "answered")] >= 2
    assert said.gauges["kappa_provider_calls_limit", ("openai",)] == 8


# The pages that speak of them


SUFFIX = re.compile(r"_(bucket|count|sum)$")


def names(page: Page) -> set[str]:
    """The names that a page has, as a query would say them."""
    return {name for name, _ in page if name.startswith("kappa_")}


def ask_a_provider() -> None:
    """One good answer and one that is none."""
    with ProviderServer() as server:
        config = ProviderConfig(model="gpt-4.1-mini", base_url=f"{server.url}/v1", key=KEY)
        extractor = make("openai", config)
        extractor.extract("A lease prevents double work.")
        server.steps.append(Said("Good morning!"))
        with pytest.raises(BadExtraction):
            extractor.extract("A lease prevents double work.")
        extractor.close()


async def everything(site: Site, engine: Engine, operator: httpx2.AsyncClient) -> Page:
    """A page with every metric on it, also those that have no series until something goes wrong."""
    await enqueue(site, "quick")
    await drain(engine, FOLLOWER)
    for name in ("lease_lost", "adopted"):
        engine.signals.emit(name, job=1, kind="quick", lane="here")
    await operator.get("/healthz")
    _, epoch = await worlds.populate(operator)
    for question in ({"seeds": ["Otter"]}, {"seeds": ["Yeti"]}):
        await operator.post("/query/neighbors", json={**question, "min_epoch": epoch})
    await operator.post("/query/search", json={"like": "Otter", "min_epoch": epoch})
    await asyncio.to_thread(ask_a_provider)
    return await becomes(lambda: _with_vectors(operator), what="the embeddings are in memory")


async def test_every_metric_of_the_dashboard_is_on_the_page(
    site: Site, engine: Engine, operator: httpx2.AsyncClient
) -> None:
    dashboard = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    asked = {name for panel in panels for one in panel["targets"] for name in re.findall(r"kappa_\w+", one["expr"])}
    assert asked - names(await everything(site, engine, operator)) == set()
    assert len(asked) > 15
    (variable,) = [one for one in dashboard["templating"]["list"] if one["type"] == "datasource"]
    assert {panel["datasource"]["uid"] for panel in panels} == {"${" + variable["name"] + "}"}
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


async def test_the_document_lists_every_metric_with_its_labels_and_no_other(
    site: Site, engine: Engine, operator: httpx2.AsyncClient
) -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(kappa_\w+)` \| (\w+) \|([^|]*)\|", text, re.MULTILINE)
    documented = {(name, kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    await everything(site, engine, operator)
    await operator.post("/fleet/v1/beat", json={"worker": "w1"})
    answer = await operator.get("/metrics")
    there = {
        (sample.name if family.type == "counter" else family.name, family.type, frozenset(sample.labels) - {"le"})
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.name.startswith("kappa_")
    }
    assert documented == there
