"""Server reflection under both of its names: v1 and the older v1alpha, whose messages are identical."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from google.protobuf import descriptor_pool, text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
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
        self._servicer = reflection_aio.ReflectionServicer((*services, *SERVICES), pool=_Descriptors())

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


class _Descriptors:
    """The process's descriptors, and what the library's servicer does not find among them.

    A method is a symbol of its service's file, though the pool knows none; and v1 of reflection itself is as
    v1alpha, which alone is shipped.
    """

    def __init__(self) -> None:
        self._pools = (descriptor_pool.Default(), _reflection_v1())

    def FindFileContainingSymbol(self, symbol: str) -> Any:  # noqa: N802 - the pool's own name
        """The file of a message, enum, service, field or method; KeyError without one."""
        for name in (symbol, symbol.rpartition(".")[0]):
            for pool in self._pools:
                try:
                    file = pool.FindFileContainingSymbol(name)
                except KeyError:
                    continue
                if name == symbol or _has_method(file, symbol):
                    return file
        raise KeyError(symbol)

    def FindFileByName(self, name: str) -> Any:  # noqa: N802 - the pool's own name
        """A file by its path; KeyError without one."""
        shipped, added = self._pools
        try:
            return shipped.FindFileByName(name)
        except KeyError:
            return added.FindFileByName(name)

    def __getattr__(self, name: str) -> Any:
        """Everything else the pool of the process answers."""
        return getattr(self._pools[0], name)


def _has_method(file: Any, symbol: str) -> bool:
    services = file.services_by_name.values()
    return any(method.full_name == symbol for service in services for method in service.methods)


def _reflection_v1() -> descriptor_pool.DescriptorPool:
    shipped = FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(shipped)
    text = text_format.MessageToString(shipped).replace("v1alpha", "v1")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(text, FileDescriptorProto()))
    return pool


async def _only(request: object) -> AsyncIterator[object]:
    yield request
