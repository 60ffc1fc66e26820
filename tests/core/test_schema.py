from __future__ import annotations

import json
import socket
import time
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineside_service.core.schema import CompiledSchema, SchemaRefused, compile_schema
from lineside_service.core.schemacost import SchemaCost
from lineside_service.core.violations import MAX_TEXT, MAX_VIOLATIONS

ORDER = compile_schema(
    {
        "type": "object",
        "properties": {
            "unit": {"enum": ["celsius", "fahrenheit"]},
            "count": {"type": "integer", "minimum": 1, "maximum": 5},
            "city/name": {"type": "string", "minLength": 2},
            "who": {"anyOf": [{"$ref": "#/$defs/person"}, {"type": "null"}]},
            "rows": {"type": "array", "items": {"type": "number"}, "maxItems": 3},
        },
        "required": ["unit"],
        "additionalProperties": False,
        "$defs": {
            "person": {
                "type": "object",
                "properties": {"name": {"type": "string"}},
                "required": ["name"],
                "additionalProperties": False,
            }
        },
    }
)


def _said(schema: CompiledSchema, value: object) -> list[tuple[str, str, str]]:
    return [(each.field, each.rule, each.message) for each in schema.check(value)]


def test_valid_arguments_have_no_violations() -> None:
    """Nothing is said about what fits, 3.0 for an integer included (R103)."""
    assert ORDER.check({"unit": "celsius", "count": 3.0, "who": None, "rows": [1, 2.5]}) == ()


@pytest.mark.parametrize(
    ("value", "violation"),
    [
        ({}, ("/unit", "REQUIRED", "is required")),
        ({"unit": "kelvin"}, ("/unit", "ENUM", 'must be one of "celsius", "fahrenheit"')),
        ({"unit": "celsius", "count": "3"}, ("/count", "TYPE", "must be integer")),
        ({"unit": "celsius", "count": 0}, ("/count", "MINIMUM", "must be at least 1")),
        ({"unit": "celsius", "count": 9}, ("/count", "MAXIMUM", "must be at most 5")),
        (
            {"unit": "celsius", "city/name": "x"},
            ("/city~1name", "MIN_LENGTH", "must have at least 2 characters"),
        ),
        ({"unit": "celsius", "cuont": 1}, ("/cuont", "ADDITIONAL_PROPERTIES", 'did you mean "count"?')),
        ({"unit": "celsius", "who": {"nmae": 1}}, ("/who", "ANY_OF", 'did you mean "name"? (or be null)')),
        ({"unit": "celsius", "rows": [1, "x"]}, ("/rows/1", "TYPE", "must be number")),
        ({"unit": "celsius", "rows": [1, 2, 3, 4]}, ("/rows", "MAX_ITEMS", "must have at most 3 items")),
    ],
)
def test_a_violation_says_where_and_what_would_be_accepted(
    value: object, violation: tuple[str, str, str]
) -> None:
    """Each violation has its JSON Pointer, the rule and the accepted values, names or bounds."""
    ((field, rule, message),) = _said(ORDER, value)
    assert (field, rule) == violation[:2]
    assert violation[2] in message


def test_all_violations_are_told_in_order() -> None:
    """One check names everything that is wrong, sorted by place."""
    fields = [field for field, _, _ in _said(ORDER, {"count": "x", "rows": ["a", 1, "b"], "zzz": 1})]
    assert fields == ["/count", "/rows/0", "/rows/2", "/unit", "/zzz"]


@pytest.mark.parametrize(
    ("schema", "value", "words"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "number"}]}, [], "must be string or number"),
        ({"oneOf": [{"type": "integer"}, {"minimum": 1}]}, 2, "must match exactly one"),
        ({"const": 3}, 4, "must be 3"),
        ({"not": {"type": "null"}}, None, "is excluded"),
        ({"multipleOf": 2}, 3, "multiple of 2"),
        ({"pattern": "^z"}, "secret", "must match the pattern ^z"),
        ({"uniqueItems": True}, [1, 1], "same item twice"),
        ({"contains": {"const": 1}}, ["secret"], "items that must be in it"),
        ({"propertyNames": {"maxLength": 2}}, {"secret": 1}, "at most 2 characters"),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, "is required"),
        ({"unevaluatedProperties": False}, {"x": "secret"}, "not a known name"),
        ({"if": {"type": "string"}, "then": {"minLength": 9}}, "secret", "at least 9"),
        ({"minContains": 2, "contains": {}}, [1], "items that must be in it"),
        ({"prefixItems": [{}], "items": False}, [1, "secret"], ""),
        ({"properties": {"a": False}}, {"a": "secret"}, "is not allowed"),
    ],
)
def test_every_keyword_has_words_without_the_value(schema: dict[str, Any], value: object, words: str) -> None:
    """The keywords of 2020-12 are explained, and no value that was sent is repeated (R111)."""
    said = _said(compile_schema(schema), value)
    assert said
    assert words in said[0][2]
    assert "secret" not in "".join(message for _, _, message in said)


def test_many_violations_are_capped_and_the_rest_is_counted() -> None:
    """5,000 bad items give the first 20 in order and the number of the others (R005)."""
    schema = compile_schema({"properties": {"rows": {"items": {"type": "integer"}}}})
    violations = schema.check({"rows": ["secret"] * 5_000})
    assert [each.field for each in violations] == [f"/rows/{index}" for index in range(MAX_VIOLATIONS)]
    assert violations.cut == 5_000 - MAX_VIOLATIONS


def test_long_names_and_enums_keep_the_text_bounded() -> None:
    """However long names and accepted values are, all violations together stay under the bound (R005)."""
    schema = compile_schema({"additionalProperties": {"enum": [f"value {'é' * 50} {n}" for n in range(100)]}})
    violations = schema.check({f"{n} {'ü' * 10_000}": 1 for n in range(50)})
    assert 0 < sum(len(each.field.encode()) + len(each.message.encode()) for each in violations) <= MAX_TEXT
    assert violations.cut == 50 - len(violations)


@pytest.mark.parametrize(
    "make",
    [
        lambda url: {"properties": {"a": {"$ref": f"{url}/x"}}},
        lambda url: {"$ref": f"{url}/x"},
        lambda url: {"properties": {"a": {"$dynamicRef": f"{url}/x"}}},
        lambda url: {"$schema": f"{url}/meta"},
        lambda url: {"$id": f"{url}/root", "properties": {"a": {"$ref": "other.json"}}},
        lambda url: {"properties": {"a": {"$id": f"{url}/part", "$ref": "x"}}},
        lambda url: {"$defs": {"dead": {"$ref": f"{url}/x"}}},
        lambda url: {"x-hidden": {"$ref": f"{url}/x"}, "$ref": "#/x-hidden"},
        lambda url: {"if": {"type": "string"}, "then": {"items": {"$ref": f"{url}/late"}}},
        lambda url: {"properties": {"a": {"$ref": "file:///etc/passwd"}}},
        lambda url: {"properties": {"a": {"$ref": "other.json"}}},
        lambda url: {"properties": {"a": {"$ref": "//127.0.0.1/x"}}},
        lambda url: {"properties": {"a": {"$ref": "http://169.254.169.254/latest"}}},
        lambda url: {"properties": {"a": {"$ref": "#/$defs/missing"}}},
        lambda url: {"properties": {"a": {"$ref": "#nowhere"}}},
    ],
)
def test_a_reference_out_of_the_schema_is_refused_at_registration(make: Any) -> None:
    """Remote, file, relative and missing references never reach a call, and nothing connects (R106)."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        with pytest.raises(SchemaRefused):
            compile_schema(make(f"http://127.0.0.1:{listener.getsockname()[1]}"))
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}}, "x", 1),
        (
            {"properties": {"next": {"$ref": "#"}}, "additionalProperties": False},
            {"next": {"next": {}}},
            {"x": 1},
        ),
        ({"$ref": "#leaf", "$defs": {"a": {"$anchor": "leaf", "type": "string"}}}, "x", 1),
        ({"$ref": "#/$defs/a%25b", "$defs": {"a%b": {"type": "string"}}}, "x", 1),
        (
            {"properties": {"$ref": {"type": "string"}, "$id": {"type": "string"}}},
            {"$ref": "http://x"},
            {"$id": 1},
        ),
        ({"enum": [{"$ref": "http://x"}]}, {"$ref": "http://x"}, 1),
    ],
)
def test_references_inside_the_schema_work(schema: dict[str, Any], good: object, bad: object) -> None:
    """Local, recursive and anchored references are followed; data that looks like one is data (R106)."""
    compiled = compile_schema(schema)
    assert compiled.check(good) == ()
    assert compiled.check(bad)


def _nested_any_of(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"anyOf": [schema] * 4}
    return schema


def _chained_any_of(depth: int) -> dict[str, Any]:
    steps = {f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 4} for n in range(depth)}
    return {"$ref": "#/$defs/a0", "$defs": {**steps, f"a{depth}": {"type": "string"}}}


def _chain_of_references(length: int) -> dict[str, Any]:
    steps = {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(length)}
    return {"$ref": "#/$defs/a0", "$defs": {**steps, f"a{length}": {}}}


def _circular() -> dict[str, Any]:
    schema: dict[str, Any] = {}
    schema["not"] = schema
    return schema


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (b'{"type": "object"', "not JSON"),
        (b"[]", "object"),
        (b'{"type": "string", "type": "null"}', "once"),
        ({"type": "strnig"}, "strnig"),
        ({"pattern": "(?=a)b"}, "look-around"),
        ({"pattern": "("}, "pattern"),
        ({"pattern": "a{1000}{1000}"}, "bytes"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "dialect"),
        ({"$ref": "#"}, "itself"),
        ({"enum": ["x" * 300_000]}, "262144"),
        ({"properties": {f"p{n}": {} for n in range(5_001)}}, "5000"),
        (_chain_of_references(999), "64"),
        (_nested_any_of(12), "262144"),
        (_chained_any_of(12), "1000"),
        (_circular(), "262144"),
    ],
)
def test_a_schema_beyond_the_bounds_is_refused_with_the_bound(schema: Any, why: str) -> None:
    """A broken, unknown or too costly schema is refused at registration, quickly and with a reason."""
    started = time.process_time()
    with pytest.raises(SchemaRefused, match=why):
        compile_schema(schema)
    assert time.process_time() - started < 2.0


@pytest.mark.parametrize(
    "dialect",
    [
        "https://json-schema.org/draft/2020-12/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "http://json-schema.org/draft-07/schema#",
        "http://json-schema.org/draft-04/schema#",
    ],
)
def test_the_published_dialects_are_known(dialect: str) -> None:
    """A schema may name its dialect."""
    assert compile_schema({"$schema": dialect, "type": "string"}).check(1)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"properties": {"s": {"pattern": "^(a+)+$"}}}, {"s": "a" * 30 + "!"}),
        ({"properties": {"s": {"pattern": "^(a+)+$"}}}, {"s": "a" * 1_000_000 + "!"}),
        ({"patternProperties": {"^(a+)+$": {"type": "null"}}}, {"a" * 30 + "!": 1, "aaa": 1}),
        ({"properties": {"s": {"format": "email", "minLength": 99}}}, {"s": "." * 60}),
        ({"properties": {"s": {"uniqueItems": True}}}, {"s": [*range(200_000), 0]}),
        ({"properties": {"s": {"uniqueItems": True}}}, {"s": [10**30 + n for n in range(5_000)]}),
        ({"properties": {"s": _nested_any_of(4)}}, {"s": [1] * 1_000}),
    ],
)
def test_hostile_values_are_checked_in_bounded_time(schema: dict[str, Any], value: object) -> None:
    """Nested repeats take linear time, uniqueness and alternatives a bounded one (R109)."""
    compiled = compile_schema(schema)
    started = time.process_time()
    assert compiled.check(value)
    assert time.process_time() - started < 1.0


TWINS: dict[str, Any] = {
    "$ref": "#/$defs/n",
    "$defs": {
        "n": {
            "anyOf": [
                {"properties": {"a": {"$ref": "#/$defs/n"}, "z": False}},
                {"properties": {"a": {"$ref": "#/$defs/n"}, "y": False}},
            ]
        }
    },
}


@pytest.mark.parametrize("depth", [4, 8, 12, 16, 31])
def test_branches_that_multiply_with_depth_stay_bounded(depth: int) -> None:
    """Two branches that both go deeper double the work at each level; the check ends early instead (R109)."""
    value: dict[str, Any] = {"z": 1, "y": 1}
    for _ in range(depth):
        value = {"a": value}
    compiled = compile_schema(TWINS)
    started = time.process_time()
    assert compiled.check(value)
    assert time.process_time() - started < 1.0


def test_a_recursive_schema_of_any_json_is_cheap() -> None:
    """Alternatives that exclude each other do not multiply: any JSON value can be described and checked."""
    kinds = ["string", "number", "boolean", "null"]
    value = {"anyOf": [{"type": kinds}, {"items": {"$ref": "#"}, "type": "array"},
                       {"additionalProperties": {"$ref": "#"}, "type": "object"}]}  # fmt: skip
    deep: object = 1
    for _ in range(15):
        deep = {"k": [deep]}
    assert compile_schema(value).check([deep] * 100) == ()


def test_formats_are_only_asserted_when_asked() -> None:
    """`format` is a note by default."""
    schema = {"type": "string", "format": "email"}
    assert compile_schema(schema).check("no") == ()
    assert "email" in compile_schema(schema, check_formats=True).check("no")[0].message


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"minimum": 9007199254740993}, 9007199254740993, 9007199254740992),
        ({"enum": [10**30]}, 10**30, 10**30 + 1),
        ({"const": 2**64}, 2**64, 2**64 + 1),
    ],
)
def test_large_integers_are_compared_exactly(schema: dict[str, Any], good: int, bad: int) -> None:
    """Bounds beyond 2^53 are not rounded (R103)."""
    assert compile_schema(schema).check(good) == ()
    assert compile_schema(schema).check(bad)


LEAVES = st.sampled_from(
    [
        {"type": "integer"},
        {"type": "string"},
        {"type": ["null", "boolean"]},
        {"minimum": 2},
        {"maxLength": 1},
        {"enum": [1, "a", None]},
        {"const": 2},
        {"required": ["a"]},
        {"maxProperties": 1},
        {"uniqueItems": True},
        {"minItems": 1},
    ]
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
        st.builds(lambda a, b: {"oneOf": [a, b]}, inner, inner),
        st.builds(lambda a, b: {"allOf": [a, b]}, inner, inner),
        st.builds(lambda a: {"not": a}, inner),
        st.builds(lambda a, b: {"properties": {"a": a}, "additionalProperties": b}, inner, inner),
        st.builds(lambda a, b: {"prefixItems": [a], "items": b}, inner, inner),
        st.builds(lambda a: {"contains": a}, inner),
        st.builds(lambda a, b: {"if": a, "then": b}, inner, inner),
        st.builds(lambda a: {"properties": {"a": a}, "unevaluatedProperties": False}, inner),
    ),
    max_leaves=6,
)
VALUES = st.recursive(
    st.sampled_from([None, True, 0, 1, 2, 3, 1.5, "", "a", "bc"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2)
    ),
    max_leaves=5,
)


@settings(max_examples=200)
@given(SCHEMAS, VALUES)
def test_the_verdict_is_that_of_the_reference_implementation(schema: dict[str, Any], value: object) -> None:
    """Violations are found exactly where another validator finds some."""
    assert (not compile_schema(schema).check(value)) == jsonschema.Draft202012Validator(schema).is_valid(
        value
    )


@settings(max_examples=100)
@given(SCHEMAS, st.booleans())
def test_looks_are_counted_once_for_all_depths(schema: dict[str, Any], is_recursive: bool) -> None:
    """The short way, which stops at the deepest level the schema speaks of, counts what the long way does."""
    whole = {"anyOf": [schema, {"properties": {"more": {"$ref": "#"}}}]} if is_recursive else schema
    document = json.loads(json.dumps(whole))  # each subschema an object of its own
    cost = SchemaCost(document)
    assert cost.looks_to(7) == tuple(cost.looks(depth) for depth in range(8))
