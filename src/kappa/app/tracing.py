"""OpenTelemetry spans of requests and of attempts, sent by OTLP over HTTP where `KAPPA_OTEL_ENDPOINT` says.

A span is made when what it is about has ended, out of facts that are known anyway: nothing is carried around while
work goes on, and a server without the setting doesn't even import the packages. They are sent by a thread; a
collector that is away costs the spans, nobody's time.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from kappa.app.answered import Answered
from kappa.app.errors import AppError
from kappa.engine import JobState
from kappa.engine.signals import Signals

if TYPE_CHECKING:
    from opentelemetry.trace import SpanKind

EXPORT_WITHIN = 5.0
"""Seconds that one try to send may take, and that the end of a server waits for the last."""
FAILED = frozenset({JobState.FAILED, JobState.TIMED_OUT, "lease_lost"})


class TracingUnavailable(AppError):
    """Spans are asked for and the packages are not there."""


class Tracing:
    """Makes spans."""

    def __init__(self, endpoint: str) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ModuleNotFoundError as error:
            raise TracingUnavailable(
                f"KAPPA_OTEL_ENDPOINT is set, but {error.name} is missing: spans need the extra kappa[otel]"
            ) from None
        self._trace = trace
        base = endpoint.rstrip("/")
        exporter = OTLPSpanExporter(base if base.endswith("/v1/traces") else f"{base}/v1/traces", timeout=EXPORT_WITHIN)
        resource = Resource.create({"service.name": "kappa", "service.version": version("kappa")})
        # Not the global provider: that is for handlers, who may have one of their own.
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("kappa", version("kappa"))
        self._callers = TraceContextTextMapPropagator()

    def answered(self, one: Answered) -> None:
        """A request is over."""
        attributes = {
            "http.request.method": one.method,
            "http.route": one.route,
            "http.response.status_code": one.status,
            "kappa.request_id": one.request_id,
        }
        end = one.begun + int(one.seconds * 1e9)
        failed = one.status >= 500 or not one.status
        name = f"{one.method} {one.route}"
        self._span(name, self._trace.SpanKind.SERVER, one.begun, end, attributes, failed=failed, headers=one.headers)

    def hear(self, name: str, facts: dict[str, Any]) -> None:
        """A subscriber of `Signals`: an attempt that ran here has ended."""
        if name == "lease_lost":
            outcome = name
        elif name == "settled" and not facts["adopted"]:
            outcome = str(facts["state"])
        else:
            return
        attributes = {
            "kappa.job.id": facts["job"],
            "kappa.job.kind": facts["kind"],
            "kappa.job.attempt": facts["attempt"],
            "kappa.job.lane": facts["lane"],
            "kappa.job.outcome": outcome,
        }
        end = time.time_ns()
        begun = end - int(facts["seconds"] * 1e9)
        kind = self._trace.SpanKind.CONSUMER
        self._span(f"job {facts['kind']}", kind, begun, end, attributes, failed=outcome in FAILED)

    def close(self) -> None:
        """Send what is left, for a while."""
        self._provider.force_flush(int(EXPORT_WITHIN * 1000))
        self._provider.shutdown()

    def _span(
        self,
        name: str,
        kind: "SpanKind",
        begun: int,
        end: int,
        attributes: Mapping[str, str | int],
        *,
        failed: bool,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        # Never the context that happens to be current here: that is the server's, or some handler's.
        context = self._callers.extract(headers or {}, context=_nothing())
        span = self._tracer.start_span(name, context, kind, attributes, start_time=begun)
        if failed:
            span.set_status(self._trace.StatusCode.ERROR)
        span.end(end)


def _nothing() -> Any:
    from opentelemetry.context import Context

    return Context()


@asynccontextmanager
async def opened(endpoint: str | None, signals: Signals) -> AsyncGenerator[Tracing | None]:
    """Spans while the block lasts; None, and no cost, without an endpoint."""
    if endpoint is None:
        yield None
        return
    tracing = Tracing(endpoint)
    stop = signals.subscribe(tracing.hear)
    try:
        yield tracing
    finally:
        stop()
        await asyncio.to_thread(tracing.close)
