"""`make collector`: what a slow or dead OTLP collector does to callers, at half the rate that can be carried.

Services that are alike but for their collector are driven at the same moments, each at its share of the rate:
what else the machine does then hits all of them alike. (One after another their p99 differed tenfold on a
shared machine, whatever their collector.) The group that records 1 % of traces and the one that records all
take turns. Traces and metrics go to the collector, metrics every two seconds. Beside p99 stands the service's
own processor time per call, which the kernel counts whatever else runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import grpc  # noqa: E402
import msgspec  # noqa: E402
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (  # noqa: E402
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (  # noqa: E402
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse  # noqa: E402
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (  # noqa: E402
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from tests.load.figure import Figure  # noqa: E402
from tests.load.sides import driven, ours, request_file, tool_call  # noqa: E402
from tests.support.bad_collectors import bad_collector  # noqa: E402
from tests.support.process import ServiceProcess, cpu_s  # noqa: E402

SHARES = {"1pct": "0.01", "all": "1.0"}
"""Traces that are recorded, and the sampler's argument."""
COLLECTORS = ("none", "healthy", "slow", "refusing")
"""none: nothing is exported, so nothing is recorded. slow: takes exports, never answers."""
_PEAK_CALLS, _WARM_CALLS = 8_000, 3_000


class _Spans(TraceServiceServicer):
    async def Export(self, request: object, context: object) -> Any:  # noqa: N802 - gRPC's name
        return ExportTraceServiceResponse()


class _Metrics(MetricsServiceServicer):
    async def Export(self, request: object, context: object) -> Any:  # noqa: N802 - gRPC's name
        return ExportMetricsServiceResponse()


@contextlib.asynccontextmanager
async def _healthy() -> AsyncIterator[str]:
    """One that takes everything, answers at once and keeps nothing."""
    server = grpc.aio.server()
    add_TraceServiceServicer_to_server(_Spans(), server)  # type: ignore[no-untyped-call]
    add_MetricsServiceServicer_to_server(_Metrics(), server)  # type: ignore[no-untyped-call]
    endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield endpoint
    finally:
        await server.stop(0)


@dataclass(frozen=True, slots=True)
class _Case:
    """A service and how it is called in the table."""

    name: str
    service: ServiceProcess


async def _groups(folder: Path, stack: contextlib.AsyncExitStack) -> list[list[_Case]]:
    """For each share of traces a service with each collector."""
    endpoints = {
        "none": "",
        "healthy": await stack.enter_async_context(_healthy()),
        "slow": await stack.enter_async_context(bad_collector("slow")),
        "refusing": await stack.enter_async_context(bad_collector("refusing")),
    }
    groups = []
    for share, argument in SHARES.items():
        group = []
        for name in COLLECTORS:
            env = (f"OTEL_TRACES_SAMPLER_ARG={argument}", "OTEL_METRIC_EXPORT_INTERVAL=2000")
            side = ours(folder / f"{name}-{share}", collector=endpoints[name], store="memory", env=env)
            group.append(_Case(f"{name}_{share}", await stack.enter_async_context(side)))
        groups.append(group)
    return groups


async def measured(rounds: int, seconds: float) -> tuple[float, list[Figure]]:
    """Calls per second of each service, and p99 of each (ms), its ratios to others of the same moments, and
    its processor time per call (us).
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with contextlib.AsyncExitStack() as stack:
            groups = await _groups(folder, stack)
            body = request_file(folder, "echo", tool_call())
            first = groups[0][0].service
            peaks = [await driven(first, body, "-c", "32", "-n", str(_PEAK_CALLS)) for _ in range(3)]
            rate = max(peak["codes"]["OK"] / peak["drained"] for peak in peaks) / 2 / len(COLLECTORS)
            cases = [case for group in groups for case in group]
            for case in cases:
                await driven(case.service, body, "-c", "8", "-n", str(_WARM_CALLS))
            p99s = {case.name: Figure(f"collector.p99_ms.{case.name}", "ms") for case in cases}
            costs = {case.name: Figure(f"collector.server_cpu_us.{case.name}", "us") for case in cases}
            for number in range(rounds):
                print(f"round {number + 1}/{rounds}", end="\033[K\r", flush=True)
                for group in groups:
                    driving = (_driven_once(case, body, rate, seconds) for case in group)
                    for case, (p99_ms, cpu_us) in zip(group, await asyncio.gather(*driving), strict=True):
                        p99s[case.name].rounds.append(p99_ms)
                        costs[case.name].rounds.append(cpu_us)
            return rate, [*_ratios(p99s), *p99s.values(), *costs.values()]


async def _driven_once(case: _Case, body: Path, rate: float, seconds: float) -> tuple[float, float]:
    """p99 (ms) and processor time per call (us) of one stretch; RuntimeError unless all were answered."""
    began_s = cpu_s(case.service.pid)
    report = await driven(case.service, body, "-rate", f"{rate:.0f}", "-for", f"{seconds}s")
    if set(report["codes"]) != {"OK"}:
        raise RuntimeError(f"{case.name}: {report}")
    return report["ok_ms"]["p99"], (cpu_s(case.service.pid) - began_s) / report["codes"]["OK"] * 1e6


def _ratios(figures: dict[str, Figure]) -> list[Figure]:
    """Each p99 over that without export, and each bad collector's over that of a healthy one."""
    pairs = [(f"{name}_{share}", f"none_{share}") for share in SHARES for name in COLLECTORS[1:]]
    pairs += [(f"{bad}_{share}", f"healthy_{share}") for share in SHARES for bad in COLLECTORS[2:]]
    return [
        Figure(
            f"collector.p99_ratio.{above}_to_{below}",
            "1",
            [a / b for a, b in zip(figures[above].rounds, figures[below].rounds, strict=True)],
        )
        for above, below in pairs
    ]


def _write(figures: Sequence[Figure]) -> None:
    path = ROOT / "build" / "bench.json"
    before = msgspec.json.decode(path.read_bytes()) if path.exists() else []
    kept = [one for one in before if not one["name"].startswith("collector.")]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(
        msgspec.json.format(msgspec.json.encode([*kept, *(figure.as_json() for figure in figures)]))
    )


async def main(rounds: int, seconds: float) -> None:
    """Measured, printed, and written among the figures of build/bench.json."""
    rate, figures = await measured(rounds, seconds)
    print(f"\033[Kopen loop, {rate:.0f} calls/s to each of four at once, {rounds} rounds of {seconds:g} s")
    for figure in figures:
        low, high = min(figure.rounds), max(figure.rounds)
        print(f"{figure.name:52} {figure.value:8.2f} {figure.unit:3} ({low:.2f} to {high:.2f})")
    _write(figures)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
