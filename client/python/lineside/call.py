"""One tool call as a caller states it, and its form on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lineside.status import refused_here
from lineside.v1 import dispatch_pb2
from lineside.wire import duration, json_bytes

MAX_CALL_BYTES = 16 * 1024 * 1024 - 64 * 1024
"""Largest unary call, serialized: the transport's 16 MiB less room for the frame around it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a tool, for `dispatch_all` and `batch`.

    tool: its name. arguments: a mapping that JSON can hold, or the UTF-8 text of one JSON object as bytes.
    idempotency_key: makes the call safe to repeat, 1-255 characters; see `step_key`. item_id: yours, comes
    back on the result; default: the call's place in the batch, from 0. timeout_s: for the whole call, from
    its arrival; default 60 s, over 600 s counts as 600 s. attempt_timeout_s: shortens the tool's own limit
    for one attempt, 0.005 s at least. budget_tool_calls_remaining: attempts this call may spend.
    validate_only: only check tool and arguments. traceparent, tracestate: W3C trace context of this call,
    where it is not the one that is current when the call is taken up.
    """

    tool: str
    arguments: Mapping[str, Any] | bytes = field(default_factory=dict)
    idempotency_key: str | None = None
    item_id: str = ""
    timeout_s: float | None = None
    attempt_timeout_s: float | None = None
    budget_tool_calls_remaining: int | None = None
    validate_only: bool = False
    traceparent: str = ""
    tracestate: str = ""

    def to_wire(self) -> dispatch_pb2.ToolCall:
        """The call as a message; item_id is left to the stream. Raises SchemaError naming the field at
        fault.
        """
        try:
            arguments = json_bytes(self.arguments)
        except (TypeError, ValueError) as error:
            raise refused_here("arguments", f"cannot be written as JSON: {error}", "NOT_JSON") from error
        wire = dispatch_pb2.ToolCall(
            tool=_utf8("call.tool", self.tool),
            arguments_json=arguments,
            validate_only=self.validate_only,
        )
        if self.idempotency_key is not None:
            wire.idempotency_key = _utf8("call.idempotency_key", self.idempotency_key)
        if self.timeout_s is not None:
            wire.call_timeout.CopyFrom(duration(require_time("timeout_s", self.timeout_s)))
        if self.attempt_timeout_s is not None:
            wire.attempt_timeout.CopyFrom(duration(require_time("attempt_timeout_s", self.attempt_timeout_s)))
        if self.budget_tool_calls_remaining is not None:
            if not 0 <= self.budget_tool_calls_remaining < 2**31:
                raise refused_here("budget_tool_calls_remaining", "must be 0 to 2147483647", "BOUND")
            wire.budget_tool_calls_remaining = self.budget_tool_calls_remaining
        if self.traceparent:
            wire.trace_context.traceparent = self.traceparent
            wire.trace_context.tracestate = self.tracestate
        return wire


def require_time(name: str, seconds: float) -> float:
    """The time as given; raises SchemaError unless it is more than 0 (NaN is not)."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise refused_here(name, f"is {seconds!r}, must be a number of seconds", "TYPE")
    if not seconds > 0:
        raise refused_here(name, f"is {seconds!r}, must be more than 0 seconds", "BOUND")
    return seconds


def require_size(name: str, size: int, limit: int) -> None:
    """Raises SchemaError when a message of `size` bytes would break the limit."""
    if size > limit:
        raise refused_here(name, f"is {size} bytes serialized, the limit is {limit}", "TOO_LARGE")


def _utf8(name: str, text: str) -> str:
    """The text as given; protobuf has no form for a lone surrogate, and says so in words that name no
    field.
    """
    if not isinstance(text, str):
        raise refused_here(name, f"is a {type(text).__name__}, must be text", "TYPE")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise refused_here(name, f"is not valid Unicode: {error.reason}", "NOT_UTF8") from error
    return text
