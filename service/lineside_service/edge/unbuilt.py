"""Services of the contract that this version does not have: every method says so, and ignores nothing."""

from __future__ import annotations

from typing import Final

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from lineside.v1 import quotas_pb2, runs_pb2, work_pb2
from lineside_service.core.errors import Failure
from lineside_service.edge.refusals import method_unbuilt
from lineside_service.edge.rpc import Handler, RawContext, Rpc, RpcRunner

SERVICES: Final[tuple[ServiceDescriptor, ...]] = (
    runs_pb2.DESCRIPTOR.services_by_name["RunService"],
    work_pb2.DESCRIPTOR.services_by_name["WorkService"],
    quotas_pb2.DESCRIPTOR.services_by_name["QuotaService"],
)


def unbuilt_methods(runner: RpcRunner, service: ServiceDescriptor) -> dict[str, Handler]:
    """Handlers for every method of the service, streams included, that refuse with kind unimplemented.

    A caller must still be who it says and have the scope.
    """
    return {method.name: _refuser(runner, method) for method in service.methods}


def _refuser(runner: RpcRunner, method: MethodDescriptor) -> Handler:
    name = f"{method.containing_service.full_name}/{method.name}"

    async def refuse_stream(rpc: Rpc, context: RawContext) -> Failure:  # noqa: ARG001 - a StreamHandler
        return method_unbuilt(name)

    async def refuse(rpc: Rpc, request: Message) -> Failure:  # noqa: ARG001 - a UnaryHandler
        return method_unbuilt(name)

    if method.client_streaming or method.server_streaming:
        return runner.stream(name, refuse_stream, client_streams=method.client_streaming)
    return runner.unary(name, GetMessageClass(method.input_type), refuse)
