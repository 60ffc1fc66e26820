"""Turns what gRPC says about a failed RPC, or a batch says about a failed item, into this package's errors.

The rich form is a google.rpc.Status whose details hold a DispatchError and an ErrorInfo; unary RPCs carry
it in the trailer `grpc-status-details-bin`. Errors that gRPC itself makes carry no details, and only the
code speaks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode

from lineside.errors import ERROR_CLASSES, ConnectionLost, DispatchError, SchemaError, Violation
from lineside.v1 import errors_pb2
from lineside.vocabulary import ErrorKind, Next, Outcome, Source
from lineside.wire import moment_of, seconds_of, word

_M = TypeVar("_M", bound=Message)
Trailers = Iterable[tuple[str, str | bytes]] | None

KIND_OF_CODE: Mapping[StatusCode, ErrorKind] = MappingProxyType(
    {
        StatusCode.OK: ErrorKind.INTERNAL,  # an OK that is no answer: a stream that ended too early
        StatusCode.CANCELLED: ErrorKind.CANCELLED,
        StatusCode.UNKNOWN: ErrorKind.INTERNAL,
        StatusCode.INVALID_ARGUMENT: ErrorKind.SCHEMA,
        StatusCode.DEADLINE_EXCEEDED: ErrorKind.TIMEOUT,
        StatusCode.NOT_FOUND: ErrorKind.NOT_FOUND,
        StatusCode.ALREADY_EXISTS: ErrorKind.CONFLICT,
        StatusCode.PERMISSION_DENIED: ErrorKind.PERMISSION_DENIED,
        StatusCode.RESOURCE_EXHAUSTED: ErrorKind.OVERLOADED,
        StatusCode.FAILED_PRECONDITION: ErrorKind.CONFLICT,
        StatusCode.ABORTED: ErrorKind.CONFLICT,
        StatusCode.OUT_OF_RANGE: ErrorKind.SCHEMA,
        StatusCode.UNIMPLEMENTED: ErrorKind.UNIMPLEMENTED,
        StatusCode.INTERNAL: ErrorKind.INTERNAL,
        # Not `unavailable`: of a kind that this release does not know nobody may say that it is safe to
        # send again.
        StatusCode.UNAVAILABLE: ErrorKind.TRANSIENT,
        StatusCode.DATA_LOSS: ErrorKind.INTERNAL,
        StatusCode.UNAUTHENTICATED: ErrorKind.UNAUTHENTICATED,
    }
)
"""What an error counts as that carries no kind, or one that this release does not know."""

_CODES = {code.value[0]: code for code in StatusCode}
_REFUSED_AT_THE_DOOR = (StatusCode.UNAUTHENTICATED, StatusCode.PERMISSION_DENIED, StatusCode.UNIMPLEMENTED)
# gRPC core's words for "no connection was ever there to send on". If a release words it otherwise, the
# outcome reads UNKNOWN instead of NOT_RUN: less use, still true. The wire tests hold both ends of the
# grpcio range to it.
_NEVER_SENT = ("failed to connect to all addresses", "DNS resolution failed")
_NEXT_PREFIX, _KIND_PREFIX = "NEXT_", "ERROR_KIND_"


def from_rpc(code: StatusCode, text: str, trailers: Trailers, *, is_work: bool) -> DispatchError:
    """The error of a failed RPC. is_work: the RPC was to run a tool, so a silent end leaves its outcome
    open.
    """
    for name, value in trailers or ():
        if name == "grpc-status-details-bin" and isinstance(value, bytes):
            try:
                status = status_pb2.Status.FromString(value)
            except DecodeError:
                break  # a proxy's own details: then only the code speaks
            if _detail(status, errors_pb2.DispatchError()) is not None:
                return from_status(status)
    return _from_code(code, text, is_work=is_work)


def from_status(status: status_pb2.Status) -> DispatchError:
    """The error that a rich status tells."""
    envelope = _detail(status, errors_pb2.DispatchError()) or errors_pb2.DispatchError()
    info = _detail(status, error_details_pb2.ErrorInfo()) or error_details_pb2.ErrorInfo()
    code = _CODES.get(status.code, StatusCode.UNKNOWN)
    return from_envelope(envelope, code=code, text=status.message, info=info, violations=_violations(status))


def from_envelope(
    envelope: errors_pb2.DispatchError,
    *,
    code: StatusCode = StatusCode.UNKNOWN,
    text: str = "",
    info: error_details_pb2.ErrorInfo | None = None,
    violations: tuple[Violation, ...] = (),
) -> DispatchError:
    """The error that an envelope tells, with what the details beside it add."""
    kind = word(ErrorKind, errors_pb2.ErrorKind.Name, envelope.kind, _KIND_PREFIX) or KIND_OF_CODE[code]
    metadata = dict(info.metadata) if info is not None else {}
    ways = (word(Next, errors_pb2.Next.Name, number, _NEXT_PREFIX) for number in envelope.next)
    return ERROR_CLASSES[kind](
        envelope.message or text or f"{kind} (no message)",
        code=code,
        reason=info.reason if info is not None else "",
        outcome=word(Outcome, errors_pb2.Outcome.Name, envelope.outcome, "OUTCOME_"),
        attempts=envelope.attempts,
        retry_after_s=seconds_of(envelope, "retry_after"),
        call_id=envelope.call_id,
        trace_id=envelope.trace_id,
        next=tuple(way for way in ways if way is not None),
        first_started_time=moment_of(envelope, "first_started_time"),
        violations=violations,
        stopped_by=metadata.get("stopped_by", ""),
        source=word(Source, errors_pb2.Source.Name, envelope.source, "SOURCE_"),
        metadata=metadata,
    )


def refused_here(field: str, message: str, rule: str) -> SchemaError:
    """The error of a request that this side can see is malformed: nothing was sent."""
    return SchemaError(
        f"{field}: {message}",
        code=StatusCode.INVALID_ARGUMENT,
        outcome=Outcome.NOT_RUN,
        next=(Next.ON_ERROR, Next.REPLAN),
        violations=(Violation(field, message, rule),),
    )


def pushback_s(trailers: Trailers) -> float | None:
    """The server's own word on sending again: seconds to wait, negative for "do not", None when it said
    nothing.
    """
    for name, value in trailers or ():
        if name == "grpc-retry-pushback-ms":
            try:
                return int(value) / 1000
            except ValueError:
                return -1.0  # gRFC A6: a value that cannot be read means "do not"
    return None


def frames_accepted(trailers: Trailers) -> int | None:
    """How many frames of a batch stream the service took before it ended the stream; None when it did not
    say.
    """
    for name, value in trailers or ():
        if name == "lineside-frames-accepted" and isinstance(value, str) and value.isdecimal():
            return int(value)
    return None


def _from_code(code: StatusCode, text: str, *, is_work: bool) -> DispatchError:
    never_sent = code is StatusCode.UNAVAILABLE and text.startswith(_NEVER_SENT)
    refused = never_sent or code in _REFUSED_AT_THE_DOOR
    outcome = (Outcome.NOT_RUN if refused else Outcome.UNKNOWN) if is_work else None
    cls = ConnectionLost if code is StatusCode.UNAVAILABLE else ERROR_CLASSES[KIND_OF_CODE[code]]
    way = Next.STOP if code in _REFUSED_AT_THE_DOOR or code is StatusCode.CANCELLED else Next.ON_ERROR
    return cls(text or code.name, code=code, outcome=outcome, next=(way,))


def _violations(status: status_pb2.Status) -> tuple[Violation, ...]:
    bad = _detail(status, error_details_pb2.BadRequest())
    if bad is None:
        return ()
    return tuple(Violation(fault.field, fault.description, fault.reason) for fault in bad.field_violations)


def _detail(status: status_pb2.Status, shape: _M) -> _M | None:
    for packed in status.details:
        if packed.TypeName() == shape.DESCRIPTOR.full_name:
            try:
                packed.Unpack(shape)
            except DecodeError:
                return None
            return shape
    return None
