"""Many calls on a stream, on asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import lineside
from tests.client.stories.telling import arrived, failure, new_name, seen


async def answers_come_in_order(target: str) -> None:
    """dispatch_all answers in the order of the calls, an error in its place."""
    async with lineside.AsyncClient(target) as client:
        calls = [lineside.Call(tool="echo", arguments={"name": "", "n": n}) for n in range(1000)]
        refusal = {"name": new_name(), "status": {"kind": "overloaded", "outcome": "not_run"}}
        calls[500] = lineside.Call(tool="refuse", arguments=refusal)
        calls[700] = lineside.Call(tool="echo", arguments={"n": float("nan")})
        answers = await client.dispatch_all(calls)
        assert len(answers) == 1000
        for n, answer in enumerate(answers):
            if n == 500:
                assert isinstance(answer, lineside.Overloaded)
            elif n == 700:
                assert isinstance(answer, lineside.SchemaError)
            else:
                assert isinstance(answer, lineside.Answer)
                assert answer.result["n"] == n


async def batch_is_read_as_it_is_taken(target: str) -> None:
    """At most 256 calls are read ahead of their results, from an endless iterable too."""
    async with lineside.AsyncClient(target) as client:
        name = new_name()
        read = 0

        async def endless() -> AsyncIterator[lineside.Call]:
            nonlocal read
            while True:
                read += 1
                yield lineside.Call(tool="gate", arguments={"name": name, "n": read})

        async with contextlib.aclosing(client.batch(endless())) as results:
            first = asyncio.ensure_future(anext(results))
            while (await seen(client, name))["arrivals"] < 256:
                pass
            assert read == 256
            await client.dispatch("open_gate", {"name": name})
            await first
            for _ in range(1000):
                assert (await anext(results)).answer is not None
        assert read <= 1001 + 256


async def batch_feeds_on_its_results(target: str) -> None:
    """A call may be made of the result before it; item ids and positions come back."""
    async with lineside.AsyncClient(target) as client:
        ready: asyncio.Queue[int] = asyncio.Queue()

        async def chain() -> AsyncIterator[lineside.Call]:
            for step in range(20):
                if step:
                    assert await ready.get() == step - 1
                yield lineside.Call(tool="echo", arguments={"step": step}, item_id=f"step {step}")

        told = []
        async for result in client.batch(chain()):
            told.append((result.position, result.item_id))
            ready.put_nowait(result.unwrap().result["step"])
        assert told == [(n, f"step {n}") for n in range(20)]


async def batch_resumes_after_a_cut(target: str) -> None:
    """After a break keyed calls are sent again and answered, keyless ones end UNKNOWN; no answer is lost."""
    async with lineside.AsyncClient(target) as client:
        held, cut = new_name(), new_name()

        async def calls() -> AsyncIterator[lineside.Call]:
            yield lineside.Call(tool="gate", arguments={"name": held}, idempotency_key="a", item_id="keyed")
            yield lineside.Call(tool="gate", arguments={"name": held}, item_id="keyless")
            await arrived(client, held, 2)
            yield lineside.Call(tool="cut", arguments={"name": cut}, idempotency_key="b", item_id="cutter")
            await arrived(client, cut, 2)
            await client.dispatch("open_gate", {"name": held})
            yield lineside.Call(tool="echo", arguments={}, item_id="later")

        results = {result.item_id: result async for result in client.batch(calls())}
        assert {item_id for item_id, result in results.items() if result.answer} == {
            "keyed",
            "cutter",
            "later",
        }
        lost = results["keyless"].error
        assert isinstance(lost, lineside.ConnectionLost)
        assert lost.outcome == "unknown"
        came = await seen(client, held)
        assert [call["key"] for call in came["calls"]] == ["a", None, "a"]
        assert came["calls"][2]["call_timeout_s"] > 0


async def batch_resumes_after_a_drain(target: str) -> None:
    """Frames that a draining service did not take are sent again, with or without a key, each run once
    (R007).
    """
    async with lineside.AsyncClient(target) as client:
        drain, late = new_name(), new_name()

        async def calls() -> AsyncIterator[lineside.Call]:
            yield lineside.Call(tool="drain", arguments={"name": drain})
            await client.dispatch("await_arrival", {"name": drain})
            for n in range(100):
                key = f"{late} {n}" if n % 2 else None
                yield lineside.Call(tool="echo", arguments={"name": late, "n": n}, idempotency_key=key)
            await client.dispatch("open_gate", {"name": drain})

        results = [result async for result in client.batch(calls())]
        assert sorted(result.position for result in results) == list(range(101))
        assert all(result.answer for result in results), [result.error for result in results if result.error]
        assert (await seen(client, late))["arrivals"] == 100


async def drain_is_heard_over_a_blocked_write(target: str) -> None:
    """A drain that comes while a write waits for the service is still a drain: nothing is UNKNOWN."""
    async with lineside.AsyncClient(target) as client:
        drain, late = new_name(), new_name()
        padding = "x" * 500_000

        async def calls() -> AsyncIterator[lineside.Call]:
            yield lineside.Call(tool="drain", arguments={"name": drain})
            await client.dispatch("await_arrival", {"name": drain})
            for n in range(60):
                if n == 50:
                    await client.dispatch("open_gate", {"name": drain})
                yield lineside.Call(tool="echo", arguments={"name": late, "n": n, "padding": padding})

        results = [result async for result in client.batch(calls())]
        assert len(results) == 61
        assert all(result.answer for result in results), [str(r.error) for r in results if r.error]
        assert (await seen(client, late))["arrivals"] == 60


async def batch_gives_up(target: str) -> None:
    """A batch that finds nobody ends within its time: what was read is reported, and the iteration raises."""
    async with lineside.AsyncClient("127.0.0.1:1") as client:

        async def endless() -> AsyncIterator[lineside.Call]:
            while True:
                yield lineside.Call(tool="echo")

        results = []

        async def collect() -> None:
            async for result in client.batch(endless(), timeout_s=0.5):
                results.append(result)  # noqa: PERF401 - kept when the iteration raises

        error = await failure(collect())
        assert isinstance(error, lineside.ConnectionLost)
        assert error.outcome == "not_run"
        assert len(results) == 256
        assert {result.error.outcome for result in results if result.error} == {"not_run"}
        answers = await client.dispatch_all([lineside.Call(tool="echo")] * 300, timeout_s=0.3)
        assert len(answers) == 300
        assert all(isinstance(answer, lineside.ConnectionLost) for answer in answers)


async def batch_tells_the_callers_own_fault(target: str) -> None:
    """An exception of the iterable is raised after the results of the calls before it."""
    async with lineside.AsyncClient(target) as client:

        def broken() -> Iterator[lineside.Call]:
            yield lineside.Call(tool="echo", arguments={"n": 1})
            raise LookupError("the caller's own")

        results = []
        try:
            async for result in client.batch(broken()):
                results.append(result)  # noqa: PERF401 - kept when the iteration raises
        except LookupError:
            assert [result.unwrap().result for result in results] == [{"n": 1}]
        else:
            raise AssertionError("no error")


async def leaving_a_batch_cancels_it(target: str) -> None:
    """Leaving the iteration cancels what is under way at the service."""
    async with lineside.AsyncClient(target) as client:
        name = new_name()
        calls = [lineside.Call(tool="echo"), lineside.Call(tool="hang", arguments={"name": name})]
        async with contextlib.aclosing(client.batch(calls)) as results:
            async for _ in results:
                break
        await client.dispatch("await_cancelled", {"name": name}, timeout_s=1)
