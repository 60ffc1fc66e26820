"""The error kinds a caller can see, as one table that is total over the enum.

Everything that depends on a kind - the gRPC status code, the JSON-RPC code, what the caller should do
next, whether a back-off may cure it - is a column here; edge and clients iterate the table.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


class ErrorKind(enum.Enum):
    """What went wrong with a call. The value is the token that travels in ErrorInfo metadata."""

    SCHEMA = "schema"
    NOT_FOUND = "not_found"
    TIMEOUT = "timeout"
    TRANSIENT = "transient"
    CIRCUIT_OPEN = "circuit_open"
    UNAVAILABLE = "unavailable"
    OVERLOADED = "overloaded"
    QUOTA_EXCEEDED = "quota_exceeded"
    BUDGET_EXCEEDED = "budget_exceeded"
    BAD_OUTPUT = "bad_output"
    INTERNAL = "internal"
    KEY_REUSED = "key_reused"
    OUTCOME_UNKNOWN = "outcome_unknown"
    STEP_DIVERGED = "step_diverged"
    CONFLICT = "conflict"
    UNIMPLEMENTED = "unimplemented"
    LEASE_LOST = "lease_lost"
    CANCELLED = "cancelled"
    UNAUTHENTICATED = "unauthenticated"
    PERMISSION_DENIED = "permission_denied"


class Outcome(enum.Enum):
    """What is known about the effect of the work behind a call."""

    NOT_RUN = "not_run"
    DONE = "done"
    UNKNOWN = "unknown"
    IN_PROGRESS = "in_progress"


class Source(enum.Enum):
    """Where an answer came from."""

    EXECUTED = "executed"
    JOINED = "joined"
    REPLAYED = "replayed"
    CACHED = "cached"
    COALESCED = "coalesced"
    VALIDATED = "validated"


class Next(enum.Enum):
    """What an agent's plan should do after an error."""

    ON_ERROR = "on_error"
    REPLAN = "replan"
    ON_BUDGET_EXCEEDED = "on_budget_exceeded"
    STOP = "stop"


class StatusCode(enum.IntEnum):
    """The standard gRPC status codes by number, so that core names them without importing grpc."""

    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class Detail(enum.Enum):
    """The google.rpc detail message that a kind carries besides ErrorInfo and DispatchError."""

    NONE = "none"
    BAD_REQUEST = "BadRequest"
    RESOURCE_INFO = "ResourceInfo"
    RETRY_INFO = "RetryInfo"
    QUOTA_FAILURE = "QuotaFailure"
    PRECONDITION_FAILURE = "PreconditionFailure"


@dataclass(frozen=True, slots=True)
class KindRule:
    """One row of the error table.

    code: gRPC status; jsonrpc: JSON-RPC 2.0 code; next: advice to the caller's plan, in order;
    detail: the typed detail; retried: whether the attempt loop may try again when re-sending is safe.
    """

    code: StatusCode
    jsonrpc: int
    next: tuple[Next, ...]
    detail: Detail = Detail.NONE
    retried: bool = False


_C = StatusCode
_INVALID_PARAMS, _METHOD_NOT_FOUND, _SERVER = -32602, -32601, -32603
_ON_ERROR, _REPLAN, _STOP = (Next.ON_ERROR,), (Next.ON_ERROR, Next.REPLAN), (Next.STOP,)
_BUDGET = (Next.ON_BUDGET_EXCEEDED,)

KIND_RULES: Mapping[ErrorKind, KindRule] = MappingProxyType(
    {
        ErrorKind.SCHEMA: KindRule(_C.INVALID_ARGUMENT, _INVALID_PARAMS, _REPLAN, Detail.BAD_REQUEST),
        ErrorKind.NOT_FOUND: KindRule(_C.NOT_FOUND, _METHOD_NOT_FOUND, _REPLAN, Detail.RESOURCE_INFO),
        ErrorKind.TIMEOUT: KindRule(_C.DEADLINE_EXCEEDED, _SERVER, _ON_ERROR, retried=True),
        ErrorKind.TRANSIENT: KindRule(_C.UNAVAILABLE, _SERVER, _ON_ERROR, Detail.RETRY_INFO, retried=True),
        ErrorKind.CIRCUIT_OPEN: KindRule(_C.UNAVAILABLE, _SERVER, _ON_ERROR, Detail.RETRY_INFO),
        ErrorKind.UNAVAILABLE: KindRule(_C.UNAVAILABLE, _SERVER, _ON_ERROR, Detail.RETRY_INFO),
        ErrorKind.OVERLOADED: KindRule(_C.RESOURCE_EXHAUSTED, _SERVER, _ON_ERROR, Detail.RETRY_INFO),
        ErrorKind.QUOTA_EXCEEDED: KindRule(_C.RESOURCE_EXHAUSTED, _SERVER, _BUDGET, Detail.QUOTA_FAILURE),
        ErrorKind.BUDGET_EXCEEDED: KindRule(_C.RESOURCE_EXHAUSTED, _SERVER, _BUDGET, Detail.QUOTA_FAILURE),
        ErrorKind.BAD_OUTPUT: KindRule(_C.INTERNAL, _SERVER, _ON_ERROR),
        ErrorKind.INTERNAL: KindRule(_C.INTERNAL, _SERVER, _ON_ERROR),
        ErrorKind.KEY_REUSED: KindRule(
            _C.FAILED_PRECONDITION, _SERVER, _ON_ERROR, Detail.PRECONDITION_FAILURE
        ),
        ErrorKind.OUTCOME_UNKNOWN: KindRule(
            _C.FAILED_PRECONDITION, _SERVER, _ON_ERROR, Detail.PRECONDITION_FAILURE
        ),
        ErrorKind.STEP_DIVERGED: KindRule(
            _C.FAILED_PRECONDITION, _SERVER, _ON_ERROR, Detail.PRECONDITION_FAILURE
        ),
        ErrorKind.CONFLICT: KindRule(_C.FAILED_PRECONDITION, _SERVER, _ON_ERROR, Detail.PRECONDITION_FAILURE),
        ErrorKind.UNIMPLEMENTED: KindRule(_C.UNIMPLEMENTED, _METHOD_NOT_FOUND, _STOP),
        ErrorKind.LEASE_LOST: KindRule(_C.ABORTED, _SERVER, _STOP),
        ErrorKind.CANCELLED: KindRule(_C.CANCELLED, _SERVER, _STOP),
        ErrorKind.UNAUTHENTICATED: KindRule(_C.UNAUTHENTICATED, _SERVER, _STOP),
        ErrorKind.PERMISSION_DENIED: KindRule(_C.PERMISSION_DENIED, _SERVER, _STOP),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One thing wrong with a request.

    field: JSON Pointer below `arguments` (`/city`, empty for the whole), or a proto path such as
    `call.call_timeout`; message: what is wrong and what would be accepted; rule: UPPER_SNAKE token.
    """

    field: str
    message: str
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How a call ended when it has no answer. An expected refusal is a value, never an exception.

    reason: UPPER_SNAKE token for ErrorInfo, finer than kind (`OVERLOADED` / `STUCK`); defaults to the
    kind's name. retry_after_s: seconds until a repeat can help, None when unknown. first_started_s: wall
    clock (Unix seconds) of the first attempt's start. stopped_by: reason token of our own refusal that
    ended a call whose kind is its last attempt's. pushback_safe: the caller may re-send by itself.
    facts: further dynamic parts of the message, for ErrorInfo metadata.
    """

    kind: ErrorKind
    message: str
    reason: str = ""
    outcome: Outcome = Outcome.NOT_RUN
    attempts: int = 0
    retry_after_s: float | None = None
    call_id: str = ""
    source: Source | None = None
    first_started_s: float | None = None
    stopped_by: str = ""
    pushback_safe: bool = False
    violations: tuple[Violation, ...] = ()
    violations_cut: int = 0
    facts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def reason_token(self) -> str:
        """The ErrorInfo reason: UPPER_SNAKE, at most 63 characters."""
        return self.reason or self.kind.name
