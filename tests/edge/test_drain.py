"""Going down: health first, nothing new, idle streams at once, what is in flight to its end."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lineside.v1 import errors_pb2
from lineside.v1.dispatch_pb2 import DispatchBatchResponse, DispatchRequest
from lineside.v1.tools_pb2 import ListToolsRequest
from lineside_service.core.tool import Effect, Idempotency
from tests.edge.test_batch import Stream, error_of, items_of
from tests.support.scripted_tool import Turn, answer
from tests.support.serving import Served, refusal_of, refused, serving, tool_call


class Gate:
    """A tool step that tells when it is entered and ends when it may."""

    def __init__(self) -> None:
        self.entered = 0
        self.changed = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self, turn: Turn) -> Any:
        """The step."""
        self.entered += 1
        self.changed.set()
        await self.open.wait()
        return "done"

    async def until_entered(self, count: int) -> None:
        """Wait for so many attempts."""
        async with asyncio.timeout(5):
            while self.entered < count:
                self.changed.clear()
                await self.changed.wait()


async def ended_by_drain(stream: Stream) -> dict[str, Any]:
    """The trailers of a stream that the service ended."""

    async def read_on() -> None:
        while (raw := await stream.rpc.read()) is not grpc.aio.EOF:
            stream.responses.append(DispatchBatchResponse.FromString(raw))

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_on()
    no = refusal_of(caught.value)
    assert (no.kind, no.code) == ("unavailable", grpc.StatusCode.UNAVAILABLE)
    return no.trailers


async def watch(served: Served, seen: list[int], changed: asyncio.Event) -> None:
    """Follow the health of the whole server."""
    stub: Any = health_pb2_grpc.HealthStub(served.channel())
    async for response in stub.Watch(health_pb2.HealthCheckRequest()):
        seen.append(response.status)
        changed.set()


@pytest.mark.asyncio
async def test_twenty_streams_and_twenty_calls_go_down_in_order() -> None:
    """Calls in flight end OK, idle streams close at once, new calls are refused, health is first (R007)."""
    async with serving() as served:
        gate = Gate()
        served.add("slow", gate, concurrency=64)
        served.add("safe", answer(1), effect=Effect.SAFE, idempotency=Idempotency.YES)
        channel = served.channel()
        stub = served.dispatching(channel)
        streams = [Stream(served, channel) for _ in range(20)]
        for number, stream in enumerate(streams):
            await stream.send(items_of([(str(number), "safe")]))
            await stream.items(1)
        unary = [stub.Dispatch(DispatchRequest(call=tool_call("slow")), timeout=20) for _ in range(20)]
        health: list[int] = []
        changed = asyncio.Event()
        watching = asyncio.ensure_future(watch(served, health, changed))
        await changed.wait()
        await gate.until_entered(20)

        draining = asyncio.ensure_future(served.server.drain(10))
        async with asyncio.timeout(3):
            for trailers in await asyncio.gather(*(ended_by_drain(stream) for stream in streams)):
                assert trailers["lineside-frames-accepted"] == "1"
                assert trailers["grpc-retry-pushback-ms"] == "-1"
        assert not draining.done()
        assert health == [health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING]

        new = await refused(stub.Dispatch(DispatchRequest(call=tool_call("slow")), timeout=5))
        assert (new.kind, new.info.reason) == ("unavailable", "DRAINING")
        assert new.pushback == "-1"
        keyed = DispatchRequest(call=tool_call("slow", idempotency_key="k"))
        assert 0 <= int((await refused(stub.Dispatch(keyed, timeout=5))).pushback or -1) <= 200
        safe = DispatchRequest(call=tool_call("safe"))
        assert 0 <= int((await refused(stub.Dispatch(safe, timeout=5))).pushback or -1) <= 200
        tools, _ = served.looking(channel)
        read = await refused(tools.ListTools(ListToolsRequest(), timeout=5))
        assert 0 <= int(read.pushback or -1) <= 200
        fresh = Stream(served, channel)
        trailers = await ended_by_drain(fresh)
        assert trailers["lineside-frames-accepted"] == "0"
        assert 0 <= int(trailers["grpc-retry-pushback-ms"]) <= 200

        gate.open.set()
        for reply in await asyncio.gather(*unary):
            assert reply.answer.result_json == b'"done"'
        async with asyncio.timeout(3):
            assert await draining
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


@pytest.mark.asyncio
async def test_items_in_work_finish_before_their_stream_ends() -> None:
    """Frames that were taken are answered; the trailer says how many they were."""
    async with serving() as served:
        gate = Gate()
        served.add("slow", gate, concurrency=64)
        stream = Stream(served)
        for frame in range(3):
            await stream.send(items_of([(f"{frame}-{n}", "slow") for n in range(4)]))
        await gate.until_entered(12)
        draining = asyncio.ensure_future(served.server.drain(10))
        ending = asyncio.ensure_future(ended_by_drain(stream))
        await asyncio.sleep(0)
        await stream.send(items_of([("too-late", "slow")]))
        gate.open.set()
        async with asyncio.timeout(5):
            trailers = await ending
            assert await draining
        answered = [item for response in stream.responses for item in response.items]
        assert sorted(item.item_id for item in answered) == sorted(
            f"{f}-{n}" for f in range(3) for n in range(4)
        )
        assert all(item.answer.result_json == b'"done"' for item in answered)
        assert trailers["lineside-frames-accepted"] == "3"


@pytest.mark.asyncio
async def test_a_frame_in_the_middle_is_taken_whole() -> None:
    """Its items that have not started are refused, none is forgotten."""
    async with serving() as served:
        gate = Gate()
        served.add("slow", gate, concurrency=1000)
        stream = Stream(served)
        await stream.send(items_of([(f"a{n}", "slow") for n in range(200)]))
        await stream.send(items_of([(f"b{n}", "slow") for n in range(200)]))
        await gate.until_entered(256)
        draining = asyncio.ensure_future(served.server.drain(10))
        ending = asyncio.ensure_future(ended_by_drain(stream))
        await asyncio.sleep(0)
        gate.open.set()
        async with asyncio.timeout(5):
            trailers = await ending
            assert await draining
        items = {item.item_id: item for response in stream.responses for item in response.items}
        assert len(items) == 400
        answered = [item for item in items.values() if item.WhichOneof("outcome") == "answer"]
        assert len(answered) == 256
        late = [error_of(item) for item in items.values() if item.WhichOneof("outcome") == "error"]
        assert {(no.kind, no.error.attempts) for no in late} == {("unavailable", 0)}
        assert trailers["lineside-frames-accepted"] == "2"


@pytest.mark.asyncio
async def test_what_outlasts_the_grace_is_told_its_outcome() -> None:
    """Unary calls and items get `unavailable` with what is known, then everything ends."""
    async with serving() as served:
        gate = Gate()
        served.add("stuck", gate, concurrency=8)
        stream = Stream(served)
        await stream.send(items_of([("a", "stuck")]))
        rpc = served.dispatching().Dispatch(DispatchRequest(call=tool_call("stuck")), timeout=20)
        async with asyncio.timeout(5):
            await gate.until_entered(2)
            draining = asyncio.ensure_future(served.server.drain(0.2))
            no = await refused(rpc)
            assert no.kind == "unavailable"
            assert no.error.attempts == 1
            assert no.error.outcome == errors_pb2.OUTCOME_UNKNOWN
            assert no.pushback == "-1"
            await ended_by_drain(stream)
            assert not await draining
        [item] = stream.responses[0].items
        assert error_of(item).error.outcome == errors_pb2.OUTCOME_UNKNOWN


@pytest.mark.asyncio
async def test_a_half_closed_stream_still_ends_ok() -> None:
    """Its caller wants nothing more; a drain takes nothing away."""
    async with serving() as served:
        gate = Gate()
        served.add("slow", gate)
        stream = Stream(served)
        await stream.send(items_of([("a", "slow")]))
        await stream.rpc.done_writing()
        await gate.until_entered(1)
        draining = asyncio.ensure_future(served.server.drain(10))
        await asyncio.sleep(0)
        gate.open.set()
        async with asyncio.timeout(5):
            assert (await stream.items(1))["a"].answer.result_json == b'"done"'
            await stream.finish()
            assert await draining


@pytest.mark.asyncio
async def test_an_idle_server_drains_at_once() -> None:
    """Open health watches and connections do not hold it up."""
    async with serving() as served:
        seen: list[int] = []
        changed = asyncio.Event()
        watching = asyncio.ensure_future(watch(served, seen, changed))
        await changed.wait()
        async with asyncio.timeout(2):
            assert await served.server.drain(30)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
