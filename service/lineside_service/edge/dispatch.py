"""The unary Dispatch: one call down the road."""

from __future__ import annotations

from lineside.v1.dispatch_pb2 import DispatchRequest, DispatchResponse, ToolAnswer, ToolCall
from lineside_service.core.deadline import reply_margin_s
from lineside_service.core.errors import Failure
from lineside_service.edge.answers import fill_answer
from lineside_service.edge.facade import Catalogue, Dispatching
from lineside_service.edge.intake import Circumstances, both_forms, read_call
from lineside_service.edge.refusals import bad_field, too_many_fields
from lineside_service.edge.replytimes import KEYED, ReplyTimes
from lineside_service.edge.rpc import Rpc
from lineside_service.edge.spans import EdgeTelemetry, ItemTrace, RpcTrace, own_context
from lineside_service.edge.wirescan import MAX_FIELDS, TooManyFields, request_has_both_forms


class DispatchMethod:
    """Dispatch, over the engine's dispatcher."""

    def __init__(self, dispatcher: Dispatching, catalogue: Catalogue, telemetry: EdgeTelemetry) -> None:
        self._dispatcher = dispatcher
        self._catalogue = catalogue
        self._telemetry = telemetry
        self._reply_times = ReplyTimes()

    async def __call__(self, rpc: Rpc, request: DispatchRequest) -> DispatchResponse | Failure:
        """Answer one call."""
        if not request.HasField("call"):
            return bad_field("call", "required: the call to run", "REQUIRED")
        wire, response = request.call, DispatchResponse()
        try:
            if request_has_both_forms(rpc.raw, request):
                return both_forms()
        except TooManyFields:
            return too_many_fields("call", MAX_FIELDS)
        if wire.HasField("trace_context") and not rpc.trace.has_caller:
            failure = await self._in_own_trace(rpc, wire, response.answer)
        else:
            failure = await self._run(rpc, wire, response.answer, rpc.trace)
        return failure or response

    async def _in_own_trace(self, rpc: Rpc, wire: ToolCall, answer: ToolAnswer) -> Failure | None:
        """A caller that could set no metadata names its trace in the call."""
        own = own_context(wire.trace_context.traceparent, wire.trace_context.tracestate)
        if own is None:
            return await self._run(rpc, wire, answer, rpc.trace)
        known = self._catalogue.find(wire.tool, rpc.identity.tenant) is not None
        item = self._telemetry.begin_item(wire.tool if known else "", wire.item_id, own, rpc.trace)
        failure: Failure | None = None
        try:
            failure = await self._run(rpc, wire, answer, item)
            return failure
        finally:
            item.end(failure)

    async def _run(
        self, rpc: Rpc, wire: ToolCall, answer: ToolAnswer, around: RpcTrace | ItemTrace
    ) -> Failure | None:
        latest, replies = None, KEYED if wire.HasField("idempotency_key") else 1
        if rpc.left_s is not None:
            left_s = rpc.left_s - reply_margin_s(rpc.left_s)
            latest = self._reply_times.book(rpc.arrival + left_s, left_s, replies)
        try:
            call = read_call(
                wire,
                Circumstances(
                    tenant=rpc.identity.tenant,
                    arrival=rpc.arrival,
                    rpc_left_s=rpc.left_s,
                    latest=latest,
                    previous_rpc_attempts=rpc.previous_attempts,
                    parent=around.context,
                    is_traced=not around.is_left_out,
                ),
            )
            if isinstance(call, Failure):
                return call
            reply = await self._dispatcher.dispatch(call)
            around.ran(reply)
            if isinstance(reply, Failure):
                return reply
            return fill_answer(answer, reply, as_struct=wire.HasField("arguments"), trace_id=around.trace_id)
        finally:
            if latest is not None:
                self._reply_times.release(latest, replies)
