"""Tools that meet a secret among their arguments, and fail with it in their hands in every way there is."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any


def _raise(secret: str) -> None:
    raise ValueError(f"https://u:{secret}@h/?k={secret}")


async def _later(secret: str) -> None:
    _raise(secret)


class _Falls:
    """Raises when it is collected."""

    def __init__(self, secret: str) -> None:
        self.secret = secret

    def __del__(self) -> None:
        _raise(self.secret)


async def _chained(secret: str) -> None:
    try:
        _raise(secret)
    except ValueError as error:
        raise RuntimeError(secret) from error


async def _group(secret: str) -> None:
    raise ExceptionGroup(secret, [ValueError(secret)])


async def _noted(secret: str) -> None:
    error = ValueError("z")
    error.add_note(secret)
    raise error


async def _exits(secret: str) -> None:
    raise GeneratorExit(secret)


async def _late(secret: str) -> None:
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        _raise(secret)


async def _task(secret: str) -> None:
    lost = asyncio.ensure_future(_later(secret))
    await asyncio.wait([lost])
    del lost
    gc.collect()


async def _callback(secret: str) -> None:
    asyncio.get_running_loop().call_soon(_raise, secret)
    await asyncio.sleep(0)


async def _thread(secret: str) -> None:
    thread = threading.Thread(target=_raise, args=(secret,))
    thread.start()
    thread.join()


async def _collected(secret: str) -> None:
    falls: Any = _Falls(secret)
    del falls


async def _unwritable(secret: str) -> Any:
    return {"a": {secret}}


async def _too_large(secret: str) -> Any:
    return secret * 400_000


WAYS = {
    "raises": _later,
    "chained": _chained,
    "group": _group,
    "noted": _noted,
    "exits": _exits,
    "late": _late,
    "task": _task,
    "callback": _callback,
    "thread": _thread,
    "collected": _collected,
    "unwritable": _unwritable,
    "too large": _too_large,
}


async def leak(secret: str, how: str) -> Any:
    """Fail as told."""
    return await WAYS[how](secret)


def leak_on_a_thread(secret: str) -> None:
    """Fail on the tool's own thread."""
    _raise(secret)
