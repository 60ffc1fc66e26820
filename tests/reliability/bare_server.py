"""A grpc.aio server that echoes a stream's messages and does nothing else: what the library itself costs.

Prints its port; ends with its stdin.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

METHOD = "/bare.Bare/Echo"


async def _echo(_: object, context: Any) -> None:
    while (message := await context.read()) is not grpc.aio.EOF:
        await context.write(message)


async def _serve() -> None:
    server = grpc.aio.server()
    handlers: dict[str, Any] = {"Echo": grpc.stream_stream_rpc_method_handler(_echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare.Bare", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    os.write(1, f"{port}\n".encode())
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)


@contextlib.asynccontextmanager
async def bare_server() -> AsyncIterator[tuple[int, str]]:
    """Such a server as a process of its own; its pid and its address."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.reliability.bare_server"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert process.stdout is not None
        yield process.pid, f"127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        process.kill()
        await process.communicate()


if __name__ == "__main__":
    asyncio.run(_serve())
