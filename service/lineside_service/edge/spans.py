"""The SERVER span and the duration of an RPC, with the caller's trace as parent.

Made on opentelemetry-api alone: the contrib gRPC instrumentation misreports errors of grpc.aio and breaks
cancellation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter, TextMapPropagator
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from lineside_service.core.call import Answer
from lineside_service.core.errors import KIND_RULES, Failure
from lineside_service.edge import semconv
from lineside_service.edge.durations import CallDurations

if TYPE_CHECKING:
    from lineside_service.engine.telemetry import Log

Metadata = Sequence[tuple[str, str | bytes]]

_W3C: Final = TraceContextTextMapPropagator()


class _FromMetadata(Getter[Metadata]):
    """Reads trace headers from gRPC metadata; binary values are none."""

    def get(self, carrier: Metadata, key: str) -> list[str] | None:
        return [value for name, value in carrier if name == key and isinstance(value, str)] or None

    def keys(self, carrier: Metadata) -> list[str]:
        return [name for name, _ in carrier]


_METADATA: Final = _FromMetadata()
_TRACEPARENT: Final = ["traceparent"]
_PLAIN: Final = re.compile("00-([0-9a-f]{32})-([0-9a-f]{16})-0([01])").fullmatch


@dataclass(slots=True)
class RpcTrace:
    """One RPC's span and the context of its work. has_caller: the caller sent a trace context.

    is_left_out: a sampler has decided that nothing of this trace is recorded.
    """

    span: Span
    context: Context
    has_caller: bool
    is_left_out: bool = False
    _trace_id: str | None = None

    @property
    def trace_id(self) -> str:
        """32 hex digits; empty when there is no trace."""
        if self._trace_id is None:
            self._trace_id = trace_id_of(self.span)
        return self._trace_id

    def ran(self, reply: Answer | Failure) -> None:
        """Say which execution gave the reply: of a joined or replayed call it is in another trace."""
        if not self.is_left_out:
            _note_execution(self.span, reply)


@dataclass(slots=True)
class ItemTrace:
    """The trace of one call inside an RPC; never changed. span: None when it is not recorded."""

    span: Span | None
    context: Context
    trace_id: str

    @property
    def is_left_out(self) -> bool:
        """Whether nothing of this trace is recorded."""
        return self.span is None

    def ran(self, reply: Answer | Failure) -> None:
        """See RpcTrace."""
        if self.span is not None:
            _note_execution(self.span, reply)

    def end(self, failure: Failure | None) -> None:
        """End the span; a refusal says so as that of an RPC would."""
        span = self.span
        if span is None:
            return
        if failure is not None and span.is_recording():
            code = KIND_RULES[failure.kind].code.name
            _note_failure(span, failure)
            span.set_attribute(semconv.RPC_STATUS, code)
            if code in semconv.SERVER_ERRORS:
                span.set_attribute(semconv.ERROR_TYPE, code)
                span.set_status(Status(StatusCode.ERROR))
        span.end()


class Roots(Protocol):
    """Decides which traces that begin here are recorded."""

    def left_out(self, name: str, attributes: Mapping[str, str]) -> Span | None:
        """A span that only names its trace, or None when the next one of the tracer's is to be recorded."""
        ...


class EdgeTelemetry:
    """Starts and ends the telemetry of RPCs and batch items.

    propagator: reads the caller's context from metadata (OTEL_PROPAGATORS is main's to honour).
    is_parent_based: the sampler leaves out whatever a caller has left out, so that no span need be made.
    roots: decides the same of traces that begin here; without it the tracer is asked, at 9 us a time.
    """

    def __init__(
        self,
        *,
        tracer: Tracer,
        durations: CallDurations,
        propagator: TextMapPropagator,
        log: Log,
        is_parent_based: bool = True,
        roots: Roots | None = None,
    ) -> None:
        self._tracer = tracer
        self._propagator = propagator
        self._is_parent_based = is_parent_based
        self._roots = roots
        self._fields = frozenset(propagator.fields)
        self.log = log
        self._durations = durations
        self._starts: dict[str, Mapping[str, str]] = {}

    def begin(self, method: str, metadata: Metadata, peer: Callable[[], str]) -> RpcTrace:
        """Start the SERVER span of an RPC. method: `package.Service/Method`, no slash first."""
        caller = self._caller(metadata)
        above = trace.get_current_span(caller).get_span_context()
        if self._is_parent_based and above.is_valid and not above.trace_flags.sampled:
            return RpcTrace(trace.get_current_span(caller), caller, has_caller=True, is_left_out=True)
        attributes = self._starts.get(method)
        if attributes is None:
            attributes = {semconv.RPC_SYSTEM: semconv.GRPC, semconv.RPC_METHOD: method}
            self._starts[method] = attributes
        if not above.is_valid and self._roots is not None:
            left_out = self._roots.left_out(method, attributes)
            if left_out is not None:
                context = trace.set_span_in_context(left_out, caller)
                return RpcTrace(left_out, context, has_caller=False, is_left_out=True)
        span = self._tracer.start_span(method, caller, SpanKind.SERVER, attributes)
        if span.is_recording():
            _note_peer(span, peer())
        return RpcTrace(span, trace.set_span_in_context(span, caller), above.is_valid)

    def end(self, rpc: RpcTrace, method: str, code: str, elapsed_s: float, failure: Failure | None) -> None:
        """End the span and record the duration, once for each RPC. failure: what it ended with, if any."""
        self._durations.record(method, code, elapsed_s)
        span = rpc.span
        if span.is_recording():
            span.set_attribute(semconv.RPC_STATUS, code)
            if failure is not None:
                _note_failure(span, failure)
            if code in semconv.SERVER_ERRORS:
                span.set_attribute(semconv.ERROR_TYPE, code)
                span.set_status(Status(StatusCode.ERROR))
        span.end()

    def begin_item(self, name: str, item_id: str, own: Context | None, around: RpcTrace) -> ItemTrace:
        """The span of one call inside an RPC: below its own trace with a link to the RPC's, or below that.

        No span object is made when the parent is not sampled: then nothing below it is recorded either.
        name: the tool's, empty when there is no such tool (what callers make up must not name spans).
        """
        if own is None and around.is_left_out:
            return ItemTrace(None, around.context, around.trace_id)
        parent = around.context if own is None else own
        above = trace.get_current_span(parent)
        found = above.get_span_context()
        if found.is_valid and not found.trace_flags.sampled:
            return ItemTrace(None, parent, trace_id_of(above))
        links = None if own is None else [Link(around.span.get_span_context())]
        attributes = {semconv.ITEM_ID: item_id} if item_id else {}
        if name:
            attributes[semconv.TOOL_NAME] = name
        span = self._tracer.start_span(
            f"dispatch {name}" if name else "dispatch", parent, SpanKind.INTERNAL, attributes, links
        )
        return ItemTrace(span, trace.set_span_in_context(span, parent), trace_id_of(span))

    def _caller(self, metadata: Metadata) -> Context:
        fields = [key for key, _ in metadata if key in self._fields]
        if fields == _TRACEPARENT:
            plain = _plain_context(next(value for key, value in metadata if key == "traceparent"))
            if plain is not None:
                return plain
        return self._propagator.extract(metadata, Context(), _METADATA) if fields else Context()


def _plain_context(traceparent: str | bytes) -> Context | None:
    """What most callers send, read at a fifth of the propagator's 6 us; None: let the propagator say."""
    found = _PLAIN(traceparent) if isinstance(traceparent, str) else None
    if found is None:
        return None
    trace_id, span_id = int(found[1], 16), int(found[2], 16)
    if not trace_id or not span_id:
        return None
    caller = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(int(found[3])))
    return trace.set_span_in_context(NonRecordingSpan(caller), Context())


def own_context(traceparent: str, tracestate: str) -> Context | None:
    """The context that a call's own trace fields name; None when they are empty or not valid."""
    if not traceparent:
        return None
    carrier = {"traceparent": traceparent, "tracestate": tracestate if len(tracestate) <= 512 else ""}
    context = _W3C.extract(carrier, Context())
    return context if trace.get_current_span(context).get_span_context().is_valid else None


def trace_id_of(span: Span) -> str:
    """32 hex digits of the span's trace; empty when there is none."""
    found = span.get_span_context()
    return f"{found.trace_id:032x}" if found.is_valid else ""


def _note_failure(span: Span, failure: Failure) -> None:
    """Why there is no answer, as core decided it."""
    span.set_attribute(semconv.KIND, failure.kind.value)
    span.set_attribute(semconv.REASON, failure.reason_token)
    if failure.stopped_by:
        span.set_attribute(semconv.STOPPED_BY, failure.stopped_by)


def _note_execution(span: Span, reply: Answer | Failure) -> None:
    if reply.source is not None:
        span.set_attribute(semconv.SOURCE, reply.source.value)
    if reply.call_id:
        span.set_attribute(semconv.CALL_ID, reply.call_id)


def _note_peer(span: Span, peer: str) -> None:
    """Grpc's peer text (`ipv4:127.0.0.1:50051`, `ipv6:%5B::1%5D:50051`, `unix:…`) as attributes."""
    family, _, rest = peer.partition(":")
    address, _, port = rest.rpartition(":")
    if family not in {"ipv4", "ipv6"} or not port.isdecimal():
        return
    span.set_attribute(semconv.PEER_ADDRESS, address.replace("%5B", "").replace("%5D", "").strip("[]"))
    span.set_attribute(semconv.PEER_PORT, int(port))
