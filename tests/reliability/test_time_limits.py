"""Time limits on a real wire: who waits is answered in time, with the typed error, whatever the tool does."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path

import grpc
import pytest

from tests.reliability.figures import Figures
from tests.support.process import OtherWork, ServiceProcess, dispatched, service, wire_call

HEAD = """
[server]
listen = "127.0.0.1:0"
grace = "5s"
[admin]
listen = "127.0.0.1:0"
"""
HOSTILE = ("swallows", "returns_late", "cleans_up", "stuck", "own_timeout", "cancels_itself")
LIMIT_S = 0.2
LATE_S = 0.25


def tool(name: str, **settings: str) -> str:
    """A section of the config."""
    lines = [f"[tools.{name}]", f'target = "hostile_tools:{name}"', "breaker = { enabled = false }"]
    return "\n".join([*lines, *(f"{key} = {value}" for key, value in settings.items())]) + "\n"


class Impatient:
    """Callers of a tool that hangs, with deadlines between two bounds in seconds.

    latest_s: how long after its deadline the last one had its answer.
    """

    def __init__(self, served: ServiceProcess, shortest_s: float, longest_s: float) -> None:
        self._bounds_s = (shortest_s, longest_s)
        self._channel = served.channel()
        self._chance = random.Random(0)
        self._ends: Counter[str] = Counter()
        self.latest_s = 0.0

    @property
    def typed(self) -> float:
        """Share of the callers, in %, that were told more than a bare DEADLINE_EXCEEDED."""
        return 100 * self._ends["timeout"] / self._ends.total()

    async def call(self, calls: int, in_flight: int) -> None:
        """Make calls, so many at a time."""
        await self._channel.channel_ready()
        left = calls

        async def caller() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                timeout_s, began = self._chance.uniform(*self._bounds_s), time.monotonic()
                ended = await dispatched(self._channel, wire_call("hang"), timeout_s)
                self.latest_s = max(self.latest_s, time.monotonic() - began - timeout_s)
                assert ended.code is grpc.StatusCode.DEADLINE_EXCEEDED
                self._ends[ended.kind] += 1

        await asyncio.gather(*(caller() for _ in range(in_flight)))


async def typed_share(
    config: Path, figures: Figures, name: str, bounds_s: tuple[float, float], *, calls: int, in_flight: int
) -> None:
    """Note the share of timed-out calls that carry the typed error, and hold it to 99.9 %.

    The reply has a margin of 10-20 ms, and on cores that others use a process waits longer than that for its
    turn: such a round is repeated, and if all three are of that sort the last is held to 80 %.
    """
    async with service(config) as served:
        for _ in range(3):
            callers = Impatient(served, *bounds_s)
            with OtherWork(served.pid) as others:
                await callers.call(calls, in_flight)
            figures.note(name, callers.typed, "%", target=">= 99.9")
            figures.note(f"{name}_latest", 1000 * callers.latest_s, "ms after the deadline")
            if callers.typed >= 99.9 or others.cores < 0.15:
                break
        assert await served.metric("dispatch_slots_running", "hang") == 0
    assert callers.typed >= (99.9 if others.cores < 0.15 else 80)


@pytest.mark.asyncio
async def test_a_timed_out_call_carries_the_typed_error(home: Path, figures: Figures) -> None:
    """2,000 calls with 100-300 ms, 50 in flight: at least 99.9 % are told kind, outcome and attempts."""
    config = home / "lineside.toml"
    config.write_text(HEAD + tool("hang", concurrency="64"))
    await typed_share(config, figures, "timeouts.typed", (0.1, 0.3), calls=2_000, in_flight=50)


@pytest.mark.asyncio
@pytest.mark.parametrize("bounds_s", [(1.0, 3.0), pytest.param((10.0, 12.0), marks=pytest.mark.soak)])
async def test_a_long_deadline_is_not_believed_to_the_last_digit(
    bounds_s: tuple[float, float], home: Path, figures: Figures
) -> None:
    """A caller's gRPC rounds what it sends up to three digits, 100 ms for `timeout=10.01`: the typed error is
    there before the caller has gone all the same.
    """
    config = home / "lineside.toml"
    config.write_text(HEAD + tool("hang", concurrency="256"))
    name = f"timeouts.typed_{bounds_s[0]:g}_s"
    await typed_share(config, figures, name, bounds_s, calls=250, in_flight=250)


@pytest.mark.asyncio
async def test_hostile_tools_delay_nobody(home: Path, figures: Figures) -> None:
    """Answers come at most 250 ms after the attempt's limit; slots are accounted; a tool's own TimeoutError
    is no timeout of ours; good tools are as quick as ever; the process ends in time (R001, R018, R019).
    """
    config = home / "lineside.toml"
    sections = [tool(name, timeout=f'"{LIMIT_S * 1000:g}ms"', concurrency="64") for name in HOSTILE]
    config.write_text(HEAD + "".join(sections) + tool("quick") + tool("echo"))
    kinds: dict[str, Counter[str]] = {name: Counter() for name in HOSTILE}
    late_s: dict[str, float] = dict.fromkeys(HOSTILE, -LIMIT_S)
    async with service(config) as served:
        channel = served.channel()
        await channel.channel_ready()

        async def call(name: str) -> None:
            began = time.monotonic()
            ended = await dispatched(channel, wire_call(name), None)
            late_s[name] = max(late_s[name], time.monotonic() - began - LIMIT_S)
            kinds[name][ended.kind] += 1

        for _ in range(5):
            await asyncio.gather(*(call(name) for name in HOSTILE for _ in range(5)))
            for good in ("quick", "echo"):
                assert (await dispatched(channel, wire_call(good), 1)).kind == "ok"
        for name in ("swallows", "cleans_up", "stuck"):
            assert kinds[name] == {"timeout": 25}
            assert await served.metric("dispatch_slots_abandoned", name) == 25
        assert kinds["returns_late"] == {"timeout": 25}
        assert kinds["own_timeout"] == kinds["cancels_itself"] == {"internal": 25}
        for name in HOSTILE:
            assert await served.metric("dispatch_slots_running", name) == 0
            figures.note(f"late.{name}", 1000 * late_s[name], "ms", target="<= 250")
        assert await served.metric("dispatch_slots_abandoned", "returns_late") == 0
        assert max(late_s.values()) <= LATE_S, late_s
        assert late_s["own_timeout"] < 0
        code, took_s = await served.terminated()
        assert (code, took_s < 5 + 1) == (0, True)


@pytest.mark.asyncio
async def test_stuck_threads_stay_the_stuck_tools_matter(home: Path, figures: Figures) -> None:
    """200 calls to a function that holds its thread for an hour: each times out, or is refused as stuck, on
    time; another plain function runs; the process ends within its grace (R023).
    """
    config = home / "lineside.toml"
    config.write_text(HEAD + tool("stuck", timeout='"100ms"') + tool("quick"))
    ends: Counter[str] = Counter()
    async with service(config) as served:
        channel = served.channel()
        await channel.channel_ready()
        latest_s = 0.0
        for _ in range(25):
            began = time.monotonic()
            calls = (dispatched(channel, wire_call("stuck"), None) for _ in range(8))
            ends.update([ended.kind for ended in await asyncio.gather(*calls)])
            latest_s = max(latest_s, time.monotonic() - began - 0.1)
            assert (await dispatched(channel, wire_call("quick"), 1)).kind == "ok"
        assert ends == {"timeout": 16, "overloaded": 184}  # 2c of concurrency 8, then stuck
        assert await served.metric("dispatch_slots_usable", "stuck") == 0
        code, took_s = await served.terminated()
        assert code == 0
        figures.note("stuck.latest", 1000 * latest_s, "ms", target="<= 250")
        figures.note("stuck.exit", took_s, "s", target="<= 5")
        assert latest_s <= LATE_S
        assert took_s <= 5
