"""Compares what a runner answered with what it must answer, place by place.

Everything is compared exactly, and a member that is not expected is a mismatch, except where the expectation
is one of

    {"$any": true}           there, whatever it is
    {"$absent": true}        not there
    {"$maybe": true | X}     not there, or anything (or X)
    {"$range": [LO, HI]}     a number, or a duration ("1.5s"), within
    {"$regex": "..."}        a text that matches it whole
    {"$same": [STEP, ...]}   the same value as at this path of the scenario's earlier answers
    {"$not_same": [...]}     another value than there
    {"$unordered": [...]}    these, in any order; each takes the first that fits it
    {"$counts": [[N, X]...]} N answers each that match X, and no others
    {"$one_of": [...]}       one of these
    {"$has": {...}}          an object with these members and perhaps others
    {"$json": VALUE}         base64 of JSON text with that value; 1 and 1.0 differ there
    {"$value": VALUE}        a JSON value whose numbers are doubles
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_MISSING = object()
_DURATION = re.compile(r"(-?\d+(?:\.\d+)?)s")


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One place where it differs. path: from the step's answer on."""

    path: str
    want: Any
    got: Any

    def __str__(self) -> str:
        return f"at {self.path or 'the answer'}\n    want {shown(self.want)}\n    got  {shown(self.got)}"


def shown(value: Any) -> str:
    """A value on one line, cut where it is long."""
    text = "nothing" if value is _MISSING else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 600 else f"{text[:500]}... ({len(text)} characters) ...{text[-60:]}"


def mismatches(want: Any, got: Any, earlier: Sequence[Any], path: str = "") -> Iterator[Mismatch]:
    """Every place where an answer is not as expected. earlier: the scenario's answers so far."""
    match want:
        case dict() if len(want) == 1 and (test := _TESTS.get(next(iter(want)))) is not None:
            if not test(next(iter(want.values())), got, earlier):
                yield Mismatch(path, want, got)
        case {"$unordered": list() as parts} if isinstance(got, list) and len(got) == len(parts):
            yield from _unordered(parts, got, earlier, path)
        case {"$has": dict() as members} if isinstance(got, dict):
            yield from _members(members, got, earlier, path)
        case {"$json": value} if (inner := _decoded(got)) is not _MISSING:
            yield from _json(value, inner, f"{path} as JSON")
        case dict() if isinstance(got, dict):
            extra = {name: {"$absent": True} for name in got if name not in want}
            yield from _members({**want, **extra}, got, earlier, path)
        case list() if isinstance(got, list) and len(got) == len(want):
            for number, (part, said) in enumerate(zip(want, got, strict=True)):
                yield from mismatches(part, said, earlier, f"{path}[{number}]")
        case _ if type(want) is not type(got) or want != got:
            yield Mismatch(path, want, got)


def is_match(want: Any, got: Any, earlier: Sequence[Any]) -> bool:
    """Whether it is as expected."""
    return next(mismatches(want, got, earlier), None) is None


def at(answers: Any, place: Sequence[str | int]) -> Any:
    """What stands at a path."""
    for part in place:
        answers = answers[part]
    return answers


def _is_maybe(inner: Any, got: Any, earlier: Sequence[Any]) -> bool:
    return got is _MISSING or inner is True or is_match(inner, got, earlier)


def _is_within(bounds: Any, got: Any, _: Sequence[Any]) -> bool:
    number = _number(got)
    return number is not None and bounds[0] <= number <= bounds[1]


def _is_counted(groups: Any, got: Any, earlier: Sequence[Any]) -> bool:
    if not isinstance(got, list):
        return False
    found = [sum(is_match(part, one, earlier) for one in got) for _, part in groups]
    return found == [count for count, _ in groups] and sum(found) == len(got)


_TESTS: Mapping[str, Callable[[Any, Any, Sequence[Any]], bool]] = {
    "$any": lambda _, got, __: got is not _MISSING,
    "$absent": lambda _, got, __: got is _MISSING,
    "$maybe": _is_maybe,
    "$range": _is_within,
    "$regex": lambda pattern, got, _: isinstance(got, str) and re.fullmatch(pattern, got) is not None,
    "$same": lambda place, got, earlier: got == at(earlier, place),
    "$not_same": lambda place, got, earlier: got is not _MISSING and got != at(earlier, place),
    "$one_of": lambda choices, got, earlier: any(is_match(one, got, earlier) for one in choices),
    "$counts": _is_counted,
    "$value": lambda value, got, _: value == got and _has_booleans_alike(value, got),
}
"""The expectations that hold or do not, whole."""


def _members(
    members: dict[str, Any], got: dict[str, Any], earlier: Sequence[Any], path: str
) -> Iterator[Mismatch]:
    for name, part in members.items():
        yield from mismatches(part, got.get(name, _MISSING), earlier, f"{path}.{name}".lstrip("."))


def _unordered(parts: list[Any], got: list[Any], earlier: Sequence[Any], path: str) -> Iterator[Mismatch]:
    """Pairs them; one without its like is compared with the nearest, so that a message helps."""
    left = list(enumerate(got))
    for part in parts:
        found = next((one for one in left if is_match(part, one[1], earlier)), None)
        if found is None:
            found = min(left, key=lambda one: sum(1 for _ in mismatches(part, one[1], earlier)))
            yield from mismatches(part, found[1], earlier, f"{path}[{found[0]}]")
        left.remove(found)


def _number(got: Any) -> float | None:
    if isinstance(got, str) and (found := _DURATION.fullmatch(got)):
        return float(found[1])
    return got if isinstance(got, int | float) and not isinstance(got, bool) else None


def _decoded(text: Any) -> Any:
    try:
        return json.loads(base64.b64decode(text, validate=True))
    except (TypeError, ValueError):
        return _MISSING


def _json(want: Any, got: Any, path: str) -> Iterator[Mismatch]:
    """Exact JSON: 1, 1.0 and true are three values, and integers of any size are themselves."""
    match want, got:
        case dict(), dict() if list(want) == list(got) or want.keys() == got.keys():
            for name in want:
                yield from _json(want[name], got[name], f"{path}.{name}")
        case list(), list() if len(want) == len(got):
            for number, (part, said) in enumerate(zip(want, got, strict=True)):
                yield from _json(part, said, f"{path}[{number}]")
        case _ if type(want) is not type(got) or want != got:
            yield Mismatch(path, want, got)


def _has_booleans_alike(want: Any, got: Any) -> bool:
    match want, got:
        case dict(), dict():
            return all(_has_booleans_alike(want[name], got[name]) for name in want)
        case list(), list():
            return all(map(_has_booleans_alike, want, got))
    return isinstance(want, bool) is isinstance(got, bool)
