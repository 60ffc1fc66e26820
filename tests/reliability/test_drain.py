"""SIGTERM on a real process: who is let finish, who is sent away, in which order, and how long it takes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.reliability.figures import Figures
from tests.reliability.monsters import DISPATCH_BATCH
from tests.support.effect_server import EffectServer
from tests.support.process import ServiceProcess, dispatched, error_of, kind_token, service, wire_call

GRACE_S = 10.0
CONFIG = """
[server]
listen = "127.0.0.1:0"
grace = "10s"
[admin]
listen = "127.0.0.1:0"
[tools.pay]
target = "effect_tools:pay"
concurrency = 64
[tools.echo]
target = "hostile_tools:echo"
effect = "safe"
"""
IDLE, CALLS = 20, 20


async def health_of(channel: grpc.aio.Channel) -> AsyncIterator[bool]:
    """Whether it serves, as often as that changes."""
    watch: Any = health_pb2_grpc.HealthStub(channel)
    async for answer in watch.Watch(health_pb2.HealthCheckRequest()):
        yield answer.status == health_pb2.HealthCheckResponse.SERVING


async def check_sent_away(stream: Any) -> None:
    """The stream has ended with the typed error, and says that none of its frames was taken."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    error = error_of(caught.value)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert error is not None
    assert kind_token(error) == "unavailable"
    assert dict(caught.value.trailing_metadata() or ())["lineside-frames-accepted"] == "0"


@pytest.mark.asyncio
async def test_sigterm_with_idle_streams_and_calls_in_flight(
    home: Path, effects: EffectServer, figures: Figures
) -> None:
    """Health says so first; 20 idle streams end at once with UNAVAILABLE and a reason; new calls are refused;
    20 calls in flight end well; the exit code is 0, within the grace (R007).
    """
    config = home / "lineside.toml"
    config.write_text(CONFIG)
    loop = asyncio.get_running_loop()
    async with service(config) as served:
        streams, channel, calls = served.channel(), served.channel(), served.channel()
        method: Any = streams.stream_stream(DISPATCH_BATCH)
        idle = [method() for _ in range(IDLE)]
        health = health_of(channel)
        assert await anext(health)
        effects.hold()
        paying = [
            asyncio.create_task(dispatched(calls, wire_call("pay", {"amount": n}), 30)) for n in range(CALLS)
        ]
        await effects.arrivals(CALLS)
        await served.until_metric("dispatch_batch_streams", IDLE)

        began = loop.time()
        ending = asyncio.create_task(served.terminated())
        assert not await anext(health)
        told_s = loop.time() - began
        for stream in idle:
            await check_sent_away(stream)
        streams_s = loop.time() - began
        refused = await dispatched(calls, wire_call("echo"), 5)
        assert (refused.code, refused.kind) == (grpc.StatusCode.UNAVAILABLE, "unavailable")
        assert not any(task.done() for task in paying)
        effects.release()
        assert [(await task).kind for task in paying] == ["ok"] * CALLS
        code, took_s = await ending
    assert code == 0
    assert effects.total == CALLS
    assert took_s < GRACE_S / 2
    assert streams_s < 1
    figures.note("drain.health_told_after", 1000 * told_s, "ms")
    figures.note("drain.idle_streams_closed_after", 1000 * streams_s, "ms", target="< 1000")
    figures.note("drain.exit_code", code, "", target="0")


@pytest.mark.asyncio
async def test_a_collector_that_is_a_black_hole_never_holds_the_exit(
    home: Path, effects: EffectServer, figures: Figures
) -> None:
    """10,000 spans wait for a collector that takes connections and never answers; a call in flight at SIGTERM
    ends well; then the process goes within a second, code 0, and counts the spans it lost (R101).
    """
    config = home / "lineside.toml"
    config.write_text(CONFIG)
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen(16)
        env = [
            f"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:{hole.getsockname()[1]}",
            "OTEL_BSP_MAX_QUEUE_SIZE=20000",
            "OTEL_BSP_SCHEDULE_DELAY=100",
            "OTEL_METRIC_EXPORT_INTERVAL=200",
        ]
        async with service(config, env=env) as served:
            await make_spans(served, 5_000)  # two each
            method: Any = served.channel().stream_stream(DISPATCH_BATCH)
            idle = [method() for _ in range(IDLE)]
            effects.hold()
            paying = asyncio.create_task(dispatched(served.channel(), wire_call("pay", {"amount": 1}), 30))
            await effects.arrivals(1)
            await served.until_metric("dispatch_batch_streams", IDLE)
            ending = asyncio.create_task(served.terminated())
            for stream in idle:
                await check_sent_away(stream)
            loop = asyncio.get_running_loop()
            released = loop.time()
            effects.release()
            assert (await paying).kind == "ok"
            code, _ = await ending
            took_s = loop.time() - released
            lost = [entry["spans"] for entry in served.logged() if entry["event"] == "telemetry.spans_lost"]
    assert code == 0
    assert lost[0] >= 9_000
    assert took_s <= 2  # a second, and this machine's scheduling
    figures.note("drain.exit_with_a_dead_collector", took_s, "s after the last call", target="<= 1")
    figures.note("drain.spans_counted_as_lost", lost[0], "spans", combine=min)


async def make_spans(served: ServiceProcess, calls: int) -> None:
    """So many good calls."""
    channel, left = served.channel(), calls

    async def caller() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            assert (await dispatched(channel, wire_call("echo"))).kind == "ok"

    await asyncio.gather(*(caller() for _ in range(8)))
