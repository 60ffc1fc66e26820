"""The second reading of JSON text that is refused: where it is wrong, and what would be accepted.

Bounded, for it is far slower than the first, and free of values: a violation names a field and a bound.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from itertools import islice
from typing import Any, NoReturn

import msgspec

from lineside_service.core.errors import Violation

MAX_DIGITS = 4300
"""Digits of one integer: CPython's own bound for converting text to int."""

DUPLICATE_KEYS = "duplicate keys"
"""What `explain` is told when decoding lost some."""

MAX_FIELD = 256
"""Characters of a JSON Pointer in a violation, so that a hostile key cannot fill the answer."""

MAX_TOKENS = 50_000
"""How far a refused document is searched for the place where it is too deep (about 10 ms)."""

MAX_EXPLAINED = 256 * 1024
"""Bytes of a refused document that is read again for the place of its fault (about 50 ms). Of a longer one
the fault alone is told: 12 MB of it would hold up everybody for seconds."""

# The closing quote is optional, or an unterminated string would be tried again from each quote inside it.
JSON_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_TOKEN = re.compile(JSON_STRING.pattern + rb"|[][{},:]", re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
_NEVER_WRONG = frozenset({int, bool, type(None)})

_decode = msgspec.json.Decoder().decode


class JsonRefused(ValueError):
    """The text is not acceptable JSON; `violation` names the field and the bound, never a value."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(violation.message)
        self.violation = violation


def pointer(parts: tuple[str | int, ...]) -> str:
    """Join path parts into an RFC 6901 JSON Pointer ("" for the root), cut at MAX_FIELD characters."""
    text = "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in parts)
    text = _SURROGATE.sub("\ufffd", text)
    return text if len(text) <= MAX_FIELD else text[: MAX_FIELD - 1] + "…"


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as its pairs, duplicates kept."""


class _TooLong:
    """Stands for an integer of more than MAX_DIGITS digits."""


def _parse_int(text: str) -> object:
    return int(text) if len(text) <= MAX_DIGITS else _TooLong()


_PAIRS = json.JSONDecoder(object_pairs_hook=_Pairs, parse_int=_parse_int)


def refuse_too_deep(raw: bytes, field: str, most: int) -> None:
    """Raise with the pointer of the first container below `most` levels; return if the text has none.

    Text that is not well formed may have none: what is wrong there, decoding will say. A container that
    does not come within MAX_TOKENS is not looked for: the refusal is then of the whole text.
    """
    path: list[bytes | int] = []
    name = b""
    for match in islice(_TOKEN.finditer(raw), MAX_TOKENS):
        token = match[0]
        if token in b"{[":
            if len(path) == most:
                names = tuple(_name_of(part) if isinstance(part, bytes) else part for part in path)
                raise refusal(pointer(names), f"nests deeper than {most} levels, the limit", "TOO_DEEP")
            path.append(b"" if token == b"{" else 0)
        elif token in b"}]":
            if not path:
                return
            path.pop()
        elif token == b":" and path:
            path[-1] = name
        elif token == b"," and path and isinstance(path[-1], int):
            path[-1] += 1
        else:
            name = token
    raise refusal(field, f"{field} nests deeper than {most} levels, the limit", "TOO_DEEP")


def _name_of(quoted: bytes) -> str:
    try:
        return str(_decode(quoted))
    except ValueError:
        return "?"


def explain(raw: bytes, field: str, said: str) -> NoReturn:
    """Find out why `raw` is refused and raise; `said` is used when nothing more exact is found."""
    if not raw.strip():
        raise refusal(field, f"{field} is empty; without arguments send {{}}", "EMPTY")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise refusal(field, f"{field} must be UTF-8; byte {error.start} is not", "NOT_UTF8") from None
    if len(raw) > MAX_EXPLAINED:
        far = f"somewhere; over {MAX_EXPLAINED} bytes it is not searched for the place"
        if said == DUPLICATE_KEYS:
            raise refusal(field, f"{field} has a name twice {far}", "DUPLICATE_KEY")
        raise refusal(field, f"{field} is not JSON as it is taken here: {plain(said)}", "MALFORMED")
    try:
        document = _PAIRS.decode(text)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, list) and not isinstance(document, _Pairs):
        raise refusal(field, f"{must_be_object(field)}, not an array", "NOT_AN_OBJECT")
    found = _find(document)
    if found is not None:
        raise refusal(pointer(tuple(reversed(found.path))), found.message, found.rule)
    raise refusal(field, f"{field} is not JSON: {plain(said) or 'malformed'}", "MALFORMED")


class _Found:
    """The first problem of a document; `path` leads to it, innermost part first."""

    def __init__(self, message: str, rule: str, *path: str | int) -> None:
        self.message, self.rule, self.path = message, rule, list(path)


def _find(node: object) -> _Found | None:
    """Search depth first (the depth is already known to be bounded); a path is built on the way back."""
    if not isinstance(node, list):
        return _wrong_scalar(node)
    if isinstance(node, _Pairs) and (wrong := _wrong_names(node)) is not None:
        return wrong
    for key, child in node if isinstance(node, _Pairs) else enumerate(node):
        if type(child) in _NEVER_WRONG:
            continue
        found = _find(child)
        if found is not None:
            found.path.append(key)
            return found
    return None


def _wrong_names(pairs: _Pairs) -> _Found | None:
    names = {name for name, _ in pairs}
    if any(_SURROGATE.search(name) for name in names if not name.isascii()):
        return _Found("has a name with a lone surrogate, which is not Unicode text", "NOT_UNICODE")
    for name, _ in pairs if len(names) != len(pairs) else ():
        if name not in names:
            return _Found("appears more than once; each name may appear once", "DUPLICATE_KEY", name)
        names.discard(name)
    return None


def _wrong_scalar(node: object) -> _Found | None:
    if isinstance(node, str) and not node.isascii() and _SURROGATE.search(node):
        return _Found("has a lone surrogate, which is not Unicode text", "NOT_UNICODE")
    if isinstance(node, float) and math.isnan(node):
        return _Found("is NaN, which JSON does not have", "NOT_FINITE")
    if isinstance(node, float) and math.isinf(node):
        return _Found(
            "is not a number within a double's range (at most about 1.8e308)", "NUMBER_OUT_OF_RANGE"
        )
    if isinstance(node, _TooLong):
        return _Found(f"has more than {MAX_DIGITS} digits, the limit for an integer", "NUMBER_OUT_OF_RANGE")
    return None


def must_be_object(field: str) -> str:
    """Say what a whole document of arguments must be."""
    return f"{field} must be a JSON object such as {{}}"


def refusal(field: str, message: str, rule: str) -> JsonRefused:
    """Build the refusal of one field (JSON Pointer or proto path), to be raised."""
    return JsonRefused(Violation(field=field, message=message, rule=rule))


def kind_of(value: object) -> str:
    """Name the JSON type of a decoded value that is no object, with its article."""
    names: Mapping[type, str] = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def plain(text: str) -> str:
    """Keep a library's sentence short and free of its own prefix."""
    return text.removeprefix("JSON is malformed: ")[:120]
