"""One wait of a call that ends at the first of: woken with a value, or a deadline that may move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Pause(Generic[T]):
    """A wait for one value. Waking it twice, or after its end, is harmless; the first value stands."""

    __slots__ = ("_future", "_timer", "_until", "value")

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._until: Callable[[], float] = float
        self.value: T | None = None

    def wake(self, value: T) -> None:
        """End the wait with a value."""
        if self.value is None:
            self.value = value
        self._finish()

    def look(self) -> None:
        """Ask for the deadline again: it may have come nearer."""
        if self._future is not None and not self._future.done():
            self._due(self._future.get_loop())

    async def wait(self, until: Callable[[], float]) -> T | None:
        """The value, or None once the loop's clock has passed `until()` (asked again when it is due)."""
        if self.value is not None:
            return self.value
        loop = asyncio.get_running_loop()
        self._future = loop.create_future()
        self._until = until
        self._timer = loop.call_at(until(), self._due, loop)
        try:
            await self._future
        finally:
            self._timer.cancel()
        return self.value

    def _due(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        when = self._until()
        if when > loop.time():
            self._timer = loop.call_at(when, self._due, loop)
        else:
            self._finish()

    def _finish(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)
