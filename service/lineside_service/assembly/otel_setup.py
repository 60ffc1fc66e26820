"""OpenTelemetry as the OTEL_* variables ask for it: sampler, exporters, the reader behind /metrics."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind

from lineside_service.assembly.durations import reader_with
from lineside_service.assembly.span_queue import SpanLoad, SpanQueue
from lineside_service.config import OtelEnvironment
from lineside_service.edge.durations import CallDurations

if TYPE_CHECKING:
    from opentelemetry.propagators.textmap import TextMapPropagator
    from prometheus_client import CollectorRegistry

SHUTDOWN_LIMIT_S = 0.8
"""What an unreachable collector may add to the service's exit, in all (seconds)."""
_ORDERLY_SHARE = 0.6


class OtelError(Exception):
    """An OTEL_* variable asks for something that cannot be had; the text says what can."""


class _Closing(Protocol):
    def shutdown(self) -> None: ...


class RootTraces(RandomIdGenerator):
    """Ids of new traces, and the sampler's word on them before a span is made (edge.spans.Roots).

    The id that the sampler has judged goes to the next span that the tracer makes: it judges it again.
    """

    sampler: Sampler

    def __init__(self) -> None:
        self._judged = 0
        self._bound: int | None = None

    def judge_by(self, sampler: Sampler) -> None:
        """Ask this sampler; a share of the ids is told from their bound, at a tenth of the cost."""
        self.sampler = sampler
        root = sampler._root if isinstance(sampler, ParentBased) else sampler  # noqa: SLF001
        if type(root) is TraceIdRatioBased:
            self._bound = root.bound
        else:
            self._bound = 0 if root is ALWAYS_OFF else None

    def generate_trace_id(self) -> int:
        """The id that was judged, or a new one."""
        judged, self._judged = self._judged, 0
        return judged or super().generate_trace_id()

    def left_out(self, name: str, attributes: Mapping[str, str]) -> Span | None:
        """See Roots."""
        trace_id = super().generate_trace_id()
        if self._is_sampled(trace_id, name, attributes):
            self._judged = trace_id
            return None
        return NonRecordingSpan(SpanContext(trace_id, self.generate_span_id(), is_remote=False))

    def _is_sampled(self, trace_id: int, name: str, attributes: Mapping[str, str]) -> bool:
        if self._bound is not None:
            return (trace_id & TraceIdRatioBased.TRACE_ID_LIMIT) < self._bound
        said = self.sampler.should_sample(None, trace_id, name, SpanKind.SERVER, attributes)
        return bool(said.decision is not Decision.DROP)


@dataclass(kw_only=True)
class Observability:
    """The providers of this process, and how they end. roots: judges traces that begin here.

    propagator: reads a caller's context, as OTEL_PROPAGATORS says. metrics: the registry behind /metrics,
    None without an admin port. exports: what the variables asked for, in words, for the start-up line.
    """

    tracers: TracerProvider
    roots: RootTraces
    meters: MeterProvider
    propagator: TextMapPropagator
    metrics: CollectorRegistry | None
    span_queues: list[SpanQueue] = field(default_factory=list)
    metric_exporters: list[_Closing] = field(default_factory=list)
    exports: str = ""

    @property
    def is_parent_based(self) -> bool:
        """Whether what a caller has not sampled is not sampled here either."""
        sampler = self.tracers.sampler
        return sampler is ALWAYS_OFF or isinstance(sampler, ParentBased)

    def span_load(self) -> SpanLoad:
        """Of all span queues together."""
        return sum((queue.load for queue in self.span_queues), SpanLoad())

    def shutdown(self, limit_s: float = SHUTDOWN_LIMIT_S) -> int:
        """Send what is queued and end within `limit_s` seconds, whatever the collector does; blocks.

        Returns how many spans were lost since start. The SDK's own shutdown waits 30 s for a dead collector,
        so after a first share of the time the exporters are told to give up.
        """
        end = time.monotonic() + limit_s
        closing = _in_background(self.tracers.shutdown, self.meters.shutdown)
        _join(closing, time.monotonic() + limit_s * _ORDERLY_SHARE)
        if any(thread.is_alive() for thread in closing):
            give_up = [queue.give_up for queue in self.span_queues]
            closing += _in_background(*give_up, *(exporter.shutdown for exporter in self.metric_exporters))
            _join(closing, end)
        return sum(queue.undelivered for queue in self.span_queues)


def set_up_otel(
    env: OtelEnvironment,
    durations: CallDurations,
    *,
    service: str,
    version: str,
    instance: str,
    prometheus: bool,
) -> Observability:
    """Make the providers; every reader of metrics gets the durations of RPCs too.

    Exporters come only when the variables name them; OtelError when they cannot.

    Without a span exporter nothing is sampled: trace ids still exist (answers and logs carry them), recording
    costs nothing. The sampler is the SDK's own reading of OTEL_TRACES_SAMPLER, parent-based by default.
    """
    named = {
        "service.name": env.named or service,
        "service.version": version,
        "service.instance.id": instance,
    }
    resource = Resource.create(named)
    queues = [_span_queue(name, env) for name in _wanted(env, "traces")]
    roots = RootTraces()
    tracers = TracerProvider(
        resource=resource,
        shutdown_on_exit=False,
        sampler=None if queues else ALWAYS_OFF,
        id_generator=roots,
    )
    roots.judge_by(tracers.sampler)
    for queue in queues:
        tracers.add_span_processor(queue)
    readers, metric_exporters, registry = _metric_readers(env, durations, prometheus=prometheus)
    meters = MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False)
    where = {
        "traces": "+".join(_wanted(env, "traces")),
        "metrics": "+".join([*(["prometheus"] if prometheus else []), *_wanted(env, "metrics")]),
    }
    return Observability(
        tracers=tracers,
        roots=roots,
        meters=meters,
        propagator=_propagator(env),
        metrics=registry,
        span_queues=queues,
        metric_exporters=metric_exporters,
        exports="telemetry off"
        if env.is_disabled
        else ", ".join(f"{what} {to or 'off'}" for what, to in where.items()),
    )


def _propagator(env: OtelEnvironment) -> TextMapPropagator:
    """What the API makes of OTEL_PROPAGATORS; it reads it at its import, and only says ValueError."""
    if env.propagators:
        known = {entry.name for entry in entry_points(group="opentelemetry_propagator")}
        for name in (said.strip() for said in env.propagators.split(",")):
            if name.lower() != "none" and name not in known:
                raise OtelError(
                    f'OTEL_PROPAGATORS: "{name}" is not available; {_quoted(sorted({"none", *known}))} are. '
                    "Others come with packages of their own, such as opentelemetry-propagator-b3"
                )
    from opentelemetry.propagate import get_global_textmap

    return get_global_textmap()


def _quoted(names: Sequence[str]) -> str:
    *most, last = (f'"{name}"' for name in names)
    return f"{', '.join(most)} and {last}"


def _wanted(env: OtelEnvironment, signal: str) -> list[str]:
    """Which exporters a signal gets."""
    if env.is_disabled:
        return []
    said = getattr(env, f"{signal}_exporter").strip()
    if not said:
        endpoint = env.exporter_otlp_endpoint or getattr(env, f"exporter_otlp_{signal}_endpoint")
        return ["otlp"] if endpoint else []
    names = [name.strip() for name in said.split(",")]
    return [name for name in names if name not in ("none", "prometheus", "")]


def _span_queue(name: str, env: OtelEnvironment) -> SpanQueue:
    exporter = _span_exporter(name, env)
    try:
        return SpanQueue(exporter)
    except ValueError as error:
        raise OtelError(f"OTEL_BSP_*: {error}") from None


def _span_exporter(name: str, env: OtelEnvironment) -> SpanExporter:
    if name == "otlp":
        exporter: SpanExporter = _otlp(env, "traces", "trace_exporter", "OTLPSpanExporter")
        return exporter
    if name == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter()
    raise OtelError(f'OTEL_TRACES_EXPORTER: "{name}" is not known; "otlp", "console" and "none" are')


def _metric_readers(
    env: OtelEnvironment, durations: CallDurations, *, prometheus: bool
) -> tuple[list[MetricReader], list[_Closing], CollectorRegistry | None]:
    readers: list[MetricReader] = []
    closing: list[_Closing] = []
    registry = None
    if prometheus:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from prometheus_client import CollectorRegistry, ProcessCollector

        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        readers.append(reader_with(durations, PrometheusMetricReader, registry=registry))
    for name in _wanted(env, "metrics"):
        from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader

        if name not in ("otlp", "console"):
            raise OtelError(f'OTEL_METRICS_EXPORTER: "{name}" is not known; "otlp", "console" and "none" are')
        exporter = (
            _otlp(env, "metrics", "metric_exporter", "OTLPMetricExporter")
            if name == "otlp"
            else ConsoleMetricExporter()
        )
        closing.append(exporter)
        try:
            readers.append(reader_with(durations, PeriodicExportingMetricReader, exporter))
        except ValueError as error:
            raise OtelError(f"OTEL_METRIC_EXPORT_*: {error}") from None
    return readers, closing, registry


def _otlp(env: OtelEnvironment, signal: str, module: str, name: str) -> Any:
    import importlib

    protocol = getattr(env, f"exporter_otlp_{signal}_protocol") or env.exporter_otlp_protocol or "grpc"
    packages = {"grpc": "grpc", "http/protobuf": "http"}
    if protocol not in packages:
        raise OtelError(
            f'OTEL_EXPORTER_OTLP_PROTOCOL: "{protocol}" is not known; {" and ".join(packages)} are'
        )
    package = packages[protocol]
    try:
        found = importlib.import_module(f"opentelemetry.exporter.otlp.proto.{package}.{module}")
    except ImportError:
        distribution = f"opentelemetry-exporter-otlp-proto-{package}"
        raise OtelError(f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol} needs the package {distribution}") from None
    return getattr(found, name)()


def _in_background(*steps: Callable[[], object]) -> list[threading.Thread]:
    threads = [threading.Thread(target=step, name="telemetry-shutdown", daemon=True) for step in steps]
    for thread in threads:
        thread.start()
    return threads


def _join(threads: list[threading.Thread], until: float) -> None:
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
