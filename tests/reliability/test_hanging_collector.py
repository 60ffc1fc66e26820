"""A collector that takes an export and never answers: what the service does meanwhile, and at its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from lineside_service.assembly.span_queue import SpanLoad, SpanQueue
from tests.support.bad_collectors import never_answering
from tests.support.process import dispatched, service, wire_call

CONFIG = """
[server]
listen = "127.0.0.1:0"
[admin]
listen = "127.0.0.1:0"
[store]
kind = "memory"
[tools.fast]
target = "hanging_tools:fast"
effect = "safe"
"""
BOUND, BATCH, CALLS = 64, 32, 200
SPANS = 5_000


class Hanging(SpanExporter):
    """Keeps the thread that exports until it is let go; asked: set when one has come.

    held: spans of the export that hangs. exports: how many were tried. threads: who did. answer: what each
    ends with.
    """

    def __init__(self, answer: SpanExportResult) -> None:
        self.asked, self.let_go = threading.Event(), threading.Event()
        self.held = self.exports = 0
        self.threads: set[int] = set()
        self.answer = answer

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Hang."""
        self.exports += 1
        self.threads.add(threading.get_ident())
        self.held = self.held or len(spans)
        self.asked.set()
        assert self.let_go.wait(60)
        return self.answer

    def shutdown(self) -> None:
        """Let go, as an exporter whose channel is closed."""
        self.let_go.set()


@pytest.fixture(params=[SpanExportResult.SUCCESS, SpanExportResult.FAILURE])
def hanging(request: pytest.FixtureRequest) -> Iterator[tuple[Hanging, SpanQueue, TracerProvider]]:
    """A queue whose exporter hangs, and the provider whose spans go there."""
    exporter = Hanging(request.param)
    queue = SpanQueue(exporter)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(queue)
    yield exporter, queue, provider
    exporter.let_go.set()
    provider.shutdown()


def test_who_ends_a_span_never_waits_for_an_export(
    hanging: tuple[Hanging, SpanQueue, TracerProvider],
) -> None:
    """The queue keeps its bound, what finds no place is dropped and counted, and every span has one fate."""
    exporter, queue, provider = hanging
    tracer = provider.get_tracer("test")
    first = 0
    while (
        not exporter.asked.is_set()
    ):  # the batch that hangs; every span lets the exporting thread have a turn
        tracer.start_span("first").end()
        first += 1
        assert first < 1_000_000
    for _ in range(SPANS):
        tracer.start_span("span").end()
    assert queue.load == SpanLoad(
        queued=queue.bound, dropped=first + SPANS - exporter.held - queue.bound, refused=0
    )
    exporter.let_go.set()
    provider.shutdown()
    sent = exporter.held + queue.bound
    is_taken = exporter.answer is SpanExportResult.SUCCESS
    assert queue.load == SpanLoad(0, first + SPANS - sent, 0 if is_taken else sent)
    assert queue.undelivered == first + SPANS - (sent if is_taken else 0)
    assert len(exporter.threads) == 1
    assert threading.get_ident() not in exporter.threads


@pytest.mark.asyncio
async def test_calls_go_on_while_an_export_hangs(tmp_path: Path) -> None:
    """With an export in a hanging collector's hands calls are answered, the queue keeps its bound, each
    span without a place is counted in /metrics, and the exit is bounded and tells the same number (R102).
    """
    (tmp_path / "hanging_tools.py").write_text("async def fast() -> int:\n    return 1\n")
    config = tmp_path / "lineside.toml"
    config.write_text(CONFIG)
    async with never_answering() as (endpoint, collector):
        env = (
            *(f"OTEL_EXPORTER_OTLP_ENDPOINT={endpoint}", "OTEL_METRICS_EXPORTER=none"),
            *(f"OTEL_BSP_MAX_QUEUE_SIZE={BOUND}", f"OTEL_BSP_MAX_EXPORT_BATCH_SIZE={BATCH}"),
            # No clock has a part in it: a full batch is sent, and its export does not time out.
            *("OTEL_BSP_SCHEDULE_DELAY=600000", "OTEL_EXPORTER_OTLP_TIMEOUT=600"),
            "OTEL_TRACES_SAMPLER=always_on",
        )
        async with service(config, env=env) as served:
            channel, calls = served.channel(), 0
            while not collector.asked.is_set():
                assert (await dispatched(channel, wire_call("fast"))).kind == "ok"
                calls += 1
            for _ in range(CALLS):
                assert (await dispatched(channel, wire_call("fast"))).kind == "ok"
            ended, in_hand = 2 * (calls + CALLS), BATCH
            await served.until_metric("dispatch_spans_lost_total", ended - in_hand - BOUND)
            assert (collector.exports, await served.metric("dispatch_spans_queued")) == (1, BOUND)
            code, took_s = await served.terminated()
            told = [line["spans"] for line in served.logged() if line["event"] == "telemetry.spans_lost"]
    assert (code, told) == (0, [ended])
    assert took_s < 10  # the export would hang for 600 s; nothing else is being waited for


def test_a_queue_that_is_given_up_lets_go_of_its_export(
    hanging: tuple[Hanging, SpanQueue, TracerProvider],
) -> None:
    """Giving up ends what hangs, nothing further is tried, and what was queued counts as lost."""
    exporter, queue, provider = hanging
    tracer = provider.get_tracer("test")
    while not exporter.asked.is_set():
        tracer.start_span("span").end()
    began = time.monotonic()
    queue.give_up()
    provider.shutdown()
    assert time.monotonic() - began < 30  # the SDK's own wait for a dead collector
    assert (exporter.exports, queue.load.queued) == (1, 0)
