"""Config mistakes in plain words: which file, which key, what would be accepted."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

LATER: Mapping[str, str] = types.MappingProxyType(
    {
        "mcpServers": "tools of MCP servers come with the upstream policies",
        "cache": "cached answers come with the upstream policies",
        "batch": "batch forms come with the upstream policies",
        "compensate": "compensation comes with runs",
        "fallback": "fallbacks come with the upstream policies",
        "max_pause": "shared pauses come with the upstream policies",
        "pattern": "tool patterns come with the upstream policies",
        "vary": "cached answers come with the upstream policies",
        "redact": "masks come with the upstream policies",
    }
)
"""Keys that a later version gives a meaning: refused by name, never ignored."""

_SHOWN = 60
_UNSHOWN = frozenset({"tokens"})
"""Parts whose values stay unsaid: a raw token pasted into the wrong place must not reach a log."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing wrong with the config.

    source: the file, or the environment variable or flag that said so; path: dotted, such as
    `tools.book_flight.timeout` (empty: the whole); message: what is wrong and what would be accepted.
    """

    source: str
    path: str
    message: str

    def __str__(self) -> str:
        return (
            f"{self.source}: {self.path}: {self.message}" if self.path else f"{self.source}: {self.message}"
        )


class ConfigError(Exception):
    """The config cannot be used; `mistakes` holds all of them, in the order of the file."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes: tuple[Mistake, ...] = tuple(mistakes)
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


def dotted(loc: Sequence[object]) -> str:
    """A place in the config as TOML writes it: `tools."flights.book".retry`, `tokens[0].sha256`."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
            continue
        name = str(part)
        plain = name.replace("_", "").replace("-", "").isalnum() and name.isascii()
        path += ("." if path else "") + (name if plain else f'"{name}"')
    return path


def place_and_words(root: type[BaseModel], error: ErrorDetails) -> tuple[tuple[object, ...], str]:
    """Where an error of pydantic's lies, and what to say about it."""
    loc: tuple[object, ...] = error["loc"]
    match error["type"]:
        case "extra_forbidden":
            return loc, _unknown_key(str(loc[-1]), _keys_at(root, loc[:-1]))
        case "missing":
            return loc, "is required and missing"
        case "value_error":
            words = str(error["ctx"]["error"])
        case _:
            words = error["msg"].replace("Input should be", "must be").replace("should", "must")
    if loc and loc[-1] == "[key]":
        return loc[:-1], words
    given = error["input"]
    if loc and loc[0] not in _UNSHOWN and isinstance(given, str | int | float | bool):
        words = f"{_shown(given)}: {words}"
    return loc, words


def _shown(value: object) -> str:
    text = (
        f'"{value}"'
        if isinstance(value, str)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _unknown_key(key: str, accepted: Sequence[str]) -> str:
    if key in LATER:
        return f"is not in this version: {LATER[key]}"
    lower = {name.lower(): name for name in accepted}
    near = difflib.get_close_matches(key.lower(), lower, n=1, cutoff=0.5)
    guess = f" Did you mean {lower[near[0]]}?" if near else ""
    return f"unknown key.{guess} Accepted here: {', '.join(accepted)}"


def _keys_at(root: type[BaseModel], loc: Sequence[object]) -> list[str]:
    """The keys that a table of the config takes."""
    model: Any = root
    for part in loc:
        if not _is_section(model):
            model = get_args(model)[-1]  # a table or list of tables: what is inside it
            if not _is_section(model):
                return []
            continue
        field = next((f for name, f in model.model_fields.items() if (f.alias or name) == part), None)
        if field is None:
            return []
        model = _without_none(field.annotation)
        if get_origin(model) is tuple:
            model = list[get_args(model)[0]]  # type: ignore[misc]
    return [field.alias or name for name, field in model.model_fields.items()] if _is_section(model) else []


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        return next(kind for kind in get_args(annotation) if kind is not type(None))
    return annotation


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
