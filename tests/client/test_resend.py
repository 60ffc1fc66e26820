"""When a call may be sent again: the rule as a table, the pauses, the bookkeeping of one call."""

from __future__ import annotations

import grpc
import pytest

import lineside
from lineside.resend import StreamEnd, backoff_s, resend_wait_s, sending, since_lost
from lineside.status import from_rpc, from_status
from tests.client.rich_status import CODES, status

LOST = from_rpc(grpc.StatusCode.UNAVAILABLE, "Socket closed", (), is_work=True)
DROPPED = from_rpc(grpc.StatusCode.CANCELLED, "CANCELLED", (), is_work=True)
NOBODY = from_rpc(grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses; x", (), is_work=True)


def test_only_a_lost_connection_and_a_permitted_refusal_are_sent_again() -> None:
    """UNAVAILABLE or CANCELLED without details, or kind unavailable with pushback >= 0; other kinds never."""
    for lost in (LOST, DROPPED):
        assert lost.outcome is lineside.Outcome.UNKNOWN
        assert resend_wait_s(lost, None, 0, 0.0) == 0.025
        assert resend_wait_s(lost, -1, 0, 0.0) is None
    for kind in CODES:
        refusal = from_status(status(kind, outcome="not_run"))
        assert resend_wait_s(refusal, None, 0, 0.5) is None
        assert resend_wait_s(refusal, -0.001, 0, 0.5) is None
        assert resend_wait_s(refusal, 0.2, 0, 0.5) == (0.2 if kind == "unavailable" else None)


def test_pauses_grow_to_a_jittered_cap() -> None:
    """50 ms doubled each time up to 2 s, times 0.5 to 1: the jitter does not vanish at the cap."""
    assert [backoff_s(n, 1.0) for n in (0, 1, 5, 6, 1000)] == [0.05, 0.1, 1.6, 2.0, 2.0]
    assert [backoff_s(n, 0.0) for n in (0, 6, 1000)] == [0.025, 1.0, 1.0]


def test_service_that_says_at_once_is_not_asked_in_a_tight_loop() -> None:
    """From the second sending on a pushback of 0 is no less than the usual pause."""
    refusal = from_status(status("unavailable", outcome="not_run"))
    assert resend_wait_s(refusal, 0, 0, 1.0) == 0
    assert resend_wait_s(refusal, 0, 3, 1.0) == backoff_s(3, 1.0)


def test_keyed_call_is_sent_until_its_time_is_out() -> None:
    """Each sending states what is left, less a margin; the error comes when no pause fits any more (R031)."""
    call = sending(lineside.Call(tool="t", idempotency_key="k", timeout_s=1.0), 60, now=10.0)
    request, left_s = call.request(10.0)
    assert left_s == 1.0
    assert request.call.call_timeout.ToMilliseconds() == 980
    assert call.after(LOST, None, 10.5, 1.0) == 0.05
    request, left_s = call.request(10.55)
    assert left_s == pytest.approx(0.45)
    assert request.call.call_timeout.ToMilliseconds() == pytest.approx(430, abs=1)
    with pytest.raises(lineside.ConnectionLost):
        call.after(LOST, None, 10.95, 1.0)


@pytest.mark.parametrize(
    ("left_s", "call_timeout_s"), [(0.05, 0.045), (0.2, 0.18), (10.0, 9.98), (600.0, 599.98)]
)
def test_the_call_ends_before_its_rpc(left_s: float, call_timeout_s: float) -> None:
    """By min(20 ms, 10 %), so that the answer is there before gRPC's own bare DEADLINE_EXCEEDED (R031)."""
    request, rpc_s = sending(lineside.Call(tool="t", timeout_s=left_s), 60, now=0.0).request(0.0)
    assert rpc_s == left_s
    assert request.call.call_timeout.ToNanoseconds() / 1e9 == pytest.approx(call_timeout_s)


def test_call_without_a_key_is_never_sent_again() -> None:
    """Whatever the wire and the service say."""
    call = sending(lineside.Call(tool="t"), 60, now=0.0)
    with pytest.raises(lineside.ConnectionLost):
        call.after(LOST, None, 0.1, 0.5)
    with pytest.raises(lineside.Unavailable):
        call.after(from_status(status("unavailable")), 0.0, 0.1, 0.5)


def test_outcome_left_open_stays_open_until_an_execution_is_named() -> None:
    """Lost once, then refused before the look-up: UNKNOWN. Refused by an execution with an id: as it says."""
    call = sending(lineside.Call(tool="t", idempotency_key="k"), 60, now=0.0)
    call.after(LOST, None, 0.1, 0.5)
    with pytest.raises(lineside.ConnectionLost) as nobody:
        call.after(NOBODY, -1, 0.2, 0.5)
    assert (NOBODY.outcome, nobody.value.outcome) == ("not_run", "unknown")
    told = from_status(status("transient", outcome="not_run", attempts=3, call_id="c-1"))
    assert since_lost(told).outcome == "not_run"


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
def test_time_that_is_none_is_refused_here(timeout_s: float) -> None:
    """Zero, negative and NaN times are named; an absurd one is cut to a year."""
    with pytest.raises(lineside.SchemaError, match="timeout_s"):
        sending(lineside.Call(tool="t", timeout_s=timeout_s), 60, now=0.0)
    absurd = sending(lineside.Call(tool="t", timeout_s=1e300), 60, now=0.0)
    request, _ = absurd.request(0.0)
    assert request.call.call_timeout.seconds == 366 * 86400


@pytest.mark.parametrize(
    "arguments",
    [{"x": float("nan")}, {"x": float("inf")}, {"x": {1, 2}}, {"x": "\ud800"}, {"x": b"raw"}],
)
def test_arguments_that_json_has_no_form_for_are_refused_here(arguments: dict[str, object]) -> None:
    """NaN, infinities, sets, lone surrogates and raw bytes name the field and never leave."""
    with pytest.raises(lineside.SchemaError) as caught:
        sending(lineside.Call(tool="t", arguments=arguments), 60, now=0.0)
    assert caught.value.violations[0].field == "arguments"
    assert caught.value.outcome == "not_run"


def test_arguments_nested_without_end_are_refused_here() -> None:
    """A cycle and a depth that the encoder cannot take are refusals, not crashes."""
    cycle: dict[str, object] = {}
    cycle["self"] = cycle
    deep: object = 0
    for _ in range(200_000):
        deep = [deep]
    for arguments in (cycle, {"x": deep}):
        with pytest.raises(lineside.SchemaError, match="arguments"):
            sending(lineside.Call(tool="t", arguments=arguments), 60, now=0.0)
    while isinstance(deep, list) and deep:
        deep = deep.pop()


def test_names_that_utf8_has_no_form_for_are_refused_here() -> None:
    """A lone surrogate in the tool's name or the key names the field."""
    for call in (lineside.Call(tool="\ud800"), lineside.Call(tool="t", idempotency_key="\ud800")):
        with pytest.raises(lineside.SchemaError, match="not valid Unicode"):
            call.to_wire()


def test_stream_resumes_only_where_another_may_do_better() -> None:
    """Drained or broken: yes. Refused at the door, out of time, or told not to: no."""
    drained = from_status(status("unavailable", outcome="not_run"))
    assert StreamEnd(drained, frames_accepted=3).may_resume
    assert StreamEnd(LOST).may_resume
    assert StreamEnd(from_rpc(grpc.StatusCode.INTERNAL, "RST_STREAM", (), is_work=True)).may_resume
    assert not StreamEnd(drained).may_resume
    assert not StreamEnd(drained, pushback_s=-1).may_resume
    assert not StreamEnd(from_status(status("unauthenticated"))).may_resume
    assert not StreamEnd(from_status(status("internal", outcome="unknown"))).may_resume
    assert not StreamEnd(from_rpc(grpc.StatusCode.DEADLINE_EXCEEDED, "", (), is_work=True)).may_resume
