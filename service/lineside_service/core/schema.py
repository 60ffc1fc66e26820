"""JSON Schemas of tools: compiled once at registration, checked on every call.

jsonschema-rs does the checking, confined: no reference leaves the schema, patterns run on the engine with
linear time, and what a schema can cost is bounded before a value is looked at (see schemacost).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jsonschema_rs
import msgspec

from lineside_service.core.errors import Violation
from lineside_service.core.jsontext import MAX_DEPTH, JsonRefused, decode_arguments
from lineside_service.core.schemacost import REFERENCES, SchemaCost, SchemaRefused, subschemas
from lineside_service.core.violations import Violations, describe, single

__all__ = ["CompiledSchema", "SchemaRefused", "Violation", "Violations", "compile_schema"]

MAX_SCHEMA_BYTES = 256 * 1024
MAX_SCHEMA_DEPTH = 64
MAX_SUBSCHEMAS = 5_000
MAX_HERE = 1_000
"""Subschemas that may apply to one value; 12 nested anyOf of 4 would be 22 million."""

_PATTERN_BYTES = (
    256 * 1024
)  # of a compiled pattern; the engine's default, 10 MiB, takes seconds per MB of text
_CHEAP_LOOKS = 64
# Looks per check: about 75 ns each while only the verdict is asked (75 ms), and some 10 us each where
# alternatives are explained one by one (200 ms). Measured with jsonschema-rs 0.61.
_VERDICT_LOOKS = 1_000_000
_EXPLAINED_LOOKS = 20_000
_EXPLAINED_VALUES = 50_000
# uniqueItems compares integers beyond 64 bits pair by pair, about 1.4 us a pair.
_WIDE_PAIRS = 50_000
_WIDE = 2**63

_DIALECTS = frozenset(
    f"json-schema.org/{name}"
    for name in (
        "draft/2020-12/schema",
        "draft/2019-09/schema",
        "draft-07/schema",
        "draft-06/schema",
        "draft-04/schema",
        "schema",
    )
)


class CompiledSchema:
    """One schema, ready to check values. `text`: its JSON as registered; `document`: the same, decoded."""

    __slots__ = (
        "_compares_items",
        "_has_alternatives",
        "_is_valid",
        "_looks",
        "_validator",
        "document",
        "text",
    )

    def __init__(
        self, document: dict[str, Any], text: bytes, cost: SchemaCost, validator: jsonschema_rs.Validator
    ) -> None:
        self.document = document
        self.text = text
        self._validator = validator
        self._is_valid = validator.is_valid
        self._looks = cost.looks_to(MAX_DEPTH)
        self._has_alternatives = b'"anyOf"' in text or b'"oneOf"' in text
        self._compares_items = b'"uniqueItems"' in text

    def check(self, value: Any) -> Violations:
        """Return what is wrong with a decoded JSON value: nothing when it is valid.

        At most 20 violations, sorted by field, with the number of the others as `.cut`. They say what
        would be accepted and never repeat a value.
        """
        if self._compares_items or self._looks[-1] > _CHEAP_LOOKS:
            values, depth, wide = _measure(value)
            if values * self._looks[depth] > _VERDICT_LOOKS:
                return single(
                    f"has {values} values, up to {depth} levels deep: more than can be checked against this "
                    "schema's alternatives; send less at once",
                    "TOO_COSTLY",
                )
            if self._compares_items and wide * values > _WIDE_PAIRS:
                return single(
                    "has too many integers beyond 64 bits to compare them for uniqueness", "TOO_COSTLY"
                )
        if self._is_valid(value):
            return Violations()
        return self._explain(value)

    def _explain(self, value: Any) -> Violations:
        values, depth, _ = _measure(value)
        if self._has_alternatives and values * self._looks[depth] > _EXPLAINED_LOOKS:
            return single(f"does not match the schema; {values} values are too many to say where", "SCHEMA")
        if values > _EXPLAINED_VALUES:
            return self._first(value)
        return describe(self._validator.iter_errors(value), self.document)

    def _first(self, value: Any) -> Violations:
        try:
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            return describe(iter([error]), self.document)
        return single("does not match the schema", "SCHEMA")


def compile_schema(text: bytes | Mapping[str, Any], *, check_formats: bool = False) -> CompiledSchema:
    """Compile a JSON Schema given as JSON text or decoded; raises SchemaRefused.

    2020-12 unless `$schema` names another dialect that jsonschema-rs knows. Refused: references out of the
    schema, patterns that need look-around or back-references, more than MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH,
    MAX_SUBSCHEMAS or MAX_HERE. check_formats: whether `format` is asserted, not only noted.
    """
    raw, document = _read(text)
    _require_known_dialect(document)
    _require_confined(document)
    cost = SchemaCost(document)
    if (here := cost.here()) > MAX_HERE:
        raise SchemaRefused(f"{here} subschemas apply to one value; the limit is {MAX_HERE}")
    try:
        validator = jsonschema_rs.validator_for(
            document,
            offline=True,
            mask="value",
            validate_formats=check_formats,
            pattern_options=jsonschema_rs.RegexOptions(
                size_limit=_PATTERN_BYTES, dfa_size_limit=2 * 1024 * 1024
            ),
        )
    except jsonschema_rs.ValidationError as error:
        raise SchemaRefused(_why_invalid(document, error)) from error
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise SchemaRefused(f"the schema is refused: {str(error).splitlines()[0][:300]}") from error
    return CompiledSchema(document, raw, cost, validator)


def _read(text: bytes | Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
    if not isinstance(text, bytes):
        _require_finite_size(text)
        try:
            text = msgspec.json.encode(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise SchemaRefused(f"the schema is not JSON: {type(error).__name__}") from error
    if len(text) > MAX_SCHEMA_BYTES:
        raise SchemaRefused(f"the schema has {len(text)} bytes; the limit is {MAX_SCHEMA_BYTES}")
    try:
        document = decode_arguments(text, field="schema", max_depth=MAX_SCHEMA_DEPTH)
    except JsonRefused as refused:
        place = refused.violation.field
        raise SchemaRefused(f"{place}: {refused.violation.message}") from refused
    if (count := sum(1 for _ in subschemas(document))) > MAX_SUBSCHEMAS:
        raise SchemaRefused(f"the schema has {count} subschemas; the limit is {MAX_SUBSCHEMAS}")
    return text, document


def _require_finite_size(schema: Mapping[str, Any]) -> None:
    """Refuse a decoded schema whose shared or circular parts would not end when written out."""
    pending: list[Any] = [schema]
    for _ in range(MAX_SCHEMA_BYTES):
        if not pending:
            return
        node = pending.pop()
        if isinstance(node, Mapping):
            pending.extend(node.values())
        elif isinstance(node, list | tuple):
            pending.extend(node)
    raise SchemaRefused(f"the schema has more than {MAX_SCHEMA_BYTES} values")


def _require_known_dialect(document: dict[str, Any]) -> None:
    for place, node in subschemas(document):
        dialect = node.get("$schema")
        if dialect is None or (place and not isinstance(dialect, str)):
            continue
        name = str(dialect).removesuffix("#").partition("://")[2]
        if name not in _DIALECTS:
            raise SchemaRefused(
                f"{place}/$schema: {str(dialect)[:100]!r} is not a known dialect; "
                "leave it out for https://json-schema.org/draft/2020-12/schema"
            )


def _require_confined(document: dict[str, Any]) -> None:
    """Refuse what could lead out of the schema, also where the validator would look only later."""
    for place, node in subschemas(document):
        for keyword in REFERENCES:
            target = node.get(keyword)
            if isinstance(target, str) and not target.startswith("#"):
                raise SchemaRefused(
                    f"{place}/{keyword}: {target[:100]!r} leads out of the schema; only references inside it "
                    "(#/$defs/…) are followed"
                )
        if place and isinstance(node.get("$id"), str):
            raise SchemaRefused(f"{place}/$id: only the root may have one; refer to parts as #/$defs/…")


def _why_invalid(document: dict[str, Any], error: jsonschema_rs.ValidationError) -> str:
    try:
        jsonschema_rs.meta.validate(document)
    except jsonschema_rs.ValidationError as unmasked:  # a schema is no secret: its words help
        error = unmasked
    place = "".join(f"/{part}" for part in error.instance_path) or "the schema"
    if 'is not a "regex"' in error.message or error.kind.name == "format":
        return (
            f"{place}: the pattern is not supported: compiled, it may have {_PATTERN_BYTES} bytes and "
            "no look-around or back-reference, so that matching takes linear time"
        )
    return f"{place}: {error.message.splitlines()[0][:300]}"


def _measure(value: Any) -> tuple[int, int, int]:
    """Count the values in `value` (itself included), its levels of containers, its integers over 64 bits."""
    values, depth, wide = 1, 0, 0
    layer = [value] if isinstance(value, dict | list) else []
    while layer and depth < MAX_DEPTH:
        depth += 1
        inner: list[Any] = []
        for node in layer:
            values += len(node)
            for child in node.values() if isinstance(node, dict) else node:
                kind = type(child)
                if kind is dict or kind is list:
                    inner.append(child)
                elif kind is int and not -_WIDE <= child < _WIDE:
                    wide += 1
        layer = inner
    return values, depth, wide
