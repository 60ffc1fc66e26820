"""What one stream may hold: 256 items, a megabyte of unsent answers, and little when idle."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from lineside.v1.dispatch_pb2 import DispatchBatchRequest, DispatchBatchResponse, DispatchRequest
from lineside.v1.dispatch_pb2_grpc import DispatchServiceStub
from lineside_service.edge.frames import Outgoing, join, next_frame
from lineside_service.edge.pace import MAX_FORESEEN, Pace, Started, UsualSizes
from lineside_service.edge.stream import MAX_ITEMS
from tests.edge.test_batch import Stream, items_of
from tests.support.scripted_tool import Turn, answer
from tests.support.served_process import served_process
from tests.support.serving import DISPATCH_BATCH, bearer, serving, tool_call
from tests.support.virtual_loop import VirtualTimeLoop

MIB = 1024 * 1024


async def turns(small: Any, count: int = 50) -> None:
    """Let the service have so many turns: calls that it answers one after another, however long it takes."""
    for _ in range(count):
        await small.Dispatch(DispatchRequest(call=tool_call("small")), timeout=30)


@pytest.mark.asyncio
async def test_at_most_256_items_are_in_flight() -> None:
    """Reading stops there and goes on as answers are written."""
    async with serving() as served:
        full, release = asyncio.Event(), asyncio.Event()

        async def waits(turn: Turn) -> Any:
            if tool.running == MAX_ITEMS:
                full.set()
            await release.wait()
            return 1

        tool = served.add("slow", waits, concurrency=1000)
        served.add("small")
        channel = served.channel()
        stream = Stream(served, channel)
        for frame in range(4):
            await stream.send(items_of([(f"{frame}-{n}", "slow") for n in range(200)]))
        async with asyncio.timeout(30):
            await full.wait()
        await turns(served.dispatching(channel))  # behind the frames, on the same connection
        assert tool.running == MAX_ITEMS
        assert served.server.batch.items_in_flight == MAX_ITEMS
        release.set()
        assert len(await stream.items(800)) == 800
        await stream.finish()
        assert tool.peak == MAX_ITEMS


@pytest.mark.asyncio
async def test_a_reader_that_does_not_read_stops_the_items() -> None:
    """Answers of 64 KiB that nobody takes: what gRPC buffers plus the bound, then no further item starts."""
    async with serving() as served:
        tool = served.add("blob", answer("x" * 65_000))
        served.add("small")
        small = served.dispatching()
        stream = Stream(served)

        async def send() -> None:
            for frame in range(10):
                await stream.send(items_of([(f"{frame}-{n}", "blob") for n in range(100)]))

        sending = asyncio.ensure_future(send())
        stopped_at = -1
        while tool.attempts <= 50 or tool.attempts != stopped_at:
            stopped_at = tool.attempts
            await turns(small)
        assert stopped_at * 65_000 < 7 * MIB + MAX_FORESEEN + 2 * MIB
        found = await stream.items(1000)
        await sending
        assert len(found) == 1000
        await stream.finish()


@pytest.mark.asyncio
async def test_large_answers_start_few_items_at_once() -> None:
    """After a first answer of a megabyte what is coming is foreseen: 4 MiB at most are on their way."""
    async with serving() as served:
        tool = served.add("blob", answer("x" * MIB, after=0.01), concurrency=64)
        stream = Stream(served)
        await stream.send(items_of([("first", "blob")]))
        await stream.items(1)
        tool.peak = 0
        await stream.send(items_of([(str(n), "blob") for n in range(40)]))
        await stream.items(40)
        assert 1 < tool.peak <= 4
        await stream.finish()


@pytest.mark.asyncio
async def test_an_answer_over_every_bound_still_passes_alone() -> None:
    """One item at a time is always allowed."""
    async with serving() as served:
        served.add("blob", answer("x" * (4 * MIB - 64 * 1024 - 2)))
        stream = Stream(served)
        await stream.send(items_of([(str(n), "blob") for n in range(10)]))
        assert len(await stream.items(10)) == 10
        await stream.finish()


def test_a_frame_takes_what_is_ready_below_the_limit() -> None:
    """Always at least one, never two frame errors."""
    small, large = Outgoing(b"\x0a\x01", b"x", is_item=True), Outgoing(b"", b"x" * (3 * MIB), is_item=True)
    error = Outgoing(b"", b"e", is_item=False)
    assert next_frame([small] * 300) == 300
    assert next_frame([large, large]) == 1
    assert next_frame([small, large, small, large]) == 3
    assert next_frame([error, small, error]) == 2
    assert next_frame([small, error, small]) == 3
    assert join([small, small]) == b"\x0a\x01x\x0a\x01x"


@pytest.mark.asyncio
async def test_the_pace_knows_a_tool_by_its_answers() -> None:
    """Unknown: as many as it has slots. Small: all. Large: by what is foreseen, and always one."""
    usual = UsualSizes()
    pace = Pace(usual)
    later = asyncio.get_running_loop().time() + 60

    def start(tool: str) -> asyncio.Task[Started]:
        return asyncio.ensure_future(pace.start(tool, 2, later))

    async def running(tasks: list[asyncio.Task[Started]]) -> int:
        for _ in range(5):
            await asyncio.sleep(0)
        return sum(task.done() for task in tasks)

    guesses = [start("new") for _ in range(5)]
    assert await running(guesses) == 2
    usual.learn("new", 100)
    pace.end(await guesses[0])
    assert await running(guesses) == 5

    usual.learn("large", 3 * MIB)
    large = [start("large") for _ in range(3)]
    assert await running(large) == 1
    small = [start("new") for _ in range(300)]
    assert await running(small) == 300
    pace.unsent += 3 * MIB
    pace.end(await large[0])
    assert await running(large) == 1
    pace.unsent -= 3 * MIB
    pace.resume()
    assert await running(large) == 2

    large[2].cancel()
    await asyncio.gather(large[2], return_exceptions=True)
    pace.end(await large[1])
    assert pace._foreseen == 0


def test_an_item_that_waits_for_its_turn_ends_at_its_deadline(virtual_loop: VirtualTimeLoop) -> None:
    """It goes down the road then, to be refused there."""
    usual = UsualSizes()
    usual.learn("large", 3 * MIB)
    pace = Pace(usual)

    async def story() -> None:
        first = await pace.start("large", 2, 60.0)
        late = await pace.start("large", 2, 5.0)
        assert (late.foreseen, virtual_loop.time()) == (0, 5.0)
        pace.end(late)
        pace.end(first)

    virtual_loop.run(story())


@pytest.mark.asyncio
async def test_an_idle_stream_costs_little() -> None:
    """Under 32 KiB of the process, of which grpc.aio's own bare stream takes 22 (measured the same way)."""
    async with served_process() as process, _channels(process.target) as channels:
        opened = await _open(channels, 300)
        before = process.rss()
        opened += await _open(channels, 1000)
        each = (process.rss() - before) / 1000
        for rpc in opened:
            rpc.cancel()
    assert each <= 32 * 1024


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("tool", "count"),
    [
        ("blob", 2_000),
        pytest.param("blob", 16_000, marks=pytest.mark.soak),
        pytest.param("mega", 1_000, marks=pytest.mark.soak),
        pytest.param("slow-mega", 1_000, marks=pytest.mark.soak),
    ],
)
async def test_a_slow_reader_costs_a_bounded_amount(tool: str, count: int) -> None:
    """Answers of 64 KiB or a megabyte, a gigabyte in the long form: the process grows by at most 20 MB.

    The reader is slow by the service's own measure: between two frames it has time for a few calls.
    """
    async with served_process() as process, _channels(process.target) as channels:
        for small in await _open(channels, 50):
            small.cancel()
        before, peak = process.rss(), 0
        rpc: Any = channels[0].stream_stream(DISPATCH_BATCH)()

        async def send() -> None:
            for frame in range(count // 100):
                calls = items_of([(f"{frame}-{n}", tool) for n in range(100)])
                await rpc.write(DispatchBatchRequest(calls=calls).SerializeToString())

        sending = asyncio.ensure_future(send())
        got = 0
        while got < count:
            got += len(DispatchBatchResponse.FromString(await rpc.read()).items)
            await turns(DispatchServiceStub(channels[1]), 5)
            peak = max(peak, process.rss())
        await sending
        await rpc.done_writing()
        assert await rpc.read() is grpc.aio.EOF
    assert peak - before <= 20_000_000


@pytest.mark.asyncio
async def test_streams_refused_unread_leave_their_connection_open_for_others() -> None:
    """300 streams of 256 KiB are refused before a byte is read; a large call passes behind them (R009)."""
    async with serving() as served:
        served.add("small")
        channel = served.channel()

        async def refused_unread() -> grpc.StatusCode:
            rpc: Any = channel.stream_stream(DISPATCH_BATCH)(metadata=bearer("guessed"))
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # it ended meanwhile
                for _ in range(4):
                    await rpc.write(bytes(64 * 1024))
            code: grpc.StatusCode = await rpc.code()
            return code

        async with asyncio.timeout(30):
            codes = {await ended for ended in [asyncio.ensure_future(refused_unread()) for _ in range(300)]}
        assert grpc.StatusCode.UNAUTHENTICATED in codes
        assert grpc.StatusCode.OK not in codes
        request = DispatchRequest(call=tool_call("small", {"text": "x" * MIB}))
        assert (await served.dispatching(channel).Dispatch(request, timeout=5)).answer.attempts == 1


@pytest.mark.asyncio
@pytest.mark.soak
async def test_cancelled_streams_leave_no_memory_behind() -> None:
    """Twenty thousand streams, each cancelled after one answer while another item runs (R002)."""
    async with served_process() as process, _channels(process.target) as channels:
        frame = DispatchBatchRequest(
            calls=[tool_call("small", item_id="a"), tool_call("nap", item_id="b")]
        ).SerializeToString()
        early = 0
        for number in range(20_000):
            rpc: Any = channels[number % 4].stream_stream(DISPATCH_BATCH)()
            await rpc.write(frame)
            await rpc.read()
            rpc.cancel()
            if number == 2_000:
                early = process.rss()
        assert process.rss() - early <= 50_000_000


@contextlib.asynccontextmanager
async def _channels(target: str) -> AsyncIterator[list[grpc.aio.Channel]]:
    own = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(target, options=own) for _ in range(4)]
    yield channels
    for channel in channels:
        await channel.close(None)


async def _open(channels: list[grpc.aio.Channel], count: int) -> list[Any]:
    """Streams that have each served an item and are idle now."""
    opened: list[Any] = []
    frame = DispatchBatchRequest(calls=[tool_call("small", item_id="a")]).SerializeToString()
    for number in range(count):
        rpc: Any = channels[number % 4].stream_stream(DISPATCH_BATCH)()
        await rpc.write(frame)
        await rpc.read()
        opened.append(rpc)
    return opened


@pytest.mark.asyncio
async def test_large_items_are_started_a_few_at_a_time() -> None:
    """The loop gets its turn between them: all that take long to decode would hold up everybody else."""
    async with serving() as served:
        release = asyncio.Event()

        async def waits(turn: Turn) -> Any:
            await release.wait()
            return 1

        tool = served.add("slow", waits, concurrency=20)
        stream = Stream(served)
        seen = [0]
        large = b'{"a":[' + b"1," * 90_000 + b"1]}"
        await stream.send([tool_call("slow", large, item_id=str(n)) for n in range(20)])
        while tool.running < 20:
            await asyncio.sleep(0)
            seen.append(served.server.batch.items_in_flight)
        assert max(now - before for before, now in itertools.pairwise(seen)) <= 5
        release.set()
        assert len(await stream.items(20)) == 20
        await stream.finish()
