"""docs/telemetry.md against a service that runs: its spans, its metrics, its log."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from lineside.v1.dispatch_pb2 import DispatchBatchRequest, DispatchRequest, ToolCall, TraceContext
from lineside.v1.dispatch_pb2_grpc import DispatchServiceStub
from tests.support.cut_proxy import cut_proxy
from tests.support.otlp_receiver import span_receiver
from tests.support.pages import ROOT, rows_of, ticked
from tests.support.process import ServiceProcess, dispatched, service, wire_call
from tests.support.source_scan import logged_events

TOOLS = """
import asyncio

from lineside_service.tools import ToolContext, TransientError

async def ok() -> int:
    return 1

async def flaky(ctx: ToolContext) -> int:
    if ctx.attempt == 1:
        raise TransientError("not yet")
    return 2

async def broken() -> int:
    raise ValueError("told to nobody")

async def unwilling() -> int:
    raise TransientError("never")

async def slow() -> int:
    await asyncio.sleep(1)
    return 3
"""
CONFIG = """
[server]
listen = "127.0.0.1:0"
[admin]
listen = "127.0.0.1:0"
[store]
kind = "memory"
[telemetry]
record_arguments = true
[tools.ok]
target = "paged_tools:ok"
[tools.flaky]
target = "paged_tools:flaky"
[tools.broken]
target = "paged_tools:broken"
[tools.unwilling]
target = "paged_tools:unwilling"
effect = "safe"
retry = { preset = "local", max_attempts = 1 }

[tools.slow]
target = "paged_tools:slow"
effect = "safe"
"""
RETRYING = json.dumps(
    {
        "methodConfig": [
            {
                "name": [{}],
                "retryPolicy": {
                    "maxAttempts": 3,
                    "initialBackoff": "0.01s",
                    "maxBackoff": "0.1s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ]
    }
)
OWN_TRACE = "0af7651916cd43dd8448eb211c80319c"
ALWAYS_THERE = {"otel_scope_name", "otel_scope_version", "otel_scope_schema_url"}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config and its tools."""
    (tmp_path / "paged_tools.py").write_text(TOOLS)
    (tmp_path / "lineside.toml").write_text(CONFIG)
    return tmp_path / "lineside.toml"


async def exercise(running: ServiceProcess) -> None:
    """Make calls of every sort: answered, retried, failed, refused, sent again, unary and in a batch."""
    channel = running.channel()
    for tool in ("ok", "flaky", "broken", "nobody"):
        await dispatched(channel, wire_call(tool, idempotency_key=f"unary-{tool}"))
    await sent_again(running)
    await dispatched(channel, wire_call("unwilling"))
    calls = [wire_call(tool, item_id=tool) for tool in ("ok", "broken", "nobody", "unwilling")]
    own = TraceContext(traceparent=f"00-{OWN_TRACE}-b7ad6b7169203331-01")
    calls.append(wire_call("ok", item_id="own", trace_context=own))
    await batch(channel, calls)


async def sent_again(running: ServiceProcess) -> None:
    """A call that a retrying channel sends once more, because its connection was cut."""
    async with cut_proxy(running.address) as proxy:
        options = (("grpc.service_config", RETRYING),)
        async with grpc.aio.insecure_channel(proxy.target, options=options) as channel:
            stub: Any = DispatchServiceStub(channel)
            call = stub.Dispatch(DispatchRequest(call=wire_call("slow", idempotency_key="cut")), timeout=20)
            while not any(
                value
                for name, value in (await running.metrics()).items()
                if name.startswith("dispatch_inflight")
            ):
                pass  # each look is a request to the admin port
            proxy.cut()
            await call


async def in_flight(running: ServiceProcess) -> float:
    """Calls that run, as /metrics has it."""
    samples = await running.metrics()
    return sum(value for name, value in samples.items() if name.startswith("dispatch_inflight"))


async def batch(channel: grpc.aio.Channel, calls: Iterable[ToolCall]) -> None:
    """One batch stream to its end."""
    stub: Any = DispatchServiceStub(channel)
    stream = stub.DispatchBatch(timeout=20)
    await stream.write(DispatchBatchRequest(calls=calls))
    await stream.done_writing()
    async for _ in stream:
        pass


@pytest.mark.asyncio
async def test_spans_are_what_the_page_says(config: Path) -> None:
    """Names, kinds, parents, links, and every attribute where the page puts it, no other anywhere."""
    async with span_receiver() as receiver:
        env = (f"OTEL_EXPORTER_OTLP_ENDPOINT={receiver.endpoint}", "OTEL_METRICS_EXPORTER=none")
        async with service(config, env=env) as running:
            await exercise(running)
            assert (await running.terminated())[0] == 0
    by_id = {span.span_id: span for span in receiver.spans}
    seen: dict[str, set[str]] = defaultdict(set)
    for span in receiver.spans:
        seen[sort_of(span)] |= {attribute.key for attribute in span.attributes}
        if sort_of(span) == "SERVER":
            assert span.kind == Span.SPAN_KIND_SERVER
        else:
            assert span.kind == Span.SPAN_KIND_INTERNAL
            above = by_id.get(span.parent_span_id)
            assert sort_of(above) in parents_of(sort_of(span)) if above else span.trace_id.hex() == OWN_TRACE
    said: dict[str, set[str]] = defaultdict(set)
    for row in rows_of("telemetry.md", "attribute", "on"):
        for place in row["on"].split(","):
            said[place.strip().strip("`")] |= set(ticked(row["attribute"]))
    assert seen == said
    (own,) = [span for span in receiver.spans if sort_of(span) == "dispatch" and span.links]
    assert own.trace_id.hex() == OWN_TRACE
    assert sort_of(by_id[own.links[0].span_id]) == "SERVER"


def sort_of(span: Any) -> str:
    """Which line of the page's table a span belongs to."""
    word = span.name.partition(" ")[0]
    return word if word in ("dispatch", "execute_tool") else "SERVER"


def parents_of(sort: str) -> tuple[str, ...]:
    """What may stand above it, its caller's own trace apart."""
    return ("SERVER",) if sort == "dispatch" else ("SERVER", "dispatch")


@pytest.mark.asyncio
async def test_metrics_are_what_the_page_says(config: Path) -> None:
    """Names, types and labels on /metrics, none more and none less; probes answer as described."""
    async with service(config) as running, aiohttp.ClientSession() as session:
        await exercise(running)
        pages = {}
        for path in ("/metrics", "/livez", "/readyz"):
            async with session.get(f"{running.admin}{path}") as response:
                assert response.status == 200
                pages[path] = await response.text()
    assert pages["/livez"] == pages["/readyz"] == "ok\n"
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", pages["/metrics"], re.MULTILINE))
    labels: dict[str, set[str]] = {name: set() for name in types}
    for name, told in re.findall(r"^([a-z_]+)(?:\{(.*)\})? \S+$", pages["/metrics"], re.MULTILINE):
        family = name if name in types else name.rpartition("_")[0]
        labels[family] |= set(re.findall(r'(\w+)="', told)) - ALWAYS_THERE - {"le"}
    said = {
        ticked(row["metric"])[0]: (row["type"], set(ticked(row["labels"])))
        for row in rows_of("telemetry.md", "metric")
    }
    assert {name: (types[name], labels[name]) for name in types} == said


def test_the_log_says_what_the_page_says() -> None:
    """Every event of the source, its level and its fields; each is named `part.what`."""
    said = {
        ticked(row["event"])[0]: (row["level"], set(ticked(row["fields"])))
        for row in rows_of("telemetry.md", "event", "level")
    }
    found = logged_events(ROOT / "service" / "lineside_service")
    assert said.keys() == found.keys()
    assert [name for name in found if re.fullmatch(r"[a-z]+\.[a-z0-9_]+", name) is None] == []
    for name, event in found.items():
        level, fields = said[name]
        assert event.levels == {level}, name
        bound = {"tool", "call_id", "attempt"} if name == "tool.failed" else set()
        faults = {"error_type", "where"} if name.endswith(".fault") else set()  # see edge.faults
        assert (event.fields - {"exc_info"}) | bound | faults == fields, name
