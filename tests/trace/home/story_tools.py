"""The tools of the story; those that wait, wait for the story and for no clock."""

from __future__ import annotations

import asyncio

from lineside_service.tools import ToolContext, ToolError, TransientError


async def forecast(ctx: ToolContext, city: str) -> str:
    """Fail before any effect on the first two attempts of every call."""
    if ctx.attempt < 3:
        raise TransientError("warming up")
    return f"rain in {city}"


async def book(flight: str, door: int) -> str:
    """Knock at the story's port and book once it has closed the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", door)
    await reader.read()
    writer.close()
    return f"a seat on {flight}"


async def charge(amount: int) -> int:
    """Never answer."""
    await asyncio.Event().wait()
    return amount


async def down() -> None:
    """Fail before any effect."""
    raise TransientError("out of order")


async def lookup(word: str) -> str:
    """Answer at once."""
    return word[::-1]


async def refuses(word: str) -> None:
    """Run, and say no."""
    raise ToolError("not a word", {"word": word})
