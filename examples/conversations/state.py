"""The state of objects as one comparable JSON structure, and its digest.

The whole object graph is taken: every attribute (private ones and random generators too), the order of dicts,
the difference between 1, 1.0 and True, and which containers are shared. The structure is flat, however deep
the objects nest: a list of nodes in the order of first visit, each naming the others by their place in it.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from typing import Any

__all__ = ["WALL_CLOCK_ATTRIBUTES", "canonical_state", "differences", "digest"]

WALL_CLOCK_ATTRIBUTES = frozenset({("File", "_last_modified")})
"""(class, attribute) pairs left out: they hold the wall clock, in which two direct runs differ as well."""

_SCALARS = (str, int, float, bool, type(None))


def canonical_state(value: object) -> list[Any]:
    """Return `value` as JSON nodes, the value itself first; TypeError on a kind of object not known here."""
    walk = _Walk()
    root = walk.reference(value)
    return walk.nodes or [root]


def digest(canonical: object) -> str:
    """Return the SHA-256 of a canonical state, in hexadecimal."""
    return hashlib.sha256(json.dumps(canonical, separators=(",", ":")).encode()).hexdigest()


def differences(left: list[Any], right: list[Any]) -> list[str]:
    """Return a line for every place where two canonical states differ, by its path, for a person to read."""
    return list(_Comparison(left, right).of({"ref": 0}, {"ref": 0}, ""))


class _Walk:
    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self._places: dict[int, int] = {}
        self._alive: list[object] = []  # an id is only unique while its object lives

    def reference(self, value: object) -> Any:
        if isinstance(value, _SCALARS):
            return value
        if id(value) not in self._places:
            place = self._places[id(value)] = len(self.nodes)
            self._alive.append(value)
            self.nodes.append(None)  # the place is taken before the members, which may refer back to it
            self.nodes[place] = self._node(value)
        return {"ref": self._places[id(value)]}

    def _node(self, value: object) -> dict[str, Any]:
        if isinstance(value, dict):
            return {"dict": [[self.reference(key), self.reference(item)] for key, item in value.items()]}
        if isinstance(value, list | tuple):
            return {type(value).__name__: [self.reference(item) for item in value]}
        if isinstance(value, set | frozenset):
            # A set's order is an accident of hashing. Sets of containers do not occur.
            return {"set": sorted((self.reference(item) for item in value), key=json.dumps)}
        if isinstance(value, random.Random):
            return {"random": hashlib.sha256(repr(value.getstate()).encode()).hexdigest()}
        if hasattr(value, "__dict__") and not callable(value):
            return self._instance(value)
        raise TypeError(f"no canonical form for {type(value).__qualname__}")

    def _instance(self, value: object) -> dict[str, Any]:
        name = type(value).__name__
        attributes = {
            attribute: self.reference(item)
            for attribute, item in vars(value).items()
            if (name, attribute) not in WALL_CLOCK_ATTRIBUTES
        }
        return {"object": name, "attributes": attributes}


class _Comparison:
    def __init__(self, left: list[Any], right: list[Any]) -> None:
        self._left = left
        self._right = right
        self._seen: set[tuple[int, int]] = set()

    def of(self, one: Any, other: Any, path: str) -> Iterator[str]:
        if isinstance(one, dict) and isinstance(other, dict):
            if "ref" in one and "ref" in other:
                yield from self._nodes(one["ref"], other["ref"], path)
            else:
                for name in [*one, *(name for name in other if name not in one)]:
                    yield from self.of(one.get(name), other.get(name), f"{path}/{name}")
        elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            for position, (left, right) in enumerate(zip(one, other, strict=True)):
                yield from self.of(left, right, f"{path}/{position}")
        elif type(one) is not type(other) or one != other:
            yield f"{path}: {one!r} is not {other!r}"

    def _nodes(self, one: int, other: int, path: str) -> Iterator[str]:
        if (one, other) not in self._seen:
            self._seen.add((one, other))
            yield from self.of(self._left[one], self._right[other], path)
