"""A grpc.aio server that answers with its caller's own arguments and keeps no promise: the measure of ours.

Its methods are registered as generated code would do it. Prints its address; ends with its stdin.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc

from lineside.v1.dispatch_pb2 import (
    BatchItem,
    DispatchBatchRequest,
    DispatchBatchResponse,
    DispatchRequest,
    DispatchResponse,
    ToolAnswer,
)


async def dispatch(request: DispatchRequest, _: object) -> DispatchResponse:
    """Give the arguments back."""
    return DispatchResponse(answer=ToolAnswer(result_json=request.call.arguments_json))


async def dispatch_batch(
    requests: AsyncIterator[DispatchBatchRequest], _: object
) -> AsyncIterator[DispatchBatchResponse]:
    """Give every frame's arguments back in one frame."""
    async for request in requests:
        yield DispatchBatchResponse(
            items=[
                BatchItem(item_id=call.item_id, answer=ToolAnswer(result_json=call.arguments_json))
                for call in request.calls
            ]
        )


async def main() -> None:
    """Serve until stdin ends."""
    server = grpc.aio.server()
    handlers: dict[str, Any] = {
        "Dispatch": grpc.unary_unary_rpc_method_handler(
            dispatch,
            request_deserializer=DispatchRequest.FromString,
            response_serializer=DispatchResponse.SerializeToString,
        ),
        "DispatchBatch": grpc.stream_stream_rpc_method_handler(
            dispatch_batch,
            request_deserializer=DispatchBatchRequest.FromString,
            response_serializer=DispatchBatchResponse.SerializeToString,
        ),
    }
    service = grpc.method_handlers_generic_handler("lineside.v1.DispatchService", handlers)
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(main())
