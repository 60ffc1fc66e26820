"""The wire half of `make bench`: the service beside a bare echo, over loopback, in turns.

Rates are of calls (items, for a batch). Two processors are shared by the server and its driver, so rates tell
of both; the server's own processor time per call, which the kernel counts, is steadier.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from lineside.v1.dispatch_pb2 import DispatchBatchRequest
from lineside.v1.dispatch_pb2_grpc import DispatchServiceStub
from tests.load.figure import Figure
from tests.load.sides import Side, bare_echo, driven, frame_file, ours, request_file, tool_call
from tests.support.otlp_receiver import span_receiver
from tests.support.process import ServiceProcess, cpu_s, resident_bytes

ROUNDS = 5
_FRAMES = (1, 8, 64)
_SIZES = {"100B": 100, "10KB": 10_000, "1MB": 1_000_000}
_TOOLS = (10, 1_000, 10_000)
_IN_FLIGHT_FRAMES = {1: 32, 8: 8, 64: 2}
_IDLE_STREAMS = 500
_STORED = 10_000

AnySide = Side | ServiceProcess


@dataclass(frozen=True, slots=True)
class Case:
    """What is driven at which side. calls: unary calls, or items of a batch, in one round."""

    name: str
    side: AnySide
    body: Path
    calls: int
    in_flight: int
    per_frame: int = 0


@dataclass(frozen=True, slots=True)
class Ratio:
    """One case's rate over another's, round by round."""

    name: str
    above: str
    below: str


async def wire_figures(progress: Callable[[str], None]) -> list[Figure]:
    """All of them. Needs build/bin/loaddriver."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with contextlib.AsyncExitStack() as stack:
            collector = (await stack.enter_async_context(span_receiver())).endpoint
            bare = await stack.enter_async_context(bare_echo())
            sqlite = await stack.enter_async_context(ours(folder / "sqlite", collector=collector))
            memory = await stack.enter_async_context(
                ours(folder / "memory", collector=collector, store="memory")
            )
            cases = [*_unary(folder, bare, sqlite, memory), *_frames(folder, bare, sqlite)]
            cases += _sizes(folder, bare, sqlite)
            figures = await _in_turns(cases, _ratios(), progress)
        async with contextlib.AsyncExitStack() as stack:
            body = request_file(folder, "plain", tool_call())
            cases = [
                Case(
                    f"tools_{count}",
                    await stack.enter_async_context(ours(folder / f"tools{count}", more_tools=count - 5)),
                    body,
                    4_000,
                    32,
                )
                for count in _TOOLS
            ]
            ratios = [
                Ratio(f"registry.ratio.{count}_tools", f"tools_{count}", "tools_10") for count in _TOOLS[1:]
            ]
            figures += await _in_turns(cases, ratios, progress)
        async with ours(folder / "fresh", store="memory") as fresh:
            figures += await _memory(folder, fresh, progress)
    return figures


def _unary(folder: Path, bare: Side, sqlite: ServiceProcess, memory: ServiceProcess) -> list[Case]:
    plain = request_file(folder, "unary", tool_call())
    keyed = request_file(folder, "keyed", tool_call(is_keyed=True))
    return [
        Case(f"{name}_c{in_flight}", side, body, calls, in_flight)
        for in_flight, calls in ((32, 6_000), (1, 1_500))
        for name, side, body in (
            ("bare.unary", bare, plain),
            ("unary", sqlite, plain),
            ("keyed_memory", memory, keyed),
            ("keyed_sqlite", sqlite, keyed),
        )
    ]


def _frames(folder: Path, bare: Side, sqlite: ServiceProcess) -> list[Case]:
    return [
        Case(
            f"{name}frame{count}",
            side,
            frame_file(folder, f"frame{count}", count),
            {1: 4_000, 8: 16_000, 64: 32_000}[count],
            _IN_FLIGHT_FRAMES[count],
            count,
        )
        for count in _FRAMES
        for name, side in (("bare.", bare), ("", sqlite))
    ]


def _sizes(folder: Path, bare: Side, sqlite: ServiceProcess) -> list[Case]:
    return [
        Case(
            f"{name}size_{label}",
            side,
            request_file(folder, label, tool_call(city="x" * size)),
            200 if size > 100_000 else 3_000,
            4 if size > 100_000 else 32,
        )
        for label, size in _SIZES.items()
        for name, side in (("bare.", bare), ("", sqlite))
    ]


def _ratios() -> list[Ratio]:
    unary = [
        Ratio(f"wire.ratio.{name}_c{n}", f"{name}_c{n}", f"bare.unary_c{n}")
        for n in (32, 1)
        for name in ("unary", "keyed_memory", "keyed_sqlite")
    ]
    ledger = [
        Ratio(f"wire.ledger_ratio.{store}_c{n}", f"keyed_{store}_c{n}", f"unary_c{n}")
        for n in (32, 1)
        for store in ("sqlite", "memory")
    ]
    frames = [Ratio(f"wire.ratio.frame{count}", f"frame{count}", "bare.unary_c32") for count in _FRAMES]
    frames += [Ratio(f"wire.ratio.frame{n}_to_bare_frame", f"frame{n}", f"bare.frame{n}") for n in _FRAMES]
    sizes = [Ratio(f"wire.ratio.size_{label}", f"size_{label}", f"bare.size_{label}") for label in _SIZES]
    return [*unary, *ledger, *frames, *sizes]


async def _in_turns(cases: list[Case], ratios: list[Ratio], progress: Callable[[str], None]) -> list[Figure]:
    """Every case once per round, so that a slow minute of the machine hits all of them; round 0 warms up."""
    rates = {case.name: Figure(f"wire.rate.{case.name}", "1/s") for case in cases}
    costs = {case.name: Figure(f"wire.server_cpu_us.{case.name}", "us") for case in cases}
    divided = [Figure(ratio.name, "1") for ratio in ratios]
    cheaper = [Figure(ratio.name.replace("ratio", "cpu_ratio", 1), "1") for ratio in ratios]
    first = itertools.count(1_000_000, 1_000_000)
    for number in range(ROUNDS + 1):
        for case in cases:
            progress(f"wire, round {number}/{ROUNDS}: {case.name}")
            rate, cpu_us = await _measured(case, next(first))
            if number:
                rates[case.name].rounds.append(rate)
                costs[case.name].rounds.append(cpu_us)
        if number:
            for figure, ratio in zip(divided, ratios, strict=True):
                figure.rounds.append(rates[ratio.above].rounds[-1] / rates[ratio.below].rounds[-1])
            for figure, ratio in zip(cheaper, ratios, strict=True):
                figure.rounds.append(costs[ratio.below].rounds[-1] / costs[ratio.above].rounds[-1])
    return [*divided, *cheaper, *rates.values(), *costs.values()]


async def _measured(case: Case, first: int) -> tuple[float, float]:
    """Calls per second, and the server's processor us per call; RuntimeError unless all were answered."""
    rounds = case.calls // (case.per_frame or 1)
    flags = ["-c", str(case.in_flight), "-n", str(rounds), "-first", str(first)]
    if case.per_frame:
        flags += ["-frame", str(case.per_frame), "-method", "/lineside.v1.DispatchService/DispatchBatch"]
    began_s = cpu_s(case.side.pid)
    report = await driven(case.side, case.body, *flags)
    used_s = cpu_s(case.side.pid) - began_s
    answered = report["answers"] if case.per_frame else report["codes"].get("OK", 0)
    if answered != case.calls:
        raise RuntimeError(f"{case.name}: {case.calls} calls, but {report}")
    return case.calls / (
        report["seconds"] if case.per_frame else report["drained"]
    ), used_s / case.calls * 1e6


async def _memory(folder: Path, fresh: ServiceProcess, progress: Callable[[str], None]) -> list[Figure]:
    """KiB that an idle batch stream and a stored answer take of a service with a memory store."""
    await driven(fresh, request_file(folder, "warm", tool_call()), "-n", "3000", "-c", "32")
    streams, answers = (
        Figure("wire.memory_kib.idle_stream", "KiB"),
        Figure("wire.memory_kib.stored_answer", "KiB"),
    )
    for number in range(ROUNDS):
        progress(f"memory, round {number + 1}/{ROUNDS}")
        before = resident_bytes(fresh.pid)
        streams.rounds.append((await _with_idle_streams(fresh) - before) / _IDLE_STREAMS / 1024)
        before = resident_bytes(fresh.pid)
        body = request_file(folder, "stored", tool_call(is_keyed=True))
        await driven(fresh, body, "-n", str(_STORED), "-c", "32", "-first", str(number * _STORED))
        answers.rounds.append((resident_bytes(fresh.pid) - before) / _STORED / 1024)
    return [streams, answers]


async def _with_idle_streams(fresh: ServiceProcess) -> int:
    """What the service holds with so many streams open, bytes; each has had one answer."""
    async with grpc.aio.insecure_channel(fresh.address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = DispatchServiceStub(channel)
        streams = [stub.DispatchBatch() for _ in range(_IDLE_STREAMS)]
        for number, stream in enumerate(streams):
            await stream.write(DispatchBatchRequest(calls=[tool_call(item=str(number))]))
            await stream.read()
        held = fresh.rss()
        for stream in streams:
            stream.cancel()
    return held
