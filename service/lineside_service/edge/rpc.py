"""Every RPC in one place: identity, scope, admission, decoding, span, duration, status.

Handlers get a decoded request and give back a message or a Failure. No exception of ours reaches gRPC, which
would send its text to the caller; a CancelledError that the caller did not cause ends with a status too,
because gRPC would send none and the caller would wait for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NoReturn, TypeAlias, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError, Message
from opentelemetry.context import attach, detach

from lineside_service.core.errors import KIND_RULES, Failure
from lineside_service.core.jsontext import MAX_DEPTH
from lineside_service.edge import semconv
from lineside_service.edge.access import METHODS, MethodRule, Scope
from lineside_service.edge.auth import Authenticator, Identity
from lineside_service.edge.faults import fault_fields
from lineside_service.edge.grpctimeout import C_CORE_MARK, surely_left_s
from lineside_service.edge.refusals import denied, draining, fault, too_many_rpcs, undecodable
from lineside_service.edge.spans import EdgeTelemetry, Metadata, RpcTrace
from lineside_service.edge.status import status_of
from lineside_service.edge.trailers import Trailers, trailers_of
from lineside_service.engine.sources import Sources

RawContext = grpc.aio.ServicerContext[bytes, bytes]
RequestT = TypeVar("RequestT", bound=Message)

CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
_PREVIOUS: Final = "grpc-previous-rpc-attempts"
_CANCEL_COMES_S: Final = 5.0
"""How long a write that gRPC could not do waits for the cancel that explains it; then it is a fault."""


@dataclass(slots=True, kw_only=True)
class Rpc:
    """One admitted RPC.

    arrival: loop time; left_s: what was surely left then of its deadline, None without one.
    previous_attempts: what a retrying channel says it already sent. raw: a unary request as it came.
    trailers: sent along if it fails. recheck: why the caller of a stream may no longer do this, None while it
    may; a stream outlives reloads, and with them its token.
    """

    identity: Identity
    arrival: float
    left_s: float | None
    previous_attempts: int
    trace: RpcTrace
    raw: bytes = b""
    trailers: Trailers = ()
    recheck: Callable[[], Failure | None] = lambda: None


UnaryHandler = Callable[[Rpc, RequestT], Awaitable[Message | Failure]]
Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"  # generic in its stubs alone
StreamHandler = Callable[[Rpc, RawContext], Awaitable[Failure | None]]


@dataclass(frozen=True, slots=True)
class _Method:
    name: str
    rule: MethodRule


class RpcRunner:
    """Runs RPCs by their rules.

    max_rpcs: bound on concurrent Dispatch and DispatchBatch RPCs; health and control calls are exempt.
    """

    def __init__(
        self, *, auth: Authenticator, telemetry: EdgeTelemetry, sources: Sources, max_rpcs: int
    ) -> None:
        self._auth = auth
        self._telemetry = telemetry
        self._sources = sources
        self._max_rpcs = max_rpcs
        self._draining = False
        self._idle: asyncio.Event | None = None  # there once somebody waits for it
        self.active = 0
        """RPCs being served, of all kinds but health."""
        self.working = 0
        """Those of them that count against the bound."""

    def begin_drain(self) -> None:
        """Refuse new RPCs, except those that know better themselves."""
        self._draining = True

    async def idle(self) -> None:
        """Return once no RPC is being served."""
        while self.active:
            self._idle = asyncio.Event()
            await self._idle.wait()

    def unary(
        self,
        method: str,
        request_type: type[RequestT],
        handler: UnaryHandler[RequestT],
        check: Callable[[bytes], Failure | None] = lambda _: None,
    ) -> Handler:
        """A unary method; `method` must stand in the access table.

        check: looks at a request before it is parsed, and refuses it or does not.
        """
        entry = _Method(method, METHODS[method])

        async def serve(raw: bytes, context: RawContext) -> bytes:
            async def body(rpc: Rpc) -> bytes | Failure:
                refused = check(raw)
                if refused is not None:
                    return refused
                try:
                    request = request_type.FromString(raw)
                    rpc.raw = raw
                except DecodeError:
                    return undecodable(request_type.DESCRIPTOR.full_name, MAX_DEPTH)
                reply = await handler(rpc, request)
                return reply if isinstance(reply, Failure) else reply.SerializeToString()

            return await self._run(entry, context, body)

        return grpc.unary_unary_rpc_method_handler(serve)

    def stream(
        self,
        method: str,
        handler: StreamHandler,
        *,
        client_streams: bool = True,
        rule: MethodRule | None = None,
    ) -> Handler:
        """A streaming method; the handler reads and writes raw messages on the context itself.

        rule: for a method of no service of ours, which the access table does not know.
        """
        entry = _Method(method, rule or METHODS[method])

        async def serve(_: object, context: RawContext) -> None:
            async def body(rpc: Rpc) -> bytes | Failure:
                rpc.recheck = lambda: self._recheck(entry.rule, context, rpc.identity)
                return await handler(rpc, context) or b""

            await self._run(entry, context, body)

        if client_streams:
            return grpc.stream_stream_rpc_method_handler(serve)
        return grpc.unary_stream_rpc_method_handler(serve)

    async def _run(
        self,
        method: _Method,
        context: RawContext,
        body: Callable[[Rpc], Awaitable[bytes | Failure]],
    ) -> bytes:
        began = self._sources.now()
        metadata = cast("Metadata", context.invocation_metadata() or ())
        trace = self._telemetry.begin(method.name, metadata, context.peer)
        attached = attach(trace.context)
        self._enter(method.rule)
        code, failure = "CANCELLED", None
        left_s, previous_attempts = _told(context, metadata)
        rpc = Rpc(
            identity=_NOBODY,
            arrival=began,
            left_s=left_s,
            previous_attempts=previous_attempts,
            trace=trace,
        )
        if rpc.previous_attempts:
            trace.span.set_attribute(semconv.PREVIOUS_ATTEMPTS, rpc.previous_attempts)
        try:
            outcome: bytes | Failure | None
            try:
                outcome = self._admit(method.rule, context, metadata, rpc)
                if outcome is None:
                    outcome = await body(rpc)
            except asyncio.CancelledError as error:
                if was_asked_to_end():
                    raise
                outcome = self._fault(method.name, error)
            except Exception as error:  # noqa: BLE001 - the border: nothing of ours may reach gRPC
                outcome = self._fault(method.name, error)
            if not isinstance(outcome, Failure):
                code = "OK"
                return outcome
            code, failure = KIND_RULES[outcome.kind].code.name, outcome
            await self._abort(context, outcome, rpc, method.rule)
        except asyncio.CancelledError:
            if rpc.left_s is not None and self._sources.now() >= began + rpc.left_s:
                code = "DEADLINE_EXCEEDED"
            raise
        finally:
            self._leave(method.rule)
            detach(attached)
            self._telemetry.end(trace, method.name, code, self._sources.now() - began, failure)

    def _fault(self, method: str, error: BaseException) -> Failure:
        self._log_fault(method, error)
        return fault()

    def _admit(self, rule: MethodRule, context: RawContext, metadata: Metadata, rpc: Rpc) -> Failure | None:
        if not rule.is_open:
            identity = self._identified(rule, context, metadata)
            if isinstance(identity, Failure):
                return identity
            rpc.identity = identity
        if self._draining and not rule.knows_drain:
            return draining()
        if rule.is_work and self.working > self._max_rpcs:
            return too_many_rpcs(self._max_rpcs)
        return None

    def _identified(self, rule: MethodRule, context: RawContext, metadata: Metadata) -> Identity | Failure:
        identity = self._auth.identify(metadata, context.auth_context)
        if isinstance(identity, Failure) or not identity.scopes.isdisjoint(rule.scopes):
            return identity
        return denied(f"this needs the scope {_names(rule.scopes)}", "SCOPE_MISSING")

    def _recheck(self, rule: MethodRule, context: RawContext, before: Identity) -> Failure | None:
        if rule.is_open:
            return None
        now = self._identified(rule, context, cast("Metadata", context.invocation_metadata() or ()))
        if isinstance(now, Failure):
            return now
        if now.tenant != before.tenant:
            return denied("the credential has become another tenant's", "TENANT_CHANGED")
        return None

    async def _abort(self, context: RawContext, failure: Failure, rpc: Rpc, rule: MethodRule) -> NoReturn:
        try:
            status = status_of(failure, trace_id=rpc.trace.trace_id, about_call=rule.about_call)
        except Exception as error:  # noqa: BLE001 - the border: a refusal that cannot be written is a fault
            self._log_fault("status", error)
            status = status_of(fault(), trace_id=rpc.trace.trace_id, about_call=rule.about_call)
        trailers = trailers_of(failure, status, self._sources.chance.random())
        try:
            await context.abort(CODES[status.code], status.message, (*trailers, *rpc.trailers))
        except grpc.aio.InternalError:
            await _cancel_that_comes()
            raise

    def _enter(self, rule: MethodRule) -> None:
        self.active += 1
        self.working += rule.is_work

    def _leave(self, rule: MethodRule) -> None:
        self.active -= 1
        self.working -= rule.is_work
        if self._idle is not None and not self.active:
            self._idle.set()

    def _log_fault(self, method: str, error: BaseException) -> None:
        self._telemetry.log.error("rpc.fault", rpc_method=method, **fault_fields(error))


def was_asked_to_end() -> bool:
    """Whether somebody cancelled the running task, as gRPC does when the caller leaves.

    Otherwise a CancelledError that is on its way was raised by code that had no business to.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def next_raw(context: RawContext) -> bytes | None:
    """The next message of the caller's stream, None after its half-close."""
    message: object = await _read(context)
    return message if isinstance(message, bytes) else None


async def write_raw(context: RawContext, message: bytes) -> None:
    """Send a message; where the caller has gone, end by gRPC's cancel of this RPC, which is on its way."""
    try:
        await context.write(message)
    except grpc.aio.InternalError:
        await _cancel_that_comes()


async def _cancel_that_comes() -> None:
    async with asyncio.timeout(_CANCEL_COMES_S):
        await asyncio.get_running_loop().create_future()


async def _read(context: RawContext) -> object:
    """What grpc.aio gives: bytes, or its EOF, which the declared type leaves out."""
    return await context.read()


_NOBODY: Final = Identity(tenant="", scopes=frozenset())


def _names(scopes: frozenset[Scope]) -> str:
    return " or ".join(sorted(f"`{scope.value}`" for scope in scopes))


def _told(context: RawContext, metadata: Metadata) -> tuple[float | None, int]:
    """What is left of the deadline, and how often a retrying channel says it has sent this before."""
    seen_s: float | None = context.time_remaining()
    is_c_core, previous = False, 0
    for key, value in metadata:
        if not isinstance(value, str):
            continue
        if key == "user-agent":
            is_c_core = C_CORE_MARK in value
        elif key == _PREVIOUS and value.isascii() and value.isdecimal():
            previous = min(int(value[:9]), 1_000_000)
    return None if seen_s is None else surely_left_s(seen_s, is_c_core=is_c_core), previous
