"""A ToolCall of the contract as a Call of core, or the refusal that names the field and its bound.

Every bound is checked before anything runs or is stored. Fields are named by their proto path (`call.tool`),
faults inside the arguments by JSON Pointer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.duration_pb2 import Duration

from lineside.v1.dispatch_pb2 import ToolCall
from lineside_service.core.call import Call
from lineside_service.core.deadline import MIN_ATTEMPT_S, call_deadline
from lineside_service.core.errors import Failure, Violation
from lineside_service.core.jsonsize import MAX_ARGUMENT_BYTES, UNMEASURED, require_bounded
from lineside_service.core.jsontext import JsonRefused, decode_arguments
from lineside_service.edge.moments import MAX_DURATION_S, seconds_of
from lineside_service.edge.refusals import bad_field, field_unbuilt, malformed, too_many_fields
from lineside_service.edge.values import read_struct
from lineside_service.edge.wirescan import MAX_FIELDS, TooManyFields, argument_bytes

TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""MCP's rule for tool names, which holds for all tools here."""
MAX_KEY: Final = 255
"""Longest idempotency key and item id, characters."""


ONE_FORM: Final = "set exactly one of arguments and arguments_json"


def both_forms() -> Failure:
    """The caller sent both forms of the arguments; see wirescan."""
    return bad_field("call.arguments", ONE_FORM, "BOTH_FORMS")


@dataclass(slots=True, kw_only=True)
class Circumstances:
    """What holds for a call beside its own fields. Made per call and never changed.

    arrival: loop time of decoding; rpc_left_s: what is left of the unary RPC's deadline, None without one;
    latest: loop time by which the answer is wanted besides, for a stream's own deadline or to have its turn
    among many replies; None without one. The others: as in Call.
    """

    tenant: str
    arrival: float
    rpc_left_s: float | None = None
    latest: float | None = None
    patient: bool = False
    stream: int = 0
    previous_rpc_attempts: int = 0
    parent: object = None
    is_traced: bool = True


def too_large(raw: bytes) -> Failure | None:
    """Refuse a unary request by the size of its arguments, before it is parsed: of a Struct that takes long.

    raw: a DispatchRequest, perhaps. A frame of a batch is bounded as a whole.
    """
    if len(raw) <= MAX_ARGUMENT_BYTES:
        return None
    try:
        sizes = argument_bytes(raw)
    except TooManyFields:
        return too_many_fields("call", MAX_FIELDS)
    for field, size in sizes.items():
        if size > MAX_ARGUMENT_BYTES:
            text = f"{size} bytes; the limit is {MAX_ARGUMENT_BYTES} (4 MiB)"
            return bad_field(f"call.{field}", text, "TOO_LARGE")
    return None


def read_call(wire: ToolCall, around: Circumstances) -> Call | Failure:
    """Check every field and make the Call; all faults are told at once."""
    bad: list[Violation] = []
    if not TOOL_NAME.fullmatch(wire.tool):
        bad.append(_wrong("tool", "1-128 characters of A-Z a-z 0-9 _ . -", "NAME"))
    key = wire.idempotency_key if wire.HasField("idempotency_key") else None
    if key is not None and not 1 <= len(key) <= MAX_KEY:
        bad.append(
            _wrong("idempotency_key", f"{len(key)} characters: 1-{MAX_KEY}, or leave it out", "LENGTH")
        )
    call_timeout_s = (
        _timeout(wire.call_timeout, "call_timeout", bad) if wire.HasField("call_timeout") else None
    )
    attempt_timeout_s = (
        _timeout(wire.attempt_timeout, "attempt_timeout", bad, least_s=MIN_ATTEMPT_S)
        if wire.HasField("attempt_timeout")
        else None
    )
    budget = wire.budget_tool_calls_remaining if wire.HasField("budget_tool_calls_remaining") else None
    if budget is not None and budget < 0:
        bad.append(_wrong("budget_tool_calls_remaining", f"{budget}: 0 or more, or leave it out", "RANGE"))
    arguments = _arguments(wire, bad)
    if bad:
        return malformed(*bad)
    unbuilt = _unbuilt(wire)
    if unbuilt is not None:
        return field_unbuilt(unbuilt)
    return Call(
        tenant=around.tenant,
        tool=wire.tool,
        arguments=arguments,
        arrival=around.arrival,
        deadline=_deadline(around, call_timeout_s),
        key=key,
        attempt_timeout_s=attempt_timeout_s,
        budget=budget,
        validate_only=wire.validate_only,
        patient=around.patient,
        stream=around.stream,
        previous_rpc_attempts=around.previous_rpc_attempts,
        parent=around.parent,
        is_traced=around.is_traced,
    )


def _deadline(around: Circumstances, call_timeout_s: float | None) -> float:
    deadline = call_deadline(now=around.arrival, rpc_left_s=around.rpc_left_s, call_timeout_s=call_timeout_s)
    return deadline if around.latest is None else min(deadline, around.latest)


def _arguments(wire: ToolCall, bad: list[Violation]) -> Mapping[str, Any]:
    match wire.WhichOneof("argument_form"):
        case "arguments_json":
            raw = wire.arguments_json
            try:
                if len(raw) > UNMEASURED:
                    require_bounded(raw, "call.arguments_json")
                return decode_arguments(raw)
            except JsonRefused as refused:
                bad.append(refused.violation)
                return {}
        case "arguments":
            arguments, violations = read_struct(wire.arguments, "call.arguments")
            bad.extend(violations)
            return arguments
        case _:
            bad.append(_wrong("arguments", ONE_FORM, "REQUIRED"))
            return {}


def _timeout(value: Duration, name: str, bad: list[Violation], least_s: float = 0.0) -> float | None:
    """Seconds of a Duration. least_s: an attempt needs as much here as of a deadline."""
    seconds = seconds_of(value)
    if seconds is None:
        bad.append(
            _wrong(
                name,
                f"not a valid Duration: at most {MAX_DURATION_S} s, nanos below 10^9, both of one sign",
                "RANGE",
            )
        )
    elif least_s and seconds < least_s:
        bad.append(_wrong(name, f"{seconds:g} s: {least_s:g} s ({least_s * 1000:g} ms) or more", "RANGE"))
    elif seconds <= 0:
        bad.append(_wrong(name, f"{seconds:g} s: more than 0 s (600 s is the longest a call gets)", "RANGE"))
    return seconds


def _unbuilt(wire: ToolCall) -> str | None:
    if wire.HasField("run_context"):
        return "call.run_context"
    if wire.HasField("result_mask"):
        return "call.result_mask"
    return "call.no_cache" if wire.no_cache else None


def _wrong(name: str, message: str, rule: str) -> Violation:
    return Violation(field=f"call.{name}", message=message, rule=rule)
