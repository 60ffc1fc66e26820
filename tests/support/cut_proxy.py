"""A TCP relay that can cut every connection at a moment a test chooses, and serves the next ones."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class CutProxy:
    """Relays to `target` (host:port). cuts: connections that were cut."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.target = ""
        self.cuts = 0

    async def start(self) -> None:
        """Listen on any free port."""
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.target = f"{host}:{port}"

    def cut(self) -> None:
        """Reset all connections, both sides."""
        for writer in self._writers:
            writer.transport.abort()
            self.cuts += 1
        self._writers.clear()

    async def close(self) -> None:
        """Stop listening and let go of everything."""
        self.cut()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(self._host, self._port)
        self._writers |= {writer, upstream_writer}
        for source, sink in ((reader, upstream_writer), (upstream_reader, writer)):
            task = asyncio.get_running_loop().create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while chunk := await source.read(65_536):
                sink.write(chunk)
                await sink.drain()
        sink.transport.abort()
        self._writers.discard(sink)


@contextlib.asynccontextmanager
async def cut_proxy(target: str) -> AsyncIterator[CutProxy]:
    """A relay in front of a server."""
    proxy = CutProxy(target)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()
