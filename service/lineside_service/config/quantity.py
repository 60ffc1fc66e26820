"""Durations and sizes as people write them: `30`, `"200ms"`, `"5m"`; `65536`, `"64KiB"`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_BYTES = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_WRITTEN = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def duration_s(value: Any) -> float:
    """Seconds from a number (seconds) or text with a unit (ms, s, m, h, d); ValueError says what would do."""
    seconds = _measure(value, _SECONDS, "s")
    if seconds is None:
        raise ValueError(
            'must be a duration: seconds (2.5) or text with a unit ("200ms", "30s", "5m", "12h", "7d")'
        )
    return seconds


def size_bytes(value: Any) -> int:
    """Bytes from a whole number or text with a unit (B, KiB, MiB, GiB); ValueError says what would do."""
    size = _measure(value, _BYTES, "B")
    if size is None or size != int(size):
        raise ValueError('must be a size: bytes (65536) or text with a unit ("64KiB", "16MiB", "1GiB")')
    return int(size)


def in_words(seconds: float) -> str:
    """A duration as one would write it in the config: 0.2 -> "200ms", 300 -> "5m"."""
    if seconds < 1:
        return f"{seconds * 1000:g}ms"
    for unit in ("d", "h", "m"):
        if seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:g}{unit}"
    return f"{seconds:g}s"


def _measure(value: Any, units: dict[str, float] | dict[str, int], plain: str) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if math.isfinite(value) else None
    written = _WRITTEN.fullmatch(value) if isinstance(value, str) else None
    if written is None:
        return None
    factor = units.get(written[2] or plain)
    return None if factor is None else float(written[1]) * factor


def seconds_between(low: float, high: float) -> Callable[[Any], float]:
    """A pydantic validator: a duration, `low` to `high` seconds."""

    def check(value: Any) -> float:
        seconds = duration_s(value)
        if not low <= seconds <= high:
            raise ValueError(f"must be between {in_words(low)} and {in_words(high)}")
        return seconds

    return check


def bytes_between(low: int, high: int) -> Callable[[Any], int]:
    """A pydantic validator: a size, `low` to `high` bytes."""

    def check(value: Any) -> int:
        size = size_bytes(value)
        if not low <= size <= high:
            raise ValueError(f"must be between {low} and {high} bytes")
        return size

    return check
