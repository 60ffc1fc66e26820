"""The state of objects as one comparable JSON structure, and its digest.

The whole object graph is taken: every attribute (private ones and random generators too), the order of dicts,
the difference between 1, 1.0 and True, and which containers are shared. A container met again is a reference
to the number it got at its first visit, so that two states are equal only if their aliasing is equal too.
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


def canonical_state(value: object) -> Any:
    """Return `value` as JSON; TypeError on a kind of object that is not known here."""
    return _Walk().visit(value)


def digest(canonical: object) -> str:
    """Return the SHA-256 of a canonical state, in hexadecimal."""
    return hashlib.sha256(json.dumps(canonical, separators=(",", ":")).encode()).hexdigest()


def differences(left: object, right: object, path: str = "") -> Iterator[str]:
    """Yield a line for every place where two canonical states differ, for a person to read."""
    if isinstance(left, dict) and isinstance(right, dict):
        for name in [*left, *(name for name in right if name not in left)]:
            yield from differences(left.get(name), right.get(name), f"{path}/{name}")
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for position, (one, other) in enumerate(zip(left, right, strict=True)):
            yield from differences(one, other, f"{path}/{position}")
    elif type(left) is not type(right) or left != right:
        yield f"{path}: {left!r} is not {right!r}"


class _Walk:
    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._alive: list[object] = []  # ids are only unique while the object lives

    def visit(self, value: object) -> Any:
        if isinstance(value, _SCALARS):
            return value
        if isinstance(value, tuple):
            return {"tuple": [self.visit(item) for item in value]}
        if id(value) in self._numbers:
            return {"ref": self._numbers[id(value)]}
        number = self._numbers[id(value)] = len(self._numbers)
        self._alive.append(value)
        return {"id": number, **self._container(value)}

    def _container(self, value: object) -> dict[str, Any]:
        if isinstance(value, dict):
            return {"dict": [[self.visit(key), self.visit(item)] for key, item in value.items()]}
        if isinstance(value, list):
            return {"list": [self.visit(item) for item in value]}
        if isinstance(value, set | frozenset):
            # A set's order is an accident of hashing.
            return {"set": sorted((self.visit(item) for item in value), key=json.dumps)}
        if isinstance(value, random.Random):
            return {"random": hashlib.sha256(repr(value.getstate()).encode()).hexdigest()}
        if hasattr(value, "__dict__") and not callable(value):
            return self._instance(value)
        raise TypeError(f"no canonical form for {type(value).__qualname__}")

    def _instance(self, value: object) -> dict[str, Any]:
        name = type(value).__name__
        attributes = {
            attribute: self.visit(item)
            for attribute, item in vars(value).items()
            if (name, attribute) not in WALL_CLOCK_ATTRIBUTES
        }
        return {"object": name, "attributes": attributes}
