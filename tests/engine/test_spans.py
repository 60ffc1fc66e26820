"""One span per attempt, ended on every path, and plain counters that metrics read."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags

from lineside_service.core.breaker import BreakerRules
from lineside_service.core.tool import ToolKind
from lineside_service.engine.telemetry import observe_engine
from tests.support.engine_rig import IDEMPOTENT, Rig
from tests.support.scripted_tool import answer, hang, raises, says_no, swallow_cancel, transient

pytestmark = pytest.mark.parametrize("virtual_loop", range(2), indirect=True)


def _caller(*, sampled: bool) -> tuple[Context, SpanContext]:
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    caller = SpanContext(trace_id=7, span_id=9, is_remote=True, trace_flags=flags)
    return trace.set_span_in_context(NonRecordingSpan(caller), Context()), caller


def _attributes(rig: Rig) -> list[dict[str, Any]]:
    return [dict(span.attributes or {}) for span in rig.spans.get_finished_spans()]


async def test_each_attempt_is_a_span_under_its_caller(rig: Rig) -> None:
    """Named after the tool, numbered, with back-off, breaker state and outcome; the failed ones say so."""
    rig.add("mail", transient(retry_after_s=2), answer(), breaker=BreakerRules())
    parent, caller = _caller(sampled=True)
    reply = await rig.answered("mail", "k", arguments={"to": "secret"}, parent=parent)
    first, second = rig.spans.get_finished_spans()
    assert [span.name for span in (first, second)] == ["execute_tool mail"] * 2
    assert all(span.parent is not None and span.parent.span_id == caller.span_id for span in (first, second))
    assert (first.kind, first.status.status_code) == (SpanKind.INTERNAL, StatusCode.ERROR)
    assert second.status.status_code is StatusCode.UNSET
    one, two = _attributes(rig)
    assert (one["dispatch.attempt.number"], two["dispatch.attempt.number"]) == (1, 2)
    assert (one["dispatch.backoff.ms"], two["dispatch.backoff.ms"]) == (0.0, 2000.0)
    assert ("dispatch.retry.reason" in one, two["dispatch.retry.reason"]) == (False, "SERVER_HINT")
    assert (one["error.type"], one["dispatch.outcome"]) == ("transient", "not_run")
    assert (two["dispatch.outcome"], two["dispatch.circuit.state"]) == ("done", "closed")
    assert {attributes["gen_ai.tool.call.id"] for attributes in (one, two)} == {reply.call_id}
    assert "secret" not in str([one, two])


async def test_a_remote_tools_attempts_are_client_spans(rig: Rig) -> None:
    """CLIENT for what leaves the process."""
    rig.add("post", answer(), kind=ToolKind.HTTP)
    await rig.answered("post")
    assert rig.spans.get_finished_spans()[0].kind is SpanKind.CLIENT


async def test_an_unsampled_caller_costs_no_span(rig: Rig) -> None:
    """Not even a span that is thrown away."""
    rig.add("mail", answer())
    parent, _ = _caller(sampled=False)
    await rig.answered("mail", parent=parent)
    assert rig.span_counts.started == 0


async def test_the_paying_owners_trace_gets_the_attempt(rig: Rig) -> None:
    """The first attempt belongs to the owner's trace, the next to the joiner's who pays for it."""
    rig.add("mail", transient(after=0.1), answer())
    contexts = []
    for number in (1, 2):
        caller = SpanContext(
            trace_id=number, span_id=number, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED)
        )
        contexts.append(trace.set_span_in_context(NonRecordingSpan(caller), Context()))
    owner = rig.start("mail", "k", budget=1, parent=contexts[0])
    await rig.at(0.05)
    joiner = rig.start("mail", "k", parent=contexts[1])
    await owner
    await joiner
    traces = [span.context.trace_id for span in rig.spans.get_finished_spans() if span.context]
    assert traces == [1, 2]


@pytest.mark.parametrize(
    ("step", "error_type", "outcome"),
    [
        (says_no(), "tool_error", "done"),
        (hang(), "timeout", "unknown"),
        (swallow_cancel(answer(after=5)), "timeout", "unknown"),
        (raises(ValueError), "internal", "unknown"),
    ],
)
async def test_a_span_says_how_its_attempt_ended(rig: Rig, step: Any, error_type: str, outcome: str) -> None:
    """With the error's type and what is known of the effect, at the time the call knew it."""
    rig.add("mail", step, timeout_s=1.0)
    await rig.dispatch("mail")
    (attributes,) = _attributes(rig)
    assert (attributes["error.type"], attributes["dispatch.outcome"]) == (error_type, outcome)


async def test_a_cancelled_callers_span_is_ended(rig: Rig) -> None:
    """In the instant in which the caller leaves (F20)."""
    rig.add("deaf", swallow_cancel(answer(after=5)))
    task = rig.start("deaf")
    await rig.at(1)
    task.cancel()
    await rig.at(1.001)
    (attributes,) = _attributes(rig)
    assert (attributes["error.type"], rig.span_counts.ended) == ("cancelled", 1)


async def test_a_replay_and_a_join_make_no_attempt_span(rig: Rig) -> None:
    """Two hundred callers of one execution: one span; a repeat: none; counted apart (R053)."""
    rig.add("mail", answer(after=0.1))
    tasks = [rig.start("mail", "k") for _ in range(200)]
    for task in tasks:
        await task
    await rig.answered("mail", "k")
    assert rig.span_counts.started == 1
    assert rig.state("mail").counters.endings == {
        ("ok", "executed"): 1,
        ("ok", "joined"): 199,
        ("ok", "replayed"): 1,
    }


async def test_metrics_read_the_engines_integers(rig: Rig) -> None:
    """Attempts, retries, slots, calls in flight and unknown ones: by tool, never by tenant or id."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    observe_engine(
        provider.get_meter("test"),
        rig.registry,
        rig.loop.time,
        in_flight=lambda: rig.dispatcher.in_flight,
        unknown=lambda: rig.ledger.settlements.unknown_count,
        unwritten=lambda: rig.ledger.unwritten,
    )
    rig.add("put", transient(), answer(), hang(), timeout_s=1.0, **IDEMPOTENT)
    rig.add("mail", hang(), timeout_s=1.0)
    await rig.answered("put")
    await rig.failed("mail", "k")
    task = rig.start("put", timeout_s=10)
    await rig.at(rig.loop.time() + 0.5)
    found = _points(reader)
    assert found["dispatch.attempts", "put"] == 2
    assert found["dispatch.retries", "put"] == 1
    assert found["dispatch.slots.running", "put"] == 1
    assert found["dispatch.inflight", ""] == 1
    assert found["dispatch.ledger.unknown", ""] == 1
    await task
    provider.shutdown()


def _points(reader: InMemoryMetricReader) -> dict[tuple[str, str], float]:
    data = reader.get_metrics_data()
    assert data is not None
    found = {}
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    attributes = dict(point.attributes or {})
                    assert set(attributes) <= {"gen_ai.tool.name", "kind", "source"}
                    value = getattr(point, "value", 0.0)
                    found[metric.name, str(attributes.get("gen_ai.tool.name", ""))] = value
    return found


async def test_a_limit_holds_in_every_wave(rig: Rig) -> None:
    """Two slots: ten calls, then fifty; never more than two at once, and exactly none at the end (R003)."""
    tool = rig.add("mail", answer(after=0.3), concurrency=2)
    for wave in (10, 50):
        tasks = [rig.start("mail") for _ in range(wave)]
        for task in tasks:
            await task
        assert tool.peak == 2
        assert rig.slots("mail").running == 0
