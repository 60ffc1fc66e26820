"""What the world outside the service saw: effects, taken over a socket, kept where no kill reaches them.

A tool sends `name key token` on a connection of its own and waits for the answer; `token` is what an upstream
would recognise a repeat by.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path


class EffectServer:
    """Counts effects. path: its unix socket; effects: per key; tokens: per key, what came with them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.effects: Counter[str] = Counter()
        self.tokens: defaultdict[str, set[str]] = defaultdict(set)
        self.on_effect: Callable[[str], None] = lambda _: None
        self._release = asyncio.Event()
        self._release.set()
        self._arrived = asyncio.Event()

    @property
    def total(self) -> int:
        """Effects in all."""
        return self.effects.total()

    def hold(self) -> None:
        """Take effects from now on, but answer none before `release`."""
        self._release.clear()

    def release(self) -> None:
        """Answer everything held, and what comes from now on at once."""
        self._release.set()

    async def arrivals(self, count: int) -> None:
        """Return once there are so many effects in all (TimeoutError after 20 s)."""
        async with asyncio.timeout(20):
            while self.total < count:
                self._arrived.clear()
                await self._arrived.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take one effect."""
        try:
            line = (await reader.readline()).decode()
            if line.endswith("\n"):  # a half line is an effect that never happened
                _, key, token = line.split()
                self.effects[key] += 1
                self.tokens[key].add(token)
                self._arrived.set()
                self.on_effect(key)
                await self._release.wait()
                writer.write(b"taken\n")
                await writer.drain()
        except ConnectionError:
            pass  # whoever sent it was killed: the effect stands
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def effect_server(path: Path) -> AsyncIterator[EffectServer]:
    """An effect server on a unix socket until the block ends."""
    effects = EffectServer(path)
    server = await asyncio.start_unix_server(effects.serve, path)
    try:
        yield effects
    finally:
        effects.release()
        server.close()
