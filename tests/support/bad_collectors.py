"""OTLP collectors that are down, deaf or slow, on real ports."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

KINDS = ("refusing", "deaf", "slow")


class Never(TraceServiceServicer, MetricsServiceServicer):
    """Takes an export and does not answer it. asked: set with the first; exports: how many there were."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.exports = 0

    async def Export(self, request: object, context: object) -> object:  # noqa: N802 - gRPC's name
        """Wait for ever."""
        self.exports += 1
        self.asked.set()
        return await asyncio.get_running_loop().create_future()


@contextlib.asynccontextmanager
async def never_answering() -> AsyncIterator[tuple[str, Never]]:
    """The address of one that takes exports of either signal and answers none, and its side of it."""
    server, never = grpc.aio.server(), Never()
    add_TraceServiceServicer_to_server(never, server)  # type: ignore[no-untyped-call]
    add_MetricsServiceServicer_to_server(never, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"http://127.0.0.1:{port}", never
    finally:
        await server.stop(0)


@contextlib.asynccontextmanager
async def bad_collector(kind: str) -> AsyncIterator[str]:
    """The address of one that is `refusing`, `deaf` (accepts, says nothing) or `slow` (never answers)."""
    if kind == "slow":
        async with never_answering() as (endpoint, _):
            yield endpoint
        return
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        if kind == "deaf":
            hole.listen(16)
        yield f"http://127.0.0.1:{hole.getsockname()[1]}"
