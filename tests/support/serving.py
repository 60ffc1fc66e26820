"""The service on a real port: the engine over the memory store, behind a grpc.aio server on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import grpc
import msgspec
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct
from google.rpc import error_details_pb2
from google.rpc.status_pb2 import Status
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from lineside.v1.calls_pb2_grpc import CallServiceStub
from lineside.v1.dispatch_pb2 import DispatchRequest, DispatchResponse, ToolCall
from lineside.v1.dispatch_pb2_grpc import DispatchServiceStub
from lineside.v1.errors_pb2 import DispatchError
from lineside.v1.tools_pb2_grpc import ToolServiceStub
from lineside_service.assembly.durations import reader_with
from lineside_service.core.breaker import BreakerRules
from lineside_service.core.retry import RetryRules
from lineside_service.core.tool import ToolSpec
from lineside_service.edge.auth import Authenticator, CertificateRule, Token
from lineside_service.edge.durations import CallDurations
from lineside_service.edge.facade import Dispatching
from lineside_service.edge.gauges import observe_edge
from lineside_service.edge.server import EdgeServer, Parts
from lineside_service.edge.settings import ServerSettings
from lineside_service.edge.spans import EdgeTelemetry
from lineside_service.engine.calls import Calls
from lineside_service.engine.dispatcher import Dispatcher
from lineside_service.engine.ledger import Ledger
from lineside_service.engine.registry import Registry
from lineside_service.engine.sources import Sources
from lineside_service.engine.telemetry import Telemetry
from lineside_service.stores.memory import MemoryStore
from tests.support.effects import EffectLog
from tests.support.engine_rig import LogLines, SpanCounts
from tests.support.scripted_tool import ScriptedTool, Step

SERVICE = "lineside.v1"
DISPATCH_BATCH = f"/{SERVICE}.DispatchService/DispatchBatch"
DISPATCH = f"/{SERVICE}.DispatchService/Dispatch"


class Served:
    """A running service and a channel to it."""

    def __init__(
        self,
        *,
        tokens: Iterable[Token],
        certificates: Iterable[CertificateRule],
        anonymous: bool,
        settings: ServerSettings,
        dispatcher: Dispatching | None,
        sampler: Sampler,
        reported_errors: LogLines,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.log = reported_errors
        self.sources = Sources(now=loop.time, wall=time.time, chance=random.Random(0))
        self.effects = EffectLog(loop.time)
        self.spans = InMemorySpanExporter()
        self.span_counts = SpanCounts()
        provider = TracerProvider(shutdown_on_exit=False, sampler=ParentBased(sampler))
        provider.add_span_processor(self.span_counts)
        provider.add_span_processor(SimpleSpanProcessor(self.spans))
        durations = CallDurations()
        self.metrics = reader_with(durations, InMemoryMetricReader)
        self.meters = MeterProvider([self.metrics], shutdown_on_exit=False)
        self.store = MemoryStore(member_secret=bytes(32))
        self.tools: dict[str, ScriptedTool] = {}
        self.registry = Registry([])
        self.ledger = Ledger(self.store, self.store, self.sources, incarnation="one", log=self.log)
        engine = Telemetry(provider.get_tracer("engine"), self.log)
        self.dispatcher = Dispatcher(self.registry, self.ledger, self.sources, engine)
        self.calls = Calls(self.ledger, self.dispatcher)
        self.auth = Authenticator(
            tokens=tokens, certificates=certificates, anonymous=anonymous, wall=self.sources.wall
        )
        self.telemetry = EdgeTelemetry(
            tracer=provider.get_tracer("edge"),
            durations=durations,
            propagator=CompositePropagator([TraceContextTextMapPropagator()]),
            log=self.log,
        )
        self.server = EdgeServer(
            Parts(
                dispatcher=dispatcher or self.dispatcher,
                catalogue=self.registry,
                calls=self.calls,
                auth=self.auth,
                telemetry=self.telemetry,
                sources=self.sources,
                page_secret=bytes(32),
            ),
            settings,
        )
        observe_edge(self.meters.get_meter("edge"), self.server)
        self.target = ""
        self._channels: list[grpc.aio.Channel] = []
        self._numbers = itertools.count(1)

    async def start(self, host: str) -> None:
        """Listen on any free port and open the first channel."""
        port = await self.server.start()
        await self.server.set_ready(is_ready=True)
        self.target = f"{host}:{port}"

    async def close(self) -> None:
        """Close channels first, so that the server has nobody to wait for."""
        for channel in self._channels:
            await channel.close(None)
        await self.server.stop(0)
        await self.dispatcher.drain(0)
        await asyncio.to_thread(self.meters.shutdown)

    # -- tools and callers --------------------------------------------------------------------------------

    def add(self, name: str, *script: Step, **spec: Any) -> ScriptedTool:
        """Register a tool; without breaker, and with an ample retry budget."""
        full: dict[str, Any] = {
            "breaker": BreakerRules(enabled=False),
            "retry": RetryRules(budget_ratio=100.0),
            **spec,
        }
        tool = ScriptedTool(ToolSpec(name=name, **full), *script, effects=self.effects)
        self.tools[name] = tool
        self.registry.replace(self.tools.values())
        return tool

    def add_many(self, names: Iterable[str]) -> None:
        """Register plain tools, all in one go."""
        for name in names:
            self.tools[name] = ScriptedTool(ToolSpec(name=name), effects=self.effects)
        self.registry.replace(self.tools.values())

    def channel(
        self,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        options: Iterable[tuple[str, Any]] = (),
        target: str = "",
    ) -> grpc.aio.Channel:
        """A new channel, with a connection of its own. target: instead of the service itself."""
        target = target or self.target
        given = [("grpc.use_local_subchannel_pool", 1), *options]
        if credentials is None:
            channel = grpc.aio.insecure_channel(target, options=given)
        else:
            channel = grpc.aio.secure_channel(target, credentials, options=given)
        self._channels.append(channel)
        return channel

    def dispatching(self, channel: grpc.aio.Channel | None = None) -> Any:
        """A DispatchService stub."""
        return DispatchServiceStub(channel or self.channel())

    def looking(self, channel: grpc.aio.Channel | None = None) -> tuple[Any, Any]:
        """A ToolService and a CallService stub."""
        channel = channel or self.channel()
        return ToolServiceStub(channel), CallServiceStub(channel)

    async def dispatch(self, tool: str, given: object = None, **fields: Any) -> DispatchResponse:
        """One unary call with JSON arguments, on a channel of its own."""
        timeout = fields.pop("timeout", 10.0)
        request = DispatchRequest(call=tool_call(tool, given, **fields))
        response: DispatchResponse = await self.dispatching().Dispatch(request, timeout=timeout)
        return response


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    """Metadata with a token."""
    return (("authorization", f"Bearer {token}"),)


def tool_call(tool: str, given: object = None, **fields: Any) -> ToolCall:
    """A ToolCall with JSON arguments (bytes as they are, `{}` by default)."""
    if "arguments" not in fields and "arguments_json" not in fields:
        raw = given if isinstance(given, bytes) else msgspec.json.encode(given or {})
        fields["arguments_json"] = raw
    return ToolCall(tool=tool, **fields)


def struct(value: Mapping[str, Any]) -> Struct:
    """A Struct of plain values."""
    return ParseDict(dict(value), Struct())


DETAILS: tuple[type[Message], ...] = (
    DispatchError,
    error_details_pb2.ErrorInfo,
    error_details_pb2.BadRequest,
    error_details_pb2.RetryInfo,
    error_details_pb2.ResourceInfo,
    error_details_pb2.QuotaFailure,
    error_details_pb2.PreconditionFailure,
)


class Refused:
    """A failed RPC or item, unpacked: the status and its details by type."""

    def __init__(self, status: Status, trailers: Mapping[str, str | bytes] | None = None) -> None:
        self.status = status
        self.code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
        self.trailers = dict(trailers or {})
        self.details: dict[str, Any] = {}
        for detail in status.details:
            kind = next(kind for kind in DETAILS if detail.type_url.endswith(f"/{kind.DESCRIPTOR.full_name}"))
            assert kind.__name__ not in self.details, f"{kind.__name__} twice"
            self.details[kind.__name__] = kind.FromString(detail.value)
        self.error = self.details["DispatchError"]

    @property
    def kind(self) -> str:
        """The kind's token."""
        kind: str = self.info.metadata["kind"]
        return kind

    @property
    def info(self) -> Any:
        """The ErrorInfo, which is always there."""
        return self.details["ErrorInfo"]

    @property
    def violations(self) -> list[Any]:
        """What BadRequest lists."""
        return list(self.details["BadRequest"].field_violations)

    @property
    def pushback(self) -> str | bytes | None:
        """The `grpc-retry-pushback-ms` trailer."""
        return self.trailers.get("grpc-retry-pushback-ms")


async def refused(rpc: Any) -> Refused:
    """Await an RPC that must fail with a rich status."""
    try:
        reply = await rpc
    except grpc.aio.AioRpcError as error:
        return refusal_of(error)
    raise AssertionError(f"answered: {reply}")


def refusal_of(error: grpc.aio.AioRpcError) -> Refused:
    """The unpacked status of an error."""
    trailers = dict(error.trailing_metadata() or ())
    raw = trailers.get("grpc-status-details-bin")
    assert isinstance(raw, bytes), f"no details: {error}"
    status = Status.FromString(raw)
    assert status.code == error.code().value[0]
    assert status.message == error.details()
    return Refused(status, trailers)


@contextlib.asynccontextmanager
async def serving(
    *,
    tokens: Iterable[Token] = (),
    certificates: Iterable[CertificateRule] = (),
    anonymous: bool = True,
    settings: ServerSettings | None = None,
    dispatcher: Dispatching | None = None,
    sampler: Sampler = ALWAYS_ON,
    host: str = "127.0.0.1",
    may_fault: bool = False,
) -> AsyncIterator[Served]:
    """The service on a free port of loopback. may_fault: faults of the edge are part of the story."""
    log = LogLines()
    served = Served(
        tokens=tokens,
        certificates=certificates,
        anonymous=anonymous,
        settings=settings or ServerSettings(listen="127.0.0.1:0"),
        dispatcher=dispatcher,
        sampler=sampler,
        reported_errors=log,
    )
    await served.start(host)
    try:
        yield served
    finally:
        await served.close()
    assert may_fault or not [line for line in log.lines if line[0] == "error"], log.lines
    assert served.span_counts.started == served.span_counts.ended
    assert (served.server.runner.active, served.server.runner.working) == (0, 0)
