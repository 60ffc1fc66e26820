"""A call of the ledger as the contract tells it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from lineside.v1 import errors_pb2
from lineside.v1.calls_pb2 import AttemptRecord, Call, Decision
from lineside_service.core.errors import KIND_RULES, ErrorKind, Outcome
from lineside_service.core.ledger import Row, RowState
from lineside_service.edge.enums import KINDS, NEXTS, OUTCOMES, SETTLERS, STATES
from lineside_service.edge.moments import duration, timestamp
from lineside_service.edge.status import MESSAGE_LIMIT
from lineside_service.edge.text import clean, cut
from lineside_service.engine.calls import CallView

_KIND_OF: Final = MappingProxyType({kind.value: kind for kind in ErrorKind})
_OUTCOME_OF: Final = MappingProxyType({outcome.value: outcome for outcome in Outcome})


def wire_call(view: CallView, *, is_full: bool) -> Call:
    """The call; its result, attempts and decisions only when `is_full`.

    The result is JSON text: the ledger keeps it exact, and does not keep the form that was asked for.
    """
    row = view.row
    call = Call(
        call_id=row.call_id,
        tool=row.scope.tool,
        idempotency_key=row.scope.key or None,
        state=STATES[row.state],
        attempts=row.attempts,
        tool_error=row.tool_error,
        start_time=timestamp(row.claimed_s),
        etag=row.etag if row.id else "",
        settle_reason=clean(row.settled_reason),
        ever_unknown=row.ever_unknown,
        tenant=row.scope.tenant,
        attempt_in_flight=view.attempt_in_flight,
    )
    if row.settled_by is not None:
        call.settled_by = SETTLERS[row.settled_by]
    _add_times(call, row)
    if row.failure_kind is not None:
        call.error.CopyFrom(_error(row, row.failure_kind))
    if is_full:
        if row.state is RowState.DONE and row.failure_kind is None and row.result is not None:
            call.result_json = row.result
        _add_record(call, row.record)
    return call


def _add_times(call: Call, row: Row) -> None:
    for field, unix_s in (
        (call.first_started_time, row.first_started_s),
        (call.first_send_time, row.first_send_s),
        (call.end_time, row.ended_s),
        (call.expire_time, row.expires_s),
        (call.settled_time, row.settled_s),
    ):
        if unix_s is not None:
            field.CopyFrom(timestamp(unix_s))


def _error(row: Row, kind: ErrorKind) -> errors_pb2.DispatchError:
    rule = KIND_RULES[kind]
    return errors_pb2.DispatchError(
        kind=KINDS[kind],
        message=cut(row.failure_message, MESSAGE_LIMIT) or kind.value,
        attempts=row.attempts,
        jsonrpc_code=rule.jsonrpc,
        outcome=errors_pb2.OUTCOME_DONE,
        call_id=row.call_id,
        next=[NEXTS[advice] for advice in rule.next],
    )


def _add_record(call: Call, record: bytes) -> None:
    """The attempts and decisions; a row that was cut, or comes from a later version, may have none."""
    kept: Mapping[str, Any] = msgspec.json.decode(record)
    for attempt in kept.get("attempts", ()):
        call.attempt_records.append(_attempt(attempt))
    for decision in kept.get("decisions", ()):
        numbers = {name: float(number) for name, number in decision["numbers"].items()}
        call.decisions.append(Decision(choice=decision["choice"], reason=decision["reason"], numbers=numbers))


def _attempt(kept: Mapping[str, Any]) -> AttemptRecord:
    kind, outcome = _KIND_OF.get(kept["kind"]), _OUTCOME_OF.get(kept["outcome"])
    runs = outcome is Outcome.IN_PROGRESS
    return AttemptRecord(
        number=kept["number"],
        kind=errors_pb2.ERROR_KIND_UNSPECIFIED if kind is None else KINDS[kind],
        outcome=errors_pb2.OUTCOME_UNSPECIFIED if outcome is None else OUTCOMES[outcome],
        start_time=timestamp(kept["started_s"]),
        duration=None if runs else duration(kept["duration_s"]),
        backoff=duration(kept["backoff_s"]) if kept["backoff_s"] else None,
    )
