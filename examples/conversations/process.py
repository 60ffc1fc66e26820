"""The service as its own process, for as long as a run needs it."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

__all__ = ["ServiceDied", "free_port", "serving"]

START_S = 30.0
STOP_S = 40.0
"""How long a start and an orderly stop may take, in seconds; the service's own grace is 30 s."""

_EXAMPLES = Path(__file__).resolve().parent.parent
_LOG_LINES = 20


class ServiceDied(Exception):
    """The service did not start, or did not stop in order; the text ends with its last log lines."""


def free_port() -> int:
    """Return a loopback port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@asynccontextmanager
async def serving(config: Path, target: str, log: Path) -> AsyncIterator[None]:
    """Start the service with a config file, wait until `target` (host:port) is SERVING, stop it at the end.

    Raises:
        ServiceDied: it ended by itself, or with another exit code than 0.
    """
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            # env hands the rest of the environment on as it is
            *("env", f"PYTHONPATH={_EXAMPLES}", Path(sys.executable).with_name("lineside-service")),
            *("serve", "--config", config),
            stdout=output,
            stderr=output,
        )
    try:
        await _until_serving(process, target, log)
        yield
    finally:
        await _stop(process)
    if process.returncode != 0:
        raise ServiceDied(f"the service stopped with exit code {process.returncode}\n{_tail(log)}")


async def _until_serving(process: asyncio.subprocess.Process, target: str, log: Path) -> None:
    ended = asyncio.create_task(process.wait())
    served = asyncio.create_task(_serving(target))
    try:
        await asyncio.wait({ended, served}, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        if not served.done():
            state = f"exit code {process.returncode}" if ended.done() else f"not serving after {START_S:g} s"
            raise ServiceDied(f"the service did not start: {state}\n{_tail(log)}")
        await served
    finally:
        served.cancel()
        ended.cancel()
        await asyncio.gather(served, ended, return_exceptions=True)


async def _serving(target: str) -> None:
    async with grpc.aio.insecure_channel(target) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        async for answer in health.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True):
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                return


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:])
