"""Time limits on a real wire: who waits is answered in time, with the typed error, whatever the tool does."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from tests.reliability.figures import Figures
from tests.support.process import ServiceProcess, dispatched, service, wire_call
from tests.support.run_queue import RunQueue

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
TRIES = 3
MOST_REPEATED = 5
"""So many times the calls are made at most."""


def tool(name: str, **settings: str) -> str:
    """A section of the config."""
    lines = [f"[tools.{name}]", f'target = "hostile_tools:{name}"', "breaker = { enabled = false }"]
    return "\n".join([*lines, *(f"{key} = {value}" for key, value in settings.items())]) + "\n"


def margin_s(timeout_s: float) -> float:
    """How long before its caller's deadline an answer is due: 20 ms, or a tenth of a short deadline."""
    return min(0.02, timeout_s / 10)


@dataclass(frozen=True, slots=True)
class TimedOut:
    """One call that ran into its deadline. began, ended: by the loop's clock; is_typed: it was told why."""

    began: float
    timeout_s: float
    ended: float
    is_typed: bool

    @property
    def late_s(self) -> float:
        """How long after its deadline the caller had its answer."""
        return self.ended - self.began - self.timeout_s

    def lost_s(self, queue: RunQueue) -> float:
        """Seconds without a core on the way to the service, and between the answer's due and the deadline."""
        margin, deadline = margin_s(self.timeout_s), self.began + self.timeout_s
        return queue.lost_s(self.began, self.began + margin) + queue.lost_s(deadline - margin, deadline)

    def says_something(self, queue: RunQueue) -> bool:
        """Unless it had no typed error, and waits for a core took half the margin for that."""
        return self.is_typed or self.lost_s(queue) < margin_s(self.timeout_s) / 2


class Impatient:
    """Callers of a tool that hangs, with deadlines between two bounds in seconds."""

    def __init__(self, served: ServiceProcess, shortest_s: float, longest_s: float) -> None:
        self._bounds_s = (shortest_s, longest_s)
        self._channel = served.channel()
        self._chance = random.Random(0)

    async def call(self, calls: int, in_flight: int) -> list[TimedOut]:
        """Make calls, so many at a time."""
        await self._channel.channel_ready()
        loop, made = asyncio.get_running_loop(), list[TimedOut]()
        left = calls

        async def caller() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                timeout_s, began = self._chance.uniform(*self._bounds_s), loop.time()
                call = wire_call("hangs_on", {"timeout_s": timeout_s})
                ended = await dispatched(self._channel, call, timeout_s)
                assert ended.code is grpc.StatusCode.DEADLINE_EXCEEDED
                made.append(TimedOut(began, timeout_s, loop.time(), ended.kind == "timeout"))

        await asyncio.gather(*(caller() for _ in range(in_flight)))
        return made


async def typed_share(
    config: Path, figures: Figures, name: str, bounds_s: tuple[float, float], *, calls: int, in_flight: int
) -> None:
    """Hold every timed-out call to its margin, and the share of those with the typed error to 99.9 %.

    The share must be reached in one of TRIES measurements: a machine that stands still for 20 ms, which no
    account in it shows, costs all the calls of that moment. What comes late by our doing does so each time.
    """
    for _ in range(TRIES):
        bare, judged, made = await measured(config, figures, name, bounds_s, calls=calls, in_flight=in_flight)
        if len(bare) <= calls / 1000 and len(judged) >= calls:
            return
    assert len(judged) >= calls, f"only {len(judged)} of {made} calls had cores"
    pytest.fail(f"{len(bare)} of {len(judged)} calls, of {made} made: {bare[:5]}")


async def measured(
    config: Path, figures: Figures, name: str, bounds_s: tuple[float, float], *, calls: int, in_flight: int
) -> tuple[list[TimedOut], list[TimedOut], int]:
    """The calls without the typed error, those that can be judged, and how many were made.

    What the tool is given ends that margin before its caller does, on the busiest machine too: no time is
    measured for that. The typed error must then be there within those 10-20 ms, and on cores that others use
    a process may wait longer than that for its turn. A call without it whose processes had to wait, by the
    kernel's account, is made again, so that the share is always that of as many calls.
    """
    judged: list[TimedOut] = []
    made = 0
    async with service(config) as served:
        callers = Impatient(served, *bounds_s)
        while len(judged) < calls and made < MOST_REPEATED * calls:
            with RunQueue(served.pid) as queue:
                ended = await callers.call(calls - len(judged), in_flight)
                # The answer says as well that it has had a core since, so that its waits are counted.
                assert await served.metric("dispatch_slots_running", "hangs_on") == 0
            made += len(ended)
            judged += [call for call in ended if call.says_something(queue)]
            figures.note(f"{name}_latest", 1000 * max(call.late_s for call in ended), "ms after the deadline")
        given = [entry for entry in served.logged() if entry["event"] == "given"]
    margin = min((one["timeout_s"] - one["left_s"]) / margin_s(one["timeout_s"]) for one in given)
    figures.note(f"{name}_margin", margin, "margins", target=">= 1", combine=min)
    figures.note(
        name, 100 * sum(call.is_typed for call in judged) / max(1, len(judged)), "%", target=">= 99.9"
    )
    figures.note(f"{name}_no_core", 100 * (1 - len(judged) / made), "%")
    assert len(given) >= made / 2
    assert margin >= 1
    return [call for call in judged if not call.is_typed], judged, made


@pytest.mark.asyncio
async def test_a_timed_out_call_carries_the_typed_error(home: Path, figures: Figures) -> None:
    """2,000 calls with 100-300 ms, 50 in flight: at least 99.9 % are told kind, outcome and attempts."""
    config = home / "lineside.toml"
    config.write_text(HEAD + tool("hangs_on", concurrency="64"))
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
    config.write_text(HEAD + tool("hangs_on", concurrency="256"))
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
