"""The client against the real road: engine and edge over the memory store, on a real port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import lineside
from tests.support.cut_proxy import cut_proxy
from tests.support.scripted_tool import Turn, answer, hang, says_no, transient
from tests.support.serving import Served, serving

TRIES = 5


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Served]:
    """A running service."""
    async with serving() as service:
        yield service


@pytest.mark.asyncio
async def test_answers_and_refusals_of_the_road(served: Served) -> None:
    """Executed, replayed, retried, refused and validated calls come back as the contract says."""
    schema = b'{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'
    served.add("echo", answer({"n": 12345678901234567890}), input_schema=schema)
    served.add("no", says_no("not today"))
    served.add("shaky", transient(), transient(0.01), answer(7))
    async with lineside.AsyncClient(served.target) as client:
        first = await client.dispatch("echo", {"n": 1}, idempotency_key="k")
        again = await client.dispatch("echo", {"n": 1.0}, idempotency_key="k")
        assert (first.result, first.source, first.attempts) == ({"n": 12345678901234567890}, "executed", 1)
        assert (again.source, again.call_id) == ("replayed", first.call_id)
        said_no = await client.dispatch("no", {})
        assert (said_no.tool_error, said_no.result) == (True, "not today")
        assert (await client.dispatch("shaky", {})).attempts == 3
        valid = await client.dispatch("echo", {"n": 1}, validate_only=True)
        assert (valid.source, valid.attempts, valid.result) == ("validated", 0, None)
        with pytest.raises(lineside.SchemaError) as broken:
            await client.dispatch("echo", {"n": "x"})
        assert [fault.field for fault in broken.value.violations] == ["/n"]
        assert broken.value.next == ("on_error", "replan")
        with pytest.raises(lineside.KeyReused) as reused:
            await client.dispatch("echo", {"n": 2}, idempotency_key="k")
        assert reused.value.call_id == first.call_id
        with pytest.raises(lineside.NotFound):
            await client.dispatch("none", {})


@pytest.mark.asyncio
async def test_unknown_outcome_is_found_settled_and_replayed(served: Served) -> None:
    """A timeout after the effect is UNKNOWN: it is listed, settled by hand, and replayed from then on."""
    served.add("mail", hang(effect_at=0.0), timeout_s=0.05)
    async with lineside.AsyncClient(served.target) as client:
        with pytest.raises(lineside.CallTimeout) as late:
            await client.dispatch("mail", {"to": "a"}, idempotency_key="k", timeout_s=5)
        assert (late.value.outcome, late.value.attempts) == ("unknown", 1)
        with pytest.raises(lineside.OutcomeUnknown) as again:
            await client.dispatch("mail", {"to": "a"}, idempotency_key="k")
        (listed,) = [record async for record in client.list_calls(state="unknown")]
        assert listed.call_id == late.value.call_id == again.value.call_id
        record = await client.get_call(tool="mail", idempotency_key="k")
        settled = await client.settle_call(record.call_id, record.etag, done={"id": 7}, reason="saw it")
        assert (settled.state, settled.settled_by) == ("done", "person")
        with pytest.raises(lineside.Conflict):
            await client.settle_call(record.call_id, record.etag, not_run=True, reason="no")
        replay = await client.dispatch("mail", {"to": "a"}, idempotency_key="k")
        assert (replay.source, replay.result) == ("replayed", {"id": 7})
    assert len(served.effects) == 1


@pytest.mark.asyncio
async def test_cut_connection_repeats_no_effect(served: Served) -> None:
    """A cut after the effect leaves one effect: joined or replayed with a key, UNKNOWN without (R029)."""
    is_cut_next = True

    async def mail(turn: Turn) -> str:
        nonlocal is_cut_next
        turn.effect()
        if is_cut_next:
            is_cut_next = False
            proxy.cut()
        return "sent"

    served.add("mail", mail)
    async with (
        cut_proxy(served.target) as proxy,
        lineside.AsyncClient(proxy.target) as client,
    ):
        keyed = await client.dispatch("mail", {}, idempotency_key="k")
        assert (keyed.result, keyed.source) in (("sent", "replayed"), ("sent", "joined"))
        is_cut_next = True
        with pytest.raises(lineside.ConnectionLost) as lost:
            await client.dispatch("mail", {})
        assert lost.value.outcome == "unknown"
    assert len(served.effects) == 2


@pytest.mark.asyncio
async def test_timeout_carries_the_typed_error(served: Served) -> None:
    """A caller whose time runs out hears the road's own error, with attempts and call id, not a bare code.

    A machine that stands still for the 20 ms of the margin gives the bare code: hence a few tries.
    """
    served.add("slow", hang(), concurrency=100)
    async with lineside.AsyncClient(served.target) as client:
        for _ in range(TRIES):
            calls = [client.dispatch("slow", {}, timeout_s=0.3) for _ in range(8)]
            errors = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(error, lineside.CallTimeout) for error in errors)
            told = [error for error in errors if isinstance(error, lineside.CallTimeout) and error.call_id]
            assert all(error.attempts == 1 for error in told)
            if len(told) == 8:
                return
    pytest.fail(f"never were all of eight told in {TRIES} tries")


@pytest.mark.asyncio
async def test_many_calls_join_replay_and_keep_their_order(served: Served) -> None:
    """500 calls of 10 keys on one stream: answers in order, one effect for each key (R041)."""
    served.add("echo", answer("done", after=0.01))
    calls = [
        lineside.Call(tool="echo", arguments={"n": n % 10}, idempotency_key=f"k{n % 10}") for n in range(500)
    ]
    async with lineside.AsyncClient(served.target) as client:
        answers = await client.dispatch_all(calls)
    assert {answer.result for answer in answers if isinstance(answer, lineside.Answer)} == {"done"}
    assert len(answers) == 500
    assert len({answer.call_id for answer in answers if isinstance(answer, lineside.Answer)}) == 10
    assert len(served.effects) == 10


@pytest.mark.asyncio
async def test_batch_moves_on_to_the_next_service_when_one_drains(served: Served) -> None:
    """A drain ends the stream after what was taken; the rest goes to the service that listens next (R007)."""
    started = asyncio.Event()

    async def working(turn: Turn) -> str:
        started.set()
        await turn.until(0.1)
        return "first service"

    served.add("work", working)
    async with serving() as successor:
        successor.add("work", answer("second service"))
        async with (
            cut_proxy(served.target) as proxy,
            lineside.AsyncClient(proxy.target) as client,
        ):

            async def calls() -> AsyncIterator[lineside.Call]:
                for _ in range(8):
                    yield lineside.Call(tool="work")
                await started.wait()
                proxy.upstream = successor.target
                draining = asyncio.create_task(served.server.drain(5))
                for _ in range(50):
                    yield lineside.Call(tool="work")
                assert await draining

            results = [result async for result in client.batch(calls())]
    assert [result.position for result in results if result.error] == []
    said = [result.unwrap().result for result in sorted(results, key=lambda result: result.position)]
    assert said[:8] == ["first service"] * 8
    assert set(said[8:]) <= {"first service", "second service"}
    assert len(said) == 58
    assert len(served.effects) + len(successor.effects) <= 58


@pytest.mark.asyncio
async def test_tools_and_decisions_are_told(served: Served) -> None:
    """ListTools, GetTool and a call's decisions as plain values."""
    served.add("b", transient(), answer(1), description="the second")
    served.add("a")
    async with lineside.AsyncClient(served.target) as client:
        assert [tool.name async for tool in client.list_tools()] == ["a", "b"]
        tool = await client.get_tool("b")
        assert (tool.description, tool.effect, tool.idempotency) == ("the second", "final", "not_idempotent")
        assert tool.input_schema is not None
        done = await client.dispatch("b", {}, idempotency_key="k")
        record = await client.get_call(done.call_id)
        assert [attempt.kind for attempt in record.attempt_records] == ["transient", None]
        assert "retry" in {decision.choice for decision in record.decisions}
        assert record.result == 1
