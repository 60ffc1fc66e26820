"""The two sides of a comparison, the bare echo and the service, each its own process; what drives them."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from lineside.v1.dispatch_pb2 import DispatchBatchRequest, DispatchRequest, ToolCall
from tests.support.process import ServiceProcess, service

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / "build" / "bin"
HOME = Path(__file__).with_name("home")
PLACEHOLDER = "@" * 36
"""Stands in a request where every copy that is sent gets a number of its own."""
_RUN_S = 120.0
"""A drive that takes longer than this has failed."""


@dataclass(frozen=True, slots=True)
class Side:
    """A server to drive: where it listens, and its process."""

    address: str
    pid: int


@contextlib.asynccontextmanager
async def bare_echo() -> AsyncIterator[Side]:
    """The bare echo until the block ends."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(HOME.with_name("bare_echo.py")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        if process.stdout is None:
            raise RuntimeError("the echo has no stdout")
        async with asyncio.timeout(30):
            address = (await process.stdout.readline()).decode().strip()
        yield Side(address, process.pid)
    finally:
        process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def ours(
    folder: Path, *, collector: str = "", store: str = "sqlite", more_tools: int = 0, env: Sequence[str] = ()
) -> AsyncIterator[ServiceProcess]:
    """The service on the load tests' config, until the block ends; one call in a hundred is sampled.

    folder: a new directory for it. collector: OTLP endpoint that takes the spans; without one nothing is
    sampled. store: `sqlite` or `memory`. more_tools: so many besides those of the config.
    """
    shutil.copytree(HOME, folder, ignore=shutil.ignore_patterns("__pycache__"))
    config = folder / "lineside.toml"
    with config.open("a") as file:
        for number in range(more_tools):
            file.write(f'\n[tools."more-{number}"]\ntarget = "tools:echo"\neffect = "safe"\n')
    sampling = ["OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=0.01"]
    if collector:
        sampling += ["OTEL_TRACES_EXPORTER=otlp", f"OTEL_EXPORTER_OTLP_ENDPOINT={collector}"]
    async with service(config, env=[*sampling, f"LINESIDE__STORE__KIND={store}", *env]) as process:
        yield process


async def driven(
    side: Side | ServiceProcess, body: Path, *flags: str, limit_s: float = _RUN_S
) -> dict[str, Any]:
    """What the driver reports of one run against a side (see its --help); RuntimeError when it fails."""
    process = await asyncio.create_subprocess_exec(
        *(
            str(BIN / "loaddriver"),
            "-target",
            side.address,
            "-body",
            str(body),
            "-unique",
            PLACEHOLDER,
            *flags,
        ),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(limit_s):
            out, error = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise RuntimeError(error.decode())
    report: dict[str, Any] = msgspec.json.decode(out)
    return report


def tool_call(tool: str = "echo", *, is_keyed: bool = False, item: str = "", **arguments: object) -> ToolCall:
    """A call, keyed with a key that is new in every copy."""
    call = ToolCall(tool=tool, arguments_json=msgspec.json.encode(arguments or {"city": "Oslo", "days": 3}))
    if is_keyed:
        call.idempotency_key = PLACEHOLDER
    if item:
        call.item_id = item
    return call


def request_file(folder: Path, name: str, call: ToolCall) -> Path:
    """A file with a serialized unary request."""
    path = folder / name
    path.write_bytes(DispatchRequest(call=call).SerializeToString())
    return path


def frame_file(folder: Path, name: str, count: int) -> Path:
    """A file with a serialized frame of so many calls, whose item ids are new in every copy."""
    path = folder / name
    calls = [tool_call(item=PLACEHOLDER) for _ in range(count)]
    path.write_bytes(DispatchBatchRequest(calls=calls).SerializeToString())
    return path
