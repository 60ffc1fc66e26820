"""Many callers whose time ends at one moment: each is told more than that it is over."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import grpc
import pytest

from tests.reliability.figures import Figures
from tests.support.process import OtherWork, ServiceProcess, dispatched, service, wire_call

CONFIG = """
[server]
listen = "127.0.0.1:0"
grace = "5s"
[admin]
listen = "127.0.0.1:0"
[tools.hang]
target = "hostile_tools:hang"
breaker = { enabled = false }
concurrency = 1024
"""
ROUNDS = 4
TRIES = 4
QUIET_CORES = 0.15
"""What others may use of the machine for its figures to be the service's own."""


async def typed(served: ServiceProcess, calls: int, timeout_s: float, prefix: str) -> float:
    """Share of the calls, in %, that carry the typed error; prefix: of their keys, empty for none."""
    channel = served.channel()
    await channel.channel_ready()
    ends: Counter[str] = Counter()
    for turn in range(ROUNDS):
        keys = [f"{prefix}-{turn}-{n}" if prefix else None for n in range(calls)]
        requests = [wire_call("hang", idempotency_key=key) for key in keys]
        ended = await asyncio.gather(*(dispatched(channel, request, timeout_s) for request in requests))
        assert {end.code for end in ended} == {grpc.StatusCode.DEADLINE_EXCEEDED}
        ends.update(end.kind for end in ended)
    assert set(ends) <= {"timeout", "bare"}
    return 100 * ends["timeout"] / ends.total()


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["keyless", "keyed"])
@pytest.mark.parametrize(("calls", "timeout_s"), [(60, 0.3), (200, 1.0)])
async def test_calls_with_one_deadline_carry_the_typed_error(
    calls: int, timeout_s: float, kind: str, home: Path, figures: Figures
) -> None:
    """Sent at the same instant with the same deadline: at least 99.9 % are told kind, outcome and attempts.

    On cores that others use, callers and service wait for their turns longer than any margin: the best of a
    few tries counts, and if all of them had company, the figure is noted and held to nothing.
    """
    config = home / "lineside.toml"
    config.write_text(CONFIG)
    best = 0.0
    is_quiet = False
    async with service(config) as served:
        for turn in range(TRIES):
            with OtherWork(served.pid) as others:
                share = await typed(served, calls, timeout_s, f"key-{turn}" if kind == "keyed" else "")
            best = max(best, share)
            is_quiet = is_quiet or others.cores < QUIET_CORES
            if best >= 99.9:
                break
        figures.note(f"same_deadline.{kind}_{calls}_{timeout_s:g}_s", best, "%", target=">= 99.9")
    assert best >= 99.9 or not is_quiet
