"""The values that travel down the road of a call and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lineside_service.core.errors import Failure, Source


@dataclass(slots=True, kw_only=True)
class Call:
    """One tool call as the edge hands it to the engine. Never changed once made; not frozen: that costs 3 us.

    tenant: from verified credentials, never from a request field. arguments: the decoded JSON object,
    before defaults. key: idempotency key, None = keyless. arrival: loop time (seconds) at which it was
    decoded. deadline: loop time by which the caller must have its answer, already reduced by the reply
    margin. attempt_timeout_s: only shortens the tool's own. budget: attempts this caller may still spend,
    None = unbounded. patient: an item of a batch stream, which waits in its stream instead of being
    refused for a full list. stream: identity of that stream, for fairness. previous_rpc_attempts: what a
    retrying channel says it already sent. parent: the caller's trace context, opaque to core. is_traced: its
    trace may be recorded; False only where a sampler has left it out already.
    """

    tenant: str
    tool: str
    arguments: Mapping[str, Any]
    arrival: float
    deadline: float
    key: str | None = None
    attempt_timeout_s: float | None = None
    budget: int | None = None
    validate_only: bool = False
    patient: bool = False
    stream: int = 0
    previous_rpc_attempts: int = 0
    parent: object = None
    is_traced: bool = True


@dataclass(slots=True, kw_only=True)
class Answer:
    """A call that was answered. Never changed once made; not frozen: that would cost 2 us per call.
    `result` is JSON text; tool_error: the tool ran and said no.

    queue_s: time from arrival to the first attempt; run_s: the sum of its attempts (seconds).
    first_started_s: wall clock, Unix seconds, of the first attempt (None when nothing ran).
    """

    result: bytes
    tool_error: bool = False
    call_id: str
    attempts: int
    source: Source
    queue_s: float = 0.0
    run_s: float = 0.0
    first_started_s: float | None = None


Reply = Answer | Failure
