"""ToolService and CallService on a real wire."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from google.protobuf.struct_pb2 import Value

from lineside.v1 import calls_pb2, tools_pb2
from lineside.v1.calls_pb2 import GetCallRequest, KeyLookup, ListCallsRequest, SettleCallRequest
from lineside.v1.dispatch_pb2 import DispatchRequest
from lineside.v1.tools_pb2 import GetToolRequest, ListToolsRequest
from lineside_service.core.breaker import BreakerRules
from lineside_service.core.errors import ErrorKind
from lineside_service.core.retry import RetryRules
from lineside_service.core.tool import Effect, Idempotency
from lineside_service.edge.answers import RESULT_LIMIT
from tests.edge.test_batch import Stream
from tests.edge.test_drain import Gate
from tests.support.scripted_tool import answer, hang, says_no, transient
from tests.support.serving import Served, refused, serving, tool_call

NOWHERE = "01890a5d-ac96-774b-bcce-b302099a8057"


@pytest.mark.asyncio
async def test_a_tool_is_told_whole() -> None:
    """Schema, rules, effect, breaker and accounts; BASIC leaves out schemas and policies."""
    async with serving() as served:
        gate = Gate()
        served.add(
            "pay",
            gate,
            description="pays",
            input_schema=b'{"type":"object","properties":{"n":{"type":"integer"}}}',
            output_schema=b'{"type":"string"}',
            idempotency=Idempotency.BY_KEY,
            key_ttl_s=86_400.0,
            key_required=True,
            tool_class="money",
            timeout_s=2.5,
            concurrency=1,
            phases=True,
            reconcile="look",
            contract_hash="ab" * 32,
            breaker=BreakerRules(probes=2),
            retry=RetryRules(preset="remote", max_attempts=5),
        )
        served.add("look", answer(1), effect=Effect.SAFE, idempotency=Idempotency.YES)
        running = [served.dispatch("pay", idempotency_key=key) for key in ("a", "b")]
        held = [asyncio.ensure_future(call) for call in running]
        await gate.until_entered(1)
        tools, _ = served.looking()
        tool = (await tools.GetTool(GetToolRequest(name="pay"), timeout=5)).tool
        while not tool.waiting:
            tool = (await tools.GetTool(GetToolRequest(name="pay"), timeout=5)).tool
        assert (tool.name, tool.description, tool.tool_class) == ("pay", "pays", "money")
        assert json.loads(tool.input_schema_json)["properties"] == {"n": {"type": "integer"}}
        assert tool.output_schema_json == b'{"type":"string"}'
        assert (tool.kind, tool.effect, tool.idempotency) == (
            tools_pb2.TOOL_KIND_PYTHON,
            tools_pb2.EFFECT_FINAL,
            tools_pb2.IDEMPOTENCY_BY_KEY,
        )
        assert (tool.key_ttl.seconds, tool.key_required, tool.declares_phases) == (86_400, True, True)
        assert (tool.timeout.ToMilliseconds(), tool.concurrency, tool.reconcile) == (2500, 1, "look")
        assert (tool.retry.preset, tool.retry.max_attempts, tool.retry.budget_min) == ("remote", 5, 3)
        assert (tool.breaker.min_attempts, tool.breaker.probes) == (20, 2)
        assert tool.breaker_state == tools_pb2.BREAKER_STATE_CLOSED
        assert (tool.in_flight, tool.waiting, tool.abandoned) == (1, 1, 0)
        assert tool.contract_hash == "ab" * 32
        basic = (
            await tools.GetTool(GetToolRequest(name="pay", view=tools_pb2.TOOL_VIEW_BASIC), timeout=5)
        ).tool
        assert (basic.input_schema_json, basic.output_schema_json) == (b"", b"")
        assert not basic.HasField("retry")
        assert not basic.HasField("breaker")
        look = (await tools.GetTool(GetToolRequest(name="look"), timeout=5)).tool
        assert (look.effect, look.idempotency) == (tools_pb2.EFFECT_SAFE, tools_pb2.IDEMPOTENCY_IDEMPOTENT)
        assert look.breaker_state == tools_pb2.BREAKER_STATE_UNSPECIFIED
        gate.open.set()
        await asyncio.gather(*held)


@pytest.mark.asyncio
async def test_tools_come_in_pages_by_name() -> None:
    """A token goes on where the page ended, for the same question only."""
    async with serving() as served:
        served.add_many(f"tool-{number:03}" for number in range(250))
        tools, _ = served.looking()
        names: list[str] = []
        request = ListToolsRequest()
        while True:
            page = await tools.ListTools(request, timeout=5)
            names += [tool.name for tool in page.tools]
            if not page.next_page_token:
                break
            request.page_token = page.next_page_token
            request.page_size = 70
        assert names == [f"tool-{number:03}" for number in range(250)]
        first = await tools.ListTools(ListToolsRequest(page_size=5000), timeout=5)
        assert len(first.tools) == 250
        token = (await tools.ListTools(ListToolsRequest(page_size=10), timeout=5)).next_page_token
        for request, field in (
            (ListToolsRequest(page_size=-1), "page_size"),
            (ListToolsRequest(page_token="x"), "page_token"),
            (ListToolsRequest(page_token=token + "A"), "page_token"),
            (ListToolsRequest(page_token=token, view=tools_pb2.TOOL_VIEW_FULL), "page_token"),
            (ListToolsRequest(view=77), "view"),  # type: ignore[arg-type] # a number of a later version
        ):
            no = await refused(tools.ListTools(request, timeout=5))
            assert (no.kind, no.violations[0].field) == ("schema", field)


@pytest.mark.asyncio
async def test_a_page_of_large_tools_stays_a_message() -> None:
    """It is cut before it outgrows what a client takes, and goes on."""
    async with serving() as served:
        for number in range(8):
            served.add(f"wide-{number}", answer(1), description="x" * 1_000_000)
        tools, _ = served.looking()
        request, names, pages = ListToolsRequest(view=tools_pb2.TOOL_VIEW_FULL), [], 0
        while True:
            page = await tools.ListTools(request, timeout=10)
            pages += 1
            names += [tool.name for tool in page.tools]
            if not page.next_page_token:
                break
            request.page_token = page.next_page_token
        assert names == [f"wide-{number}" for number in range(8)]
        assert pages > 2


@pytest.mark.asyncio
async def test_get_tool_refuses_by_name() -> None:
    """Unknown with a suggestion, empty and too long as fields."""
    async with serving() as served:
        served.add("weather.get", answer(1))
        tools, _ = served.looking()
        no = await refused(tools.GetTool(GetToolRequest(name="weather.gte"), timeout=5))
        assert no.kind == "not_found"
        assert "weather.get" in no.error.message
        assert no.error.outcome == 0
        for name in ("", "x" * 129):
            no = await refused(tools.GetTool(GetToolRequest(name=name), timeout=5))
            assert (no.kind, no.violations[0].field) == ("schema", "name")


async def keyed(served: Served, tool: str, key: str, **fields: Any) -> str:
    """Make a keyed call; its id, whatever its end."""
    request = DispatchRequest(call=tool_call(tool, idempotency_key=key, **fields))
    rpc = served.dispatching().Dispatch(request, timeout=10)
    try:
        reply = await rpc
    except Exception:  # noqa: BLE001 - the refusal is read from the RPC below
        no = await refused(rpc)
        return str(no.error.call_id)
    answered: str = reply.answer.call_id
    return answered


@pytest.mark.asyncio
async def test_a_call_is_found_by_id_and_by_key() -> None:
    """Done, with its exact result, attempts and decisions; running; a keyless one while it runs."""
    async with serving() as served:
        gate = Gate()
        served.add("flaky", transient(), answer({"id": 2**60}))
        served.add("slow", gate)
        _, calls = served.looking()
        call_id = await keyed(served, "flaky", "k")
        by_id = (await calls.GetCall(GetCallRequest(call_id=call_id), timeout=5)).call
        key = KeyLookup(tool="flaky", idempotency_key="k")
        assert (await calls.GetCall(GetCallRequest(key=key), timeout=5)).call == by_id
        assert by_id.state == calls_pb2.Call.STATE_DONE
        assert (by_id.call_id, by_id.tool, by_id.idempotency_key) == (call_id, "flaky", "k")
        assert by_id.result_json == b'{"id":1152921504606846976}'
        assert (by_id.attempts, by_id.tenant, by_id.attempt_in_flight) == (2, "local", False)
        assert [record.number for record in by_id.attempt_records] == [1, 2]
        first, second = by_id.attempt_records
        assert (first.kind, second.kind) == (4, 0)
        assert second.HasField("backoff")
        assert not first.HasField("backoff")
        assert any(decision.choice == "retry" and decision.numbers for decision in by_id.decisions)
        assert by_id.etag
        assert by_id.HasField("end_time")
        assert by_id.HasField("expire_time")
        assert by_id.start_time.seconds <= by_id.first_started_time.seconds

        running = [
            asyncio.ensure_future(served.dispatch("slow", idempotency_key="r")),
            asyncio.ensure_future(served.dispatch("slow")),
        ]
        await gate.until_entered(2)
        lookup = GetCallRequest(key=KeyLookup(tool="slow", idempotency_key="r"))
        now = (await calls.GetCall(lookup, timeout=5)).call
        assert (now.state, now.attempt_in_flight) == (calls_pb2.Call.STATE_RUNNING, True)
        assert now.attempt_records[0].outcome == 4
        assert not now.attempt_records[0].HasField("duration")
        keyless_id = next(iter(served.dispatcher._alone))
        keyless = (await calls.GetCall(GetCallRequest(call_id=keyless_id), timeout=5)).call
        assert (keyless.tool, keyless.state, keyless.etag) == ("slow", calls_pb2.Call.STATE_RUNNING, "")
        assert not keyless.HasField("idempotency_key")
        gate.open.set()
        await asyncio.gather(*running)
        gone = await refused(calls.GetCall(GetCallRequest(call_id=keyless_id), timeout=5))
        assert gone.kind == "not_found"


@pytest.mark.asyncio
async def test_get_call_refuses_by_field() -> None:
    """Nothing to look for, no UUID, empty or long keys; what is not there is not_found."""
    async with serving() as served:
        _, calls = served.looking()
        for request, fields in (
            (GetCallRequest(), ["call_id"]),
            (GetCallRequest(call_id="abc"), ["call_id"]),
            (GetCallRequest(call_id=NOWHERE.upper()), ["call_id"]),
            (GetCallRequest(key=KeyLookup()), ["key.tool", "key.idempotency_key"]),
            (GetCallRequest(key=KeyLookup(tool="t", idempotency_key="k" * 256)), ["key.idempotency_key"]),
        ):
            no = await refused(calls.GetCall(request, timeout=5))
            assert (no.kind, [violation.field for violation in no.violations]) == ("schema", fields)
        for request in (
            GetCallRequest(call_id=NOWHERE),
            GetCallRequest(key=KeyLookup(tool="t", idempotency_key="k")),
        ):
            no = await refused(calls.GetCall(request, timeout=5))
            assert (no.kind, no.details["ResourceInfo"].resource_type) == ("not_found", "call")


@pytest.mark.asyncio
async def test_calls_are_listed_in_pages_and_by_filter() -> None:
    """Without results; the filters belong to the token."""
    async with serving() as served:
        served.add("a", answer(1))
        served.add("b", says_no("no"))
        for number in range(25):
            await keyed(served, "ab"[number % 2], str(number))
        _, calls = served.looking()
        seen: list[str] = []
        request = ListCallsRequest(page_size=10, state=calls_pb2.Call.STATE_DONE)
        while True:
            page = await calls.ListCalls(request, timeout=5)
            seen += [call.idempotency_key for call in page.calls]
            assert all(call.WhichOneof("result_form") is None for call in page.calls)
            assert not any(call.attempt_records or call.decisions for call in page.calls)
            if not page.next_page_token:
                break
            request.page_token = page.next_page_token
        assert sorted(seen, key=int) == [str(number) for number in range(25)]
        only = await calls.ListCalls(ListCallsRequest(tool="b"), timeout=5)
        assert len(only.calls) == 12
        assert all(call.tool_error for call in only.calls)
        none = await calls.ListCalls(ListCallsRequest(state=calls_pb2.Call.STATE_UNKNOWN), timeout=5)
        assert not none.calls
        token = (await calls.ListCalls(ListCallsRequest(page_size=1), timeout=5)).next_page_token
        for request, field in (
            (ListCallsRequest(page_size=-1), "page_size"),
            (ListCallsRequest(page_token=token, tool="a"), "page_token"),
            (ListCallsRequest(page_token=token, state=calls_pb2.Call.STATE_DONE), "page_token"),
            (ListCallsRequest(state=9), "state"),  # type: ignore[arg-type] # a number of a later version
            (ListCallsRequest(tool="x" * 129), "tool"),
        ):
            no = await refused(calls.ListCalls(request, timeout=5))
            assert (no.kind, no.violations[0].field) == ("schema", field)


async def an_unknown(served: Served, key: str) -> Any:
    """A keyed call whose outcome nobody knows, as GetCall tells it."""
    if "lost" not in served.tools:
        served.add("lost", hang(), timeout_s=0.05, retry=RetryRules(max_attempts=1))
    call_id = await keyed(served, "lost", key)
    _, calls = served.looking()
    call: Any = None
    async with asyncio.timeout(5):
        while call is None or call.attempt_in_flight or call.state != calls_pb2.Call.STATE_UNKNOWN:
            call = (await calls.GetCall(GetCallRequest(call_id=call_id), timeout=5)).call
    return call


@pytest.mark.asyncio
async def test_a_person_settles_an_unknown_outcome() -> None:
    """Done with a result, or not run; the first settlement stands, the same again is fine."""
    async with serving() as served:
        call = await an_unknown(served, "k")
        again = await refused(served.dispatch("lost", idempotency_key="k"))
        assert (again.kind, again.error.call_id) == ("outcome_unknown", call.call_id)
        assert "PreconditionFailure" in again.details
        _, calls = served.looking()
        done = SettleCallRequest.Done(result_json=b' {"ok": [1, 2.5]} ')
        request = SettleCallRequest(
            call_id=call.call_id, etag=call.etag, done=done, reason="seen at the bank"
        )
        settled = (await calls.SettleCall(request, timeout=5)).call
        assert (settled.state, settled.settled_by) == (calls_pb2.Call.STATE_DONE, calls_pb2.SETTLED_BY_PERSON)
        assert (settled.settle_reason, settled.ever_unknown) == ("seen at the bank", True)
        assert settled.result_json == b'{"ok":[1,2.5]}'
        assert settled.HasField("settled_time")
        assert (await calls.SettleCall(request, timeout=5)).call.etag == settled.etag
        request.not_run.SetInParent()
        no = await refused(calls.SettleCall(request, timeout=5))
        assert (no.kind, "PreconditionFailure" in no.details) == ("conflict", True)
        replayed = await served.dispatch("lost", idempotency_key="k")
        assert replayed.answer.result_json == b'{"ok":[1,2.5]}'

        other = await an_unknown(served, "k2")
        stale = SettleCallRequest(call_id=other.call_id, etag="old", reason="r")
        stale.not_run.SetInParent()
        assert (await refused(calls.SettleCall(stale, timeout=5))).info.reason == "STALE_ETAG"
        stale.etag = other.etag
        assert (await calls.SettleCall(stale, timeout=5)).call.state == calls_pb2.Call.STATE_NOT_RUN


@pytest.mark.asyncio
async def test_a_settlement_may_bring_a_value() -> None:
    """With the same exactness as everywhere."""
    async with serving() as served:
        call = await an_unknown(served, "k")
        _, calls = served.looking()
        done = SettleCallRequest.Done(result=Value(number_value=3), tool_error=True)
        request = SettleCallRequest(call_id=call.call_id, etag=call.etag, done=done, reason="r")
        settled = (await calls.SettleCall(request, timeout=5)).call
        assert (settled.result_json, settled.tool_error) == (b"3", True)


@pytest.mark.asyncio
async def test_settle_call_refuses_by_field() -> None:
    """Everything that is wrong at once; JSON as strict as arguments are."""
    async with serving() as served:
        _, calls = served.looking()
        no = await refused(calls.SettleCall(SettleCallRequest(), timeout=5))
        assert {violation.field for violation in no.violations} == {"call_id", "etag", "reason", "done"}
        good: dict[str, Any] = {"call_id": NOWHERE, "etag": "e", "reason": "r"}
        done = SettleCallRequest.Done
        for settlement, field in (
            (done(), "done.result"),
            (done(result_json=b""), "done.result_json"),
            (done(result_json=b"1, 2"), "done.result_json"),
            (done(result_json=b'1,"x":2'), "done.result_json"),
            (done(result_json=b'{"a":1,"a":2}'), "done.result_json/a"),
            (done(result_json=b"NaN"), "done.result_json"),
            (done(result_json=b'["\\ud800"]'), "done.result_json/0"),
            (done(result_json=b"[" * 33 + b"]" * 33), "done.result_json"),
            (done(result_json=b" " * RESULT_LIMIT + b"1"), "done.result_json"),
            (done(result=Value(number_value=2.0**60)), "done.result"),
        ):
            no = await refused(calls.SettleCall(SettleCallRequest(done=settlement, **good), timeout=5))
            assert no.kind == "schema"
            assert no.violations[0].field == field, no.status
            assert "33 levels" not in no.violations[0].description
        request = SettleCallRequest(done=done(result_json=b"[" * 32 + b"]" * 32), **good)
        assert (await refused(calls.SettleCall(request, timeout=5))).kind == "not_found"
        good["reason"] = "r" * 1025
        request = SettleCallRequest(done=done(result_json=b"1"), **good)
        assert (await refused(calls.SettleCall(request, timeout=5))).violations[0].field == "reason"


@pytest.mark.asyncio
async def test_a_kept_failure_is_told() -> None:
    """A call whose answer could not be used is DONE with an error."""
    async with serving() as served:
        served.add("huge", answer("x" * 2000), result_limit=1000)
        from lineside_service.core.attempt import AttemptEnd
        from lineside_service.core.errors import Outcome
        from tests.support.scripted_tool import ends

        end = AttemptEnd(
            kind=ErrorKind.BAD_OUTPUT, outcome=Outcome.DONE, message="2002 bytes; the limit is 1000"
        )
        served.add("bad", ends(end))
        call_id = await keyed(served, "bad", "k")
        _, calls = served.looking()
        call = (await calls.GetCall(GetCallRequest(call_id=call_id), timeout=5)).call
        assert call.state == calls_pb2.Call.STATE_DONE
        assert (call.error.kind, call.error.message) == (10, "2002 bytes; the limit is 1000")
        assert call.WhichOneof("result_form") is None
        stream = Stream(served)
        await stream.finish()
