"""What was said where: file, environment, flags; the later wins, and a mistake tells who said it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lineside_service.config.mistakes import Mistake, dotted

ENV_PREFIX = "LINESIDE__"
ENV_DELIMITER = "__"

FLAGS: Mapping[str, str] = MappingProxyType(
    {
        "server.listen": "--listen",
        "admin.listen": "--admin-listen",
        "store.path": "--store-path",
        "telemetry.log_level": "--log-level",
    }
)
"""The places that the command line can set, and how it calls them."""


class Said:
    """File and environment as nested tables, flags by place; `file` is the config file's path."""

    def __init__(
        self, *, file: Path, in_file: dict[str, Any], in_env: dict[str, Any], flags: Mapping[str, Any]
    ) -> None:
        self.file, self.in_file, self.in_env, self.flags = file, in_file, in_env, flags

    def merged(self) -> dict[str, Any]:
        """The config as all three together say it."""
        merged = _over(self.in_file, self.in_env)
        for place, value in self.flags.items():
            part, key = place.split(".")
            merged = _over(merged, {part: {key: value}})
        return merged

    def source(self, loc: tuple[object, ...]) -> str:
        """Who said the value at this place; the file for what nobody said."""
        place = ".".join(str(part) for part in loc)
        if place in self.flags:
            return f"flag {FLAGS[place]}"
        if loc and _has(self.in_env, loc):
            return f"environment variable {ENV_PREFIX}{ENV_DELIMITER.join(str(part).upper() for part in loc)}"
        return str(self.file)

    def mistake(self, loc: tuple[object, ...], message: str) -> Mistake:
        """A mistake at this place."""
        return Mistake(self.source(loc), dotted(loc), message)


def _over(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`, table by table. Names from the environment have lost their case."""
    result = dict(below)
    folded = {name.lower(): name for name in below}
    for name, value in above.items():
        key = name if name in below else folded.get(name, name)
        standing = result.get(key)
        both = isinstance(standing, dict) and isinstance(value, Mapping)
        result[key] = _over(standing, value) if both and isinstance(standing, dict) else value
    return result


def _has(said: Any, loc: tuple[object, ...]) -> bool:
    for part in loc:
        if isinstance(said, list):
            return True
        if not isinstance(said, Mapping):
            return False
        key = part if part in said else str(part).lower()
        if key not in said:
            return False
        said = said[key]
    return True
