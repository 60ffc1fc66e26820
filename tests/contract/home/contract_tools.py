"""The tools of the contract suite: each does one thing that a caller can see, most of them as told.

What happens outside (a connection that is cut, a drain, a full waiting list) is asked of the test, at the
unix socket that the environment names.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import math
import os
import time
from typing import Any, NoReturn

from lineside_service.tools import ToolContext, ToolError, TransientError

_effects: dict[str, int] = {}
_held = asyncio.Event()


async def _ask(what: str, **facts: Any) -> Any:
    """Have the test do something; returns what it says once it is done."""
    path = os.environ["CONTRACT_SOCKET"]  # noqa: TID251 - a tool's own setting
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(json.dumps({"what": what, **facts}).encode() + b"\n")
        return json.loads(await reader.readline())
    finally:
        writer.close()


async def echo(value: Any) -> Any:
    """Give the value back."""
    return value


async def nothing() -> None:
    """Take nothing, give null."""


async def nothing_of(value: Any) -> None:
    """Take anything, give null."""


async def trip(city: str, days: int = 1) -> dict[str, Any]:
    """Plan a trip: a tool with a schema."""
    return {"city": city, "days": days}


async def blob(size: int) -> str:
    """Answer with that many letters."""
    return "x" * size


async def book(seat: str) -> dict[str, int]:
    """Take a seat; the answer tells how often that was done."""
    _effects[seat] = _effects.get(seat, 0) + 1
    return {"effects": _effects[seat]}


async def effects(seat: str) -> int:
    """How often the seat was taken."""
    return _effects.get(seat, 0)


async def book_slowly(seat: str, seconds: float) -> dict[str, int]:
    """Take a seat, and only then take time."""
    told = await book(seat)
    await asyncio.sleep(seconds)
    return told


async def sleep(seconds: float) -> str:
    """Take time."""
    await asyncio.sleep(seconds)
    return "slept"


async def think_first(seconds: float, ctx: ToolContext) -> str:
    """Take time before the point of no return."""
    await asyncio.sleep(seconds)
    ctx.begin_effect()
    return "done"


async def flaky(fails: int, ctx: ToolContext, retry_after_s: float | None = None) -> dict[str, int]:
    """Fail so many attempts, without effect, and then answer."""
    if ctx.attempt <= fails:
        raise TransientError("not yet", retry_after_s=retry_after_s)
    return {"attempt": ctx.attempt}


async def refuse(why: str, data: Any = None) -> NoReturn:
    """Run, and say no."""
    raise ToolError(why, data)


async def raises(secret: str) -> NoReturn:
    """Fail in a way that nobody expects."""
    raise ValueError(secret)


async def unusable(how: str) -> Any:
    """Answer with something that no caller can be given."""
    nested: list[Any] = []
    for _ in range(40):
        nested = [nested]
    return {
        "not_json": {1, 2},
        "not_finite": [math.nan],
        "not_unicode": "\ud800",
        "too_deep": nested,
        "breaks_schema": "no number",
        "big_integer": 2**53 + 1,
    }[how]


async def process() -> str:
    """Name the process that answers."""
    return os.environ["CONTRACT_NAME"]  # noqa: TID251 - a tool's own setting


async def narrow() -> str:
    """Wait until released; one at a time."""
    await _held.wait()
    return "released"


async def fill() -> Any:
    """Fill the slot and the waiting list of `narrow`."""
    _held.clear()
    return await _ask("fill")


async def release() -> Any:
    """Let everything go that waits in `narrow`."""
    _held.set()
    return await _ask("filled")


async def cut(seat: str) -> dict[str, int]:
    """Take a seat; then every connection through the relay is cut, before the answer."""
    told = await book(seat)
    await _ask("cut")
    return told


async def drain() -> Any:
    """Have this process drain; answered once it does."""
    return await _ask("drain")


async def until_drained() -> Any:
    """End once the process drains."""
    return await _ask("until_drained")


async def hold() -> Any:
    """End when the test says so."""
    return await _ask("hold")


async def on(day: dt.date) -> int:
    """Take a date, which no schema can say whole."""
    return day.day


def stubborn(seconds: float) -> str:
    """Keep a thread, whatever anybody says."""
    time.sleep(seconds)
    return "at last"


async def settle(key: str, tool: str, done: Any = None, not_run: bool = False) -> Any:
    """Settle an unknown call, as a person would."""
    return await _ask("settle", key=key, tool=tool, done=done, not_run=not_run)
