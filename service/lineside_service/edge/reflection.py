"""Server reflection under both of its names: v1 and the older v1alpha, whose messages are identical."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection_pb2  # type: ignore[import-untyped] # ships none
from grpc_reflection.v1alpha.reflection import aio as reflection_aio  # type: ignore[import-untyped]

from lineside_service.core.errors import Failure
from lineside_service.core.jsontext import MAX_DEPTH
from lineside_service.edge.access import ALL_SCOPES, MethodRule
from lineside_service.edge.refusals import undecodable
from lineside_service.edge.rpc import RawContext, Rpc, next_raw, write_raw

SERVICES: Final = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
METHOD: Final = "ServerReflectionInfo"


def reflection_rule(*, is_open: bool) -> MethodRule:
    """Who may reflect: everybody on loopback, elsewhere whoever has any valid credential."""
    return MethodRule(scopes=ALL_SCOPES, is_open=is_open)


class Reflection:
    """Answers questions about the server's descriptors. services: full names, ours and the standard ones."""

    def __init__(self, services: Sequence[str]) -> None:
        self._servicer = reflection_aio.ReflectionServicer((*services, *SERVICES))

    async def __call__(self, rpc: Rpc, context: RawContext) -> Failure | None:
        """Serve one reflection stream to its end."""
        while (raw := await next_raw(context)) is not None:
            if (refusal := rpc.recheck()) is not None:
                return refusal
            try:
                request = reflection_pb2.ServerReflectionRequest.FromString(raw)
            except DecodeError:
                return undecodable("grpc.reflection.v1.ServerReflectionRequest", MAX_DEPTH)
            async for response in self._servicer.ServerReflectionInfo(_only(request), context):
                await write_raw(context, response.SerializeToString())
        return None


async def _only(request: object) -> AsyncIterator[object]:
    yield request
