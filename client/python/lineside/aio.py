"""The client for asyncio."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import grpc
from grpc.aio import AioRpcError

from lineside.aio_batch import AsyncBatch, is_cancelled
from lineside.answer import Answer, BatchResult, answer_of
from lineside.call import Call
from lineside.channel import DEFAULT_TARGET, Endpoint, Pem
from lineside.errors import DispatchError, LinesideError
from lineside.outbox import in_order
from lineside.record import UNSET, CallRecord, lookup, record_of, settlement
from lineside.record import page_request as calls_page
from lineside.resend import CLOSED, DEFAULT_TIMEOUT_S, sending
from lineside.status import from_rpc, pushback_s
from lineside.tool import Tool, tool_of
from lineside.tool import page_request as tools_page
from lineside.tracing import injector
from lineside.v1 import calls_pb2_grpc, dispatch_pb2_grpc, tools_pb2, tools_pb2_grpc
from lineside.vocabulary import CallState

if TYPE_CHECKING:
    from lineside.aio_batch import Stream

_Q = TypeVar("_Q")
_A = TypeVar("_A")


class AsyncClient:
    """Runs tool calls through a Lineside service.

    target: `host:port`, or any gRPC target. token: bearer token; refused over plaintext to another machine
    unless insecure_token. ca, client_cert, client_key: PEM as bytes, or the path of a PEM file; ca trusts
    these authorities instead of the system's, client_cert and client_key are the caller's own certificate.
    tls: None = on if one of them is given. timeout_s: for RPCs that state none. options: further gRPC
    channel options.

    The connection is made at the first use, on the loop that runs then; one client serves any number of
    tasks. Every method raises a `DispatchError` of the kind that tells what went wrong. Cancelling the task
    that waits for a call cancels it at the service too: at once without an idempotency key, else when
    nobody else waits for it.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        token: str | None = None,
        insecure_token: bool = False,
        tls: bool | None = None,
        ca: Pem | None = None,
        client_cert: Pem | None = None,
        client_key: Pem | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        options: Sequence[tuple[str, Any]] = (),
    ) -> None:
        self._endpoint = Endpoint(
            target=target,
            token=token,
            insecure_token=insecure_token,
            tls=tls,
            ca=ca,
            client_cert=client_cert,
            client_key=client_key,
            options=options,
        )
        self._timeout_s = timeout_s
        self._inject = injector()
        self._draw = random.Random().random  # noqa: S311 - jitter, no secret
        self._stubs: _Stubs | None = None
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connection; calls under way are cancelled."""
        self._is_closed = True
        if self._stubs is not None:
            await self._stubs.channel.close()

    async def dispatch(
        self,
        tool: str,
        arguments: Mapping[str, Any] | bytes,
        *,
        idempotency_key: str | None = None,
        timeout_s: float | None = None,
        attempt_timeout_s: float | None = None,
        budget_tool_calls_remaining: int | None = None,
        validate_only: bool = False,
    ) -> Answer:
        """Runs one call and answers with what the tool said; the parameters are those of `Call`.

        A keyed call is sent again, with the same key and within its time, when the connection was lost or
        the service said that it may be; a call without a key never is.
        """
        call = Call(
            tool=tool,
            arguments=arguments,
            idempotency_key=idempotency_key,
            timeout_s=timeout_s,
            attempt_timeout_s=attempt_timeout_s,
            budget_tool_calls_remaining=budget_tool_calls_remaining,
            validate_only=validate_only,
        )
        journey = sending(call, self._timeout_s, time.monotonic())
        stub = self._connected().dispatch
        while True:
            request, left_s = journey.request(time.monotonic())
            try:
                response = await stub.Dispatch(request, timeout=left_s, metadata=self._metadata())
            except AioRpcError as lost:
                trailers = list(lost.trailing_metadata())
                error = from_rpc(lost.code(), lost.details() or "", trailers, is_work=True)
                wait_s = journey.after(error, pushback_s(trailers), time.monotonic(), self._draw())
            except asyncio.CancelledError:
                self._raise_if_closed()
                raise
            else:
                return answer_of(response.answer)
            await asyncio.sleep(wait_s)

    async def dispatch_all(
        self, calls: Iterable[Call], *, timeout_s: float | None = None
    ) -> list[Answer | DispatchError]:
        """Runs many calls at once, on one stream, and answers in their order.

        A call that got no answer has its error in its place: what became of one call never hides what
        became of the others. timeout_s: for all of them together; None = each call's own time only.
        """
        listed = list(calls)
        results: list[BatchResult] = []
        try:
            async for result in self.batch(listed, timeout_s=timeout_s):
                results.append(result)  # noqa: PERF401 - must outlive a batch that gives up
        except DispatchError as error:
            return in_order(results, len(listed), rest=error)
        return in_order(results, len(listed))

    def batch(
        self, calls: Iterable[Call] | AsyncIterable[Call], *, timeout_s: float | None = None
    ) -> AsyncGenerator[BatchResult, None]:
        """Runs calls on one stream, as they come, and tells their results as they finish.

        Reads from `calls` only while fewer than 256 are under way, so it may be endless; an async iterable
        may wait for results before it goes on. After a break the stream is opened again, a bounded number
        of times: calls that the service did not take and keyed calls without an answer are sent again,
        calls without a key that may have run end with outcome UNKNOWN. If it gives up before all calls were
        read, the calls that were read have their results and the iteration raises the error; an exception
        of `calls` is raised after the results, too. Leaving the iteration cancels what is under way
        (`contextlib.aclosing` makes that prompt). timeout_s: for the whole stream; None = each call's own
        time only.
        """

        def open_stream(left_s: float | None) -> Stream:
            stub = self._connected().dispatch
            return stub.DispatchBatch(timeout=left_s, metadata=self._metadata())

        run = AsyncBatch(
            calls,
            open_stream=open_stream,
            inject=self._inject,
            draw=self._draw,
            timeout_s=timeout_s,
        )
        return run.results()

    async def get_call(
        self, call_id: str | None = None, *, tool: str | None = None, idempotency_key: str | None = None
    ) -> CallRecord:
        """One call, by its id or by tool and key: state, attempts, decisions, result. Raises `NotFound`."""
        stub = self._connected().calls
        answer = await self._ask(stub.GetCall, lookup(call_id, tool, idempotency_key))
        return record_of(answer.call)

    async def list_calls(
        self, *, state: CallState | str | None = None, tool: str | None = None
    ) -> AsyncGenerator[CallRecord, None]:
        """The tenant's recorded calls, oldest first, page after page; without results and decisions."""
        stub = self._connected().calls
        request = calls_page(state, tool, "")
        while True:
            page = await self._ask(stub.ListCalls, request)
            for call in page.calls:
                yield record_of(call)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def settle_call(
        self,
        call_id: str,
        etag: str,
        *,
        reason: str,
        done: Any = UNSET,
        not_run: bool = False,
        tool_error: bool = False,
    ) -> CallRecord:
        """States what became of a call whose outcome is unknown; the first settlement stands.

        Either done=<the result that duplicates get> (with tool_error if the tool said no), or not_run=True:
        it had no effect and never will. etag: as `get_call` told it. reason: how this is known, 1-1,024
        characters. Raises `Conflict` if it was settled otherwise, changed since it was read, or (not_run)
        still runs.
        """
        stub = self._connected().calls
        request = settlement(call_id, etag, reason=reason, done=done, not_run=not_run, tool_error=tool_error)
        answer = await self._ask(stub.SettleCall, request)
        return record_of(answer.call)

    async def get_tool(self, name: str) -> Tool:
        """One tool, with its schemas and policies. Raises `NotFound`."""
        stub = self._connected().tools
        answer = await self._ask(stub.GetTool, tools_pb2.GetToolRequest(name=name))
        return tool_of(answer.tool)

    async def list_tools(self, *, full: bool = False) -> AsyncGenerator[Tool, None]:
        """The tools the tenant may call, by name, page after page. full: with schemas and policies."""
        stub = self._connected().tools
        request = tools_page(full=full, token="")
        while True:
            page = await self._ask(stub.ListTools, request)
            for tool in page.tools:
                yield tool_of(tool)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def _ask(self, method: Callable[..., Awaitable[_A]], request: _Q) -> _A:
        try:
            return await method(request, timeout=self._timeout_s, metadata=self._metadata())
        except AioRpcError as lost:
            trailers = list(lost.trailing_metadata())
            raise from_rpc(lost.code(), lost.details() or "", trailers, is_work=False) from lost
        except asyncio.CancelledError:
            self._raise_if_closed()
            raise

    def _raise_if_closed(self) -> None:
        if self._is_closed and not is_cancelled():
            raise LinesideError(CLOSED) from None

    def _connected(self) -> _Stubs:
        if self._is_closed:
            raise LinesideError("the client is closed")
        if self._stubs is None:
            self._stubs = _Stubs(self._endpoint.async_channel())
        return self._stubs

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (*self._endpoint.metadata(), *self._inject().items())


class _Stubs:
    """A channel and what is called through it, made once."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.dispatch = dispatch_pb2_grpc.DispatchServiceStub(channel)
        self.calls = calls_pb2_grpc.CallServiceStub(channel)
        self.tools = tools_pb2_grpc.ToolServiceStub(channel)
