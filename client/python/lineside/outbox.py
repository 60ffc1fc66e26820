"""What a batch still has to send and to hear about. No I/O, no clock: both clients carry out what it says.

Every call that is added ends in exactly one result. While it waits it is in one of three places: queued (to
go into a frame of the present stream), handed (in a frame that was given to the transport) or, ended, among
the results. A broken stream moves handed calls back to the queue if that is safe:

    frame after the last one that the service says it took    not taken: queued again, with or without a key
    taken, or nobody knows, with a key                        queued again: the service joins or replays it
    taken, or nobody knows, without a key                     ends as ConnectionLost or the like, outcome
    UNKNOWN
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from grpc import StatusCode

from lineside.answer import Answer, BatchResult, answer_of
from lineside.call import Call, require_size
from lineside.errors import CallTimeout, DispatchError, SchemaError
from lineside.resend import DEFAULT_TIMEOUT_S, MIN_TIME_LEFT_S, StreamEnd, since_lost
from lineside.status import from_status
from lineside.v1 import dispatch_pb2
from lineside.vocabulary import Next, Outcome
from lineside.wire import duration

MAX_FRAME_CALLS = 256
MAX_FRAME_BYTES = 4 * 1024 * 1024 - 64 * 1024
"""The service takes 256 calls and 4 MiB a frame; the rest is room for lengths and tags."""
WINDOW = 256
"""Calls read from the caller and not yet handed back to it: the service takes as many per stream."""
_CALL_OVERHEAD_BYTES = 24  # tag and length in the frame, and a call_timeout that a later sending may add


@dataclass(slots=True)
class _Item:
    position: int
    call: Call
    wire: dispatch_pb2.ToolCall
    size: int
    deadline: float | None = None  # set at its first sending
    frame: int = 0  # of the present stream, from 1
    is_open: bool = False  # an earlier sending of it was lost and may have run


class Outbox:
    """The calls of one batch."""

    def __init__(self) -> None:
        self.results: deque[BatchResult] = deque()
        """Ended calls, for the caller to take."""
        self._queue: deque[_Item] = deque()
        self._handed: dict[str, _Item] = {}
        self._frames = 0
        self._added = 0

    @property
    def has_room(self) -> bool:
        """Whether another call may be read from the caller."""
        return len(self._queue) + len(self._handed) + len(self.results) < WINDOW

    @property
    def has_queued(self) -> bool:
        """Whether there is something to send."""
        return bool(self._queue)

    @property
    def has_unanswered(self) -> bool:
        """Whether an answer is missing of something that was sent."""
        return bool(self._handed)

    def add(self, call: Call, trace: Mapping[str, str]) -> None:
        """Takes a call in; a malformed one ends at once. trace: its W3C trace context where it needs one."""
        position = self._added
        self._added += 1
        try:
            wire = call.to_wire()
            # The caller's own item_id stays here: positions are unique whatever the caller hands in.
            wire.item_id = str(position)
            if trace and not call.traceparent:
                wire.trace_context.traceparent = trace.get("traceparent", "")
                wire.trace_context.tracestate = trace.get("tracestate", "")
            size = wire.ByteSize() + _CALL_OVERHEAD_BYTES
            require_size("call", size, MAX_FRAME_BYTES)
        except SchemaError as error:
            self._end(position, call, error)
            return
        self._queue.append(_Item(position, call, wire, size))

    def begin_stream(self) -> None:
        """A new stream counts its frames from 1."""
        self._frames = 0

    def next_frame(self, now: float) -> dispatch_pb2.DispatchBatchRequest | None:
        """The next frame, which counts as handed to the transport from here on; None when nothing is
        queued.
        """
        taken: list[_Item] = []
        size = 0
        while self._queue and len(taken) < MAX_FRAME_CALLS and size + self._queue[0].size <= MAX_FRAME_BYTES:
            item = self._queue.popleft()
            if self._has_time(item, now):
                taken.append(item)
                size += item.size
        if not taken:
            return None
        self._frames += 1
        for item in taken:
            item.frame = self._frames
            self._handed[item.wire.item_id] = item
        return dispatch_pb2.DispatchBatchRequest(calls=[item.wire for item in taken])

    def hear(self, response: dispatch_pb2.DispatchBatchResponse) -> None:
        """Takes in what the service wrote."""
        for told in response.items:
            item = self._handed.pop(told.item_id, None)
            if item is None:
                continue  # not one of ours, or answered before
            if told.WhichOneof("outcome") == "answer":
                self._end(item.position, item.call, answer_of(told.answer))
            else:
                self._fail(item, from_status(told.error))
        if response.HasField("frame_error"):
            refused = from_status(response.frame_error.status)
            for item in [item for item in self._handed.values() if item.frame == response.frame_error.frame]:
                del self._handed[item.wire.item_id]
                self._fail(item, refused)

    def broke(self, end: StreamEnd) -> None:
        """The stream is over: ends what must not be sent again, and queues the rest in its old order,
        first.
        """
        again = []
        for item in self._handed.values():
            if (taken := end.took(item.frame)) and not item.wire.HasField("idempotency_key"):
                self._fail(item, end.error.with_outcome(Outcome.UNKNOWN))
                continue
            item.is_open = item.is_open or taken
            item.frame = 0
            again.append(item)
        self._handed.clear()
        self._queue.extendleft(reversed(again))

    def expire(self, now: float, wait_s: float) -> float:
        """Ends what has run out of time while no stream could be had; returns `wait_s`, or less where the
        time of a call ends before. The time of what was never sent runs from the first such look.
        """
        self._queue = deque(item for item in self._queue if self._has_time(item, now))
        ends = [item.deadline - now for item in self._queue if item.deadline is not None]
        return min([wait_s, *ends])

    def give_up(self, end: StreamEnd) -> None:
        """No further stream: everything that waits ends with the stream's error."""
        self.broke(end)
        while self._queue:
            self._fail(self._queue.popleft(), end.error.with_outcome(Outcome.NOT_RUN))

    def _has_time(self, item: _Item, now: float) -> bool:
        """Whether the call may (still) be sent; its time runs from the first sending, as the service counts
        it.
        """
        timeout_s = item.call.timeout_s
        if item.deadline is None:
            item.deadline = now + (timeout_s if timeout_s is not None else DEFAULT_TIMEOUT_S)
            return True
        left_s = item.deadline - now
        if left_s < MIN_TIME_LEFT_S:
            text = "the call's time ran out while the connection was being made again"
            late = CallTimeout(
                text, code=StatusCode.DEADLINE_EXCEEDED, outcome=Outcome.NOT_RUN, next=(Next.ON_ERROR,)
            )
            self._fail(item, late)
            return False
        item.wire.call_timeout.CopyFrom(duration(left_s))
        return True

    def _fail(self, item: _Item, error: DispatchError) -> None:
        self._end(item.position, item.call, since_lost(error) if item.is_open else error)

    def _end(self, position: int, call: Call, ending: Answer | DispatchError) -> None:
        item_id = call.item_id or str(position)
        if isinstance(ending, DispatchError):
            result = BatchResult(position=position, item_id=item_id, call=call, error=ending)
        else:
            result = BatchResult(position=position, item_id=item_id, call=call, answer=ending)
        self.results.append(result)


def in_order(
    results: Iterable[BatchResult], count: int, rest: DispatchError | None = None
) -> list[Answer | DispatchError]:
    """Answers and errors in the order of the calls. rest: the error of the calls that were never taken up."""
    found = {result.position: result.answer or result.error for result in results}
    missing = rest.with_outcome(Outcome.NOT_RUN) if rest is not None else None
    ordered = [found.get(position, missing) for position in range(count)]
    return [ending for ending in ordered if ending is not None]
