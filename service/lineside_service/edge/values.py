"""JSON values as google.protobuf.Struct and Value, where every number is a double.

A whole number is exact only within +-(2^53 - 1); beyond it the form is refused, in both directions, because
an id that silently changed is worse than a refusal. Nesting is bounded as for JSON text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from google.protobuf.struct_pb2 import ListValue, Struct, Value

from lineside_service.core.errors import Violation
from lineside_service.core.jsonsize import MAX_VALUES, UNMEASURED, too_many_values, values_beyond
from lineside_service.core.jsontext import MAX_DEPTH, decode_result

MAX_EXACT: Final = 2**53 - 1
"""Largest magnitude at which every whole number has its own double."""

MAX_VIOLATIONS: Final = 32
"""Violations that one Struct is reported with; reading goes no further."""

_Path = tuple["_Path", str] | None


class NotInForm(Exception):
    """A result that a Value cannot hold exactly; the text says what and where."""


class _TooManyValues(Exception):
    """Reading has come to more than MAX_VALUES; the argument is how many it counted."""


class _Reading:
    """What one reading has found: the values seen, and what is wrong with them."""

    __slots__ = ("bad", "values")

    def __init__(self) -> None:
        self.bad: list[Violation] = []
        self.values = 0

    def count(self, more: int) -> None:
        """Count the members or items of one container, before they are read."""
        self.values += more
        if self.values > MAX_VALUES:
            raise _TooManyValues(self.values)


def read_struct(struct: Struct, field: str = "") -> tuple[dict[str, Any], tuple[Violation, ...]]:
    """The Struct as a JSON object with integral doubles as int, and what is wrong with it.

    Fields of the violations are JSON Pointers; `field` names the whole of it. With violations the object is
    not to be used.
    """
    reading = _Reading()
    try:
        return _read_members(struct, None, 1, reading), tuple(reading.bad)
    except _TooManyValues as many:
        return {}, (_too_many(many, field),)


def read_value(value: Value) -> tuple[Any, tuple[Violation, ...]]:
    """Any Value, under the same rules as a Struct."""
    reading = _Reading()
    try:
        return _read(value, None, 0, reading), tuple(reading.bad)
    except _TooManyValues as many:
        return None, (_too_many(many, ""),)


def _too_many(many: _TooManyValues, field: str) -> Violation:
    return Violation(field=field, message=too_many_values(many.args[0]), rule="TOO_MANY_VALUES")


def _read_members(struct: Struct, path: _Path, depth: int, reading: _Reading) -> dict[str, Any]:
    if depth > MAX_DEPTH:
        _refuse(reading.bad, path, "TOO_DEEP", f"nested deeper than {MAX_DEPTH} levels")
        return {}
    members = struct.fields
    reading.count(len(members))
    return {key: _read(value, (path, key), depth, reading) for key, value in members.items()}


def _read_items(items: ListValue, path: _Path, depth: int, reading: _Reading) -> list[Any]:
    if depth > MAX_DEPTH:
        _refuse(reading.bad, path, "TOO_DEEP", f"nested deeper than {MAX_DEPTH} levels")
        return []
    values = items.values
    reading.count(len(values))
    return [_read(value, (path, str(index)), depth, reading) for index, value in enumerate(values)]


def _read(value: Value, path: _Path, depth: int, reading: _Reading) -> Any:
    match value.WhichOneof("kind"):
        case "string_value":
            return value.string_value
        case "number_value":
            return _read_number(value.number_value, path, reading.bad)
        case "bool_value":
            return value.bool_value
        case "null_value":
            return None
        case "struct_value":
            return _read_members(value.struct_value, path, depth + 1, reading)
        case "list_value":
            return _read_items(value.list_value, path, depth + 1, reading)
        case _:
            _refuse(reading.bad, path, "VALUE_WITHOUT_KIND", "a Value that is none of null, number, string, "
                    "bool, struct, list: set one (null is null_value)")  # fmt: skip
            return None


def _read_number(number: float, path: _Path, bad: list[Violation]) -> int | float:
    if not math.isfinite(number):
        _refuse(bad, path, "NOT_FINITE", f"{number}: only finite numbers are JSON")
    elif number.is_integer():
        if abs(number) > MAX_EXACT:
            _refuse(bad, path, "NOT_EXACT", f"{number:.17g}: a whole number in a Struct must lie within "
                    f"+-(2^53 - 1); larger ones are exact in arguments_json")  # fmt: skip
        return int(number)
    return number


def _refuse(bad: list[Violation], path: _Path, rule: str, message: str) -> None:
    if len(bad) < MAX_VIOLATIONS:
        bad.append(Violation(field=_pointer(path), message=message, rule=rule))


def _pointer(path: _Path) -> str:
    """The RFC 6901 pointer of a path that was kept as a chain, so that good values cost no text."""
    parts: list[str] = []
    while path is not None:
        path, key = path
        parts.append(key.replace("~", "~0").replace("/", "~1"))
    return "".join(f"/{part}" for part in reversed(parts))


def write_value(value: Value, result: bytes) -> None:
    """Set the Value to the JSON text of a result; raises NotInForm when that would change or lose it.

    Each Value is an object of its own, so writing a million of them would hold up everybody for a second.
    """
    if len(result) > UNMEASURED and (values := values_beyond(result, MAX_VALUES)):
        raise NotInForm(f"it has {too_many_values(values)}")
    _write(value, decode_result(result), None, 0)


def _write(value: Value, item: Any, path: _Path, depth: int) -> None:
    if isinstance(item, str):
        value.string_value = item
    elif isinstance(item, bool):
        value.bool_value = item
    elif isinstance(item, (int, float)):
        if isinstance(item, int) and abs(item) > MAX_EXACT:
            raise NotInForm(f"{_pointer(path) or 'the result'} is a whole number beyond +-(2^53 - 1)")
        value.number_value = item
    elif item is None:
        value.null_value = cast("Any", 0)
    elif depth >= MAX_DEPTH:
        raise NotInForm(f"the result is nested deeper than {MAX_DEPTH} levels")
    elif isinstance(item, Mapping):
        value.struct_value.SetInParent()
        members = value.struct_value.fields
        for key, inner in item.items():
            _write(members[key], inner, (path, key), depth + 1)
    else:
        value.list_value.SetInParent()
        values = value.list_value.values
        for index, inner in enumerate(cast("Sequence[Any]", item)):
            _write(values.add(), inner, (path, str(index)), depth + 1)
