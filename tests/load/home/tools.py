"""Tools to put load on: each answers at once, or takes the time it is told."""

from __future__ import annotations

import asyncio

from lineside_service.tools import ToolContext, ToolError, TransientError


async def echo(city: str, days: int = 1) -> dict[str, object]:
    """Give the arguments back."""
    return {"city": city, "days": days}


async def blob(size: int) -> str:
    """Answer so many characters."""
    return "x" * size


async def refuses(city: str) -> None:
    """Say no, as a tool does."""
    raise ToolError("no such city", {"city": city})


async def flaky(ctx: ToolContext, city: str) -> str:
    """Fail before any effect on the first attempt of every call."""
    if ctx.attempt == 1:
        raise TransientError("warming up")
    return city


async def works(milliseconds: int) -> int:
    """Take so long, and no core."""
    await asyncio.sleep(milliseconds / 1000)
    return milliseconds
