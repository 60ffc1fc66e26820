"""Tools that reach for the process they run in."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

_kept: list[asyncio.Task[NoReturn]] = []


async def _leaves() -> NoReturn:
    await asyncio.sleep(0)
    sys.exit(4)


async def raises(name: str) -> NoReturn:
    """Raise what is no Exception, after a wait."""
    await asyncio.sleep(0)
    raises_at_once(name)


def raises_at_once(name: str) -> NoReturn:
    """Raise it on a thread."""
    errors: dict[str, type[BaseException]] = {
        "BaseException": BaseException,
        "CancelledError": asyncio.CancelledError,
        "GeneratorExit": GeneratorExit,
        "KeyboardInterrupt": KeyboardInterrupt,
        "SystemExit": SystemExit,
    }
    raise errors[name]


async def gathers_an_exit() -> None:
    """Wait for a task that ends the process, as it thinks."""
    await asyncio.gather(_leaves(), asyncio.sleep(1))


async def leaves_an_exit() -> str:
    """Answer while such a task is on its way."""
    _kept.append(asyncio.create_task(_leaves()))
    return "left"


def pool() -> list[int]:
    """Use forked workers, and end them with a SIGTERM each."""
    with multiprocessing.get_context("fork").Pool(2) as workers:
        return workers.map(abs, [-1, -2])


def child(file: str) -> str:
    """Leave a forked child behind that outlives the service for a while."""
    pid = os.fork()
    if not pid:
        os.closerange(0, 3)  # as one that is to stay does: who started the service waits for no pipe of its
        time.sleep(60)
        os._exit(0)
    Path(file).write_text(str(pid))
    return "born"
