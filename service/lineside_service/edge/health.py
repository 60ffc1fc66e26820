"""Standard health checking: "" for the whole server and one entry for each service, open to everybody."""

from __future__ import annotations

from collections.abc import Iterable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


class Health:
    """What load balancers and clients are told. `set_serving` comes before the first caller."""

    def __init__(self, services: Iterable[str]) -> None:
        self._servicer = health_aio.HealthServicer()
        self._names = ("", *services)
        self._serving: bool | None = None

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register the service."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def set_serving(self, *, is_serving: bool) -> None:
        """Tell every watcher; saying the same again costs nothing. Without effect once the drain began."""
        if is_serving is self._serving:
            return
        self._serving = is_serving
        for name in self._names:
            await self._servicer.set(name, _SERVING if is_serving else _NOT_SERVING)

    async def begin_drain(self) -> None:
        """Not serving, for good: first of all, so that nobody new is sent here."""
        await self._servicer.enter_graceful_shutdown()
