from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime as dt
import enum
import json
import time
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineside_service.core.jsontext import (
    MAX_DEPTH,
    JsonRefused,
    ResultRefused,
    decode_arguments,
    decode_result,
    depth_of,
    encode_result,
)

LIMIT = 1_000_000


def _refusal(raw: bytes) -> tuple[str, str, str]:
    with pytest.raises(JsonRefused) as caught:
        decode_arguments(raw)
    violation = caught.value.violation
    return violation.field, violation.rule, violation.message


@pytest.mark.parametrize(
    ("raw", "field", "rule", "bound"),
    [
        (b'{"a": NaN}', "/a", "NOT_FINITE", "NaN"),
        (b'{"a": -Infinity}', "/a", "NUMBER_OUT_OF_RANGE", "1.8e308"),
        (b'{"a": [1, {"b/~": 1e400}]}', "/a/1/b~1~0", "NUMBER_OUT_OF_RANGE", "1.8e308"),
        (b'{"a": ' + b"1" * 4301 + b"}", "/a", "NUMBER_OUT_OF_RANGE", "4300"),
        (b'{"a": 1, "a": 1}', "/a", "DUPLICATE_KEY", "once"),
        (b'{"\\u0061": 1, "a": 2}', "/a", "DUPLICATE_KEY", "once"),
        (b'{"x": {"a": [{"q": ":", "q": "\\u003a"}]}}', "/x/a/0/q", "DUPLICATE_KEY", "once"),
        (b'{"a": "\\ud800"}', "/a", "NOT_UNICODE", "surrogate"),
        (b'{"\\udc00": 1}', "", "NOT_UNICODE", "surrogate"),
        (b'{"a": "\xff"}', "call.arguments_json", "NOT_UTF8", "byte 7"),
        (b"[1]", "call.arguments_json", "NOT_AN_OBJECT", "array"),
        (b"null", "call.arguments_json", "NOT_AN_OBJECT", "null"),
        (b"", "call.arguments_json", "EMPTY", "{}"),
        (b"  ", "call.arguments_json", "EMPTY", "{}"),
        (b"{} x", "call.arguments_json", "MALFORMED", "trailing"),
        (b'{"a": 01}', "call.arguments_json", "MALFORMED", "number"),
        (b'\xef\xbb\xbf{"a": 1}', "call.arguments_json", "MALFORMED", "byte 0"),
    ],
)
def test_each_refusal_names_the_field_and_the_bound(raw: bytes, field: str, rule: str, bound: str) -> None:
    """Text that is no strict JSON object is refused with its place, a rule and what the bound is."""
    assert _refusal(raw)[:2] == (field, rule)
    assert bound in _refusal(raw)[2]


@pytest.mark.parametrize("depth", [10, 32])
def test_nesting_up_to_the_limit_is_taken(depth: int) -> None:
    """32 containers inside each other are accepted (R105)."""
    value = decode_arguments(b'{"a":' * depth + b"1" + b"}" * depth)
    assert value["a"]


@pytest.mark.parametrize("depth", [33, 34, 50, 99, 100, 101, 1_000, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [(b'{"a":', b"}"), (b"[", b"]")])
def test_deeper_nesting_is_refused_with_the_limit(depth: int, opening: bytes, closing: bytes) -> None:
    """Any deeper nesting is a refusal that says 32, never a RecursionError (R105)."""
    field, rule, message = _refusal(b'{"x":' + opening * (depth - 1) + b"1" + closing * (depth - 1) + b"}")
    assert rule == "TOO_DEEP"
    assert "32" in message
    assert field.startswith("/x/")


@pytest.mark.parametrize(
    "number",
    [9007199254740993, 2**63 - 1, -(2**53) - 1, 10**4299, 0, -1],
    ids=["2^53+1", "2^63-1", "-2^53-1", "4300 digits", "0", "-1"],
)
def test_integers_are_exact_at_any_accepted_size(number: int) -> None:
    """An id beyond 2^53 arrives and leaves unchanged (R103)."""
    assert decode_arguments(b'{"id":%d}' % number) == {"id": number}
    assert decode_result(encode_result({"id": number}, LIMIT)) == {"id": number}


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a" : 1, "b":":"}',
        b'{"t":"12:30:00","u":"http://x:8/"}',
        b'{"\\u003a":{"a":":"}}',
        b'{"a":"\\":\\""}',
    ],
)
def test_colons_inside_strings_are_not_keys(raw: bytes) -> None:
    """The search for duplicate keys is not misled by colons in names and values, escaped or not."""
    assert decode_arguments(raw) == json.loads(raw)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
OBJECTS = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), JSON, max_size=5)


@given(OBJECTS, st.booleans())
def test_any_json_object_is_read_as_the_standard_library_reads_it(
    value: dict[str, Any], escape: bool
) -> None:
    """Whatever is valid is accepted unchanged, however it is spelled."""
    raw = json.dumps(value, ensure_ascii=escape).encode()
    assert decode_arguments(raw) == value


@given(OBJECTS, OBJECTS, st.text(st.characters(exclude_categories=["Cs"]), max_size=5))
def test_a_repeated_name_is_always_found(left: dict[str, Any], right: dict[str, Any], name: str) -> None:
    """A name that appears twice in one object is refused, wherever it is and whatever stands beside it."""
    member = f"{json.dumps(name)}: {json.dumps(left)}"
    raw = f'{{"before": {json.dumps(right)}, "in": [{{{member}, {member}}}]}}'.encode()
    assert _refusal(raw)[1] == "DUPLICATE_KEY"


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    """Arbitrary bytes give a value or a typed refusal, never another exception."""
    with contextlib.suppress(JsonRefused):
        assert isinstance(decode_arguments(raw), dict)


@given(JSON)
def test_depth_counts_containers(value: Any) -> None:
    """The depth of text is the number of containers inside each other."""

    def depth(node: Any) -> int:
        if not isinstance(node, dict | list):
            return 0
        return 1 + max(
            (depth(child) for child in (node.values() if isinstance(node, dict) else node)), default=0
        )

    assert depth_of(json.dumps(value).encode()) == min(depth(value), MAX_DEPTH + 1)


@pytest.mark.parametrize(
    "unit", [" ", "\n", "`", "{", "[", '"', "\\", '\\"', '"a":', "[[],", '{"a":1,', "1,", "\u00e9"]
)
@pytest.mark.parametrize("head", ["", '{"a":"', '{"a":[', "[" * 40])
def test_hostile_megabytes_are_refused_in_linear_time(unit: str, head: str) -> None:
    """A megabyte of anything repeated is answered at once; a quadratic parser would take minutes (R110)."""
    raw = (head + unit * (1_000_000 // len(unit))).encode()
    started = time.process_time()
    with pytest.raises(JsonRefused):
        decode_arguments(raw)
    assert time.process_time() - started < 1.0  # alone it is far below 50 ms; shared cores need room


@pytest.mark.parametrize(
    ("raw", "rule"),
    [
        (b'{"x":[' + b"1," * 6_000_000 + b"1],}", "MALFORMED"),
        (b'{"x":[' + b'"a",' * 3_000_000 + b'"\\ud800"]}', "MALFORMED"),
        (b"{" + b"".join(b'"k%d":1,' % n for n in range(800_000)) + b'"k1":2}', "DUPLICATE_KEY"),
    ],
    ids=["comma", "surrogate", "duplicate"],
)
def test_a_huge_document_is_refused_without_a_search_for_the_place(raw: bytes, rule: str) -> None:
    """Twelve megabytes whose fault is their last word: the second reading would take seconds (R110)."""
    started = time.process_time()
    field, found, message = _refusal(raw)
    assert time.process_time() - started < 1.5  # the search takes 3 s and more
    assert (field, found) == ("call.arguments_json", rule)
    assert len(message) < 300


def test_a_long_name_cannot_fill_the_answer() -> None:
    """The pointer of a violation is cut, on a character boundary, and marked (R005)."""
    field, _, _ = _refusal(
        json.dumps({"é" * 100_000: "X"}, ensure_ascii=False).replace("X", "\\ud800").encode()
    )
    assert len(field) == 256
    assert field.endswith("…")


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: float
    tags: object = ()


class Grade(enum.Enum):
    """Two keys of one type that are written alike."""

    ONE = 1
    FIRST = "1"


class Row(msgspec.Struct):
    cells: dict[object, int]


class City(pydantic.BaseModel):
    name: str
    heat: float = 1.5


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        ({"a": [1, None, True]}, b'{"a":[1,null,true]}'),
        (Point(1.0), b'{"x":1.0,"tags":[]}'),
        (City(name="Oslo"), b'{"name":"Oslo","heat":1.5}'),
        ([City(name="Oslo")], b'[{"name":"Oslo","heat":1.5}]'),
        (dt.datetime(2024, 1, 2, tzinfo=dt.UTC), b'"2024-01-02T00:00:00Z"'),
        (Colour.RED, b'"red"'),
        (None, b"null"),
        ((1, 2), b"[1,2]"),
    ],
)
def test_results_of_many_types_become_json(value: object, raw: bytes) -> None:
    """Plain values, dataclasses, pydantic models, dates and enums are results."""
    assert encode_result(value, LIMIT) == raw


def _nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"a": float("nan")}, "RESULT_NOT_FINITE"),
        ([[float("inf")], []], "RESULT_NOT_FINITE"),
        (Point(float("nan")), "RESULT_NOT_FINITE"),
        ([City(name="x", heat=float("inf"))], "RESULT_NOT_FINITE"),
        ({"a": {1, 2}}, "RESULT_NOT_JSON"),
        (Point(1.0, {"a"}), "RESULT_NOT_JSON"),
        (object(), "RESULT_NOT_JSON"),
        ({(1, 2): 3}, "RESULT_NOT_JSON"),
        ({1: "a", "1": "b"}, "RESULT_NOT_JSON"),
        ({"x": {1.5: "a", "1.5": "b"}}, "RESULT_NOT_JSON"),
        ({"rows": [{"n": 1}, {1: "a", "1": "b"}]}, "RESULT_NOT_JSON"),
        ({Colour.RED: 1, "red": 2}, "RESULT_NOT_JSON"),
        ({Grade.ONE: 1, Grade.FIRST: 2}, "RESULT_NOT_JSON"),
        (collections.Counter([1, "1"]), "RESULT_NOT_JSON"),
        (Point(1.0, {1: 2, "1": 3}), "RESULT_NOT_JSON"),
        (Row({1: 2, "1": 3}), "RESULT_NOT_JSON"),
        ("\ud800", "RESULT_NOT_UNICODE"),
        ({"\ud800": 1}, "RESULT_NOT_UNICODE"),
        (_nested(33), "RESULT_TOO_DEEP"),
        (_nested(100_000), "RESULT_TOO_DEEP"),
        ("x" * LIMIT, "RESULT_TOO_LARGE"),
        pytest.param(10**5000, "RESULT_NOT_JSON", id="an integer of 5,001 digits"),
    ],
)
def test_a_result_that_json_cannot_carry_is_refused(value: object, reason: str) -> None:
    """What would change silently or break the caller is refused with a reason, without its value (R105)."""
    with pytest.raises(ResultRefused) as caught:
        encode_result(value, LIMIT)
    assert caught.value.reason == reason


def test_names_that_are_written_alike_are_told() -> None:
    """The name and the types of the keys; keys that are written apart are fine."""
    with pytest.raises(ResultRefused, match=r"all written '1' in JSON: int and str"):
        encode_result({"rows": [{1: "secret", "1": "b"}]}, LIMIT)
    assert encode_result({1: "a", 2: "b", "three": "c"}, LIMIT) == b'{"1":"a","2":"b","three":"c"}'
    assert encode_result({"1": {"1": 1}, "x": {1: 1}}, LIMIT) == b'{"1":{"1":1},"x":{"1":1}}'


def test_a_result_exactly_at_the_limits_passes() -> None:
    """The limits themselves are allowed."""
    assert len(encode_result("x" * 98, 100)) == 100
    assert encode_result(_nested(32), LIMIT)


def test_an_error_of_the_authors_own_code_does_not_leak_into_the_refusal() -> None:
    """When writing a result raises, only the kind of error is told."""

    class Secret:
        def model_dump(self, *, mode: str) -> object:
            raise ValueError("canary")

    with pytest.raises(ResultRefused) as caught:
        encode_result(Secret(), LIMIT)
    assert "canary" not in caught.value.message
