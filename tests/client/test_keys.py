"""step_key: stable over time, and equal exactly when the service takes the arguments for equal."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineside import step_key
from lineside_service.core.fingerprint import fingerprint

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        [0, -0.0, 1, 1.0, 2**53, 2.0**53, 2**53 + 2, 2.0**53 + 2, 10**20, 1e20, True, "é", "e\u0301"]
    )
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(max_size=2), JSON_VALUES, max_size=3)


def test_key_is_the_same_in_every_release() -> None:
    """A key that was stored with a step finds it again after an upgrade."""
    assert step_key("run 7, turn 3, call 1", "mail.send", {"to": "a@b", "n": 1}) == (
        "step-v1-49a330c99ff2f7d40b913a25235fb32815566fb1afa41fbee160dfac7ca1daf3"
    )


def test_key_fits_and_tells_steps_tools_and_arguments_apart() -> None:
    """At most 255 characters; no part can pose as another."""
    keys = {
        step_key("a", "bc", {}),
        step_key("ab", "c", {}),
        step_key("a", "bc", {"x": None}),
        step_key("a", "bc", {"x": 1}),
        step_key("a", "bc", {"x": True}),
        step_key("a", "bc", {"x": "1"}),
    }
    assert len(keys) == 6
    assert all(re.fullmatch(r"step-v1-[0-9a-f]{64}", key) for key in keys)


@given(ARGUMENTS, ARGUMENTS)
def test_keys_are_equal_exactly_when_fingerprints_are(a: dict[str, Any], b: dict[str, Any]) -> None:
    """The client never imports the service, yet both follow the same canonical rules."""
    assert (step_key("s", "t", a) == step_key("s", "t", b)) == (fingerprint(a) == fingerprint(b))


@given(ARGUMENTS)
def test_spelling_does_not_matter(arguments: dict[str, Any]) -> None:
    """Members in another order, integers as floats and JSON text give the same key; surrogates are taken
    too.
    """
    key = step_key("s", "t", arguments)
    assert step_key("s", "t", dict(reversed(arguments.items()))) == key
    assert step_key("s", "t", json.dumps(arguments).encode()) == key
    assert fingerprint(arguments) == fingerprint(dict(reversed(arguments.items())))
    assert step_key("s", "t", {"n": 2, "m": [0]}) == step_key("s", "t", {"m": (-0.0,), "n": 2.0})


def test_what_json_has_no_form_for_has_no_key() -> None:
    """NaN is a ValueError; sets and members that are no text are TypeErrors."""
    with pytest.raises(ValueError, match="JSON compliant"):
        step_key("s", "t", {"x": float("nan")})
    for bad in ({"x": {1}}, {1: "x"}):
        with pytest.raises(TypeError):
            step_key("s", "t", bad)  # type: ignore[arg-type]
