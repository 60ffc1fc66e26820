"""JSON values as Struct and Value: exact or refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import ListValue, Struct, Value
from hypothesis import given
from hypothesis import strategies as st

from lineside_service.core.jsonsize import MAX_VALUES
from lineside_service.edge.values import MAX_EXACT, NotInForm, read_struct, read_value, write_value
from tests.support.serving import struct

_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.text(st.characters(codec="utf-8"), max_size=8),
    st.integers(-MAX_EXACT, MAX_EXACT),
    st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: not x.is_integer()),
)
_NAMES = st.text(st.characters(codec="utf-8"), max_size=8)
_JSON = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_NAMES, inner, max_size=4)),
    max_leaves=20,
)


@given(_JSON)
def test_what_a_value_can_hold_comes_back_equal(value: Any) -> None:
    """Integers come back as int, everything else as it was (R103)."""
    wire = Value()
    write_value(wire, json.dumps(value).encode())
    back, bad = read_value(Value.FromString(wire.SerializeToString()))
    assert not bad
    assert back == value
    assert json.dumps(back, sort_keys=True) == json.dumps(value, sort_keys=True)


@given(st.dictionaries(_NAMES, _JSON, max_size=4))
def test_a_struct_reads_as_the_library_reads_it(value: dict[str, Any]) -> None:
    """Our reader and json_format agree on every value."""
    wire = struct(value)
    ours, bad = read_struct(wire)
    assert not bad
    assert ours == MessageToDict(wire)


@pytest.mark.parametrize("number", [3.0, -0.0, 2.0**53 - 1, -(2.0**53 - 1)])
def test_an_integral_double_is_an_integer(number: float) -> None:
    """`3.0` reaches a tool as int 3, -0 as 0 (R103)."""
    value, bad = read_struct(struct({"n": number}))
    assert not bad
    assert type(value["n"]) is int
    assert value["n"] == number


@pytest.mark.parametrize("number", [2.0**53, -(2.0**53), 9007199254740993.0, 2.0**63, 1e300])
def test_a_whole_number_that_may_have_changed_is_refused(number: float) -> None:
    """Beyond +-(2^53 - 1) nobody knows which number was meant (R103)."""
    _, bad = read_struct(struct({"deep": [{"id": number}]}))
    assert [(violation.field, violation.rule) for violation in bad] == [("/deep/0/id", "NOT_EXACT")]
    assert "2^53" in bad[0].message
    assert "arguments_json" in bad[0].message


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused(number: float) -> None:
    """JSON has none."""
    wire = Struct()
    wire.fields["a/b~c"].number_value = number
    _, bad = read_struct(wire)
    assert [(violation.field, violation.rule) for violation in bad] == [("/a~1b~0c", "NOT_FINITE")]


def test_a_value_of_no_kind_is_refused() -> None:
    """It is neither null nor anything else."""
    wire = Struct()
    wire.fields["x"].SetInParent()
    _, bad = read_struct(Struct.FromString(wire.SerializeToString()))
    assert [(violation.field, violation.rule) for violation in bad] == [("/x", "VALUE_WITHOUT_KIND")]


def test_nesting_is_bounded_in_both_directions() -> None:
    """32 containers inside each other pass, 33 do not (R105)."""
    inner: Any = 1
    for _ in range(30):
        inner = [inner]
    good, bad = read_struct(struct({"a": [inner]}))
    assert not bad
    write_value(Value(), json.dumps(good).encode())
    _, bad = read_struct(struct({"a": [[inner]]}))
    assert [violation.rule for violation in bad] == ["TOO_DEEP"]
    assert "32" in bad[0].message
    with pytest.raises(NotInForm, match="32"):
        write_value(Value(), json.dumps({"a": [[inner]]}).encode())


@pytest.mark.parametrize("number", [2**53, -(2**53), 9007199254740993, 12345678901234567890123])
def test_a_result_that_a_double_would_change_is_refused(number: int) -> None:
    """It names the place (R103)."""
    with pytest.raises(NotInForm, match="/rows/1/id"):
        write_value(Value(), json.dumps({"rows": [{"id": 1}, {"id": number}]}).encode())


def test_violations_of_one_struct_are_bounded() -> None:
    """A thousand bad numbers are not a thousand texts."""
    _, bad = read_struct(struct({"n": [math.nan] * 1000}))
    assert len(bad) == 32


def test_a_result_of_too_many_values_is_not_written_as_one() -> None:
    """A Value is an object of its own for each: a million would hold up everybody for a second."""
    most = b"[" + b"1," * (MAX_VALUES - 1) + b"1]"
    wire = Value()
    write_value(wire, most)
    assert len(wire.list_value.values) == MAX_VALUES
    with pytest.raises(NotInForm, match="100001 values"):
        write_value(Value(), most.replace(b"]", b",1]"))
    _, bad = read_value(Value(list_value=ListValue(values=[Value(bool_value=True)] * (MAX_VALUES + 1))))
    assert [(violation.field, violation.rule) for violation in bad] == [("", "TOO_MANY_VALUES")]
