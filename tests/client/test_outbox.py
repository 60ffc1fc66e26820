"""A batch's bookkeeping, without any wire: frames, breaks, and one result for every call."""

from __future__ import annotations

import grpc
from google.rpc import status_pb2
from hypothesis import given
from hypothesis import strategies as st

import lineside
from lineside.outbox import MAX_FRAME_BYTES, Outbox, in_order
from lineside.resend import StreamEnd
from lineside.status import from_rpc, from_status
from lineside.v1 import dispatch_pb2
from tests.client.rich_status import status

LOST = StreamEnd(from_rpc(grpc.StatusCode.UNAVAILABLE, "Socket closed", (), is_work=True))
NOBODY = StreamEnd(
    from_rpc(grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses", (), is_work=True)
)
KEYED = lineside.Call(tool="t", idempotency_key="k")
KEYLESS = lineside.Call(tool="t")


def drained(frames: int) -> StreamEnd:
    """A drain after so many frames."""
    return StreamEnd(from_status(status("unavailable", outcome="not_run")), frames_accepted=frames)


def filled(*calls: lineside.Call) -> Outbox:
    """An outbox with these calls queued."""
    outbox = Outbox()
    for call in calls:
        outbox.add(call, {})
    return outbox


def answers(*item_ids: str) -> dispatch_pb2.DispatchBatchResponse:
    """A response that answers these items."""
    answer = dispatch_pb2.ToolAnswer(result_json=b"1", call_id="c")
    items = [dispatch_pb2.BatchItem(item_id=item_id, answer=answer) for item_id in item_ids]
    return dispatch_pb2.DispatchBatchResponse(items=items)


def sent(outbox: Outbox, now: float = 0.0) -> list[list[str]]:
    """Every frame that is to be sent now, as item ids."""
    frames = []
    while (frame := outbox.next_frame(now)) is not None:
        frames.append([call.item_id for call in frame.calls])
    return frames


def outcomes(outbox: Outbox) -> dict[int, str]:
    """How each ended call ended, by position."""
    return {r.position: str(r.error.outcome) if r.error else "answer" for r in outbox.results}


def test_frame_holds_256_calls_and_less_than_4_mib() -> None:
    """Neither bound of a frame is ever passed, and nothing is left out (R014)."""
    outbox = filled(*[KEYLESS] * 600)
    assert [len(frame) for frame in sent(outbox)] == [256, 256, 88]
    big = lineside.Call(tool="t", arguments={"x": "y" * 1_500_000})
    outbox = filled(*[big] * 5)
    frames = []
    while (frame := outbox.next_frame(0.0)) is not None:
        assert frame.ByteSize() <= MAX_FRAME_BYTES
        frames.append(len(frame.calls))
    assert frames == [2, 2, 1]


def test_call_too_large_for_any_frame_ends_alone() -> None:
    """A call of 5 MiB among small ones is refused by name; the others go their way (R014)."""
    outbox = filled(KEYLESS, lineside.Call(tool="t", arguments={"x": "y" * 5_000_000}), KEYLESS)
    assert sent(outbox) == [["0", "2"]]
    (refused,) = outbox.results
    assert refused.position == 1
    assert isinstance(refused.error, lineside.SchemaError)


def test_window_counts_until_the_result_is_taken() -> None:
    """256 calls are queued, under way or ended and not yet taken; taking a result makes room."""
    outbox = filled(*[KEYLESS] * 256)
    assert not outbox.has_room
    sent(outbox)
    outbox.hear(answers("0"))
    assert not outbox.has_room
    outbox.results.popleft()
    assert outbox.has_room


def test_broken_stream_sends_keyed_calls_again_and_ends_the_others_unknown() -> None:
    """Every frame handed to the transport counts as taken when nobody says otherwise."""
    outbox = filled(KEYED, KEYLESS, KEYED, KEYLESS)
    sent(outbox)
    outbox.hear(answers("2"))
    outbox.broke(LOST)
    assert outcomes(outbox) == {2: "answer", 1: "unknown", 3: "unknown"}
    outbox.begin_stream()
    assert sent(outbox, now=1.0) == [["0"]]


def test_drained_stream_sends_untaken_frames_again_in_their_order() -> None:
    """Frames after the last accepted one did not run, with or without a key; taken ones are as in any
    break.
    """
    outbox = filled(KEYED, KEYLESS)
    sent(outbox)
    for call in (KEYLESS, KEYED):
        outbox.add(call, {})
        sent(outbox)
    outbox.add(KEYLESS, {})
    outbox.broke(drained(1))
    assert outcomes(outbox) == {1: "unknown"}
    outbox.begin_stream()
    assert sent(outbox, now=1.0) == [["0", "2", "3", "4"]]


def test_stream_that_was_never_made_took_nothing() -> None:
    """Where no connection was there to send on, keyless calls are sent again too."""
    outbox = filled(KEYLESS, KEYED)
    sent(outbox)
    outbox.broke(NOBODY)
    assert not outbox.results
    assert sent(outbox, now=1.0) == [["0", "1"]]


def test_giving_up_tells_apart_what_may_have_run() -> None:
    """Lost under way: UNKNOWN, also for keyed calls. Never sent: NOT_RUN."""
    outbox = filled(KEYED, KEYLESS)
    sent(outbox)
    outbox.broke(LOST)
    outbox.add(KEYLESS, {})
    outbox.give_up(NOBODY)
    assert outcomes(outbox) == {0: "unknown", 1: "unknown", 2: "not_run"}


def test_call_whose_time_ran_out_between_streams_is_not_sent() -> None:
    """A call's time runs from its first sending; later sendings state what is left."""
    outbox = filled(
        lineside.Call(tool="t", idempotency_key="k", timeout_s=2),
        lineside.Call(tool="t", idempotency_key="k"),
    )
    sent(outbox, now=100.0)
    outbox.broke(LOST)
    frame = outbox.next_frame(101.5)
    assert frame is not None
    assert [call.call_timeout.ToMilliseconds() for call in frame.calls] == [500, 58_500]
    outbox.broke(LOST)
    assert sent(outbox, now=102.0) == [["1"]]
    (late,) = outbox.results
    assert isinstance(late.error, lineside.CallTimeout)
    assert late.error.outcome == "unknown"


def test_refused_frame_ends_its_calls_alone() -> None:
    """A frame_error is the error of each call of that frame."""
    outbox = filled(KEYED)
    sent(outbox)
    outbox.add(KEYLESS, {})
    sent(outbox)
    refusal = dispatch_pb2.FrameError(frame=2, status=status("schema", outcome="not_run"))
    outbox.hear(dispatch_pb2.DispatchBatchResponse(frame_error=refusal))
    assert outcomes(outbox) == {1: "not_run"}
    assert outbox.has_unanswered


def test_strange_answers_are_ignored() -> None:
    """An answer to nothing, or a second one, changes nothing; an item error without details has its code."""
    outbox = filled(KEYED)
    sent(outbox)
    outbox.hear(answers("7", ""))
    bare = dispatch_pb2.BatchItem(item_id="0", error=status_pb2.Status(code=4, message="late"))
    outbox.hear(dispatch_pb2.DispatchBatchResponse(items=[bare]))
    outbox.hear(answers("0"))
    (result,) = outbox.results
    assert isinstance(result.error, lineside.CallTimeout)


def test_a_call_ends_at_its_time_though_no_stream_can_be_had() -> None:
    """Its time runs from the first try; the pause before the next one is no longer than what is left."""
    outbox = filled(lineside.Call(tool="t", timeout_s=1.0), lineside.Call(tool="t", timeout_s=9.0))
    assert outbox.expire(10.0, 2.0) == 1.0
    assert outbox.expire(10.5, 0.1) == 0.1
    assert not outbox.results
    assert outbox.expire(11.0, 2.0) == 2.0
    (late,) = outbox.results
    assert (late.position, type(late.error)) == (0, lineside.CallTimeout)
    assert late.error is not None
    assert late.error.outcome is lineside.Outcome.NOT_RUN


def test_item_ids_are_the_callers_and_positions_the_streams() -> None:
    """Ids given twice, or that look like positions, disturb nothing."""
    outbox = filled(
        lineside.Call(tool="t", item_id="1"), lineside.Call(tool="t", item_id="1"), lineside.Call(tool="t")
    )
    sent(outbox)
    outbox.hear(answers("1", "0", "2"))
    assert [(r.position, r.item_id) for r in outbox.results] == [(1, "1"), (0, "1"), (2, "2")]


def test_calls_that_were_never_read_have_the_batchs_error() -> None:
    """in_order fills the places of calls that a batch gave up on before it read them."""
    outbox = filled(KEYLESS)
    outbox.give_up(NOBODY)
    endings = in_order(outbox.results, 3, rest=LOST.error)
    assert [str(e.outcome) for e in endings if isinstance(e, lineside.DispatchError)] == ["not_run"] * 3


@given(
    st.lists(st.booleans(), min_size=1, max_size=40),
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 39), max_size=10),
            st.sampled_from(["lost", "drained", "nobody"]),
            st.integers(0, 3),
        ),
        max_size=6,
    ),
)
def test_every_call_ends_exactly_once(keyed: list[bool], streams: list[tuple[list[int], str, int]]) -> None:
    """Whatever is answered and however streams break: one result for each call, keyless ones sent once if
    taken.
    """
    outbox = filled(*[KEYED if has_key else KEYLESS for has_key in keyed])
    taken: dict[str, int] = {}
    for heard, end, accepted in streams:
        outbox.begin_stream()
        for number, frame in enumerate(sent(outbox), 1):
            for item_id in frame:
                if end == "lost" or (end == "drained" and number <= accepted):
                    taken[item_id] = taken.get(item_id, 0) + 1
        outbox.hear(answers(*map(str, heard)))
        outbox.broke({"lost": LOST, "drained": drained(accepted), "nobody": NOBODY}[end])
    outbox.give_up(NOBODY)
    assert sorted(result.position for result in outbox.results) == list(range(len(keyed)))
    assert not outbox.has_unanswered
    assert not outbox.has_queued
    for item_id, times in taken.items():
        assert keyed[int(item_id)] or times == 1
