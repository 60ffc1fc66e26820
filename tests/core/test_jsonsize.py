"""The size of a document is counted in its text, exactly, and before it costs anything."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineside_service.core.fingerprint import fingerprint, member_hashes
from lineside_service.core.jsonsize import (
    MAX_ARGUMENT_BYTES,
    MAX_LONG_DIGITS,
    MAX_VALUES,
    UNMEASURED,
    require_bounded,
    values_beyond,
)
from lineside_service.core.jsontext import JsonRefused, decode_arguments
from lineside_service.core.schema import compile_schema

_TEXT = st.text(st.sampled_from('ab,:{}[]"\\ 0'), max_size=6)
_JSON = st.recursive(
    st.one_of(st.none(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), _TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(_TEXT, inner, max_size=5)),
    max_leaves=30,
)


def _count(value: Any) -> int:
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return len(inside) + sum(_count(item) for item in inside)


@given(st.dictionaries(_TEXT, _JSON, max_size=5), st.sampled_from([None, 1]))
def test_values_are_counted_as_they_decode(value: dict[str, Any], indent: int | None) -> None:
    """Members and items at all levels, whatever brackets and commas their strings hold."""
    raw, values = json.dumps(value, indent=indent).encode(), _count(value)
    assert values_beyond(raw, values) == 0
    if values:
        told = values_beyond(raw, values - 1)
        assert values - 1 < told <= values


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":"' + b"[{,:" * 500_000 + b'"}',
        b'{"a":[' + b"1," * (MAX_VALUES - 2) + b"1]}",
        b'{"a":[' + b",".join([b"9" * 500] * 4000) + b"]}",
        b'{"a":"' + b"9" * (MAX_ARGUMENT_BYTES - 8) + b'"}',
        b'{"a":[' + b",".join([b"9" * 4000] * (MAX_LONG_DIGITS // 4000)) + b"]}",
    ],
    ids=["punctuation", "values", "numbers", "bytes", "digits"],
)
def test_what_is_within_the_bounds_is_taken(raw: bytes) -> None:
    """The bounds themselves, and strings that look like what is bounded."""
    require_bounded(raw, "field")


def test_short_text_needs_no_measuring() -> None:
    """No text of so few bytes can break a bound."""
    assert values_beyond(b"[" * (UNMEASURED // 2) + b"]" * (UNMEASURED // 2), MAX_VALUES) == 0
    assert UNMEASURED < MAX_LONG_DIGITS


def _fill(unit: bytes, head: bytes, tail: bytes) -> bytes:
    return head + unit * ((MAX_ARGUMENT_BYTES - len(head) - len(tail)) // len(unit)) + tail


@pytest.mark.parametrize(
    "raw",
    [
        b"{" + b",".join(b'"%x":1' % n for n in range(350_000)) + b"}",
        _fill(b"1,", b'{"a":[', b"1]}"),
        _fill(b"0.1,", b'{"a":[', b"1]}"),
        _fill(b"[],", b'{"a":[', b"1]}"),
        _fill(b"[[[[]]]],", b'{"a":[', b"1]}"),
        _fill(b'"",', b'{"a":[', b"1]}"),
        _fill(b'"\\\\",', b'{"a":[', b"1]}"),
        _fill(b'{"a":1},', b'{"a":[', b"1]}"),
        _fill(b"9" * 4300 + b",", b'{"a":[', b"1]}"),
    ],
    ids=["names", "ones", "floats", "lists", "nested", "strings", "escapes", "objects", "digits"],
)
def test_what_would_take_seconds_is_refused_at_once(raw: bytes) -> None:
    """Four megabytes of the costliest JSON: refused for what they hold, before they are decoded (R110)."""
    started = time.process_time()
    with pytest.raises(JsonRefused) as caught:
        require_bounded(raw, "field")
    assert time.process_time() - started < 0.25  # alone it is below 50 ms; decoding alone takes up to 0.7 s
    assert caught.value.violation.field == "field"
    assert caught.value.violation.rule in ("TOO_MANY_VALUES", "TOO_MANY_DIGITS")


@pytest.mark.parametrize(
    "make",
    [
        lambda: b"{" + b",".join(b'"\\u003a%x":1.0' % n for n in range(MAX_VALUES)) + b"}",
        lambda: _fill(b"9" * 499 + b",", b'{"a":[', b"1]}"),
        lambda: b'{"a":[' + b",".join([b"9" * 4300] * (MAX_LONG_DIGITS // 4300)) + b"]}",
        lambda: b'{"a":[' + b"[[]]," * (MAX_VALUES // 2 - 2) + b"[]]}",
    ],
    ids=["names", "integers", "digits", "lists"],
)
def test_the_largest_that_is_taken_holds_nobody_up(make: Callable[[], bytes]) -> None:
    """Decoding, checking and both hashes of a key, one after the other (R110)."""
    raw, schema = make(), compile_schema({"type": "object"})
    started = time.process_time()
    require_bounded(raw, "field")
    arguments = decode_arguments(raw)
    assert not schema.check(arguments)
    fingerprint(arguments)
    member_hashes(arguments, bytes(32))
    assert time.process_time() - started < 1.0  # alone 0.05 to 0.25 s; shared cores need room
