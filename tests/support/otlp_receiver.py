"""An OTLP collector on a real port that keeps the spans it gets."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)


class SpanReceiver(TraceServiceServicer):
    """Takes every export. spans: in order of arrival; endpoint: what OTEL_EXPORTER_OTLP_ENDPOINT names."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.endpoint = ""

    async def Export(  # noqa: N802 - gRPC's name
        self, request: ExportTraceServiceRequest, context: object
    ) -> ExportTraceServiceResponse:
        """Take a batch."""
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return ExportTraceServiceResponse()


@contextlib.asynccontextmanager
async def span_receiver() -> AsyncIterator[SpanReceiver]:
    """A receiver that listens until the block ends."""
    receiver = SpanReceiver()
    server = grpc.aio.server()
    add_TraceServiceServicer_to_server(receiver, server)  # type: ignore[no-untyped-call]
    receiver.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield receiver
    finally:
        await server.stop(0)
