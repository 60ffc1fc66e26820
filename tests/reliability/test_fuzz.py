"""Malformed requests by the ten thousand at the real process: typed refusals, and nothing else happens."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
import time
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError

from lineside.v1.dispatch_pb2 import DispatchBatchRequest, DispatchBatchResponse
from lineside_service.edge.access import METHODS
from tests.reliability.figures import Figures
from tests.reliability.malformed import SCHEMA, TOOL
from tests.reliability.monsters import DISPATCH, DISPATCH_BATCH, Monsters, Shot
from tests.support.process import ServiceProcess, dispatch_error, dispatched, error_of, service, wire_call

CORPUS = Path(__file__).with_name("corpus")
SECRET = "7d1f0c5e-secret"
CONFIG = f"""
[server]
listen = "127.0.0.1:0"
[admin]
listen = "127.0.0.1:0"
[telemetry]
log_level = "warning"
[tools.{TOOL}]
target = "guarded_tools:guarded"
{SCHEMA % SECRET}
"""
OTHER_METHODS = tuple(
    f"/{name}" for name in sorted(METHODS) if not name.split(".")[-1].startswith("Dispatch")
)
IN_FLIGHT = 48
REFUSALS = frozenset(
    grpc.StatusCode[name]
    for name in (
        "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
        "UNAUTHENTICATED", "PERMISSION_DENIED",
    )
)  # fmt: skip
"""What a malformed request may end with. Never OK where a call could have run, never INTERNAL or UNKNOWN."""


class Gun:
    """Fires shots at the service and looks at what comes back."""

    def __init__(self, served: ServiceProcess) -> None:
        self._channels = [served.channel() for _ in range(4)]
        self._turn = 0
        self.codes: Counter[str] = Counter()
        self.slowest_s = 0.0

    async def fire(self, shot: Shot) -> str:
        """What is wrong with the reply; empty when nothing is."""
        self._turn += 1
        channel = self._channels[self._turn % len(self._channels)]
        began = time.monotonic()
        wrong = await (self._stream(channel, shot) if shot.frames else self._unary(channel, shot))
        if not shot.metadata:  # those over 16 KiB are refused by gRPC, whose channel backs off by itself
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        return wrong

    async def _unary(self, channel: grpc.aio.Channel, shot: Shot) -> str:
        try:
            method: Any = channel.unary_unary(shot.method)
            await method(shot.raw, metadata=shot.metadata, timeout=20)
        except grpc.aio.AioRpcError as error:
            self.codes[error.code().name] += 1
            if error.code() not in REFUSALS:
                return f"{error.code()}: {error.details()}"
            is_ours = error.code() is grpc.StatusCode.INVALID_ARGUMENT
            return "no details" if is_ours and error_of(error) is None else ""
        self.codes["OK"] += 1
        return "answered" if shot.method == DISPATCH else ""

    async def _stream(self, channel: grpc.aio.Channel, shot: Shot) -> str:
        """Every item and every bad frame gets its refusal, and the stream ends well."""
        rpc: Any = channel.stream_stream(DISPATCH_BATCH)(timeout=20)
        for frame in shot.frames:
            await rpc.write(frame)
        await rpc.done_writing()
        refusals = 0
        async for raw in rpc:
            response = DispatchBatchResponse.FromString(raw)
            statuses = [item.error for item in response.items]
            if any(item.HasField("answer") for item in response.items):
                return "an item was answered"
            if response.HasField("frame_error"):
                statuses.append(response.frame_error.status)
            for status in statuses:
                code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
                self.codes[code.name] += 1
                if code not in REFUSALS or dispatch_error(status) is None:
                    return f"{code}: {status.message}"
            refusals += len(statuses)
        if await rpc.code() is not grpc.StatusCode.OK:
            return f"the stream ended with {await rpc.code()}"
        expected = sum(_refusals_of(frame) for frame in shot.frames)
        return "" if refusals == expected else f"{refusals} refusals for {expected} items and bad frames"


def _refusals_of(frame: bytes) -> int:
    """How many refusals a frame is worth: one per item, or one for the whole of a bad frame."""
    try:
        count = len(DispatchBatchRequest.FromString(frame).calls)
    except DecodeError:
        return 1
    return count if 1 <= count <= 256 else 1


async def good_call(served: ServiceProcess) -> None:
    """The same tool, for somebody who knows how."""
    ended = await dispatched(served.channel(), wire_call(TOOL, {"secret": SECRET, "n": 3}))
    assert ended.answer is not None, ended
    assert ended.answer.result_json == b"%d" % (3 + len(SECRET))


async def check_nothing_happened(served: ServiceProcess, good_calls: int, database: Path) -> None:
    """Only the good calls ran, nothing is under way, nothing is stored."""
    assert await served.metric("dispatch_attempts_total") == good_calls
    assert await served.metric("dispatch_inflight") == 0
    with contextlib.closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT count(*) FROM ledger").fetchone() == (0,)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "requests", [20_000, pytest.param(1_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]
)
async def test_malformed_requests_are_refused_and_nothing_else(
    requests: int, home: Path, figures: Figures
) -> None:
    """Typed refusals; nothing crashes, runs or is stored; the next good call works (R105, R110)."""
    config = home / "lineside.toml"
    config.write_text(CONFIG)
    monsters = Monsters(random.Random(requests), secret=SECRET, methods=OTHER_METHODS)
    async with service(config) as served:
        gun, fired, rounds, warm_rss = Gun(served), 0, 20, 0

        async def shooter(goal: int) -> None:
            nonlocal fired
            while fired < goal:
                shot = monsters.next()
                fired += shot.count
                wrong = await gun.fire(shot)
                assert not wrong, f"{wrong}; kept as {shot.save(CORPUS)}"

        began = time.monotonic()
        for number in range(1, rounds + 1):
            async with asyncio.TaskGroup() as shooters:
                for _ in range(IN_FLIGHT):
                    shooters.create_task(shooter(requests * number // rounds))
            await good_call(served)
            warm_rss = warm_rss or served.rss()
        took_s = time.monotonic() - began
        grown = served.rss() - warm_rss
        await check_nothing_happened(served, rounds, home / "lineside.db")
        assert gun.codes["INVALID_ARGUMENT"] > fired / 2, gun.codes
        assert (await served.terminated())[0] == 0
    figures.note("fuzz.requests", fired, "requests", combine=sum)
    figures.note("fuzz.rate", fired / took_s, "1/s", combine=min)
    figures.note("fuzz.crashes_internal_unknown", 0, "replies", target="0", combine=sum)
    figures.note("fuzz.slowest_reply", gun.slowest_s, "s")
    figures.note("fuzz.memory_growth", grown / 2**20, "MiB", target="<= 50")
    assert grown <= 50 * 2**20


@pytest.mark.asyncio
async def test_bytes_that_are_no_http2_hurt_nobody(home: Path) -> None:
    """Garbage on the port, before and after a good preface, cut at any byte: the next good call works."""
    config = home / "lineside.toml"
    config.write_text(CONFIG)
    chance = random.Random(1)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    settings = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))

    def garbage() -> bytes:
        junk = chance.randbytes(chance.choice((1, 9, 100, 5_000)))
        frame = len(junk).to_bytes(3, "big") + bytes(
            (chance.randrange(16), chance.randrange(256), 0, 0, 0, 1)
        )
        http1 = b"POST /lineside.v1.DispatchService/Dispatch HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n"
        starts = (
            b"",
            http1,
            b"\x16\x03\x01\x02\x00",
            preface,
            preface + settings,
            preface + settings + frame,
        )
        return chance.choice(starts) + junk

    async def knock(raw: bytes) -> None:
        reader, writer = await asyncio.open_connection(*served.address.split(":"))
        with contextlib.suppress(ConnectionError):
            writer.write(raw)
            writer.write_eof()
            await reader.read()
        writer.transport.abort()

    async with service(config) as served:
        for _ in range(20):
            async with asyncio.timeout(20), asyncio.TaskGroup() as knocks:
                for _ in range(20):
                    knocks.create_task(knock(garbage()))
            await good_call(served)
        await check_nothing_happened(served, 20, home / "lineside.db")


@pytest.mark.asyncio
async def test_what_once_did_harm_is_refused(home: Path) -> None:
    """Every input in `corpus/` broke a promise when it was found."""
    config = home / "lineside.toml"
    config.write_text(CONFIG)
    async with service(config) as served:
        gun = Gun(served)
        for file in sorted(CORPUS.glob("*.json")):
            assert not await gun.fire(Shot.load(file)), file.name
        await good_call(served)
        await check_nothing_happened(served, 1, home / "lineside.db")
