"""From validated JSON values to the types that a function's hints name."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
import pydantic

from lineside_service.core.jsonfault import pointer

Converter = Callable[[Any], Any]

_EXACT = 2**53
_PLAIN = (str, bool, type(None), Any, object, dict, list, Mapping, Sequence)


class ArgumentUnusable(ValueError):
    """A value fits the schema but not the function's type; field: JSON Pointer to it, as far as is known.

    The text has no value in it, except what a validator of the function's author chose to say.
    """

    def __init__(self, text: str, field: str = "") -> None:
        super().__init__(text)
        self.field = field


def converter_for(hint: Any, *, by_pydantic: bool) -> Converter | None:
    """Choose how values become `hint`; None when JSON's own types are what it names."""
    if by_pydantic:
        return _pydantic_converter(hint)
    if _is_plain(hint):
        return None
    names = {kind for kind in _alternatives(hint) if kind is not type(None)}
    if names == {int}:
        return exact_int
    if names == {float}:
        return _near_float
    return _msgspec_converter(hint)


def exact_int(value: Any) -> Any:
    """Turn 3.0 into 3, and leave what is no float; a float beyond +-2^53 has lost its exact value."""
    if type(value) is not float:
        return value
    if not -_EXACT <= value <= _EXACT or not value.is_integer():
        raise ArgumentUnusable(
            "must be an integer; beyond +-2^53 only digits without fraction or exponent are exact"
        )
    return int(value)


def _near_float(value: Any) -> Any:
    """Give a function that wants a float one, unless only an int can hold the number."""
    return float(value) if type(value) is int and -_EXACT <= value <= _EXACT else value


def _is_plain(hint: Any) -> bool:
    """Whether JSON's str, bool, null, list and dict are already what the hint names, all the way down."""
    origin = get_origin(hint)
    if origin is None:
        return any(hint is plain for plain in _PLAIN)
    if origin is Literal:
        return all(isinstance(value, str | bool | None) for value in get_args(hint))
    if origin is Annotated:
        return _is_plain(get_args(hint)[0])
    if origin in {list, dict, Union, types.UnionType}:
        return all(_is_plain(part) for part in get_args(hint))
    return False


def _alternatives(hint: Any) -> list[Any]:
    origin = get_origin(hint)
    if origin is Annotated:
        return _alternatives(get_args(hint)[0])
    if origin in {Union, types.UnionType}:
        return [kind for part in get_args(hint) for kind in _alternatives(part)]
    return [hint]


def _msgspec_converter(hint: Any) -> Converter:
    def convert(value: Any) -> Any:
        try:
            return msgspec.convert(value, hint)
        except msgspec.ValidationError:
            pass  # perhaps 3.0 stands for an integer inside: once more with exact integers
        try:
            return msgspec.convert(_with_exact_ints(value), hint)
        except msgspec.ValidationError as error:
            raise ArgumentUnusable(str(error)) from None

    return convert


def _pydantic_converter(hint: Any) -> Converter:
    validate = pydantic.TypeAdapter(hint).validate_python

    def convert(value: Any) -> Any:
        try:
            return validate(value)
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            raise ArgumentUnusable(first["msg"], pointer(first["loc"])) from None

    return convert


def _with_exact_ints(value: Any) -> Any:
    if type(value) is float and -_EXACT <= value <= _EXACT and value.is_integer():
        return int(value)
    if type(value) is dict:
        return {key: _with_exact_ints(item) for key, item in value.items()}
    if type(value) is list:
        return [_with_exact_ints(item) for item in value]
    return value
