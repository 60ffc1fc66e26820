"""The client for blocking code."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import grpc

from lineside.answer import Answer, BatchResult, answer_of
from lineside.call import Call
from lineside.channel import DEFAULT_TARGET, Endpoint, Pem
from lineside.client_batch import Batch
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
    from grpc import UnaryUnaryMultiCallable

    from lineside.client_batch import Frames, Stream

_Q = TypeVar("_Q")
_A = TypeVar("_A")


class Client:
    """Runs tool calls through a Lineside service.

    target: `host:port`, or any gRPC target. token: bearer token; refused over plaintext to another machine
    unless insecure_token. ca, client_cert, client_key: PEM as bytes, or the path of a PEM file; ca trusts
    these authorities instead of the system's, client_cert and client_key are the caller's own certificate.
    tls: None = on if one of them is given. timeout_s: for RPCs that state none. options: further gRPC
    channel options.

    The connection is made at the first use; one client serves any number of threads. Every method raises a
    `DispatchError` of the kind that tells what went wrong. Leaving a call by an exception
    (KeyboardInterrupt, say) cancels it at the service too: at once without an idempotency key, else when
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
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; calls under way are cancelled."""
        with self._lock:
            self._closed.set()
            if self._stubs is not None:
                self._stubs.channel.close()

    def dispatch(
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
            future = stub.Dispatch.future(request, timeout=left_s, metadata=self._metadata())
            try:
                return answer_of(future.result().answer)
            except grpc.FutureCancelledError:
                raise LinesideError(CLOSED) from None
            except grpc.RpcError:
                trailers = list(future.trailing_metadata() or ())
                error = from_rpc(future.code(), future.details() or "", trailers, is_work=True)
                wait_s = journey.after(error, pushback_s(trailers), time.monotonic(), self._draw())
            except BaseException:
                future.cancel()
                raise
            if self._closed.wait(wait_s):
                raise error

    def dispatch_all(
        self, calls: Iterable[Call], *, timeout_s: float | None = None
    ) -> list[Answer | DispatchError]:
        """Runs many calls at once, on one stream, and answers in their order.

        A call that got no answer has its error in its place: what became of one call never hides what
        became of the others. timeout_s: for all of them together; None = each call's own time only.
        """
        listed = list(calls)
        results: list[BatchResult] = []
        try:
            for result in self.batch(listed, timeout_s=timeout_s):
                results.append(result)  # noqa: PERF402 - must outlive a batch that gives up
        except DispatchError as error:
            return in_order(results, len(listed), rest=error)
        return in_order(results, len(listed))

    def batch(
        self, calls: Iterable[Call], *, timeout_s: float | None = None
    ) -> Generator[BatchResult, None, None]:
        """Runs calls on one stream, as they come, and tells their results as they finish.

        Reads from `calls` only while fewer than 256 are under way, so it may be endless, and in a thread of
        its own, so it may wait for results before it goes on. After a break the stream is opened again, a
        bounded number of times: calls that the service did not take and keyed calls without an answer are
        sent again, calls without a key that may have run end with outcome UNKNOWN. If it gives up before
        all calls were read, the calls that were read have their results and the iteration raises the error;
        an exception of `calls` is raised after the results, too. Leaving the iteration cancels what is
        under way (`contextlib.closing` makes that prompt). timeout_s: for the whole stream; None = each
        call's own time only.
        """

        def open_stream(frames: Frames, left_s: float | None) -> Stream:
            stub = self._connected().dispatch
            return stub.DispatchBatch(frames, timeout=left_s, metadata=self._metadata())

        run = Batch(
            calls,
            open_stream=open_stream,
            inject=self._inject,
            draw=self._draw,
            timeout_s=timeout_s,
        )
        return run.results()

    def get_call(
        self, call_id: str | None = None, *, tool: str | None = None, idempotency_key: str | None = None
    ) -> CallRecord:
        """One call, by its id or by tool and key: state, attempts, decisions, result. Raises `NotFound`."""
        stub = self._connected().calls
        answer = self._ask(stub.GetCall, lookup(call_id, tool, idempotency_key))
        return record_of(answer.call)

    def list_calls(
        self, *, state: CallState | str | None = None, tool: str | None = None
    ) -> Generator[CallRecord, None, None]:
        """The tenant's recorded calls, oldest first, page after page; without results and decisions."""
        stub = self._connected().calls
        request = calls_page(state, tool, "")
        while True:
            page = self._ask(stub.ListCalls, request)
            for call in page.calls:
                yield record_of(call)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def settle_call(
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
        answer = self._ask(stub.SettleCall, request)
        return record_of(answer.call)

    def get_tool(self, name: str) -> Tool:
        """One tool, with its schemas and policies. Raises `NotFound`."""
        stub = self._connected().tools
        answer = self._ask(stub.GetTool, tools_pb2.GetToolRequest(name=name))
        return tool_of(answer.tool)

    def list_tools(self, *, full: bool = False) -> Generator[Tool, None, None]:
        """The tools the tenant may call, by name, page after page. full: with schemas and policies."""
        stub = self._connected().tools
        request = tools_page(full=full, token="")
        while True:
            page = self._ask(stub.ListTools, request)
            for tool in page.tools:
                yield tool_of(tool)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def _ask(self, method: UnaryUnaryMultiCallable[_Q, _A], request: _Q) -> _A:
        future = method.future(request, timeout=self._timeout_s, metadata=self._metadata())
        try:
            return future.result()
        except grpc.FutureCancelledError:
            raise LinesideError(CLOSED) from None
        except grpc.RpcError as lost:
            trailers = list(future.trailing_metadata() or ())
            raise from_rpc(future.code(), future.details() or "", trailers, is_work=False) from lost
        except BaseException:
            future.cancel()
            raise

    def _connected(self) -> _Stubs:
        with self._lock:
            if self._closed.is_set():
                raise LinesideError("the client is closed")
            if self._stubs is None:
                self._stubs = _Stubs(self._endpoint.sync_channel())
            return self._stubs

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (*self._endpoint.metadata(), *self._inject().items())


class _Stubs:
    """A channel and what is called through it, made once."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.dispatch = dispatch_pb2_grpc.DispatchServiceStub(channel)
        self.calls = calls_pb2_grpc.CallServiceStub(channel)
        self.tools = tools_pb2_grpc.ToolServiceStub(channel)
