from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineside_service.core.fingerprint import (
    differing_members,
    downstream_key,
    fingerprint,
    member_hashes,
    scope_id,
)
from lineside_service.core.jsontext import decode_arguments
from tests.core.test_jsontext import OBJECTS

SECRET = b"s" * 32


def _shuffled(value: Any, chance: random.Random) -> Any:
    """The same document, members in another order and integers spelled as floats where that is exact."""
    if isinstance(value, dict):
        names = list(value)
        chance.shuffle(names)
        return {name: _shuffled(value[name], chance) for name in names}
    if isinstance(value, list):
        return [_shuffled(item, chance) for item in value]
    if type(value) is int and abs(value) <= 2**53 and chance.random() < 0.5:
        return float(value)
    return value


@settings(max_examples=300)
@given(OBJECTS, st.randoms(use_true_random=False))
def test_an_honest_repeat_has_the_same_fingerprint(value: dict[str, Any], chance: random.Random) -> None:
    """Order of members, white space and spelling of integers do not change the fingerprint (R046)."""
    for _ in range(10):
        raw = json.dumps(_shuffled(value, chance), indent=chance.choice([None, 2])).encode()
        assert fingerprint(decode_arguments(raw)) == fingerprint(value)


def _settled(value: Any) -> Any:
    """An oracle for equality: JSON values with types told apart, numbers as the rules say."""
    if isinstance(value, dict):
        return {"{": {name: _settled(item) for name, item in value.items()}}
    if isinstance(value, list):
        return [_settled(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
        value = int(value)
    return (type(value).__name__, value)


SMALL: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(["a", "b"]),
    st.sampled_from(
        [0, -0.0, 1, 1.0, 1.5, True, None, "1", "", [], {}, [1], [1.0], 2**53, 2.0**53, 2**53 + 1, 1e300]
    ),
    max_size=2,
)


@settings(max_examples=300)
@given(st.lists(st.tuples(SMALL, SMALL), min_size=20, max_size=20))
def test_two_fingerprints_are_equal_exactly_when_the_arguments_are(pairs: list[tuple[Any, Any]]) -> None:
    """Equal and different arguments are told apart over thousands of near pairs (R046)."""
    for left, right in pairs:
        assert (fingerprint(left) == fingerprint(right)) == (_settled(left) == _settled(right))


@pytest.mark.parametrize(
    ("left", "right", "is_same"),
    [
        (b'{"a":1}', b'{"a":1.0}', True),
        (b'{"a":100}', b'{"a":1e2}', True),
        (b'{"a":0}', b'{"a":-0.0}', True),
        (b'{"a":0}', b'{"a":-0}', True),
        (b'{"a":0.1}', b'{"a":1e-1}', True),
        (b'{"a":"\\u00e9"}', '{"a":"é"}'.encode(), True),
        (b'{"a":9007199254740993}', b'{"a":9007199254740992}', False),
        (b'{"a":9007199254740994}', b'{"a":9007199254740994.0}', False),
        ('{"a":"é"}'.encode(), '{"a":"e\u0301"}'.encode(), False),
        (b'{"a":null}', b"{}", False),
        (b'{"a":1}', b'{"a":"1"}', False),
        (b'{"a":1}', b'{"a":true}', False),
        (b'{"a":[1,2]}', b'{"a":[2,1]}', False),
        (b'{"a":"1.0"}', b'{"a":"1"}', False),
    ],
)
def test_the_written_rules_of_numbers_and_text(left: bytes, right: bytes, is_same: bool) -> None:
    """Integral floats within 2^53 are integers, text is compared as sent, null is not absent (R046)."""
    assert (fingerprint(decode_arguments(left)) == fingerprint(decode_arguments(right))) == is_same


def test_a_fingerprint_is_the_same_in_every_version() -> None:
    """Rows outlive an upgrade: the hash of a known document is pinned."""
    value = {"b": [1.0, 0.1, 1e300, None], "a": {"é": True, "n": 2**70}}
    assert fingerprint(value).hex() == PINNED


PINNED = "2071e38d22d3c0bed55e2cdf202819967a7b71b62c564867d0bf40c19fb26a47"


def test_scopes_are_apart_whatever_the_separators() -> None:
    """No two (tenant, tool, key) share a scope, also where a join of their texts would be the same (R043)."""
    parts = ["", "a", ":", "a:", ":b", "a:b", "b:c", "c", "\x00", "a\x00"]
    scopes = {scope_id(*each) for each in itertools.product(parts, parts, parts)}
    assert len(scopes) == len(parts) ** 3
    keys = {downstream_key(*each, b"f") for each in itertools.product(parts, parts, parts)}
    assert len(keys) == len(parts) ** 3


def test_the_downstream_key_depends_on_the_arguments() -> None:
    """One key with other arguments is other work to the upstream; the same work keeps its name."""
    one, two = fingerprint({"a": 1}), fingerprint({"a": 2})
    assert downstream_key("t", "pay", "k", one) != downstream_key("t", "pay", "k", two)
    assert downstream_key("t", "pay", "k", one) == downstream_key("t", "pay", "k", one)
    assert len(downstream_key("t", "pay", "k", one)) == 64


def test_differing_members_are_named_without_their_values() -> None:
    """Changed, added and removed members are named; 1 and 1.0 do not differ."""
    first = member_hashes({"amount": 1, "to": "ann", "note": "x", "same": [1.0]}, SECRET)
    then = member_hashes({"amount": 2, "to": "ann", "memo": "x", "same": [1]}, SECRET)
    assert differing_members(first, then) == ("amount", "memo", "note")


def test_so_many_members_are_not_told_apart() -> None:
    """A thousand are; a hundred thousand would take longer than all the rest of the call."""
    assert len(member_hashes({f"m{n}": n for n in range(1000)}, SECRET)) == 1000
    assert not member_hashes({f"m{n}": n for n in range(1001)}, SECRET)


def test_member_hashes_cannot_be_compared_without_the_key() -> None:
    """Another secret gives other hashes of 8 bytes: a value cannot be guessed from a stolen row."""
    mine, other = member_hashes({"pin": 1234}, SECRET), member_hashes({"pin": 1234}, b"o" * 32)
    assert mine["pin"] != other["pin"]
    assert len(mine["pin"]) == 8
