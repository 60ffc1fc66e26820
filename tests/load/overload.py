"""`make overload`: ten times what the service can take, in an open loop, and what becomes of everybody.

Two sorts of capacity. A tool's: 128 slots, each for two seconds, so 64 calls a second on any machine.
And the machine's: a flood of calls that cost nothing but the service's own work, which shares two cores with
the driver. There refusing costs as much as answering, so gRPC turns away, without a word, what is too much.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import grpc  # noqa: E402
import msgspec  # noqa: E402

from lineside.v1.calls_pb2 import GetCallRequest  # noqa: E402
from lineside.v1.calls_pb2_grpc import CallServiceStub  # noqa: E402
from lineside.v1.tools_pb2 import ListToolsRequest  # noqa: E402
from lineside.v1.tools_pb2_grpc import ToolServiceStub  # noqa: E402
from tests.load.figure import Figure  # noqa: E402
from tests.load.sides import driven, ours, request_file, tool_call  # noqa: E402
from tests.support.process import ServiceProcess, dispatched  # noqa: E402

SLOTS, WAITING, TAKES_MS = 128, 64, 2_000
"""Of the tool `works` in home/lineside.toml, and the bound of every tool's waiting list."""
TIMES = 10
_STEADY_S = 8
_PEAK_ROUNDS = 4
_PROBE_EVERY_S = 0.1


@dataclass(slots=True)
class Probes:
    """Control calls beside the load: what each took, seconds, and those that failed."""

    took_s: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    async def run(self, service: ServiceProcess) -> None:
        """Ask for health, the tools and one call in turn, until cancelled."""
        channel = service.channel()
        tools, calls = ToolServiceStub(channel), CallServiceStub(channel)
        known = await dispatched(channel, tool_call(is_keyed=True))
        if known.answer is None:
            raise RuntimeError("no call before the load")
        call_id = known.answer.call_id
        asks: list[tuple[str, Callable[[], Awaitable[Any]]]] = [
            ("health", service.is_serving),
            ("ListTools", lambda: tools.ListTools(ListToolsRequest(), timeout=5)),
            ("GetCall", lambda: calls.GetCall(GetCallRequest(call_id=call_id), timeout=5)),
        ]
        while True:
            for name, ask in asks:
                began = time.monotonic()
                try:
                    await ask()
                except grpc.aio.AioRpcError as error:
                    self.failed.append(f"{name}: {error.code().name}")
                self.took_s.append(time.monotonic() - began)
                await asyncio.sleep(_PROBE_EVERY_S)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an overload gave. refusals that carried no RetryInfo: hintless."""

    figures: list[Figure]
    codes: dict[str, int]
    hintless: int
    failed_probes: list[str]

    def value(self, name: str) -> float:
        """A figure by its name after `overload.`."""
        return next(figure.value for figure in self.figures if figure.name == f"overload.{name}")


async def overloaded(folder: Path, seconds: float) -> Outcome:
    """Ten times a tool's capacity for so long."""
    async with ours(folder / "slots") as service:
        body = request_file(folder, "works", tool_call("works", milliseconds=TAKES_MS))
        full = SLOTS + WAITING
        peak = await driven(service, body, "-c", str(full), "-n", str(full * _PEAK_ROUNDS))
        peak_rate = peak["codes"]["OK"] / peak["drained"]
        capacity = SLOTS * 1000 / TAKES_MS
        usual = await driven(service, body, "-rate", str(0.8 * capacity), "-for", f"{_STEADY_S}s")
        before = service.rss()
        probes = Probes()
        probing = asyncio.create_task(probes.run(service))
        flags = ("-rate", str(TIMES * capacity), "-for", f"{seconds}s")
        report = await driven(service, body, *flags, limit_s=seconds + 60)
        probing.cancel()
        await asyncio.wait([probing])
        if not probing.cancelled():
            raise RuntimeError("the probes ended early") from probing.exception()
        recovered_s = await _normal_again(service)
        return Outcome(
            [
                _figure("goodput_ratio", "1", report["codes"].get("OK", 0) / report["drained"] / peak_rate),
                _figure("refused_p99_ms", "ms", report["refused_ms"]["p99"]),
                _figure("admitted_p99_ratio", "1", report["ok_ms"]["p99"] / usual["ok_ms"]["p99"]),
                _figure("memory_mib", "MiB", (service.rss() - before) / 2**20),
                _figure("control_p99_ms", "ms", sorted(probes.took_s)[int(0.99 * len(probes.took_s))] * 1000),
                _figure("recovery_s", "s", recovered_s),
                _figure("offered_rate", "1/s", report["sent"] / report["seconds"]),
                _figure("driver_behind_ms", "ms", report["behind_ms"]),
            ],
            report["codes"],
            report["hintless"],
            probes.failed,
        )


async def flooded(folder: Path, seconds: float) -> Outcome:
    """Ten times what the machine can carry, with calls that end at once; deadline 20 s.

    That is ten times what `max_pending_rpcs` makes a call wait on two undisturbed cores.
    """
    async with ours(folder / "flood") as service:
        body = request_file(folder, "echo", tool_call())
        peak = await driven(service, body, "-c", "32", "-n", "15000")
        peak_rate = peak["codes"]["OK"] / peak["drained"]
        before = service.rss()
        flags = ("-rate", str(TIMES * peak_rate), "-for", f"{seconds}s", "-deadline", "20s")
        report = await driven(service, body, *flags, limit_s=seconds + 60)
        recovered_s = await _normal_again(service)
        return Outcome(
            [
                _figure(
                    "flood.goodput_ratio", "1", report["codes"].get("OK", 0) / report["drained"] / peak_rate
                ),
                _figure("flood.offered_ratio", "1", report["sent"] / report["drained"] / peak_rate),
                _figure("flood.memory_mib", "MiB", (service.rss() - before) / 2**20),
                _figure("flood.recovery_s", "s", recovered_s),
            ],
            report["codes"],
            report["hintless"],
            [],
        )


async def _normal_again(service: ServiceProcess) -> float:
    """Seconds until ten calls in a row are answered within 50 ms each; RuntimeError after 60."""
    channel, began, quick = service.channel(), time.monotonic(), 0
    while quick < 10:
        sent = time.monotonic()
        if sent - began > 60:
            raise RuntimeError("not normal again after 60 s")
        ended = await dispatched(channel, tool_call())
        quick = quick + 1 if ended.kind == "ok" and time.monotonic() - sent < 0.05 else 0
    return time.monotonic() - began


def _figure(name: str, unit: str, value: float) -> Figure:
    return Figure(f"overload.{name}", unit, [value])


async def main(seconds: float) -> None:
    """Both, printed, and written among the figures of build/bench.json."""
    with tempfile.TemporaryDirectory() as name:
        outcomes = [await overloaded(Path(name), seconds), await flooded(Path(name), min(seconds, 20))]
    for outcome in outcomes:
        for figure in outcome.figures:
            print(f"{figure.name:32} {figure.value:10.2f} {figure.unit}")
        failed = f", control calls that failed: {outcome.failed_probes}" if outcome.failed_probes else ""
        print(f"{outcome.codes}, refusals without RetryInfo: {outcome.hintless}{failed}\n")
    measured = [figure.as_json() for outcome in outcomes for figure in outcome.figures]
    path = ROOT / "build" / "bench.json"
    before = msgspec.json.decode(path.read_bytes()) if path.exists() else []
    kept = [one for one in before if not one["name"].startswith("overload.")]
    path.write_bytes(msgspec.json.format(msgspec.json.encode([*kept, *measured])))


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
