"""Whether any object can match a schema, as far as its outermost words tell.

The arguments of a call are always one JSON object. A schema that takes none refuses every call, which is
better said when the tool is configured. Only what the root itself says is looked at, through references and
combinations; schemas that contradict themselves in finer ways are not found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MAX_LEVELS = 64
"""Combinations inside each other, as deep as schemas may be; what is behind more is taken to match."""

_OBJECT = "a JSON object"


def why_no_object(schema: Mapping[str, Any]) -> str | None:
    """Say which word of the schema shuts out all objects, by JSON Pointer, and what would be right."""
    return _Search(schema).why(schema, "", _MAX_LEVELS)


class _Search:
    """A search through one schema that follows each reference once, however often it stands there."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._followed: dict[str, str | None] = {}
        dialect = root.get("$schema")
        # Before the draft of 2019 the words beside a reference count for nothing.
        self._is_old = isinstance(dialect, str) and any(f"draft-0{number}" in dialect for number in (4, 6, 7))

    def why(self, schema: Any, place: str, levels: int) -> str | None:
        """The same as `why_no_object`, of a part of the schema at `place`."""
        if schema is False:
            return f"{place}: false matches nothing; leave it out, or write true"
        if not isinstance(schema, Mapping) or not levels:
            return None
        reference = schema.get("$ref")
        if isinstance(reference, str):
            why = self._behind(reference, levels - 1)
            if why is not None or self._is_old:
                return why
        return _own_words(schema, place) or self._combined(schema, place, levels - 1)

    def _behind(self, reference: str, levels: int) -> str | None:
        if reference not in self._followed and reference.startswith("#/"):
            self._followed[reference] = None  # one that leads back to itself shuts out nothing
            target = _target(reference, self._root)
            self._followed[reference] = self.why(target, reference.removeprefix("#"), levels)
        return self._followed.get(reference)

    def _combined(self, schema: Mapping[str, Any], place: str, levels: int) -> str | None:
        for keyword in ("allOf", "anyOf", "oneOf"):
            branches = schema.get(keyword)
            if not isinstance(branches, list):
                continue
            found = [self.why(each, f"{place}/{keyword}/{at}", levels) for at, each in enumerate(branches)]
            told = [why for why in found if why is not None]
            if told and (keyword == "allOf" or len(told) == len(branches)):
                return told[0]
        return None


def _own_words(schema: Mapping[str, Any], place: str) -> str | None:
    kinds = schema.get("type")
    if isinstance(kinds, str) and kinds != "object":
        return f'{place}/type: "{kinds[:50]}" is not {_OBJECT}; write "object", or leave it out'
    if isinstance(kinds, list) and kinds and "object" not in kinds:
        return f'{place}/type: none of these is {_OBJECT}; add "object", or leave it out'
    if "const" in schema and not isinstance(schema["const"], Mapping):
        return f"{place}/const: is not {_OBJECT}; a constant belongs to one of the `properties`"
    values = schema.get("enum")
    if isinstance(values, list) and not any(isinstance(value, Mapping) for value in values):
        return f"{place}/enum: none of these is {_OBJECT}; an enum belongs to one of the `properties`"
    refused = schema.get("not")
    if refused is True or refused in ({}, {"type": "object"}):
        return f"{place}/not: shuts out every object; leave it out"
    return None


def _target(reference: str, root: Mapping[str, Any]) -> Any:
    """What a pointer inside the schema leads to; None where it leads nowhere, which compiling will tell."""
    found: Any = root
    for part in reference[2:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    return found
