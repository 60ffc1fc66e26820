"""JSON text in and out: strict about what it takes, exact about what it gives.

The common road is msgspec alone. Two things msgspec does not see are found by counting: a document with a
duplicate key has more colons than what is left of it after decoding, and it can only be too deep when it
has more opening brackets than MAX_DEPTH. Only a refused document is read again, to say where and why.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import msgspec

from lineside_service.core.jsonfault import (
    DUPLICATE_KEYS,
    JSON_STRING,
    JsonRefused,
    explain,
    kind_of,
    must_be_object,
    plain,
    refusal,
    refuse_too_deep,
)

__all__ = [
    "MAX_DEPTH",
    "JsonRefused",
    "ResultRefused",
    "decode_arguments",
    "decode_result",
    "depth_of",
    "encode_result",
]

MAX_DEPTH = 32
"""Containers inside each other, the outermost counted: what a binary google.protobuf.Struct can carry too."""

_ONE_BRACKET = bytes.maketrans(b"[]", b"{}")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_SCALARS = frozenset({str, int, bool, type(None)})

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class ResultRefused(ValueError):
    """A tool's result cannot be sent. reason: UPPER_SNAKE token; message: for the caller, without values."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def depth_of(raw: bytes, most: int = MAX_DEPTH) -> int:
    """Count how deep containers nest in well-formed JSON text, in linear time.

    0 for a scalar and for unpaired brackets; most + 1 for all that is deeper. The brackets alone are kept,
    then the innermost pairs leave, one level a pass.
    """
    left = JSON_STRING.sub(b"", raw).translate(_ONE_BRACKET, _NOT_BRACKETS)
    for depth in range(most + 1):
        if not left:
            return depth
        outer = left.replace(b"{}", b"")
        if len(outer) == len(left):
            return 0
        left = outer
    return most + 1


def decode_arguments(
    raw: bytes, *, field: str = "call.arguments_json", max_depth: int = MAX_DEPTH
) -> dict[str, Any]:
    """Decode one strict JSON object; raises JsonRefused.

    Refused: anything but an object, NaN and Infinity, numbers outside a double's range, integers over
    MAX_DIGITS digits, duplicate keys, nesting over max_depth, lone surrogates, invalid UTF-8, trailing
    text. Integers are exact at any accepted size. field: what a violation of the whole text is called.
    """
    if raw.count(b"{") + raw.count(b"[") > max_depth and depth_of(raw, max_depth) > max_depth:
        refuse_too_deep(raw, field, max_depth)
    try:
        value = _decode(raw)
    except RecursionError as error:
        refuse_too_deep(raw, field, max_depth)
        explain(raw, field, str(error))
    except ValueError as error:
        explain(raw, field, str(error))
    if type(value) is not dict:
        raise refusal(field, f"{must_be_object(field)}, not {kind_of(value)}", "NOT_AN_OBJECT")
    # As many keys as colons leaves no room for a duplicate.
    if raw.count(b":") != len(value) and _has_duplicates(raw, value):
        explain(raw, field, DUPLICATE_KEYS)
    return value


def _has_duplicates(raw: bytes, value: dict[str, Any]) -> bool:
    """Compare colons before and after: decoding drops those of a duplicate key and of its value.

    Only an escaped colon could make up for one, and then the colons inside strings are left out.
    """
    again = _encode(value)
    if b"\\u003" in raw:
        raw, again = JSON_STRING.sub(b"", raw), JSON_STRING.sub(b"", again)
    return raw.count(b":") != again.count(b":")


def decode_result(raw: bytes) -> Any:
    """Decode JSON text that this service encoded itself; raises JsonRefused if it is damaged."""
    try:
        return _decode(raw)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise refusal("result", f"the stored result is not JSON: {plain(str(error))}", "MALFORMED") from error


def encode_result(value: object, limit: int) -> bytes:
    """Encode a tool's result as JSON text of at most `limit` bytes; raises ResultRefused.

    Plain JSON values, dataclasses, TypedDicts, msgspec Structs, enums, dates, UUIDs, Decimals, bytes
    (base64) and anything with pydantic's `model_dump` are taken. Refused: NaN and Infinity, sets, other
    objects, two keys that are written alike, lone surrogates, nesting over MAX_DEPTH.
    """
    try:
        raw = _encode_plain(value)
    except UnicodeEncodeError:
        raise ResultRefused(
            "RESULT_NOT_UNICODE", "the result has a lone surrogate, which is not Unicode text"
        ) from None
    except RecursionError:
        raise _too_deep() from None
    except Exception as error:  # model_dump and a subclass's methods are the tool author's code
        raise ResultRefused(
            "RESULT_NOT_JSON", f"the result cannot be written as JSON: {_cause(error)}"
        ) from error
    if len(raw) > limit:
        raise ResultRefused(
            "RESULT_TOO_LARGE", f"the result has {len(raw)} bytes of JSON; the limit is {limit}"
        )
    if (
        len(raw) > 2 * MAX_DEPTH  # two brackets a level
        and raw.count(b"{") + raw.count(b"[") > MAX_DEPTH
        and depth_of(raw) > MAX_DEPTH
    ):
        raise _too_deep()
    # NaN became null and a set became an array; where neither is present there is nothing to look for, but
    # names: a dict may have both 1 and "1", and they are written alike.
    if b"[" in raw or b"null" in raw:
        _look_inside(value, dump=True)
    elif type(value) is dict and raw.count(b"{") == 1:
        _require_distinct_names(value)
    elif b":" in raw:
        _look_inside(value, dump=False)
    return raw


def _too_deep() -> ResultRefused:
    return ResultRefused("RESULT_TOO_DEEP", f"the result nests deeper than {MAX_DEPTH} levels")


def _cause(error: Exception) -> str:
    """Only msgspec's own sentence about a type is repeated: another error's text may carry values."""
    return (
        plain(str(error))
        if type(error) is TypeError and str(error).startswith("Encoding objects")
        else type(error).__name__
    )


def _to_plain(value: object) -> object:
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return dump(mode="json")


_encode_plain = msgspec.json.Encoder(enc_hook=_to_plain).encode


def _look_inside(value: Any, *, dump: bool) -> None:
    """Raise ResultRefused at a set, a non-finite float, a name given twice; the depth was checked before.

    dump: whether to look into what models write too, which is made once more for that.
    """
    kind = type(value)
    if kind in _SCALARS:
        return
    if kind is float:
        _require_finite(value)
    elif kind is dict:
        only_text = True
        for key, item in value.items():
            if type(key) is not str:
                only_text = False
            if type(item) not in _SCALARS:
                _look_inside(item, dump=dump)
        if not only_text:
            _require_distinct_names(value)
    elif kind is list or kind is tuple:
        for item in value:
            if type(item) not in _SCALARS:
                _look_inside(item, dump=dump)
    else:
        _look_inside_object(value, dump=dump)


def _look_inside_object(value: object, *, dump: bool) -> None:
    if isinstance(value, set | frozenset):
        raise ResultRefused("RESULT_NOT_JSON", "the result has a set, which has no order; a list has")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for member in dataclasses.fields(value):
            _look_inside(getattr(value, member.name, None), dump=dump)
    elif dump or not hasattr(value, "model_dump"):
        _look_inside_plain(msgspec.to_builtins(value, enc_hook=_to_plain))


def _look_inside_plain(value: object) -> None:
    if isinstance(value, float):
        _require_finite(value)
    elif isinstance(value, dict):
        _require_distinct_names(value)
        for item in value.values():
            _look_inside_plain(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _look_inside_plain(item)


def _require_distinct_names(value: dict[Any, Any]) -> None:
    """Raise ResultRefused when two keys are written as one name; keys that are text cannot be."""
    try:
        "".join(value)  # the fastest way to ask whether all of them are
    except TypeError:
        if len(_decode(_encode(dict.fromkeys(value)))) < len(value):
            raise ResultRefused("RESULT_NOT_JSON", _written_twice(value)) from None


def _written_twice(value: dict[Any, Any]) -> str:
    seen: dict[str, str] = {}
    for key in value:
        (name,) = _decode(_encode({key: None}))
        if name in seen:
            kinds = " and ".join(dict.fromkeys((seen[name], type(key).__name__)))
            return f"the result has an object with keys that are all written {name[:100]!r} in JSON: {kinds}"
        seen[name] = type(key).__name__
    raise AssertionError("fewer names than keys without two that are alike")


def _require_finite(value: float) -> None:
    if not math.isfinite(value):
        raise ResultRefused("RESULT_NOT_FINITE", "the result has a NaN or Infinity, which JSON cannot carry")
