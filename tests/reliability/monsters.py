"""Malformed requests without end: bytes, messages, JSON, Structs, durations, metadata, frames. Seeded.

Nothing made here may ever run. Two things see to it: whatever is mutated byte by byte lacks the secret that
the tool's schema demands; whatever has the secret has a definite fault beside it and is not touched any more.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct, Value

from lineside.v1 import calls_pb2, tools_pb2
from lineside.v1.dispatch_pb2 import DispatchBatchRequest, DispatchRequest, ToolCall
from tests.reliability.malformed import TOOL, MalformedCalls, delimited

DISPATCH: Final = "/lineside.v1.DispatchService/Dispatch"
DISPATCH_BATCH: Final = "/lineside.v1.DispatchService/DispatchBatch"
_NAMES: Final = (
    "traceparent", "tracestate", "baggage", "authorization", "grpc-previous-rpc-attempts", "x-tenant-id", "x",
    "lineside-tenant", "user-agent-x", "a.b-c_d", "grpc-trace-bin", "junk-bin", "lineside-frames-accepted",
)  # fmt: skip

Metadata = tuple[tuple[str, str | bytes], ...]


@dataclass(frozen=True, slots=True)
class Shot:
    """One malformed request. frames: of a batch stream; raw: of anything else."""

    method: str
    raw: bytes = b""
    frames: tuple[bytes, ...] = ()
    metadata: Metadata = ()

    @property
    def count(self) -> int:
        """Requests in it."""
        return len(self.frames) or 1

    def save(self, directory: Path) -> Path:
        """Keep it for good; returns where."""
        told = {
            "method": self.method,
            "raw": _text(self.raw),
            "frames": [_text(frame) for frame in self.frames],
            "metadata": [[k, v if isinstance(v, str) else {"bytes": _text(v)}] for k, v in self.metadata],
        }
        text = json.dumps(told, indent=1) + "\n"
        file = directory / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
        file.write_text(text)
        return file

    @classmethod
    def load(cls, file: Path) -> Shot:
        """What `save` kept."""
        told = json.loads(file.read_text())
        pairs = [(k, v if isinstance(v, str) else base64.b64decode(v["bytes"])) for k, v in told["metadata"]]
        frames = tuple(base64.b64decode(frame) for frame in told["frames"])
        return cls(told["method"], base64.b64decode(told["raw"]), frames, tuple(pairs))


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


class Monsters:
    """Makes them. secret: of the guarded tool; methods: paths of unary methods besides Dispatch."""

    def __init__(self, chance: random.Random, *, secret: str, methods: tuple[str, ...]) -> None:
        self._chance = chance
        self._methods = (*methods, "/lineside.v1.DispatchService/Nope", "/a/b", "/x")
        self._calls = MalformedCalls(chance, secret)
        self._dispatches, self._others = _dispatches(), _others()

    def next(self) -> Shot:
        """The next one."""
        dice = self._chance.random()
        if dice < 0.15:
            return Shot(DISPATCH, self._junk())
        if dice < 0.45:
            return Shot(DISPATCH, self._mutated(self._chance.choice(self._dispatches)))
        if dice < 0.70:
            return Shot(DISPATCH, delimited(1, self._calls.next()))
        if dice < 0.80:
            return Shot(DISPATCH, self._dispatches[0], metadata=self._metadata())
        if dice < 0.92:
            return Shot(
                DISPATCH_BATCH, frames=tuple(self._frame() for _ in range(self._chance.randint(1, 12)))
            )
        raw = (
            self._mutated(self._chance.choice(self._others)) if self._chance.random() < 0.7 else self._junk()
        )
        return Shot(self._chance.choice(self._methods), raw)

    def _junk(self) -> bytes:
        return self._chance.randbytes(self._chance.choice((0, 1, 2, 5, 20, 100, 1_000, 20_000)))

    def _mutated(self, base: bytes) -> bytes:
        raw = bytearray(base)
        for _ in range(self._chance.randint(1, 6)):
            at = self._chance.randrange(len(raw) + 1)
            end = at + self._chance.randint(1, 12)
            match self._chance.randrange(7):
                case 0:
                    raw[at:at] = self._chance.randbytes(self._chance.randint(1, 8))
                case 1:
                    del raw[at:end]
                case 2:
                    raw[at:end] = raw[at:end] * self._chance.randint(2, 5)
                case 3:
                    del raw[at:]
                case 4:
                    raw[at:end] = b"\xff" * self._chance.randint(1, 12)
                case 5:
                    other = self._chance.choice((*self._dispatches, *self._others))
                    raw[at:end] = other[self._chance.randrange(len(other)) :]
                case _ if raw:
                    raw[min(at, len(raw) - 1)] ^= 1 << self._chance.randrange(8)
        return bytes(raw)

    def _frame(self) -> bytes:
        dice = self._chance.random()
        if dice < 0.2:
            return self._junk()
        if dice < 0.5:
            call = ToolCall(tool=TOOL, arguments_json=b'{"n":1}', item_id="a", idempotency_key="k")
            return self._mutated(DispatchBatchRequest(calls=[call] * 3).SerializeToString())
        count = self._chance.choice((0, 1, 3, 9, 9, 257))
        kept = [self._calls.next() + self._item_id() for _ in range(min(count, 9))]
        return b"".join(delimited(1, call) for call in kept) + delimited(1, b"") * (count - len(kept))

    def _item_id(self) -> bytes:
        item_id = self._chance.choice((str(self._chance.random()), "same", "", "é" * 300))
        return ToolCall(item_id=item_id).SerializeToString()

    def _metadata(self) -> Metadata:
        made: list[tuple[str, str | bytes]] = []
        for _ in range(self._chance.randint(1, 6)):
            name = self._chance.choice(_NAMES)
            size = self._chance.choice((0, 1, 7, 55, 300, 3_000, 12_000))
            if name.endswith("-bin"):
                made.append((name, self._chance.randbytes(size)))
            else:
                letters = self._chance.choice(("0", "-", "f", "=,;", "Bearer ls_", " ", "00-"))
                made.append((name, (letters * size)[:size].strip()))
        return tuple(made)


def _dispatches() -> list[bytes]:
    """Valid requests without the secret."""
    deep = b'{"n":1,"s":"x","items":[1,2,{"a":[null,true,1.5e3]}]}'
    call = ToolCall(tool=TOOL, arguments_json=deep, idempotency_key="key")
    full = ToolCall(tool=TOOL, arguments=Struct(fields={"n": Value(number_value=1)}), item_id="i")
    full.call_timeout.seconds, full.attempt_timeout.seconds, full.budget_tool_calls_remaining = 5, 1, 3
    full.trace_context.traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    full.run_context.run_id, full.run_context.lease_token = "run", b"\x01" * 16
    full.result_mask.paths.extend(["a.b", "c"])
    inner = Struct(fields={"a": Value(string_value="b")})
    nested = ToolCall(tool=TOOL, arguments=Struct(fields={"n": Value(struct_value=inner)}))
    return [DispatchRequest(call=one).SerializeToString() for one in (call, full, nested)]


def _others() -> list[bytes]:
    """Valid requests of other methods."""
    not_run = calls_pb2.SettleCallRequest.NotRun()
    key = calls_pb2.KeyLookup(tool=TOOL, idempotency_key="key")
    messages: tuple[Message, ...] = (
        tools_pb2.ListToolsRequest(page_size=10, page_token="t"),
        calls_pb2.GetCallRequest(key=key),
        calls_pb2.ListCallsRequest(page_size=5, state=calls_pb2.Call.STATE_UNKNOWN, tool=TOOL),
        calls_pb2.SettleCallRequest(call_id="x", etag="y", reason="z", not_run=not_run),
    )
    return [message.SerializeToString() for message in messages]
