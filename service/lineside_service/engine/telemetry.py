"""Spans per attempt and the engine's metrics: the one engine module that knows OpenTelemetry."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from opentelemetry import trace
from opentelemetry.context import Context, attach, get_current
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from lineside_service.core.breaker import BreakerState
from lineside_service.core.decision import Decision
from lineside_service.core.errors import Outcome
from lineside_service.core.tool import ToolKind
from lineside_service.engine.history import AttemptRecord
from lineside_service.engine.registry import RegisteredTool, Registry, ToolState


class Log(Protocol):
    """The part of a structlog logger that the engine uses."""

    def debug(self, event: str, **values: object) -> object:
        """What happens all the time: shown only to somebody who looks into it."""
        ...

    def info(self, event: str, **values: object) -> object:
        """Something that an operator may want to know."""
        ...

    def warning(self, event: str, **values: object) -> object:
        """Something that looks wrong and was dealt with."""
        ...

    def error(self, event: str, **values: object) -> object:
        """Something that needs a person."""
        ...


class Attempted(Protocol):
    """What telemetry may know of the call behind an attempt. now: loop time, seconds."""

    @property
    def registered(self) -> RegisteredTool:
        """Its tool."""
        ...

    @property
    def call_id(self) -> str:
        """Its id."""
        ...

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Never recorded, unless an operator has switched that on."""
        ...

    @property
    def now(self) -> float:
        """The moment."""
        ...


class Telemetry:
    """Makes the span of an attempt and remembers nothing. Argument values are never recorded."""

    def __init__(self, tracer: Tracer, log: Log) -> None:
        self._tracer = tracer
        self.log = log

    def attempt_started(self, work: Attempted, parent: object, record: AttemptRecord) -> Span | None:
        """A span `execute_tool {tool}`, or None when the caller's trace is not sampled.

        No span object at all is made then: two nested no-op spans cost as much as the slot and the breaker.
        """
        context = parent if isinstance(parent, Context) else None
        caller = trace.get_current_span(context).get_span_context()
        if caller.is_valid and not caller.trace_flags.sampled:
            return None
        spec = work.registered.spec
        why = {"dispatch.retry.reason": record.retry_reason} if record.retry_reason else {}
        return self._tracer.start_span(
            f"execute_tool {spec.name}",
            context=context,
            kind=SpanKind.INTERNAL if spec.kind is ToolKind.PYTHON else SpanKind.CLIENT,
            attributes={
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": spec.name,
                "gen_ai.tool.type": "function",
                "gen_ai.tool.call.id": work.call_id,
                "dispatch.attempt.number": record.number,
                "dispatch.backoff.ms": round(record.backoff_s * 1000, 3),
                "dispatch.circuit.state": work.registered.state.breaker.peek(work.now).value,
                "dispatch.source": "executed",
                **why,
            },
        )

    def context_of(self, span: Span | None, parent: object) -> contextvars.Context:
        """What a tool runs in: its own spans and calls go on under the attempt's span, or the caller's."""
        own = contextvars.copy_context()
        if span is not None:
            own.run(attach, trace.set_span_in_context(span, Context()))
        elif isinstance(parent, Context) and parent is not get_current():
            own.run(attach, parent)
        return own

    def attempt_ended(self, work: Attempted, span: Span | None, record: AttemptRecord) -> None:
        """Close the span of an attempt; its failure belongs here and never on the parent."""
        counters = work.registered.state.counters
        counters.attempts += 1
        counters.run_s += record.duration_s
        if record.number > 1:
            counters.retries += 1
        end = record.end
        if end is not None and end.kind is not None:
            self.log.debug(
                "dispatch.attempt",
                call_id=work.call_id,
                tool=work.registered.spec.name,
                number=record.number,
                kind=end.kind.value,
                outcome=end.outcome.value,
                duration_s=record.duration_s,
            )
        if span is None:
            return
        if end is None:
            span.set_status(Status(StatusCode.ERROR))
            span.set_attribute("error.type", "cancelled")
        elif end.kind is not None:
            span.set_status(Status(StatusCode.ERROR))
            span.set_attribute("error.type", end.kind.value)
            span.set_attribute("dispatch.kind", end.kind.value)
        elif end.tool_error:
            span.set_attribute("error.type", "tool_error")
        outcome = Outcome.UNKNOWN if end is None else end.outcome
        span.set_attribute("dispatch.outcome", outcome.value)
        span.end()

    def retry_decided(self, work: Attempted, decision: Decision) -> None:
        """Another attempt will follow, after `wait_s` seconds."""
        self.log.debug(
            "dispatch.retry",
            call_id=work.call_id,
            tool=work.registered.spec.name,
            reason=decision.reason,
            **decision.numbers,
        )


_CIRCUIT: dict[BreakerState, int] = {
    BreakerState.CLOSED: 0,
    BreakerState.HALF_OPEN: 1,
    BreakerState.OPEN: 2,
}
Reader = Callable[[ToolState, float], float]
"""Reads one number of a tool at a loop time."""

_COUNTERS: tuple[tuple[str, str, str, Reader], ...] = (
    ("dispatch.attempts", "{attempt}", "Attempts ended", lambda s, _: s.counters.attempts),
    ("dispatch.retries", "{attempt}", "Attempts that followed another", lambda s, _: s.counters.retries),
    ("dispatch.run.time", "s", "Time spent in attempts", lambda s, _: s.counters.run_s),
    ("dispatch.late.completions", "{attempt}", "Given-up attempts that ended", lambda s, _: s.counters.late),
)
_GAUGES: tuple[tuple[str, str, str, Reader], ...] = (
    ("dispatch.slots.running", "{attempt}", "Slots held", lambda s, _: s.gate.slots.running),
    ("dispatch.slots.usable", "{attempt}", "Slots that may be held", lambda s, _: s.gate.slots.usable),
    ("dispatch.slots.waiting", "{call}", "Calls that wait for a slot", lambda s, _: s.gate.slots.waiting),
    ("dispatch.slots.overflow", "{call}", "Batch items before the list", lambda s, _: s.gate.slots.overflow),
    ("dispatch.slots.abandoned", "{attempt}", "Given up, still running", lambda s, _: s.gate.slots.abandoned),
    (
        "dispatch.retry.budget",
        "{attempt}",
        "Retries allowed just now",
        lambda s, now: s.retry_budget.left(now),
    ),
    (
        "dispatch.circuit.state",
        "1",
        "0 closed, 1 half-open, 2 open",
        lambda s, now: _CIRCUIT[s.breaker.peek(now)],
    ),
)


def observe_engine(
    meter: Meter,
    registry: Registry,
    now: Callable[[], float],
    *,
    in_flight: Callable[[], int],
    unknown: Callable[[], int],
    unwritten: Callable[[], int],
) -> None:
    """Register the instruments that read the engine's plain integers when a reader asks.

    Labels are the tool's name, and for `dispatch.calls` the kind (`ok` when answered) and the source; never
    an id or a tenant.
    """

    def of(read: Reader) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: [
            Observation(read(t.state, now()), {"gen_ai.tool.name": t.spec.name})
            for t in registry.everything()
        ]

    def endings(_: CallbackOptions) -> Iterable[Observation]:
        return [
            Observation(count, {"gen_ai.tool.name": t.spec.name, "kind": kind, "source": source})
            for t in registry.everything()
            for (kind, source), count in list(t.state.counters.endings.items())
        ]

    for name, unit, description, read in _COUNTERS:
        meter.create_observable_counter(name, [of(read)], unit=unit, description=description)
    for name, unit, description, read in _GAUGES:
        meter.create_observable_gauge(name, [of(read)], unit=unit, description=description)
    meter.create_observable_counter("dispatch.calls", [endings], unit="{call}", description="Calls ended")
    meter.create_observable_gauge(
        "dispatch.inflight",
        [lambda _: [Observation(in_flight())]],
        unit="{call}",
        description="Work going on",
    )
    meter.create_observable_gauge(
        "dispatch.ledger.unknown",
        [lambda _: [Observation(unknown())]],
        unit="{call}",
        description="Keyed calls whose outcome nobody knows",
    )
    meter.create_observable_gauge(
        "dispatch.ledger.unwritten",
        [lambda _: [Observation(unwritten())]],
        unit="{call}",
        description="Finished calls that the store refuses to write so far",
    )
