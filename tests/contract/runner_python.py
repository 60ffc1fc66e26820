"""The runner of the Python client: does what a file of scenarios says, and prints what it got.

python -m tests.contract.runner_python FILE
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TextIO

import grpc
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc.aio import AioRpcError
from grpc_health.v1 import health_pb2
from opentelemetry import context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from lineside import AsyncClient, Call, DispatchError
from lineside.answer import Answer
from lineside.status import from_rpc, from_status
from lineside.v1 import calls_pb2, dispatch_pb2, tools_pb2

Json = dict[str, Any]
_EXTRA: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("headers of this step", default=())
_REQUESTS: Mapping[str, tuple[type[Message], type[Message]]] = {
    "lineside.v1.CallService/GetCall": (calls_pb2.GetCallRequest, calls_pb2.GetCallResponse),
    "lineside.v1.CallService/ListCalls": (calls_pb2.ListCallsRequest, calls_pb2.ListCallsResponse),
    "lineside.v1.CallService/SettleCall": (calls_pb2.SettleCallRequest, calls_pb2.SettleCallResponse),
    "lineside.v1.ToolService/ListTools": (tools_pb2.ListToolsRequest, tools_pb2.ListToolsResponse),
    "lineside.v1.ToolService/GetTool": (tools_pb2.GetToolRequest, tools_pb2.GetToolResponse),
    "grpc.health.v1.Health/Check": (health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse),
}
_SAID = {"tool", "arguments_json", "idempotency_key", "attempt_timeout", "validate_only",
         "budget_tool_calls_remaining", "item_id"}  # fmt: skip
"""What the client's own `dispatch` has words for; its timeout_s is call_timeout and the RPC's deadline."""
_ = error_details_pb2  # registers the details' types, so that an Any of them can be written as JSON


class Client(AsyncClient):
    """The client, with a step's headers, and an eye on what a batch's items were on the wire."""

    def __init__(self, target: str, token: str | None, ca: str | None) -> None:
        super().__init__(target, token=token, ca=ca)

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (*super()._metadata(), *_EXTRA.get())

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What a call by the stub carries."""
        return self._metadata()

    def _connected(self) -> Any:
        stubs: Any = super()._connected()
        if not isinstance(stubs.dispatch, _Tapped):
            stubs.dispatch = _Tapped(stubs.dispatch)
        return stubs

    @property
    def channel(self) -> grpc.aio.Channel:
        """The one connection."""
        channel: grpc.aio.Channel = self._connected().channel
        return channel

    @property
    def stub(self) -> Any:
        """The stub of DispatchService."""
        return self._connected().dispatch


_HEARD: ContextVar[dict[str, dispatch_pb2.BatchItem]] = ContextVar("items of this step's batch")


class _Tapped:
    """The stub of DispatchService; what its batch streams answer is noted as well."""

    def __init__(self, stub: Any) -> None:
        self.Dispatch = stub.Dispatch
        self._open = stub.DispatchBatch

    def DispatchBatch(self, **options: Any) -> _Stream:  # noqa: N802 - the stub's name
        return _Stream(self._open(**options), _HEARD.get())


class _Stream:
    def __init__(self, stream: Any, heard: dict[str, dispatch_pb2.BatchItem]) -> None:
        self._stream, self._heard = stream, heard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aiter__(self) -> AsyncIterator[dispatch_pb2.DispatchBatchResponse]:
        async for response in self._stream:
            self._heard.update((item.item_id, item) for item in response.items)
            yield response


def as_json(message: Message) -> Json:
    """Proto3 JSON with the proto's field names."""
    told: Json = MessageToDict(message, preserving_proto_field_name=True)
    return told


class Runner:
    """Runs scenarios one after the other; one client for each address and token."""

    def __init__(self, addresses: Mapping[str, str], token: str | None, ca: str | None) -> None:
        self._addresses, self._token, self._ca = addresses, token, ca
        self._clients: dict[tuple[str, str | None], Client] = {}

    async def run(self, scenario: Json) -> list[Any]:
        """The answers of its steps."""
        client = self._client(scenario.get("via", "direct"), scenario.get("token", self._token))
        return [await self._step(client, step) for step in scenario["steps"]]

    async def close(self) -> None:
        """Close every connection."""
        for client in self._clients.values():
            await client.close()

    def _client(self, via: str, token: str | None) -> Client:
        if (via, token) not in self._clients:
            self._clients[via, token] = Client(self._addresses[via], token, self._ca)
        return self._clients[via, token]

    async def _step(self, client: Client, step: Json) -> Any:
        if "parallel" in step:
            return await asyncio.gather(*(self._step(client, one) for one in step["parallel"]))
        _EXTRA.set(tuple(step.get("metadata", {}).items()))
        parent = context.get_current()
        if "parent" in step:
            parent = TraceContextTextMapPropagator().extract({"traceparent": step["parent"]})
        attached = context.attach(parent)
        try:
            return await _cancelled(_do(client, step), step.get("cancel_after_s"))
        finally:
            context.detach(attached)
            _EXTRA.set(())


async def _cancelled(work: Awaitable[Any], after_s: float | None) -> Any:
    """What it gives; a task of its own, so that its caller can cancel it."""
    task = asyncio.ensure_future(work)
    if after_s is None:
        return await task
    await asyncio.wait([task], timeout=after_s)
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        return {"code": "CANCELLED", "message": "the caller cancelled", "details": []}


async def _do(client: Client, step: Json) -> Any:
    timeout_s = step.get("timeout_s")
    match step:
        case {"dispatch": call} if set(call) <= _SAID:
            return await _ended(_dispatch(client, call, timeout_s))
        case {"dispatch": call}:
            request = ParseDict({"call": call}, dispatch_pb2.DispatchRequest())
            return await _ended(_by_stub(client, request, timeout_s))
        case {"batch": calls}:
            return await _batch(client, calls, timeout_s)
        case {"frames": frames}:
            return await _frames(client, frames, timeout_s)
        case {"unary": {"method": method, "request": request}}:
            return await _ended(_unary(client, method, request, timeout_s), reads=False)
    raise ValueError(f"no such step: {step}")


async def _dispatch(client: Client, call: Json, timeout_s: float | None) -> Json:
    """The client's own call function."""
    said = _call(call)
    answer = await client.dispatch(
        said.tool,
        said.arguments,
        idempotency_key=said.idempotency_key,
        timeout_s=timeout_s,
        attempt_timeout_s=said.attempt_timeout_s,
        budget_tool_calls_remaining=said.budget_tool_calls_remaining,
        validate_only=said.validate_only,
    )
    return _answer(answer)


def _call(told: Json) -> Call:
    wire = ParseDict(told, dispatch_pb2.ToolCall())
    return Call(
        tool=wire.tool,
        arguments=wire.arguments_json,
        idempotency_key=wire.idempotency_key if wire.HasField("idempotency_key") else None,
        item_id=wire.item_id,
        timeout_s=_seconds(wire, "call_timeout"),
        attempt_timeout_s=_seconds(wire, "attempt_timeout"),
        budget_tool_calls_remaining=(
            wire.budget_tool_calls_remaining if wire.HasField("budget_tool_calls_remaining") else None
        ),
        validate_only=wire.validate_only,
    )


def _seconds(wire: Any, field: str) -> float | None:
    return getattr(wire, field).ToTimedelta().total_seconds() if wire.HasField(field) else None


def _answer(answer: Answer) -> Json:
    """What the client says of an answer, as a ToolAnswer; its result has been read and is written anew."""
    wire = dispatch_pb2.ToolAnswer(
        tool_error=answer.tool_error,
        call_id=answer.call_id,
        attempts=answer.attempts,
        trace_id=answer.trace_id,
    )
    told = as_json(wire)
    if answer.source is not None:
        told["source"] = f"SOURCE_{answer.source.name}"
    if answer.attempts:
        text = json.dumps(answer.result, ensure_ascii=False, separators=(",", ":"))
        told["result_json"] = base64.b64encode(text.encode()).decode()
    for name, seconds in (("queue_time", answer.queue_time_s), ("run_time", answer.run_time_s)):
        if seconds is not None:
            told[name] = f"{seconds:.9f}s"
    if answer.first_started_time is not None:
        told["first_started_time"] = answer.first_started_time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return told


async def _by_stub(client: Client, request: dispatch_pb2.DispatchRequest, timeout_s: float | None) -> Json:
    response = await client.stub.Dispatch(request, timeout=timeout_s or 60, metadata=client.metadata())
    return as_json(response.answer)


async def _unary(client: Client, method: str, request: Json, timeout_s: float | None) -> Json:
    shapes = _REQUESTS.get(method)
    ask: Message = ParseDict(request, shapes[0]()) if shapes else dispatch_pb2.DispatchRequest()
    read: Callable[[bytes], Any] = (
        shapes[1].FromString if shapes else dispatch_pb2.DispatchResponse.FromString
    )
    rpc: Any = client.channel.unary_unary(
        f"/{method}", request_serializer=type(ask).SerializeToString, response_deserializer=read
    )
    return as_json(await rpc(ask, timeout=timeout_s or 60, metadata=client.metadata()))


async def _ended(work: Awaitable[Json], *, reads: bool = True) -> Json:
    """Its ending. reads: the client's own reading of an error goes with it."""
    try:
        return {"code": "OK", "response": await work}
    except DispatchError as error:
        lost = error.__context__
        return {**(_lost(lost) if isinstance(lost, AioRpcError) else _unsent(error)), **_reading(error)}
    except AioRpcError as lost:
        if not reads:
            return _lost(lost)
        trailers = list(lost.trailing_metadata() or ())
        return {
            **_lost(lost),
            **_reading(from_rpc(lost.code(), lost.details() or "", trailers, is_work=True)),
        }


def _lost(lost: AioRpcError) -> Json:
    """What the wire said."""
    trailers = dict(lost.trailing_metadata() or ())
    raw = trailers.get("grpc-status-details-bin")
    status = status_pb2.Status.FromString(raw) if isinstance(raw, bytes) else status_pb2.Status()
    told: Json = {"code": lost.code().name, "message": lost.details() or "", "details": _details(status)}
    if "grpc-retry-pushback-ms" in trailers:
        told["pushback_ms"] = int(trailers["grpc-retry-pushback-ms"])
    return told


def _unsent(error: DispatchError) -> Json:
    """An error that the client made by itself."""
    return {"code": error.code.name, "message": error.message, "details": []}


def _details(status: status_pb2.Status) -> list[Json]:
    told: list[Json] = as_json(status).get("details", [])
    return told


def _reading(error: DispatchError) -> Json:
    """What the client's own error says."""
    told: Json = {"kind": f"ERROR_KIND_{error.kind.name}", "attempts": error.attempts}
    if error.outcome is not None:
        told["outcome"] = f"OUTCOME_{error.outcome.name}"
    return told


async def _batch(client: Client, calls: list[Json], timeout_s: float | None) -> Json:
    """The client's own batch function."""
    heard: dict[str, dispatch_pb2.BatchItem] = {}
    _HEARD.set(heard)
    items: list[Json] = []
    told: Json = {"code": "OK", "message": "", "items": items}
    try:
        async for result in client.batch([_call(call) for call in calls], timeout_s=timeout_s):
            item: Json = {"item_id": result.item_id}
            wire = heard.get(str(result.position))  # its name on the wire
            if result.answer is not None:
                item["response"] = _answer(result.answer)
            elif result.error is not None:
                item["error"] = {**_item_error(wire, result.error), **_reading(result.error)}
            items.append(item)
    except DispatchError as error:
        told.update(code=error.code.name, message=error.message)
    return told


def _item_error(wire: dispatch_pb2.BatchItem | None, error: DispatchError) -> Json:
    return _unsent(error) if wire is None else _status(wire.error)


def _status(status: status_pb2.Status) -> Json:
    code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
    return {"code": code.name, "message": status.message, "details": _details(status)}


async def _frames(client: Client, frames: list[list[Json]], timeout_s: float | None) -> Json:
    """Frames by the stub."""
    _HEARD.set({})
    stream = client.stub.DispatchBatch(timeout=timeout_s, metadata=client.metadata())
    told: Json = {"code": "OK", "message": "", "items": [], "frame_errors": []}
    writing = asyncio.ensure_future(_write(stream, frames))
    try:
        async for response in stream:
            _hear(response, told)
    except AioRpcError as lost:
        told.update(code=lost.code().name, message=lost.details() or "")
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        stream.cancel()
    return told


async def _write(stream: Any, frames: list[list[Json]]) -> None:
    for frame in frames:
        await stream.write(ParseDict({"calls": frame}, dispatch_pb2.DispatchBatchRequest()))
    await stream.done_writing()


def _hear(response: dispatch_pb2.DispatchBatchResponse, told: Json) -> None:
    for item in response.items:
        if item.WhichOneof("outcome") == "answer":
            told["items"].append({"item_id": item.item_id, "response": as_json(item.answer)})
        else:
            error = {**_status(item.error), **_reading(from_status(item.error))}
            told["items"].append({"item_id": item.item_id, "error": error})
    if response.HasField("frame_error"):
        refused = response.frame_error
        error = {**_status(refused.status), **_reading(from_status(refused.status))}
        told["frame_errors"].append({"frame": refused.frame, "error": error})


async def main(file: Path, environment: Mapping[str, str], out: TextIO) -> None:
    """Run them all."""
    runner = Runner(
        json.loads(environment["LINESIDE_ADDRESSES"]),
        environment.get("LINESIDE_TOKEN"),
        environment.get("LINESIDE_CA"),
    )
    try:
        for scenario in json.loads(file.read_text())["scenarios"]:
            answers = await runner.run(scenario)
            print(json.dumps({"id": scenario["id"], "answers": answers}), file=out, flush=True)
    finally:
        await runner.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), os.environ, sys.stdout))  # noqa: TID251 - a program of its own
