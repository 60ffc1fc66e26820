"""Collectors that are down, deaf or slow, while every call is sampled: callers must not notice."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.support.bad_collectors import KINDS, bad_collector
from tests.support.process import dispatched, service, wire_call

CONFIG = """
[server]
listen = "127.0.0.1:0"
[admin]
listen = "127.0.0.1:0"
[tools.fast]
target = "effect_tools:fast"
effect = "safe"
concurrency = 64
"""
CALLS = 600
AT_ONCE = 8
SLOWEST_S = 0.5
"""An export waits for 10 s; a caller that had to wait for one would be far beyond this."""


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", KINDS)
async def test_no_caller_waits_for_a_collector(tmp_path: Path, kind: str) -> None:
    """The queue is bounded, what does not fit is dropped and counted, exporting is off the loop (R102)."""
    (tmp_path / "effect_tools.py").write_text("async def fast() -> int:\n    return 1\n")
    config = tmp_path / "lineside.toml"
    config.write_text(CONFIG)
    async with bad_collector(kind) as endpoint:
        env = [
            *(f"OTEL_EXPORTER_OTLP_ENDPOINT={endpoint}", "OTEL_TRACES_SAMPLER=always_on"),
            *("OTEL_BSP_MAX_QUEUE_SIZE=64", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=32"),
            *("OTEL_BSP_SCHEDULE_DELAY=20", "OTEL_METRIC_EXPORT_INTERVAL=20"),
        ]
        async with service(config, env=env) as served:
            channel = served.channel()
            left = iter(range(CALLS))
            took: list[float] = []

            async def caller() -> None:
                for _ in left:
                    began = time.monotonic()
                    assert (await dispatched(channel, wire_call("fast"))).kind == "ok"
                    took.append(time.monotonic() - began)

            await asyncio.gather(*(caller() for _ in range(AT_ONCE)))
            assert max(took) < SLOWEST_S
            code, went_s = await served.terminated()
            lost = [line["spans"] for line in served.logged() if line["event"] == "telemetry.spans_lost"]
        assert (code, len(took)) == (0, CALLS)
        assert lost == [2 * CALLS]
        assert went_s < 3
