"""The service as its own process, for as long as a run needs it."""

from __future__ import annotations

import asyncio
import re
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

__all__ = ["ServiceDied", "serving"]

START_S = 30.0
STOP_S = 40.0
"""How long a start and an orderly stop may take, in seconds; the service's own grace is 30 s."""

_EXAMPLES = Path(__file__).resolve().parent.parent
_SERVING = re.compile(rb"SERVING on (\S+): ")
_LOG_LINES = 20


class ServiceDied(Exception):
    """The service did not start, or did not live to an orderly stop; the text has its last log lines."""


@asynccontextmanager
async def serving(config: Path, log: Path) -> AsyncIterator[str]:
    """Start the service with a config file on a free port, yield its `host:port`, stop it at the end.

    It is stopped however the block ends: asked first, killed if it takes too long or the wait is cancelled.
    A block whose service dies is cancelled.

    Raises:
        ServiceDied: it ended by itself, or with another exit code than 0.
    """
    process = await _started(config, log)
    try:
        target = await _until_serving(process, log)
        # Reads on, so that tools which print never wait for a reader, and ends with the process.
        ended = asyncio.create_task(process.communicate())
        try:
            async with _while_running(ended, process, log):
                yield target
        finally:
            await _stop(process, ended)
    except Exception as error:
        # Whatever the block ran into: a service that is gone is the cause.
        if process.returncode:
            raise _died(process, log) from error
        raise
    finally:
        if process.returncode is None:  # it never served
            process.kill()
            await process.communicate()
    if process.returncode != 0:
        raise _died(process, log)


async def _started(config: Path, log: Path) -> Process:
    with log.open("wb") as errors:
        return await asyncio.create_subprocess_exec(
            # env hands the rest of the environment on as it is
            *("env", f"PYTHONPATH={_EXAMPLES}", Path(sys.executable).with_name("lineside-service")),
            *("serve", "--config", config, "--listen", "127.0.0.1:0"),
            stdout=PIPE,
            stderr=errors,
            start_new_session=True,  # Ctrl-C is for this process, which then stops the service in order
        )


async def _until_serving(process: Process, log: Path) -> str:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_S):
            async for line in process.stdout:
                if said := _SERVING.search(line):
                    return said[1].decode()
            await process.wait()
    except TimeoutError:
        raise ServiceDied(f"the service does not serve after {START_S:g} s\n{_tail(log)}") from None
    raise _died(process, log)


@asynccontextmanager
async def _while_running(ended: asyncio.Task[Any], process: Process, log: Path) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(None) as limit:

            def give_up(_: asyncio.Task[Any]) -> None:
                limit.reschedule(0)  # a time that has passed: the block is cancelled now

            ended.add_done_callback(give_up)
            try:
                yield
            finally:
                ended.remove_done_callback(give_up)
    except TimeoutError:
        if limit.expired():
            raise _died(process, log) from None
        raise


async def _stop(process: Process, ended: asyncio.Task[Any]) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait({ended}, timeout=STOP_S)
    finally:
        if process.returncode is None:
            process.kill()
        await ended


def _died(process: Process, log: Path) -> ServiceDied:
    return ServiceDied(f"the service ended with exit code {process.returncode}\n{_tail(log)}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:])
