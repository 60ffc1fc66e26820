"""What bad or outsized input gets on a real wire: a typed refusal, and nothing that breaks."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct

from lineside.v1 import errors_pb2
from lineside.v1.dispatch_pb2 import DispatchRequest, ToolCall
from lineside_service.core.attempt import AttemptEnd
from lineside_service.core.errors import ErrorKind, Outcome
from lineside_service.core.jsonsize import MAX_ARGUMENT_BYTES
from tests.edge.test_dispatch import ONCE, echo
from tests.support.scripted_tool import answer, ends
from tests.support.serving import DISPATCH, Served, refusal_of, refused, serving, struct, tool_call


async def raw_dispatch(served: Served, raw: bytes, **more: Any) -> bytes:
    """Send these bytes as a request."""
    send: Any = served.channel(options=[("grpc.max_send_message_length", -1)]).unary_unary(DISPATCH)
    reply: bytes = await send(raw, timeout=10, **more)
    return reply


@pytest.mark.asyncio
async def test_a_long_text_of_a_tool_arrives_cut_with_its_own_kind() -> None:
    """200,000 characters neither break the trailers nor change the code (R005)."""
    async with serving() as served:
        end = AttemptEnd(kind=ErrorKind.INTERNAL, outcome=Outcome.UNKNOWN, message="é" * 200_000)
        served.add("loud", ends(end), retry=ONCE)
        for _ in range(20):
            no = await refused(served.dispatch("loud"))
            assert (no.kind, no.code) == ("internal", grpc.StatusCode.INTERNAL)
            assert no.error.message.endswith("[cut]")
            assert no.status.ByteSize() < 4096


@pytest.mark.asyncio
async def test_five_thousand_schema_faults_arrive_as_a_schema_error() -> None:
    """As many as fit, and how many more (R005)."""
    async with serving() as served:
        served.add(
            "strict", echo, input_schema=b'{"type":"object","additionalProperties":{"type":"integer"}}'
        )
        no = await refused(served.dispatch("strict", {f"field-{n}": "é" * 20 for n in range(5000)}))
        assert (no.kind, no.code) == ("schema", grpc.StatusCode.INVALID_ARGUMENT)
        assert no.violations
        assert int(no.info.metadata["violations_cut"]) == 5000 - len(no.violations)
        assert no.violations[0].field.startswith("/field-")


@pytest.mark.asyncio
@pytest.mark.parametrize("text", ["🚂 ok", "two\nlines", "nul\x00", "lone \ud800 end", "x" * 505 + "🚂🚂🚂"])
async def test_any_text_leaves_as_valid_utf8(text: str) -> None:
    """Emoji, control characters, lone surrogates, a character at the cut; the server goes on (R006)."""
    async with serving() as served:
        end = AttemptEnd(kind=ErrorKind.TRANSIENT, outcome=Outcome.NOT_RUN, message=text, retry_after_s=0.0)
        served.add("odd", ends(end), answer("fine"), retry=ONCE)
        no = await refused(served.dispatch("odd"))
        assert no.kind == "transient"
        no.error.message.encode()
        assert "\ud800" not in no.error.message
        assert (await served.dispatch("odd")).answer.result_json == b'"fine"'


@pytest.mark.asyncio
async def test_a_tool_name_that_is_not_ascii_is_refused_as_a_field() -> None:
    """Non-ASCII never reaches a plain header (R006)."""
    async with serving() as served:
        no = await refused(served.dispatch("werkzeug-ü🚂"))
        assert no.kind == "schema"
        assert no.violations[0].field == "call.tool"


@pytest.mark.asyncio
@pytest.mark.parametrize("depth", [1, 10, 32, 33, 34, 50, 99, 100, 101, 1000])
async def test_a_deep_struct_is_refused_by_name_of_the_limit(depth: int) -> None:
    """Up to 32 levels run, beyond them INVALID_ARGUMENT; never UNKNOWN, never a hang (R105)."""
    async with serving() as served:
        served.add("echo", echo)
        raw = DispatchRequest(call=ToolCall(tool="echo")).SerializeToString()
        raw = _with_struct(raw, depth)
        if depth <= 32:
            assert await raw_dispatch(served, raw)
            return
        no = await refused(raw_dispatch(served, raw))
        assert (no.kind, no.code) == ("schema", grpc.StatusCode.INVALID_ARGUMENT)
        assert "32" in no.error.message
        assert served.tools["echo"].attempts == 0


def _with_struct(raw: bytes, depth: int) -> bytes:
    """The request with `depth` nested objects as arguments, written by hand: libraries refuse to."""
    inner = b""
    for _ in range(depth - 1):
        value = b"\x2a" + _length(inner) + inner
        entry = b"\x0a\x01a" + b"\x12" + _length(value) + value
        inner = b"\x0a" + _length(entry) + entry
    call = raw[2:] + b"\x12" + _length(inner) + inner
    return b"\x0a" + _length(call) + call


def _length(content: bytes) -> bytes:
    value, out = len(content), bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@pytest.mark.asyncio
@pytest.mark.parametrize("depth", [32, 33, 1000, 100_000])
async def test_deep_json_is_refused_by_name_of_the_limit(depth: int) -> None:
    """The same limit for JSON bytes (R105)."""
    async with serving() as served:
        served.add("echo", echo)
        raw = b'{"a":' * depth + b"1" + b"}" * depth
        if depth <= 32:
            assert (await served.dispatch("echo", raw)).answer.result_json == raw
            return
        no = await refused(served.dispatch("echo", raw))
        assert no.kind == "schema"
        assert "32" in no.error.message


@pytest.mark.asyncio
async def test_the_deepest_result_passes_and_a_deeper_one_is_bad_output() -> None:
    """A client must be able to decode every OK reply (R105)."""

    def deep(levels: int) -> Any:
        value: Any = {"end": 1}
        for _ in range(levels - 1):
            value = {"a": value}
        return value

    async with serving() as served:
        served.add("deep32", answer(deep(32)))
        reply = await served.dispatch("deep32", arguments=Struct())
        assert MessageToDict(reply.answer.result) == deep(32)
        served.add(
            "deep40", ends(AttemptEnd(kind=None, outcome=Outcome.DONE, result=json.dumps(deep(40)).encode()))
        )
        no = await refused(served.dispatch("deep40", arguments=Struct()))
        assert no.kind == "bad_output"
        assert no.error.outcome == errors_pb2.OUTCOME_DONE


@pytest.mark.asyncio
@pytest.mark.parametrize("raw", [b"\xff\xff\xff", b"\x0a\x05abc", b"\x0a\x04\x0a\x02\xff\xfe"])
async def test_bytes_that_are_no_request_are_the_callers_fault(raw: bytes) -> None:
    """INVALID_ARGUMENT with details where gRPC's own decoder would give a bare UNKNOWN (R105)."""
    async with serving() as served:
        no = await refused(raw_dispatch(served, raw))
        assert (no.kind, no.code) == ("schema", grpc.StatusCode.INVALID_ARGUMENT)
        assert "cannot be decoded" in no.error.message


@pytest.mark.asyncio
async def test_both_or_neither_form_of_arguments_is_refused() -> None:
    """Also in bytes that a library would read as the last of the two."""
    async with serving() as served:
        tool = served.add("echo", echo)
        neither = await refused(
            raw_dispatch(served, DispatchRequest(call=ToolCall(tool="echo")).SerializeToString())
        )
        call = (
            tool_call("echo").SerializeToString() + ToolCall(arguments=struct({"a": 1})).SerializeToString()
        )
        both = await refused(raw_dispatch(served, b"\x0a" + _length(call) + call))
        for no in (neither, both):
            assert no.kind == "schema"
            assert [violation.field for violation in no.violations] == ["call.arguments"]
        assert (await refused(raw_dispatch(served, b""))).violations[0].field == "call"
        assert tool.attempts == 0


@pytest.mark.asyncio
async def test_an_unknown_field_of_a_newer_caller_is_no_fault() -> None:
    """Protobuf's own promise."""
    async with serving() as served:
        served.add("echo", echo)
        call = tool_call("echo").SerializeToString() + b"\xfa\x3f\x03new" + b"\x50\x00"
        assert await raw_dispatch(served, b"\x0a" + _length(call) + call)


@pytest.mark.asyncio
async def test_a_message_over_the_receive_limit_leaves_the_channel_usable() -> None:
    """GRPC refuses it; the next call on the same channel works (R014)."""
    async with serving() as served:
        served.add("echo", answer("ok"))
        channel = served.channel(options=[("grpc.max_send_message_length", -1)])
        send: Any = channel.unary_unary(DISPATCH)
        big = DispatchRequest(call=tool_call("echo", {"x": "a" * (17 * 1024 * 1024)})).SerializeToString()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await send(big, timeout=10)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await send(DispatchRequest(call=tool_call("echo")).SerializeToString(), timeout=10)


@pytest.mark.asyncio
@pytest.mark.parametrize("form", ["arguments", "arguments_json"])
async def test_arguments_over_4_mib_are_refused_before_they_are_parsed(form: str) -> None:
    """Named in either form, whatever server.max_message says; 4 MiB themselves run (R014)."""
    async with serving() as served:
        tool = served.add("sink", answer("ok"))
        assert await raw_dispatch(served, _with_text(form, MAX_ARGUMENT_BYTES - 100))
        no = await refused(raw_dispatch(served, _with_text(form, MAX_ARGUMENT_BYTES)))
        assert (no.kind, no.code) == ("schema", grpc.StatusCode.INVALID_ARGUMENT)
        assert [violation.field for violation in no.violations] == [f"call.{form}"]
        assert "4194304 (4 MiB)" in no.error.message
        assert tool.attempts == 1


def _with_text(form: str, size: int) -> bytes:
    """A request whose arguments are one text of `size` characters and what surrounds it."""
    value = {"x": "a" * size}
    call = (
        ToolCall(tool="sink", arguments=struct(value))
        if form == "arguments"
        else ToolCall(tool="sink", arguments_json=json.dumps(value).encode())
    )
    return DispatchRequest(call=call).SerializeToString()


@pytest.mark.asyncio
async def test_a_field_given_a_million_times_holds_nobody_up() -> None:
    """Parsing takes them as one; looking at each for what parsing drops would take seconds."""
    async with serving() as served:
        tool = served.add("echo", echo)
        call = tool_call("echo").SerializeToString() + b"\x50\x01" * 2_000_000
        for raw in (b"\x0a" + _length(call) + call, b"\x0a" + _length(call * 2) + call * 2):
            started = time.process_time()
            no = await refused(raw_dispatch(served, raw))
            assert time.process_time() - started < 0.5  # without the bound 3 s and more
            assert no.kind == "schema"
            assert "more than 1000 fields" in no.error.message
        assert tool.attempts == 0


@pytest.mark.asyncio
async def test_malformed_requests_break_nothing() -> None:
    """A thousand mutations of a valid request: refused or answered, never INTERNAL or UNKNOWN."""
    async with serving() as served:
        served.add("echo", echo)
        chance = random.Random(7)
        good = DispatchRequest(call=tool_call("echo", {"a": [1, 2, {"b": "c"}]}, idempotency_key="key"))
        stub: Any = served.channel().unary_unary(DISPATCH)
        whole = good.SerializeToString()
        ends: set[str] = set()
        for _ in range(1000):
            raw = bytearray(whole)
            for _ in range(chance.randint(1, 4)):
                raw[chance.randrange(len(raw))] = chance.randrange(256)
            try:
                await stub(bytes(raw[: chance.randint(1, len(raw))]), timeout=5)
            except grpc.aio.AioRpcError as error:
                ends.add(refusal_of(error).code.name)
        assert "INVALID_ARGUMENT" in ends
        assert ends <= {"INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "UNIMPLEMENTED"}
        assert await stub(whole.replace(b"key", b"kez"), timeout=5)
