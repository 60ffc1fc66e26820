"""Tools whose effect happens in another process, at the unix socket that the environment names."""

from __future__ import annotations

import asyncio
import os

from lineside_service.tools.context import ToolContext, TransientError


async def deliver(name: str, key: str, token: str) -> None:
    """The effect: done once the other process has answered."""
    path = os.environ["EFFECT_SOCKET"]  # noqa: TID251 - a tool's own setting
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(f"{name} {key} {token}\n".encode())
        await writer.drain()
        if await reader.readline() != b"taken\n":
            raise ConnectionError("the effect was not confirmed")
    finally:
        writer.close()


async def pay(amount: int, ctx: ToolContext, flaky: bool = False) -> dict[str, int]:
    """Pay. flaky: the first attempt fails before its effect."""
    if flaky and ctx.attempt == 1:
        raise TransientError("not yet")
    await deliver("pay", ctx.idempotency_key or ctx.call_id, ctx.downstream_key)
    return {"paid": amount}


async def pay_in_phases(amount: int, ctx: ToolContext, flaky: bool = False) -> dict[str, int]:
    """Pay, and say when it gets serious. flaky: the first attempt fails before its effect."""
    if flaky and ctx.attempt == 1:
        raise TransientError("not yet")
    ctx.begin_effect()
    await deliver("pay_in_phases", ctx.idempotency_key or ctx.call_id, ctx.downstream_key)
    return {"paid": amount}
