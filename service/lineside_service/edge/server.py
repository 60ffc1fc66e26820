"""The gRPC server: every service of the contract, health, reflection, and the order of going down."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import grpc

from lineside.v1 import calls_pb2, dispatch_pb2, tools_pb2
from lineside_service.edge import health, reflection
from lineside_service.edge.auth import Authenticator
from lineside_service.edge.batch import BatchMethod
from lineside_service.edge.call_service import CallMethods
from lineside_service.edge.credentials import ServerCredentials
from lineside_service.edge.dispatch import DispatchMethod
from lineside_service.edge.facade import CallBook, Catalogue, Dispatching
from lineside_service.edge.intake import too_large
from lineside_service.edge.paging import PageTokens
from lineside_service.edge.rpc import Handler, RpcRunner
from lineside_service.edge.settings import ServerSettings, TlsFiles
from lineside_service.edge.spans import EdgeTelemetry
from lineside_service.edge.stream import Behind
from lineside_service.edge.tool_service import ToolMethods
from lineside_service.edge.unbuilt import SERVICES as UNBUILT
from lineside_service.edge.unbuilt import unbuilt_methods
from lineside_service.engine.sources import Sources

LAST_REPLIES_S: Final = 0.5
"""What writing the last replies may take beyond the grace."""
LAST_STREAMS_S: Final = 0.1
"""Then what never ends by itself, health watches above all, is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What main hands in. page_secret: 32 random bytes that sign page tokens."""

    dispatcher: Dispatching
    catalogue: Catalogue
    calls: CallBook
    auth: Authenticator
    telemetry: EdgeTelemetry
    sources: Sources
    page_secret: bytes


class EdgeServer:
    """Serves until it is drained. Starts as not serving: say `set_ready` once the ledger is ready."""

    def __init__(self, parts: Parts, settings: ServerSettings) -> None:
        self._parts = parts
        self._settings = settings
        self._server: grpc.aio.Server | None = None
        self._credentials = ServerCredentials(settings.tls) if settings.tls is not None else None
        self.runner = RpcRunner(
            auth=parts.auth,
            telemetry=parts.telemetry,
            sources=parts.sources,
            max_rpcs=settings.max_rpcs,
        )
        self.batch = BatchMethod(
            Behind(
                dispatcher=parts.dispatcher,
                catalogue=parts.catalogue,
                telemetry=parts.telemetry,
                sources=parts.sources,
            )
        )
        self._services = self._handlers()
        self._health = health.Health(self._services)

    async def start(self) -> int:
        """Listen; returns the port. RuntimeError when the address cannot be had."""
        server = grpc.aio.server(options=self._settings.channel_options)
        for service, methods in self._services.items():
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, dict(methods)),))
        await self._health.set_serving(is_serving=False)
        self._health.add_to(server)
        if self._settings.reflection:
            self._add_reflection(server)
        if self._credentials is None:
            port = server.add_insecure_port(self._settings.listen)
        else:
            port = server.add_secure_port(self._settings.listen, self._credentials.grpc)
        await server.start()
        self._server = server
        return port

    async def set_ready(self, *, is_ready: bool) -> None:
        """Tell load balancers whether to send calls here."""
        await self._health.set_serving(is_serving=is_ready)

    def replace_tls(self, files: TlsFiles) -> None:
        """Use renewed certificate files from the next handshake on. Without effect on a plain server."""
        if self._credentials is not None:
            self._credentials.replace(files)

    async def drain(self, grace_s: float) -> bool:
        """Go down in order: health, then new calls and streams, then what is in flight, then the port.

        Returns whether everything in flight ended by itself within `grace_s` seconds.
        """
        await self._health.begin_drain()
        self._parts.dispatcher.begin_drain(grace_s)
        self.runner.begin_drain()
        self.batch.begin_drain()
        now = self._parts.sources.now
        end = now() + grace_s
        ended = await self._parts.dispatcher.drain(grace_s)
        try:
            async with asyncio.timeout_at(max(end, now() + LAST_REPLIES_S)):
                await self.runner.idle()
        except TimeoutError:
            ended = False
        await self.stop(LAST_STREAMS_S)
        return ended

    async def stop(self, grace_s: float = 0.0) -> None:
        """Close the port; what still runs after `grace_s` seconds is cancelled."""
        if self._server is not None:
            await self._server.stop(grace_s)

    def _handlers(self) -> Mapping[str, Mapping[str, Handler]]:
        parts, runner = self._parts, self.runner
        dispatch = DispatchMethod(parts.dispatcher, parts.catalogue, parts.telemetry)
        tokens = PageTokens(parts.page_secret)
        tools = ToolMethods(parts.catalogue, tokens, parts.sources.now)
        calls = CallMethods(parts.calls, tokens)
        v1 = "lineside.v1"
        built: dict[str, dict[str, Handler]] = {
            f"{v1}.DispatchService": {
                "Dispatch": runner.unary(
                    f"{v1}.DispatchService/Dispatch", dispatch_pb2.DispatchRequest, dispatch, too_large
                ),
                "DispatchBatch": runner.stream(f"{v1}.DispatchService/DispatchBatch", self.batch),
            },
            f"{v1}.ToolService": {
                "ListTools": runner.unary(
                    f"{v1}.ToolService/ListTools", tools_pb2.ListToolsRequest, tools.list_tools
                ),
                "GetTool": runner.unary(
                    f"{v1}.ToolService/GetTool", tools_pb2.GetToolRequest, tools.get_tool
                ),
            },
            f"{v1}.CallService": {
                "GetCall": runner.unary(
                    f"{v1}.CallService/GetCall", calls_pb2.GetCallRequest, calls.get_call
                ),
                "ListCalls": runner.unary(
                    f"{v1}.CallService/ListCalls", calls_pb2.ListCallsRequest, calls.list_calls
                ),
                "SettleCall": runner.unary(
                    f"{v1}.CallService/SettleCall", calls_pb2.SettleCallRequest, calls.settle_call
                ),
            },
        }
        return built | {service.full_name: unbuilt_methods(runner, service) for service in UNBUILT}

    def _add_reflection(self, server: grpc.aio.Server) -> None:
        answer = reflection.Reflection((*self._services, health.SERVICE))
        rule = reflection.reflection_rule(is_open=self._settings.reflection_open)
        for service in reflection.SERVICES:
            handler = self.runner.stream(f"{service}/{reflection.METHOD}", answer, rule=rule)
            server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(service, {reflection.METHOD: handler}),)
            )
