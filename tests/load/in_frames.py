"""What an item of a framed batch costs in process: the edge's stream and the road, without gRPC below."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, cast

import grpc
import msgspec
import structlog
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from lineside.v1.dispatch_pb2 import DispatchBatchRequest, DispatchBatchResponse, ToolCall
from lineside_service.edge.access import ALL_SCOPES
from lineside_service.edge.auth import Identity
from lineside_service.edge.batch import BatchMethod
from lineside_service.edge.durations import CallDurations
from lineside_service.edge.rpc import RawContext, Rpc
from lineside_service.edge.spans import EdgeTelemetry
from lineside_service.edge.stream import Behind
from tests.load.rig import ARGUMENTS, Rig

if TYPE_CHECKING:
    from lineside_service.engine.telemetry import Log

ITEMS, PER_FRAME = 6_400, 64


class _Frames:
    """Stands where gRPC's context does: the next frame comes once the one before is answered."""

    def __init__(self, frames: list[bytes]) -> None:
        self._frames = frames
        self._answered = asyncio.Event()
        self._left = 0
        self.items = 0

    async def read(self) -> object:
        """The next frame, or the caller's half-close."""
        while self._left:
            self._answered.clear()
            await self._answered.wait()
        if not self._frames:
            return grpc.aio.EOF
        self._left = PER_FRAME
        return self._frames.pop()

    async def write(self, frame: bytes) -> None:
        """An answer frame goes out."""
        count = len(DispatchBatchResponse.FromString(frame).items)
        self._left -= count
        self.items += count
        self._answered.set()


async def frame_item_us(rig: Rig) -> float:
    """Microseconds per item of frames of 64, the parsing and writing of the frames included, the tool too."""
    telemetry = EdgeTelemetry(
        tracer=TracerProvider(sampler=ALWAYS_OFF).get_tracer("bench"),
        durations=CallDurations(),
        propagator=TraceContextTextMapPropagator(),
        log=cast("Log", structlog.get_logger()),
    )
    dispatcher = rig.dispatcher
    method = BatchMethod(
        Behind(
            dispatcher=dispatcher,
            catalogue=dispatcher.registry,
            telemetry=telemetry,
            sources=dispatcher.sources,
        )
    )
    frames = _Frames([_frame(number) for number in range(ITEMS // PER_FRAME)])
    rpc = Rpc(
        identity=Identity(tenant="bench", scopes=ALL_SCOPES),
        arrival=dispatcher.sources.now(),
        left_s=None,
        previous_attempts=0,
        trace=telemetry.begin("lineside.v1.DispatchService/DispatchBatch", (), str),
    )
    began = time.perf_counter()
    failure = await method(rpc, cast("RawContext", frames))
    took_s = time.perf_counter() - began
    if failure is not None or frames.items != ITEMS:
        raise RuntimeError(f"{frames.items} of {ITEMS} items were answered: {failure}")
    return took_s / ITEMS * 1e6


def _frame(number: int) -> bytes:
    arguments = msgspec.json.encode(ARGUMENTS)
    calls = [
        ToolCall(tool="echo", arguments_json=arguments, item_id=f"{number}-{item}")
        for item in range(PER_FRAME)
    ]
    return DispatchBatchRequest(calls=calls).SerializeToString()
