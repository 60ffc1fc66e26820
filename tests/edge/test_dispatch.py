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
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lineside.v1 import errors_pb2
from lineside.v1.dispatch_pb2 import DispatchRequest
from lineside.v1.tools_pb2 import ListToolsRequest
from lineside_service.core.attempt import AttemptEnd
from lineside_service.core.call import Call
from lineside_service.core.errors import ErrorKind, Outcome, Violation
from lineside_service.core.retry import RetryRules
from lineside_service.edge.settings import ServerSettings
from tests.support.cut_proxy import cut_proxy
from tests.support.scripted_tool import Turn, answer, ends, hang, raises, says_no, transient
from tests.support.serving import (
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
async def test_the_largest_result_passes_a_default_client() -> None:
    """A result at the limit fits into the 4 MiB that clients take by default, with all around it (R014)."""
    async with serving() as served:
        limit = 4 * 1024 * 1024 - 64 * 1024
        served.add("blob", answer("x" * (limit - 2)))
        assert len((await served.dispatch("blob", timeout=30)).answer.result_json) == limit


@pytest.mark.asyncio
async def test_the_typed_error_beats_the_deadline() -> None:
    """A call that times out at the caller's own RPC deadline still tells what is known.

    A machine that stands still for the 10 or 20 ms of the margin gives the bare code: hence a few tries.
    """
    async with serving() as served:
        served.add("slow", hang(), concurrency=100)
        stub = served.dispatching()
        for timeout in (0.1, 0.2, 0.3):
            for _ in range(5):
                rpc = stub.Dispatch(DispatchRequest(call=tool_call("slow")), timeout=timeout)
                assert await rpc.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                if any(key == "grpc-status-details-bin" for key, _ in await rpc.trailing_metadata()):
                    assert (await refused(rpc)).kind == "timeout"
                    break
            else:
                pytest.fail(f"five calls in a row ended bare at {timeout} s")


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
async def test_the_bound_holds_after_refusals() -> None:
    """A wave over the bound, rest, a larger wave: never more at once, and back to nothing (R003)."""
    release = asyncio.Event()

    async def held(turn: Turn) -> Any:
        await release.wait()
        return "ok"

    async with serving(settings=ServerSettings(listen="127.0.0.1:0", max_rpcs=2)) as served:
        tool = served.add("slow", held, concurrency=64)
        for wave in (10, 50):
            release.clear()
            running = {asyncio.ensure_future(served.dispatch("slow")) for _ in range(wave)}
            while len(running) > 2:
                refusals, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                assert {(await refused(no)).kind for no in refusals} == {"overloaded"}
            assert (served.server.runner.working, tool.running, tool.peak) == (2, 2, 2)
            release.set()
            for answered in running:
                assert (await answered).answer.result_json == b'"ok"'
            assert (served.server.runner.active, served.server.runner.working) == (0, 0)


@pytest.mark.asyncio
@pytest.mark.parametrize("max_rpcs", [10_000, 2])
async def test_a_burst_is_answered_or_refused_by_us(max_rpcs: int) -> None:
    """2,000 calls at once: none ends as a bare CANCELLED, which is gRPC's word for too many."""
    settings = ServerSettings(listen="127.0.0.1:0", max_rpcs=max_rpcs)
    async with serving(settings=settings) as served:
        served.add("quick", concurrency=2_000)
        stub = served.dispatching()
        rpcs = [stub.Dispatch(DispatchRequest(call=tool_call("quick")), timeout=30) for _ in range(2_000)]
        ends_of = await asyncio.gather(*rpcs, return_exceptions=True)
        refusals = [refusal_of(end) for end in ends_of if isinstance(end, grpc.aio.AioRpcError)]
        assert {no.kind for no in refusals} <= {"overloaded"}
        assert max_rpcs == 2 or not refusals


@pytest.mark.asyncio
async def test_an_exception_text_of_a_tool_stays_inside() -> None:
    """What a tool raises by surprise is opaque to its caller (R111)."""
    async with serving() as served:
        served.add("boom", raises(lambda: ValueError("canary-7f3a")), retry=ONCE)
        no = await refused(served.dispatch("boom"))
        assert no.kind == "internal"
        assert "canary" not in str(no.status)


@pytest.mark.asyncio
async def test_an_argument_that_the_function_cannot_take_is_a_violation_too() -> None:
    """Found after the schema had passed, it has its BadRequest with the JSON Pointer all the same (R103)."""
    wrong = Violation(field="/id", message="must be an integer", rule="UNUSABLE")
    end = AttemptEnd(
        kind=ErrorKind.SCHEMA, outcome=Outcome.NOT_RUN, reason="ARGUMENT_UNUSABLE", violations=(wrong,)
    )
    async with serving() as served:
        served.add("ids", ends(end))
        no = await refused(served.dispatch("ids", {"id": 1e30}))
        assert (no.kind, no.info.reason) == ("schema", "ARGUMENT_UNUSABLE")
        assert [(v.field, v.reason) for v in no.violations] == [("/id", "UNUSABLE")]
