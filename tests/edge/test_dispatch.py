"""The unary road on a real wire."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any
from urllib.parse import quote

import grpc
import msgspec
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct

from lineside.v1 import errors_pb2
from lineside.v1.dispatch_pb2 import DispatchRequest, ToolCall
from lineside_service.core.attempt import AttemptEnd
from lineside_service.core.call import Call
from lineside_service.core.errors import ErrorKind, Outcome
from lineside_service.core.retry import RetryRules
from tests.support.cut_proxy import cut_proxy
from tests.support.scripted_tool import Turn, answer, ends, hang, raises, says_no, transient
from tests.support.serving import (
    DISPATCH,
    Served,
    refusal_of,
    refused,
    serving,
    struct,
    tool_call,
)

ONCE = RetryRules(max_attempts=1)


async def echo(turn: Turn) -> Any:
    """Answer with the arguments."""
    return turn.request.arguments


async def raw_dispatch(served: Served, raw: bytes, **more: Any) -> bytes:
    """Send these bytes as a request."""
    send: Any = served.channel(options=[("grpc.max_send_message_length", -1)]).unary_unary(DISPATCH)
    reply: bytes = await send(raw, timeout=10, **more)
    return reply


@pytest.mark.asyncio
async def test_the_answer_mirrors_the_form_of_the_arguments() -> None:
    """JSON bytes are answered by JSON bytes, a Struct by a Value; all facts of the execution come along."""
    async with serving() as served:
        served.add("echo", echo)
        exact = (await served.dispatch("echo", {"id": 9007199254740993})).answer
        assert msgspec.json.decode(exact.result_json) == {"id": 9007199254740993}
        assert exact.WhichOneof("result_form") == "result_json"
        assert (exact.attempts, exact.source, exact.tool_error) == (1, errors_pb2.SOURCE_EXECUTED, False)
        assert len(exact.call_id) == 36
        assert len(exact.trace_id) == 32
        assert exact.HasField("queue_time")
        assert exact.HasField("run_time")
        assert exact.first_started_time.seconds > 1_700_000_000
        as_struct = (await served.dispatch("echo", arguments=struct({"id": 3, "x": [None, True]}))).answer
        assert MessageToDict(as_struct.result) == {"id": 3, "x": [None, True]}


@pytest.mark.asyncio
async def test_a_tool_that_said_no_is_an_answer() -> None:
    """Models read it; it is no error of the service."""
    async with serving() as served:
        served.add("no", says_no({"why": "closed"}))
        reply = (await served.dispatch("no")).answer
        assert reply.tool_error
        assert json.loads(reply.result_json) == {"why": "closed"}


@pytest.mark.asyncio
async def test_validate_only_runs_nothing() -> None:
    """The answer has source VALIDATED and nothing of an execution."""
    async with serving() as served:
        tool = served.add("echo", echo)
        reply = (await served.dispatch("echo", validate_only=True)).answer
        assert reply.source == errors_pb2.SOURCE_VALIDATED
        assert reply.WhichOneof("result_form") is None
        assert (reply.attempts, reply.call_id, tool.attempts) == (0, "", 0)
        assert not reply.HasField("run_time")


@pytest.mark.asyncio
async def test_a_result_that_a_struct_cannot_hold_is_done_but_refused() -> None:
    """It ran; the refusal says how to get the exact result (R103)."""
    async with serving() as served:
        served.add("big", answer({"id": 2**53 + 1}))
        no = await refused(served.dispatch("big", arguments=Struct()))
        assert (no.kind, no.code) == ("bad_output", grpc.StatusCode.INTERNAL)
        assert no.error.outcome == errors_pb2.OUTCOME_DONE
        assert no.error.attempts == 1
        assert no.error.call_id
        assert "arguments_json" in no.error.message
        served.add("wide", answer([1] * 900_000))
        no = await refused(served.dispatch("wide", arguments=Struct()))
        assert no.kind == "bad_output"
        assert "limit" in no.error.message
        assert len((await served.dispatch("wide")).answer.result_json) == 1_800_001
        end = AttemptEnd(kind=None, outcome=Outcome.DONE, result=b'"' + b"x" * 5_000_000 + b'"')
        served.add("vast", ends(end), result_limit=8_000_000)
        no = await refused(served.dispatch("vast"))
        assert (no.kind, no.info.reason) == ("bad_output", "RESULT_TOO_LARGE")


@pytest.mark.asyncio
async def test_a_failure_of_a_tool_carries_everything() -> None:
    """Status, envelope, ErrorInfo and trailers of a transient that outlived its attempts."""
    async with serving() as served:
        served.add("down", transient(retry_after_s=7.5), retry=ONCE)
        no = await refused(served.dispatch("down"))
        assert (no.kind, no.code) == ("transient", grpc.StatusCode.UNAVAILABLE)
        assert no.error.attempts == 1
        assert no.error.retry_after.ToMilliseconds() == 7500
        assert no.details["RetryInfo"].retry_delay.ToMilliseconds() == 7500
        assert no.pushback == "-1"
        assert len(no.error.trace_id) == 32


@pytest.mark.asyncio
async def test_an_unknown_tool_is_not_found() -> None:
    """With the name in ResourceInfo and a suggestion in the text."""
    async with serving() as served:
        served.add("weather.get", echo)
        no = await refused(served.dispatch("weather.gte"))
        assert (no.kind, no.code) == ("not_found", grpc.StatusCode.NOT_FOUND)
        assert no.details["ResourceInfo"].resource_name == "weather.gte"
        assert "weather.get" in no.error.message
        assert no.pushback is None


async def raises_cancelled(turn: Turn) -> Any:
    """Raise CancelledError though nobody cancelled."""
    raise asyncio.CancelledError("x")


async def leaks_inner_cancel(turn: Turn) -> Any:
    """Cancel an inner task and let its end escape."""
    inner = asyncio.ensure_future(asyncio.sleep(60))
    asyncio.get_running_loop().call_soon(inner.cancel)
    await inner


@pytest.mark.asyncio
@pytest.mark.parametrize("step", [raises_cancelled, leaks_inner_cancel])
async def test_a_tool_that_cancels_itself_ends_with_a_status(step: Any) -> None:
    """No deadline, one attempt: the caller gets a final status, and the next call works (R001)."""
    async with serving() as served:
        tool = served.add("selfcancel", step, answer("fine"), retry=ONCE)
        async with asyncio.timeout(5):
            no = await refused(served.dispatching().Dispatch(DispatchRequest(call=tool_call("selfcancel"))))
        assert no.code is not grpc.StatusCode.OK
        assert no.kind in {"internal", "cancelled"}
        assert (await served.dispatch("selfcancel")).answer.result_json == b'"fine"'
        assert tool.running == 0


class Broken:
    """A dispatcher with a fault of our own."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def dispatch(self, call: Call) -> Any:
        """Fail."""
        raise self.error

    def begin_drain(self, grace_s: float) -> None:
        """Nothing is in flight."""

    async def drain(self, grace_s: float) -> bool:
        """Nothing is in flight."""
        return True


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "error",
    [ValueError("canary-7f3a https://u:canary-7f3a@h/?k=canary-7f3a"), asyncio.CancelledError("canary-7f3a")],
)
async def test_a_fault_of_ours_is_opaque(error: BaseException) -> None:
    """Neither caller, span nor log sees the text of an exception; the log has type and place (R001, R111)."""
    async with serving(dispatcher=Broken(error), may_fault=True) as served:
        async with asyncio.timeout(5):
            call = DispatchRequest(call=tool_call("any", {"secret": "canary-7f3a"}))
            no = await refused(served.dispatching().Dispatch(call))
        assert (no.kind, no.code) == ("internal", grpc.StatusCode.INTERNAL)
        assert no.error.outcome == errors_pb2.OUTCOME_UNKNOWN
        spans = [span.to_json() for span in served.spans.get_finished_spans()]
        seen = f"{no.status} {no.trailers} {served.log.lines} {spans}"
        canary = "canary-7f3a"
        for shape in (canary, quote(canary), base64.b64encode(canary.encode()).decode()[:12]):
            assert shape not in seen
        [(_, event, fields)] = served.log.lines
        assert event == "rpc.fault"
        assert type(error).__name__ in str(fields["error_type"])
        assert "dispatch" in str(fields["where"])


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


def nested(depth: int) -> Struct:
    """A Struct of that many objects inside each other."""
    whole = Struct()
    inner = whole
    for _ in range(depth - 1):
        inner = inner.fields["a"].struct_value
    inner.SetInParent()
    return whole


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
        fits = DispatchRequest(call=tool_call("echo", {"x": "a" * (15 * 1024 * 1024)})).SerializeToString()
        assert await send(fits, timeout=30)


@pytest.mark.asyncio
async def test_the_largest_result_passes_a_default_client() -> None:
    """A result at the limit fits into the 4 MiB that clients take by default, with all around it (R014)."""
    async with serving() as served:
        limit = 4 * 1024 * 1024 - 64 * 1024
        served.add("blob", answer("x" * (limit - 2)))
        assert len((await served.dispatch("blob", timeout=30)).answer.result_json) == limit


@pytest.mark.asyncio
async def test_the_typed_error_beats_the_deadline() -> None:
    """A call that times out at the caller's own RPC deadline still tells what is known."""
    async with serving() as served:
        served.add("slow", hang())
        stub = served.dispatching()
        for timeout in (0.1, 0.2, 0.3):
            no = await refused(stub.Dispatch(DispatchRequest(call=tool_call("slow")), timeout=timeout))
            assert (no.kind, no.code) == ("timeout", grpc.StatusCode.DEADLINE_EXCEEDED)


@pytest.mark.asyncio
@pytest.mark.soak
async def test_the_typed_error_beats_a_deadline_that_was_rounded_up() -> None:
    """Ten seconds arrive as 10.1; the answer still comes before the caller goes."""
    async with serving() as served:
        served.add("slow", hang(), timeout_s=60.0)
        stub = served.dispatching()
        rpcs = [
            stub.Dispatch(DispatchRequest(call=tool_call("slow")), timeout=10 + n / 100) for n in range(20)
        ]
        for rpc in rpcs:
            assert (await refused(rpc)).kind == "timeout"


@pytest.mark.asyncio
async def test_a_call_timeout_bounds_a_call_without_rpc_deadline() -> None:
    """The field alone is enough."""
    async with serving() as served:
        served.add("slow", hang())
        call = tool_call("slow", call_timeout=Duration(nanos=100_000_000))
        no = await refused(served.dispatching().Dispatch(DispatchRequest(call=call)))
        assert no.kind == "timeout"


@pytest.mark.asyncio
async def test_a_caller_that_leaves_cancels_a_keyless_call() -> None:
    """The tool sees it at once."""
    async with serving() as served:
        entered, left = asyncio.Event(), asyncio.Event()

        async def waits(turn: Turn) -> Any:
            entered.set()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                left.set()

        served.add("slow", waits)
        rpc = served.dispatching().Dispatch(DispatchRequest(call=tool_call("slow")))
        async with asyncio.timeout(5):
            await entered.wait()
            rpc.cancel()
            await left.wait()
        with pytest.raises(asyncio.CancelledError):
            await rpc


RETRYING = json.dumps(
    {
        "methodConfig": [
            {
                "name": [{"service": "lineside.v1.DispatchService"}],
                "retryPolicy": {
                    "maxAttempts": 4,
                    "initialBackoff": "0.01s",
                    "maxBackoff": "0.02s",
                    "backoffMultiplier": 1,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ]
    }
)
"""A service config against all advice: it repeats Dispatch by itself."""


@pytest.mark.asyncio
@pytest.mark.parametrize("key", [None, "k"])
async def test_a_channel_that_retries_repeats_no_effect(key: str | None) -> None:
    """The connection is cut after the effect; what the channel sends again does not run again."""
    async with serving() as served, cut_proxy(served.target) as proxy:

        async def pays(turn: Turn) -> Any:
            turn.effect()
            if not proxy.cuts:
                proxy.cut()
                await turn.until(0.2)
            return "paid"

        tool = served.add("pay", pays)
        channel = served.channel(target=proxy.target, options=[("grpc.service_config", RETRYING)])
        call = tool_call("pay") if key is None else tool_call("pay", idempotency_key=key)
        rpc = served.dispatching(channel).Dispatch(DispatchRequest(call=call), timeout=5)
        if key is None:
            no = await refused(rpc)
            assert no.kind == "outcome_unknown"
            assert no.error.attempts == 0
            assert no.info.metadata["previous-attempts"] == "1"
        else:
            assert (await rpc).answer.result_json == b'"paid"'
        assert (len(served.effects), tool.attempts) == (1, 1)


@pytest.mark.asyncio
async def test_a_full_server_refuses_work_and_lets_control_through() -> None:
    """Over the bound: overloaded with details and a hint; looking at tools, and health, still work."""
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from lineside.v1.tools_pb2 import ListToolsRequest
    from lineside_service.edge.settings import ServerSettings

    async with serving(settings=ServerSettings(listen="127.0.0.1:0", max_rpcs=2)) as served:
        release, both_in = asyncio.Event(), asyncio.Event()

        async def waits(turn: Turn) -> Any:
            if turn.tool.running == 2:
                both_in.set()
            await release.wait()
            return "done"

        served.add("slow", waits)
        channel = served.channel()
        stub = served.dispatching(channel)
        held = [stub.Dispatch(DispatchRequest(call=tool_call("slow")), timeout=10) for _ in range(2)]
        await both_in.wait()
        for _ in range(5):
            no = await refused(stub.Dispatch(DispatchRequest(call=tool_call("slow")), timeout=10))
            assert (no.kind, no.code) == ("overloaded", grpc.StatusCode.RESOURCE_EXHAUSTED)
            assert no.info.reason == "TOO_MANY_RPCS"
            assert "RetryInfo" in no.details
        tools, _ = served.looking(channel)
        assert len((await tools.ListTools(ListToolsRequest(), timeout=5)).tools) == 1
        health: Any = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(health_pb2.HealthCheckRequest(), timeout=5)).status == 1
        release.set()
        for rpc in held:
            assert (await rpc).answer.result_json == b'"done"'


@pytest.mark.asyncio
async def test_malformed_requests_break_nothing() -> None:
    """A thousand mutations of a valid request: refused or answered, never INTERNAL or UNKNOWN."""
    async with serving() as served:
        served.add("echo", echo)
        import random

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


@pytest.mark.asyncio
async def test_an_exception_text_of_a_tool_stays_inside() -> None:
    """What a tool raises by surprise is opaque to its caller (R111)."""
    async with serving() as served:
        served.add("boom", raises(lambda: ValueError("canary-7f3a")), retry=ONCE)
        no = await refused(served.dispatch("boom"))
        assert no.kind == "internal"
        assert "canary" not in str(no.status)
