"""Batch streams on a real wire: answers as they come, and nothing bad that ends the stream."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable
from typing import Any, cast

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from lineside.v1 import errors_pb2
from lineside.v1.dispatch_pb2 import BatchItem, DispatchBatchRequest, DispatchBatchResponse, ToolCall
from lineside_service.core.attempt import AttemptEnd
from lineside_service.core.errors import ErrorKind, Outcome
from lineside_service.core.retry import RetryRules
from lineside_service.edge.rpc import RawContext, write_raw
from tests.edge.test_dispatch import Broken, echo, raises_cancelled
from tests.support.cut_proxy import cut_proxy
from tests.support.scripted_tool import Turn, answer, ends, hang
from tests.support.serving import DISPATCH_BATCH, Refused, Served, serving, struct, tool_call

ONCE = RetryRules(max_attempts=1)


class Stream:
    """A client's end of a batch stream, frame by frame."""

    def __init__(self, served: Served, channel: grpc.aio.Channel | None = None, **call: Any) -> None:
        channel = channel or served.channel(
            options=[
                ("grpc.max_send_message_length", -1),
                ("grpc.max_receive_message_length", 4 * 1024 * 1024),
            ]
        )
        self.rpc: Any = channel.stream_stream(DISPATCH_BATCH)(**call)
        self.responses: list[DispatchBatchResponse] = []

    async def send(self, calls: Iterable[ToolCall]) -> None:
        """Send one frame."""
        await self.rpc.write(DispatchBatchRequest(calls=list(calls)).SerializeToString())

    async def read(self) -> DispatchBatchResponse:
        """The next frame of answers."""
        raw = await self.rpc.read()
        assert raw is not grpc.aio.EOF, "the stream ended"
        assert len(raw) < 4 * 1024 * 1024
        self.responses.append(DispatchBatchResponse.FromString(raw))
        return self.responses[-1]

    async def items(self, count: int) -> dict[str, BatchItem]:
        """So many items, by id."""
        found: dict[str, BatchItem] = {}
        while len(found) < count:
            for item in (await self.read()).items:
                assert item.item_id not in found
                found[item.item_id] = item
        return found

    async def finish(self) -> None:
        """Half-close; the stream must end OK with nothing more to say."""
        await self.rpc.done_writing()
        assert await self.rpc.read() is grpc.aio.EOF
        assert await self.rpc.code() is grpc.StatusCode.OK


def items_of(calls: Iterable[tuple[str, str]], **fields: Any) -> list[ToolCall]:
    """Calls by (item id, tool)."""
    return [tool_call(tool, item_id=item_id, **fields) for item_id, tool in calls]


def error_of(item: BatchItem) -> Refused:
    """The item's error, unpacked."""
    assert item.WhichOneof("outcome") == "error", item
    return Refused(item.error)


@pytest.mark.asyncio
async def test_answers_come_as_calls_finish() -> None:
    """A slow call does not hold up a quick one, in the same frame or a later one."""
    async with serving() as served:
        release = asyncio.Event()

        async def waits(turn: Turn) -> Any:
            await release.wait()
            return "slow"

        served.add("slow", waits)
        served.add("quick", answer("quick"))
        stream = Stream(served)
        await stream.send(items_of([("a", "slow"), ("b", "quick")]))
        assert set(await stream.items(1)) == {"b"}
        await stream.send(items_of([("c", "quick")]))
        assert set(await stream.items(1)) == {"c"}
        release.set()
        [late] = (await stream.items(1)).values()
        assert late.answer.result_json == b'"slow"'
        assert late.answer.source == errors_pb2.SOURCE_EXECUTED
        await stream.finish()


@pytest.mark.asyncio
async def test_half_close_drains() -> None:
    """What was sent before it is answered, then the stream ends OK."""
    async with serving() as served:
        served.add("slow", answer("ok", after=0.1))
        stream = Stream(served)
        await stream.send(items_of([(f"i{n}", "slow") for n in range(20)]))
        await stream.rpc.done_writing()
        assert len(await stream.items(20)) == 20
        await stream.finish()


@pytest.mark.asyncio
async def test_a_thousand_calls_each_get_one_answer() -> None:
    """Four full frames; each form of arguments is mirrored."""
    async with serving() as served:
        served.add("echo", echo, concurrency=64)
        stream = Stream(served)

        async def send() -> None:
            for frame in range(4):
                ids = range(frame * 256, frame * 256 + 256)
                await stream.send(
                    tool_call("echo", {"n": n}, item_id=str(n))
                    if n % 2
                    else ToolCall(tool="echo", arguments=struct({"n": n}), item_id=str(n))
                    for n in ids
                )

        sending = asyncio.ensure_future(send())
        found = await stream.items(1024)
        await sending
        assert found["7"].answer.result_json == b'{"n":7}'
        assert found["8"].answer.result.struct_value.fields["n"].number_value == 8
        await stream.finish()


BAD_ITEMS: list[tuple[dict[str, Any], str, str]] = [
    ({"item_id": "", "tool": "echo"}, "schema", "call.item_id"),
    ({"item_id": "x" * 256, "tool": "echo"}, "schema", "call.item_id"),
    ({"item_id": "twice", "tool": "echo"}, "schema", "call.item_id"),
    ({"item_id": "unknown", "tool": "nothing"}, "not_found", ""),
    ({"item_id": "bad-json", "tool": "echo", "given": b"{"}, "schema", ""),
    ({"item_id": "bad-key", "tool": "echo", "idempotency_key": ""}, "schema", "call.idempotency_key"),
    ({"item_id": "no-time", "tool": "echo", "call_timeout": Duration()}, "schema", "call.call_timeout"),
    ({"item_id": "cached", "tool": "echo", "no_cache": True}, "unimplemented", ""),
    ({"item_id": "loud", "tool": "loud"}, "internal", ""),
    ({"item_id": "selfcancel", "tool": "selfcancel"}, "internal", ""),
]


@pytest.mark.asyncio
async def test_one_bad_item_never_ends_the_stream() -> None:
    """Each is answered by an error of its own, the good ones by their results (R001, R005, R006)."""
    async with serving() as served:
        served.add("echo", echo)
        text = "é\ud800🚂" * 70_000
        served.add(
            "loud",
            ends(AttemptEnd(kind=ErrorKind.INTERNAL, outcome=Outcome.UNKNOWN, message=text)),
            retry=ONCE,
        )
        served.add("selfcancel", raises_cancelled, retry=ONCE)
        stream = Stream(served)
        await stream.send(items_of([("twice", "echo")]))
        await stream.items(1)
        for fields, kind, field in BAD_ITEMS:
            await stream.send(
                [tool_call(**fields), tool_call("echo", item_id=f"good-{fields['item_id'][:20]}")]
            )
            got = {item.item_id: item for item in [i async for i in _next_items(stream, 2)]}
            no = error_of(got[fields["item_id"][:255]])
            assert no.kind in {kind, "cancelled"} if kind == "internal" else no.kind == kind
            assert no.status.ByteSize() < 4096
            if field:
                assert [violation.field for violation in no.violations] == [field]
            assert got[f"good-{fields['item_id'][:20]}"].WhichOneof("outcome") == "answer"
        await stream.finish()


async def _next_items(stream: Stream, count: int) -> AsyncIterator[BatchItem]:
    while count > 0:
        for item in (await stream.read()).items:
            count -= 1
            yield item


@pytest.mark.asyncio
async def test_an_item_with_both_forms_of_arguments_is_refused_alone() -> None:
    """The other items of its frame run."""
    async with serving() as served:
        served.add("echo", echo)
        stream = Stream(served)
        good = DispatchBatchRequest(calls=[tool_call("echo", item_id="good")]).SerializeToString()
        both = tool_call("echo", item_id="both").SerializeToString()
        both += ToolCall(arguments=struct({"a": 1})).SerializeToString()
        await stream.rpc.write(b"\x0a" + bytes([len(both)]) + both + good)
        found = await stream.items(2)
        assert error_of(found["both"]).violations[0].field == "call.arguments"
        assert found["good"].answer.result_json == b"{}"
        await stream.finish()


@pytest.mark.asyncio
async def test_a_bad_frame_is_refused_whole_and_the_stream_goes_on() -> None:
    """Empty, too many calls or bytes, not decodable: frame_error with its number and the bound (R014)."""
    async with serving() as served:
        tool = served.add("echo", echo)
        stream = Stream(served)
        frames = [
            (b"", "1-256"),
            (
                DispatchBatchRequest(
                    calls=items_of([(f"{n}", "echo") for n in range(257)])
                ).SerializeToString(),
                "257",
            ),
            (
                DispatchBatchRequest(
                    calls=[tool_call("echo", {"x": "a" * (5 * 1024 * 1024)}, item_id="big")]
                ).SerializeToString(),
                "4194304",
            ),
            (b"\xff\xff", "decoded"),
        ]
        for number, (raw, bound) in enumerate(frames, 1):
            await stream.rpc.write(raw)
            response = await stream.read()
            assert not response.items
            assert response.frame_error.frame == number
            no = Refused(response.frame_error.status)
            assert (no.kind, no.code) == ("schema", grpc.StatusCode.INVALID_ARGUMENT)
            assert bound in no.error.message
        assert tool.attempts == 0
        await stream.send(items_of([("0", "echo")]))
        assert (await stream.items(1))["0"].answer.attempts == 1
        await stream.finish()


@pytest.mark.asyncio
async def test_two_bad_frames_in_a_row_are_two_errors() -> None:
    """A response frame holds one frame_error at most."""
    async with serving() as served:
        stream = Stream(served)
        for _ in range(10):
            await stream.rpc.write(b"")
        numbers = [(await stream.read()).frame_error.frame for _ in range(10)]
        assert numbers == list(range(1, 11))
        await stream.finish()


@pytest.mark.asyncio
async def test_a_large_result_is_one_frame_and_does_not_hurt_the_small_ones() -> None:
    """Results at the limit in the middle of small ones: every response frame stays under 4 MiB (R014)."""
    async with serving() as served:
        limit = 4 * 1024 * 1024 - 64 * 1024
        served.add("blob", answer("x" * (limit - 2)))
        served.add("small", answer("s"))
        stream = Stream(served)
        calls = [(f"s{n}", "small") for n in range(50)] + [("b1", "blob"), ("b2", "blob"), ("b3", "blob")]
        await stream.send(items_of(calls + [(f"t{n}", "small") for n in range(50)]))
        found = await stream.items(103)
        assert len(found["b2"].answer.result_json) == limit
        await stream.finish()


@pytest.mark.asyncio
async def test_a_fault_of_ours_is_an_opaque_item_error() -> None:
    """Also a CancelledError that nobody asked for (R001, R111)."""
    for error in (ValueError("canary-7f3a"), asyncio.CancelledError("canary-7f3a")):
        async with serving(dispatcher=Broken(error), may_fault=True) as served:
            stream = Stream(served)
            await stream.send(items_of([("a", "echo")]))
            no = error_of((await stream.items(1))["a"])
            assert (no.kind, no.code) == ("internal", grpc.StatusCode.INTERNAL)
            assert "canary" not in f"{no.status} {served.log.lines}"
            assert served.log.events() == ["item.fault"]
            await stream.finish()


@pytest.mark.asyncio
async def test_a_reset_stream_cancels_keyless_items_and_leaves_keyed_ones() -> None:
    """The keyed attempt runs to its end and is recorded; the keyless tool sees a cancel at once."""
    async with serving() as served:
        in_both, keyless_left, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def keyless(turn: Turn) -> Any:
            try:
                await turn.until(math.inf)
            finally:
                keyless_left.set()

        async def keyed(turn: Turn) -> Any:
            in_both.set()
            await may_end.wait()
            return "kept"

        served.add("keyless", keyless)
        served.add("keyed", keyed)
        stream = Stream(served)
        await stream.send(
            [*items_of([("a", "keyless")]), tool_call("keyed", item_id="b", idempotency_key="k")]
        )
        async with asyncio.timeout(5):
            await in_both.wait()
            stream.rpc.cancel()
            await keyless_left.wait()
            may_end.set()
            again = await served.dispatch("keyed", idempotency_key="k")
        assert again.answer.result_json == b'"kept"'
        assert again.answer.source in (errors_pb2.SOURCE_JOINED, errors_pb2.SOURCE_REPLAYED)
        assert served.tools["keyed"].attempts == 1
        assert served.server.batch.open_streams == 0


@pytest.mark.asyncio
async def test_a_caller_that_vanishes_while_answers_are_written_is_no_fault() -> None:
    """Its connection is cut with more on the way than it has read: the stream is gone, nothing is logged."""
    async with serving() as served, cut_proxy(served.target) as line:
        served.add("large", answer("x" * 100_000), concurrency=256)
        for number in range(10):
            stream = Stream(served, served.channel(target=line.target))
            await stream.send(items_of([(f"{number}-{item}", "large") for item in range(200)]))
            await stream.items(1)
            line.cut()
        async with asyncio.timeout(10):
            await served.server.runner.idle()
        assert served.server.batch.open_streams == 0
        assert served.log.events() == []


@pytest.mark.asyncio
async def test_a_write_that_fails_waits_for_the_cancel_that_explains_it() -> None:
    """Which gRPC sends a moment later; the task ends as cancelled, with no error of its own."""

    class Gone:
        async def write(self, _: bytes) -> None:
            raise grpc.aio.InternalError("the caller has vanished")

    writing = asyncio.ensure_future(write_raw(cast("RawContext", Gone()), b""))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait([writing])
    assert writing.cancelled()


@pytest.mark.asyncio
async def test_items_time_out_one_by_one() -> None:
    """By their own call_timeout, and at the latest shortly before the stream's own deadline."""
    async with serving() as served:
        served.add("slow", hang(), concurrency=64)
        stream = Stream(served, timeout=0.6)
        short = tool_call("slow", item_id="short", call_timeout=Duration(nanos=50_000_000))
        await stream.send([short, *items_of([("long", "slow")])])
        first = await stream.items(1)
        assert error_of(first["short"]).kind == "timeout"
        assert error_of((await stream.items(1))["long"]).kind == "timeout"


@pytest.mark.asyncio
async def test_batch_and_unary_calls_join_on_one_key() -> None:
    """Fifty items and fifty unary calls, one key: one execution."""
    async with serving() as served:
        tool = served.add("pay", answer("paid", after=0.2), concurrency=1)
        stream = Stream(served)
        await stream.send(
            [tool_call("pay", {"a": 1}, item_id=str(n), idempotency_key="k") for n in range(50)]
        )
        unary = [served.dispatch("pay", {"a": 1}, idempotency_key="k") for _ in range(5)]
        replies = await asyncio.gather(*unary)
        found = await stream.items(50)
        assert {item.answer.result_json for item in found.values()} == {b'"paid"'}
        assert {reply.answer.result_json for reply in replies} == {b'"paid"'}
        assert len({item.answer.call_id for item in found.values()}) == 1
        assert tool.attempts == 1
        await stream.finish()


@pytest.mark.asyncio
async def test_malformed_frames_never_end_the_stream() -> None:
    """Five hundred mutations of a frame on one stream; the next good item is answered."""
    import random

    async with serving() as served:
        served.add("echo", echo)
        chance = random.Random(11)
        stream = Stream(served)
        good = DispatchBatchRequest(
            calls=[tool_call("echo", {"a": [1, {"b": "c"}]}, item_id=f"i{n}") for n in range(3)]
        ).SerializeToString()

        async def send() -> None:
            for _ in range(500):
                raw = bytearray(good)
                for _ in range(chance.randint(1, 4)):
                    raw[chance.randrange(len(raw))] = chance.randrange(256)
                await stream.rpc.write(bytes(raw))
            await stream.send(items_of([("the-last", "echo")]))

        sending = asyncio.ensure_future(send())
        kinds: set[str] = set()
        done = False
        while not done:
            response = await stream.read()
            for item in response.items:
                done = done or item.item_id == "the-last"
                if item.WhichOneof("outcome") == "error":
                    kinds.add(error_of(item).kind)
        await sending
        assert kinds <= {"schema", "not_found", "unimplemented", "budget_exceeded"}
        await stream.finish()
