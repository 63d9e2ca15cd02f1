"""Spans of requests and attempts, as a collector gets them."""

import gzip
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from kappa.app import wiring
from kappa.app.api import application
from kappa.app.api.middleware import Guard
from kappa.app.services import open_services
from kappa.app.settings import Settings
from kappa.engine import AsyncJobContext, JobContext, JobFailed, Lane, WorkerConfig
from kappa.engine.testing import Heard, drain, working
from kappa.pg import Database
from tests.app.conftest import Site, Up
from tests.app.patience import begun
from tests.ground import eventually, kg
from tests.leases import lose_lease

FOLLOWER = WorkerConfig(lead=False, grace=timedelta(seconds=5))


class Collector:
    """An OTLP collector on loopback."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        self.paths: set[str] = set()
        collector = self

        class Receives(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.take(self.path, ExportTraceServiceRequest.FromString(body))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_request(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Receives)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def take(self, path: str, request: ExportTraceServiceRequest) -> None:
        self.paths.add(path)
        for resource in request.resource_spans:
            self.services |= {a.value.string_value for a in resource.resource.attributes if a.key == "service.name"}
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def attributes(span: Span) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value") or "") for one in span.attributes}


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """Closed by the test, as the spans that are left are sent then."""
    async with AsyncExitStack() as made:
        yield made


async def served(url: str, home: Path, collector: Collector, stack: AsyncExitStack) -> Site:
    settings = Settings(home=home, otel_endpoint=collector.url)
    engine = wiring.build_engine(settings, Database(url, bounds=settings.bounds))
    guard = Guard()
    stack.callback(engine.close)
    services = await stack.enter_async_context(open_services(settings, engine))
    return Site(services, engine, guard, application.build(services, guard), stack)


async def test_a_request_is_a_span_with_its_route_and_status(
    url: str, home: Path, collector: Collector, stack: AsyncExitStack
) -> None:
    site = await served(url, home, collector, stack)
    client = await site.client()
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    headers = {"traceparent": f"00-{trace}-{parent}-01", "X-Request-Id": "mine"}
    await client.get("/jobs/4711?q=hunter2", headers=headers)
    await client.get("/healthz")
    await stack.aclose()
    (span,) = collector.named("GET /jobs/{job_id}")
    assert attributes(span) == {
        "http.request.method": "GET", "http.route": "/jobs/{job_id}", "http.response.status_code": 404,
        "kappa.request_id": "mine",
    }  # fmt: skip
    assert (span.kind, span.trace_id.hex(), span.parent_span_id.hex()) == (Span.SPAN_KIND_SERVER, trace, parent)
    assert span.end_time_unix_nano > span.start_time_unix_nano
    (health,) = collector.named("GET /healthz")
    assert (health.parent_span_id, health.trace_id.hex() == trace) == (b"", False)
    assert (collector.services, collector.paths) == ({"kappa"}, {"/v1/traces"})


async def test_an_attempt_is_a_span_with_its_outcome(
    url: str, home: Path, collector: Collector, stack: AsyncExitStack
) -> None:
    site = await served(url, home, collector, stack)

    @site.engine.job("good")
    async def good(ctx: AsyncJobContext) -> None: ...

    @site.engine.job("bad")
    def bad(ctx: JobContext) -> None:
        raise JobFailed("it is bad", retry=False)

    site.engine.lane(Lane("here", kinds=("good", "bad"), max_slots=2))
    site.engine.install()
    jobs = {kind: (await site.services.client.enqueue(kind)).id for kind in ("good", "bad")}
    await drain(site.engine, FOLLOWER)
    await stack.aclose()
    for kind, outcome, status in [("good", "succeeded", Status.STATUS_CODE_UNSET), ("bad", "failed", 2)]:
        (span,) = collector.named(f"job {kind}")
        assert attributes(span) == {
            "kappa.job.id": jobs[kind], "kappa.job.kind": kind, "kappa.job.attempt": 1, "kappa.job.lane": "here",
            "kappa.job.outcome": outcome,
        }  # fmt: skip
        assert (span.kind, span.status.code) == (Span.SPAN_KIND_CONSUMER, status)
        assert 0 < span.end_time_unix_nano - span.start_time_unix_nano < 60e9


async def test_an_attempt_that_lost_its_lease_is_a_span_too_and_its_adoption_is_none(
    url: str, home: Path, collector: Collector, stack: AsyncExitStack
) -> None:
    site = await served(url, home, collector, stack)
    go_on = threading.Event()

    @site.engine.job("held", idempotent=True)
    def held(ctx: JobContext) -> None:
        go_on.wait(30)

    site.engine.lane(Lane("here", kinds=("held",), max_slots=1, lease_ttl=timedelta(seconds=1)))
    site.engine.install()
    job = (await site.services.client.enqueue("held")).id
    heard = Heard(site.engine)
    async with working(site.engine, FOLLOWER):
        await begun(site.services.client, job)
        await lose_lease(site.engine, job)
        await heard.until("lease_lost", job=job)
        go_on.set()
        await heard.until("adopted", job=job)
    await stack.aclose()
    assert attributes(collector.named("job held")[0])["kappa.job.outcome"] == "lease_lost"
    assert len(collector.named("job held")) == len(heard.all("lease_lost")) + len(heard.all("settled", adopted=False))


def test_a_server_and_its_worker_processes_send_their_spans(start_up: Callable[..., Up], collector: Collector) -> None:
    up = start_up("--workers", "1", env={"KAPPA_OTEL_ENDPOINT": collector.url})
    with up.client() as client:
        client.post("/jobs", json={"kind": "self_test", "payload": {"steps": 1}}).raise_for_status()
        eventually(lambda: client.get("/jobs/1").json()["state"] == "succeeded", within=60, what="a job that is done")
    assert up.stop() == 0
    (span,) = collector.named("job self_test")
    assert attributes(span)["kappa.job.outcome"] == "succeeded"
    assert collector.named("POST /jobs")


async def test_a_collector_that_is_away_costs_nobody_an_answer(
    url: str, home: Path, collector: Collector, stack: AsyncExitStack
) -> None:
    collector.close()
    site = await served(url, home, collector, stack)
    assert (await (await site.client()).get("/me")).status_code == 200


def test_without_the_packages_the_error_names_the_extra(url: str, home: Path, tmp_path: Path) -> None:
    # The API alone is there, as the MCP SDK brings it along.
    lacking = "import sys; sys.modules['opentelemetry.exporter'] = sys.modules['opentelemetry.sdk'] = None\n"
    (tmp_path / "sitecustomize.py").write_text(lacking)
    env = {"KAPPA_DATABASE_URL": url, "KAPPA_OTEL_ENDPOINT": "http://127.0.0.1:1", "PYTHONPATH": str(tmp_path)}
    done = kg("up", "--port", "0", home=home, env=env)
    assert done.returncode == 1
    clear = r"kg: KAPPA_OTEL_ENDPOINT is set, but opentelemetry[.\w]* is missing: spans need the extra kappa\[otel\]"
    assert re.fullmatch(clear, done.stderr.strip()), done.stderr


def test_an_endpoint_that_is_no_address_is_a_wrong_setting(home: Path) -> None:
    done = kg("up", home=home, env={"KAPPA_OTEL_ENDPOINT": "collector:4318"})
    assert (done.returncode, done.stderr.startswith("kg: KAPPA_OTEL_ENDPOINT is 'collector:4318'")) == (1, True)


def test_without_the_setting_the_packages_are_not_even_imported() -> None:
    program = "import kappa.app.serve, sys; sys.exit(any(name.startswith('opentelemetry.sdk') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
