"""The life of an assembled service: up in order, ready or not, down in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lineside_service.assembly.exposure import warn_of_exposure
from lineside_service.assembly.listening import admin_words, grpc_words
from lineside_service.assembly.otel_setup import SHUTDOWN_LIMIT_S
from lineside_service.assembly.service import Service
from lineside_service.assembly.translate import StartError
from lineside_service.ports import StoreUnavailable

if TYPE_CHECKING:
    from lineside_service.edge.admin import AdminServer

READINESS_EVERY_S: Final = 0.5
_TELEMETRY_LEAST_S: Final = 0.3


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where it listens, with the ports that were taken; admin is empty without one."""

    grpc: str
    admin: str


class Lifetime:
    """Starts, watches and drains one service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._admin: AdminServer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._is_up = False
        self._log = service.log

    def ready(self) -> tuple[bool, str]:
        """Whether calls are taken, and why not."""
        if self._service.dispatcher.draining:
            return False, "draining"
        if not self._is_up:
            return False, "starting"
        unwritten = self._service.ledger.unwritten
        return (False, f"{unwritten} finished calls cannot be written") if unwritten else (True, "")

    async def start(self) -> Addresses:
        """Settle what a dead process left, then listen, then say that it serves. Raises StartError."""
        service, config = self._service, self._service.config
        try:
            recovered = await service.ledger.settlements.recover()
        except StoreUnavailable as error:
            raise StartError(f"the store does not answer: {error}") from None
        if recovered:
            self._log.warning("ledger.recovered", calls=recovered)
        admin = await self._start_admin() if config.admin.enabled else ""
        try:
            port = await service.edge.start()
        except RuntimeError:
            raise StartError(grpc_words(config.server.listen)) from None
        self._is_up = True
        await service.edge.set_ready(is_ready=True)
        self._spawn("housekeeping", service.housekeeping.run())
        self._spawn("readiness", self._watch())
        self._spawn("reconcile", self._reconcile())
        warn_of_exposure(service, self._log)
        return Addresses(_with_port(config.server.listen, port), admin)

    async def drain(self) -> bool:
        """Go down within the grace and a second: calls first, then the store, telemetry last.

        Returns whether everything in flight ended by itself.
        """
        service, grace_s = self._service, self._service.config.server.grace
        end = time.monotonic() + grace_s + SHUTDOWN_LIMIT_S
        self._log.info("drain.begun", in_flight=service.dispatcher.in_flight, grace_s=grace_s)
        all_ended = await service.edge.drain(grace_s)
        await self.close()
        await service.store.close()
        left = min(SHUTDOWN_LIMIT_S, max(_TELEMETRY_LEAST_S, end - time.monotonic()))
        lost = await service.threads.run("telemetry-shutdown", lambda: service.otel.shutdown(left))
        if lost:
            self._log.warning("telemetry.spans_lost", spans=lost)
        self._log.info("drain.ended", all_ended=all_ended)
        return all_ended

    async def close(self) -> None:
        """End what runs beside the calls, the admin port last; harmless when repeated."""
        await self._service.reconciler.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await self._service.edge.stop()
        if self._admin is not None:
            admin, self._admin = self._admin, None
            await admin.close()

    async def _start_admin(self) -> str:
        from lineside_service.edge.admin import AdminServer

        listen, metrics = self._service.config.admin.listen, self._service.otel.metrics
        if metrics is None:
            raise AssertionError("an admin port without a registry to show")
        host, _, port = listen.rpartition(":")
        self._admin = AdminServer(host=host.strip("[]"), port=int(port), ready=self.ready, metrics=metrics)
        try:
            return _with_port(listen, await self._admin.start())
        except OSError as error:
            words = admin_words(listen, error.strerror or str(error), self._service.config.server.listen)
            raise StartError(words) from None

    async def _watch(self) -> None:
        while True:
            due = time.monotonic() + READINESS_EVERY_S
            await asyncio.sleep(READINESS_EVERY_S)
            self._service.lateness.late_s += max(0.0, time.monotonic() - due)
            await self._service.edge.set_ready(is_ready=self.ready()[0])

    async def _reconcile(self) -> None:
        try:
            await self._service.reconciler.start()
        except StoreUnavailable as error:
            self._log.error("reconcile.not_started", error=str(error))

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._reap)
        self._tasks.append(task)

    def _reap(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("task.died", task=task.get_name(), exc_info=error)


def _with_port(listen: str, port: int) -> str:
    return f"{listen.rpartition(':')[0]}:{port}"
