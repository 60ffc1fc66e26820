"""Frames of a batch stream: what may come in, and how answers are put together to go out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from lineside.v1.dispatch_pb2 import (
    BatchItem,
    DispatchBatchRequest,
    DispatchBatchResponse,
    FrameError,
    ToolCall,
)
from lineside_service.core.errors import Failure
from lineside_service.core.jsontext import MAX_DEPTH
from lineside_service.edge.refusals import bad_field, too_many_fields, undecodable
from lineside_service.edge.status import status_of
from lineside_service.edge.wirescan import MAX_FIELDS, TooManyFields, calls_with_both_forms

MAX_FRAME_CALLS: Final = 256
MAX_FRAME_BYTES: Final = 4 * 1024 * 1024
"""Both of a request frame; a response frame stays under the bytes too: gRPC's usual receive limit."""

_ITEMS_TAG: Final = bytes([DispatchBatchResponse.ITEMS_FIELD_NUMBER << 3 | 2])


class Outgoing:
    """Something that waits to be written: its bytes as a part of a response frame, and what it settles.

    size: bytes it takes in a frame.
    """

    __slots__ = ("head", "is_item", "payload", "size")

    def __init__(self, head: bytes, payload: bytes, *, is_item: bool) -> None:
        self.head = head
        self.payload = payload
        self.is_item = is_item
        self.size = len(head) + len(payload)


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame that was taken. both_forms: positions of calls that had both forms of arguments."""

    calls: Sequence[ToolCall]
    both_forms: frozenset[int]


def read_frame(raw: bytes) -> Frame | Failure:
    """The calls of a frame, or why it is refused whole."""
    if len(raw) > MAX_FRAME_BYTES:
        text = f"the frame has {len(raw)} bytes; the limit is {MAX_FRAME_BYTES} (4 MiB)"
        return bad_field("calls", text, "FRAME_TOO_LARGE")
    try:
        request = DispatchBatchRequest.FromString(raw)
    except DecodeError:
        return undecodable(DispatchBatchRequest.DESCRIPTOR.full_name, MAX_DEPTH)
    calls = request.calls
    if not 1 <= len(calls) <= MAX_FRAME_CALLS:
        return bad_field("calls", f"{len(calls)} calls: 1-{MAX_FRAME_CALLS} in one frame", "FRAME_CALLS")
    try:
        return Frame(calls, calls_with_both_forms(raw, request))
    except TooManyFields:
        return too_many_fields("calls", MAX_FIELDS)


def outgoing_item(item: BatchItem) -> Outgoing:
    """An item's answer or error, serialized once."""
    payload = item.SerializeToString()
    return Outgoing(_ITEMS_TAG + _varint(len(payload)), payload, is_item=True)


def outgoing_frame_error(failure: Failure, frame: int, trace_id: str) -> Outgoing:
    """The refusal of a frame, counted from 1."""
    error = FrameError(status=status_of(failure, trace_id=trace_id), frame=frame)
    return Outgoing(b"", DispatchBatchResponse(frame_error=error).SerializeToString(), is_item=False)


def next_frame(ready: Sequence[Outgoing]) -> int:
    """How many of the ready ones, from the first, make a frame: under the limit, at most one frame error."""
    size, errors = 0, 0
    for count, one in enumerate(ready):
        size += one.size
        errors += not one.is_item
        if count and (size >= MAX_FRAME_BYTES or errors > 1):
            return count
    return len(ready)


def join(ready: Sequence[Outgoing]) -> bytes:
    """The serialized frame: a message's fields are concatenated, so nothing is serialized twice."""
    return b"".join([part for one in ready for part in (one.head, one.payload)])


def _varint(value: int) -> bytes:
    if value < 0x4000:  # nearly all of them
        return bytes((value,)) if value < 0x80 else bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
