"""A real grpc.aio service whose tools do what their arguments say, so that a caller in any process can
script it.

Tools: `echo` answers its arguments; `say_no` does so with tool_error; `refuse` ends with the error its
arguments tell, the first `times` times per `name`; `cut` runs its effect and then cuts the connection, the
first `times` times per `name`; `hang` runs until it is cancelled; `gate` waits until `open_gate` with the
same name was called; `seen` tells what arrived under a name; `drain` (on a stream) is answered at once,
then the stream reads no more, waits for the gate and ends as a drain does.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import grpc
from google.rpc import status_pb2
from grpc_status import rpc_status

from lineside.v1 import calls_pb2, dispatch_pb2, errors_pb2, tools_pb2
from lineside.v1.calls_pb2_grpc import CallServiceServicer, add_CallServiceServicer_to_server
from lineside.v1.dispatch_pb2_grpc import DispatchServiceServicer, add_DispatchServiceServicer_to_server
from lineside.v1.tools_pb2_grpc import ToolServiceServicer, add_ToolServiceServicer_to_server
from tests.client.rich_status import status
from tests.support.cut_proxy import CutProxy, cut_proxy

Context = grpc.aio.ServicerContext[Any, Any]


class Refused(Exception):
    def __init__(self, told: status_pb2.Status, trailers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(told.message)
        self.told = told
        self.trailers = trailers


@dataclass
class Seen:
    arrivals: int = 0
    effects: int = 0
    cancelled: int = 0
    metadata: dict[str, str] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    is_cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    has_arrived: asyncio.Event = field(default_factory=asyncio.Event)


class ScriptedTools:
    """What the tools do, the same for unary calls and batch items."""

    def __init__(self) -> None:
        self.names: collections.defaultdict[str, Seen] = collections.defaultdict(Seen)
        self.proxy: CutProxy | None = None
        self.id_prefix = "call-"

    async def run(self, call: dispatch_pb2.ToolCall, metadata: dict[str, str]) -> dispatch_pb2.ToolAnswer:
        arguments: dict[str, Any] = json.loads(call.arguments_json)
        name = str(arguments.get("name", ""))
        seen = self.names[name]
        if call.tool == "seen":
            counts = {"arrivals": seen.arrivals, "effects": seen.effects, "cancelled": seen.cancelled}
            return _answer({**counts, "metadata": seen.metadata, "calls": seen.calls})
        if call.tool == "await_cancelled":
            await seen.is_cancelled.wait()
            return _answer(None)
        if call.tool == "await_arrival":
            await seen.has_arrived.wait()
            return _answer(None)
        if call.tool == "open_gate":
            seen.gate.set()
            return _answer(None)
        seen.arrivals += 1
        seen.metadata = metadata
        seen.calls.append(_told(call))
        seen.has_arrived.set()
        return await self._act(call.tool, arguments, seen)

    async def _act(self, tool: str, arguments: dict[str, Any], seen: Seen) -> dispatch_pb2.ToolAnswer:
        if tool == "refuse" and seen.arrivals <= arguments.get("times", 1):
            pushback = arguments.get("pushback_ms")
            trailers = () if pushback is None else (("grpc-retry-pushback-ms", str(pushback)),)
            raise Refused(status(**arguments["status"]), trailers)
        if tool == "cut_then_refuse" and seen.arrivals > 1:
            raise Refused(status(**arguments["status"]))
        seen.effects += 1
        if tool in ("cut", "cut_then_refuse") and seen.arrivals <= arguments.get("times", 1):
            assert self.proxy is not None
            self.proxy.cut()
            await asyncio.Event().wait()
        if tool == "hang":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.cancelled += 1
                seen.is_cancelled.set()
                raise
        if tool == "gate":
            await seen.gate.wait()
        if tool == "big":
            return _answer("x" * arguments["size"])
        return _answer(arguments, tool_error=tool == "say_no")


class ScriptedService(DispatchServiceServicer, ToolServiceServicer, CallServiceServicer):
    """The servicers around the tools, with fixed answers to questions about tools and calls."""

    # ruff: noqa: N802, D102 - the contract names the methods and says what they do

    def __init__(self, tools: ScriptedTools) -> None:
        self.tools = tools

    async def Dispatch(
        self, request: dispatch_pb2.DispatchRequest, context: Context
    ) -> dispatch_pb2.DispatchResponse:
        try:
            answer = await self.tools.run(request.call, _metadata(context))
        except Refused as refused:
            await _end(context, refused.told, *refused.trailers)
        return dispatch_pb2.DispatchResponse(answer=answer)

    async def DispatchBatch(  # type: ignore[override]
        self, request_iterator: AsyncIterator[dispatch_pb2.DispatchBatchRequest], context: Context
    ) -> None:
        stream = _Stream(self.tools, context)
        async with asyncio.TaskGroup() as work:
            drain_name = await stream.read(request_iterator, work)
            if drain_name is not None:
                await self.tools.names[drain_name].gate.wait()
        if drain_name is not None:
            accepted = ("lineside-frames-accepted", str(stream.frames))
            await _end(context, status("unavailable", outcome="not_run"), accepted)

    async def GetTool(self, request: tools_pb2.GetToolRequest, context: Context) -> tools_pb2.GetToolResponse:
        if request.name != "echo":
            await _end(context, status("not_found"))
        return tools_pb2.GetToolResponse(tool=_tool("echo", is_full=True))

    async def ListTools(
        self, request: tools_pb2.ListToolsRequest, context: Context
    ) -> tools_pb2.ListToolsResponse:
        start = int(request.page_token or 0)
        names = [f"tool-{n}" for n in range(5)]
        is_full = request.view == tools_pb2.TOOL_VIEW_FULL
        return tools_pb2.ListToolsResponse(
            tools=[_tool(name, is_full=is_full) for name in names[start : start + 2]],
            next_page_token=str(start + 2) if start + 2 < len(names) else "",
        )

    async def GetCall(self, request: calls_pb2.GetCallRequest, context: Context) -> calls_pb2.GetCallResponse:
        if request.WhichOneof("lookup") == "key":
            key = request.key.idempotency_key
            return calls_pb2.GetCallResponse(call=_record(call_id="by-key", idempotency_key=key))
        if request.call_id != "known":
            await _end(context, status("not_found"))
        return calls_pb2.GetCallResponse(call=_record(call_id="known"))

    async def ListCalls(
        self, request: calls_pb2.ListCallsRequest, context: Context
    ) -> calls_pb2.ListCallsResponse:
        start = int(request.page_token or 0)
        calls = [
            calls_pb2.Call(
                call_id=f"{self.tools.id_prefix}{n}",
                tool=request.tool or "echo",
                state=request.state,
                etag=f"e{n}",
            )
            for n in range(start, min(start + 2, 5))
            if request.tool != "nobody"
        ]
        return calls_pb2.ListCallsResponse(
            calls=calls, next_page_token=str(start + 2) if start + 2 < 5 and calls else ""
        )

    async def SettleCall(
        self, request: calls_pb2.SettleCallRequest, context: Context
    ) -> calls_pb2.SettleCallResponse:
        if request.etag != "e-known":
            await _end(context, status("conflict"))
        call = _record(
            call_id=request.call_id, settled_by=calls_pb2.SETTLED_BY_PERSON, settle_reason=request.reason
        )
        if request.WhichOneof("settlement") == "done":
            call.result_json = request.done.result_json
            call.tool_error = request.done.tool_error
        else:
            call.state = calls_pb2.Call.STATE_NOT_RUN
            call.ClearField("result_form")
        return calls_pb2.SettleCallResponse(call=call)


class _Stream:
    """One batch stream."""

    def __init__(self, tools: ScriptedTools, context: Context) -> None:
        self.frames = 0
        self._tools = tools
        self._context = context
        self._writing = asyncio.Lock()

    async def read(
        self, frames: AsyncIterator[dispatch_pb2.DispatchBatchRequest], work: asyncio.TaskGroup
    ) -> str | None:
        """Takes frames until half-close, or until a frame that has a `drain` call: then its name is
        returned.
        """
        async for frame in frames:
            self.frames += 1
            names = [json.loads(call.arguments_json)["name"] for call in frame.calls if call.tool == "drain"]
            is_first = bool(names) and not self._tools.names[names[0]].arrivals
            for call in frame.calls:
                work.create_task(self._one(call))
            if is_first:
                return str(names[0])
        return None

    async def _one(self, call: dispatch_pb2.ToolCall) -> None:
        try:
            answer = await self._tools.run(call, _metadata(self._context))
            item = dispatch_pb2.BatchItem(item_id=call.item_id, answer=answer)
        except Refused as refused:
            item = dispatch_pb2.BatchItem(item_id=call.item_id, error=refused.told)
        async with self._writing:
            await self._context.write(dispatch_pb2.DispatchBatchResponse(items=[item]))


@contextlib.asynccontextmanager
async def serving(
    credentials: grpc.ServerCredentials | None = None,
) -> AsyncIterator[tuple[ScriptedTools, str]]:
    """The service on a port of its own, behind a proxy that its `cut` tool cuts; yields its tools and
    target.
    """
    tools = ScriptedTools()
    server = grpc.aio.server(
        options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 16 * 1024 * 1024)]
    )
    service = ScriptedService(tools)
    add_DispatchServiceServicer_to_server(service, server)
    add_ToolServiceServicer_to_server(service, server)
    add_CallServiceServicer_to_server(service, server)
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        async with cut_proxy(f"127.0.0.1:{port}") as tools.proxy:
            yield tools, tools.proxy.target
    finally:
        await server.stop(None)


async def _end(context: Context, told: status_pb2.Status, *trailers: tuple[str, str]) -> NoReturn:
    # Trailers that are set on the context would be replaced by the status's own.
    rich = rpc_status.to_status(told)
    await context.abort(rich.code, rich.details, (*rich.trailing_metadata, *trailers))
    raise AssertionError("abort raises")


def _answer(result: Any, *, tool_error: bool = False) -> dispatch_pb2.ToolAnswer:
    answer = dispatch_pb2.ToolAnswer(
        result_json=json.dumps(result).encode(),
        tool_error=tool_error,
        call_id="0190b5f0-0000-7000-8000-000000000001",
        attempts=2,
        source=errors_pb2.SOURCE_EXECUTED,
        trace_id="0af7651916cd43dd8448eb211c80319c",
    )
    answer.queue_time.FromMilliseconds(250)
    answer.run_time.FromMilliseconds(1500)
    answer.first_started_time.FromSeconds(1_700_000_000)
    return answer


def _record(**fields: Any) -> calls_pb2.Call:
    call = calls_pb2.Call(
        tool="echo",
        state=calls_pb2.Call.STATE_DONE,
        attempts=2,
        result_json=b"[1,null]",
        etag="e-known",
        tenant="local",
        **fields,
    )
    call.start_time.FromMilliseconds(1_700_000_000_500)
    attempt = call.attempt_records.add(
        number=1, kind=errors_pb2.ERROR_KIND_TRANSIENT, outcome=errors_pb2.OUTCOME_NOT_RUN
    )
    attempt.duration.FromMilliseconds(20)
    call.decisions.add(choice="retry", reason="TRANSIENT", numbers={"backoff_s": 0.1})
    return call


def _tool(name: str, *, is_full: bool) -> tools_pb2.Tool:
    tool = tools_pb2.Tool(
        name=name,
        description=f"what {name} is for",
        kind=tools_pb2.TOOL_KIND_PYTHON,
        effect=tools_pb2.EFFECT_FINAL,
        idempotency=tools_pb2.IDEMPOTENCY_NOT_IDEMPOTENT,
        concurrency=8,
    )
    tool.timeout.FromSeconds(30)
    if is_full:
        tool.input_schema_json = b'{"type":"object"}'
    return tool


def _metadata(context: Context) -> dict[str, str]:
    return {str(name): str(value) for name, value in context.invocation_metadata() or ()}


def _told(call: dispatch_pb2.ToolCall) -> dict[str, Any]:
    return {
        "key": call.idempotency_key if call.HasField("idempotency_key") else None,
        "item_id": call.item_id,
        "call_timeout_s": call.call_timeout.ToNanoseconds() / 1e9,
        "attempt_timeout_s": call.attempt_timeout.ToNanoseconds() / 1e9,
        "budget": call.budget_tool_calls_remaining if call.HasField("budget_tool_calls_remaining") else None,
        "validate_only": call.validate_only,
        "traceparent": call.trace_context.traceparent,
    }
