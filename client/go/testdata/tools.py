"""Tools for the tests: an echo, a counted effect, one that says no, one that fails, one that never ends."""

from __future__ import annotations

import asyncio
from typing import Any

from lineside_service.tools import ToolError, TransientError

_effects: dict[str, int] = {}


async def echo(value: Any) -> Any:
    """Give the value back."""
    return value


async def book(seat: str) -> dict[str, int]:
    """Take a seat; the answer tells how often that was done."""
    _effects[seat] = _effects.get(seat, 0) + 1
    return {"effects": _effects[seat]}


async def refuse(why: str) -> None:
    """Run, and say no."""
    raise ToolError(why)


async def flaky(retry_after_s: float) -> None:
    """Fail without effect, for the moment."""
    raise TransientError("not now", retry_after_s=retry_after_s)


async def hang() -> None:
    """Never end."""
    await asyncio.get_running_loop().create_future()
