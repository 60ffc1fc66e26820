"""Batch streams on a real wire: what an idle one costs, a slow reader, and callers that hang up."""

from __future__ import annotations

import asyncio
import statistics
from pathlib import Path
from typing import Any

import grpc
import pytest

from lineside.v1.dispatch_pb2 import DispatchBatchRequest, DispatchBatchResponse, ToolCall
from tests.reliability.bare_server import METHOD, bare_server
from tests.reliability.figures import Figures
from tests.reliability.monsters import DISPATCH_BATCH
from tests.support.process import ServiceProcess, resident_bytes, service, wire_call

KIB, MIB = 1024, 1024 * 1024
CONFIG = """
[server]
listen = "127.0.0.1:0"
[admin]
listen = "127.0.0.1:0"
[tools.echo]
target = "hostile_tools:echo"
effect = "safe"
[tools.slow]
target = "hostile_tools:slow"
effect = "safe"
concurrency = 1000
[tools.blob]
target = "hostile_tools:blob"
effect = "safe"
concurrency = 64
"""
GAUGES = ("dispatch_batch_streams", "dispatch_batch_items", "dispatch_rpc_active", "dispatch_inflight")
"""All zero in a service that nobody calls."""


def frame(*calls: ToolCall) -> bytes:
    """A frame of calls, numbered by their place."""
    for number, call in enumerate(calls):
        call.item_id = call.item_id or str(number)
    return DispatchBatchRequest(calls=calls).SerializeToString()


def open_stream(channel: grpc.aio.Channel) -> Any:
    """A raw stream."""
    return channel.stream_stream(DISPATCH_BATCH)()


async def until_quiet(served: ServiceProcess) -> None:
    """Return once the service has nothing left to do."""
    for name in GAUGES:
        await served.until_metric(name, 0)


async def cost_of_a_stream(pid: int, channels: list[grpc.aio.Channel], method: str, first: bytes) -> float:
    """Bytes of the server's memory that each of 500 streams takes, which have had one answer and wait."""
    streams: list[Any] = []

    async def opened(channel: grpc.aio.Channel) -> None:
        open_one: Any = channel.stream_stream(method)
        stream = open_one()
        await stream.write(first)
        await stream.read()
        streams.append(stream)

    async def open_streams(count: int) -> None:
        await asyncio.gather(*(opened(channels[n % len(channels)]) for n in range(count)))

    await open_streams(250)  # the first ones also pay for what all of them share
    before = resident_bytes(pid)
    await open_streams(500)
    grown = resident_bytes(pid) - before
    for stream in streams:
        stream.cancel()
    return grown / 500


@pytest.mark.asyncio
async def test_an_idle_stream_costs_little(home: Path, figures: Figures) -> None:
    """At most 20 KiB of the process's memory on top of what gRPC itself takes for one, which a bare server
    that does nothing but echo shows in the same run.
    """
    config = home / "lineside.toml"
    config.write_text(CONFIG)
    async with service(config) as served:
        channels = [served.channel() for _ in range(5)]
        whole = await cost_of_a_stream(served.pid, channels, DISPATCH_BATCH, frame(wire_call("echo")))
        await until_quiet(served)
        async with bare_server() as (pid, address):
            channels = [served.channel(target=address) for _ in range(5)]
            bare = await cost_of_a_stream(pid, channels, METHOD, b"x" * 100)
    figures.note("streams.idle_own", (whole - bare) / KIB, "KiB", target="<= 20")
    figures.note("streams.idle_with_grpc", whole / KIB, "KiB")
    assert whole - bare <= 20 * KIB


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [256, pytest.param(1024, marks=[pytest.mark.soak])])
async def test_a_slow_reader_holds_no_memory(size: int, home: Path, figures: Figures) -> None:
    """Answers of 64 KiB, 256 MiB (1 GiB) in all, read in fits and starts: the service's memory grows by at
    most 20 MiB, since it stops reading calls when answers are not taken.
    """
    config = home / "lineside.toml"
    config.write_text(CONFIG)
    count = size * 16
    async with service(config) as served:
        stream = open_stream(served.channel())
        await stream.write(frame(wire_call("blob", {"size": 65_000}, item_id="first")))
        await stream.read()
        before, peak, got, pause_at = served.rss(), 0, 0, 0

        async def send() -> None:
            for start in range(0, count, 64):
                calls = [wire_call("blob", {"size": 65_000}, item_id=str(start + n)) for n in range(64)]
                await stream.write(frame(*calls))
            await stream.done_writing()

        sending = asyncio.create_task(send())
        while True:
            if got >= pause_at:  # a fit: nothing is taken until all that can be buffered is
                pause_at += count // 16
                peak = max(peak, await settled_rss(served))
            raw = await stream.read()
            if raw is grpc.aio.EOF:
                break
            got += len(DispatchBatchResponse.FromString(raw).items)
            peak = max(peak, served.rss())
        await sending
        assert got == count
        await until_quiet(served)
    figures.note(f"streams.slow_reader_of_{size}_MiB", (peak - before) / MIB, "MiB", target="<= 20")
    assert peak - before <= 20 * MIB


async def settled_rss(served: ServiceProcess) -> int:
    """Memory once it no longer grows: the same attempts were made at two looks in a row."""
    made, seen = -1.0, 0.0
    while made != seen:  # each look lets the service have its turn
        made, seen = seen, await served.metric("dispatch_attempts_total", "blob")
    return served.rss()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("streams", "growth"), [(3_000, 10 * MIB), pytest.param(20_000, 50 * MIB, marks=pytest.mark.soak)]
)
async def test_streams_that_hang_up_leave_nothing_behind(
    streams: int, growth: int, home: Path, figures: Figures
) -> None:
    """Each is cancelled after its first item, while a slow tool (200 ms) runs for its second: memory stops
    growing, and streams, items and calls are back to none (R002).
    """
    config = home / "lineside.toml"
    config.write_text(CONFIG)
    async with service(config) as served:
        channel = served.channel()
        left = 0

        async def caller() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                stream = open_stream(channel)
                await stream.write(frame(wire_call("echo"), wire_call("slow")))
                await stream.read()
                stream.cancel()

        samples: list[int] = []
        for _ in range(10):
            left = streams // 10
            await asyncio.gather(*(caller() for _ in range(32)))
            samples.append(served.rss())
        await until_quiet(served)
    grown = samples[-1] - samples[1]
    figures.note(f"streams.growth_over_{streams}_cancelled", grown / MIB, "MiB", target=f"<= {growth // MIB}")
    assert grown <= growth
    assert statistics.mean(samples[-2:]) - statistics.mean(samples[1:3]) <= growth
