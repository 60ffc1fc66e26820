"""The matcher tells right from wrong, and says where."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.contract.authored import expanded
from tests.contract.matching import is_match, mismatches


def encoded(text: str) -> str:
    """Base64, as proto3 JSON has bytes."""
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("want", "right", "wrong"),
    [
        ({"a": 1}, {"a": 1}, {"a": 1, "b": 2}),
        ({"a": 1}, {"a": 1}, {}),
        ([1, 2], [1, 2], [2, 1]),
        ("1", "1", 1),
        (1, 1, True),
        ({"a": {"$absent": True}}, {}, {"a": None}),
        ({"a": {"$any": True}}, {"a": None}, {}),
        ({"a": {"$maybe": 1}}, {}, {"a": 2}),
        ({"$range": [1, 2]}, "1.5s", "2.1s"),
        ({"$range": [1, 2]}, 1, None),
        ({"$regex": "[ab]+"}, "ab", "abc"),
        ({"$one_of": [1, "x"]}, "x", 2),
        ({"$has": {"a": 1}}, {"a": 1, "b": 2}, {"b": 2}),
        ({"$unordered": [1, {"$range": [2, 2]}, 3]}, [3, 1, 2], [3, 3, 2]),
        ({"$unordered": [1]}, [1], [1, 1]),
        ({"$counts": [[2, 1], [1, 2]]}, [1, 2, 1], [1, 2, 2]),
        ({"$same": [0, "id"]}, "x", "y"),
        ({"$not_same": [0, "id"]}, "y", "x"),
        ({"$json": 9007199254740993}, encoded("9007199254740993"), encoded("9007199254740992")),
        ({"$json": 1}, encoded(" 1 "), encoded("1.0")),
        ({"$json": [True]}, encoded("[true]"), encoded("[1]")),
        ({"$json": {"a": None}}, encoded('{"a": null}'), encoded("{}")),
        ({"$json": 1}, encoded("1"), "no base64"),
        ({"$value": [1, None]}, [1.0, None], [True, None]),
    ],
)
def test_it_tells_right_from_wrong(want: Any, right: Any, wrong: Any) -> None:
    """Each sort of expectation takes what it should, and nothing else."""
    earlier = [{"id": "x"}]
    assert is_match(want, right, earlier)
    assert not is_match(want, wrong, earlier)


def test_a_mismatch_says_where() -> None:
    """The path from the answer on, what was wanted and what came."""
    [found] = mismatches({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, [])
    assert (found.path, found.want, found.got) == ("a[0].b", 1, 2)
    assert str(found) == "at a[0].b\n    want 1\n    got  2"


def test_authors_forms_stand_for_values() -> None:
    """Names, long texts, lists, bytes and JSON."""
    told = {
        "key": "${run}-${n}",
        "args": {"value": {"concat": ["a", {"repeat": "b", "times": 3}]}},
        "list": {"count": 2, "of": "item ${n}"},
    }
    made = expanded(told, {"run": "r"})
    assert json.loads(base64.b64decode(made.pop("arguments_json"))) == {"value": "abbb"}
    assert made == {"key": "r-${n}", "list": ["item 0", "item 1"]}
