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
from lineside_service.core.jsontext import MAX_DEPTH, decode_result

MAX_EXACT: Final = 2**53 - 1
"""Largest magnitude at which every whole number has its own double."""

MAX_VIOLATIONS: Final = 32
"""Violations that one Struct is reported with; reading goes no further."""

_Path = tuple["_Path", str] | None


class NotInForm(Exception):
    """A result that a Value cannot hold exactly; the text says what and where."""


def read_struct(struct: Struct) -> tuple[dict[str, Any], tuple[Violation, ...]]:
    """The Struct as a JSON object with integral doubles as int, and what is wrong with it.

    Fields of the violations are JSON Pointers. With violations the object is not to be used.
    """
    bad: list[Violation] = []
    return _read_members(struct, None, 1, bad), tuple(bad)


def read_value(value: Value) -> tuple[Any, tuple[Violation, ...]]:
    """Any Value, under the same rules as a Struct."""
    bad: list[Violation] = []
    return _read(value, None, 0, bad), tuple(bad)


def _read_members(struct: Struct, path: _Path, depth: int, bad: list[Violation]) -> dict[str, Any]:
    if depth > MAX_DEPTH:
        _refuse(bad, path, "TOO_DEEP", f"nested deeper than {MAX_DEPTH} levels")
        return {}
    return {key: _read(value, (path, key), depth, bad) for key, value in struct.fields.items()}


def _read_items(items: ListValue, path: _Path, depth: int, bad: list[Violation]) -> list[Any]:
    if depth > MAX_DEPTH:
        _refuse(bad, path, "TOO_DEEP", f"nested deeper than {MAX_DEPTH} levels")
        return []
    return [_read(value, (path, str(index)), depth, bad) for index, value in enumerate(items.values)]


def _read(value: Value, path: _Path, depth: int, bad: list[Violation]) -> Any:
    match value.WhichOneof("kind"):
        case "string_value":
            return value.string_value
        case "number_value":
            return _read_number(value.number_value, path, bad)
        case "bool_value":
            return value.bool_value
        case "null_value":
            return None
        case "struct_value":
            return _read_members(value.struct_value, path, depth + 1, bad)
        case "list_value":
            return _read_items(value.list_value, path, depth + 1, bad)
        case _:
            _refuse(bad, path, "VALUE_WITHOUT_KIND", "a Value that is none of null, number, string, bool, "
                    "struct, list: set one (null is null_value)")  # fmt: skip
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
    """Set the Value to the JSON text of a result; raises NotInForm when that would change or lose it."""
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
