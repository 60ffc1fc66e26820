"""Single calls and questions, on asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime

import lineside
from tests.client.stories.telling import arrived, failure, new_name, seen


async def answer_is_whole(target: str) -> None:
    """An answer comes back with every field of the contract, and every parameter reaches the service."""
    async with lineside.AsyncClient(target) as client:
        name = new_name()
        answer = await client.dispatch(
            "echo",
            {"name": name, "big": 12345678901234567890123, "text": "ü\n"},
            idempotency_key="k1",
            timeout_s=20,
            attempt_timeout_s=1.5,
            budget_tool_calls_remaining=4,
        )
        assert answer.result == {"name": name, "big": 12345678901234567890123, "text": "ü\n"}
        assert (answer.tool_error, answer.attempts, answer.source) == (False, 2, "executed")
        assert (answer.queue_time_s, answer.run_time_s) == (0.25, 1.5)
        assert answer.first_started_time == datetime.fromtimestamp(1_700_000_000, UTC)
        call = (await seen(client, name))["calls"][0]
        assert (call["key"], call["attempt_timeout_s"], call["budget"]) == ("k1", 1.5, 4)
        assert 19 < call["call_timeout_s"] <= 20


async def tool_that_says_no_is_an_answer(target: str) -> None:
    """tool_error is part of an answer; bytes travel as they are."""
    async with lineside.AsyncClient(target) as client:
        answer = await client.dispatch("say_no", b'{"name": "x", "n": 1.50}')
        assert answer.tool_error
        assert answer.result == {"name": "x", "n": 1.5}


async def error_is_typed_and_whole(target: str) -> None:
    """A refusal arrives as the class of its kind with what the envelope and its neighbours say."""
    told = {
        "kind": "transient",
        "outcome": "unknown",
        "attempts": 3,
        "retry_after_s": 1.5,
        "call_id": "c-1",
        "reason": "UPSTREAM_503",
        "stopped_by": "RETRY_BUDGET",
    }
    async with lineside.AsyncClient(target) as client:
        call = client.dispatch("refuse", {"name": new_name(), "status": told}, idempotency_key="k")
        error = await failure(call)
        assert isinstance(error, lineside.TransientFailure)
        assert (error.kind, error.outcome, error.attempts) == ("transient", "unknown", 3)
        assert (error.retry_after_s, error.call_id, error.next) == (1.5, "c-1", ("on_error",))
        assert (error.reason, error.stopped_by) == ("UPSTREAM_503", "RETRY_BUDGET")
        assert error.code.name == "UNAVAILABLE"
        assert error.trace_id == "0af7651916cd43dd8448eb211c80319c"


async def keyed_call_survives_a_cut(target: str) -> None:
    """A keyed call whose connection is cut twice is sent again with the same key and less time."""
    async with lineside.AsyncClient(target) as client:
        name = new_name()
        answer = await client.dispatch(
            "cut", {"name": name, "times": 2}, idempotency_key="once", timeout_s=30
        )
        assert answer.result["name"] == name
        calls = (await seen(client, name))["calls"]
        assert [call["key"] for call in calls] == ["once"] * 3
        times = [call["call_timeout_s"] for call in calls]
        assert times == sorted(times, reverse=True)
        assert len(set(times)) == 3


async def keyless_call_is_never_sent_twice(target: str) -> None:
    """A keyless call whose connection is cut after its effect is one effect and outcome UNKNOWN."""
    async with lineside.AsyncClient(target) as client:
        name = new_name()
        error = await failure(client.dispatch("cut", {"name": name}))
        assert isinstance(error, lineside.ConnectionLost)
        assert (error.kind, error.outcome) == ("unavailable", "unknown")
        assert (await seen(client, name))["effects"] == 1


async def pushback_allows_a_keyed_call(target: str) -> None:
    """Kind unavailable with a pushback is waited for and sent again under a key, not without, not at -1."""
    refusal = {"kind": "unavailable", "outcome": "not_run"}
    async with lineside.AsyncClient(target) as client:
        for key, pushback_ms, arrivals in (("k", 30, 3), (None, 30, 1), ("k", -1, 1), ("k", None, 1)):
            name = new_name()
            arguments = {"name": name, "times": 2, "status": refusal, "pushback_ms": pushback_ms}
            with contextlib.suppress(lineside.Unavailable):
                await client.dispatch("refuse", arguments, idempotency_key=key)
            assert (await seen(client, name))["arrivals"] == arrivals, (key, pushback_ms)


async def other_kinds_are_never_sent_again(target: str) -> None:
    """A transient end and an open breaker are UNAVAILABLE too, and final whatever the pushback says."""
    async with lineside.AsyncClient(target) as client:
        for kind in ("transient", "circuit_open", "overloaded"):
            name = new_name()
            arguments = {"name": name, "status": {"kind": kind, "outcome": "not_run"}, "pushback_ms": 1}
            error = await failure(client.dispatch("refuse", arguments, idempotency_key="k"))
            assert error.kind == kind
            assert (await seen(client, name))["arrivals"] == 1


async def open_outcome_stays_open(target: str) -> None:
    """A call lost once and then refused at the door may have run: its outcome is UNKNOWN, not NOT_RUN."""
    async with lineside.AsyncClient(target) as client:
        name = new_name()
        refusal = {"kind": "overloaded", "outcome": "not_run"}
        call = client.dispatch("cut_then_refuse", {"name": name, "status": refusal}, idempotency_key="k")
        error = await failure(call)
        assert (error.kind, error.outcome) == ("overloaded", "unknown")


async def nobody_there_is_not_run(target: str) -> None:
    """Where nothing listens nothing ran, with a key (after its time of trying) and without."""
    async with lineside.AsyncClient("127.0.0.1:1") as client:
        for key in (None, "k"):
            error = await failure(client.dispatch("echo", {}, idempotency_key=key, timeout_s=0.5))
            assert isinstance(error, lineside.ConnectionLost)
            assert error.outcome == "not_run"


async def deadline_without_an_answer(target: str) -> None:
    """A deadline that the service did not answer in time is a timeout with outcome UNKNOWN."""
    async with lineside.AsyncClient(target) as client:
        error = await failure(client.dispatch("hang", {"name": new_name()}, timeout_s=0.2))
        assert (type(error), error.outcome) == (lineside.CallTimeout, "unknown")


async def cancelling_reaches_the_service(target: str) -> None:
    """Cancelling the waiting task cancels the call at the service (R013)."""
    async with lineside.AsyncClient(target) as client:
        name = new_name()
        task = asyncio.create_task(client.dispatch("hang", {"name": name}))
        await client.dispatch("await_arrival", {"name": name})
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()
        await client.dispatch("await_cancelled", {"name": name}, timeout_s=0.5)


async def too_large_a_call_never_leaves(target: str) -> None:
    """Over the transport's limit a call is refused here, by name and number; the channel stays (R014)."""
    async with lineside.AsyncClient(target) as client:
        error = await failure(client.dispatch("echo", {"x": "y" * 17_000_000}))
        assert isinstance(error, lineside.SchemaError)
        assert error.outcome == "not_run"
        assert "16711680" in error.message
        fits = await client.dispatch("big", {"size": 15_000_000})
        assert len(fits.result) == 15_000_000


async def questions_are_answered(target: str) -> None:
    """Records and tools arrive as plain values, lists page after page."""
    async with lineside.AsyncClient(target) as client:
        record = await client.get_call("known")
        assert (record.state, record.has_result, record.result) == ("done", True, [1, None])
        assert record.start_time == datetime.fromtimestamp(1_700_000_000.5, UTC)
        assert record.attempt_records[0].duration_s == 0.02
        assert record.decisions[0].numbers == {"backoff_s": 0.1}
        assert (await client.get_call(tool="echo", idempotency_key="k")).idempotency_key == "k"
        assert isinstance(await failure(client.get_call("other")), lineside.NotFound)
        listed = [call async for call in client.list_calls(state="unknown", tool="t")]
        assert [call.call_id for call in listed] == [f"call-{n}" for n in range(5)]
        assert {(call.state, call.tool) for call in listed} == {("unknown", "t")}
        tools = [tool async for tool in client.list_tools()]
        assert [tool.name for tool in tools] == [f"tool-{n}" for n in range(5)]
        assert tools[0].input_schema is None
        tool = await client.get_tool("echo")
        assert (tool.input_schema, tool.effect, tool.timeout_s) == ({"type": "object"}, "final", 30)


async def outcome_is_settled(target: str) -> None:
    """A settlement carries a result (null is one), or says that nothing ran; a stale etag is a conflict."""
    async with lineside.AsyncClient(target) as client:
        done = await client.settle_call("c", "e-known", done=None, tool_error=True, reason="saw the mail")
        assert (done.has_result, done.result, done.tool_error) == (True, None, True)
        assert (done.settled_by, done.settle_reason) == ("person", "saw the mail")
        assert (await client.settle_call("c", "e-known", not_run=True, reason="r")).state == "not_run"
        error = await failure(client.settle_call("c", "stale", not_run=True, reason="r"))
        assert isinstance(error, lineside.Conflict)


async def closed_client_says_so(target: str) -> None:
    """A closed client refuses in words."""
    client = lineside.AsyncClient(target)
    await client.dispatch("echo", {})
    await client.close()
    error = await failure(client.dispatch("echo", {}), of=lineside.LinesideError)
    assert "closed" in str(error)


async def closing_ends_what_is_under_way(target: str) -> None:
    """A client that is closed ends its calls in words: the waiting task was not cancelled, and is not."""
    client = lineside.AsyncClient(target)
    name = new_name()
    call = asyncio.create_task(client.dispatch("hang", {"name": name}, idempotency_key="k"))
    hanging = [lineside.Call(tool="hang", arguments={"name": name})] * 3
    batch = asyncio.create_task(client.dispatch_all(hanging))
    await arrived(client, name, 4)
    await client.close()
    assert "closed" in str(await failure(call, of=lineside.LinesideError))
    assert [(type(end), end.outcome) for end in await batch if isinstance(end, lineside.DispatchError)] == [
        (lineside.Cancelled, "unknown")
    ] * 3
