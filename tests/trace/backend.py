"""A real Jaeger on free ports, with its traces in memory, and its query API."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from tests.load.sides import BIN

_START_S = 60.0
_PATIENCE_S = 30.0
"""What was accepted is in memory at once; this is for a machine that stands still."""


@dataclass(frozen=True, slots=True)
class Span:
    """A span as Jaeger keeps it.

    parent: span id, or None of a root. links: (trace id, span id). start_us: Unix time. warnings: what
    Jaeger found wrong with it.
    """

    trace_id: str
    span_id: str
    name: str
    service: str
    parent: str | None
    links: tuple[tuple[str, str], ...]
    start_us: int
    duration_us: int
    tags: Mapping[str, Any]
    warnings: tuple[str, ...]

    @property
    def kind(self) -> str:
        """`server`, `client` or `internal`."""
        return str(self.tags.get("span.kind", "internal"))

    @property
    def is_error(self) -> bool:
        """Whether its status is ERROR."""
        return self.tags.get("otel.status_code") == "ERROR"


@dataclass(frozen=True, slots=True)
class Jaeger:
    """Where one listens. otlp: what OTEL_EXPORTER_OTLP_ENDPOINT names; query: URL of its API."""

    otlp: str
    query: str
    pid: int

    async def services(self) -> list[str]:
        """Who has sent spans."""
        return [str(name) for name in await self._ask("/api/services")]

    async def spans(self, service: str) -> list[Span]:
        """Every span of every trace that the service has a part in."""
        traces = await self._ask(f"/api/traces?service={service}&limit=1000&lookback=1h")
        return [span for trace in traces for span in _spans_of(trace)]

    async def until_spans(self, services: Sequence[str], count: int) -> list[Span]:
        """Every span of these services' traces, once there are so many, or when patience ends."""
        end = time.monotonic() + _PATIENCE_S
        while True:
            found = {
                (span.trace_id, span.span_id): span for name in services for span in await self.spans(name)
            }
            if len(found) >= count or time.monotonic() > end:
                return sorted(found.values(), key=lambda span: span.start_us)

    async def _ask(self, path: str) -> Any:
        async with aiohttp.ClientSession() as session, session.get(self.query + path) as response:
            body = msgspec.json.decode(await response.read())
            if body["errors"]:
                raise RuntimeError(f"{path}: {body['errors']}")
            return body["data"] or []


def _spans_of(trace: Mapping[str, Any]) -> list[Span]:
    services = {key: process["serviceName"] for key, process in trace["processes"].items()}
    return [_span(raw, services[raw["processID"]]) for raw in trace["spans"]]


def _span(raw: Mapping[str, Any], service: str) -> Span:
    parents: list[str] = []
    links: list[tuple[str, str]] = []
    for reference in raw["references"]:
        if reference["refType"] == "CHILD_OF" and reference["traceID"] == raw["traceID"] and not parents:
            parents.append(reference["spanID"])
        else:
            links.append((reference["traceID"], reference["spanID"]))
    return Span(
        trace_id=raw["traceID"],
        span_id=raw["spanID"],
        name=raw["operationName"],
        service=service,
        parent=parents[0] if parents else None,
        links=tuple(links),
        start_us=raw["startTime"],
        duration_us=raw["duration"],
        tags={tag["key"]: tag["value"] for tag in raw["tags"]},
        warnings=tuple(raw.get("warnings") or ()),
    )


@contextlib.asynccontextmanager
async def jaeger(folder: Path, *, keep: bool = False) -> AsyncIterator[Jaeger]:
    """One that runs until the block ends, or, with keep, longer, unless the block raised.

    Needs build/bin/jaeger. Raises RuntimeError when it does not start.
    """
    config, log = folder / "jaeger.json", folder / "jaeger.log"
    otlp, query, own, health = _free_ports(4)
    config.write_bytes(msgspec.json.encode(_config(otlp, query, own, health)))
    process = _started(config, log, is_own_session=keep)
    found = Jaeger(f"http://127.0.0.1:{otlp}", f"http://127.0.0.1:{query}", process.pid)
    is_kept = is_up = False
    try:
        async with asyncio.timeout(_START_S):
            while not is_up and process.poll() is None:
                is_up = await _is_up(health, query)
        if not is_up:
            raise RuntimeError(f"Jaeger did not start:\n{log.read_text()}")
        yield found
        is_kept = keep
    finally:
        if not is_kept:
            process.kill()
            process.wait()


def _started(config: Path, log: Path, *, is_own_session: bool) -> subprocess.Popen[bytes]:
    """Not asyncio's sort of process: that one would not outlive the loop."""
    with log.open("wb") as out:
        command = [str(BIN / "jaeger"), "--config", str(config)]
        return subprocess.Popen(command, stdout=out, stderr=out, start_new_session=is_own_session)


async def _is_up(health: int, query: int) -> bool:
    """Whether it says that all its parts run, and its API answers."""
    for url in (f"http://127.0.0.1:{health}/status", f"http://127.0.0.1:{query}/api/services"):
        try:
            async with aiohttp.ClientSession() as session, session.get(url) as response:
                if response.status != 200:
                    return False
        except aiohttp.ClientConnectionError:
            return False
    return True


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def _config(otlp: int, query: int, query_grpc: int, health: int) -> Mapping[str, Any]:
    """Spans are stored before their export is answered: no batch processor."""

    def at(port: int) -> dict[str, str]:
        return {"endpoint": f"127.0.0.1:{port}"}

    return {
        "service": {
            "extensions": ["jaeger_storage", "jaeger_query", "healthcheckv2"],
            "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["jaeger_storage_exporter"]}},
            "telemetry": {"metrics": {"level": "none"}},
        },
        "extensions": {
            "healthcheckv2": {"use_v2": True, "http": at(health)},
            "jaeger_query": {"storage": {"traces": "here"}, "http": at(query), "grpc": at(query_grpc)},
            "jaeger_storage": {"backends": {"here": {"memory": {"max_traces": 1000}}}},
        },
        "receivers": {"otlp": {"protocols": {"grpc": at(otlp)}}},
        "exporters": {"jaeger_storage_exporter": {"trace_storage": "here"}},
    }
