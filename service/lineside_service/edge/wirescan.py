"""What a parsed message no longer shows: that a caller set both forms of the arguments.

They are one `oneof`, of which parsing keeps the last and drops the other without a word. Dropping makes the
parsed message smaller than what came, so the common road pays one size comparison and never comes here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lineside.v1.dispatch_pb2 import DispatchBatchRequest, DispatchRequest, ToolCall

_FORMS: Final = frozenset({ToolCall.ARGUMENTS_FIELD_NUMBER, ToolCall.ARGUMENTS_JSON_FIELD_NUMBER})
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def request_has_both_forms(raw: bytes, request: DispatchRequest) -> bool:
    """Whether the call of a unary request had both. raw: what was parsed into `request`."""
    if len(raw) == request.ByteSize():
        return False
    # Several occurrences of a message field are merged, so their fields count together.
    parts = list(_occurrences(raw, DispatchRequest.CALL_FIELD_NUMBER))
    return {number for part in parts for number, _ in _fields(part)} >= _FORMS


def calls_with_both_forms(raw: bytes, frame: DispatchBatchRequest) -> frozenset[int]:
    """The positions, from 0, of the calls of a frame that had both."""
    if len(raw) == frame.ByteSize():
        return frozenset()
    calls = enumerate(_occurrences(raw, DispatchBatchRequest.CALLS_FIELD_NUMBER))
    return frozenset(index for index, call in calls if {number for number, _ in _fields(call)} >= _FORMS)


def _occurrences(raw: bytes, wanted: int) -> Iterator[bytes]:
    for number, content in _fields(raw):
        if number == wanted:
            yield content


def _fields(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Field numbers with the content of length-delimited ones, of bytes that a parser has accepted."""
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _BYTES:
            length, at = _varint(raw, at)
            yield number, raw[at : at + length]
            at += length
        elif wire_type == _VARINT:
            _, at = _varint(raw, at)
            yield number, b""
        elif wire_type in (_FIXED64, _FIXED32):
            at += 8 if wire_type == _FIXED64 else 4
            yield number, b""
        else:
            return  # a group, which is unknown here: nothing of ours lies behind it


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while raw[at] & 0x80:
        value |= (raw[at] & 0x7F) << shift
        shift += 7
        at += 1
    return value | raw[at] << shift, at + 1
