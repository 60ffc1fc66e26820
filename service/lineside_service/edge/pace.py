"""When the items of a stream may start, so that answers nobody has read yet do not pile up in memory.

A stream may have 256 items in flight, and reading stops at a megabyte of unsent answers; but what has been
started by then still answers, at up to 4 MiB each. So large answers are foreseen, tool by tool:

    the tool's usual answer is     an item of it starts
    -----------------------------  ---------------------------------------------------------------
    small (up to 16 KiB)           at once: 256 of them are what the bound on unsent answers allows
    large                          while unsent and foreseen answers stay within 4 MiB, or alone
    not known yet                  while fewer of them run in this stream than the tool has slots

Nothing is lost by the last line, since no more could run. An item whose deadline comes first starts too, to
be refused by the road as every other call whose time is over.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

SMALL: Final = 16 * 1024
MAX_FORESEEN: Final = 4 * 1024 * 1024


@dataclass(slots=True)
class Started:
    """One item that runs. foreseen: bytes kept for its answer; is_guess: nothing is known of its tool."""

    tool: str
    foreseen: int
    is_guess: bool


_SMALL: Final = Started("", 0, is_guess=False)


class UsualSizes:
    """What the answers of each tool usually take, in bytes: follows growth at once and shrinking slowly."""

    __slots__ = ("_sizes",)

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}

    def of(self, tool: str) -> int | None:
        """The usual size; None before the first answer."""
        return self._sizes.get(tool)

    def learn(self, tool: str, size: int) -> None:
        """An answer of so many bytes was made."""
        usual = self._sizes.get(tool, 0)
        self._sizes[tool] = max(size, (7 * usual + size) // 8)


@dataclass(slots=True, eq=False)
class _Waiting:
    tool: str
    slots: int
    future: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    started: Started | None = None


class Pace:
    """The account of one stream. unsent: bytes of answers that wait to be written."""

    __slots__ = ("_foreseen", "_guesses", "_usual", "_waiting", "unsent")

    def __init__(self, usual: UsualSizes) -> None:
        self._usual = usual
        self._foreseen = 0
        self._guesses: dict[str, int] | None = None
        self._waiting: list[_Waiting] | None = None
        self.unsent = 0

    def at_once(self, tool: str, slots: int) -> Started | None:
        """Start an item of this tool now if it may; `end` must follow."""
        return self._try(tool, slots)

    async def start(self, tool: str, slots: int, deadline: float) -> Started:
        """Return when an item of this tool may start; `end` must follow. deadline: loop time."""
        started = self._try(tool, slots)
        if started is not None:
            return started
        waiting = _Waiting(tool, slots)
        self._waiting = self._waiting or []
        self._waiting.append(waiting)
        timer = asyncio.get_running_loop().call_at(deadline, _release, waiting.future)
        try:
            await waiting.future
        except asyncio.CancelledError:
            if waiting.started is not None:
                self.end(waiting.started)
            raise
        finally:
            timer.cancel()
            if waiting in self._waiting:
                self._waiting.remove(waiting)
        return waiting.started or Started(tool, 0, is_guess=False)

    def end(self, started: Started) -> None:
        """An item has ended; its answer, if any, is counted in `unsent` by now."""
        self._foreseen -= started.foreseen
        if started.is_guess and self._guesses is not None:
            self._guesses[started.tool] -= 1
        self.resume()

    def resume(self) -> None:
        """Something was given back: start those that may start now, in the order in which they came."""
        if not self._waiting:
            return
        still = []
        for waiting in self._waiting:
            if not waiting.future.done():
                waiting.started = self._try(waiting.tool, waiting.slots)
            if waiting.started is None:
                still.append(waiting)
            else:
                _release(waiting.future)
        self._waiting = still

    def _try(self, tool: str, slots: int) -> Started | None:
        usual = self._usual.of(tool)
        if usual is None:
            self._guesses = {} if self._guesses is None else self._guesses
            running = self._guesses.get(tool, 0)
            if running >= slots:
                return None
            self._guesses[tool] = running + 1
            return Started(tool, 0, is_guess=True)
        if usual <= SMALL:
            return _SMALL
        is_alone = not self._foreseen and not self.unsent
        if not is_alone and self.unsent + self._foreseen + usual > MAX_FORESEEN:
            return None
        self._foreseen += usual
        return Started(tool, usual, is_guess=False)


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
