"""Tools that behave badly, each in its own way, and a few that behave well beside them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import NoReturn

from lineside_service.tools import ToolContext


async def hang() -> None:
    """Wait for ever, but leave when asked."""
    await asyncio.Event().wait()


async def hangs_on(timeout_s: float, ctx: ToolContext) -> None:
    """The same, after a note of what its caller gave and what is left of it."""
    ctx.logger.info("given", timeout_s=timeout_s, left_s=ctx.deadline_s())
    await asyncio.Event().wait()


async def swallows() -> None:
    """Never leave."""
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)


async def returns_late() -> str:
    """Answer the cancel with a result."""
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        return "too late"
    return "never"


async def cleans_up() -> None:
    """Take half a minute to leave."""
    try:
        await asyncio.sleep(3600)
    finally:
        await asyncio.sleep(30)


async def own_timeout() -> NoReturn:
    """Have a time limit of its own."""
    await asyncio.sleep(0.01)
    raise TimeoutError("mine")


async def cancels_itself() -> NoReturn:
    """Raise what only the service should."""
    raise asyncio.CancelledError("x")


def stuck() -> str:
    """Hold a thread for an hour."""
    time.sleep(3600)
    return "never"


def quick() -> str:
    """Be a good plain function."""
    return "quick"


async def echo(text: str = "") -> str:
    """Be a good async function."""
    return text


async def slow(seconds: float = 0.2) -> str:
    """Take its time."""
    await asyncio.sleep(seconds)
    return "slow"


async def blob(size: int) -> str:
    """Answer with much."""
    return "x" * size
