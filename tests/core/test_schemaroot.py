"""A schema that no object can match is found by its outermost words."""

from __future__ import annotations

from typing import Any

import pytest

from lineside_service.core.schemaroot import why_no_object


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "string"}, "/type"),
        ({"type": ["string", "null"]}, "/type"),
        ({"const": 1}, "/const"),
        ({"const": None}, "/const"),
        ({"enum": ["a", "b", [1]]}, "/enum"),
        ({"enum": []}, "/enum"),
        ({"not": True}, "/not"),
        ({"not": {}}, "/not"),
        ({"not": {"type": "object"}}, "/not"),
        ({"type": "object", "allOf": [{}, False]}, "/allOf/1"),
        ({"type": "object", "allOf": [{"type": "array"}]}, "/allOf/0/type"),
        ({"anyOf": [{"type": "array"}, {"const": 1}]}, "/anyOf/0/type"),
        ({"oneOf": [False, {"enum": [1]}]}, "/oneOf/0"),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "integer"}}}, "/$defs/a~1b/type"),
        ({"anyOf": [{"$ref": "#/$defs/a"}] * 2, "$defs": {"a": {"const": 1}}}, "/$defs/a/const"),
    ],
)
def test_what_shuts_out_all_objects_is_named(schema: dict[str, Any], place: str) -> None:
    """With its place and what would be right."""
    told = why_no_object(schema)
    assert told is not None
    assert told.startswith(f"{place}: ")


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"type": ["object", "null"]},
        {"const": {"a": 1}},
        {"enum": [1, {}]},
        {"not": {"type": "string"}},
        {"not": False},
        {"anyOf": [{"type": "string"}, {}]},
        {"oneOf": [{"type": "object"}, False]},
        {"allOf": [True, {"required": ["a"]}]},
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"$ref": "#/$defs/none"},
        {"properties": {"a": {"type": "string"}}},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$ref": "#/definitions/a",
            "type": "string",
            "definitions": {"a": {"type": "object"}},
        },
    ],
)
def test_what_some_object_may_match_is_not(schema: dict[str, Any]) -> None:
    """In doubt a schema is left to itself."""
    assert why_no_object(schema) is None


def test_references_that_multiply_are_followed_once() -> None:
    """Sixty levels of two references each would be 2^60 ways."""
    definitions: dict[str, Any] = {"n60": {"type": "string"}}
    for level in range(60):
        definitions[f"n{level}"] = {"anyOf": [{"$ref": f"#/$defs/n{level + 1}"}] * 2}
    told = why_no_object({"$ref": "#/$defs/n0", "$defs": definitions})
    assert told is None or told.startswith("/$defs/n60/type: ")
