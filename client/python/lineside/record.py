"""A call as the service's ledger has it, and how an unknown outcome is settled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from lineside.errors import DispatchError
from lineside.status import from_envelope, refused_here
from lineside.v1 import calls_pb2, errors_pb2
from lineside.vocabulary import CallState, ErrorKind, Outcome, SettledBy
from lineside.wire import json_bytes, moment_of, result_of, seconds_of, word


class Unset:
    """The type of UNSET: tells "no result given" from the result None."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One attempt of a call.

    kind: how it failed, None for an answer or while it runs. duration_s: None while it runs. backoff_s: the
    pause before it, None for the first.
    """

    number: int
    kind: ErrorKind | None
    outcome: Outcome | None
    start_time: datetime | None
    duration_s: float | None
    backoff_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One decision of the service about a call: what was chosen, why (UPPER_SNAKE), and the numbers
    compared.
    """

    choice: str
    reason: str
    numbers: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """A call as it stands. All times are UTC, by the service's clock; None = not yet, or not at all.

    has_result: whether `result` holds the stored result (None may be one): only in state DONE with a usable
    answer, and not from `list_calls`. error: in state DONE, why the answer could not be used. expire_time:
    until when the record is kept at least; None = it does not expire as it stands. etag: hand it to
    `settle_call`. ever_unknown: the outcome was unknown at some time. attempt_in_flight: an attempt runs at
    this moment, perhaps past its limit. attempt_records and decisions: only from `get_call`.
    """

    call_id: str
    tool: str
    idempotency_key: str | None
    state: CallState | None
    attempts: int
    has_result: bool
    result: Any
    tool_error: bool
    error: DispatchError | None
    start_time: datetime | None
    first_started_time: datetime | None
    first_send_time: datetime | None
    end_time: datetime | None
    expire_time: datetime | None
    etag: str
    settled_by: SettledBy | None
    settle_reason: str
    settled_time: datetime | None
    ever_unknown: bool
    tenant: str
    attempt_in_flight: bool
    attempt_records: tuple[AttemptRecord, ...]
    decisions: tuple[Decision, ...]


def record_of(wire: calls_pb2.Call) -> CallRecord:
    """The record that a message tells."""
    has_result, result = result_of(wire, form="result_form", json_field="result_json", value_field="result")
    return CallRecord(
        call_id=wire.call_id,
        tool=wire.tool,
        idempotency_key=wire.idempotency_key if wire.HasField("idempotency_key") else None,
        state=word(CallState, calls_pb2.Call.State.Name, wire.state, "STATE_"),
        attempts=wire.attempts,
        has_result=has_result,
        result=result,
        tool_error=wire.tool_error,
        error=from_envelope(wire.error) if wire.HasField("error") else None,
        start_time=moment_of(wire, "start_time"),
        first_started_time=moment_of(wire, "first_started_time"),
        first_send_time=moment_of(wire, "first_send_time"),
        end_time=moment_of(wire, "end_time"),
        expire_time=moment_of(wire, "expire_time"),
        etag=wire.etag,
        settled_by=word(SettledBy, calls_pb2.SettledBy.Name, wire.settled_by, "SETTLED_BY_"),
        settle_reason=wire.settle_reason,
        settled_time=moment_of(wire, "settled_time"),
        ever_unknown=wire.ever_unknown,
        tenant=wire.tenant,
        attempt_in_flight=wire.attempt_in_flight,
        attempt_records=tuple(_attempt_of(attempt) for attempt in wire.attempt_records),
        decisions=tuple(
            Decision(choice=decision.choice, reason=decision.reason, numbers=dict(decision.numbers))
            for decision in wire.decisions
        ),
    )


def lookup(call_id: str | None, tool: str | None, idempotency_key: str | None) -> calls_pb2.GetCallRequest:
    """The question for one call: by its id, or by tool and key. Raises TypeError for any other mix."""
    if call_id is not None and tool is None and idempotency_key is None:
        return calls_pb2.GetCallRequest(call_id=call_id)
    if call_id is None and tool is not None and idempotency_key is not None:
        key = calls_pb2.KeyLookup(tool=tool, idempotency_key=idempotency_key)
        return calls_pb2.GetCallRequest(key=key)
    raise TypeError("get_call takes either call_id, or tool and idempotency_key")


def page_request(state: CallState | str | None, tool: str | None, token: str) -> calls_pb2.ListCallsRequest:
    """The question for a page of calls. Raises ValueError for a state that is none."""
    request = calls_pb2.ListCallsRequest(page_token=token, tool=tool or "")
    if state is not None:
        request.state = calls_pb2.Call.State.Value(f"STATE_{CallState(state).name}")
    return request


def settlement(
    call_id: str, etag: str, *, reason: str, done: Any, not_run: bool, tool_error: bool
) -> calls_pb2.SettleCallRequest:
    """The request that settles a call. Raises TypeError unless exactly one of done and not_run is given."""
    request = calls_pb2.SettleCallRequest(call_id=call_id, etag=etag, reason=reason)
    if isinstance(done, Unset) != not_run:
        raise TypeError("settle_call takes either done=<the result> or not_run=True")
    if not_run:
        if tool_error:
            raise TypeError("tool_error goes with done: a call that did not run said nothing")
        request.not_run.SetInParent()
        return request
    try:
        request.done.result_json = json_bytes(done)
    except (TypeError, ValueError) as error:
        raise refused_here("done", f"cannot be written as JSON: {error}", "NOT_JSON") from error
    request.done.tool_error = tool_error
    return request


def _attempt_of(wire: calls_pb2.AttemptRecord) -> AttemptRecord:
    return AttemptRecord(
        number=wire.number,
        kind=word(ErrorKind, errors_pb2.ErrorKind.Name, wire.kind, "ERROR_KIND_"),
        outcome=word(Outcome, errors_pb2.Outcome.Name, wire.outcome, "OUTCOME_"),
        start_time=moment_of(wire, "start_time"),
        duration_s=seconds_of(wire, "duration"),
        backoff_s=seconds_of(wire, "backoff"),
    )
