"""What an RPC leaves in traces and metrics."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.metrics.export import HistogramDataPoint
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from lineside.v1.dispatch_pb2 import DispatchRequest, TraceContext
from lineside_service.core.retry import RetryRules
from lineside_service.edge.spans import own_context
from tests.edge.test_batch import Stream, items_of
from tests.edge.test_dispatch import Broken
from tests.support.scripted_tool import Turn, answer, hang, transient
from tests.support.serving import Served, refused, serving, tool_call

TRACE = "0af7651916cd43dd8448eb211c80319c"
SAMPLED = f"00-{TRACE}-b7ad6b7169203331-01"
UNSAMPLED = f"00-{TRACE}-b7ad6b7169203331-00"


def spans(served: Served, name: str) -> list[ReadableSpan]:
    """Finished spans of this name."""
    return [span for span in served.spans.get_finished_spans() if span.name == name]


def the_span(served: Served, name: str) -> ReadableSpan:
    """The one span of this name."""
    [span] = spans(served, name)
    return span


def parent_of(span: ReadableSpan) -> int:
    """The parent's span id, 0 for a root."""
    return 0 if span.parent is None else span.parent.span_id


def own(span: ReadableSpan) -> Any:
    """The span's own context."""
    context = span.get_span_context()
    assert context is not None
    return context


@pytest.mark.asyncio
async def test_a_call_is_a_server_span_in_the_callers_trace() -> None:
    """Name without a slash, semantic attributes, the attempt below it, the trace id in the answer."""
    async with serving() as served:
        served.add("echo", answer(1))
        reply = await served.dispatching().Dispatch(
            DispatchRequest(call=tool_call("echo")), metadata=(("traceparent", SAMPLED),), timeout=5
        )
        assert reply.answer.trace_id == TRACE
        span = the_span(served, "lineside.v1.DispatchService/Dispatch")
        assert span.kind is SpanKind.SERVER
        assert f"{own(span).trace_id:032x}" == TRACE
        assert parent_of(span) == 0xB7AD6B7169203331
        attributes = dict(span.attributes or {})
        assert attributes.pop("network.peer.address") == "127.0.0.1"
        assert isinstance(attributes.pop("network.peer.port"), int)
        assert attributes == {
            "rpc.system.name": "grpc",
            "rpc.method": "lineside.v1.DispatchService/Dispatch",
            "rpc.response.status_code": "OK",
            "dispatch.source": "executed",
            "gen_ai.tool.call.id": reply.answer.call_id,
        }
        assert span.status.status_code is StatusCode.UNSET
        attempt = the_span(served, "execute_tool echo")
        assert parent_of(attempt) == own(span).span_id


@pytest.mark.asyncio
async def test_only_our_own_failures_make_the_span_an_error() -> None:
    """INVALID_ARGUMENT and NOT_FOUND are the caller's doing; UNAVAILABLE and DEADLINE_EXCEEDED are errors."""
    async with serving() as served:
        served.add("down", transient(), retry=RetryRules(max_attempts=1))
        served.add("slow", hang())
        for tool, timeout, code, is_error in (
            ("", 5, "INVALID_ARGUMENT", False),
            ("nothing", 5, "NOT_FOUND", False),
            ("down", 5, "UNAVAILABLE", True),
            ("slow", 0.1, "DEADLINE_EXCEEDED", True),
        ):
            served.spans.clear()
            no = await refused(served.dispatch(tool, timeout=timeout))
            await served.server.runner.idle()  # the status is sent before its span ends
            span = the_span(served, "lineside.v1.DispatchService/Dispatch")
            attributes = dict(span.attributes or {})
            assert attributes["rpc.response.status_code"] == code
            assert attributes["dispatch.kind"] == no.kind
            assert span.status.status_code is (StatusCode.ERROR if is_error else StatusCode.UNSET)
            assert attributes.get("error.type") == (code if is_error else None)
            assert not span.events


@pytest.mark.asyncio
async def test_a_caller_that_leaves_ends_its_span_as_cancelled() -> None:
    """Every span that was started is ended, whatever ends the RPC."""
    async with serving() as served:
        entered = asyncio.Event()

        async def waits(turn: Turn) -> Any:
            entered.set()
            await asyncio.get_running_loop().create_future()

        served.add("slow", waits)
        rpc = served.dispatching().Dispatch(DispatchRequest(call=tool_call("slow")))
        await entered.wait()
        rpc.cancel()
        async with asyncio.timeout(5):
            await served.server.runner.idle()
        span = the_span(served, "lineside.v1.DispatchService/Dispatch")
        assert dict(span.attributes or {})["rpc.response.status_code"] == "CANCELLED"
        assert span.status.status_code is StatusCode.UNSET
        assert served.span_counts.started == served.span_counts.ended


@pytest.mark.asyncio
async def test_a_call_may_bring_its_trace_as_a_field() -> None:
    """Only where the metadata has none: a span of its own in that trace, linked to the RPC's."""
    async with serving() as served:
        served.add("echo", answer(1))
        context = TraceContext(traceparent=SAMPLED, tracestate="v=1")
        reply = await served.dispatch("echo", trace_context=context)
        assert reply.answer.trace_id == TRACE
        server, item = (
            the_span(served, "lineside.v1.DispatchService/Dispatch"),
            the_span(served, "dispatch echo"),
        )
        assert f"{own(item).trace_id:032x}" == TRACE
        assert [link.context.span_id for link in item.links] == [own(server).span_id]
        assert parent_of(the_span(served, "execute_tool echo")) == own(item).span_id
        served.spans.clear()
        other = f"00-{'1' * 32}-{'2' * 16}-01"
        request = DispatchRequest(call=tool_call("echo", trace_context=context))
        reply = await served.dispatching().Dispatch(request, metadata=(("traceparent", other),), timeout=5)
        assert reply.answer.trace_id == "1" * 32
        assert not spans(served, "dispatch echo")


@pytest.mark.asyncio
async def test_items_have_spans_in_their_own_traces() -> None:
    """With a link to the stream's span; without a context below it; a made-up tool names no span."""
    async with serving() as served:
        served.add("echo", answer(1))
        stream = Stream(served)
        await stream.send(
            [
                tool_call("echo", item_id="own", trace_context=TraceContext(traceparent=SAMPLED)),
                tool_call("echo", item_id="none"),
                tool_call("made-up-4711", item_id="unknown"),
                tool_call("echo", item_id="bad", trace_context=TraceContext(traceparent="zz")),
            ]
        )
        found = await stream.items(4)
        await stream.finish()
        async with asyncio.timeout(5):
            await served.server.runner.idle()
        server = the_span(served, "lineside.v1.DispatchService/DispatchBatch")
        items = {dict(s.attributes or {})["dispatch.item.id"]: s for s in spans(served, "dispatch echo")}
        items["unknown"] = the_span(served, "dispatch")
        assert set(items) == {"own", "none", "unknown", "bad"}
        assert f"{own(items['own']).trace_id:032x}" == TRACE == found["own"].answer.trace_id
        assert [link.context.span_id for link in items["own"].links] == [own(server).span_id]
        for item_id in ("none", "unknown", "bad"):
            assert parent_of(items[item_id]) == own(server).span_id
            assert not items[item_id].links
        attributes = dict(items["unknown"].attributes or {})
        assert attributes["dispatch.kind"] == "not_found"
        assert "made-up" not in items["unknown"].to_json()
        attempts = spans(served, "execute_tool echo")
        assert {parent_of(attempt) for attempt in attempts} == {
            own(items[item_id]).span_id for item_id in ("own", "none", "bad")
        }


@pytest.mark.asyncio
async def test_an_unsampled_trace_records_nothing_but_is_told() -> None:
    """Neither RPC nor item nor attempt; answers and errors still carry the trace id."""
    async with serving() as served:
        served.add("echo", answer(1))
        stub, metadata = served.dispatching(), (("traceparent", UNSAMPLED),)
        reply = await stub.Dispatch(DispatchRequest(call=tool_call("echo")), metadata=metadata, timeout=5)
        assert reply.answer.trace_id == TRACE
        no = await refused(
            stub.Dispatch(DispatchRequest(call=tool_call("none")), metadata=metadata, timeout=5)
        )
        assert no.error.trace_id == TRACE
        stream = Stream(served, metadata=metadata)
        await stream.send(items_of([("a", "echo")]))
        assert (await stream.items(1))["a"].answer.trace_id == TRACE
        await stream.finish()
        assert not served.spans.get_finished_spans()
        assert served.span_counts.started == 0


@pytest.mark.asyncio
async def test_the_duration_of_every_rpc_is_counted_once() -> None:
    """In seconds, by method and status, in the conventions' buckets; also unsampled and faulty ones."""
    async with serving(sampler=ALWAYS_OFF, dispatcher=Broken(ValueError("x")), may_fault=True) as served:
        served.add("echo", answer(1))
        await refused(served.dispatch("echo"))
        await refused(served.dispatch(""))
        await refused(served.dispatch(""))
        tools, _ = served.looking()
        from lineside.v1.tools_pb2 import ListToolsRequest

        await tools.ListTools(ListToolsRequest(), timeout=5)
        data = served.metrics.get_metrics_data()
        assert data is not None
        [metric] = [
            metric
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == "rpc.server.call.duration"
        ]
        assert metric.unit == "s"
        points = {}
        for point in metric.data.data_points:
            assert isinstance(point, HistogramDataPoint)
            attributes = dict(point.attributes or {})
            assert attributes["rpc.system.name"] == "grpc"
            points[
                str(attributes["rpc.method"]).rpartition("/")[2], attributes["rpc.response.status_code"]
            ] = (
                point.count,
                attributes.get("error.type"),
            )
            assert tuple(point.explicit_bounds)[:3] == (0.005, 0.01, 0.025)
        assert points == {
            ("Dispatch", "INTERNAL"): (1, "INTERNAL"),
            ("Dispatch", "INVALID_ARGUMENT"): (2, None),
            ("ListTools", "OK"): (1, None),
        }


def test_a_trace_context_that_is_not_valid_is_none() -> None:
    """Empty, malformed, all zero; a tracestate that is too long is dropped alone."""
    assert own_context("", "a=b") is None
    assert own_context("00-zz-b7ad6b7169203331-01", "") is None
    assert own_context(f"00-{'0' * 32}-{'0' * 16}-01", "") is None
    assert own_context(SAMPLED, "a=" + "b" * 600) is not None


@pytest.mark.asyncio
async def test_a_bare_refusal_of_grpc_is_not_ours_to_trace() -> None:
    """A method that nobody has: UNIMPLEMENTED without details, and no span."""
    async with serving() as served:
        call: Any = served.channel().unary_unary("/lineside.v1.DispatchService/Nothing")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"", timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert not served.spans.get_finished_spans()
