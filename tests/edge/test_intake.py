"""Every field of a ToolCall has a bound, and a refusal that names both."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from lineside.v1.dispatch_pb2 import RunContext, ToolCall
from lineside_service.core.call import Call
from lineside_service.core.deadline import MIN_ATTEMPT_S
from lineside_service.core.errors import ErrorKind, Failure
from lineside_service.core.jsonsize import MAX_ARGUMENT_BYTES, MAX_VALUES
from lineside_service.edge.grpctimeout import surely_left_s
from lineside_service.edge.intake import Circumstances, read_call
from tests.support.serving import struct, tool_call

AROUND = Circumstances(tenant="acme", arrival=1000.0)


def refusal(wire: ToolCall) -> Failure:
    """The refusal of a call that must be refused."""
    failure = read_call(wire, AROUND)
    assert isinstance(failure, Failure)
    return failure


def taken(wire: ToolCall, around: Circumstances = AROUND) -> Call:
    """The call."""
    call = read_call(wire, around)
    assert isinstance(call, Call), call
    return call


@pytest.mark.parametrize(
    ("fields", "field", "bound"),
    [
        ({"tool": ""}, "call.tool", "1-128"),
        ({"tool": "x" * 129}, "call.tool", "1-128"),
        ({"tool": "bücher"}, "call.tool", "A-Z"),
        ({"tool": "a\n"}, "call.tool", "A-Z"),
        ({"idempotency_key": ""}, "call.idempotency_key", "1-255"),
        ({"idempotency_key": "k" * 256}, "call.idempotency_key", "1-255"),
        ({"call_timeout": Duration()}, "call.call_timeout", "600 s"),
        ({"call_timeout": Duration(seconds=-1)}, "call.call_timeout", "600 s"),
        ({"call_timeout": Duration(seconds=315_576_000_001)}, "call.call_timeout", "315576000000"),
        ({"call_timeout": Duration(seconds=1, nanos=-1)}, "call.call_timeout", "sign"),
        ({"call_timeout": Duration(nanos=1_000_000_000)}, "call.call_timeout", "10^9"),
        ({"attempt_timeout": Duration()}, "call.attempt_timeout", "5 ms"),
        ({"attempt_timeout": Duration(nanos=-5)}, "call.attempt_timeout", "5 ms"),
        ({"attempt_timeout": Duration(nanos=1)}, "call.attempt_timeout", "5 ms"),
        ({"attempt_timeout": Duration(nanos=4_999_999)}, "call.attempt_timeout", "5 ms"),
        ({"budget_tool_calls_remaining": -1}, "call.budget_tool_calls_remaining", "0 or more"),
    ],
)
def test_a_bound_is_named_with_its_field(fields: dict[str, Any], field: str, bound: str) -> None:
    """Zero, negative, absurd, empty, too long."""
    failure = refusal(tool_call(**{"tool": "t", **fields}))
    assert failure.kind is ErrorKind.SCHEMA
    assert [violation.field for violation in failure.violations] == [field]
    assert bound in failure.violations[0].message
    assert failure.violations[0].message in failure.message
    assert field in failure.message


def test_an_attempt_may_be_as_short_as_what_a_deadline_must_leave() -> None:
    """5 ms, the least with which an attempt starts; a whole call may ask for less, and is then too late."""
    assert taken(tool_call("t", attempt_timeout=Duration(nanos=5_000_000))).attempt_timeout_s == MIN_ATTEMPT_S
    assert taken(tool_call("t", call_timeout=Duration(nanos=1))).deadline > AROUND.arrival


@pytest.mark.parametrize(
    ("raw", "needle"),
    [
        (b"", "{}"),
        (b"[1]", "object"),
        (b'{"a":NaN}', "JSON"),
        (b'{"a":1e400}', "range"),
        (b'{"a":1,"a":2}', "a"),
        (b'{"a":"\\ud800"}', "surrogate"),
        (b'{"a":' + b"[" * 1000 + b"]" * 1000 + b"}", "32"),
        (b'{"a":"\xff"}', "UTF-8"),
    ],
)
def test_bad_json_is_refused_with_its_reason(raw: bytes, needle: str) -> None:
    """Whatever is not strict JSON of an object within the bounds."""
    failure = refusal(tool_call("t", raw))
    assert failure.kind is ErrorKind.SCHEMA
    assert needle in failure.violations[0].message


@pytest.mark.parametrize(
    ("raw", "rule", "bound", "size"),
    [
        (b'{"a":"' + b"x" * (MAX_ARGUMENT_BYTES - 7) + b'"}', "TOO_LARGE", "4194304", "4194305"),
        (b'{"a":[' + b"1," * MAX_VALUES + b"1]}", "TOO_MANY_VALUES", "100000", "100002"),
        (b'{"a":[' + b"9" * 4300 + (b"," + b"9" * 4300) * 116 + b"]}", "TOO_MANY_DIGITS", "500000", "503100"),
    ],
    ids=["bytes", "values", "digits"],
)
def test_arguments_have_a_size(raw: bytes, rule: str, bound: str, size: str) -> None:
    """Valid JSON over a bound is refused by the field's name, with the bound and what was sent (R110)."""
    (violation,) = refusal(tool_call("t", raw)).violations
    assert (violation.field, violation.rule) == ("call.arguments_json", rule)
    assert bound in violation.message
    assert size in violation.message


def test_a_struct_has_as_many_values_as_json() -> None:
    """Members and items at all levels count; one more is refused by the field's name."""
    most = ToolCall(tool="t", arguments=struct({"a": [[]] * 10, "b": [None] * (MAX_VALUES - 12)}))
    assert len(taken(most).arguments["b"]) == MAX_VALUES - 12
    most.arguments.fields["c"].bool_value = True
    (violation,) = refusal(most).violations
    assert (violation.field, violation.rule) == ("call.arguments", "TOO_MANY_VALUES")
    assert "100000" in violation.message
    assert "100001" in violation.message


def test_neither_form_of_arguments_is_refused() -> None:
    """A tool without arguments takes an empty object."""
    failure = refusal(ToolCall(tool="t"))
    assert [(v.field, v.rule) for v in failure.violations] == [("call.arguments", "REQUIRED")]


def test_all_faults_are_told_at_once() -> None:
    """One round trip shows everything that is wrong."""
    wire = tool_call("", b"nope", idempotency_key="", call_timeout=Duration(), budget_tool_calls_remaining=-3)
    assert [v.field for v in refusal(wire).violations] == [
        "call.tool",
        "call.idempotency_key",
        "call.call_timeout",
        "call.budget_tool_calls_remaining",
        "call.arguments_json",
    ]


@pytest.mark.parametrize("field", ["run_context", "result_mask", "no_cache"])
def test_a_field_of_a_later_version_is_refused_by_name(field: str) -> None:
    """Ignoring it would break its promise."""
    wire = tool_call("t")
    if field == "no_cache":
        wire.no_cache = True
    else:
        getattr(wire, field).SetInParent()
    failure = refusal(wire)
    assert failure.kind is ErrorKind.UNIMPLEMENTED
    assert failure.facts["field"] == f"call.{field}"
    assert f"call.{field}" in failure.message


def test_run_context_counts_as_set_with_content_too() -> None:
    """The step of a run is not run as a call of no run."""
    assert refusal(tool_call("t", run_context=RunContext(run_id="r"))).kind is ErrorKind.UNIMPLEMENTED


def test_everything_arrives_in_the_call() -> None:
    """Each field in its place, a Struct's integers as int."""
    wire = ToolCall(
        tool="pay.now",
        arguments=struct({"n": 3, "x": 0.5}),
        idempotency_key="k" * 255,
        call_timeout=Duration(seconds=2, nanos=500_000_000),
        attempt_timeout=Duration(nanos=250_000_000),
        budget_tool_calls_remaining=0,
        validate_only=True,
    )
    around = Circumstances(
        tenant="acme", arrival=1000.0, patient=True, stream=7, previous_rpc_attempts=2, parent="p"
    )
    assert taken(wire, around) == Call(
        tenant="acme",
        tool="pay.now",
        arguments={"n": 3, "x": 0.5},
        arrival=1000.0,
        deadline=1002.5,
        key="k" * 255,
        attempt_timeout_s=0.25,
        budget=0,
        validate_only=True,
        patient=True,
        stream=7,
        previous_rpc_attempts=2,
        parent="p",
    )


def test_the_deadline_is_the_earliest_that_applies() -> None:
    """The RPC's less the margin, the call's, 600 s; 60 s when nobody says anything; a stream's own last."""

    def deadline(left_s: float | None, timeout_s: int | None, latest: float | None = None) -> float:
        wire = (
            tool_call("t") if timeout_s is None else tool_call("t", call_timeout=Duration(seconds=timeout_s))
        )
        around = Circumstances(tenant="acme", arrival=1000.0, rpc_left_s=left_s, latest=latest)
        return taken(wire, around).deadline

    assert deadline(None, None) == 1060.0
    assert deadline(10.0, None) == pytest.approx(1009.98)
    assert deadline(0.1, None) == pytest.approx(1000.09)
    assert deadline(10.0, 3) == 1003.0
    assert deadline(None, 86_400) == 1600.0
    assert deadline(10_000.0, None) == 1600.0
    assert deadline(None, None, latest=1005.0) == 1005.0


@pytest.mark.parametrize(
    ("given_s", "seen_s"),
    [
        (0.3, 0.3005),
        (1.0, 1.0098),
        (5.0, 5.0091),
        (10.0, 10.0997),
        (12.34, 12.3991),
        (60.0, 60.0994),
        (100.0, 100.9995),
    ],
)
def test_a_rounded_timeout_is_not_believed(given_s: float, seen_s: float) -> None:
    """What the C core's clients gave, and what was seen to arrive for it: the caller is still there then."""
    assert given_s * 0.95 <= surely_left_s(seen_s, is_c_core=True) <= given_s
    assert surely_left_s(seen_s, is_c_core=False) == seen_s


def test_a_timeout_that_was_sent_again_is_not_believed() -> None:
    """The C core sends an earlier one that is up to 3 % longer; long calls lose 0.3 s to that at most."""
    assert surely_left_s(1.03, is_c_core=True) <= 1.0
    assert surely_left_s(10.3, is_c_core=True) <= 10.0
    assert surely_left_s(600.0, is_c_core=True) == pytest.approx(600.0 - 1.0 - 0.3)
