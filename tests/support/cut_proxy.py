"""A TCP relay that can cut every connection at a moment a test chooses, and serves the next ones."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class CutProxy:
    """Relays to `upstream` (host:port), which may be changed for the connections that come next.

    target: where it listens, host:port. cuts: connections that were cut, counted at both of their ends.
    """

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.target = ""
        self.cuts = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen on any free port."""
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.target = f"{host}:{port}"

    def cut(self) -> None:
        """Reset all connections, both sides; what was under way in either direction is lost."""
        for writer in self._writers:
            writer.transport.abort()
            self.cuts += 1
        self._writers.clear()

    async def close(self) -> None:
        """Stop listening and let go of everything."""
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.upstream.rpartition(":")
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(host, int(port))
        except ConnectionError:
            writer.transport.abort()  # nobody listens there: no connection for the caller either
            return
        self._writers |= {writer, upstream_writer}
        for source, sink in ((reader, upstream_writer), (upstream_reader, writer)):
            task = asyncio.get_running_loop().create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError):  # cut, or an end left: the other end goes too
                while chunk := await source.read(65_536):
                    sink.write(chunk)
                    await sink.drain()
                sink.close()  # after what is still to be sent
                await sink.wait_closed()
        finally:
            sink.transport.abort()
            self._writers.discard(sink)


@contextlib.asynccontextmanager
async def cut_proxy(upstream: str) -> AsyncIterator[CutProxy]:
    """A relay in front of a server at host:port."""
    proxy = CutProxy(upstream)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()
