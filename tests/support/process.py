"""The real command `lineside-service serve` as a process of its own: started, measured, signalled, killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiohttp
import grpc
import msgspec
from google.rpc.status_pb2 import Status
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lineside.v1.calls_pb2_grpc import CallServiceStub
from lineside.v1.dispatch_pb2 import DispatchRequest, ToolAnswer, ToolCall
from lineside.v1.dispatch_pb2_grpc import DispatchServiceStub
from lineside.v1.errors_pb2 import DispatchError, ErrorKind
from tests.support.run_queue import waited_s

COMMAND = str(Path(sys.executable).with_name("lineside-service"))
START_S = 30.0
"""A start that takes longer than this has failed, whatever the machine does."""
_SERVING = re.compile(r"SERVING on (\S+): .* admin (\S+),")
_FAULTS = frozenset({"rpc.fault", "item.fault", "task.died", "ledger.task_failed", "ledger.work_failed"})
"""Events that a healthy service never logs, whatever its callers and tools do."""


@dataclass(frozen=True, slots=True)
class Started:
    """What a start took, in seconds.

    clock_s: by the clock; cpu_s: processor time; waited_s: how long its first thread, and this process's
    meanwhile, were ready to run and had no core.
    """

    clock_s: float
    cpu_s: float
    waited_s: float

    @property
    def own_s(self) -> float:
        """By the clock, less what others took: its own work, and whatever it waits for but a core."""
        return self.clock_s - self.waited_s


class ServiceProcess:
    """One process that said SERVING.

    address: its gRPC port; admin: URL of its admin port. started: from its birth to the health answer.
    """

    def __init__(self, process: asyncio.subprocess.Process, line: str, log: Path) -> None:
        found = _SERVING.search(line)
        assert found is not None, line
        self.address, self.admin = found.groups()
        self.pid = process.pid
        self.started = Started(0.0, 0.0, 0.0)
        self._process = process
        self._log = log
        self._channels: list[grpc.aio.Channel] = []

    def channel(self, *, target: str = "", options: Iterable[tuple[str, Any]] = ()) -> grpc.aio.Channel:
        """A channel with a connection of its own, closed with the process. target: a relay in front of it."""
        channel = grpc.aio.insecure_channel(
            target or self.address, options=[("grpc.use_local_subchannel_pool", 1), *options]
        )
        self._channels.append(channel)
        return channel

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.returncode is None

    def rss(self) -> int:
        """Bytes of memory it holds."""
        return resident_bytes(self.pid)

    def kill(self) -> None:
        """Kill it: SIGKILL."""
        self._process.kill()

    async def ended(self) -> int:
        """Its exit code, once it has ended."""
        async with asyncio.timeout(60):
            return await self._process.wait()

    async def terminated(self) -> tuple[int, float]:
        """Ask it to go (SIGTERM); its exit code and the seconds that took."""
        began = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        return await self.ended(), time.monotonic() - began

    async def is_serving(self) -> bool:
        """What its health service says."""
        health: Any = health_pb2_grpc.HealthStub(self.channel())
        reply = await health.Check(health_pb2.HealthCheckRequest(), timeout=5)
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    async def metrics(self) -> Mapping[str, float]:
        """Every sample of /metrics by its name and labels, as they are written there."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.admin}/metrics") as response:
            lines = [line for line in (await response.text()).splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    async def metric(self, name: str, tool: str = "") -> float:
        """The sum of a metric's samples, or of those of one tool."""
        label = f'gen_ai_tool_name="{tool}"'
        samples = (await self.metrics()).items()
        return sum(v for key, v in samples if key.partition("{")[0] == name and (not tool or label in key))

    async def until_metric(self, name: str, value: float) -> None:
        """Return once a metric has the value (AssertionError after 20 s)."""
        end = time.monotonic() + 20
        while (seen := await self.metric(name)) != value:  # each look lets the service have its turn
            assert time.monotonic() < end, f"{name} is {seen}, not {value}"

    def logged(self) -> list[dict[str, Any]]:
        """Its log so far."""
        return [
            json.loads(line)
            for line in self._log.read_text(errors="replace").splitlines()
            if line.startswith("{")
        ]

    def faults(self) -> list[dict[str, Any]]:
        """What it logged about faults of its own."""
        return [entry for entry in self.logged() if entry["event"] in _FAULTS]

    async def close(self) -> None:
        """Close the channels and kill what still runs."""
        for channel in self._channels:
            await channel.close(None)
        if self.is_running:
            self.kill()
            await self._process.wait()


def resident_bytes(pid: int) -> int:
    """VmRSS of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def cpu_s(pid: int) -> float:
    """Processor time that a process has used, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class OtherWork:
    """What else ran on this machine while a block did: cores, the processor time of others per second.

    pids: the processes that are not others, besides this one.
    """

    def __init__(self, *pids: int) -> None:
        self._pids = (os.getpid(), *pids)
        self._began_s = self._others_s = self.cores = 0.0

    def __enter__(self) -> Self:
        """Begin to look."""
        self._began_s, self._others_s = time.monotonic(), self._others()
        return self

    def __exit__(self, *_: object) -> None:
        """The block is over."""
        self.cores = (self._others() - self._others_s) / (time.monotonic() - self._began_s)

    def _others(self) -> float:
        fields = [int(field) for field in Path("/proc/stat").read_text().partition("\n")[0].split()[1:]]
        idle = fields[3] + fields[4]  # idle, iowait; guests are counted in user already
        return (sum(fields[:8]) - idle) / os.sysconf("SC_CLK_TCK") - sum(cpu_s(pid) for pid in self._pids)


@contextlib.asynccontextmanager
async def service(
    config: Path, *flags: str, env: Sequence[str] = (), may_fault: bool = False
) -> AsyncIterator[ServiceProcess]:
    """The service on a config file until the block ends; env: NAME=value pairs on top of this environment.

    Its log goes to a file beside the config. A fault of its own in there fails the test, unless may_fault.
    """
    log = config.with_suffix(f".{time.monotonic_ns()}.log")
    began, waited = time.monotonic(), waited_s(os.getpid())
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *("env", "LINESIDE__TELEMETRY__LOG_FORMAT=json", *env),
            *(COMMAND, "serve", "--config", str(config), *flags),
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
        )
    served: ServiceProcess | None = None
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START_S):
            line = (await process.stdout.readline()).decode()
        assert "SERVING" in line, log.read_text()
        served = ServiceProcess(process, line, log)
        assert await served.is_serving()
        served.started = Started(
            time.monotonic() - began,
            cpu_s(process.pid),
            waited_s(process.pid) + waited_s(os.getpid()) - waited,
        )
        yield served
        assert may_fault or not served.faults(), served.faults()
    finally:
        if served is not None:
            await served.close()
        elif process.returncode is None:
            process.kill()
            await process.wait()


@dataclass(frozen=True, slots=True)
class Ended:
    """How a call ended. answer: None when it was refused; error: None when the status had no details."""

    code: grpc.StatusCode
    answer: ToolAnswer | None = None
    error: DispatchError | None = None

    @property
    def kind(self) -> str:
        """The error's kind as a token, "ok" for an answer, "bare" for a status without details."""
        if self.answer is not None:
            return "ok"
        return kind_token(self.error) if self.error is not None else "bare"


def kind_token(error: DispatchError) -> str:
    """The kind's token, as in the error catalogue."""
    return ErrorKind.Name(error.kind).removeprefix("ERROR_KIND_").lower()


def wire_call(tool: str, arguments: Mapping[str, Any] | None = None, **fields: Any) -> ToolCall:
    """A ToolCall with JSON arguments."""
    return ToolCall(tool=tool, arguments_json=msgspec.json.encode(arguments or {}), **fields)


async def dispatched(channel: grpc.aio.Channel, call: ToolCall, timeout_s: float | None = 10) -> Ended:
    """One unary call to its end, whatever that is."""
    stub: Any = DispatchServiceStub(channel)
    try:
        response = await stub.Dispatch(DispatchRequest(call=call), timeout=timeout_s)
    except grpc.aio.AioRpcError as refusal:
        return Ended(refusal.code(), error=error_of(refusal))
    return Ended(grpc.StatusCode.OK, answer=response.answer)


def error_of(refusal: grpc.aio.AioRpcError) -> DispatchError | None:
    """The typed error of a refusal, None when gRPC itself made the status."""
    raw = dict(refusal.trailing_metadata() or ()).get("grpc-status-details-bin")
    return dispatch_error(Status.FromString(raw)) if isinstance(raw, bytes) else None


def dispatch_error(status: Status) -> DispatchError | None:
    """The typed error among a status's details."""
    for detail in status.details:
        if detail.Is(DispatchError.DESCRIPTOR):
            return DispatchError.FromString(detail.value)
    return None


def call_service(channel: grpc.aio.Channel) -> Any:
    """A CallService stub."""
    return CallServiceStub(channel)
