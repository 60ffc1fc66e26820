"""Callers with no manners, on bare sockets: half a frame, half a message, and gone in the middle of a stream.

HTTP/2 is written by hand, since no client would send this.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator

from lineside import AsyncClient
from lineside.v1.dispatch_pb2 import DispatchBatchRequest
from tests.contract.house import House, token, until
from tests.support.process import wire_call

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_HEADERS = 4
_GAUGES = ("dispatch_batch_streams", "dispatch_batch_items", "dispatch_rpc_active", "dispatch_inflight",
           "dispatch_slots_running", "dispatch_slots_waiting", "dispatch_slots_overflow",
           "dispatch_slots_abandoned", "dispatch_ledger_unwritten", "dispatch_ledger_unknown")  # fmt: skip
"""All zero in a service with which everybody is done, and of whose calls everybody knows the end."""


async def rudeness(served: House, run: str) -> None:
    """Every sort of it against the first service, which takes no harm (AssertionError).

    run: a word that no other run has.
    """
    async with served.client() as client:
        for written in (_PREFACE[:10], b"\xff" * 99, _half_a_frame(), _half_a_message()):
            async with _socket(served.direct.address) as writer:
                writer.write(written)
                await writer.drain()
                assert await _answers(client)
        await _gone_in_the_middle(served, client, run)
        assert await _answers(client)


async def until_quiet(served: House) -> None:
    """Nothing waits, runs, is given up or unknown in the first service (AssertionError after 20 s)."""
    for name in _GAUGES:
        await served.direct.until_metric(name, 0)
    async with served.client() as client:
        for state in ("running", "unknown"):
            assert not [call async for call in client.list_calls(state=state)], state


async def _gone_in_the_middle(served: House, client: AsyncClient, run: str) -> None:
    """Both items have had their effect when their caller leaves: one has a key and is found again."""
    keyless, keyed = f"rude {run}", f"rude keyed {run}"
    calls = [
        wire_call("book_at_length", {"seat": keyless, "seconds": 30}, item_id="keyless"),
        wire_call("book_at_length", {"seat": keyed, "seconds": 1}, item_id="keyed", idempotency_key=keyed),
    ]
    message = DispatchBatchRequest(calls=calls).SerializeToString()

    async def effects() -> float:
        return float(
            sum([(await client.dispatch("effects", {"seat": seat})).result for seat in (keyless, keyed)])
        )

    async with _socket(served.direct.address) as writer:
        writer.write(_opening() + _frame(_DATA, 0, 1, _prefixed(message)))
        await until(effects, 2)
    again = await client.dispatch("book_at_length", {"seat": keyed, "seconds": 1}, idempotency_key=keyed)
    assert again.result == {"effects": 1}
    assert await effects() == 2


async def _answers(client: AsyncClient) -> bool:
    answer = await client.dispatch("echo", {"value": "still here"}, timeout_s=20)
    return bool(answer.result == "still here")


@contextlib.asynccontextmanager
async def _socket(address: str) -> AsyncIterator[asyncio.StreamWriter]:
    """A connection that is reset at the end, without a word."""
    host, _, port = address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    try:
        yield writer
    finally:
        raw: socket.socket = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()


def _opening() -> bytes:
    """A connection's first bytes, and the head of a batch stream."""
    head = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/lineside.v1.DispatchService/DispatchBatch",
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
        "authorization": f"Bearer {token('all')}",
    }
    block = b"".join(b"\x00" + _text(name) + _text(value) for name, value in head.items())
    return _PREFACE + _frame(_SETTINGS, 0, 0, b"") + _frame(_HEADERS, _END_HEADERS, 1, block)


def _half_a_frame() -> bytes:
    """HTTP/2 says a thousand bytes, and ten come."""
    return _opening() + _frame(_DATA, 0, 1, b"x" * 1000)[:19]


def _half_a_message() -> bytes:
    """A whole HTTP/2 frame with the first half of a gRPC message."""
    call = wire_call("echo", {"value": 1}, item_id="half")
    message = _prefixed(DispatchBatchRequest(calls=[call]).SerializeToString())
    return _opening() + _frame(_DATA, 0, 1, message[: len(message) // 2])


def _prefixed(message: bytes) -> bytes:
    return struct.pack(">BI", 0, len(message)) + message


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def _text(text: str) -> bytes:
    """A literal as HPACK has it, for texts of less than 127 bytes."""
    raw = text.encode()
    assert len(raw) < 127
    return bytes([len(raw)]) + raw
