"""From a function's type hints to the schema of its arguments, and from arguments to the hinted types.

Everything is decided once, at registration. msgspec reads plain types, dataclasses, TypedDicts, Literals and
`Annotated[..., msgspec.Meta(...)]`; pydantic reads what mentions a pydantic model, Field or annotated-types.
One parameter is one member of the arguments; a parameter annotated ToolContext is none.
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import msgspec
import pydantic

from lineside_service.core.jsontext import ResultRefused, decode_result, encode_result
from lineside_service.tools.context import ToolContext
from lineside_service.tools.convert import Converter, converter_for, exact_int
from lineside_service.tools.target import body_of

_DEFAULT_LIMIT = 10_000  # bytes of a default shown in a schema
_MISSING = inspect.Parameter.empty


class HintsRefused(ValueError):
    """No schema can be made of the function, or it does not fit the given one; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionShape:
    """How arguments reach a function.

    schema: JSON Schema of the arguments, derived or as given. context_name: the parameter that takes the
    ToolContext. converters: by member, only where a value may need another type. accepted: the members the
    function takes, None = all that the schema lets through.
    """

    schema: Mapping[str, Any]
    context_name: str | None
    converters: Mapping[str, Converter]
    accepted: frozenset[str] | None


def read_function(function: Callable[..., Any], schema: Mapping[str, Any] | None = None) -> FunctionShape:
    """Derive the schema of a function's arguments, or fit it to a given one; raises HintsRefused."""
    hints = _hints_of(function)
    parameters, has_rest = _parameters_of(function)
    context_name = next((name for name in parameters if _is_context(hints.get(name))), None)
    parameters.pop(context_name or "", None)
    if schema is None:
        if has_rest:
            raise HintsRefused(
                "the function takes *args or **kwargs, which have no schema; give an input_schema"
            )
        schema = _derive(function, parameters, hints)
        accepted = None
    else:
        accepted = _fit(parameters, schema, has_rest=has_rest)
    return FunctionShape(
        schema=schema,
        context_name=context_name,
        converters=_converters(parameters, hints, schema),
        accepted=accepted,
    )


def output_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """Derive the schema of a function's result from its return annotation; raises HintsRefused."""
    hint = _hints_of(function).get("return", _MISSING)
    if hint is _MISSING:
        raise HintsRefused("the function has no return annotation")
    (schema,), components = _schemas({"return": hint})
    return {**schema, "$defs": components} if components else schema


def summary(function: Callable[..., Any]) -> str:
    """Return the first paragraph of the docstring in one line, empty without one."""
    text = inspect.getdoc(function) or ""
    return " ".join(text.split("\n\n", 1)[0].split())


def _hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    body = inspect.unwrap(body_of(function))
    try:
        return typing.get_type_hints(body, include_extras=True)
    except Exception as error:
        raise HintsRefused(f"a type hint cannot be read: {error}") from error


def _parameters_of(function: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise HintsRefused(f"the function has no readable signature: {error}") from error
    bound: set[str] = set()
    while isinstance(function, functools.partial):
        bound.update(function.keywords)
        function = function.func
    named: dict[str, inspect.Parameter] = {}
    has_rest = False
    for parameter in signature.parameters.values():
        if parameter.kind in {parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL}:
            has_rest = True
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            raise HintsRefused(
                f"parameter {parameter.name!r} is positional-only; arguments are passed by name"
            )
        elif parameter.name not in bound:
            named[parameter.name] = parameter
    return named, has_rest


def _is_context(hint: Any) -> bool:
    return hint is ToolContext or ToolContext in get_args(hint)


def _derive(
    function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any]
) -> dict[str, Any]:
    schemas, components = _schemas({name: hints.get(name, Any) for name in parameters})
    properties = dict(zip(parameters, schemas, strict=True))
    described = _described(inspect.getdoc(function) or "")
    for name, parameter in parameters.items():
        if name in described:
            properties[name].setdefault("description", described[name])
        if parameter.default is not _MISSING:
            properties[name] |= _default(parameter.default)
    required = [name for name, parameter in parameters.items() if parameter.default is _MISSING]
    derived: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        derived["required"] = required
    derived["additionalProperties"] = False
    return {**derived, "$defs": components} if components else derived


def _default(value: object) -> dict[str, Any]:
    """Show a default that JSON can write; the function itself fills it in."""
    try:
        return {"default": decode_result(encode_result(value, _DEFAULT_LIMIT))}
    except ResultRefused:
        return {}


def _schemas(hints: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Make the schemas of several types and the components ($defs) they share."""
    plain = {name: hint for name, hint in hints.items() if not mentions_pydantic(hint)}
    try:
        made, components = msgspec.json.schema_components(plain.values(), ref_template="#/$defs/{name}")
    except TypeError as error:
        raise HintsRefused(f"a type hint has no JSON form: {error}") from error
    by_name = dict(zip(plain, made, strict=True))
    for name, hint in hints.items():
        if name not in plain:
            by_name[name] = _pydantic_schema(name, hint, components)
    return [by_name[name] for name in hints], components


def _pydantic_schema(name: str, hint: Any, components: dict[str, Any]) -> dict[str, Any]:
    for template in ("#/$defs/{model}", f"#/$defs/{name}.{{model}}"):
        try:
            schema = pydantic.TypeAdapter(hint).json_schema(ref_template=template)
        except pydantic.errors.PydanticUserError as error:
            raise HintsRefused(f"parameter {name!r} has no JSON form: {error.message}") from error
        prefix = template.removeprefix("#/$defs/").removesuffix("{model}")
        own = {f"{prefix}{part}": body for part, body in schema.pop("$defs", {}).items()}
        if all(components.get(part, body) == body for part, body in own.items()):
            break
    components.update(own)
    return schema


def mentions_pydantic(hint: Any, above: tuple[Any, ...] = ()) -> bool:
    """Whether only pydantic knows all of a type: a model of it, a Field, or a bound of annotated-types."""
    if isinstance(hint, type) and issubclass(hint, pydantic.BaseModel):
        return True
    module_names = {type(part).__module__.partition(".")[0] for part in getattr(hint, "__metadata__", ())}
    if module_names & {"pydantic", "annotated_types"}:
        return True
    if hint in above:  # a type that contains itself
        return False
    return any(mentions_pydantic(part, (*above, hint)) for part in _parts_of(hint))


def _parts_of(hint: Any) -> Iterable[Any]:
    """The types a type is made of; a dataclass or TypedDict is asked for its own members."""
    if get_origin(hint) is Literal:
        return ()
    if isinstance(hint, type) and (hasattr(hint, "__dataclass_fields__") or typing.is_typeddict(hint)):
        try:
            members = typing.get_type_hints(hint, include_extras=True)
        except Exception as error:
            raise HintsRefused(f"a type hint of {hint.__name__} cannot be read: {error}") from error
        return members.values()
    return get_args(hint)


def _fit(
    parameters: Mapping[str, inspect.Parameter], schema: Mapping[str, Any], *, has_rest: bool
) -> frozenset[str] | None:
    """Check a given schema against the function; returns the members it takes, None = all that come."""
    properties, required = schema.get("properties", {}), schema.get("required", [])
    for name, parameter in parameters.items():
        if parameter.default is _MISSING and name not in required:
            raise HintsRefused(f"parameter {name!r} has no default, so the input_schema must require it")
    if has_rest:
        return None
    unknown = sorted(set(properties) - set(parameters))
    if unknown:
        raise HintsRefused(f"the input_schema has {unknown[0]!r}, which the function does not take")
    return None if schema.get("additionalProperties") is False else frozenset(parameters)


def _converters(
    parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any], schema: Mapping[str, Any]
) -> dict[str, Converter]:
    found: dict[str, Converter] = {}
    for name in parameters:
        hint = hints.get(name, Any)
        converter = converter_for(hint, by_pydantic=mentions_pydantic(hint))
        if converter is not None:
            found[name] = converter
    # Without a hint the schema's own word counts: an integer reaches the function as int.
    for name, rule in schema.get("properties", {}).items():
        if (
            name not in hints
            and isinstance(rule, Mapping)
            and rule.get("type") in ("integer", ["integer", "null"])
        ):
            found[name] = exact_int
    return found


_SECTION = re.compile(r"^(Args|Arguments|Parameters):\s*$", re.MULTILINE)
_GOOGLE = re.compile(r"^ {2,8}(\w+)(?: \([^)]*\))?: +(\S.*)$")
_SPHINX = re.compile(r"^:param (?:[\w\[\], ]+ )?(\w+): +(\S.*)$")


def _described(doc: str) -> dict[str, str]:
    """Read one-line parameter descriptions of a docstring: an `Args:` section or `:param name:` lines."""
    section = _SECTION.search(doc)
    lines = doc[section.end() :].splitlines() if section else []
    found = [match for line in lines if (match := _GOOGLE.match(line))]
    found += [match for line in doc.splitlines() if (match := _SPHINX.match(line))]
    return {match[1]: match[2].strip() for match in found}
