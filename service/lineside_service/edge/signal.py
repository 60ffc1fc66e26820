"""A latch for one waiter, of one future while somebody waits: an idle stream keeps two for its life."""

from __future__ import annotations

import asyncio


class Signal:
    """Set by anybody, waited for by one; waiting takes the set state away."""

    __slots__ = ("_future", "_is_set")

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None
        self._is_set = False

    def set(self) -> None:
        """Wake the waiter, or let the next one pass."""
        self._is_set = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        """Return once it has been set since the last wait."""
        if not self._is_set:
            self._future = asyncio.get_running_loop().create_future()
            try:
                await self._future
            finally:
                self._future = None
        self._is_set = False
