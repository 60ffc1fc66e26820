"""Calls that know the secret of a guarded tool and have a definite fault beside it: bytes of a ToolCall."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import Struct, Value

from lineside.v1.dispatch_pb2 import ToolCall

TOOL: Final = "guarded"
SCHEMA: Final = """
[tools.guarded.input_schema]
type = "object"
required = ["secret"]
additionalProperties = false
[tools.guarded.input_schema.properties]
secret = { const = "%s" }
n = { type = "integer", minimum = 0, maximum = 10 }
s = { type = "string", maxLength = 5 }
items = { type = "array", maxItems = 3, items = { type = "integer", maximum = 10, minimum = 0 } }
"""
"""What the tool demands; %s: the secret."""

_JSON_FAULTS: Final = (
    b"NaN", b"-Infinity", b"Infinity", b"1e400", b"-1e999", b"9" * 5_000, b"-" + b"1" * 400, b"1.", b".5",
    b"+1", b"01", b"0x10", b"1e", b"'a'", b'"\\ud800"', b'"\\udfff\\ud800"', b'"\\x"', b'"\xff\xfe"',
    b'"\xed\xa0\x80"', b'"\xc0\x80"', b'"\x00"', b'"\n"', b'"', b"{", b"[", b"]", b"{]", b"{,}", b"[1,]",
    b"[,1]", b'{"a"}', b'{"a":}', b"{a:1}", b"{1:1}", b"tru", b"nulll", b"undefined", b"/* */ 1", b"// x\n1",
    b"\xef\xbb\xbf1", b"\x00", b"", b"[" * 33 + b"]" * 33, b"[" * 1_000 + b"]" * 1_000, b"[" * 100_000,
    b'{"a":' * 1_000 + b"1" + b"}" * 1_000, b'{"a":1,"a":2}', b'{"a":{"b":1,"b":1}}', b'{"a":1,"\\u0061":2}',
    b"1" + b"0" * 50_000, b'"' + b"x" * 100_000 + b'"',
)  # fmt: skip
"""JSON texts that stand where a value should; no schema here takes the few that are JSON."""
_UNSCHEMATIC: Final[tuple[dict[str, Any], ...]] = (
    {"n": -1}, {"n": 11}, {"n": 1.5}, {"n": "1"}, {"n": None}, {"n": True}, {"n": 10**300}, {"n": 2**63},
    {"s": 5}, {"s": "toolong"}, {"s": ["a"]}, {"s": "A" * 10_000}, {"items": [1, 2, 3, 4]}, {"items": {}},
    {"items": ["x"]}, {"items": list(range(5_000))}, {"unknown": 1}, {"": 0}, {"é" * 500: 1},
    {"__proto__": {}}, {"n": {}, "s": {}, "items": 0},
)  # fmt: skip
"""Members, each of which breaks the schema."""
_SECONDS: Final = (-1, 0, -(10**18), 10**18, 315_576_000_001, 2**62, -(2**63), 2**63 - 1)
_NUMBERS: Final = (float("nan"), float("inf"), float("-inf"), 2.0**53 + 2, 1e300, -1e19, 1.5, 5e-324)
_TEXTS: Final = (
    "",
    "é",
    "\x00",
    "\n",
    "a" * 256,
    "a" * 70_000,
    "../x",
    "guarded ",
    "Guarded",
    "💥",
    "a\r\nb: c",
    "%s%n",
)


class MalformedCalls:
    """Makes them. secret: the tool's."""

    def __init__(self, chance: random.Random, secret: str) -> None:
        self._chance = chance
        self._secret = secret
        self._json_secret = json.dumps(secret).encode()
        self._kinds: tuple[Callable[[], bytes], ...] = (
            self._bad_json, self._bad_json, self._bad_struct, self._bad_schema, self._bad_field,
            self._unbuilt,
        )  # fmt: skip

    def next(self) -> bytes:
        """The next one."""
        return self._chance.choice(self._kinds)()

    def _good(self) -> ToolCall:
        return ToolCall(tool=TOOL, arguments_json=b'{"secret":%b}' % self._json_secret)

    def _bad_json(self) -> bytes:
        secret, fault = self._json_secret, self._chance.choice(_JSON_FAULTS)
        text = self._chance.choice(
            (
                b'{"secret":%b,"n":%b}' % (secret, fault),
                b'{"secret":%b,"items":[1,%b]}' % (secret, fault),
                b'{"secret":%b,"x":{"y":[%b]}}' % (secret, fault),
                b'{%b:1,"secret":%b}' % (fault, secret),
                b'{"secret":%b,"secret":%b}' % (secret, secret),
                b'{"secret":%b}{"secret":%b}' % (secret, secret),
                b'[{"secret":%b}]' % secret,
                fault,
            )
        )
        return ToolCall(tool=TOOL, arguments_json=text).SerializeToString()

    def _bad_struct(self) -> bytes:
        made = Struct(fields={"secret": Value(string_value=self._secret)})
        match self._chance.randrange(6):
            case 0 | 1:
                made.fields["n"].number_value = self._chance.choice(_NUMBERS)
            case 2:
                made.fields["n"].SetInParent()
            case 3:
                deep = _deep_fields(self._chance.choice((32, 33, 50, 100, 101, 1_000)))
                call = ToolCall(tool=TOOL).SerializeToString()
                return call + delimited(2, made.SerializeToString() + deep)
            case 4:
                both = ToolCall(tool=TOOL, arguments=made).SerializeToString()
                return both + self._good().SerializeToString()
            case _:
                made.fields[self._chance.choice(("", "é", "x" * 10_000, "N"))].bool_value = True
        return ToolCall(tool=TOOL, arguments=made).SerializeToString()

    def _bad_schema(self) -> bytes:
        arguments = {"secret": self._secret} | self._chance.choice(_UNSCHEMATIC)
        if self._chance.random() < 0.2:
            arguments["secret"] = self._secret[:-1]
        call = ToolCall(tool=TOOL, arguments_json=json.dumps(arguments).encode())
        call.validate_only = self._chance.random() < 0.3
        return call.SerializeToString()

    def _bad_field(self) -> bytes:
        call = self._good()
        match self._chance.randrange(6):
            case 0:
                call.call_timeout.CopyFrom(self._duration())
            case 1:
                call.attempt_timeout.CopyFrom(self._duration())
            case 2:
                call.idempotency_key = self._chance.choice(("", "k" * 256, "é" * 300, "k" * 100_000))
            case 3:
                call.budget_tool_calls_remaining = self._chance.choice((-1, -(2**31), 0))
            case 4:
                call.tool = self._chance.choice(_TEXTS)
            case _:
                call.ClearField("argument_form")
        return call.SerializeToString()

    def _duration(self) -> Duration:
        if self._chance.random() < 0.5:
            return Duration(seconds=self._chance.choice(_SECONDS))
        return Duration(seconds=1, nanos=self._chance.choice((-1, 10**9, -(2**31), 2**31 - 1)))

    def _unbuilt(self) -> bytes:
        call = self._good()
        match self._chance.randrange(3):
            case 0:
                call.run_context.run_id = self._chance.choice(_TEXTS)
            case 1:
                call.result_mask.paths.append(self._chance.choice(_TEXTS))
            case _:
                call.no_cache = True
        return call.SerializeToString()


def _deep_fields(depth: int) -> bytes:
    """Fields of a Struct that nest deeper than a parser takes, written by hand."""
    inner = b""
    for _ in range(depth):
        value = delimited(5, inner)  # Value.struct_value
        inner = delimited(1, delimited(1, b"a") + delimited(2, value))  # a map entry: key, value
    return inner


def delimited(number: int, payload: bytes) -> bytes:
    """A length-delimited field of a message."""
    size, out = len(payload), bytearray([number << 3 | 2])
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out) + payload
