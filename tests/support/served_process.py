"""The service in a process of its own, for tests that look at what it costs.

Its tools: `small` answers a letter, `blob` 64 KiB, `mega` a megabyte, each at once; `slow-mega` after
10 ms, `nap` a letter after 200 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from lineside_service.core.attempt import AttemptEnd
from lineside_service.core.errors import Outcome
from lineside_service.core.tool import ToolSpec
from lineside_service.ports import AttemptRequest
from tests.support.serving import serving


class Repeats:
    """A tool that answers so many characters after so many seconds, and remembers nothing."""

    def __init__(self, name: str, size: int, after_s: float = 0.0) -> None:
        self.spec = ToolSpec(name=name)
        self._size = size
        self._after_s = after_s

    async def run(self, request: AttemptRequest) -> AttemptEnd:
        """See ports.Tool."""
        if self._after_s:
            await asyncio.sleep(self._after_s)
        return AttemptEnd(kind=None, outcome=Outcome.DONE, result=msgspec.json.encode("x" * self._size))


async def _serve() -> None:
    async with serving(sampler=ALWAYS_OFF) as served:
        served.registry.replace(
            [
                Repeats("small", 1),
                Repeats("blob", 65_536),
                Repeats("mega", 1_048_576),
                Repeats("slow-mega", 1_048_576, after_s=0.01),
                Repeats("nap", 1, after_s=0.2),
            ]
        )
        print(served.target, flush=True)  # noqa: T201 - how the parent learns the port
        await asyncio.to_thread(sys.stdin.read)


class ServedProcess:
    """A child that serves; `target` is where."""

    def __init__(self, process: asyncio.subprocess.Process, target: str) -> None:
        self._process = process
        self.target = target

    def rss(self) -> int:
        """Bytes of memory it holds."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")


@contextlib.asynccontextmanager
async def served_process() -> AsyncIterator[ServedProcess]:
    """A child that serves until the block ends."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.served_process",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield ServedProcess(process, (await process.stdout.readline()).decode().strip())
    finally:
        process.stdin.close()
        assert await process.wait() == 0


if __name__ == "__main__":
    asyncio.run(_serve())
