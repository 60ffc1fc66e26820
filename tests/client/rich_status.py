"""Statuses in the exact form of the contract, built by hand so that the client is not tested against
itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.any_pb2 import Any
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from lineside.v1 import errors_pb2

CODES = {
    "schema": 3,
    "not_found": 5,
    "timeout": 4,
    "transient": 14,
    "circuit_open": 14,
    "unavailable": 14,
    "overloaded": 8,
    "quota_exceeded": 8,
    "budget_exceeded": 8,
    "bad_output": 13,
    "internal": 13,
    "key_reused": 9,
    "outcome_unknown": 9,
    "step_diverged": 9,
    "conflict": 9,
    "unimplemented": 12,
    "lease_lost": 10,
    "cancelled": 1,
    "unauthenticated": 16,
    "permission_denied": 7,
}


def envelope(
    kind: str, *, outcome: str = "", attempts: int = 0, retry_after_s: float | None = None, call_id: str = ""
) -> errors_pb2.DispatchError:
    """The typed detail."""
    error = errors_pb2.DispatchError(
        kind=errors_pb2.ErrorKind.Value(f"ERROR_KIND_{kind.upper()}"),
        message=f"scripted {kind}",
        attempts=attempts,
        outcome=errors_pb2.Outcome.Value(f"OUTCOME_{(outcome or 'unspecified').upper()}"),
        call_id=call_id,
        trace_id="0af7651916cd43dd8448eb211c80319c",
        next=[errors_pb2.NEXT_ON_ERROR],
    )
    if retry_after_s is not None:
        error.retry_after.FromNanoseconds(int(retry_after_s * 1e9))
    return error


def status(
    kind: str,
    *,
    reason: str = "",
    stopped_by: str = "",
    details: Sequence[Message] = (),
    outcome: str = "",
    attempts: int = 0,
    retry_after_s: float | None = None,
    call_id: str = "",
) -> status_pb2.Status:
    """The whole status: ErrorInfo, DispatchError, and what else is given."""
    info = error_details_pb2.ErrorInfo(
        reason=reason or kind.upper(), domain="lineside", metadata={"kind": kind, "attempts": str(attempts)}
    )
    if stopped_by:
        info.metadata["stopped_by"] = stopped_by
    error = envelope(kind, outcome=outcome, attempts=attempts, retry_after_s=retry_after_s, call_id=call_id)
    packed = []
    for detail in (info, error, *details):
        box = Any()
        box.Pack(detail)
        packed.append(box)
    return status_pb2.Status(code=CODES[kind], message=error.message, details=packed)
