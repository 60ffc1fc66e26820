"""The one absolute deadline of a call, fixed when it is decoded."""

from __future__ import annotations

from typing import Final

MAX_CALL_S: Final = 600.0
"""Server policy: no call lives longer, whatever its caller asks for."""

DEFAULT_CALL_S: Final = 60.0
"""What a call gets whose caller gives neither an RPC deadline nor a call timeout."""

REPLY_MARGIN_S: Final = 0.020
REPLY_MARGIN_SHARE: Final = 0.10
"""The reply margin is the smaller of the two, so that a typed answer still reaches the caller."""

MIN_ATTEMPT_S: Final = 0.005
"""No attempt starts with less than this left: it could only burn an effect nobody waits for."""


def reply_margin_s(rpc_left_s: float) -> float:
    """Seconds kept back from the RPC's time so that the answer arrives before the bare status does."""
    return min(REPLY_MARGIN_S, REPLY_MARGIN_SHARE * max(rpc_left_s, 0.0))


def call_deadline(*, now: float, rpc_left_s: float | None, call_timeout_s: float | None) -> float:
    """Loop time by which the caller must have its answer: the earliest of all limits that apply.

    now: loop time of decoding; rpc_left_s: what is left of the RPC's own deadline, None when it has none or
    when the call is a batch item (the stream's deadline does not bind its items); call_timeout_s: the
    call's field. The answer may lie in the past: the RPC's time can be over before the call is decoded.
    """
    if rpc_left_s is None and call_timeout_s is None:
        return now + DEFAULT_CALL_S
    left_s = MAX_CALL_S
    if rpc_left_s is not None:
        left_s = min(left_s, rpc_left_s - reply_margin_s(rpc_left_s))
    if call_timeout_s is not None:
        left_s = min(left_s, call_timeout_s)
    return now + left_s
