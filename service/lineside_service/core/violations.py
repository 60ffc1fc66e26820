"""A failed schema check in words: where, what would be accepted, never the value itself."""

from __future__ import annotations

import difflib
import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jsonschema_rs
import msgspec

from lineside_service.core.errors import Violation
from lineside_service.core.jsonfault import pointer

MAX_VIOLATIONS = 20
MAX_MESSAGE = 200
MAX_TEXT = 3_000
"""UTF-8 bytes of all fields and messages together: the status that carries them ends at 4 KiB."""

_MAX_NAMES = 200  # property names compared to find the one that was meant
_Path = tuple[str | int, ...]


class Violations(tuple[Violation, ...]):  # noqa: SLOT001 - a tuple subclass cannot have named slots
    """What is wrong, sorted by field; `cut`: how many more there were."""

    cut: int = 0


def single(message: str, rule: str) -> Violations:
    """Say one thing about the whole value."""
    return Violations((Violation(field="", message=message, rule=rule),))


def describe(errors: Iterable[jsonschema_rs.ValidationError], schema: Mapping[str, Any]) -> Violations:
    """Put the validator's errors into words: the first MAX_VIOLATIONS by path, within MAX_TEXT."""
    found = [part for error in errors for part in _parts(error)]
    shown: list[Violation] = []
    left = MAX_TEXT
    for path, name, error in heapq.nsmallest(MAX_VIOLATIONS, found, key=_order):
        violation = Violation(
            field=pointer(path), message=_clip(_say(error, name, schema)), rule=_rule(error.kind.name)
        )
        left -= len(violation.field.encode()) + len(violation.message.encode())
        if left < 0 and shown:
            break
        shown.append(violation)
    result = Violations(dict.fromkeys(shown))
    result.cut = len(found) - len(shown)
    return result


_Part = tuple[_Path, str, jsonschema_rs.ValidationError]


def _parts(error: jsonschema_rs.ValidationError) -> Iterator[_Part]:
    """Split one error by the members it is about: each missing and each unknown name stands alone."""
    path: _Path = tuple(error.instance_path)
    kind = error.kind
    if kind.name == "required":
        name = str(kind.as_dict()["property"])
        yield (*path, name), name, error
    elif kind.name in {"additionalProperties", "unevaluatedProperties"}:
        for name in kind.as_dict()["unexpected"]:
            yield (*path, name), name, error
    else:
        yield path, "", error


def _order(part: _Part) -> tuple[tuple[tuple[bool, int, str], ...], str]:
    steps = tuple((False, step, "") if isinstance(step, int) else (True, 0, step) for step in part[0])
    return steps, part[2].kind.name


def _rule(keyword: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", keyword).upper()


def _clip(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()[:MAX_MESSAGE]


def _listed(values: Iterable[object]) -> str:
    return ", ".join(_json(value) for _, value in zip(range(20), values, strict=False))


_WORDS: Mapping[str, Callable[[dict[str, Any]], str]] = {
    "type": lambda k: f"must be {' or '.join(k['types'])}",
    "enum": lambda k: f"must be one of {_listed(k['options'])}",
    "const": lambda k: f"must be {_json(k['expected_value'])}",
    "minimum": lambda k: f"must be at least {k['limit']}",
    "maximum": lambda k: f"must be at most {k['limit']}",
    "exclusiveMinimum": lambda k: f"must be greater than {k['limit']}",
    "exclusiveMaximum": lambda k: f"must be less than {k['limit']}",
    "multipleOf": lambda k: f"must be a multiple of {k['multiple_of']}",
    "minLength": lambda k: f"must have at least {k['limit']} characters",
    "maxLength": lambda k: f"must have at most {k['limit']} characters",
    "pattern": lambda k: f"must match the pattern {k['pattern']}",
    "format": lambda k: f"must be a valid {k['format']}",
    "minItems": lambda k: f"must have at least {k['limit']} items",
    "maxItems": lambda k: f"must have at most {k['limit']} items",
    "uniqueItems": lambda _: "must not have the same item twice",
    "contains": lambda _: "does not have the items that must be in it",
    "minProperties": lambda k: f"must have at least {k['limit']} members",
    "maxProperties": lambda k: f"must have at most {k['limit']} members",
    "required": lambda _: "is required",
    "falseSchema": lambda _: "is not allowed",
    "not": lambda _: "is a value that is excluded here",
    "unevaluatedItems": lambda _: "has more items than are allowed",
    "additionalItems": lambda k: f"must have at most {k['limit']} items",
}


def _say(error: jsonschema_rs.ValidationError, name: str, schema: Mapping[str, Any]) -> str:
    kind = error.kind.name
    facts = error.kind.as_dict()
    if kind in {"additionalProperties", "unevaluatedProperties"}:
        return _say_unknown(name, _known_names(schema, error.schema_path))
    if kind in {"anyOf", "oneOf"}:
        return _say_alternatives(error, facts["context"], schema)
    if kind == "propertyNames":
        inner: jsonschema_rs.ValidationError = facts["error"]
        return f"has a name that {_say(inner, '', schema)}"
    words = _WORDS.get(kind)
    return words(facts) if words is not None else f"does not satisfy {kind}"


def _say_unknown(name: str, known: list[str]) -> str:
    if not known:
        return "is not a known name; none is allowed here"
    near = difflib.get_close_matches(name[:64], known[:_MAX_NAMES], n=1, cutoff=0.6)
    if near:
        return f"is not a known name; did you mean {_json(near[0])}?"
    return f"is not a known name; known are {_listed(sorted(known))}"


def _known_names(schema: Mapping[str, Any], place: list[str | int]) -> list[str]:
    """Read the property names beside the keyword that failed (its place counts from the schema's root)."""
    node: Any = schema
    for step in place[:-1]:
        try:
            node = node[step]
        except (KeyError, IndexError, TypeError):
            return []
    properties = node.get("properties") if isinstance(node, Mapping) else None
    return (
        [name for name, rule in properties.items() if rule is not False]
        if isinstance(properties, Mapping)
        else []
    )


def _say_alternatives(
    error: jsonschema_rs.ValidationError,
    branches: list[list[jsonschema_rs.ValidationError]],
    schema: Mapping[str, Any],
) -> str:
    failed = [branch for branch in branches if branch]
    if len(failed) < len(branches):
        return "matches more than one of the allowed forms; must match exactly one"
    here = error.instance_path
    types = [branch[0].kind.as_dict()["types"] for branch in failed if _is_type_error(branch, here)]
    if len(types) == len(failed):
        return f"must be {' or '.join(dict.fromkeys(name for names in types for name in names))}"
    # The form whose type fits and that fails in the fewest places is the one that was meant.
    fitting = [branch for branch in failed if not _is_type_error(branch, here)]
    if len(fitting) == 1 and types:
        others = " or ".join(dict.fromkeys(name for names in types for name in names))
        return f"{_first_of(fitting[0], here, schema)} (or be {others})"
    closest = min(fitting, key=len)
    return (
        f"matches none of the {len(failed)} allowed forms; in the closest, {_first_of(closest, here, schema)}"
    )


def _is_type_error(branch: list[jsonschema_rs.ValidationError], here: list[str | int]) -> bool:
    return branch[0].kind.name == "type" and branch[0].instance_path == here


def _first_of(
    branch: list[jsonschema_rs.ValidationError], here: list[str | int], schema: Mapping[str, Any]
) -> str:
    path, name, error = next(_parts(branch[0]))
    below = pointer(path[len(here) :])
    words = _say(error, name, schema)
    return f"{below} {words}" if below else words
