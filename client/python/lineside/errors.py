"""What is raised when a call gets no answer: one class for each kind of the contract.

A tool that ran and said no is no error: its `Answer` has `tool_error` set. Decide on the class (or `kind`),
on `outcome` before sending anything again, and on `next` for what a plan should do; the text is for people.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import ClassVar, Self

from grpc import StatusCode

from lineside.vocabulary import ErrorKind, Next, Outcome, Source


class LinesideError(Exception):
    """Everything this package raises on its own account, apart from ValueError and TypeError for its own
    parameters.
    """


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing wrong with a request.

    field: JSON Pointer into the arguments (`/city`), or path of a request field (`call.call_timeout`);
    message: what is wrong and what would be accepted; rule: UPPER_SNAKE token, may be empty.
    """

    field: str
    message: str
    rule: str = ""


class DispatchError(LinesideError):
    """A call, or a question about one, that got no answer.

    message: for people, not stable. reason: UPPER_SNAKE token, finer than kind. outcome: how far the work
    got; None where there is no work (a refused read). attempts: attempts started. retry_after_s: seconds
    until trying again makes sense, None without a hint. call_id: the execution this is about, empty if none
    was reached; for `KeyReused` and `OutcomeUnknown` the first call's. trace_id: W3C trace id, 32 hex
    digits, or empty. next: the plan's handlers that fit, best first. first_started_time: start of the
    execution's first attempt, UTC. violations: what is wrong with the request, for `SchemaError`.
    stopped_by: token of the service's own refusal that ended a call whose kind is its last attempt's.
    source: whose execution gave this outcome. code: the gRPC status. metadata: the numbers and names behind
    the message, as text.
    """

    kind: ClassVar[ErrorKind] = ErrorKind.INTERNAL

    def __init__(
        self,
        message: str,
        *,
        code: StatusCode = StatusCode.UNKNOWN,
        reason: str = "",
        outcome: Outcome | None = None,
        attempts: int = 0,
        retry_after_s: float | None = None,
        call_id: str = "",
        trace_id: str = "",
        next: tuple[Next, ...] = (),  # noqa: A002 - the contract's word
        first_started_time: datetime | None = None,
        violations: tuple[Violation, ...] = (),
        stopped_by: str = "",
        source: Source | None = None,
        metadata: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason or self.kind.name
        self.outcome = outcome
        self.attempts = attempts
        self.retry_after_s = retry_after_s
        self.call_id = call_id
        self.trace_id = trace_id
        self.next = next
        self.first_started_time = first_started_time
        self.violations = violations
        self.stopped_by = stopped_by
        self.source = source
        self.metadata: Mapping[str, str] = dict(metadata)

    def __str__(self) -> str:
        facts = [f"outcome {self.outcome}"] if self.outcome else []
        facts += [f"{self.attempts} attempt{'s' * (self.attempts != 1)}"] if self.attempts else []
        facts += [f"retry after {self.retry_after_s:g} s"] if self.retry_after_s is not None else []
        facts += [f"call {self.call_id}"] if self.call_id else []
        facts += [f"trace {self.trace_id}"] if self.trace_id else []
        told = f"{self.kind}: {self.message}"
        return f"{told} ({', '.join(facts)})" if facts else told

    def __reduce__(self) -> tuple[object, ...]:
        # The default calls the class with `args` alone; the rest travels as state, so that a pickled error
        # is whole.
        return (type(self), (self.message,), self.__dict__)

    def with_outcome(self, outcome: Outcome | None) -> Self:
        """The same error with another outcome: for what is known only on this side of the wire."""
        changed = copy.copy(self)
        changed.outcome = outcome
        return changed


class SchemaError(DispatchError):
    """The arguments break the tool's schema, or a field of the request is malformed; see `violations`."""

    kind = ErrorKind.SCHEMA


class NotFound(DispatchError):
    """No such tool or call for this caller."""

    kind = ErrorKind.NOT_FOUND


class CallTimeout(DispatchError):
    """The call's deadline or its last attempt's limit passed; `outcome` tells whether it may have run."""

    kind = ErrorKind.TIMEOUT


class TransientFailure(DispatchError):
    """The tool or the way to it failed for the moment, and the service's own retries did not help."""

    kind = ErrorKind.TRANSIENT


class CircuitOpen(DispatchError):
    """The tool's breaker is open, so nothing was started; `retry_after_s` is the time to its next probe."""

    kind = ErrorKind.CIRCUIT_OPEN


class Unavailable(DispatchError):
    """The service drains, or its store cannot be read or written."""

    kind = ErrorKind.UNAVAILABLE


class ConnectionLost(Unavailable):
    """No word from the service: it was not reached (outcome NOT_RUN), or the connection broke (outcome
    UNKNOWN).
    """


class Overloaded(DispatchError):
    """No room for the call: waiting list full, slots stuck, or the tenant's stored bytes at their bound."""

    kind = ErrorKind.OVERLOADED


class QuotaExceeded(DispatchError):
    """A quota of the tenant has no room."""

    kind = ErrorKind.QUOTA_EXCEEDED


class BudgetExceeded(DispatchError):
    """The caller's own budget of tool calls is spent."""

    kind = ErrorKind.BUDGET_EXCEEDED


class BadOutput(DispatchError):
    """The tool ran (outcome DONE), but its answer is over the limit or breaks its output schema."""

    kind = ErrorKind.BAD_OUTPUT


class InternalError(DispatchError):
    """The tool raised something unexpected, or the service has a fault; the cause is in its log, under
    `trace_id`.
    """

    kind = ErrorKind.INTERNAL


class KeyReused(DispatchError):
    """The idempotency key was used before with other arguments."""

    kind = ErrorKind.KEY_REUSED


class OutcomeUnknown(DispatchError):
    """An earlier execution with this key may or may not have had its effect; settle it with `settle_call`."""

    kind = ErrorKind.OUTCOME_UNKNOWN


class StepDiverged(DispatchError):
    """A resumed run reached a recorded step with another tool or other arguments."""

    kind = ErrorKind.STEP_DIVERGED


class Conflict(DispatchError):
    """The call is not in a state that allows the change, or changed since it was read."""

    kind = ErrorKind.CONFLICT


class Unimplemented(DispatchError):
    """The method, or a field that was set, is not part of the service's version."""

    kind = ErrorKind.UNIMPLEMENTED


class LeaseLost(DispatchError):
    """The run's lease is no longer the live one: stop working on the run."""

    kind = ErrorKind.LEASE_LOST


class Cancelled(DispatchError):
    """The call was cancelled."""

    kind = ErrorKind.CANCELLED


class Unauthenticated(DispatchError):
    """No valid token or client certificate."""

    kind = ErrorKind.UNAUTHENTICATED


class PermissionDenied(DispatchError):
    """The caller's scopes do not cover the method, or token and certificate disagree."""

    kind = ErrorKind.PERMISSION_DENIED


ERROR_CLASSES: Mapping[ErrorKind, type[DispatchError]] = MappingProxyType(
    {cls.kind: cls for cls in DispatchError.__subclasses__()}
)
"""The class of each kind."""
