from __future__ import annotations

import random

import pytest

from conversations.state import canonical_state, differences, digest


class File:
    def __init__(self, content: str, stamp: int) -> None:
        self.content = content
        self._last_modified = stamp


def _same(one: object, other: object) -> bool:
    return digest(canonical_state(one)) == digest(canonical_state(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        ([1], (1,)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1: "a"}, {"1": "a"}),
        (random.Random(1), random.Random(2)),
        (File("a", 0), File("b", 0)),
        ([0.0], [-0.0]),
    ],
)
def test_what_python_can_tell_apart_differs(one: object, other: object) -> None:
    """Types, the order of dicts, the kind of keys, generators and attributes all count."""
    assert not _same(one, other)


def test_shared_containers_are_part_of_the_state() -> None:
    """A list that is held twice is another state than two equal lists."""
    shared: list[int] = []
    assert not _same([shared, shared], [[], []])


def test_a_drawn_number_changes_a_generator() -> None:
    """Two generators of one seed are equal until one of them is used."""
    one, other = random.Random(7), random.Random(7)
    assert _same(one, other)
    one.random()
    assert not _same(one, other)


def test_wall_clock_stamps_and_set_order_do_not_count() -> None:
    """Two runs differ in both by accident."""
    assert _same(File("a", 1), File("a", 2))
    assert _same({"b", "a", "c"}, {"c", "b", "a"})


def test_cycles_end() -> None:
    """A directory knows its parent."""
    child: dict[str, object] = {}
    child["parent"] = {"child": child}
    assert canonical_state(child) == [
        {"dict": [["parent", {"ref": 1}]]},
        {"dict": [["child", {"ref": 0}]]},
    ]


def test_deep_objects_make_flat_states() -> None:
    """A result nested more than 32 levels deep could not be sent back."""
    deep: list[object] = []
    for _ in range(100):
        deep = [deep]
    assert canonical_state(deep)[:2] == [{"list": [{"ref": 1}]}, {"list": [{"ref": 2}]}]


def test_an_unknown_kind_is_refused() -> None:
    """State that cannot be compared is an error, not equal by chance."""
    with pytest.raises(TypeError, match="no canonical form for function"):
        canonical_state([_same])


def test_differences_name_the_place() -> None:
    """A person reads where two states part."""
    one, other = canonical_state({"a": [1, 2]}), canonical_state({"a": [1, 3]})
    assert differences(one, other) == ["/dict/0/1/list/1: 2 is not 3"]
    assert differences(one, one) == []
