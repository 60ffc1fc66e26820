from __future__ import annotations

import functools
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pydantic
import pytest

from lineside_service.core.schema import compile_schema
from lineside_service.tools import ToolContext
from lineside_service.tools.convert import ArgumentUnusable
from lineside_service.tools.hints import HintsRefused, output_schema, read_function, summary


@dataclass
class Stop:
    station: str
    minutes: int = 2
    next: Stop | None = None


class Fare(TypedDict):
    cents: int


class Rider(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(ge=0)
    friends: list[Rider] = []


@dataclass
class Group:
    riders: list[Rider] = field(default_factory=list)


async def book(  # noqa: PLR0917 - one parameter of every kind
    ctx: ToolContext,
    stop: Stop,
    count: Annotated[int, msgspec.Meta(ge=1, le=8)],
    unit: Literal["adult", "child"] = "adult",
    fare: Fare | None = None,
    note: str | None = None,
    rider: Rider | None = None,
    limit: Annotated[float, pydantic.Field(gt=0)] = 1.5,
) -> Fare:
    """Book seats on a train.

    Longer text.

    Args:
        count: How many seats.
        note (str): Printed on the ticket.
    """
    return {"cents": 1}


def _schema() -> dict[str, Any]:
    return dict(read_function(book).schema)


def test_a_schema_is_derived_from_every_kind_of_hint() -> None:
    """Bounds, literals, defaults and nested types become schema; nothing unknown is let through."""
    schema = _schema()
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["stop", "count"]
    count = schema["properties"]["count"]
    assert (count["type"], count["minimum"], count["maximum"]) == ("integer", 1, 8)
    assert schema["properties"]["unit"] == {"enum": ["adult", "child"], "default": "adult"}
    assert schema["properties"]["limit"]["exclusiveMinimum"] == 0
    assert schema["properties"]["note"]["default"] is None
    assert {"Stop", "Fare", "Rider"} <= set(schema["$defs"])


def test_the_context_parameter_is_no_argument() -> None:
    """A parameter annotated ToolContext is filled by the service and not part of the schema."""
    shape = read_function(book)
    assert shape.context_name == "ctx"
    assert "ctx" not in shape.schema["properties"]


def test_the_docstring_describes_tool_and_parameters() -> None:
    """The first paragraph is the tool's description, an Args section describes parameters."""
    assert summary(book) == "Book seats on a train."
    assert _schema()["properties"]["count"]["description"] == "How many seats."
    assert _schema()["properties"]["note"]["description"] == "Printed on the ticket."


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"stop": {"station": "Ely"}, "count": 0}, "/count"),
        ({"stop": {"station": 1}, "count": 1}, "/stop/station"),
        ({"stop": {}, "count": 1}, "/stop/station"),
        ({"stop": {"station": "Ely"}, "count": 1, "unit": "dog"}, "/unit"),
        ({"stop": {"station": "Ely"}, "count": 1, "limit": 0}, "/limit"),
        ({"stop": {"station": "Ely"}, "count": 1, "rider": {"name": "a", "age": -1}}, "/rider"),
        ({"stop": {"station": "Ely"}, "count": 1, "ctx": {}}, "/ctx"),
    ],
)
def test_the_derived_schema_refuses_what_the_hints_exclude(arguments: dict[str, Any], field: str) -> None:
    """The derived schema is a working one."""
    compiled = compile_schema(_schema())
    assert compiled.check({"stop": {"station": "Ely", "next": {"station": "March"}}, "count": 2}) == ()
    assert [each.field for each in compiled.check(arguments)] == [field]


def test_arguments_become_the_hinted_types() -> None:
    """Dataclasses and pydantic models are built, and 3.0 becomes 3 wherever an int is hinted (R103)."""
    converters = read_function(book).converters
    assert converters["stop"]({"station": "Ely", "minutes": 3.0}) == Stop("Ely", 3)
    assert converters["rider"]({"name": "Ann", "age": 3.0}) == Rider(name="Ann", age=3)
    count = converters["count"](3.0)
    assert (count, type(count)) == (3, int)
    assert converters["fare"]({"cents": 2.0}) == {"cents": 2}
    assert set(converters) == {"stop", "rider", "count", "fare", "limit"}


def test_a_float_that_lost_its_exact_value_is_no_integer() -> None:
    """2^53 + 1 spelled as a float would be another id: it is refused, not rounded (R103)."""
    with pytest.raises(ArgumentUnusable):
        read_function(book).converters["count"](9007199254740994.0)


def test_plain_functions_need_no_conversion() -> None:
    """JSON's own types reach the function untouched."""

    def plain(a: str, b: dict[str, Any], c: list[str] | None, d: bool, *, e: Any, f: Literal["x"], g) -> None:  # type: ignore[no-untyped-def]
        """Take plain values."""

    assert read_function(plain).converters == {}


def test_an_untyped_function_gets_integers_where_the_schema_says_integer() -> None:
    """With a given schema, its word counts for parameters without hints (R103)."""

    def untyped(n, x):  # type: ignore[no-untyped-def]
        """Take anything."""

    given = {"properties": {"n": {"type": "integer"}, "x": {"type": "number"}}, "required": ["n", "x"]}
    assert set(read_function(untyped, given).converters) == {"n"}


def test_types_with_a_json_form_of_their_own() -> None:
    """Decimals, sets and nested models inside dataclasses are understood."""

    def pay(amount: Decimal, tags: set[str], group: Group) -> None:
        """Pay."""

    shape = read_function(pay)
    assert shape.converters["amount"]("1.10") == Decimal("1.10")
    assert shape.converters["tags"](["a"]) == {"a"}
    assert shape.converters["group"]({"riders": [{"name": "a", "age": 1}]}) == Group([Rider(name="a", age=1)])
    assert compile_schema(dict(shape.schema)).check({"amount": "1", "tags": [], "group": {"riders": [{}]}})


def test_what_a_conversion_says_has_no_value_in_it() -> None:
    """A validator's complaint is told by place and rule."""
    converters = read_function(book).converters
    for name, value in {
        "stop": {"station": 5, "minutes": "secret"},
        "rider": {"name": "a", "age": "secret"},
    }.items():
        with pytest.raises(ArgumentUnusable) as caught:
            converters[name](value)
        assert "secret" not in str(caught.value)


def test_the_output_schema_is_derived_on_request() -> None:
    """The return annotation becomes a schema, for those who ask."""
    assert compile_schema(output_schema(book)).check({"cents": "x"})[0].field == "/cents"
    with pytest.raises(HintsRefused, match="no return annotation"):
        output_schema(lambda: 1)


def _rest(**values: int) -> None: ...


def _positional(a: int, /) -> None: ...


def _unknown(a: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def _lock(a: Annotated[object, 1], b: type) -> None: ...


@pytest.mark.parametrize(
    ("function", "why"),
    [(_rest, "kwargs"), (_positional, "positional-only"), (_unknown, "Missing"), (_lock, "no JSON form")],
)
def test_a_function_without_a_schema_is_refused(function: Any, why: str) -> None:
    """What cannot be described is refused at registration, with the parameter or type."""
    with pytest.raises(HintsRefused, match=why):
        read_function(function)


def test_a_given_schema_must_fit_the_function() -> None:
    """Missing and surplus members are found at registration, not in a call."""

    def one(a: int, b: int = 1) -> None:
        """Take one."""

    with pytest.raises(HintsRefused, match="'a' has no default"):
        read_function(one, {"properties": {"a": {}}})
    with pytest.raises(HintsRefused, match="'c'"):
        read_function(one, {"properties": {"a": {}, "c": {}}, "required": ["a"]})
    assert read_function(one, {"required": ["a"]}).accepted == frozenset({"a", "b"})
    assert read_function(_rest, {"type": "object"}).accepted is None


def test_partials_methods_and_callable_objects_are_read() -> None:
    """Bound parameters and self are no arguments."""

    class Tram:
        def ride(self, km: int) -> int:
            """Ride."""
            return km

        def __call__(self, km: int) -> int:
            """Ride, too."""
            return km

    for function in (Tram().ride, Tram(), functools.partial(book, stop=Stop("Ely"))):
        properties = read_function(function).schema["properties"]
        assert "self" not in properties
        assert "stop" not in properties
