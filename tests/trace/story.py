"""The story: calls that need every promise, made by callers with traces of their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, TraceFlags

import lineside
from tests.load.sides import BIN
from tests.support.process import ServiceProcess, service
from tests.trace.expected import GO, STORY, STREAM

HOME = Path(__file__).with_name("home")
_GO_S = 60.0


@dataclass(slots=True)
class Told:
    """What the callers saw. go: what the Go caller printed. trace_ids: by the name of the root.

    unsampled: the trace that must not be found. rpcs, attempts: what the service counted. exit_code: its own.
    lost: spans that it says never left it.
    """

    go: Mapping[str, Any] = field(default_factory=dict)
    trace_ids: dict[str, str] = field(default_factory=dict)
    unsampled: str = ""
    rpcs: int = 0
    attempts: int = 0
    exit_code: int = -1
    lost: int = 0


class Door:
    """Where the tool `book` waits: knocked at once it runs, opened when the story goes on."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
        self.port = 0

    def knock(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Somebody waits."""
        self._waiting.put_nowait(writer)

    async def knocked(self) -> asyncio.StreamWriter:
        """The one who waits; closing lets him go."""
        async with asyncio.timeout(20):
            return await self._waiting.get()


@contextlib.asynccontextmanager
async def _door() -> AsyncIterator[Door]:
    door = Door()
    async with await asyncio.start_server(door.knock, "127.0.0.1", 0) as server:
        door.port = server.sockets[0].getsockname()[1]
        yield door


@contextlib.asynccontextmanager
async def _tracing(endpoint: str) -> AsyncIterator[TracerProvider]:
    """The callers' own tracing; what is queued is sent at the end."""
    provider = TracerProvider(resource=Resource.create({"service.name": STORY}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, insecure=True)))
    try:
        yield provider
    finally:
        await asyncio.to_thread(provider.shutdown)


class Story:
    """Tells it once, to one service."""

    def __init__(self, served: ServiceProcess, client: lineside.AsyncClient, tracer: trace.Tracer) -> None:
        self._served = served
        self._client = client
        self._tracer = tracer
        self.told = Told()

    @contextlib.contextmanager
    def caller(self, name: str) -> Iterator[Span]:
        """A trace that begins here and is current until the block ends."""
        with self._tracer.start_as_current_span(name, context=Context(), kind=SpanKind.CLIENT) as span:
            self.told.trace_ids[name] = f"{span.get_span_context().trace_id:032x}"
            yield span

    async def retried(self) -> None:
        """A call that needs three attempts."""
        with self.caller("three attempts"):
            answer = await self._client.dispatch("forecast", {"city": "Oslo"})
        assert (answer.attempts, answer.source) == (3, "executed")

    async def joined_and_replayed(self, door: Door) -> None:
        """Three callers with one key: the first works, the second waits with it, the third comes later."""
        first = asyncio.create_task(self._book("one books", "trip", door))
        waits = await door.knocked()
        second = asyncio.create_task(self._book("another joins", "trip", door))
        await self._served.until_metric("dispatch_rpc_active", 2)
        waits.close()
        owner, joiner = await first, await second
        replayed = await self._book("a third is told again", "trip", door)
        assert [answer.source for answer in (owner, joiner, replayed)] == ["executed", "joined", "replayed"]
        assert owner.call_id == joiner.call_id == replayed.call_id

    async def _book(self, name: str, key: str, door: Door) -> lineside.Answer:
        with self.caller(name):
            arguments = {"flight": "LS 101", "door": door.port}
            return await self._client.dispatch("book", arguments, idempotency_key=key)

    async def refused(self) -> None:
        """An answer that is a no, and arguments that no tool ever sees."""
        with self.caller("a tool says no"):
            assert (await self._client.dispatch("refuses", {"word": "xyzzy"})).tool_error
        with self.caller("a caller's mistake"):
            assert await self._kind("lookup", {"word": 1}) == "schema"

    async def breaker_opens(self) -> None:
        """Two failures are enough for it; the third call is refused at once."""
        with self.caller("a breaker opens"):
            kinds = [await self._kind("down", {}) for _ in range(3)]
        assert kinds == ["transient", "transient", "circuit_open"]

    async def _kind(self, tool: str, arguments: Mapping[str, Any], key: str | None = None) -> str:
        try:
            await self._client.dispatch(tool, arguments, idempotency_key=key)
        except lineside.DispatchError as error:
            return str(error.kind)
        return "ok"

    async def settled_later(self) -> None:
        """A call that ends without anybody's knowing; a person finds out, and the next caller is told."""
        with self.caller("nobody knows, until somebody says"):
            assert await self._kind("charge", {"amount": 7}, "invoice") == "timeout"
            record = await self._client.get_call(tool="charge", idempotency_key="invoice")
            assert record.state == lineside.CallState.UNKNOWN
            await self._client.settle_call(record.call_id, record.etag, done=7, reason="it is on the bill")
            answer = await self._client.dispatch("charge", {"amount": 7}, idempotency_key="invoice")
        assert (answer.source, answer.result) == ("replayed", 7)

    async def batched(self) -> None:
        """One stream with the items of two callers, each in its own trace, and one item of the stream's."""
        with self.caller("the batch's first caller") as a, self.caller("the batch's second caller") as b:
            calls = [
                lineside.Call(tool=tool, arguments=arguments, traceparent=_header(span) if span else "")
                for tool, arguments, span in (
                    ("lookup", {"word": "ab"}, a),
                    ("forecast", {"city": "Rome"}, a),
                    ("lookup", {"word": "cd"}, b),
                    ("nothing", {}, b),
                    ("lookup", {"word": "ef"}, None),
                )
            ]
            with self.caller(STREAM):
                answers = await self._client.dispatch_all(calls, timeout_s=20)
        said = [answer.result if isinstance(answer, lineside.Answer) else answer.kind for answer in answers]
        assert said == ["ba", "rain in Rome", "dc", "not_found", "fe"]

    async def unsampled(self) -> None:
        """A caller that decided not to be recorded."""
        context = SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(TraceFlags.DEFAULT))
        with trace.use_span(NonRecordingSpan(context)):
            answer = await self._client.dispatch("lookup", {"word": "gh"})
        self.told.unsampled = answer.trace_id

    async def called_from_go(self, endpoint: str) -> None:
        """The Go client calls in, with its own OpenTelemetry."""
        process = await asyncio.create_subprocess_exec(
            *("env", f"OTEL_EXPORTER_OTLP_ENDPOINT={endpoint}", f"OTEL_SERVICE_NAME={GO}"),
            *(str(BIN / "tracecaller"), self._served.address, "forecast", '{"city":"Paris"}'),
            stdout=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(_GO_S):
            out, _ = await process.communicate()
        assert process.returncode == 0
        self.told.go = json.loads(out)
        self.told.trace_ids["go asks for forecast"] = self.told.go["trace_id"]

    async def shut_down(self, door: Door) -> None:
        """SIGTERM while a call runs: it is answered, and what the service has queued still leaves it."""
        last = asyncio.create_task(self._book("in flight at SIGTERM", "last", door))
        waits = await door.knocked()
        self.told.rpcs = 1 + await self._counted("rpc_server_call_duration_seconds_count", "lineside.v1")
        self.told.attempts = 1 + await self._counted("dispatch_attempts_total", "")
        os.kill(self._served.pid, signal.SIGTERM)
        end = time.monotonic() + 20
        while await self._served.is_serving():  # each look lets the service have its turn
            assert time.monotonic() < end, "no drain"
        waits.close()
        assert (await last).source == "executed"
        self.told.exit_code = await self._served.ended()
        lost = [line["spans"] for line in self._served.logged() if line["event"] == "telemetry.spans_lost"]
        self.told.lost = sum(lost)

    async def _counted(self, name: str, label: str) -> int:
        samples = (await self._served.metrics()).items()
        return int(sum(value for key, value in samples if key.startswith(f"{name}{{") and label in key))


def _header(span: Span) -> str:
    """W3C traceparent of a sampled span."""
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-01"


async def tell(folder: Path, endpoint: str) -> Told:
    """Tell the story to a service that exports to an OTLP endpoint, and stop it.

    folder: a new directory for it. Needs build/bin/tracecaller.
    """
    shutil.copytree(HOME, folder, ignore=shutil.ignore_patterns("__pycache__"))
    env = (
        *(f"OTEL_EXPORTER_OTLP_ENDPOINT={endpoint}", "OTEL_METRICS_EXPORTER=none"),
        "OTEL_TRACES_SAMPLER=parentbased_always_on",
    )
    async with (
        _tracing(endpoint) as provider,
        _door() as door,
        service(folder / "lineside.toml", env=env) as served,
        lineside.AsyncClient(served.address) as client,
    ):
        story = Story(served, client, provider.get_tracer("story"))
        await story.retried()
        await story.joined_and_replayed(door)
        await story.refused()
        await story.breaker_opens()
        await story.settled_later()
        await story.batched()
        await story.unsampled()
        await story.called_from_go(endpoint)
        await story.shut_down(door)
        return story.told
