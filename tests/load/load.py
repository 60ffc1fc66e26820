"""`make load`: ghz against the service and a bare echo, in turns, with the configs in tests/load/ghz.

Prints one table and writes ghz's own reports to build/load: HTML of a first run that warms up, JSON of the
last one in the table. The service samples one trace in a hundred and exports it over OTLP to a receiver in
this process. Exits 1 if a call ended with a status that the config does not expect, a connection failed, or
the counts of ghz and of the service differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import msgspec  # noqa: E402
from google.protobuf.descriptor import FileDescriptor  # noqa: E402
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet  # noqa: E402

from lineside.v1 import dispatch_pb2  # noqa: E402
from tests.load.sides import BIN, HOME, Side, bare_echo, ours  # noqa: E402
from tests.support.otlp_receiver import span_receiver  # noqa: E402
from tests.support.process import ServiceProcess  # noqa: E402

REPORTS = ROOT / "build" / "load"
CONFIGS = ("unary", "keyed", "mixed", "batch", "burst")
_BROKEN = re.compile(r"code = (Unavailable|Canceled|Unknown|DeadlineExceeded)|connection")
_RUN_S = 120.0
"""A run of ghz that takes longer than this has failed."""


@dataclass(frozen=True, slots=True)
class Run:
    """What ghz reported of one config at one side, and what the config expects of it. p50, p99: ms."""

    side: str
    rate: float
    p50: float
    p99: float
    codes: str
    expected: str
    faults: tuple[str, ...]

    @property
    def row(self) -> str:
        """Its line of the table, without the first columns."""
        return f"{self.rate:9.0f} {self.p50:8.2f} {self.p99:8.2f}"


async def main(rounds: int) -> int:
    """Run every config at both sides, so many times in turns; returns the exit code."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    _write_protoset(REPORTS / "lineside.protoset")
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        async with contextlib.AsyncExitStack() as stack:
            collector = (await stack.enter_async_context(span_receiver())).endpoint
            bare = await stack.enter_async_context(bare_echo())
            service = await stack.enter_async_context(ours(Path(folder) / "home", collector=collector))
            for name in CONFIGS:
                await _ghz(name, bare, "html", REPORTS / f"{name}-bare.html")
                await _ghz(name, service, "html", REPORTS / f"{name}-ours.html")
            print(
                f"{'config':8} {'side':5} {'1/s':>9} {'p50 ms':>8} {'p99 ms':>8} {'ratio':>6}  status codes"
            )
            for _ in range(rounds):
                for name in CONFIGS:
                    below = await _run(name, "bare", bare)
                    faults += _shown(name, below, below)
                    faults += _shown(name, await _run_ours(name, service), below)
    print(f"\nreports: {REPORTS.relative_to(ROOT)}/*.html, *.json")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def _shown(name: str, run: Run, below: Run) -> list[str]:
    print(f"{name:8} {run.side:5} {run.row} {run.rate / below.rate:6.2f}  {run.codes}", flush=True)
    wrong = [f"{run.codes} instead of {run.expected}"] if run.codes != run.expected else []
    return [f"{name}, {run.side}: {fault}" for fault in (*wrong, *run.faults)]


async def _run_ours(name: str, service: ServiceProcess) -> Run:
    """As `_run`, and the service must have counted as many answers as the config says."""
    before = await _answered(service)
    run = await _run(name, "ours", service)
    counted, expected = await _answered(service) - before, int(_config(name)["tags"]["calls"])
    if counted == expected:
        return run
    fault = f"the service counted {counted:.0f} answers, {expected} were asked for"
    return Run(run.side, run.rate, run.p50, run.p99, run.codes, run.expected, (*run.faults, fault))


async def _answered(service: ServiceProcess) -> float:
    samples = (await service.metrics()).items()
    return sum(
        value for key, value in samples if key.startswith("dispatch_calls_total{") and 'kind="ok"' in key
    )


async def _run(name: str, label: str, side: Side | ServiceProcess) -> Run:
    """One run of ghz, judged."""
    config, out = _config(name), REPORTS / f"{name}-{label}.json"
    await _ghz(name, side, "json", out)
    report: Mapping[str, Any] = msgspec.json.decode(out.read_bytes())
    codes: Mapping[str, int] = report["statusCodeDistribution"]
    faults = [
        f"{count} x {text}" for text, count in report["errorDistribution"].items() if _BROKEN.search(text)
    ]
    if not sum(codes.values()) == report["count"] == config["total"]:
        faults.append(f"{config['total']} calls, ghz counted {report['count']}, with statuses {codes}")
    ms = {one["percentage"]: one["latency"] / 1e6 for one in report["latencyDistribution"]}
    told = ", ".join(f"{code} {codes[code]}" for code in sorted(codes, key=lambda code: (code != "OK", code)))
    return Run(label, report["rps"], ms[50], ms[99], told, config["tags"][label], tuple(faults))


async def _ghz(name: str, side: Side | ServiceProcess, form: str, out: Path) -> None:
    """Run ghz to its end; RuntimeError when it fails itself."""
    process = await asyncio.create_subprocess_exec(
        *(str(BIN / "ghz"), "--config", str(HOME.with_name("ghz") / f"{name}.json")),
        *("--protoset", str(REPORTS / "lineside.protoset"), "-O", form, "-o", str(out), side.address),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_RUN_S):
            _, error = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise RuntimeError(f"ghz, {name}: {error.decode()}")


def _config(name: str) -> dict[str, Any]:
    config: dict[str, Any] = msgspec.json.decode((HOME.with_name("ghz") / f"{name}.json").read_bytes())
    return config


def _write_protoset(file: Path) -> None:
    """What ghz needs to know of the contract, from the generated stubs: no protoc, no import paths."""
    found: dict[str, FileDescriptorProto] = {}

    def add(descriptor: FileDescriptor) -> None:
        for needed in descriptor.dependencies:
            add(needed)
        proto = FileDescriptorProto()
        descriptor.CopyToProto(proto)
        found.setdefault(descriptor.name, proto)

    add(dispatch_pb2.DESCRIPTOR)
    file.write_bytes(FileDescriptorSet(file=found.values()).SerializeToString())


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else 3)))
