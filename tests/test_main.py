"""The service as a real process: served, called, drained, reloaded, killed, and its words when it cannot."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from lineside.v1 import dispatch_pb2, dispatch_pb2_grpc
from lineside.v1.errors_pb2 import Source

CACHE = Path(__file__).resolve().parent.parent / "build" / "pycache"
COMMAND = (
    *("env", "-u", "PYTHONDONTWRITEBYTECODE", f"PYTHONPYCACHEPREFIX={CACHE}"),
    str(Path(sys.executable).with_name("lineside-service")),
)
"""The command with cached bytecode, as an installed one has: without, each start compiles for seconds."""
TOOLS = """
from __future__ import annotations

import asyncio
import time


async def add(a: int, b: int) -> int:
    return a + b


async def slow(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "done"


async def stubborn() -> str:
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass


def stuck() -> str:
    time.sleep(3600)
    return "never"
"""
CONFIG = """
[server]
listen = "127.0.0.1:0"
grace = "5s"
[admin]
listen = "127.0.0.1:0"
[telemetry]
log_format = "json"
[tools.add]
target = "process_tools:add"
effect = "safe"
[tools.book]
target = "process_tools:add"
[tools.slow]
target = "process_tools:slow"
[tools.stubborn]
target = "process_tools:stubborn"
timeout = "100ms"
[tools.stuck]
target = "process_tools:stuck"
timeout = "100ms"
"""
START_S = 30.0


class Running:
    """One process of the service and a channel to it."""

    def __init__(self, process: asyncio.subprocess.Process, line: str) -> None:
        self.process = process
        self.line = line
        found = re.search(r"SERVING on (\S+): .* admin (\S+),", line)
        assert found is not None
        self.address, self.admin = found.groups()
        self.channel = grpc.aio.insecure_channel(self.address)

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        *,
        key: str | None = None,
        token: str = "",
        timeout_s: float = 20,
    ) -> dispatch_pb2.ToolAnswer:
        """Dispatch one call."""
        call = dispatch_pb2.ToolCall(
            tool=tool, arguments_json=json.dumps(arguments).encode(), idempotency_key=key
        )
        stub = dispatch_pb2_grpc.DispatchServiceStub(self.channel)
        metadata = [("authorization", f"Bearer {token}")] if token else []
        request = dispatch_pb2.DispatchRequest(call=call)
        response = await stub.Dispatch(request, timeout=timeout_s, metadata=metadata)
        return response.answer

    async def begun(self, tool: str, arguments: dict[str, Any]) -> asyncio.Task[dispatch_pb2.ToolAnswer]:
        """A call that is on the road when this returns: one sent after it has been answered."""
        await self.call("add", {"a": 1, "b": 1})  # connects
        task = asyncio.create_task(self.call(tool, arguments))
        await asyncio.sleep(0)
        await self.call("add", {"a": 1, "b": 1})
        return task

    async def code(self, tool: str, arguments: dict[str, Any], **how: Any) -> grpc.StatusCode:
        """The status of a call that is refused."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.call(tool, arguments, **how)
        return caught.value.code()

    async def logged(self, event: str) -> dict[str, Any]:
        """The next log line of that event; every line on the way must be JSON."""
        assert self.process.stderr is not None
        async with asyncio.timeout(START_S):
            while line := await self.process.stderr.readline():
                entry: dict[str, Any] = json.loads(line)
                if entry["event"] == event:
                    return entry
        raise AssertionError(f"it ended without logging {event}")

    async def ended(self) -> tuple[int, float]:
        """Exit code, and how long it took from now (seconds)."""
        began = time.monotonic()
        assert self.process.stderr is not None
        async with asyncio.timeout(START_S):
            while await self.process.stderr.readline():
                pass
            return await self.process.wait(), time.monotonic() - began

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)


Start = Callable[..., Awaitable[Running]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with tools and a config."""
    (tmp_path / "process_tools.py").write_text(TOOLS)
    (tmp_path / "lineside.toml").write_text(CONFIG)
    return tmp_path


@contextlib.asynccontextmanager
async def starting(home: Path) -> AsyncIterator[Start]:
    """Start processes; what still runs at the end is killed."""
    running: list[Running] = []

    async def start(*flags: str, env: Sequence[str] = ()) -> Running:
        process = await spawn(home, *flags, env=env)
        assert process.stdout is not None
        assert process.stderr is not None
        async with asyncio.timeout(START_S):
            line = (await process.stdout.readline()).decode()
        if "SERVING" not in line:
            raise AssertionError((await process.stderr.read()).decode())
        running.append(Running(process, line))
        return running[-1]

    try:
        yield start
    finally:
        for each in running:
            await each.channel.close()
            if each.process.returncode is None:
                each.process.kill()
                await each.process.communicate()


async def spawn(home: Path, *flags: str, env: Sequence[str] = ()) -> asyncio.subprocess.Process:
    """The command itself; `env` are NAME=value pairs on top of this process's environment."""
    return await asyncio.create_subprocess_exec(
        *("env", *env, *COMMAND, "serve", "--config", str(home / "lineside.toml"), *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def refused(home: Path, *flags: str, env: Sequence[str] = ()) -> tuple[int, str]:
    """Exit code and stderr of a start that fails."""
    process = await spawn(home, *flags, env=env)
    async with asyncio.timeout(START_S):
        out, err = await process.communicate()
    assert out == b""
    assert process.returncode is not None
    return process.returncode, err.decode()


async def get(url: str) -> tuple[int, str]:
    """Status and text of a page."""
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


@pytest.mark.asyncio
async def test_it_serves_and_a_key_outlives_kill_9(home: Path) -> None:
    """One line tells where; an acknowledged keyed answer is replayed by the next process on the same file."""
    async with starting(home) as start:
        first = await start()
        assert "5 tools" in first.line
        answer = await first.call("book", {"a": 1, "b": 2}, key="k")
        assert answer.result_json == b"3"
        assert answer.source == Source.SOURCE_EXECUTED
        assert (await get(f"{first.admin}/livez"))[0] == 200
        assert (await get(f"{first.admin}/readyz"))[0] == 200
        status, metrics = await get(f"{first.admin}/metrics")
        assert status == 200
        assert 'dispatch_calls_total{gen_ai_tool_name="book",kind="ok"' in metrics
        assert "rpc_server_call_duration_seconds_count" in metrics
        first.signal(signal.SIGKILL)
        await first.process.wait()
        second = await start()
        again = await second.call("book", {"a": 1, "b": 2}, key="k")
        assert (again.result_json, again.call_id) == (b"3", answer.call_id)
        assert again.source == Source.SOURCE_REPLAYED


@pytest.mark.asyncio
async def test_sigterm_drains(home: Path) -> None:
    """Calls in flight end well, new ones are refused, and the exit code is 0."""
    async with starting(home) as start:
        service = await start()
        slow = await service.begun("slow", {"seconds": 1})
        service.signal(signal.SIGTERM)
        assert (await service.logged("drain.begun"))["in_flight"] == 1
        assert await service.code("add", {"a": 1, "b": 1}) is grpc.StatusCode.UNAVAILABLE
        assert (await slow).result_json == b'"done"'
        code, took_s = await service.ended()
        assert code == 0
        assert took_s < 3


@pytest.mark.asyncio
async def test_the_grace_ends_a_call_with_its_outcome(home: Path) -> None:
    """What does not fit the grace is told UNKNOWN, and the process is gone within a second after it."""
    async with starting(home) as start:
        service = await start(env=["LINESIDE__SERVER__GRACE=500ms"])
        slow = await service.begun("slow", {"seconds": 60})
        service.signal(signal.SIGTERM)
        began = time.monotonic()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await slow
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert (await service.ended())[0] == 0
        assert time.monotonic() - began < 0.5 + 1 + 0.5  # grace, a second, and this machine's scheduling


@pytest.mark.asyncio
async def test_a_second_signal_ends_it_at_once(home: Path) -> None:
    """The exit code says which."""
    async with starting(home) as start:
        service = await start()
        slow = await service.begun("slow", {"seconds": 60})
        service.signal(signal.SIGINT)
        await service.logged("drain.begun")
        service.signal(signal.SIGTERM)
        await service.logged("drain.cut_short")
        code, took_s = await service.ended()
        assert (code, took_s < 1) == (143, True)
        with pytest.raises(grpc.aio.AioRpcError):
            await slow


@pytest.mark.asyncio
async def test_tools_that_never_end_do_not_hold_the_exit(home: Path) -> None:
    """A swallowed cancel and a thread stuck for an hour are left behind (R023)."""
    async with starting(home) as start:
        service = await start(env=["LINESIDE__SERVER__GRACE=200ms"])
        assert await service.code("stubborn", {}) is grpc.StatusCode.DEADLINE_EXCEEDED
        assert await service.code("stuck", {}) is grpc.StatusCode.DEADLINE_EXCEEDED
        service.signal(signal.SIGTERM)
        code, took_s = await service.ended()
        assert code == 0
        assert took_s < 2


@pytest.mark.asyncio
async def test_sighup_takes_a_config_whole_or_not_at_all(home: Path) -> None:
    """Rules, tools, tokens and who needs one count at once; a broken file changes nothing, and says why."""
    file = home / "lineside.toml"
    async with starting(home) as start:
        service = await start()
        assert await service.code("plus", {"a": 1, "b": 1}) is grpc.StatusCode.NOT_FOUND

        file.write_text(
            CONFIG + '[tools.plus]\ntarget = "process_tools:nothing"\n[tools.add2]\ntimeuot = 1\n'
        )
        service.signal(signal.SIGHUP)
        told = (await service.logged("config.refused"))["mistakes"]
        assert "tools.add2.timeuot: unknown key. Did you mean timeout?" in told[1]
        assert (await service.call("add", {"a": 1, "b": 1})).result_json == b"2"

        token = hashlib.sha256(b"secret").hexdigest()
        file.write_text(
            CONFIG.replace('grace = "5s"', "grace = 1")
            + f'[tools.plus]\ntarget = "process_tools:add"\n[[tokens]]\ntenant = "acme"\nsha256 = "{token}"\n'
        )
        service.signal(signal.SIGHUP)
        reloaded = await service.logged("config.reloaded")
        assert reloaded["added"] == ["plus"]
        assert "code that was imported before is not read again" in reloaded["note"]
        assert "server.grace" in (await service.logged("config.needs_restart"))["settings"]
        assert (await service.call("plus", {"a": 1, "b": 1}, token="secret")).result_json == b"2"
        assert await service.code("plus", {}, token="guess") is grpc.StatusCode.UNAUTHENTICATED
        assert not reloaded["anonymous"]
        assert await service.code("add", {"a": 1, "b": 1}) is grpc.StatusCode.UNAUTHENTICATED

        file.write_text(CONFIG)
        service.signal(signal.SIGHUP)
        assert (await service.logged("config.reloaded"))["anonymous"]
        assert (await service.call("add", {"a": 1, "b": 1})).result_json == b"2"


@pytest.mark.asyncio
async def test_a_start_that_fails_says_why_in_one_message(home: Path) -> None:
    """No traceback; 2 for the config, 1 for the world."""
    async with starting(home) as start:
        service = await start()
        code, told = await refused(home, "--listen", service.address, "--store-path", str(home / "b.db"))
        assert code == 1
        assert told.startswith(f"lineside-service: cannot start: cannot listen on {service.address}: ")
        assert "in use; choose another with server.listen or --listen" in told
        assert len(told.splitlines()) == 1, "nothing of gRPC's own"
        assert "Traceback" not in told
        code, told = await refused(home)
        assert code == 1
        assert str(home / "lineside.db") in told
        assert f"{service.process.pid}" in told
        assert "Traceback" not in told
        admin = service.admin.removeprefix("http://")
        code, told = await refused(home, "--admin-listen", admin, "--store-path", str(home / "b.db"))
        assert code == 1
        assert f"cannot listen on {admin} (admin): " in told
        assert "--admin-listen" in told
        assert f"{service.address}" not in told
        both = ("--listen", service.address, "--admin-listen", admin, "--store-path", str(home / "b.db"))
        code, told = await refused(home, *both)
        assert code == 1
        assert f"cannot listen on {admin} (admin): " in told
        assert f"cannot listen on {service.address}: " in told
        assert "or --listen" in told
        assert "Traceback" not in told
    code, told = await refused(home, "--listen", "nowhere")
    assert code == 2
    assert told.startswith('flag --listen: server.listen: "nowhere": must be host:port')
    code, told = await refused(home, env=["OTEL_TRACES_EXPORTER=smoke"])
    assert code == 1
    assert 'OTEL_TRACES_EXPORTER: "smoke" is not known' in told
    code, told = await refused(home, env=["OTEL_PROPAGATORS=tracecontext,carrier-pigeon"])
    assert code == 1
    assert 'OTEL_PROPAGATORS: "carrier-pigeon" is not available; "baggage", "none" and "tracecontext"' in told
    assert "Traceback" not in told
    for variable in ("OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_METRIC_EXPORT_INTERVAL"):
        said = [f"{variable}=-1", "OTEL_TRACES_EXPORTER=otlp", "OTEL_METRICS_EXPORTER=otlp"]
        code, told = await refused(home, env=said)
        assert code == 1
        assert f"cannot start: {variable[:8]}" in told
        assert "Traceback" not in told


@pytest.mark.asyncio
async def test_a_dead_collector_never_delays_the_exit(home: Path) -> None:
    """It accepts connections and never answers: spans are counted as lost, calls go on (R101)."""
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen(16)
        endpoint = f"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:{hole.getsockname()[1]}"
        async with starting(home) as start:
            service = await start(
                env=[endpoint, "OTEL_BSP_SCHEDULE_DELAY=100", "OTEL_METRIC_EXPORT_INTERVAL=100"]
            )
            assert "traces otlp" in service.line
            for number in range(50):
                assert (await service.call("add", {"a": number, "b": 1})).result_json == str(
                    number + 1
                ).encode()
            service.signal(signal.SIGTERM)
            began = time.monotonic()
            assert (await service.logged("telemetry.spans_lost"))["spans"] >= 50
            code, _ = await service.ended()
            assert code == 0
            assert time.monotonic() - began < 2  # nothing was in flight, so the grace was not needed


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """An OTLP receiver that keeps what it gets."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resource: dict[str, str] = {}

    async def Export(  # noqa: N802 - gRPC's name
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: object
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        """Take a batch."""
        for resource in request.resource_spans:
            self.resource |= {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "name", ["OTEL_SERVICE_NAME=desk", "OTEL_RESOURCE_ATTRIBUTES=team=ferry,service.name=desk"]
)
async def test_spans_reach_an_otlp_collector(home: Path, name: str) -> None:
    """OTEL_* variables alone switch it on; what is queued at SIGTERM arrives; no argument value does.

    Spans and log lines carry the name that the variables give the service.
    """
    collector = Collector()
    server = grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    env = [
        f"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:{port}",
        "OTEL_METRICS_EXPORTER=none",
        name,
    ]
    try:
        async with starting(home) as start:
            service = await start(env=env)
            answer = await service.call("add", {"a": 424_242, "b": 1})
            service.signal(signal.SIGTERM)
            assert (await service.logged("drain.begun"))["service.name"] == "desk"
            assert (await service.ended())[0] == 0
    finally:
        await server.stop(0)
    by_name = {span.name: span for span in collector.spans}
    rpc, attempt = by_name["lineside.v1.DispatchService/Dispatch"], by_name["execute_tool add"]
    assert rpc.trace_id == attempt.trace_id == bytes.fromhex(answer.trace_id)
    assert collector.resource["service.name"] == "desk"
    assert not any(b"424242" in span.SerializeToString() for span in collector.spans)


@pytest.mark.asyncio
@pytest.mark.parametrize("is_on", [False, True])
async def test_argument_values_are_recorded_only_when_asked_for(home: Path, is_on: bool) -> None:
    """`telemetry.record_arguments` puts them on the attempt's span; the logs never have them."""
    (home / "lineside.toml").write_text(
        CONFIG.replace(
            "[telemetry]", f"[telemetry]\nlog_level = 'debug'\nrecord_arguments = {str(is_on).lower()}"
        )
    )
    async with starting(home) as start:
        env = ["OTEL_TRACES_EXPORTER=console", "OTEL_BSP_SCHEDULE_DELAY=50"]
        service = await start(env=env)
        await service.call("add", {"a": 424_242, "b": 1})
        service.signal(signal.SIGTERM)
        async with asyncio.timeout(START_S):
            out, err = await service.process.communicate()
    assert b"execute_tool add" in out
    assert (b"424242" in out) is is_on
    assert b"424242" not in err


@pytest.mark.asyncio
async def test_a_hundred_tools_serve_within_a_second(tmp_path: Path) -> None:
    """From the start of the process to SERVING, schemas from type hints included, bytecode cached."""
    functions = [
        f"async def t{n}(a: int, b: str = 'x', c: list[float] | None = None) -> int: return a"
        for n in range(100)
    ]
    (tmp_path / "hundred.py").write_text("\n".join(functions))
    tools = "".join(f"[tools.t{n}]\ntarget = 'hundred:t{n}'\neffect = 'safe'\n" for n in range(100))
    (tmp_path / "lineside.toml").write_text(
        f"[server]\nlisten = '127.0.0.1:0'\n[admin]\nlisten = '127.0.0.1:0'\n{tools}"
    )
    took: list[float] = []
    while len(took) < 4 and min(took, default=9.0) > 1.0:  # the first fills the cache
        async with starting(tmp_path) as start:
            service = await start()
            took.append(cpu_s(service.process.pid))
            assert "100 tools" in service.line
    assert min(took) <= 1.0


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has used: what its start takes where nobody else runs."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
