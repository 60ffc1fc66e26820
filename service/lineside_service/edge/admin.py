"""The admin port: /metrics, /livez and /readyz over plain HTTP, on loopback unless configured otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

CLOSE_S: Final = 0.5
"""What answers under way may still take when the port closes."""


class AdminServer:
    """Serves until it is closed.

    ready: whether calls are taken, and why not; asked on every request. metrics: what /metrics renders.
    """

    def __init__(
        self, *, host: str, port: int, ready: Callable[[], tuple[bool, str]], metrics: CollectorRegistry
    ) -> None:
        self._host = host
        self._port = port
        self._ready = ready
        self._metrics = metrics
        self._runner: web.AppRunner | None = None

    async def start(self) -> int:
        """Listen; returns the port. OSError when the address cannot be had."""
        app = web.Application()
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._render)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=CLOSE_S)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port)
        await site.start()
        port: int = self._runner.addresses[0][1]
        return port

    async def close(self) -> None:
        """Close the port, last of all: probes want to see how the service goes down."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _livez(self, _: web.Request) -> web.Response:
        """The loop turns, or nobody would read this."""
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        is_ready, reason = self._ready()
        return web.Response(status=200 if is_ready else 503, text=f"{'ok' if is_ready else reason}\n")

    async def _render(self, _: web.Request) -> web.Response:
        # In a thread: rendering takes milliseconds, and calls must not wait for a scrape.
        body = await asyncio.to_thread(generate_latest, self._metrics)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
