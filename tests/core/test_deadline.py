"""The one absolute deadline."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineside_service.core.deadline import (
    DEFAULT_CALL_S,
    MAX_CALL_S,
    REPLY_MARGIN_S,
    call_deadline,
    reply_margin_s,
)

SECONDS = st.floats(min_value=-10, max_value=1e10, allow_nan=False)


@pytest.mark.parametrize(
    ("rpc_left_s", "call_timeout_s", "left_s"),
    [
        (None, None, 60.0),
        (None, 5.0, 5.0),
        (None, 3600.0, 600.0),
        (5.0, None, 4.98),
        (0.1, None, 0.09),
        (0.001, None, 0.0009),
        (5.0, 1.0, 1.0),
        (1.0, 5.0, 0.98),
        (10 * 365.25 * 86400, None, 600.0),
        (float("inf"), None, 600.0),
        (-2.0, None, -2.0),
    ],
)
def test_the_earliest_limit_wins(
    rpc_left_s: float | None, call_timeout_s: float | None, left_s: float
) -> None:
    """RPC deadline less its margin, call_timeout, 600 s: the earliest; 60 s if neither is given (R031)."""
    deadline = call_deadline(now=1000.0, rpc_left_s=rpc_left_s, call_timeout_s=call_timeout_s)
    assert deadline - 1000.0 == pytest.approx(left_s, abs=1e-9)


def test_a_batch_item_counts_from_its_own_decoding() -> None:
    """Two items decoded apart end apart, and the stream's own deadline does not enter."""
    first = call_deadline(now=0.0, rpc_left_s=None, call_timeout_s=None)
    late = call_deadline(now=5000.0, rpc_left_s=None, call_timeout_s=None)
    assert (first, late) == (DEFAULT_CALL_S, 5000.0 + DEFAULT_CALL_S)


@given(rpc_left_s=st.none() | SECONDS, call_timeout_s=st.none() | SECONDS)
def test_no_deadline_is_later_than_any_limit(rpc_left_s: float | None, call_timeout_s: float | None) -> None:
    """Whatever is asked for, the deadline is inside the policy, the RPC's time and the call's own (R031)."""
    deadline = call_deadline(now=0.0, rpc_left_s=rpc_left_s, call_timeout_s=call_timeout_s)
    assert deadline <= MAX_CALL_S
    assert rpc_left_s is None or deadline <= rpc_left_s
    assert call_timeout_s is None or deadline <= call_timeout_s


@given(SECONDS)
def test_the_margin_is_small_and_never_negative(rpc_left_s: float) -> None:
    """At most 20 ms and at most a tenth of what is left."""
    margin = reply_margin_s(rpc_left_s)
    assert 0.0 <= margin <= REPLY_MARGIN_S
    assert rpc_left_s < 0 or margin <= 0.1 * rpc_left_s
